"""All attempts to log in that are in progress, and where their results go."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping

import trio

from mcpd.auth.completed_login import KnownClients
from mcpd.auth.discovery import LoginError
from mcpd.auth.login_attempt import LoginAttempt, LoginRequest, Save
from mcpd.auth.login_events import LoginEvents

_MAX_ENDED = 32
"""Attempts whose outcome can still be asked for."""


class Logins:
    """Runs attempts in a nursery of its own, so that no client's disconnection ends one."""

    def __init__(
        self, known: KnownClients, save: Save, environ: Mapping[str, str], events: LoginEvents
    ) -> None:
        self._known = known
        self._save = save
        self._events = events
        self._environ = environ
        self._attempts: dict[str, LoginAttempt] = {}
        self._nursery: trio.Nursery | None = None

    async def run(self, task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED) -> None:
        """Run attempts until cancelled."""
        async with trio.open_nursery() as self._nursery:
            task_status.started()
            await trio.sleep_forever()

    def start(self, work: Callable[[], Awaitable[None]]) -> None:
        """Run a task beside the attempts."""
        assert self._nursery is not None
        self._nursery.start_soon(work)

    def begin(self, request: LoginRequest) -> LoginAttempt:
        """Begin to log in, or join the attempt in progress for the same server and account."""
        assert self._nursery is not None
        found = self.find(request)
        if found is not None:
            return found
        for ended in [key for key, each in self._attempts.items() if each.outcome is not None][:-_MAX_ENDED]:
            del self._attempts[ended]
        attempt = LoginAttempt(request, self._known, self._save, self._environ)
        self._attempts[attempt.id] = attempt
        self._events.on_begun(request.server)
        self._nursery.start_soon(self._run, attempt)
        return attempt

    async def _run(self, attempt: LoginAttempt) -> None:
        await attempt.run()
        if isinstance(attempt.outcome, LoginError):
            self._events.on_failed(attempt.request.server, attempt.outcome)
        elif attempt.outcome is not None:
            for other in self._attempts.values():
                if other.outcome is None and _is_same_login(other.request, attempt.request):
                    other.supersede(attempt.outcome)

    def find(self, request: LoginRequest) -> LoginAttempt | None:
        """Return the attempt in progress for the same server and account."""
        attempts = self._attempts.values()
        return next(
            (each for each in attempts if each.outcome is None and _is_same(each.request, request)), None
        )

    def get(self, id: str) -> LoginAttempt:
        """Raises LoginError if there is no such attempt."""
        attempt = self._attempts.get(id)
        if attempt is None:
            raise LoginError("login", "this attempt has ended; begin a new login")
        return attempt


def _is_same_login(one: LoginRequest, other: LoginRequest) -> bool:
    return one.url == other.url and one.settings == other.settings


def _is_same(one: LoginRequest, other: LoginRequest) -> bool:
    return (
        _is_same_login(one, other)
        and one.earlier_scopes == other.earlier_scopes
        and one.challenge == other.challenge
    )

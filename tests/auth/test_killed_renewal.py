"""SIGKILL at every point of a renewal (T7): the file stays valid, and only a rotated token can be lost."""

from __future__ import annotations

import os
import signal
from collections.abc import Callable
from pathlib import Path

import pytest
import trio

from mcpd.auth.guarded_fetch import FetchedAnswer
from mcpd.auth.oauth.tokens import TokenRequest
from mcpd.auth.token_manager import TokenManager
from mcpd.auth.token_store import StoredLogin, TokenStore
from mcpd.files import atomic
from mcpd.privacy.redact import Redactor
from tests.auth.authorization_server import START, URL, AuthorizationServer, a_login

ROUNDS = int(os.environ.get("MCPD_TEST_KILLS", "4"))
"""How often each point is tried; the full run has 50."""
POINTS = (
    "before fsync of the attempt",
    "after fsync of the attempt",
    "before rename of the attempt",
    "after rename of the attempt",
    "before fsync of the tokens",
    "after fsync of the tokens",
    "before rename of the tokens",
    "after rename of the tokens",
    "after the directory's fsync of the attempt",
    "after the directory's fsync of the tokens",
    "before the request",
    "after the request",
)
SENT_AND_NOT_STORED = {
    "after the request",
    "before fsync of the tokens",
    "after fsync of the tokens",
    "before rename of the tokens",
}
"""Where the server has issued tokens that are not in the file: only then a login may be lost."""


class Killer:
    """Kills this process when it reaches a point."""

    def __init__(self, point: str) -> None:
        self.point = point
        self.write = "attempt"
        self.in_directory = False

    def reach(self, point: str) -> None:
        if point == self.point:
            os.kill(os.getpid(), signal.SIGKILL)

    def wrap(self, name: str, function: Callable[..., object]) -> Callable[..., object]:
        def wrapped(*arguments: object) -> object:
            directory = self.in_directory
            if not directory:
                self.reach(f"before {name} of the {self.write}")
            result = function(*arguments)
            if directory:
                self.reach(f"after the directory's fsync of the {self.write}")
                self.in_directory, self.write = False, "tokens"
            else:
                self.reach(f"after {name} of the {self.write}")
                self.in_directory = name == "rename"
            return result

        return wrapped


def renew(home: Path, server: AuthorizationServer, state: Path, point: str) -> None:
    """Renew the login once. Runs in a process of its own, which does not survive `point`."""
    killer = Killer(point)
    atomic.os = _PatchedOs(killer)  # type: ignore[assignment, attr-defined]

    async def send(login: StoredLogin, request: TokenRequest) -> FetchedAnswer:
        killer.reach("before the request")
        answer = server.handle(request)
        state.write_text(f"{server.refresh}\n{int(server.revoked)}")  # noqa: ASYNC240 - nothing else runs here
        killer.reach("after the request")
        return answer

    async def run() -> None:
        manager = TokenManager(TokenStore(home), send, Redactor())
        async with manager.running():
            credentials = await manager.credentials_for("it", URL)
            assert credentials.login is not None
            await manager.renew(credentials.login.stored.id)

    trio.run(run)


class _PatchedOs:
    """The module `os` for `files.atomic`, which reports what it does."""

    def __init__(self, killer: Killer) -> None:
        self.fsync = killer.wrap("fsync", os.fsync)
        self.replace = killer.wrap("rename", os.replace)

    def __getattr__(self, name: str) -> object:
        return getattr(os, name)


def in_child(work: Callable[[], None]) -> int:
    """Run `work` in a forked process; return its wait status."""
    pid = os.fork()
    if pid == 0:
        try:
            work()
            os._exit(0)
        except BaseException:
            os._exit(1)
    return os.waitpid(pid, 0)[1]


@pytest.mark.parametrize("grace", [True, False], ids=["grace", "strict"])
@pytest.mark.parametrize("point", POINTS)
def test_t7_a_killed_renewal_leaves_a_valid_file(tmp_path: Path, point: str, grace: bool) -> None:
    """With a grace period, the login always recovers; without one, unless the tokens were lost."""
    for round in range(ROUNDS):
        home, state = tmp_path / str(round), tmp_path / f"state{round}"
        server = AuthorizationServer(grace=grace, takes=0)
        store = TokenStore(home)
        store.open()
        login = a_login(server.issue(), START)
        store.change(lambda found, login=login: found.with_login(login, URL))  # type: ignore[misc]
        store.close()
        used = server.refresh
        status = in_child(lambda home=home, server=server, state=state: renew(home, server, state, point))  # type: ignore[misc]
        assert os.WIFSIGNALED(status), point
        assert os.WTERMSIG(status) == signal.SIGKILL
        if state.exists():  # the server has answered: bring its state into this process
            request = TokenRequest("", {}, f"refresh_token={used}".encode())
            server.handle(request)
            assert state.read_text() == f"{server.refresh}\n0"
        assert store.open().login_of(URL, "default") is not None
        assert store.problem == ""
        store.close()

        async def recover(home: Path = home, server: AuthorizationServer = server) -> StoredLogin:
            manager = TokenManager(TokenStore(home), server.send, Redactor())
            async with manager.running():
                credentials = await manager.credentials_for("it", URL)
                assert credentials.login is not None
                await manager.renew(credentials.login.stored.id)
                return credentials.login.stored

        recovered = trio.run(recover)
        lost = not grace and point in SENT_AND_NOT_STORED
        assert (recovered.ended is not None) is lost
        if recovered.ended is not None:
            assert "was lost" in recovered.ended  # known from what was stored before the request
        else:
            assert recovered.tokens.refresh_token == server.refresh

"""Finds out whether a server that refused a request has refused the session, and so executed nothing.

Servers that were restarted say in many ways that they do not know a session. An error of a tool may read the
same. So a ping is sent in the same session: if it is refused in the same way, the server refuses everything.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol

import trio
from msgspec import Raw

from mcpd.model.errors import HttpRefused, McpdError
from mcpd.transports.mcp_http_responses import may_refuse_session
from mcpd.transports.outgoing_request import AwaitedExchange, Exchange, PendingRetries
from mcpd.wire import message as wire
from mcpd.wire.message import ABSENT, Message

_PING_TIMEOUT = 5.0
_METHOD_NOT_FOUND = "-32601"

Refusal = tuple[str, str, str]
"""The HTTP status (`HTTP 200`), and code and message of the JSON-RPC error unless the status says it all."""


def describe_lost_session(status: str) -> str:
    return f"the server dropped our session ({status}, it was probably restarted)"


def refusal_of(status: str, error: Raw | bytes = b"") -> Refusal:
    """Return what two refusals of the same session have in common."""
    members = wire.members_or_empty(error)
    code = wire.error_code(members)
    if status.startswith("HTTP 4") and code != _METHOD_NOT_FOUND:
        return (status, "", "")
    return (status, code, wire.string_or(members, "message"))


class _Ping(AwaitedExchange, kw_only=True):
    status: Callable[[], str]
    """Returns the HTTP status of the last response."""
    refusal: Refusal | None = None

    def answered(self, message: Message) -> None:
        if message.error is not ABSENT:
            self.refusal = refusal_of(self.status(), message.error)
        super().answered(message)

    def failed(self, error: McpdError) -> None:
        if isinstance(error, HttpRefused):
            self.refusal = refusal_of(f"HTTP {error.status}")
        super().failed(error)


class SessionChannel(Protocol):
    """The channel with the session that is checked."""

    nursery: trio.Nursery | None
    session: str | None

    @property
    def has_session(self) -> bool: ...
    def submit(self, exchange: Exchange, method: str, params: bytes) -> None: ...
    def end_lost_session(self, exchange: Exchange | None, status: str) -> None: ...
    def fail_refused(self, exchange: Exchange, status: str) -> None:
        """Fail a request that is in no table any more, because its session was refused."""


class SessionCheck:
    """Holds refused requests until the outcome is known. Concurrent checks share a ping."""

    def __init__(self, channel: SessionChannel, held: PendingRetries, status: Callable[[], str]) -> None:
        self._channel = channel
        self._held = held
        self._status = status
        self._done: trio.Event | None = None
        self._refusal: Refusal | None = None

    def applies_to(self, exchange: Exchange, status: str, error: Raw | bytes) -> bool:
        """Return whether this error or body may refuse the session, and not only the request."""
        channel = self._channel
        may_check = channel.has_session and exchange.method != "ping" and not exchange.was_retried
        return may_check and channel.nursery is not None and may_refuse_session(status, error)

    def start(
        self, exchange: Exchange, status: str, error: Raw | bytes, otherwise: Callable[[], None]
    ) -> None:
        """Check the session after a request that this `applies_to`, and that is not in the table any more.

        If the session is refused, the channel ends, and the request fails. Else `otherwise` is called.
        """
        channel, refusal = self._channel, refusal_of(status, error)
        assert channel.nursery is not None

        def then(worked: bool) -> None:
            exchange.was_retried = False
            if channel.session:
                otherwise()
            else:
                channel.fail_refused(exchange, status)

        async def check() -> None:
            if await self._ping() == refusal:
                channel.end_lost_session(None, status)

        self._held.add(exchange)
        channel.nursery.start_soon(self._held.retry, exchange, check, then)

    async def _ping(self) -> Refusal | None:
        """Return how the server refuses a ping; None if it does not."""
        if self._done is None:
            self._done = done = trio.Event()
            ping = _Ping(status=self._status, total_timeout=_PING_TIMEOUT)
            try:
                self._channel.submit(ping, "ping", b"{}")
                await ping.wait_response()
            except McpdError:
                pass
            finally:
                self._refusal, self._done = ping.refusal, None
                done.set()
        else:
            await self._done.wait()
        return self._refusal

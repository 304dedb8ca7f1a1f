"""One request towards a server: who wants the answer, and by when."""

from __future__ import annotations

import math

import msgspec
import trio
from msgspec import Raw

from mcpd.model.errors import McpdError
from mcpd.transports.call_stats import ToolCallStats
from mcpd.wire.message import Message


class Exchange(msgspec.Struct, eq=False, kw_only=True):
    """A slot in a link's table. The link calls exactly one of `answered` and `failed`, once,
    unless `Link.cancel` came first; then neither.

    All three callbacks run inside the link's reader: they must not block. One that raises is logged; if it
    was `answered`, `failed` comes after it. (A Struct, because one is made for each call and this is the
    cheapest object there is.)
    """

    idle_timeout: float = math.inf
    """Seconds of silence allowed; each progress notification starts them afresh."""
    timeout_source: str = "`timeout` in its definition sets"
    """Where `idle` comes from, for the message when it is over."""
    total_timeout: float = math.inf
    """Seconds after which it ends whatever the progress."""
    label: str = ""
    """For messages: `tool 'echo'`. Empty: the method's name."""
    cancellable: bool = True
    """Whether the server may be told that nobody waits any more (a handshake must not be cancelled)."""
    wants_progress: bool = False
    """Whether progress is to be asked for; of a `tools/call` it always is."""
    long_lived: bool = False
    """Whether it stays open by its nature (a subscription): it is not due, and takes nobody's turn."""
    meta: bytes = b""
    """Members of `_meta` in place of the dialect's, for this request only (`Upstream.dress` makes them)."""
    was_retried: bool = False
    """Whether it has been sent once more already (`Dialect.remedy`); it never is a second time."""
    key: bytes = b""
    method: str = ""
    deadline: float = math.inf
    hard_deadline: float = math.inf
    stats: ToolCallStats | None = None
    """Where a `tools/call` is counted when it ends; None for anything else."""
    sent_at: float = 0.0

    @property
    def description(self) -> str:
        """For messages."""
        return self.label or self.method

    def answered(self, message: Message) -> None:
        """The response, result or error, with the link's own id on it."""
        raise NotImplementedError

    def progressed(self, params: Raw) -> None:
        """The params of a progress notification for this request, with the link's own token in it."""

    def failed(self, error: McpdError) -> None:
        """There will be no answer."""
        raise NotImplementedError


class AwaitedExchange(Exchange):
    """An exchange somebody waits for in a task of their own."""

    done: trio.Event = msgspec.field(default_factory=trio.Event)
    error: McpdError | None = None
    message: Message | None = None

    def answered(self, message: Message) -> None:
        self.message = message
        self.done.set()

    def failed(self, error: McpdError) -> None:
        self.error = error
        self.done.set()

    async def wait_response(self) -> Message:
        """Wait for the response. Raises the McpdError of a failed exchange."""
        await self.done.wait()
        if self.error is not None:
            raise self.error
        assert self.message is not None
        return self.message

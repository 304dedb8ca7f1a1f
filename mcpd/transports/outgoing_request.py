"""One request to a server: its callbacks, deadlines and options, and its retry after a refusal."""

from __future__ import annotations

import math
from collections.abc import Awaitable, Callable

import msgspec
import trio
from msgspec import Raw

from mcpd.model.errors import McpdError
from mcpd.transports.tool_call_stats import ToolCallStats
from mcpd.wire.message import Message

FROM_TIMEOUT = "`timeout` in its definition sets"


class Exchange(msgspec.Struct, eq=False, kw_only=True):
    """A request in a channel's table. The channel calls either `answered` or `failed`, once, unless
    `Channel.cancel` was called before.

    All callbacks run in the channel's reader and must not block. An exception in one is logged; after an
    exception in `answered`, `failed` is called. (A Struct because it is the cheapest object to create.)
    """

    idle_timeout: float = math.inf
    """Seconds without a response or progress after which it times out."""
    timeout_source: str = FROM_TIMEOUT
    """Where `idle_timeout` was set, for the error message."""
    total_timeout: float = math.inf
    """Seconds after which it times out regardless of progress."""
    label: str = ""
    """For messages: `tool 'echo'`. If empty, the method is used."""
    cancellable: bool = True
    """Whether the server may be sent a cancellation; `initialize` must not be cancelled."""
    wants_progress: bool = False
    """Whether to request progress; for `tools/call` this is always done."""
    long_lived: bool = False
    """Whether it stays open by design (a subscription): no deadline, and not counted as in flight."""
    meta: bytes = b""
    """Members of `_meta` for this request instead of the dialect's; see `Upstream.request_meta`."""
    was_retried: bool = False
    """Whether it was already sent again (`Dialect.retry_after_refusal`); this happens only once."""
    key: bytes = b""
    method: str = ""
    deadline: float = math.inf
    hard_deadline: float = math.inf
    stats: ToolCallStats | None = None
    """Where a `tools/call` is counted; None for other methods."""
    sent_at: float = 0.0
    response_size: int = 0
    """Bytes of the response; 0 if there was none."""
    reports_error: bool = False
    """Whether the response is the result of a tool that reports a failure."""

    @property
    def description(self) -> str:
        return self.label or self.method

    def answered(self, message: Message) -> None:
        """Called with the response, a result or an error, whose id is the channel's."""
        raise NotImplementedError

    def progressed(self, params: Raw) -> None:
        """Called with the params of a progress notification, whose token is the channel's."""

    def failed(self, error: McpdError) -> None:
        """Called if there will be no response."""
        raise NotImplementedError


class AwaitedExchange(Exchange):
    """An exchange that a task waits for."""

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
        """Return the response. Raises the McpdError of a failed request."""
        await self.done.wait()
        if self.error is not None:
            raise self.error
        assert self.message is not None
        return self.message


BeforeRetry = Callable[[], Awaitable[None]]


class PendingRetries:
    """The requests that await their retry: removed from the table, and not answered yet."""

    def __init__(self) -> None:
        self._waiting: dict[bytes, Exchange] = {}

    async def retry(
        self, exchange: Exchange, before_retry: BeforeRetry, then: Callable[[bool], None]
    ) -> None:
        """Await `before_retry`, then call `then` with whether it succeeded, unless the request was withdrawn.

        Bounded by the deadline of the request.
        """
        worked = False
        exchange.was_retried = True
        try:
            with trio.move_on_at(exchange.deadline):
                await before_retry()
                worked = True
        except McpdError:
            pass  # the original error says more about this request
        finally:
            if self.withdraw(exchange):
                then(worked)

    def add(self, exchange: Exchange) -> None:
        """Hold the request from now on; `retry` must be called soon."""
        self._waiting[exchange.key] = exchange

    def withdraw(self, exchange: Exchange) -> bool:
        """Remove the request; return whether it was held."""
        if self._waiting.get(exchange.key) is not exchange:
            return False
        del self._waiting[exchange.key]
        return True

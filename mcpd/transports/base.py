"""What everything above the transports may know of one: a channel, and how an era speaks on it."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Collection, Mapping
from typing import NoReturn, Protocol

import attrs
from msgspec import Raw

from mcpd.model.errors import McpdError
from mcpd.transports.call_stats import CallStats
from mcpd.transports.outgoing_request import Exchange
from mcpd.wire.message import Message


class Inbound(Protocol):
    """What a server may begin by itself; the era decides what it means. Must not block or raise.

    `exchange` is the request of ours on whose own stream it came, which is then what it is about. Only
    Streamable HTTP has such streams: everywhere else, and on the stream that belongs to no request, None.
    """

    def on_request(self, message: Message, exchange: Exchange | None = None) -> None: ...
    def on_notification(self, message: Message, exchange: Exchange | None = None) -> None: ...


class NullInbound:
    """Before an era has been agreed: nothing is expected, nothing is answered."""

    def on_request(self, message: Message, exchange: Exchange | None = None) -> None: ...
    def on_notification(self, message: Message, exchange: Exchange | None = None) -> None: ...


def _no_headers(method: str, frame: bytes) -> Mapping[str, str]:
    return {}


BeforeRetry = Callable[[], Awaitable[None]]


def _never_retry(method: str, message: Message) -> BeforeRetry | None:
    return None


@attrs.frozen(kw_only=True)
class Dialect:
    """How an era dresses its messages. A transport without headers heeds only `meta`."""

    meta: bytes = b""
    """Members (`"name":value,…` as JSON) of every request's `_meta`."""
    headers: Callable[[str, bytes], Mapping[str, str]] = _no_headers
    """HTTP headers of a message, by its method ("" for none: a response, a GET) and its frame."""
    session_header: str = ""
    """The HTTP header in which a server names a session, to be echoed; empty where there are none."""
    retry_after_refusal: Callable[[str, Message], BeforeRetry | None] = _never_retry
    """For a request (its method, and the error it was answered with) that surely was not carried out and
    is worth to be sent once more: what to wait for before. Asked by transports with headers."""
    opens_session: bool = False
    """Whether the messages are to open a session: none is named, and one that is named in an answer kept."""
    disconnect_cancels: bool = False
    """Whether closing an HTTP response means that nobody waits; else that has to be said."""
    resumable: bool = False
    """Whether a broken event stream may be asked for again by the last event's id."""


class Channel(Protocol):
    """One server's traffic, whatever carries it: many exchanges at once, each answered or failed once.

    Made by an `open_…` context manager, which owns what is beneath. Somebody must `run` it. Until
    then `submit` queues; after it has ended every exchange has been answered or failed, and `submit`
    raises. Only `run`, `flushed` and `listen` wait.
    """

    name: str
    has_headers: bool
    """Whether `Dialect.headers` travel with the messages."""
    inbound: Inbound
    allows_batches: bool
    """Whether this revision allows arrays of messages."""
    unparsable_lines: int
    """Messages that were none."""
    unparsable_sample: str
    """The beginning of the first of them, as it came: mask it, then shorten it."""
    late_replies: int
    protocol_deviations: dict[str, int]
    """What the server does against the standard and was understood all the same (words), how often."""
    last_received_at: float
    """When the last whole message came (`trio.current_time()`)."""
    last_success_at: float
    """When a tool call last succeeded: proof that the server works, for the backoff."""
    end_error: McpdError | None
    """Why it is over: what `run` has raised, or is about to."""
    session: str | None
    """The id of the session the server keeps for us, a secret; empty for none, None where there are none."""
    last_http_status: str
    """What the transport said beside the last answer (`HTTP 404`), for the record of a negotiation."""
    tap: Callable[[str, bytes], None] | None
    """Sees every frame ("→" or "←"), when somebody looks (`debug`, `mcpd/tap`)."""
    call_stats: CallStats
    """Counts its calls. Whoever opens the channel may put one in that outlives it."""

    def submit(
        self, exchange: Exchange, method: str, params: Raw | bytes = b"", *, plain: bool = False
    ) -> None:
        """Send a request, or queue it when the window is full. Does not wait. `plain`: see `stamp`.

        Raises LinkLost or Overloaded, with nothing sent, and BadFrame when params is no object;
        after that the exchange is called with what came.
        """

    def extend_deadline(self, exchange: Exchange, seconds: float) -> None:
        """It may be silent for so long from now on, whatever its `idle`; progress does not shorten that."""

    def cancel(self, exchange: Exchange, reason: str) -> None:
        """Stop waiting; tell the server unless the request has not left. Ignored when it is over."""

    def notify(self, method: str, params: bytes = b"") -> None:
        """Nothing is sent once the channel has ended; so with the next two."""

    def respond(self, request: Message, result: bytes) -> None:
        """Answer a request that the server made."""

    def refuse(self, request: Message, code: int, message: str) -> None: ...

    def set_dialect(self, dialect: Dialect) -> None:
        """Dress every message from now on as the era wishes."""

    async def wait_flushed(self) -> None:
        """Until every notification so far has arrived where order matters, or has been lost."""

    async def listen(self, on_gap: Callable[[], None], on_open: Callable[[], None]) -> None:
        """Hear what the server says unasked, where that needs an ear of its own; else return at once.

        `hears` is called when it does: what the server says from then on arrives. `missed` is called
        whenever something may have been said while nobody listened.
        """

    correlates_server_requests: bool
    """Whether what a server says during a request names that request (see `Inbound`)."""

    def outstanding(self) -> Collection[Exchange]:
        """The requests that are with the server now."""

    @property
    def in_flight(self) -> int: ...

    @property
    def is_busy(self) -> bool:
        """Whether somebody waits for an answer that is due at some time."""

    async def run(self) -> NoReturn:
        """Carry the traffic until the channel ends; then raise `ended`, having failed every exchange."""

    def close(self, reason: str) -> None:
        """Fail every exchange, now. Idempotent; the first reason stays."""

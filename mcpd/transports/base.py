"""The interface of all transports: a `Channel` to one server, and the `Dialect` a protocol era uses on it."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from typing import NoReturn, Protocol

import msgspec
from msgspec import Raw

from mcpd.model.errors import McpdError
from mcpd.transports.outgoing_request import BeforeRetry, Exchange, PendingRequests
from mcpd.wire.message import Message


class Inbound(Protocol):
    """Receives what a server sends unasked; the protocol era decides what it means. Must not block or raise.

    `exchange` is our request on whose own stream the message came, and to which it therefore belongs. Only
    Streamable HTTP has such streams; otherwise it is None.
    """

    def on_request(self, message: Message, exchange: Exchange | None = None) -> None: ...
    def on_notification(self, message: Message, exchange: Exchange | None = None) -> None: ...


class NullInbound:
    """Ignores everything, until an era has been negotiated."""

    def on_request(self, message: Message, exchange: Exchange | None = None) -> None: ...
    def on_notification(self, message: Message, exchange: Exchange | None = None) -> None: ...


class Dialect(msgspec.Struct, frozen=True, kw_only=True):
    """How an era decorates its messages. A transport without headers uses only `meta`."""

    meta: bytes = b""
    """Members (`"name":value,…` as JSON) of every request's `_meta`."""
    headers: Callable[[str, bytes], Mapping[str, str]] = lambda method, frame: {}
    """HTTP headers for a message, given its method (empty for a response or a GET) and its frame."""
    session_header: str = ""
    """The HTTP header that carries the session id; empty if the era has no sessions."""
    retry_after_refusal: Callable[[str, Message], BeforeRetry | None] = lambda method, message: None
    """For a request (its method, and the error response) that certainly was not executed and should be sent
    once more: returns what to await before that. Only used by transports with headers."""
    opens_session: bool = False
    """Whether a message opens a session: none is sent with it, and one in the response is kept."""
    disconnect_cancels: bool = False
    """Whether closing the HTTP response cancels a request; otherwise a notification is needed."""
    resumable: bool = False
    """Whether a broken event stream can be resumed with `Last-Event-ID`."""


_SAMPLE = 4096
"""Bytes kept of unparsable output: secrets in it are masked before it is shortened."""


class Deviations(msgspec.Struct):
    """What a server has sent against the protocol, and mcpd has tolerated."""

    unparsable_lines: int = 0
    """Number of received lines (or frames) that were not JSON-RPC."""
    unparsable_sample: str = ""
    """The beginning of the first of them, unmasked: mask it before shortening it."""
    late_replies: int = 0
    counts: dict[str, int] = msgspec.field(default_factory=dict)
    """All others: description and count."""

    def count(self, what: str) -> None:
        self.counts[what] = self.counts.get(what, 0) + 1

    def count_unparsable(self, line: bytes) -> None:
        self.unparsable_lines += 1
        self.unparsable_sample = self.unparsable_sample or line[:_SAMPLE].decode("utf-8", "replace")


class LostCalls(msgspec.Struct):
    """The calls that got no answer of MCP since the last one that succeeded."""

    count: int = 0
    at: float = -math.inf
    """When the last of them failed (`trio.current_time()`)."""
    reason: str = ""

    def add(self, error: McpdError, now: float, last_success_at: float) -> None:
        self.count = 1 if last_success_at > self.at else self.count + 1
        self.at, self.reason = now, error.message.removeprefix(f"{error.server}: ")


class Channel(Protocol):
    """A connection to one server: many concurrent requests, each of which gets a response or an error once.

    Opened by an `open_…` context manager, which owns the resources. The caller must `run` it. Before that,
    `submit` queues; after `run` has ended, every request has been answered or failed and `submit` raises.
    Only `run`, `wait_flushed` and `listen` wait.
    """

    name: str
    has_headers: bool
    """Whether `Dialect.headers` are sent."""
    inbound: Inbound
    allows_batches: bool
    """Whether the revision allows JSON-RPC batches."""
    deviations: Deviations
    requests: PendingRequests
    last_received_at: float
    """When the last complete message arrived (`trio.current_time()`)."""
    last_success_at: float
    """When a tool call last succeeded; used to reset the backoff."""
    lost_calls: LostCalls
    end_error: McpdError | None
    """Why the channel ended: what `run` has raised or is about to raise."""
    last_id: int
    """The id of the last request."""
    session: str | None
    """The session id, a secret; empty without a session, None on transports without sessions."""
    last_http_status: str
    """`HTTP 404` or similar for the last response, for the record of a negotiation."""
    tap: Callable[[str, bytes], None] | None
    """Called with each frame and its direction ("→" or "←") while `debug` or a tap is active."""
    on_lost: Callable[[], None] | None
    """Called as soon as the connection is known to be lost, before its requests fail and before the cause is
    known. Perhaps repeatedly; never because of `close`."""
    on_refused: Callable[[], None] | None
    """Called when the server answers a request with an HTTP error or with no message of MCP, and when its
    event stream breaks. That fails this request only: a health check finds out whether the server works."""

    def submit(
        self, exchange: Exchange, method: str, params: Raw | bytes = b"", *, plain: bool = False
    ) -> None:
        """Send a request, or queue it if too many are in flight. `plain`: see `request_with_meta`.

        Does not wait. Raises LinkLost, Overloaded, or the error of `stop_accepting`, if nothing was sent, and
        BadFrame if params is not an object. Otherwise the exchange's callbacks report the result.
        """

    def await_answer(self, exchange: Exchange, key: bytes, method: str) -> None:
        """Wait for the answer to a request that the version before this one has sent with the id `key`."""

    def cancel(self, exchange: Exchange, reason: str) -> None:
        """Stop waiting, and notify the server if the request was sent. No effect on a finished request."""

    def fail_cancelled(self, params: Raw | bytes) -> None:
        """Fail the request, if it is in progress, that `notifications/cancelled` of the server names."""

    def notify(self, method: str, params: bytes = b"") -> None:
        """Send a notification. Has no effect after the channel has ended, like `respond` and `refuse`."""

    def respond(self, request: Message, result: bytes) -> None:
        """Respond to a request of the server."""

    def refuse(self, request: Message, code: int, message: str) -> None: ...

    def set_dialect(self, dialect: Dialect) -> None:
        """Use this dialect for all further messages."""

    def has_unread_input(self) -> bool:
        """Whether the server has not read everything that was sent, as before it has started. False if the
        transport cannot tell."""

    def unended_line(self) -> bytes:
        """Return what the server has sent without the end of a line; empty if the transport has no lines."""

    async def wait_flushed(self) -> None:
        """Wait until all notifications so far were sent or failed, where order is not kept otherwise."""

    async def listen(self, on_gap: Callable[[], None], on_open: Callable[[], None]) -> None:
        """Open a stream for unsolicited server messages on transports that need one; return otherwise.

        `on_open` is called when messages from then on arrive, `on_gap` when some may have been missed.
        """

    correlates_server_requests: bool
    """Whether what a server sends during a request names that request (see `Inbound`). Over Streamable HTTP
    it should, and becomes False once a request has arrived that does not."""

    async def run(self) -> NoReturn:
        """Run the channel until it ends. Then raise `end_error`, having failed every request."""

    def stop_accepting(self, error: McpdError) -> None:
        """Refuse new requests with this error, because the connection is about to be closed. It is also why
        the channel ends then. Call this only while no request waits for its turn."""

    def close(self, reason: str) -> None:
        """Fail every request now, and refuse new ones. Idempotent: the first reason is kept, and the error of
        `stop_accepting` takes precedence."""

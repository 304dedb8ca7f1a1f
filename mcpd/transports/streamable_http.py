"""The Streamable HTTP transport: one POST per message, answered with JSON or an event stream.

A broken connection, or a refused login, fails only the request it carried. The channel ends when the server
cannot be reached or no longer knows the session.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import asynccontextmanager, suppress
from functools import partial
from http import HTTPStatus

import attrs
import httpx
import trio

from mcpd.io.outbox import batch
from mcpd.model.errors import LinkLost, McpdError
from mcpd.model.server_spec import RemoteSpec
from mcpd.model.text import shorten
from mcpd.process.memory import trim_heap_soon
from mcpd.transports.credentials import Credentials
from mcpd.transports.http_client import bodies
from mcpd.transports.http_client.bodies import BodyTooLarge
from mcpd.transports.http_client.client_factory import OnResponse, open_client
from mcpd.transports.http_client.connection import Abort, describe_error, is_unreachable
from mcpd.transports.http_client.redirects_and_refusals import HttpEndpoint
from mcpd.transports.mcp_http_responses import (
    EVENT_STREAM,
    JSON,
    LARGE,
    ResumableStreams,
    StreamState,
    complete_messages,
    is_session_error,
    json_rpc_error,
    read_events,
    refuses_session,
    session_id,
)
from mcpd.transports.multiplexer import RequestMultiplexer
from mcpd.transports.outgoing_request import (
    Exchange,
    OutgoingNotifications,
    PendingRetries,
    answer_dropped,
    connection_lost,
    protocol_violation,
)
from mcpd.wire import message as wire
from mcpd.wire.event_stream import EventTooLong, SseEvent
from mcpd.wire.limits import TooMuchStructure
from mcpd.wire.message import ABSENT, Message

_STREAM_END_TIMEOUT = 0.25
"""Seconds a server has to end its stream after the response, so that the connection can be reused."""
_NOTIFICATION_TIMEOUT = 30.0
_HTTP_LEVEL_STATUSES = (401, 403, 429)
"""Statuses about authorization and rate limits, whatever the body says."""


@attrs.define(eq=False)
class _Post:
    """A request in flight, and the task that carries it."""

    exchange: Exchange
    frame: bytes
    scope: trio.CancelScope = attrs.field(factory=trio.CancelScope)
    was_sent: bool = False
    abort: Abort | None = None
    """Ends the request while no task carries it."""
    has_stream: bool = False
    """Whether the response is an event stream, which may continue after the JSON-RPC response."""

    def cancel(self, reason: str) -> None:
        """Stop, because nobody waits for the response."""
        self.scope.cancel(reason=reason)
        if self.abort is not None:
            self.abort()
            self.abort = None


class HttpChannel(RequestMultiplexer):
    """A channel to one server at one URL. The opener calls `end_session` at the end."""

    has_headers = True
    correlates_server_requests = True

    def __init__(self, spec: RemoteSpec, endpoint: HttpEndpoint) -> None:
        super().__init__(spec)
        self.session = ""
        self._endpoint = endpoint
        self._max_frame = spec.max_frame
        self._nursery: trio.Nursery | None = None
        self._posts: dict[bytes, _Post] = {}
        self._unsent_notifications: list[bytes] = []
        self._retries = PendingRetries()
        self._notifications = OutgoingNotifications()
        self._streams = ResumableStreams(self._get_event_stream)

    async def _transfer(self, nursery: trio.Nursery) -> str:
        self._nursery = nursery
        for post in self._posts.values():
            nursery.start_soon(self._run_request, post)
        early, self._unsent_notifications = self._unsent_notifications, []
        for frame in early:
            nursery.start_soon(self._send_notification, frame)
        try:
            await trio.sleep_forever()
        finally:
            self._nursery = None

    async def end_session(self) -> None:
        """Delete the session; the server may ignore that. Bounded by the caller."""
        if self.session:
            with suppress(httpx.TransportError, McpdError):  # it expires on the server
                await bodies.close(await self._endpoint.send("DELETE", self._headers("", b"", "*/*")))

    # ── frames out ──────────────────────────────────────────────────────────────────────────────

    def _send_request(self, exchange: Exchange, frame: bytes) -> None:
        post = self._posts[exchange.key] = _Post(exchange, frame)
        if self._nursery is not None and not self._send_without_task(post):
            self._nursery.start_soon(self._run_request, post)

    def _send_without_task(self, post: _Post) -> bool:
        """Send immediately on an idle connection; most responses then need no task either."""
        exchange, frame = post.exchange, post.frame
        try:
            headers = self._headers(exchange.method, frame)
            then = partial(self._on_outcome, post, headers)
            post.abort = self._endpoint.send_with_callback("POST", headers, frame.rstrip(), then)
        except (httpx.TransportError, McpdError):
            return False  # it fails again in `_run_request`, which reports it
        post.was_sent = post.abort is not None
        return post.was_sent

    def _withdraw_request(self, exchange: Exchange, reason: str) -> bool:
        post = self._posts.pop(exchange.key, None)
        if post is None:
            return True
        post.cancel(reason)
        return not post.was_sent or self.dialect.disconnect_cancels

    def _unsent_requests(self) -> set[Exchange]:
        return {post.exchange for post in self._posts.values() if not post.was_sent}

    def _send_frame(self, frame: bytes) -> None:
        if not self._notifications.reserve():
            return
        if self._nursery is None:
            self._unsent_notifications.append(frame)
        else:
            self._nursery.start_soon(self._send_notification, frame)

    async def wait_flushed(self) -> None:
        await self._notifications.wait_drained()

    def _headers(self, method: str, frame: bytes, accept: str = f"{JSON}, {EVENT_STREAM}") -> dict[str, str]:
        dialect = self.dialect
        headers = {"Accept": accept, **dialect.headers(method, frame)}
        if frame:
            headers["Content-Type"] = JSON
        if self.session and dialect.session_header and not dialect.opens_session:
            headers[dialect.session_header] = self.session
        return headers

    # ── one request ─────────────────────────────────────────────────────────────────────────────

    def _on_outcome(
        self, post: _Post, headers: Mapping[str, str], outcome: httpx.Response | httpx.TransportError
    ) -> None:
        """Handle the result of a request that was sent without a task. Called by the reader hub."""
        post.abort = None
        exchange, key, nursery = post.exchange, post.exchange.key, self._nursery
        documents: list[bytes] = []
        if isinstance(outcome, httpx.Response):
            documents = complete_messages(outcome, key, self._max_frame)
            if not documents:
                if nursery is not None:
                    nursery.start_soon(self._run_request, post, headers, outcome)
                return
        try:
            if isinstance(outcome, httpx.Response):
                self.last_http_status = "HTTP 200"
                self._read_session_id(outcome)
                for document in documents[:-1]:
                    with batch():
                        self.receive(bodies.to_one_line(document), exchange)
                self._receive_body(exchange, documents[-1])
            else:
                self._handle_transport_error(exchange, outcome)
        except McpdError as error:
            self._fail_if_pending(exchange, error)
        except Exception as error:  # a bug must not end the reader hub, which is shared
            if nursery is not None:
                nursery.start_soon(_raise, error)
        if self._posts.get(key) is post:
            del self._posts[key]

    async def _run_request(
        self, post: _Post, headers: Mapping[str, str] | None = None, response: httpx.Response | None = None
    ) -> None:
        """Carry a request to its response, starting with `response` if it has arrived."""
        exchange, key = post.exchange, post.exchange.key
        post.was_sent = True
        with post.scope:
            try:
                content = post.frame.rstrip()
                if response is None or headers is None:
                    headers = self._headers(exchange.method, post.frame)
                    response = await self._endpoint.send("POST", headers, content)
                else:
                    response = await self._endpoint.complete(response, "POST", headers, content)
                try:
                    await self._handle_response(exchange, response)
                finally:
                    await bodies.close(response)
            except httpx.TransportError as error:
                self._handle_transport_error(exchange, error)
            except (BodyTooLarge, EventTooLong, TooMuchStructure) as error:
                reason = str(error) or f"more than {self._max_frame} bytes"
                self._fail_if_pending(exchange, answer_dropped(self.name, exchange, reason))
            except McpdError as error:
                self._fail_if_pending(exchange, error)
        if self._posts.get(key) is post:
            del self._posts[key]

    async def _handle_response(self, exchange: Exchange, response: httpx.Response) -> None:
        kind = bodies.content_type(response)
        self.last_http_status = f"HTTP {response.status_code}"
        if not response.is_success:
            await self._handle_refusal(exchange, response)
            return
        self._read_session_id(response)
        if kind == EVENT_STREAM:
            await self._follow_stream(exchange, response)
            return
        if response.status_code == HTTPStatus.ACCEPTED:
            raise protocol_violation(
                self.name, exchange, "with HTTP 202, which is only valid for notifications"
            )
        body = await bodies.read(response, self._max_frame)
        if kind != JSON and body.lstrip()[:1] not in (b"{", b"["):
            raise protocol_violation(
                self.name, exchange, f"with {shorten(kind or 'nothing', 60)} instead of JSON"
            )
        body = bodies.to_one_line(body)
        if len(body) > LARGE:
            trim_heap_soon()
        self._receive_body(exchange, body)

    def _receive_body(self, exchange: Exchange, body: bytes) -> None:
        """Process the document that answers a request. Raises ProtocolViolation if it does not."""
        with batch():
            self.receive(bodies.to_one_line(body), exchange)
        if self._is_pending(exchange) and not self._handle_error_body(exchange, body):
            raise protocol_violation(self.name, exchange, f"with an unrelated message: {shorten(body)}")

    def _handle_error_body(self, exchange: Exchange, body: bytes) -> bool:
        """Deliver the body if it is a JSON-RPC error, even without an id. Return whether it was one."""
        error = json_rpc_error(body, exchange.key)
        if error is None:
            return False
        if self._pop_pending(exchange.key) is exchange:
            if self.tap is not None:
                self.tap("←", body)
            with batch():
                self._deliver_response(exchange, error, body)
        return True

    async def _handle_refusal(self, exchange: Exchange, response: httpx.Response) -> None:
        status = response.status_code
        body = await bodies.read_short(response)
        if self._has_session and refuses_session(response, body):
            self._end_lost_session(exchange, status)
            return
        if status in _HTTP_LEVEL_STATUSES or not self._handle_error_body(exchange, body):
            self._fail_if_pending(exchange, self._endpoint.refusal_error(response, body))
        if (status == HTTPStatus.UNAUTHORIZED or self._has_session) and self.on_refused is not None:
            self.on_refused()

    @property
    def _has_session(self) -> bool:
        return bool(self.session) and not self.dialect.opens_session

    def _read_session_id(self, response: httpx.Response) -> None:
        if self.dialect.opens_session and self.dialect.session_header:
            self.session = session_id(response, self.dialect.session_header)

    # ── event streams ───────────────────────────────────────────────────────────────────────────

    async def _follow_stream(self, exchange: Exchange, response: httpx.Response) -> None:
        """Read the event stream of a request until the response, resuming it if the server allows that."""
        post = self._posts.get(exchange.key)
        if post is not None:
            post.has_stream = True
        why = await self._streams.follow(
            response,
            partial(self._read_stream, exchange),
            partial(self._is_pending, exchange),
            resumable=self.dialect.resumable,
        )
        self._fail_if_pending(exchange, connection_lost(self.name, exchange, why, may_have_run=True))

    async def _get_event_stream(self, last_id: str | None) -> httpx.Response:
        headers = self._headers("", b"", EVENT_STREAM)
        if last_id is not None:
            headers["Last-Event-ID"] = last_id
        return await self._endpoint.send("GET", headers)

    async def _read_stream(
        self, exchange: Exchange | None, response: httpx.Response, heard: StreamState
    ) -> str:
        def take(event: SseEvent) -> None:
            if event.data and event.event == "message":
                self.receive(bodies.to_one_line(event.data), exchange)

        return await read_events(response, heard, self._max_frame, take)

    async def listen(self, on_gap: Callable[[], None], on_open: Callable[[], None]) -> None:
        """Keep the stream for unsolicited messages open; return if the server offers none."""
        if self.dialect.resumable:
            await self._streams.listen(
                partial(self._read_stream, None),
                is_over=lambda: self.end_error is not None,
                on_gap=on_gap,
                on_open=on_open,
                on_unparsable=self._count_unparsable,
            )

    # ── notifications ───────────────────────────────────────────────────────────────────────────

    async def _send_notification(self, frame: bytes) -> None:
        with self._notifications.sending(), trio.move_on_after(_NOTIFICATION_TIMEOUT):
            try:
                headers = self._headers(wire.method_of(frame), frame)
                response = await self._endpoint.send("POST", headers, frame.rstrip())
                body = await bodies.read_short(response)
                if self._has_session and refuses_session(response, body):
                    self._end_lost_session(None, response.status_code)
            except (httpx.TransportError, McpdError):
                pass  # if the server is gone, the next request reports it

    # ── results ─────────────────────────────────────────────────────────────────────────────────

    def _is_pending(self, exchange: Exchange) -> bool:
        return exchange.key in self._pending or exchange.key in self._long_lived

    def _deliver_response(self, exchange: Exchange, message: Message, line: bytes) -> None:
        post = self._let_stream_end(exchange)
        if post is not None and message.error is not ABSENT and self._nursery is not None:
            before_retry = (
                None if exchange.was_retried else self.dialect.retry_after_refusal(exchange.method, message)
            )
            if before_retry is not None:
                self._retries.add(exchange)
                then = partial(self._retry, post, message)
                self._nursery.start_soon(self._retries.retry, exchange, before_retry, then)
                return
        super()._deliver_response(exchange, message, line)
        if message.error is not ABSENT and self._has_session and is_session_error(message.error):
            if exchange.method == "ping":
                self._end_lost_session(None, HTTPStatus.OK)
            elif self.on_refused is not None:  # it may also be an error of the tool's own
                self.on_refused()

    def _fail_lost(self, exchange: Exchange, error: McpdError) -> None:
        self._let_stream_end(exchange)
        super()._fail_lost(exchange, error)

    def _let_stream_end(self, exchange: Exchange) -> _Post | None:
        """Give the stream of a finished request a moment to end. Return the request's entry."""
        post = self._posts.get(exchange.key)
        if post is not None and post.has_stream:
            post.scope.deadline = trio.current_time() + _STREAM_END_TIMEOUT
        return post

    def _retry(self, post: _Post, message: Message, worked: bool) -> None:
        """Send a request again if `worked`; otherwise deliver its error."""
        exchange = post.exchange
        with batch():
            if not worked or self.end_error is not None:
                super()._deliver_response(exchange, message, b"")
                return
            try:
                self.submit(exchange, exchange.method, wire.parse(post.frame).params)
            except McpdError as error:
                exchange.failed(error)

    def cancel(self, exchange: Exchange, reason: str) -> None:
        if not self._retries.withdraw(exchange):
            super().cancel(exchange, reason)

    def _fail_if_pending(self, exchange: Exchange, error: McpdError) -> None:
        """Fail a request that was not answered or cancelled yet."""
        if self._is_pending(exchange):
            self._pop_pending(exchange.key)
            self._send_queued()
            self._fail_lost(exchange, error)

    def _handle_transport_error(self, exchange: Exchange, error: httpx.TransportError) -> None:
        lost = self._endpoint.connection_lost(error, exchange.description)
        self._fail_if_pending(exchange, lost)
        if is_unreachable(error):
            self._end_channel(LinkLost(f"{self.name}: {describe_error(error)}", server=self.name))

    def _end_lost_session(self, exchange: Exchange | None, status: int) -> None:
        """End the channel because the server does not know the session; all requests fail.

        `exchange`: the request that the server refused, and so did not execute.
        """
        reason = f"the server dropped our session (HTTP {status}, it was probably restarted)"
        self.session = ""
        self.report_lost()
        if exchange is not None:
            error = connection_lost(self.name, exchange, reason, may_have_run=False)
            error.is_session_refused = True
            self._fail_if_pending(exchange, error)
        self._end_channel(LinkLost(f"{self.name}: {reason}", server=self.name))

    def _end_channel(self, error: McpdError) -> None:
        if self.end_error is None:
            self.report_lost()
            self._fail_all(error, error.message.removeprefix(f"{self.name}: "))
        for post in self._posts.values():
            post.cancel(error.message)
        if self._nursery is not None:
            self._nursery.cancel_scope.cancel(reason=error.message)

    def close(self, reason: str) -> None:
        super().close(reason)
        for post in self._posts.values():
            post.cancel(reason)


async def _raise(error: Exception) -> None:
    raise error


@asynccontextmanager
async def open_http(
    spec: RemoteSpec,
    environ: Mapping[str, str],
    watch: OnResponse | None = None,
    credentials: Credentials | None = None,
) -> AsyncIterator[HttpChannel]:
    """Open a channel to the server at `spec.url` without sending anything. The caller runs it.

    Leaving the block fails pending requests, ends the session and closes the connections. Raises
    CannotStart for an unusable URL, proxy or CA file.
    """
    async with open_client(spec.url, spec.headers, environ, spec.ca_file, watch, credentials) as client:
        channel = HttpChannel(spec, HttpEndpoint(spec.name, client, spec.url))
        try:
            yield channel
        finally:
            channel.close("the connection was closed")
            with trio.move_on_after(spec.timeouts.stop_close, shield=True):
                await channel.end_session()

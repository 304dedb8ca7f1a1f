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
from mcpd.io.turns import take_turn
from mcpd.model.errors import LinkLost, McpdError
from mcpd.model.server_spec import RemoteSpec
from mcpd.model.text import shorten
from mcpd.process.memory import trim_heap_soon
from mcpd.transports.credentials import Credentials
from mcpd.transports.http_client import bodies
from mcpd.transports.http_client.bodies import BodyTooLarge
from mcpd.transports.http_client.client_factory import OnResponse, RenewSecrets, open_client
from mcpd.transports.http_client.connection import Abort, is_unreachable
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
from mcpd.transports.session_check import SessionCheck, describe_lost_session
from mcpd.wire import message as wire
from mcpd.wire.event_stream import EventTooLong, SseEvent
from mcpd.wire.limits import TooMuchStructure
from mcpd.wire.message import ABSENT, Message

_STREAM_END_TIMEOUT = 0.25
"""Seconds a server has to end its stream after the response, so that the connection can be reused."""
_NOTIFICATION_TIMEOUT = 30.0
_HTTP_LEVEL_STATUSES = (401, 403, 429)
"""Statuses about authorization and rate limits, whatever the body says."""


class HttpChannel(RequestMultiplexer):
    """A channel to one server at one URL. The opener calls `end_session` at the end."""

    has_headers = True
    correlates_server_requests = True

    def __init__(self, spec: RemoteSpec, endpoint: HttpEndpoint) -> None:
        super().__init__(spec)
        self.session = ""
        self.endpoint = endpoint
        self.max_frame = spec.max_frame
        self.nursery: trio.Nursery | None = None
        self._posts: dict[bytes, _Post] = {}
        self._unsent_notifications: list[bytes] = []
        self._retries = PendingRetries()
        self.session_check = SessionCheck(self, self._retries, lambda: self.last_http_status)
        self._notifications = OutgoingNotifications()
        self.streams = ResumableStreams(self._get_event_stream)

    async def _transfer(self, nursery: trio.Nursery) -> str:
        self.nursery = nursery
        for post in self._posts.values():
            nursery.start_soon(post.run)
        early, self._unsent_notifications = self._unsent_notifications, []
        for frame in early:
            nursery.start_soon(self._send_notification, frame)
        nursery.start_soon(self._watch_idle)
        try:
            await trio.sleep_forever()
        finally:
            self.nursery = None

    async def _watch_idle(self) -> None:
        """End the channel when a server on this machine has ended, even if nothing is sent to it."""
        error = await self.endpoint.watch_idle(lambda: bool(self._posts))
        if error is not None:
            self.end_channel(self.endpoint.connection_lost(error, ""))

    async def end_session(self) -> None:
        """Delete the session; the server may ignore that. Bounded by the caller."""
        if self.session:
            with suppress(httpx.TransportError, McpdError):  # it expires on the server
                await bodies.close(await self.endpoint.send("DELETE", self.make_headers("", b"", "*/*")))

    # ── frames out ──────────────────────────────────────────────────────────────────────────────

    def _send_request(self, exchange: Exchange, frame: bytes) -> None:
        post = self._posts[exchange.key] = _Post(self, exchange, frame)
        if self.nursery is not None and not post.send_without_task():
            self.nursery.start_soon(post.run)

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
        if self.nursery is None:
            self._unsent_notifications.append(frame)
        else:
            self.nursery.start_soon(self._send_notification, frame)

    async def wait_flushed(self) -> None:
        await self._notifications.wait_drained()

    def make_headers(
        self, method: str, frame: bytes, accept: str = f"{JSON}, {EVENT_STREAM}"
    ) -> dict[str, str]:
        dialect = self.dialect
        headers = {"Accept": accept, **dialect.headers(method, frame)}
        if frame:
            headers["Content-Type"] = JSON
        if self.session and dialect.session_header and not dialect.opens_session:
            headers[dialect.session_header] = self.session
        return headers

    def remove_post(self, post: _Post) -> None:
        """Forget a request whose POST has ended."""
        if self._posts.get(post.exchange.key) is post:
            del self._posts[post.exchange.key]

    @property
    def has_session(self) -> bool:
        return bool(self.session) and not self.dialect.opens_session

    def read_session_id(self, response: httpx.Response) -> None:
        if self.dialect.opens_session and self.dialect.session_header:
            self.session = session_id(response, self.dialect.session_header)

    # ── event streams ───────────────────────────────────────────────────────────────────────────

    async def _get_event_stream(self, last_id: str | None) -> httpx.Response:
        headers = self.make_headers("", b"", EVENT_STREAM)
        if last_id is not None:
            headers["Last-Event-ID"] = last_id
        return await self.endpoint.send("GET", headers)

    async def listen(self, on_gap: Callable[[], None], on_open: Callable[[], None]) -> None:
        """Keep the stream for unsolicited messages open; return if the server offers none."""
        if self.dialect.resumable:
            await self.streams.listen(
                partial(_read_messages, self, None),
                is_over=lambda: self.end_error is not None,
                on_gap=on_gap,
                on_open=on_open,
                on_broken=self.report_refused,
                on_unparsable=self.deviations.count_unparsable,
            )

    # ── notifications ───────────────────────────────────────────────────────────────────────────

    async def _send_notification(self, frame: bytes) -> None:
        with self._notifications.sending(), trio.move_on_after(_NOTIFICATION_TIMEOUT):
            try:
                await take_turn("posts")  # a server may ask for hundreds of them at once
                headers = self.make_headers(wire.method_of(frame), frame)
                response = await self.endpoint.send("POST", headers, frame.rstrip())
                body = await bodies.read_short(response)
                if self.has_session and refuses_session(response, body):
                    self.end_lost_session(None, f"HTTP {response.status_code}")
            except (httpx.TransportError, McpdError):
                pass  # if the server is gone, the next request reports it

    # ── results ─────────────────────────────────────────────────────────────────────────────────

    def deliver_error(self, exchange: Exchange, error: Message, body: bytes) -> None:
        """Deliver an error that may name no request, unless this one has been answered or cancelled."""
        if self.requests.discard(exchange):
            if self.tap is not None:
                self.tap("←", body)
            with batch():
                self._deliver_response(exchange, error, body)

    def _deliver_response(self, exchange: Exchange, message: Message, line: bytes) -> None:
        post = self._posts.get(exchange.key)
        if post is not None and post.has_stream:
            post.let_stream_end()
        if post is not None and message.error is not ABSENT and self.nursery is not None:
            before_retry = (
                None if exchange.was_retried else self.dialect.retry_after_refusal(exchange.method, message)
            )
            if before_retry is not None:
                self._retries.add(exchange)
                then = partial(self._retry, post, message)
                self.nursery.start_soon(self._retries.retry, exchange, before_retry, then)
                return
        if message.error is ABSENT or not self.has_session:
            super()._deliver_response(exchange, message, line)
            return
        deliver, status = partial(super()._deliver_response, exchange, message, line), self.last_http_status
        if self.session_check.applies_to(exchange, status, message.error):
            self.session_check.start(exchange, status, message.error, deliver)
            return
        deliver()
        if exchange.method == "ping" and is_session_error(message.error):
            self.end_lost_session(None, status)

    def _fail_lost(self, exchange: Exchange, error: McpdError) -> None:
        post = self._posts.get(exchange.key)
        if post is not None and post.has_stream:
            post.let_stream_end()
        super()._fail_lost(exchange, error)

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

    def fail_if_pending(self, exchange: Exchange, error: McpdError) -> None:
        """Fail a request that was not answered or cancelled yet."""
        if self.requests.discard(exchange):
            self._send_queued()
            self._fail_lost(exchange, error)
            if exchange.method != "ping" and not exchange.long_lived:
                self.report_refused()

    def end_lost_session(self, exchange: Exchange | None, status: str) -> None:
        """End the channel because the server does not know the session: it refused, and so did not execute,
        `exchange`. All requests fail. `status`: as `HTTP 404`."""
        self.session = ""
        self.report_lost()
        if exchange is not None and self.requests.discard(exchange):
            self.fail_refused(exchange, status)
        self.end_channel(LinkLost(f"{self.name}: {describe_lost_session(status)}", server=self.name))

    def fail_refused(self, exchange: Exchange, status: str) -> None:
        """Fail a request that is in no table any more, because its session was refused."""
        error = connection_lost(self.name, exchange, describe_lost_session(status), may_have_run=False)
        error.is_session_refused = True
        self._fail_lost(exchange, error)

    def end_channel(self, error: McpdError) -> None:
        if self.end_error is None:
            self.report_lost()
            self._fail_all(error, error.message.removeprefix(f"{self.name}: "))
        for post in self._posts.values():
            post.cancel(error.message)
        if self.nursery is not None:
            self.nursery.cancel_scope.cancel(reason=error.message)

    def close(self, reason: str) -> None:
        super().close(reason)
        for post in self._posts.values():
            post.cancel(reason)


@attrs.define(eq=False)
class _Post:
    """One request, from its POST to the response. A task carries it unless all is there at once."""

    channel: HttpChannel
    exchange: Exchange
    frame: bytes
    scope: trio.CancelScope = attrs.field(factory=trio.CancelScope)
    was_sent: bool = False
    _abort: Abort | None = None
    """Ends the request while no task carries it."""
    has_stream: bool = False
    """Whether the response is an event stream, which may continue after the JSON-RPC response."""

    def cancel(self, reason: str) -> None:
        """Stop, because nobody waits for the response."""
        self.scope.cancel(reason=reason)
        if self._abort is not None:
            self._abort()
            self._abort = None

    def let_stream_end(self) -> None:
        """Give the stream of a finished request a moment to end."""
        self.scope.deadline = trio.current_time() + _STREAM_END_TIMEOUT

    def send_without_task(self) -> bool:
        """Send immediately on an idle connection; most responses then need no task either."""
        channel, frame = self.channel, self.frame
        try:
            headers = channel.make_headers(self.exchange.method, frame)
            then = partial(self._on_outcome, headers)
            self._abort = channel.endpoint.send_with_callback("POST", headers, frame.rstrip(), then)
        except (httpx.TransportError, McpdError):
            return False  # it fails again in `run`, which reports it
        self.was_sent = self._abort is not None
        return self.was_sent

    def _on_outcome(self, headers: Mapping[str, str], outcome: httpx.Response | httpx.TransportError) -> None:
        """Handle the result of a request that was sent without a task. Called by the reader hub."""
        self._abort = None
        channel, exchange = self.channel, self.exchange
        documents: list[bytes] = []
        if isinstance(outcome, httpx.Response):
            documents = complete_messages(outcome, exchange.key, channel.max_frame)
            if not documents:
                if channel.nursery is not None:
                    channel.nursery.start_soon(self.run, headers, outcome)
                return
        try:
            if isinstance(outcome, httpx.Response):
                channel.last_http_status = "HTTP 200"
                channel.read_session_id(outcome)
                for document in documents[:-1]:
                    with batch():
                        channel.receiver.receive(bodies.to_one_line(document), exchange)
                self._receive_body(documents[-1])
            else:
                self._handle_transport_error(outcome)
        except McpdError as error:
            channel.fail_if_pending(exchange, error)
        except Exception as error:  # a bug must not end the reader hub, which is shared
            if channel.nursery is not None:
                channel.nursery.start_soon(_raise, error)
        channel.remove_post(self)

    async def run(
        self, headers: Mapping[str, str] | None = None, response: httpx.Response | None = None
    ) -> None:
        """Carry a request to its response, starting with `response` if it has arrived."""
        channel, exchange = self.channel, self.exchange
        self.was_sent = True
        with self.scope:
            try:
                await take_turn("posts")  # so do many calls at the same time, or their responses
                content = self.frame.rstrip()
                if response is None or headers is None:
                    headers = channel.make_headers(exchange.method, self.frame)
                    response = await channel.endpoint.send("POST", headers, content)
                else:
                    response = await channel.endpoint.complete(response, "POST", headers, content)
                try:
                    await take_turn("posts")
                    await self._handle_response(response)
                finally:
                    await bodies.close(response)
            except httpx.TransportError as error:
                self._handle_transport_error(error)
            except (BodyTooLarge, EventTooLong, TooMuchStructure) as error:
                reason = str(error) or f"more than {channel.max_frame} bytes"
                channel.fail_if_pending(exchange, answer_dropped(channel.name, exchange, reason))
            except McpdError as error:
                channel.fail_if_pending(exchange, error)
        channel.remove_post(self)

    async def _handle_response(self, response: httpx.Response) -> None:
        channel, exchange = self.channel, self.exchange
        kind = bodies.content_type(response)
        channel.last_http_status = f"HTTP {response.status_code}"
        if not response.is_success:
            await self._handle_refusal(response)
            return
        channel.read_session_id(response)
        if kind == EVENT_STREAM:
            await self._follow_stream(response)
            return
        if response.status_code == HTTPStatus.ACCEPTED:
            raise protocol_violation(
                channel.name, exchange, "with HTTP 202, which is only valid for notifications"
            )
        body = await bodies.read(response, channel.max_frame)
        if kind != JSON and body.lstrip()[:1] not in (b"{", b"["):
            raise protocol_violation(
                channel.name, exchange, f"with {shorten(kind or 'nothing', 60)} instead of JSON"
            )
        body = bodies.to_one_line(body)
        if len(body) > LARGE:
            trim_heap_soon()
        self._receive_body(body)

    def _receive_body(self, body: bytes) -> None:
        """Process the document that answers a request. Raises ProtocolViolation if it does not."""
        channel, exchange = self.channel, self.exchange
        with batch():
            channel.receiver.receive(bodies.to_one_line(body), exchange)
        if channel.requests.holds(exchange) and not self._handle_error_body(body):
            raise protocol_violation(channel.name, exchange, f"with an unrelated message: {shorten(body)}")

    def _handle_error_body(self, body: bytes) -> bool:
        """Deliver the body if it is a JSON-RPC error, even without an id. Return whether it was one."""
        error = json_rpc_error(body, self.exchange.key)
        if error is not None:
            self.channel.deliver_error(self.exchange, error, body)
        return error is not None

    async def _handle_refusal(self, response: httpx.Response) -> None:
        channel, exchange = self.channel, self.exchange
        status = response.status_code
        body = await bodies.read_short(response)
        channel.last_http_status = shown = f"HTTP {status}"
        names_session = channel.has_session and refuses_session(response, body)
        if names_session and (exchange.method == "ping" or refuses_session(response, b"")):
            channel.end_lost_session(exchange, shown)
            return
        if status not in _HTTP_LEVEL_STATUSES and self._handle_error_body(body):
            if channel.has_session:
                channel.report_refused()
            return
        refusal, check = channel.endpoint.refusal_error(response, body), channel.session_check
        is_open = names_session or status not in _HTTP_LEVEL_STATUSES
        if is_open and check.applies_to(exchange, shown, body) and channel.requests.discard(exchange):
            channel._send_queued()
            check.start(exchange, shown, b"", partial(channel._fail_lost, exchange, refusal))
        else:
            channel.fail_if_pending(exchange, refusal)

    async def _follow_stream(self, response: httpx.Response) -> None:
        """Read the event stream of a request until the response, resuming it if the server allows that."""
        channel, exchange = self.channel, self.exchange
        self.has_stream = True
        why = await channel.streams.follow(
            response,
            partial(_read_messages, channel, exchange),
            partial(channel.requests.holds, exchange),
            resumable=channel.dialect.resumable,
        )
        lost = connection_lost(channel.name, exchange, why, may_have_run=True)
        channel.fail_if_pending(exchange, lost)

    def _handle_transport_error(self, error: httpx.TransportError) -> None:
        channel = self.channel
        lost = channel.endpoint.connection_lost(error, self.exchange.description)
        channel.fail_if_pending(self.exchange, lost)
        if is_unreachable(error):
            channel.end_channel(channel.endpoint.connection_lost(error, ""))


async def _read_messages(
    channel: HttpChannel, exchange: Exchange | None, response: httpx.Response, heard: StreamState
) -> str:
    """Receive the messages of an event stream, that of `exchange` or the one for unsolicited messages."""

    def take(event: SseEvent) -> None:
        if event.data and event.event == "message":
            channel.receiver.receive(bodies.to_one_line(event.data), exchange)

    return await read_events(response, heard, channel.max_frame, take)


async def _raise(error: Exception) -> None:
    raise error


@asynccontextmanager
async def open_http(
    spec: RemoteSpec,
    environ: Mapping[str, str],
    watch: OnResponse | None = None,
    credentials: Credentials | None = None,
    renew_secrets: RenewSecrets | None = None,
) -> AsyncIterator[HttpChannel]:
    """Open a channel to the server at `spec.url` without sending anything. The caller runs it.

    Leaving the block fails pending requests, ends the session and closes the connections. Raises
    CannotStart for an unusable URL, proxy or CA file.
    """
    async with open_client(
        spec.url, spec.headers, environ, spec.ca_file, watch, credentials, renew_secrets=renew_secrets
    ) as client:
        channel = HttpChannel(spec, HttpEndpoint(spec.name, client, spec.url))
        try:
            yield channel
        finally:
            channel.close("the connection was closed")
            with trio.move_on_after(spec.timeouts.stop_close, shield=True):
                await channel.end_session()

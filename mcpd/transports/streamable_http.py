"""The Streamable HTTP transport: one POST per message, answered in JSON or by an event stream.

A broken connection costs the exchange it carried. The channel ends when the server cannot be reached
at all, does not know the session any more, or does not know us.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import asynccontextmanager, suppress
from functools import partial
from http import HTTPStatus
from typing import NoReturn

import attrs
import httpx
import trio

from mcpd.model.errors import HttpRefused, LinkLost, McpdError
from mcpd.model.server_spec import RemoteSpec
from mcpd.model.text import shorten
from mcpd.support.outbox import batch
from mcpd.transports import lost_requests
from mcpd.transports.http_client import bodies
from mcpd.transports.http_client.bodies import BodyTooLong
from mcpd.transports.http_client.client_factory import Watch, open_client
from mcpd.transports.http_client.connection import HangUp
from mcpd.transports.http_client.connection_errors import explain, unsent
from mcpd.transports.http_client.endpoint import Endpoint
from mcpd.transports.http_response_messages import EVENTS, JSON, error_in, session_named, whole_answer
from mcpd.transports.multiplexer import Switchboard
from mcpd.transports.outgoing_notifications import Notices
from mcpd.transports.outgoing_request import Exchange
from mcpd.transports.request_retries import Retries
from mcpd.transports.response_stream import Heard, hear
from mcpd.transports.sse_resume import Resuming
from mcpd.wire import message as wire
from mcpd.wire.event_stream import EventTooLong, SseEvent
from mcpd.wire.message import ABSENT, Message

_ORDERLY_END = 0.25
"""Seconds a server has to end its stream after the answer: then the connection can be used again."""
_NOTICE_TIMEOUT = 30.0
_NOT_OF_THE_PROTOCOL = (401, 403, 429)
"""Whatever the body says: these are about who asks, and how often."""


@attrs.define(eq=False)
class _Post:
    """A request under way, and the task that carries it."""

    exchange: Exchange
    frame: bytes
    scope: trio.CancelScope = attrs.field(factory=trio.CancelScope)
    begun: bool = False
    hang_up: HangUp | None = None
    """While it is answered without a task: ends that."""
    streams: bool = False
    """Whether it is answered by an event stream, which may go on after the answer."""

    def end(self, reason: str) -> None:
        """Nobody waits for its answer any more."""
        self.scope.cancel(reason=reason)
        if self.hang_up is not None:
            self.hang_up()
            self.hang_up = None


class HttpChannel(Switchboard):
    """One server at one URL. `end_session` is for whoever opened it, when it is over."""

    has_headers = True
    tells_apart = True

    def __init__(self, spec: RemoteSpec, endpoint: Endpoint) -> None:
        super().__init__(spec)
        self.session = ""
        self._endpoint = endpoint
        self._max_frame = spec.max_frame
        self._nursery: trio.Nursery | None = None
        self._posts: dict[bytes, _Post] = {}
        self._early: list[bytes] = []
        self._retries = Retries()
        self._notices = Notices()
        self._resuming = Resuming(self._ask_for_events)

    async def run(self) -> NoReturn:
        reason = "the link was closed"
        try:
            async with trio.open_nursery() as nursery:
                self._nursery = nursery
                nursery.start_soon(self.watch_deadlines)
                for post in self._posts.values():
                    nursery.start_soon(self._carry, post)
                early, self._early = self._early, []
                for frame in early:
                    nursery.start_soon(self._tell, frame)
        finally:
            self._nursery = None
            self.close(reason)
        assert self.ended is not None
        raise self.ended

    async def end_session(self) -> None:
        """Tell the server that we are through; it may not care. Bounded by the caller."""
        if self.session:
            with suppress(httpx.TransportError, HttpRefused):  # then it ends by itself, some time
                await bodies.close(await self._endpoint.send("DELETE", self._headers("", b"", "*/*")))

    # ── frames out ──────────────────────────────────────────────────────────────────────────────

    def _post(self, exchange: Exchange, frame: bytes) -> None:
        post = self._posts[exchange.key] = _Post(exchange, frame)
        if self._nursery is not None and not self._begin(post):
            self._nursery.start_soon(self._carry, post)

    def _begin(self, post: _Post) -> bool:
        """Send it at once, where a connection waits for it; most answers then need no task either."""
        exchange, frame = post.exchange, post.frame
        try:
            headers = self._headers(exchange.method, frame)
            then = partial(self._heard_of, post, headers)
            post.hang_up = self._endpoint.begin("POST", headers, frame.rstrip(), then)
        except (httpx.TransportError, McpdError):
            return False  # it fails again where somebody waits for it
        post.begun = post.hang_up is not None
        return post.begun

    def _withdraw(self, exchange: Exchange, reason: str) -> bool:
        post = self._posts.pop(exchange.key, None)
        if post is None:
            return True
        post.end(reason)
        return not post.begun or self.dialect.hanging_up_cancels

    def _unsent(self) -> set[Exchange]:
        return {post.exchange for post in self._posts.values() if not post.begun}

    def _put(self, frame: bytes) -> None:
        if not self._notices.admit():
            return
        if self._nursery is None:
            self._early.append(frame)
        else:
            self._nursery.start_soon(self._tell, frame)

    async def flushed(self) -> None:
        await self._notices.wait_none()

    def _headers(self, method: str, frame: bytes, accept: str = f"{JSON}, {EVENTS}") -> dict[str, str]:
        dialect = self.dialect
        headers = {"Accept": accept, **dialect.headers(method, frame)}
        if frame:
            headers["Content-Type"] = JSON
        if self.session and dialect.session_header and not dialect.opening:
            headers[dialect.session_header] = self.session
        return headers

    # ── one request ─────────────────────────────────────────────────────────────────────────────

    def _heard_of(
        self, post: _Post, headers: Mapping[str, str], outcome: httpx.Response | httpx.TransportError
    ) -> None:
        """What came of a request that was sent without a task. Called by the reader."""
        post.hang_up = None
        exchange, key, nursery = post.exchange, post.exchange.key, self._nursery
        documents: list[bytes] = []
        if isinstance(outcome, httpx.Response):
            documents = whole_answer(outcome, key, self._max_frame)
            if not documents:
                if nursery is not None:
                    nursery.start_soon(self._carry, post, headers, outcome)
                return
        try:
            if isinstance(outcome, httpx.Response):
                self.footing = "HTTP 200"
                self._join_session(outcome)
                for document in documents[:-1]:
                    with batch():
                        self.receive(bodies.one_line(document), exchange)
                self._read(exchange, documents[-1])
            else:
                self._broken(exchange, outcome)
        except McpdError as error:
            self._fail(exchange, error)
        except Exception as error:  # a bug: not the reader's, who serves everybody
            if nursery is not None:
                nursery.start_soon(_raise, error)
        if self._posts.get(key) is post:
            del self._posts[key]

    async def _carry(
        self,
        post: _Post,
        headers: Mapping[str, str] | None = None,
        response: httpx.Response | None = None,
    ) -> None:
        """See a request to its answer, from the beginning or from `response` on."""
        exchange, key = post.exchange, post.exchange.key
        post.begun = True
        with post.scope:
            try:
                await self._converse(exchange, post.frame, headers, response)
            except httpx.TransportError as error:
                self._broken(exchange, error)
            except (BodyTooLong, EventTooLong):
                limit = f"{self._max_frame} bytes (raise `maxFrame` if that is meant)"
                self._fail(exchange, lost_requests.violated(self.name, exchange, f"with more than {limit}"))
            except McpdError as error:
                self._fail(exchange, error)
        if self._posts.get(key) is post:
            del self._posts[key]

    async def _converse(
        self,
        exchange: Exchange,
        frame: bytes,
        headers: Mapping[str, str] | None,
        response: httpx.Response | None,
    ) -> None:
        content = frame.rstrip()
        if response is None or headers is None:
            response = await self._endpoint.send("POST", self._headers(exchange.method, frame), content)
        else:
            response = await self._endpoint.arrived(response, "POST", headers, content)
        try:
            await self._understand(exchange, response)
        finally:
            await bodies.close(response)

    async def _understand(self, exchange: Exchange, response: httpx.Response) -> None:
        kind = bodies.content_type(response)
        self.footing = f"HTTP {response.status_code}"
        if not response.is_success:
            await self._refused(exchange, response)
            return
        self._join_session(response)
        if kind == EVENTS:
            await self._follow(exchange, response)
            return
        if response.status_code == HTTPStatus.ACCEPTED:
            raise lost_requests.violated(
                self.name, exchange, "with HTTP 202, which is for what needs no answer"
            )
        body = await bodies.read(response, self._max_frame)
        if kind != JSON and body.lstrip()[:1] not in (b"{", b"["):
            raise lost_requests.violated(
                self.name, exchange, f"with {shorten(kind or 'nothing', 60)} instead of JSON"
            )
        self._read(exchange, body)

    def _read(self, exchange: Exchange, body: bytes) -> None:
        """Take the document that answers a request. Raises ProtocolViolation when it does not."""
        with batch():
            self.receive(bodies.one_line(body), exchange)
        if self._waits(exchange) and not self._refused_in_words(exchange, body):
            raise lost_requests.violated(self.name, exchange, f"with something else: {shorten(body)}")

    def _refused_in_words(self, exchange: Exchange, body: bytes) -> bool:
        """Whether the body is a JSON-RPC error, which may lack the id: it belongs to this request."""
        error = error_in(body, exchange.key)
        if error is None:
            return False
        if self._pick(exchange.key) is exchange:
            if self.tap is not None:
                self.tap("←", body)
            with batch():
                self._answer(exchange, error, body)
        return True

    async def _refused(self, exchange: Exchange, response: httpx.Response) -> None:
        status = response.status_code
        body = await bodies.read_error(response)
        if status == HTTPStatus.NOT_FOUND and self.session and not self.dialect.opening:
            self._session_is_over(exchange)
            return
        if status not in _NOT_OF_THE_PROTOCOL and self._refused_in_words(exchange, body):
            return
        error = self._endpoint.refusal(response, body)
        self._fail(exchange, error)
        if status == HTTPStatus.UNAUTHORIZED:
            self._finish(error)

    def _join_session(self, response: httpx.Response) -> None:
        if self.dialect.opening and self.dialect.session_header:
            self.session = session_named(response, self.dialect.session_header)

    # ── event streams ───────────────────────────────────────────────────────────────────────────

    async def _follow(self, exchange: Exchange, response: httpx.Response) -> None:
        """Hear a request's stream to its answer, resuming it where the server allows that."""
        post = self._posts.get(exchange.key)
        if post is not None:
            post.streams = True
        why = await self._resuming.follow(
            response,
            partial(self._hear, exchange),
            partial(self._waits, exchange),
            resumable=self.dialect.resumable,
        )
        self._fail(exchange, lost_requests.lost(self.name, exchange, why, may_have_run=True))

    async def _ask_for_events(self, last_id: str | None) -> httpx.Response:
        headers = self._headers("", b"", EVENTS)
        if last_id is not None:
            headers["Last-Event-ID"] = last_id
        return await self._endpoint.send("GET", headers)

    async def _hear(self, exchange: Exchange | None, response: httpx.Response, heard: Heard) -> str:
        def take(event: SseEvent) -> None:
            if event.data and event.event == "message":
                self.receive(bodies.one_line(event.data), exchange)

        return await hear(response, heard, self._max_frame, take)

    async def listen(self, missed: Callable[[], None], hears: Callable[[], None]) -> None:
        """Keep the stream open on which a server says what no request asked for; return when it has none."""
        if self.dialect.resumable:
            await self._resuming.listen(
                partial(self._hear, None),
                is_over=lambda: self.ended is not None,
                missed=missed,
                hears=hears,
                junk=self._junk,
            )

    # ── what is told, and not asked ─────────────────────────────────────────────────────────────

    async def _tell(self, frame: bytes) -> None:
        with self._notices.sending(), trio.move_on_after(_NOTICE_TIMEOUT):
            try:
                headers = self._headers(wire.method_of(frame), frame)
                response = await self._endpoint.send("POST", headers, frame.rstrip())
                try:
                    await bodies.read_error(response)
                finally:
                    await bodies.close(response)
                if response.status_code == HTTPStatus.NOT_FOUND and self.session:
                    self._session_is_over(None)
            except (httpx.TransportError, McpdError):
                pass  # nobody waits; if the server is gone, the next request says so

    # ── ends ────────────────────────────────────────────────────────────────────────────────────

    def _waits(self, exchange: Exchange) -> bool:
        return exchange.key in self._table or exchange.key in self._standing

    def _answer(self, exchange: Exchange, message: Message, line: bytes) -> None:
        post = self._posts.get(exchange.key)
        if post is not None and post.streams:  # it has a moment to come to its end
            post.scope.deadline = trio.current_time() + _ORDERLY_END
        if post is not None and message.error is not ABSENT and self._nursery is not None:
            remedy = None if exchange.repeated else self.dialect.remedy(exchange.method, message)
            if remedy is not None:
                self._retries.begin(exchange)
                then = partial(self._once_more, post, message)
                self._nursery.start_soon(self._retries.retry, exchange, remedy, then)
                return
        super()._answer(exchange, message, line)

    def _once_more(self, post: _Post, message: Message, worked: bool) -> None:
        """Send a request again, as another one, when that has a chance; else its error is its answer."""
        exchange = post.exchange
        with batch():
            if not worked or self.ended is not None:
                super()._answer(exchange, message, b"")
                return
            try:
                self.submit(exchange, exchange.method, wire.parse(post.frame).params)
            except McpdError as error:
                exchange.failed(error)

    def cancel(self, exchange: Exchange, reason: str) -> None:
        if not self._retries.withdraw(exchange):
            super().cancel(exchange, reason)

    def _fail(self, exchange: Exchange, error: McpdError) -> None:
        """Nothing happens to one that has been answered, or given up, already."""
        if self._waits(exchange):
            self._pick(exchange.key)
            self._next_in_queue()
            self._lose(exchange, error)

    def _broken(self, exchange: Exchange, error: httpx.TransportError) -> None:
        lost = self._endpoint.lost(error, exchange.named)
        self._fail(exchange, lost)
        if unsent(error):  # nobody listens there any more
            self._finish(LinkLost(f"{self.name}: {explain(error)}", server=self.name))

    def _session_is_over(self, exchange: Exchange | None) -> None:
        """The first to hear of it ends the channel; the rest are failed with it."""
        words = "its session is over (it answered 404: restarted, or tired of us)"
        self.session = ""
        if exchange is not None:
            self._fail(exchange, lost_requests.lost(self.name, exchange, words, may_have_run=False))
        self._finish(LinkLost(f"{self.name}: {words}", server=self.name))

    def _finish(self, error: McpdError) -> None:
        if self.ended is None:
            self._end(error, error.message.removeprefix(f"{self.name}: "))
        for post in self._posts.values():
            post.end(error.message)
        if self._nursery is not None:
            self._nursery.cancel_scope.cancel(reason=error.message)

    def close(self, reason: str) -> None:
        super().close(reason)
        for post in self._posts.values():
            post.end(reason)


async def _raise(error: Exception) -> None:
    raise error


@asynccontextmanager
async def open_http(
    spec: RemoteSpec, environ: Mapping[str, str], watch: Watch | None = None
) -> AsyncIterator[HttpChannel]:
    """A channel to the server at `spec.url`; nothing is sent yet. The caller runs it. `watch`: see `pool`.

    Leaving the block fails what is under way, ends the session, and closes the connections. Raises
    CannotStart for a bad CA file.
    """
    async with open_client(spec.url, spec.headers, environ, spec.ca_file, watch) as client:
        channel = HttpChannel(spec, Endpoint(spec.name, client, spec.url))
        try:
            yield channel
        finally:
            channel.close("it is being closed")
            with trio.move_on_after(spec.timeouts.stop_close, shield=True):
                await channel.end_session()

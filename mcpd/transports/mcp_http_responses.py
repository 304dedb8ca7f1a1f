"""What HTTP responses contain: JSON-RPC messages, session ids, and event streams, which can be resumed."""

from __future__ import annotations

import math
import re
from collections.abc import Awaitable, Callable
from typing import Protocol

import attrs
import httpx
import trio
from msgspec import Raw

from mcpd.io.outbox import batch
from mcpd.model.errors import LinkLost, McpdError, ProtocolViolation
from mcpd.process.memory import trim_heap_soon
from mcpd.transports.http_client import bodies
from mcpd.transports.http_client.connection import describe_error
from mcpd.wire import message as wire
from mcpd.wire.event_stream import EventTooLong, SseDecoder, SseEvent
from mcpd.wire.message import BadFrame, Message

EVENT_STREAM, JSON = "text/event-stream", "application/json"

LARGE = 1 << 20
"""Bytes of a message that is not parsed in the turn in which it arrived. Its memory is returned later."""
_MAX_SESSION_ID = 1024
_EVENT_PORTION = 1 << 13
"""Bytes of an event stream that are decoded at once. They may be thousands of lines or events."""
_MAX_IMMEDIATE_EVENTS = 1 << 16
"""Bytes of an event stream that are decoded at once if it has arrived completely."""


def complete_messages(response: httpx.Response, key: bytes, limit: int) -> list[bytes]:
    """Return the messages of a successful response that has arrived completely, ending with that for `key`.

    Returns an empty list if the response must be read asynchronously: it is not a success, incomplete,
    compressed, longer than `limit`, of another type, or a stream that does not end with the response.
    """
    whole = bodies.complete_body(response) if response.status_code == httpx.codes.OK else None
    if whole is None or len(whole) > limit:
        return []
    kind = bodies.content_type(response)
    if kind != EVENT_STREAM:
        return [whole] if kind == JSON else []
    if len(whole) > _MAX_IMMEDIATE_EVENTS:
        return []
    try:
        messages = [event.data for event in SseDecoder(limit).feed(whole) if event.event == "message"]
        answer = wire.parse(messages[-1]) if messages else Message()
    except (BadFrame, EventTooLong):
        return []
    is_answer = not answer.method and wire.normalize_id(bytes(answer.id)) == key
    return [message for message in messages if message] if is_answer else []


def json_rpc_error(body: bytes, key: bytes) -> Message | None:
    """Return the JSON-RPC error in a body, if it is for `key` or has no id."""
    try:
        message = wire.parse(body)
    except BadFrame:
        return None
    if not bytes(message.error).lstrip().startswith(b"{") or message.method:
        return None
    if wire.normalize_id(bytes(message.id)) not in (b"", b"null", key):
        return None
    return Message(error=Raw(bodies.to_one_line(bytes(message.error))))


_GONE = (httpx.codes.NOT_FOUND, httpx.codes.GONE)
_ABOUT_SESSION = re.compile(rb"\bsession|not (?:been )?initiali[sz]ed", re.IGNORECASE)
_SESSION_ERRORS = ("", "-32000", "-32001", "-32600")
"""JSON-RPC error codes with which servers refuse a session. Others are about the request."""


def is_session_error(error: Raw | bytes) -> bool:
    """Return whether a JSON-RPC error seems to say that the server does not know the session."""
    code = wire.error_code(wire.members_or_empty(error))
    return code in _SESSION_ERRORS and _ABOUT_SESSION.search(bytes(error)) is not None


def may_refuse_session(status: str, error: Raw | bytes) -> bool:
    """Return whether a response with this status (`HTTP 400`) and this error or body may refuse the session,
    and not only the request: see `SessionCheck`."""
    if status.startswith("HTTP 2"):
        return wire.error_code(wire.members_or_empty(error)) in _SESSION_ERRORS
    return status.startswith("HTTP 4") or _ABOUT_SESSION.search(bytes(error)) is not None


def refuses_session(response: httpx.Response, body: bytes) -> bool:
    """Return whether the server has refused a request because it does not know the session that it names.

    MCP prescribes HTTP 404. Many servers, such as those written after the example of the TypeScript SDK,
    answer 400 with a text about the session.
    """
    status = response.status_code
    if status in _GONE or not 400 <= status < 500:
        return status in _GONE
    if "www-authenticate" in response.headers:
        return False  # a login is missing
    error = json_rpc_error(body, b"")
    return _ABOUT_SESSION.search(body) is not None if error is None else is_session_error(error.error)


def session_id(response: httpx.Response, header: str) -> str:
    """Return the session id in a response; empty if there is none that could be sent back."""
    named: str = response.headers.get(header, "")
    usable = len(named) <= _MAX_SESSION_ID and all("!" <= char <= "~" for char in named)
    return named if usable else ""


_MAX_OVERHEAD = 1 << 20
"""Bytes without an event, such as keep-alive comments, that a stream may contain."""
RESUME_AFTER = 1.0
"""Seconds before a stream is resumed, if the server does not send `retry`."""
_MIN_RETRY, _MAX_RETRY = 0.1, 60.0
"""What a server may say instead."""


@attrs.define(eq=False)
class StreamState:
    """What one stream, including its resumptions, has said about itself."""

    last_id: str | None = None
    retry: float = RESUME_AFTER
    events: int = 0

    def record(self, event: SseEvent) -> None:
        self.events += 1
        self.last_id = event.id if event.id is not None else self.last_id
        if event.retry is not None:
            seconds = min(event.retry / 1000, _MAX_RETRY)
            self.retry = seconds if seconds >= _MIN_RETRY else RESUME_AFTER


async def read_events(
    response: httpx.Response,
    heard: StreamState,
    limit: int,
    take: Callable[[SseEvent], None],
) -> str:
    """Pass every event of a response to `take` until it ends; return why.

    Raises EventTooLong for an event with more than `limit` bytes of data, ProtocolViolation for too many
    bytes without an event, and what `take` raises.
    """
    decoder = SseDecoder(limit)

    async def feed(part: bytes) -> None:
        events = decoder.feed(part)
        if events and len(events[0].data) > LARGE:  # only the first, because a portion is short
            trim_heap_soon()
        with batch():
            for event in events:
                heard.record(event)
                take(event)
        if decoder.overhead > _MAX_OVERHEAD:
            raise ProtocolViolation(
                f"its event stream contains {decoder.overhead} bytes without an event (the limit is "
                f"{_MAX_OVERHEAD} bytes)"
            )

    try:
        await bodies.feed_body(response, feed, math.inf, _EVENT_PORTION)
    except httpx.TransportError as error:
        return describe_error(error)
    with batch():
        for event in decoder.end():
            heard.record(event)
            take(event)
    return "its event stream ended"


_MAX_RESUMES = 5
"""Attempts in a row, without an event, to resume a stream."""
_MAX_LISTEN_PAUSE = 60.0
_STABLE_AFTER = 10.0
"""Seconds after which a closed stream counts as one that worked."""
_TOO_MANY_REQUESTS = 429


class ReadStream(Protocol):
    """Processes all events of a response; returns why it ended. Raises as `read_events`."""

    async def __call__(self, response: httpx.Response, heard: StreamState) -> str: ...


@attrs.frozen
class ResumableStreams:
    """The event streams of one server.

    `get_stream` sends the GET that resumes a stream after an event id, or opens one (None). It raises
    httpx.TransportError, McpdError.
    """

    get_stream: Callable[[str | None], Awaitable[httpx.Response]]

    async def follow(
        self,
        response: httpx.Response,
        read_stream: ReadStream,
        is_pending: Callable[[], bool],
        *,
        resumable: bool,
    ) -> str:
        """Read the stream of a request, resuming it while `is_pending()`; return why it cannot be resumed."""
        heard = StreamState()
        why = await read_stream(response, heard)
        attempts = 0
        while is_pending():
            if not resumable or heard.last_id is None or attempts == _MAX_RESUMES:
                return why
            attempts += 1
            await trio.sleep(heard.retry * (1 if heard.events else 2 ** (attempts - 1)))
            heard.events = 0
            try:
                resumed = await self.get_stream(heard.last_id)
            except httpx.TransportError as error:
                why = describe_error(error)
                continue
            except LinkLost as error:  # no token can be fetched right now
                why = error.message
                continue
            except McpdError as error:
                return f"its event stream ended, and resuming it failed: {error.message}"
            try:
                if not resumed.is_success or bodies.content_type(resumed) != EVENT_STREAM:
                    return f"its event stream ended, and HTTP {resumed.status_code} instead of resuming"
                why = await read_stream(resumed, heard)
            finally:
                await bodies.close(resumed)
            if heard.events:
                attempts = 0
        return why

    async def listen(
        self,
        read_stream: ReadStream,
        *,
        is_over: Callable[[], bool],
        on_gap: Callable[[], None],
        on_open: Callable[[], None],
        on_broken: Callable[[], None],
        on_unparsable: Callable[[bytes], None],
    ) -> None:
        """Keep a stream open for unsolicited messages; return if the server offers none, or if `is_over()`.

        `on_open` is called when the stream is open, before it `on_gap` if messages may have been missed.
        `on_broken` is called when the stream has ended, which may mean that the server has, and
        `on_unparsable` with anything that is not an event stream.
        """
        heard = StreamState()
        pause, first, was_open = heard.retry, True, False
        while not is_over():
            began = trio.current_time()
            try:
                response = await self.get_stream(heard.last_id)
                try:
                    if not _is_offered(response):
                        return
                    if response.is_success:
                        if not first and heard.last_id is None:
                            on_gap()
                        first, was_open = False, True
                        on_open()
                        await read_stream(response, heard)
                finally:
                    await bodies.close(response)
            except (httpx.TransportError, LinkLost):
                pass  # requests find out whether the server is reachable
            except (EventTooLong, ProtocolViolation) as error:
                on_unparsable(str(error).encode())
            except McpdError:
                return  # such as a redirect to another origin
            if was_open and not is_over():
                was_open = False
                on_broken()
            lasted = trio.current_time() - began >= _STABLE_AFTER
            pause = heard.retry if lasted or heard.events else min(2 * pause, _MAX_LISTEN_PAUSE)
            heard.events = 0
            await trio.sleep(pause)


def _is_offered(response: httpx.Response) -> bool:
    """Return whether the server offers such a stream, now or later; 405 and similar mean that it does not."""
    if response.is_success:
        return bodies.content_type(response) == EVENT_STREAM
    return not 400 <= response.status_code < 500 or response.status_code == _TOO_MANY_REQUESTS

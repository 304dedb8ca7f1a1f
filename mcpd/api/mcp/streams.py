"""SSE streams that a client can resume after a disconnect: recent events are kept, within limits."""

from __future__ import annotations

import re
import secrets
from collections import deque

from mcpd.api.http.exchange import HttpExchange
from mcpd.api.mcp.frames import EVENT_HEADERS, EVENT_STREAM, KEEP_ALIVE, sse_event

MAX_KEPT_BYTES = 512 * 1024
"""Bytes of events kept per session, and of messages that wait for a stream. The last one is kept whatever its
size."""
MAX_KEPT_EVENTS = 1000
MAX_KEPT_BY_ALL = 64 * 1024 * 1024
"""Bytes of events that all sessions keep together. Beyond it, a session gives up its own."""
_DAEMON = secrets.token_hex(4).encode()
"""Starts the event ids of this process, so that they differ from those of the one before."""
_EVENT_ID = re.compile(r"([0-9a-f]{8})-([0-9]{1,9})-([0-9]{1,15})(?:-(.+))?", re.ASCII)
_REQUEST_KEY = re.compile(rb'-?[0-9]{1,15}|"[\w.:-]{1,64}"', re.ASCII)
"""The ids of requests that event ids contain. Others are rare."""
_RETRY = b"retry: 1000\n"


def request_of(event_id: str) -> bytes:
    """Return the JSON-RPC id of the request that an event's stream is for; empty if it is for none."""
    found = _EVENT_ID.fullmatch(event_id)
    key = (found[4] or "").encode("latin-1", "replace") if found else b""
    return key if _REQUEST_KEY.fullmatch(key) else b""


class ResumableStream:
    """An ordered stream of events with ids, for a connected client or one that may resume it."""

    def __init__(self, streams: SessionStreams, number: int, request: bytes, *, standalone: bool) -> None:
        self._streams = streams
        self.number = number
        self._suffix = b"-" + request if _REQUEST_KEY.fullmatch(request) else b""
        self.standalone = standalone
        """Opened by the client (GET) for messages that belong to no request."""
        self.kept: deque[tuple[int, bytes]] = deque()
        self.ended = False
        self._last = 0
        self._exchange: HttpExchange | None = None

    @property
    def is_attached(self) -> bool:
        return self._exchange is not None

    def attach(self, exchange: HttpExchange, after: int | None = None) -> None:
        """Send to this client from now on. With `after`, first repeat the events after that number."""
        old, self._exchange = self._exchange, None
        if old is not None:
            old.end()
        exchange.on_hang_up = self._on_hang_up
        exchange.on_quiet = lambda: exchange.write(KEEP_ALIVE)
        exchange.stream(EVENT_STREAM, EVENT_HEADERS)
        self._exchange = exchange
        if after is not None:
            for number, kept in list(self.kept):
                if number > after:
                    exchange.write(kept)
        elif self._streams.primes:
            # An event id to resume from if the connection breaks before the first event.
            exchange.write(b"id: %b\n%bdata: \n\n" % (self._event_id(0), _RETRY))
        if self.ended:
            self._exchange = None
            exchange.end()

    def send(self, frame: bytes) -> None:
        self._last += 1
        data = b"id: %b\n%b" % (self._event_id(self._last), sse_event(frame))
        self.kept.append((self._last, data))
        self._streams.event_kept(self, len(data))
        if self._exchange is not None:
            self._exchange.write(data)

    def _event_id(self, number: int) -> bytes:
        return b"%b-%d-%d%b" % (_DAEMON, self.number, number, self._suffix)

    def end(self) -> None:
        """End the stream."""
        self.ended = True
        exchange, self._exchange = self._exchange, None
        if exchange is not None:
            exchange.end()

    def _on_hang_up(self, _: str) -> None:
        self._exchange = None


def request_of_earlier_daemon(event_id: str) -> bytes | None:
    """Return the id of the request, empty if none is known, that a stream of an earlier daemon answered.

    Returns None for other event ids.
    """
    found = _EVENT_ID.fullmatch(event_id)
    if found is None or found[1].encode() == _DAEMON:
        return None
    key = (found[4] or "").encode()
    return key if _REQUEST_KEY.fullmatch(key) else b""


class KeptBytes:
    """Counts the bytes of the events that all sessions keep."""

    used = 0


class SessionStreams:
    """The streams of one session. `send_priming_event`: send an empty event first (from 2025-11-25)."""

    def __init__(self, *, send_priming_event: bool, of_all: KeptBytes) -> None:
        self.primes = send_priming_event
        self._of_all = of_all
        self._streams: dict[int, ResumableStream] = {}
        self._order: deque[tuple[ResumableStream, int]] = deque()
        """The kept events, oldest first, with their sizes."""
        self._size = 0
        self._stream_count = 0
        self._undelivered: dict[bytes, None] = {}
        """Unrelated messages that wait for a GET stream, in order and without duplicates."""
        self._undelivered_size = 0

    @property
    def attached_count(self) -> int:
        return sum(stream.is_attached for stream in self._streams.values())

    def new(self, request: bytes = b"", *, standalone: bool = False) -> ResumableStream:
        """Open a stream; `request` is the id of the request that it answers."""
        self._stream_count += 1
        stream = ResumableStream(self, self._stream_count, request, standalone=standalone)
        self._streams[stream.number] = stream
        self._discard_old()
        return stream

    def find(self, event_id: str) -> tuple[ResumableStream, int] | None:
        """Return the stream and number of an event id, or None if it is unknown."""
        found = _EVENT_ID.fullmatch(event_id)
        if found is None or found[1].encode() != _DAEMON:
            return None
        stream = self._streams.get(int(found[2]))
        return None if stream is None else (stream, int(found[3]))

    def send_unrelated(self, frame: bytes) -> None:
        """Send a message that belongs to no request, on the newest GET stream or once there is one."""
        for stream in reversed(list(self._streams.values())):
            if stream.standalone and stream.is_attached:
                stream.send(frame)
                return
        if frame in self._undelivered:
            return
        self._undelivered[frame] = None
        self._undelivered_size += len(frame)
        while len(self._undelivered) > 1 and (
            self._undelivered_size > MAX_KEPT_BYTES or len(self._undelivered) > MAX_KEPT_EVENTS
        ):
            self._drop_undelivered()

    def deliver_pending(self, stream: ResumableStream) -> None:
        """Send the waiting messages on a new GET stream."""
        waiting, self._undelivered, self._undelivered_size = self._undelivered, {}, 0
        for frame in waiting:
            stream.send(frame)

    def event_kept(self, stream: ResumableStream, size: int) -> None:
        self._order.append((stream, size))
        self._size += size
        self._of_all.used += size
        while len(self._order) > 1 and (self._size > MAX_KEPT_BYTES or len(self._order) > MAX_KEPT_EVENTS):
            self._drop_event()
        while self._order and self._of_all.used > MAX_KEPT_BY_ALL:
            self._drop_event()
        self._discard_old()

    def close(self) -> None:
        for stream in list(self._streams.values()):
            stream.end()
        self._streams.clear()
        self._order.clear()
        self._undelivered.clear()
        self._of_all.used -= self._size
        self._of_all = KeptBytes()  # a late response is not counted for a session that has ended
        self._size = self._undelivered_size = 0

    def _drop_event(self) -> None:
        oldest, size = self._order.popleft()
        oldest.kept.popleft()
        self._size -= size
        self._of_all.used -= size

    def _drop_undelivered(self) -> None:
        frame = next(iter(self._undelivered))
        del self._undelivered[frame]
        self._undelivered_size -= len(frame)

    def _discard_old(self) -> None:
        """Drop finished streams without kept events, and all but the newest 8 detached GET streams."""
        detached = [
            stream for stream in self._streams.values() if stream.standalone and not stream.is_attached
        ]
        finished = [stream for stream in self._streams.values() if stream.ended and not stream.kept]
        for stream in finished + detached[:-8]:
            self._streams.pop(stream.number, None)

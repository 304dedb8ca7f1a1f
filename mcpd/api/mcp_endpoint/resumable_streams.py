"""Streams of events that a client can come back to: what it missed is kept for a while, within bounds."""

from __future__ import annotations

import re
from collections import deque

from mcpd.api.http_server.http_exchange import Exchange
from mcpd.api.mcp_endpoint.frames import ALIVE, EVENT_HEADERS, EVENTS, event

KEEP = 512 * 1024
"""Bytes of events kept for a session's client to come back to; the last event is kept whatever its size."""
KEEP_EVENTS = 1000
_EVENT_ID = re.compile(r"([0-9]{1,9})-([0-9]{1,15})")
_RETRY = b"retry: 1000\n"


class Stream:
    """Events in order, each with an id of its own; to a client that is there, or one that may come back."""

    def __init__(self, streams: Streams, number: int, *, standalone: bool) -> None:
        self._streams = streams
        self.number = number
        self.standalone = standalone
        """Opened by the client for what belongs to no request."""
        self.kept: deque[tuple[int, bytes]] = deque()
        self.ended = False
        self._last = 0
        self._exchange: Exchange | None = None

    @property
    def is_attached(self) -> bool:
        return self._exchange is not None

    def attach(self, exchange: Exchange, after: int | None = None) -> None:
        """Go on to this client; with `after`, what came behind that event is told again first."""
        old, self._exchange = self._exchange, None
        if old is not None:
            old.end()
        exchange.on_hang_up = self._hung_up
        exchange.on_quiet = lambda: exchange.write(ALIVE)
        exchange.stream(EVENTS, EVENT_HEADERS)
        self._exchange = exchange
        if after is not None:
            for number, kept in list(self.kept):
                if number > after:
                    exchange.write(kept)
        elif self._streams.primes:
            # An id to come back with, should the line break before the first event.
            exchange.write(b"id: %d-0\n%bdata: \n\n" % (self.number, _RETRY))
        if self.ended:
            self._exchange = None
            exchange.end()

    def send(self, frame: bytes) -> None:
        self._last += 1
        told = b"id: %d-%d\n%b" % (self.number, self._last, event(frame))
        self.kept.append((self._last, told))
        self._streams.keeps(self, len(told))
        if self._exchange is not None:
            self._exchange.write(told)

    def end(self) -> None:
        """Nothing more will come."""
        self.ended = True
        exchange, self._exchange = self._exchange, None
        if exchange is not None:
            exchange.end()

    def _hung_up(self, _: str) -> None:
        self._exchange = None


class Streams:
    """Those of one session. `primes`: its client knows an event that only brings an id (from 2025-11-25)."""

    def __init__(self, *, primes: bool) -> None:
        self.primes = primes
        self._all: dict[int, Stream] = {}
        self._order: deque[tuple[Stream, int]] = deque()
        """Of the kept events, oldest first, with their sizes."""
        self._size = 0
        self._count = 0
        self._untold: dict[bytes, None] = {}
        """What belongs to no request, while nobody listens: each kind of it once, and in order."""

    @property
    def attached(self) -> int:
        return sum(stream.is_attached for stream in self._all.values())

    def new(self, *, standalone: bool = False) -> Stream:
        self._count += 1
        stream = Stream(self, self._count, standalone=standalone)
        self._all[stream.number] = stream
        self._forget()
        return stream

    def find(self, event_id: str) -> tuple[Stream, int] | None:
        """The stream that an event was on, and its number there; None when it is no longer known."""
        found = _EVENT_ID.fullmatch(event_id)
        stream = None if found is None else self._all.get(int(found[1]))
        return None if found is None or stream is None else (stream, int(found[2]))

    def tell(self, frame: bytes) -> None:
        """What belongs to no request: on the newest stream for that, or kept until there is one."""
        for stream in reversed(list(self._all.values())):
            if stream.standalone and stream.is_attached:
                stream.send(frame)
                return
        self._untold[frame] = None
        if len(self._untold) > KEEP_EVENTS:
            del self._untold[next(iter(self._untold))]

    def listen(self, stream: Stream) -> None:
        """Tell what was kept, now that somebody listens."""
        untold, self._untold = self._untold, {}
        for frame in untold:
            stream.send(frame)

    def keeps(self, stream: Stream, size: int) -> None:
        self._order.append((stream, size))
        self._size += size
        while len(self._order) > 1 and (self._size > KEEP or len(self._order) > KEEP_EVENTS):
            oldest, given_up = self._order.popleft()
            oldest.kept.popleft()
            self._size -= given_up
        self._forget()

    def close(self) -> None:
        for stream in list(self._all.values()):
            stream.end()
        self._all.clear()
        self._order.clear()
        self._untold.clear()

    def _forget(self) -> None:
        """Streams of which nothing is left, and all but the newest of those that clients left."""
        left = [stream for stream in self._all.values() if stream.standalone and not stream.is_attached]
        gone = [stream for stream in self._all.values() if stream.ended and not stream.kept]
        for stream in gone + left[:-8]:
            self._all.pop(stream.number, None)

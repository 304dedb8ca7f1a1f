"""Showing one server's messages: taps for clients, and the trace and debug log of its connections.

Nothing is copied while nobody looks.
"""

from __future__ import annotations

import fnmatch
import logging
import re
import time
import weakref
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from typing import TYPE_CHECKING

import msgspec
import trio
from msgspec import Raw

from mcpd.config.masking import MASK, SCHEME, is_secret_name, scrub, scrub_json
from mcpd.io.turns import take_turn
from mcpd.model.api import ConnectStep
from mcpd.model.events import MessageDirection, TapFrame
from mcpd.model.status import rfc3339
from mcpd.model.text import shorten
from mcpd.privacy.logs import TRAFFIC_LOGGER
from mcpd.transports.base import Channel
from mcpd.wire import message as wire
from mcpd.wire.message import ABSENT, BadFrame, Message

if TYPE_CHECKING:
    import httpx

MAX_FRAMES = 1000
MAX_BYTES = 8 * 1024 * 1024
"""Limits for the frames waiting in one tap. A single larger frame is accepted when the tap is empty."""
_MAX_PENDING = 2000
"""Requests remembered for matching responses; the oldest is dropped."""
MAX_LIMIT = 256 * 1024
"""The greatest `TapParams.limit`, since masking takes about 0.3 ms per KiB."""
MAX_METHODS = 100
"""The greatest number of `TapParams.methods`: each message is compared with all of them."""
MAX_METHOD = 256
"""Characters of each of them; and of the method and the id of a message that are shown."""
_LOOKAHEAD = 4096
"""Extra bytes that are masked, so that a secret that crosses the cut is recognized."""

FrameSink = Callable[[str, bytes], None]
_DIRECTIONS = {"→": MessageDirection.TO_SERVER, "←": MessageDirection.FROM_SERVER}


class RoundTripTracker:
    """Matches responses with requests, in both directions."""

    def __init__(self) -> None:
        self._requests: dict[tuple[bool, bytes], tuple[str, float]] = {}

    def match(self, message: Message, *, to_server: bool, at: float) -> tuple[str, float]:
        """Remember a request. For a response, return its request's method and the seconds that it took; the
        method is empty for anything else, and if the request was not seen.
        """
        if message.method:
            if message.id is not ABSENT:
                if len(self._requests) >= _MAX_PENDING:
                    del self._requests[next(iter(self._requests))]
                self._requests[to_server, message.key] = message.method, at
            return "", 0.0
        method, since = self._requests.pop((not to_server, message.key), ("", at))
        return method, at - since


class ServerTaps:
    """The taps of one server, across its connections."""

    def __init__(self, server: str, mask: Callable[[str], str], first: ServerTaps | None = None) -> None:
        """`first`: those of the server's first connection, whose taps show the messages of this one, too."""
        self._server = server
        self._mask = mask
        self._channel: Channel | None = None
        self._debug_sink: FrameSink | None = None
        self._taps: set[Tap] = set() if first is None else first._taps
        self._connections: weakref.WeakSet[ServerTaps] = (
            weakref.WeakSet() if first is None else first._connections
        )
        self._connections.add(self)

    def set_debug_sink(self, show: FrameSink | None) -> None:
        """Pass all frames to `show` as well, from now on; None stops that."""
        self._debug_sink = show
        self._install()

    def on_connecting(self, link: Channel) -> None:
        """Watch this channel from now on."""
        self._channel = link
        self._add_note("opening a connection")
        self._install()

    def on_disconnected(self) -> None:
        """Note the end of the connection in all taps."""
        self._channel = None
        self._add_note("connection closed")

    @contextmanager
    def open_tap(self, methods: Sequence[str], limit: int) -> Iterator[Tap]:
        """Collect all frames until the block is left; the arguments are those of `TapParams`.

        At most MAX_LIMIT bytes of a message are shown, and MAX_METHODS methods compared.
        """
        methods = [method[:MAX_METHOD] for method in methods[:MAX_METHODS]]
        tap = Tap(self._server, self._mask, methods, min(limit, MAX_LIMIT))
        self._taps.add(tap)
        self._install_all()
        try:
            yield tap
        finally:
            self._taps.discard(tap)
            self._install_all()

    def _install_all(self) -> None:
        for each in list(self._connections):
            each._install()

    def _install(self) -> None:
        if self._channel is not None:
            self._channel.tap = self._on_frame if self._taps else self._debug_sink

    def _on_frame(self, direction: str, frame: bytes) -> None:
        if self._debug_sink is not None:
            self._debug_sink(direction, frame)
        now = time.time()
        for tap in self._taps:
            tap.put(now, _DIRECTIONS[direction], frame, self)

    def _add_note(self, note: str) -> None:
        now = time.time()
        for tap in self._taps:
            tap.put(now, MessageDirection.NOTE, note.encode(), self)


class Tap:
    """A bounded queue of frames for one viewer.

    Frames that arrive faster than `next` takes them are counted and dropped.
    """

    def __init__(self, server: str, mask: Callable[[str], str], methods: Sequence[str], limit: int) -> None:
        self._server = server
        self._mask = mask
        self._methods = methods
        self._limit = limit
        self._frames: deque[tuple[float, MessageDirection, bytes, RoundTripTracker]] = deque()
        self._size = 0
        self._dropped = 0
        self._available = trio.Event()
        self._round_trips: weakref.WeakKeyDictionary[object, RoundTripTracker] = weakref.WeakKeyDictionary()
        """By connection: each has ids of its own."""

    def put(self, at: float, direction: MessageDirection, frame: bytes, connection: object) -> None:
        full = len(self._frames) >= MAX_FRAMES or self._size + len(frame) > MAX_BYTES
        if full and self._frames:
            self._dropped += 1
            return
        round_trips = self._round_trips.setdefault(connection, RoundTripTracker())
        self._frames.append((at, direction, frame, round_trips))
        self._size += len(frame)
        self._available.set()

    async def next(self) -> TapFrame:
        """Return the next matching frame. Frames are parsed and masked here, in the viewer's task."""
        while True:
            while not self._frames:
                self._available = trio.Event()
                await self._available.wait()
            await take_turn("streams")
            at, direction, frame, round_trips = self._frames.popleft()
            self._size -= len(frame)
            is_note, message, method = direction is MessageDirection.NOTE, None, ""
            if not is_note:
                with suppress(BadFrame):  # shown as text
                    message = wire.parse(frame)
                    to_server = direction is MessageDirection.TO_SERVER
                    answered, _ = round_trips.match(message, to_server=to_server, at=at)
                    method = shorten(message.method or answered, MAX_METHOD)
            wanted = not self._methods or any(fnmatch.fnmatchcase(method, each) for each in self._methods)
            if not (is_note or wanted):
                continue
            text = _mask_start(frame, self._limit, self._mask)
            await take_turn("streams")  # both parts may take many milliseconds
            text, cut = _scrub_and_cut(text, frame, self._limit)
            whole = _as_json(text) if message is not None and not cut else None
            dropped, self._dropped = self._dropped, 0
            key = "" if message is None else shorten(message.key.decode("utf-8", "replace"), MAX_METHOD)
            return TapFrame(
                at=rfc3339(at),
                server=self._server,
                direction=direction,
                method=self._mask(method),
                id=self._mask(key),
                bytes=len(frame),
                message=whole,
                text="" if whole is not None else text,
                cut=cut,
                dropped=dropped,
            )


def _mask_start(frame: bytes, limit: int, mask: Callable[[str], str]) -> str:
    """Mask before `_scrub_and_cut` cuts: half a secret would not be recognized."""
    return mask(frame[: limit + _LOOKAHEAD].decode("utf-8", "replace"))


def _scrub_and_cut(text: str, frame: bytes, limit: int) -> tuple[str, bool]:
    text = scrub_json(text)
    if len(frame) <= limit:
        return text, False
    part_of_one = _LOOKAHEAD if len(frame) > limit + _LOOKAHEAD else 0
    return text[: min(limit, max(0, len(text) - part_of_one))], True


def _as_json(text: str) -> Raw | None:
    """Return the text as JSON; None if masking broke the JSON syntax."""
    try:
        return msgspec.json.decode(text.encode("utf-8", "replace"), type=Raw)
    except (msgspec.MsgspecError, RecursionError):
        return None


log = logging.getLogger("mcpd.server")
traffic_log = logging.getLogger(TRAFFIC_LOGGER)

_MAX_LOGGED = 2000
"""Bytes of a message that are logged."""
_SESSION_ID_SHOWN = 8
"""Characters of a session id that are logged: enough to tell sessions apart, not to join one."""
_IN_URL = rf"(?i)((?<=[?&])session_?id=[^&]{{{_SESSION_ID_SHOWN}}})[^&]*"


class ConnectionTrace:
    """The steps of one server's connection attempts, and its debug log. `mask` removes secrets from both."""

    def __init__(self, name: str, mask: Callable[[str], str]) -> None:
        self.steps: list[ConnectStep] = []
        """Of the current or last attempt."""
        self.debug = False
        """Whether steps and HTTP requests are logged regardless of the log level. `log_frame` logs always."""
        self._name = name
        self._mask = mask
        self._round_trips = RoundTripTracker()

    def clear(self) -> None:
        self.steps = []

    def add_step(self, step: str, outcome: str, seconds: float) -> None:
        outcome, ms = self._mask(outcome)[:500], round(seconds * 1000, 1)
        self.steps.append(ConnectStep(at=rfc3339(time.time()), step=step, outcome=outcome, ms=ms))
        (traffic_log if self.debug else log).debug("%s: %s: %s (%.1f ms)", self._name, step, outcome, ms)

    def log_frame(self, direction: str, frame: bytes) -> None:
        """Log a message; a response with its request's method and the time it took."""
        method, seconds = "", 0.0
        with suppress(BadFrame):
            now, to_server = time.perf_counter(), direction == "→"
            method, seconds = self._round_trips.match(wire.parse(frame), to_server=to_server, at=now)
        note = f"{method} ({seconds * 1000:.1f} ms) " if method else ""
        text, cut = _scrub_and_cut(_mask_start(frame, _MAX_LOGGED, self._mask), frame, _MAX_LOGGED)
        traffic_log.debug("%s %s %s%s%s", self._name, direction, note, text, "…" if cut else "")

    def log_http_request(self, request: httpx.Request, response: httpx.Response, seconds: float) -> None:
        """Log an HTTP request: URL, both sets of headers, status and duration."""
        if self.debug:
            traffic_log.debug(
                "%s: %s %s: HTTP %d (%.1f ms); sent: %s; received: %s",
                self._name,
                request.method,
                re.sub(_IN_URL, r"\1…", scrub(self._mask(str(request.url)))),
                response.status_code,
                seconds * 1000,
                self._render_headers(request.headers.multi_items()),
                self._render_headers(response.headers.multi_items()),
            )

    def _render_headers(self, headers: Iterable[tuple[str, str]]) -> str:
        return ", ".join(f"{name}: {self._mask(_render_header(name, value))}" for name, value in headers)


def _render_header(name: str, value: str) -> str:
    if is_secret_name(name):
        scheme = SCHEME.match(value)
        return f"{scheme[0] if scheme else ''}{MASK}"
    if name.lower().endswith("session-id"):
        return f"{value[:_SESSION_ID_SHOWN]}…"
    return scrub(value)

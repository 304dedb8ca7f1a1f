"""What is noted of one server's connecting, step by step, and of all that passes while somebody debugs it."""

from __future__ import annotations

import logging
import re
import time
from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING

from mcpd.config.masking import MASK, SCHEME, is_secret_name, scrub
from mcpd.model.api import ConnectStep
from mcpd.model.status import rfc3339
from mcpd.supervision.message_tap import RoundTripTracker, render_frame
from mcpd.support.logs import TRAFFIC_LOGGER

if TYPE_CHECKING:
    import httpx

log = logging.getLogger("mcpd.server")
traffic_log = logging.getLogger(TRAFFIC_LOGGER)

_MAX_LOGGED = 2000
"""Bytes of a message that are logged."""
_SESSION_ID_SHOWN = 8
"""Characters of a session's id: enough to tell two apart, too few to join one."""
_IN_URL = re.compile(rf"((?<=[?&])session_?id=[^&]{{{_SESSION_ID_SHOWN}}})[^&]*", re.IGNORECASE)


class ConnectionTrace:
    """`mask` takes the secrets out of all of it."""

    def __init__(self, name: str, mask: Callable[[str], str]) -> None:
        self.steps: list[ConnectStep] = []
        """Of the attempt under way, or the last one."""
        self.debug = False
        """Whether steps and HTTP requests are logged, whatever the log's level; who wants `frame` too has to
        call it."""
        self._name = name
        self._mask = mask
        self._round_trips = RoundTripTracker()

    def clear(self) -> None:
        self.steps = []

    def add_step(self, step: str, outcome: str, seconds: float) -> None:
        told = ConnectStep(
            at=rfc3339(time.time()),
            step=step,
            outcome=self._mask(outcome)[:500],
            ms=round(seconds * 1000, 1),
        )
        self.steps.append(told)
        (traffic_log if self.debug else log).debug(
            "%s: %s: %s (%.1f ms)", self._name, step, told.outcome, told.ms
        )

    def log_frame(self, direction: str, frame: bytes) -> None:
        """Log a message: an answer with its request's method, and how long it took to come."""
        trip = self._round_trips.match_frame(direction, frame)
        words = "" if trip is None else f"{trip.method} ({trip.seconds * 1000:.1f} ms) "
        text, cut = render_frame(frame, _MAX_LOGGED, self._mask)
        traffic_log.debug("%s %s %s%s%s", self._name, direction, words, text, "…" if cut else "")

    def log_http_request(self, request: httpx.Request, response: httpx.Response, seconds: float) -> None:
        """Log an HTTP request: where it went, its headers and those that came back, after how long."""
        if self.debug:
            traffic_log.debug(
                "%s: %s %s: HTTP %d (%.1f ms); sent: %s; received: %s",
                self._name,
                request.method,
                _IN_URL.sub(r"\1…", scrub(self._mask(str(request.url)))),
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

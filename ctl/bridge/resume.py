"""Requests that restore the editor's state on a restarted daemon, repeated while the daemon refuses them."""

from __future__ import annotations

import math
from collections.abc import Callable

from ctl.bridge import error_replies, resume_legacy
from mcpd.model.text import shorten
from mcpd.wire import message as wire
from mcpd.wire.message import ABSENT, Message

RETRY_DELAY, MAX_RETRY_DELAY = 1.0, 10.0
"""Seconds until a refused request is sent again; the delay doubles each time."""
MAX_RETRIES = 15
"""A server that takes longer than this to start is given up."""


class StateRestorer:
    """The bridge's own requests to the current daemon. `in` tests whether an id belongs to one of them."""

    def __init__(self, to_daemon: Callable[[bytes], None], log: Callable[[str], None]) -> None:
        self._to_daemon = to_daemon
        self._log = log
        self._in_flight: dict[bytes, tuple[str, bytes]] = {}
        """Id → method and params."""
        self._last_id = 0
        self._refused: list[tuple[str, bytes]] = []
        """What the old daemon had granted and the new one does not grant yet."""
        self._retries = 0
        self.retry_at = math.inf
        """When to call `retry_refused`, by the loop's clock."""

    def __contains__(self, key: bytes) -> bool:
        return key in self._in_flight

    @property
    def is_exhausted(self) -> bool:
        return self._retries > MAX_RETRIES

    def reset(self) -> None:
        """Start over with a new daemon."""
        self._retries = 0

    def clear(self) -> None:
        """Drop everything after the connection to the daemon was lost."""
        self._in_flight.clear()
        self._refused.clear()
        self.retry_at = math.inf

    def send(self, method: str, params: bytes) -> None:
        self._last_id += 1
        key = b'"mcpctl-bridge-%d"' % self._last_id
        self._in_flight[key] = method, params
        self._to_daemon(wire.request(key, method, params))

    def on_response(self, key: bytes, response: Message, now: float) -> bytes | None:
        """Handle the daemon's response; return the line that the editor must receive, if any."""
        method, params = self._in_flight.pop(key)
        if response.error is ABSENT:
            return resume_legacy.resource_updated(params) if method == resume_legacy.SUBSCRIBE else None
        if method != resume_legacy.INITIALIZE and self._retries < MAX_RETRIES:
            self._refused.append((method, params))  # its servers may not be connected yet
            self.schedule_retry(now)
        else:
            reason = error_replies.parse_error(response.error).message
            self._log(f"the restarted mcpd refuses {method} {shorten(params, 100)}: {reason}")
        return None

    def schedule_retry(self, now: float) -> None:
        delay = min(RETRY_DELAY * 2 ** min(self._retries, MAX_RETRIES), MAX_RETRY_DELAY)
        self.retry_at = min(self.retry_at, now + delay)

    def retry_refused(self, wanted: list[tuple[str, bytes]]) -> None:
        """Send the refused requests again, except those that the editor no longer wants."""
        self._retries += 1
        refused, self._refused = self._refused, []
        for request in refused:
            if request in wanted:
                self.send(*request)

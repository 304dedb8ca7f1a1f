"""What a new daemon is asked on the editor's behalf, and again later where it could not grant it yet."""

from __future__ import annotations

import math
from collections.abc import Callable

from ctl.bridge import envelope, error_replies, legacy
from ctl.bridge.envelope import ABSENT, Message

RETRY_DELAY, MAX_RETRY_DELAY = 1.0, 10.0
"""Seconds until what a new daemon could not grant yet is asked for again: the first time, and at last."""
MAX_RETRIES = 15
"""A server that takes longer than that to come has not been missed."""


class StateRestorer:
    """Our own requests to this daemon. `in` says whether an id is one of theirs."""

    def __init__(self, to_daemon: Callable[[bytes], None], log: Callable[[str], None]) -> None:
        self._to_daemon = to_daemon
        self._log = log
        self._in_flight: dict[bytes, tuple[str, bytes]] = {}
        """Method and params of those under way."""
        self._last_id = 0
        self._refused: list[tuple[str, bytes]] = []
        """What the editor had been granted, and this daemon would not grant yet."""
        self._retries = 0
        self.retry_at = math.inf
        """When something has to be asked for again, by the loop's clock."""

    def __contains__(self, key: bytes) -> bool:
        return key in self._in_flight

    @property
    def is_exhausted(self) -> bool:
        """Whether it has been asked for often enough."""
        return self._retries > MAX_RETRIES

    def reset(self) -> None:
        """With a new daemon."""
        self._retries = 0

    def clear(self) -> None:
        """The daemon is gone, and with it what it was asked."""
        self._in_flight.clear()
        self._refused.clear()
        self.retry_at = math.inf

    def send(self, method: str, params: bytes) -> None:
        self._last_id += 1
        key = b'"mcpctl-bridge-%d"' % self._last_id
        self._in_flight[key] = method, params
        self._to_daemon(envelope.request(key, method, params))

    def on_response(self, key: bytes, answer: Message, now: float) -> bytes | None:
        """The daemon has answered one of them: what the editor has to hear of that, if anything."""
        method, params = self._in_flight.pop(key)
        if answer.error is ABSENT:
            return legacy.resource_updated(params) if method == legacy.SUBSCRIBE else None
        if method != legacy.INITIALIZE and self._retries < MAX_RETRIES:
            self._refused.append((method, params))  # its servers may not be there yet
            self.schedule_retry(now)
        else:
            why = envelope.error_of(answer.error).message
            what = error_replies.shortened(params.decode(errors="replace"))
            self._log(f"the new daemon refuses {method} {what}: {why}")
        return None

    def schedule_retry(self, now: float) -> None:
        self.retry_at = min(
            self.retry_at, now + min(RETRY_DELAY * 2 ** min(self._retries, MAX_RETRIES), MAX_RETRY_DELAY)
        )

    def retry_refused(self, wanted: list[tuple[str, bytes]]) -> None:
        """For what was refused, as far as the editor still wishes it: it may have thought better of it."""
        self._retries += 1
        refused, self._refused = self._refused, []
        for request in refused:
            if request in wanted:
                self.send(*request)

"""What a new daemon is asked on the editor's behalf, and again later where it could not grant it yet."""

from __future__ import annotations

import math
from collections.abc import Callable

from ctl.bridge import envelope, error_replies, legacy
from ctl.bridge.envelope import ABSENT, Message

AGAIN, AGAIN_AT_MOST = 1.0, 10.0
"""Seconds until what a new daemon could not grant yet is asked for again: the first time, and at last."""
TRIES = 15
"""A server that takes longer than that to come has not been missed."""


class Resuming:
    """Our own requests to this daemon. `in` says whether an id is one of theirs."""

    def __init__(self, to_daemon: Callable[[bytes], None], log: Callable[[str], None]) -> None:
        self._to_daemon = to_daemon
        self._log = log
        self._own: dict[bytes, tuple[str, bytes]] = {}
        """Method and params of those under way."""
        self._last = 0
        self._refused: list[tuple[str, bytes]] = []
        """What the editor had been granted, and this daemon would not grant yet."""
        self._tries = 0
        self.at = math.inf
        """When something has to be asked for again, by the loop's clock."""

    def __contains__(self, key: bytes) -> bool:
        return key in self._own

    @property
    def gives_up(self) -> bool:
        """Whether it has been asked for often enough."""
        return self._tries > TRIES

    def begin(self) -> None:
        """With a new daemon."""
        self._tries = 0

    def lost(self) -> None:
        """The daemon is gone, and with it what it was asked."""
        self._own.clear()
        self._refused.clear()
        self.at = math.inf

    def ask(self, method: str, params: bytes) -> None:
        self._last += 1
        key = b'"mcpctl-bridge-%d"' % self._last
        self._own[key] = method, params
        self._to_daemon(envelope.request(key, method, params))

    def answered(self, key: bytes, answer: Message, now: float) -> bytes | None:
        """The daemon has answered one of them: what the editor has to hear of that, if anything."""
        method, params = self._own.pop(key)
        if answer.error is ABSENT:
            return legacy.resubscribed(params) if method == legacy.SUBSCRIBE else None
        if method != legacy.INITIALIZE and self._tries < TRIES:
            self._refused.append((method, params))  # its servers may not be there yet
            self.later(now)
        else:
            why = envelope.error_of(answer.error).message
            what = error_replies.shortened(params.decode(errors="replace"))
            self._log(f"the new daemon refuses {method} {what}: {why}")
        return None

    def later(self, now: float) -> None:
        self.at = min(self.at, now + min(AGAIN * 2 ** min(self._tries, TRIES), AGAIN_AT_MOST))

    def ask_again(self, wishes: list[tuple[str, bytes]]) -> None:
        """For what was refused, as far as the editor still wishes it: it may have thought better of it."""
        self._tries += 1
        refused, self._refused = self._refused, []
        for wish in refused:
            if wish in wishes:
                self.ask(*wish)

"""The keys that end a display: q, besides the terminal's own Ctrl-C."""

from __future__ import annotations

import os
import select
import sys
import termios
import time
import tty
from types import TracebackType

_QUIT_KEYS = b"qQ\x04\x1b"
"""q, Ctrl-D, Escape; a key that sends an escape sequence is none."""


class QuitKeys:
    """While the block is open, keys come one by one and without echo. Without a terminal nothing changes."""

    def __init__(self) -> None:
        self._input = sys.stdin.fileno() if sys.stdin is not None and sys.stdin.isatty() else None
        self._before: list[int | list[bytes | int]] = []

    def __enter__(self) -> QuitKeys:
        if self._input is not None:
            self._before = termios.tcgetattr(self._input)
            tty.setcbreak(self._input)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._input is not None:
            termios.tcsetattr(self._input, termios.TCSADRAIN, self._before)

    def quit_pressed(self, seconds: float) -> bool:
        """Wait so long for one of the keys."""
        if self._input is None:
            time.sleep(seconds)
            return False
        until = time.monotonic() + seconds
        while select.select([self._input], [], [], max(0.0, until - time.monotonic()))[0]:
            pressed = os.read(self._input, 64)
            if not pressed:  # the terminal has gone
                return True
            if all(key in _QUIT_KEYS for key in pressed):
                return True
        return False

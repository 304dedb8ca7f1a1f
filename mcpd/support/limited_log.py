"""Log lines that anybody can cause: at most one per second for each cause."""

from __future__ import annotations

import logging
import time

INTERVAL = 1.0
_last: dict[tuple[str, str], tuple[float, int]] = {}
"""Logger and cause → when the last line was logged, and how many were left out since."""


def forget() -> None:
    """Log the next line of every cause. For tests."""
    _last.clear()


def log_limited(
    log: logging.Logger,
    level: int,
    cause: str,
    message: str,
    *arguments: object,
    error: BaseException | None = None,
    interval: float = INTERVAL,
) -> None:
    """Log `message` unless one with the same `cause` was logged less than `interval` seconds ago.

    The next one says how many were left out. `cause` is a constant, since it is remembered; what a client
    sends belongs in `arguments`. Lines of a level that is off do not count. `error`: log its traceback, too.
    """
    if not log.isEnabledFor(level):
        return
    now = time.monotonic()
    logged_at, left_out = _last.get((log.name, cause), (-interval, 0))
    if now - logged_at < interval:
        _last[log.name, cause] = (logged_at, left_out + 1)
        return
    _last[log.name, cause] = (now, 0)
    if left_out:
        message, arguments = message + " (and %d more like it)", (*arguments, left_out)
    log.log(level, message, *arguments, exc_info=error)

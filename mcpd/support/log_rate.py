"""Limits what one cause can write to the log, however often somebody provokes it."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable

INTERVAL = 1.0
"""Seconds between two tracebacks of the same cause."""
BURST = 200
"""Lines without a traceback that one statement may log per INTERVAL. Debug lines are not counted."""
FROM_OUTSIDE = {"from_outside": True}
"""`extra` of a line that any program on the machine can cause, for example before it is authenticated. A
statement may log one such line per INTERVAL."""
_MAX_CAUSES = 1000

_Cause = tuple[str, str, int, str]


class RateLimit(logging.Filter):
    """Admits one traceback per INTERVAL for each cause, and BURST lines for each statement that logs, or
    one if it uses FROM_OUTSIDE.

    The cause of a traceback is the statement that logs it, the type of the exception, and where it was
    raised. The next admitted record of a cause says how many were left out.
    """

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        super().__init__()
        self._clock = clock
        self._lock = threading.Lock()
        self._causes: dict[_Cause, _Admitted] = {}

    def filter(self, record: logging.LogRecord) -> bool:
        if record.levelno < logging.INFO:
            return True
        with self._lock:
            now, cause = self._clock(), _cause(record)
            admitted = self._causes.get(cause)
            if admitted is None:
                self._forget_quiet(now)
                admitted = self._causes[cause] = _Admitted(now)
            is_single = record.exc_info or hasattr(record, "from_outside")
            left_out = admitted.admit(now, 1 if is_single else BURST)
        if left_out is None:
            return False
        if left_out:
            record.msg = f"{record.getMessage()} ({left_out} more like this were not logged)"
            record.args = ()
        return True

    def _forget_quiet(self, now: float) -> None:
        if len(self._causes) >= _MAX_CAUSES:
            self._causes = {c: each for c, each in self._causes.items() if each.since > now - INTERVAL}
        if len(self._causes) >= _MAX_CAUSES:
            self._causes.clear()


class _Admitted:
    """The records of one cause in the current interval."""

    def __init__(self, now: float) -> None:
        self.since = now
        self._count = 0
        self._left_out = 0

    def admit(self, now: float, limit: int) -> int | None:
        """Return how many records were left out before this one; None if it must be left out, too."""
        if now - self.since >= INTERVAL:
            self.since, self._count = now, 0
        if self._count >= limit:
            self._left_out += 1
            return None
        self._count += 1
        left_out, self._left_out = self._left_out, 0
        return left_out


def _cause(record: logging.LogRecord) -> _Cause:
    if not record.exc_info or record.exc_info[1] is None:
        return record.pathname, "", record.lineno, ""
    _, error, trace = record.exc_info
    while isinstance(error, BaseExceptionGroup):
        error = error.exceptions[0]
        trace = error.__traceback__
    while trace is not None and trace.tb_next is not None:
        trace = trace.tb_next
    place = "" if trace is None else f"{trace.tb_frame.f_code.co_filename}:{trace.tb_lineno}"
    return record.pathname, type(error).__name__, record.lineno, place

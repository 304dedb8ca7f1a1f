"""The daemon's log on stderr: readable on a terminal, JSON lines otherwise, with secrets masked."""

from __future__ import annotations

import contextlib
import errno
import json
import logging
import os
import queue
import sys
import threading
import time
import warnings
from collections.abc import Callable, Iterator

from mcpd.model.status import rfc3339
from mcpd.privacy.redact import Redactor

LEVELS = ("debug", "info", "warning", "error")
TRAFFIC_LOGGER = "mcpd.traffic"
"""The logger for the messages of servers with `debug`. It ignores the log level, so that debugging one server
does not require the details of everything else."""
INTERVAL = 1.0
"""Seconds between two tracebacks of the same statement."""
BURST = 200
"""Lines without a traceback that one statement may log per INTERVAL. Debug lines are not counted."""
FROM_OUTSIDE = {"from_outside": True}
"""`extra` of a line that any program on the machine can cause, for example before it is authenticated. A
statement may log one such line per INTERVAL."""
_MAX_STATEMENTS = 1000
_FORK_TIMEOUT = 0.1
"""Seconds that a fork waits for the thread: a fork while it holds a lock would leave that locked for ever."""
_MAX_QUEUED = 10_000
"""Lines that may wait for a slow stderr. Further lines are dropped, so that the daemon never waits."""


class LogRateLimit(logging.Filter):
    """Admits BURST lines per INTERVAL for each statement that logs; one, if it has a traceback or uses
    FROM_OUTSIDE.

    The next admitted line of a statement says how many were left out.
    """

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        super().__init__()
        self._clock = clock
        self._lock = threading.Lock()
        self._statements: dict[tuple[str, int], _Admitted] = {}

    def filter(self, record: logging.LogRecord) -> bool:
        if record.levelno < logging.INFO:
            return True
        with self._lock:
            now, statement = self._clock(), (record.pathname, record.lineno)
            if len(self._statements) >= _MAX_STATEMENTS and statement not in self._statements:
                self._statements.clear()
            admitted = self._statements.setdefault(statement, _Admitted(now))
            is_single = record.exc_info or hasattr(record, "from_outside")
            left_out = admitted.admit(now, 1 if is_single else BURST)
        if left_out is None:
            return False
        if left_out:
            record.msg = f"{record.getMessage()} ({left_out} more like this were not logged)"
            record.args = ()
        return True


class _Admitted:
    """The records of one statement in the current interval."""

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


class _MaskingFormatter(logging.Formatter):
    """Masks known secrets. Each record is one line, so that no message can imitate another record."""

    def __init__(self, redactor: Redactor) -> None:
        super().__init__()
        self._redactor = redactor

    def text(self, record: logging.LogRecord) -> str:
        text = record.getMessage()
        if record.exc_info:
            text += "\n" + self.formatException(record.exc_info)
        return self._redactor.mask(text)


class HumanFormatter(_MaskingFormatter):
    def format(self, record: logging.LogRecord) -> str:
        clock = f"{self.formatTime(record, '%H:%M:%S')}.{record.msecs:03.0f}"
        lines = [_printable(line) for line in self.text(record).splitlines()]
        return f"{clock} {record.levelname.lower():7} " + "\n        ".join(lines)


class JsonFormatter(_MaskingFormatter):
    def format(self, record: logging.LogRecord) -> str:
        return json.dumps(
            {
                "time": rfc3339(record.created),
                "level": record.levelname.lower(),
                "logger": record.name,
                "message": self.text(record),
            }
        )


class JournalFormatter(JsonFormatter):
    """Starts each line with its priority, which journald removes (sd-daemon(3)), for `journalctl -p`."""

    def format(self, record: logging.LogRecord) -> str:
        return f"<{_PRIORITIES.get(record.levelno, 6)}>{super().format(record)}"


_PRIORITIES = {logging.DEBUG: 7, logging.INFO: 6, logging.WARNING: 4, logging.ERROR: 3, logging.CRITICAL: 2}


def log_library_warnings() -> None:
    """Log only the kind and the place of a library's warning: its text may quote a file with secrets."""

    def show(
        message: Warning | str,
        category: type[Warning],
        filename: str,
        lineno: int,
        file: object = None,
        line: str | None = None,
    ) -> None:
        place = os.sep.join(filename.split(os.sep)[-2:])
        logging.getLogger("mcpd").debug("a library warned: %s in %s:%d", category.__name__, place, lineno)

    warnings.showwarning = show


def _printable(text: str) -> str:
    return "".join(c if c.isprintable() or c == "\t" else "\N{REPLACEMENT CHARACTER}" for c in text)


class _StderrHandler(logging.Handler):
    """Writes whole lines to a descriptor. Lines that cannot be written are counted, and reported later.

    It does not use sys.stderr, which would keep unwritten data and turn it into exit status 120.
    """

    def __init__(self, fd: int) -> None:
        super().__init__()
        self.lost = 0
        self._fd = fd
        self._torn = False

    def emit(self, record: logging.LogRecord) -> None:
        lost = self.lost
        try:
            lines = [self.format(record)]
            if lost:
                lines.insert(0, self.format(_lost_lines_record(lost)))
            self._write("".join(f"{line}\n" for line in lines).encode("utf-8", "replace"))
        except Exception:  # also formatting errors: the logging thread must survive
            self.lost += 1
        else:
            self.lost -= lost

    def _write(self, data: bytes) -> None:
        data = b"\n" * self._torn + data
        for _ in range(2):  # after a partial write, the disk is full, or the pipe has space again
            written = os.write(self._fd, data)
            data = data[written:]
            self._torn = bool(data) and (written > 0 or self._torn)
            if not data:
                return
        raise OSError(errno.ENOSPC, "not all of it could be written")


def _lost_lines_record(number: int) -> logging.LogRecord:
    message = "%d log lines were lost: stderr was full or too slow"
    return logging.LogRecord("mcpd", logging.WARNING, "", 0, message, (number,), None)


class _DroppingQueueHandler(logging.Handler):
    """Passes records to the thread that writes them. `logging.handlers` would import 0.5 MB for this."""

    def __init__(self, lines: _StderrHandler) -> None:
        super().__init__()
        self._lines = lines
        self.start()

    def start(self) -> None:
        """Start the thread. A child of a fork needs another one."""
        self._records: queue.Queue[logging.LogRecord | None] = queue.Queue(_MAX_QUEUED)
        self._writer = threading.Thread(
            target=_write_records, args=(self._records, self._lines), name="log", daemon=True
        )
        self._writer.start()

    def emit(self, record: logging.LogRecord) -> None:
        try:
            self._records.put_nowait(record)
        except queue.Full:
            self._lines.lost += 1

    def wait_written(self) -> None:
        """Wait until everything is written, but only briefly. No lock is held then."""
        end = time.monotonic() + _FORK_TIMEOUT
        while not self._records.empty() and time.monotonic() < end:
            time.sleep(0.001)

    def stop(self) -> None:
        """End the thread when everything is written."""
        with contextlib.suppress(queue.Full):  # nobody reads stderr; the thread ends with the process
            self._records.put_nowait(None)
            self._writer.join()


def write_all() -> None:
    """Write what was logged, because the process exits at once."""
    for handler in logging.getLogger().handlers:
        if isinstance(handler, _DroppingQueueHandler):
            handler.stop()


def _write_records(records: queue.Queue[logging.LogRecord | None], lines: _StderrHandler) -> None:
    while (record := records.get()) is not None:
        lines.handle(record)


def _choose_formatter() -> type[_MaskingFormatter]:
    if sys.stderr.isatty():
        return HumanFormatter
    found = os.fstat(sys.stderr.fileno())
    is_journal = os.environ.get("JOURNAL_STREAM") == f"{found.st_dev}:{found.st_ino}"  # systemd.exec(5)
    return JournalFormatter if is_journal else JsonFormatter


@contextlib.contextmanager
def log_to_stderr(level: str, redactor: Redactor) -> Iterator[None]:
    """Log to stderr from a separate thread, so that a slow reader never blocks the event loop."""
    stream = _StderrHandler(sys.stderr.fileno())
    stream.setFormatter(_choose_formatter()(redactor))
    handler = _DroppingQueueHandler(stream)
    os.register_at_fork(before=handler.wait_written, after_in_child=handler.start)
    handler.addFilter(LogRateLimit())
    root = logging.getLogger()
    root.addHandler(handler)
    root.setLevel(level.upper())
    logging.getLogger(TRAFFIC_LOGGER).setLevel(logging.DEBUG)
    logging.raiseExceptions = False  # a full disk behind stderr must not print tracebacks into it
    try:
        yield
    finally:
        root.removeHandler(handler)
        handler.stop()

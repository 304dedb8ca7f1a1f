"""The daemon's own log: for a person on a terminal, JSON lines otherwise, secrets masked by value."""

from __future__ import annotations

import contextlib
import errno
import json
import logging
import logging.handlers
import os
import queue
import sys
from collections.abc import Iterator

from mcpd.model.status import rfc3339
from mcpd.support.redact import Redactor

LEVELS = ("debug", "info", "warning", "error")
TRAFFIC_LOGGER = "mcpd.traffic"
"""The logger for what servers that somebody debugs are told and say. The level does not hold it back: whoever
asks for one server's messages does not want everybody's details."""
_MAX_QUEUED = 10_000
"""Lines that may wait for a slow stderr; more are dropped rather than keep the loop waiting."""


class _MaskingFormatter(logging.Formatter):
    """Masks what is known to be secret, and keeps one record one line: no text can forge another."""

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


def _printable(text: str) -> str:
    return "".join(c if c.isprintable() or c == "\t" else "\N{REPLACEMENT CHARACTER}" for c in text)


class _StderrHandler(logging.Handler):
    """Whole lines on a descriptor. What it will not take is dropped and counted, and told once it does again.

    Not through sys.stderr, which keeps what a full disk refuses, and turns it into an exit status of 120.
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
                words = "%d lines of this log were lost: it could not be written, or not so quickly"
                lines.insert(0, self.format(_lost_lines_record(words, lost)))
            self._write("".join(f"{line}\n" for line in lines).encode("utf-8", "replace"))
        except Exception:  # a record that cannot be told, too: the thread must live to tell of the next
            self.lost += 1
        else:
            self.lost -= lost

    def _write(self, data: bytes) -> None:
        data = b"\n" * self._torn + data
        for _ in range(2):  # where a part was taken, the disk is full now, or the pipe has room again
            written = os.write(self._fd, data)
            data = data[written:]
            self._torn = bool(data) and (written > 0 or self._torn)
            if not data:
                return
        raise OSError(errno.ENOSPC, "not all of it could be written")


def _lost_lines_record(words: str, number: int) -> logging.LogRecord:
    return logging.LogRecord("mcpd", logging.WARNING, "", 0, words, (number,), None)


class _DroppingQueueHandler(logging.handlers.QueueHandler):
    def __init__(self, records: queue.Queue[logging.LogRecord], lines: _StderrHandler) -> None:
        super().__init__(records)
        self._lines = lines

    def prepare(self, record: logging.LogRecord) -> logging.LogRecord:
        return record  # stays in this process: the formatter wants the exception

    def enqueue(self, record: logging.LogRecord) -> None:
        try:
            self.queue.put_nowait(record)
        except queue.Full:
            self._lines.lost += 1


@contextlib.contextmanager
def log_to_stderr(level: str, redactor: Redactor) -> Iterator[None]:
    """Log to stderr from a thread of its own, so that a slow reader never holds up the loop."""
    stream = _StderrHandler(sys.stderr.fileno())
    stream.setFormatter(HumanFormatter(redactor) if sys.stderr.isatty() else JsonFormatter(redactor))
    records: queue.Queue[logging.LogRecord] = queue.Queue(_MAX_QUEUED)
    handler = _DroppingQueueHandler(records, stream)
    listener = logging.handlers.QueueListener(records, stream)
    root = logging.getLogger()
    root.addHandler(handler)
    root.setLevel(level.upper())
    logging.getLogger(TRAFFIC_LOGGER).setLevel(logging.DEBUG)
    logging.raiseExceptions = False  # a full disk behind stderr must not print tracebacks into it
    listener.start()
    try:
        yield
    finally:
        root.removeHandler(handler)
        listener.stop()

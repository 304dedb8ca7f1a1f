"""The daemon's own log: for a person on a terminal, JSON lines otherwise, secrets masked by value."""

from __future__ import annotations

import contextlib
import json
import logging
import logging.handlers
import queue
import sys
from collections.abc import Iterator

from mcpd.model.status import rfc3339
from mcpd.support.redact import Redactor

LEVELS = ("debug", "info", "warning", "error")
_QUEUED = 10_000
"""Lines that may wait for a slow stderr; more are dropped rather than keep the loop waiting."""


class _Masked(logging.Formatter):
    """Masks what is known to be secret, and keeps one record one line: no text can forge another."""

    def __init__(self, redactor: Redactor) -> None:
        super().__init__()
        self._redactor = redactor

    def text(self, record: logging.LogRecord) -> str:
        text = record.getMessage()
        if record.exc_info:
            text += "\n" + self.formatException(record.exc_info)
        return self._redactor.mask(text)


class HumanFormatter(_Masked):
    def format(self, record: logging.LogRecord) -> str:
        clock = f"{self.formatTime(record, '%H:%M:%S')}.{record.msecs:03.0f}"
        lines = [_printable(line) for line in self.text(record).splitlines()]
        return f"{clock} {record.levelname.lower():7} " + "\n        ".join(lines)


class JsonFormatter(_Masked):
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


class _Queue(logging.handlers.QueueHandler):
    def prepare(self, record: logging.LogRecord) -> logging.LogRecord:
        return record  # stays in this process: the formatter wants the exception

    def enqueue(self, record: logging.LogRecord) -> None:
        with contextlib.suppress(queue.Full):
            self.queue.put_nowait(record)


@contextlib.contextmanager
def logging_to_stderr(level: str, redactor: Redactor) -> Iterator[None]:
    """Log to stderr from a thread of its own, so that a slow reader never holds up the loop."""
    stream = logging.StreamHandler(sys.stderr)
    stream.setFormatter(HumanFormatter(redactor) if sys.stderr.isatty() else JsonFormatter(redactor))
    records: queue.Queue[logging.LogRecord] = queue.Queue(_QUEUED)
    handler = _Queue(records)
    listener = logging.handlers.QueueListener(records, stream)
    root = logging.getLogger()
    root.addHandler(handler)
    root.setLevel(level.upper())
    logging.raiseExceptions = False  # a full disk behind stderr must not print tracebacks into it
    listener.start()
    try:
        yield
    finally:
        root.removeHandler(handler)
        listener.stop()

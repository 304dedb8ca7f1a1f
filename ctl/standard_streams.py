"""The standard streams of mcpctl: open, buffered, and never left after a part of the output was written."""

from __future__ import annotations

import io
import os
import sys

TYPE_CHECKING = False  # type checkers know the name; importing `typing` for it costs 3 ms on every run
if TYPE_CHECKING:
    from _typeshed import ReadableBuffer


def prepare() -> None:
    """Prepare stdin, stdout and stderr of this process. Call it once, before anything is printed.

    Every write to stdout then writes everything or raises OSError, at the latest when it is flushed. With
    PYTHONUNBUFFERED, Python's own stream writes once and drops what a full disk or pipe did not take.
    """
    _reopen_closed_streams()
    for name in ("stdout", "stderr"):
        stream = getattr(sys, name)
        stream.flush()
        setattr(sys, name, _buffered(stream))


def _reopen_closed_streams() -> None:
    """Open /dev/null for closed standard streams, or the next opened file would take their place."""
    for number, name in enumerate(("stdin", "stdout", "stderr")):
        if getattr(sys, name) is None:
            found = os.open(os.devnull, os.O_RDWR)
            if found != number:
                os.dup2(found, number)
                os.close(found)
            setattr(sys, name, open(number, "w" if number else "r", closefd=False))  # noqa: SIM115


def _buffered(stream: io.TextIOWrapper) -> io.TextIOWrapper:
    """Return a stream for the same descriptor, whose buffer repeats a partial write until all is written."""
    return io.TextIOWrapper(
        io.BufferedWriter(_PatientFile(stream.fileno(), "w", closefd=False)),
        encoding=stream.encoding,
        errors=stream.errors,
        line_buffering=stream.line_buffering or stream.isatty(),
    )


class _PatientFile(io.FileIO):
    """A file that waits until a non-blocking descriptor accepts data, as a blocking one does."""

    def write(self, data: ReadableBuffer, /) -> int:
        while (written := super().write(data)) is None:
            import select  # only a descriptor that another program made non-blocking needs it

            poll = select.poll()
            poll.register(self.fileno(), select.POLLOUT)
            poll.poll()
        return written

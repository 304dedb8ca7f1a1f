"""One server's stderr: bounded in memory and on disk, kept across restarts of the server and the daemon."""

from __future__ import annotations

import itertools
import os
import re
import time
from collections import deque
from contextlib import suppress
from pathlib import Path

import trio

from mcpd.files.regular import open_regular_file
from mcpd.model.status import lines_with_cause, rfc3339
from mcpd.privacy.redact import MIN_START, Redactor
from mcpd.protocol.negotiate import without_echo

MAX_LINE = 16 * 1024
MAX_RING = 1024 * 1024
FILE_QUOTA = 1024 * 1024
"""Bytes per file; one rotated file is kept in addition."""
MAX_RUN_LINES = 200
"""Lines of the current run in which the cause of a failure is looked for. A trace of node, with the
properties of the error, has about 50."""
_ESCAPES = re.compile(r"\x1b(?:\[[0-?]*[ -/]*[@-~]|[\]PX^_].*?(?:\x07|\x1b\\|$))")
"""Whole escape sequences; otherwise `[31m` would remain."""


class ServerLog:
    """Feed it what the server writes. Never raises: lines that a full disk rejects are counted.

    `redactor` masks secrets, also one of which only the start has arrived or was kept. Escape sequences are
    removed and other control characters replaced, so that no line can imitate another.
    """

    def __init__(self, path: Path, redactor: Redactor, shared: ServerLog | None = None) -> None:
        """`shared`: the log of a server that this process belongs to. It gets all lines, and writes them."""
        self.path = path
        self._shared = shared
        self.dropped = 0
        """Lines that could not be written to disk."""
        self._redactor = redactor
        self._lines: deque[str] = deque()
        self._size = 0
        self._partial_line: bytes = b""
        self._skipping_line = False
        self._fd: int | None = None
        self._file_size = 0
        self._run_lines: deque[str] = deque(maxlen=MAX_RUN_LINES)
        self.position = self._ready_at = 0
        """Number of lines so far; see `lines_after`."""
        self._more = trio.Event()
        if shared is None:
            self._load()

    def feed(self, portion: bytes) -> None:
        """Accept bytes in any portions; longer lines are cut at 16 KiB."""
        *whole, rest = (self._partial_line + portion).split(b"\n")
        now = rfc3339(time.time())
        taken = []
        for line in whole:
            if self._skipping_line:  # the rest of a line that was cut
                self._skipping_line = False
                continue
            taken.append(self._store_line(line, now))
        if len(rest) > MAX_LINE:
            if not self._skipping_line:
                taken.append(self._store_line(rest, now))
                self._skipping_line = True
            rest = b""
        self._partial_line = rest
        if taken:
            self._publish(taken)

    def add_line(self, text: str) -> None:
        """Add a line of mcpd's own, or one that the server sent as a log message."""
        self._publish([self._store_line(text.encode(), rfc3339(time.time()))])

    def start_run(self) -> None:
        """Assign the following lines to a new process."""
        if rest := self._partial_line:
            self._partial_line = b""
            self._publish([self._store_line(rest, rfc3339(time.time()), unfinished=True)])
        self._skipping_line = False
        self._run_lines.clear()
        self._ready_at = self.position

    def note_ready(self) -> None:
        """The current process is connected. If it has written anything since, only that explains its end."""
        self._ready_at = self.position

    def last_lines(self, count: int = 20) -> tuple[str, ...]:
        """Return the last lines of the current run, at most MAX_RUN_LINES, without timestamps."""
        tail = [line.partition(" ")[2] for line in list(self._run_lines)[-count:]]
        if self._partial_line:
            tail.append(self._clean(self._partial_line, unfinished=True))
        return tuple(line[:500] for line in tail[-count:])

    def failure_lines(self) -> tuple[str, ...]:
        """Return 20 lines of the current run that explain why the process ended (`lines_with_cause`)."""
        lines = self.last_lines(MAX_RUN_LINES)
        since_ready = self.position - self._ready_at + bool(self._partial_line)
        return lines_with_cause(without_echo(lines[-since_ready:] if since_ready else lines), 20)

    def tail(self, count: int) -> tuple[str, ...]:
        return tuple(self._lines)[-count:] if count > 0 else ()

    def lines_after(self, position: int, count: int) -> tuple[list[str], int]:
        """Return at most `count` lines after `position`, and how many before them are no longer available."""
        new = self.position - position
        kept = min(new, len(self._lines))
        start = len(self._lines) - kept
        return list(itertools.islice(self._lines, start, start + count)), new - kept

    async def wait_lines_after(self, position: int) -> None:
        """Wait until `position` has been passed."""
        while self.position <= position:
            await self._more.wait()

    def close(self) -> None:
        if self._fd is not None:
            os.close(self._fd)
            self._fd = None

    def _clean(self, line: bytes, *, unfinished: bool = False) -> str:
        if not line:
            return ""
        text = line[:MAX_LINE].decode("utf-8", "replace").rstrip("\r")
        mask = self._redactor.mask
        if not text.isprintable():
            text = _ESCAPES.sub("", mask(text))
            text = "".join(c if c.isprintable() or c == "\t" else "\N{REPLACEMENT CHARACTER}" for c in text)
        if not unfinished and len(line) <= MAX_LINE:
            return mask(text)
        text = text.rstrip("\N{REPLACEMENT CHARACTER}")  # a part of a character
        # A line that was cut is not read to its end; one that is unfinished may end with an ordinary word.
        return self._redactor.mask_cut(text, MIN_START if unfinished else 1)

    def _store_line(self, line: bytes, now: str, *, unfinished: bool = False) -> str:
        text = f"{now} {self._clean(line, unfinished=unfinished)}"
        self._keep(text)
        self._run_lines.append(text)
        return text

    def _keep(self, text: str) -> None:
        self._lines.append(text)
        self._size += len(text)
        while self._size > MAX_RING and len(self._lines) > 1:
            self._size -= len(self._lines.popleft())
        self.position += 1

    def _publish(self, lines: list[str]) -> None:
        """Write stored lines to the file, and wake all tasks that wait for them."""
        if self._shared is None:
            self._write(lines)
        else:
            for line in lines:
                self._shared._keep(line)
            self._shared._publish(lines)
        more, self._more = self._more, trio.Event()
        more.set()

    def _write(self, lines: list[str]) -> None:
        data = ("\n".join(lines) + "\n").encode("utf-8", "replace")
        try:
            if self._fd is None:
                self.path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
                flags = os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC
                self._fd = os.open(self.path, flags | os.O_NONBLOCK, 0o600)  # a FIFO must not block
                self._file_size = os.fstat(self._fd).st_size
            if self._file_size + len(data) > FILE_QUOTA and self._file_size:
                self.close()
                os.replace(self.path, self.path.with_suffix(".log.1"))
                self._write(lines)
                return
            data = data[-FILE_QUOTA:]
            written = os.write(self._fd, data)
            self._file_size += written
            if written < len(data):  # the disk is full: the rest is lost
                self.dropped += data.count(b"\n", written)
        except OSError:
            self.dropped += len(lines)

    def _load(self) -> None:
        with suppress(OSError), open_regular_file(self.path) as (file, found):
            file.seek(max(0, found.st_size - 64 * 1024))
            for line in file.read(64 * 1024).decode("utf-8", "replace").splitlines()[-500:]:
                self._lines.append(line)
                self._size += len(line)

"""The poll loop between an editor's pipes and the daemon's socket: the only place that waits."""

from __future__ import annotations

import math
import os
import select
import signal
import socket
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from typing import NamedTuple

from ctl.bridge.daemon_link import Aim, Link, Starts
from ctl.bridge.daemon_starter import Starter
from ctl.bridge.editor_session import Conversation
from ctl.bridge.pipes import Lines, Outbox
from mcpd.support.paths import socket_path

LONGEST = 32 * 1024 * 1024
"""Of a line from the editor: what the daemon takes."""
FULL = 1024 * 1024
"""Bytes that wait for one side at which the other is read no more."""
LAST_MOMENT = 0.7
"""Seconds for answers under way after the editor has closed its side."""
READ = 64 * 1024
_GONE = select.POLLHUP | select.POLLERR | select.POLLNVAL
_SIGNALS = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP)
_AT_ONCE = 4096
"""PIPE_BUF: what a pipe that is ready for writing takes without waiting."""


class Options(NamedTuple):
    """The command line."""

    socket: str = ""
    """Empty: where the environment says."""
    may_start: bool = True
    server: str | None = None
    profile: str | None = None
    client: str = ""


def run(options: Options, environ: Mapping[str, str]) -> int:
    """Serve the editor at stdin and stdout until it leaves or a signal comes; the exit code."""
    try:
        os.fstat(0), os.fstat(1)
    except OSError:
        log("stdin or stdout is closed: an editor starts this, and speaks MCP with it")
        return 2
    if os.isatty(0):
        log("speaks MCP on stdin and stdout: an editor starts it; Ctrl-D ends it")

    def path() -> str:
        return socket_path({**environ, "MCPD_SOCKET": options.socket} if options.socket else environ)

    parent = os.getppid()
    with _watched_parent(parent) as parent_fd, _signals() as signal_fd, _unblocked(1):
        aim = Aim(options.server, options.profile, options.client, parent, _cwd())
        starter = Starter() if options.may_start else None
        loop = Loop(0, 1, path, aim, starter, log, ends=(parent_fd,), signals=signal_fd)
        try:
            return loop.run()
        finally:
            loop.close()


def log(text: str) -> None:
    """A line on stderr, which is the editor's log. Never waits: an editor may not read it."""
    line = f"mcpctl bridge: {text}".encode(errors="replace")
    with suppress(OSError, ValueError):
        poll = select.poll()
        poll.register(2, select.POLLOUT)
        if any(events & select.POLLOUT for _, events in poll.poll(0)):
            os.write(2, line[: _AT_ONCE - 1].replace(b"\x1b", b"?") + b"\n")


class Loop:
    """Owns nothing but its poll object: whoever made the descriptors closes them, `close` closes the link."""

    def __init__(
        self,
        reads: int,
        writes: int,
        path: Callable[[], str],
        aim: Aim,
        starter: Starts | None,
        log: Callable[[str], None],
        *,
        ends: tuple[int | None, ...] = (),
        signals: int | None = None,
    ) -> None:
        """`ends` are descriptors that become readable when the editor has gone; `signals` brings numbers."""
        self._reads = reads
        self._writes = writes
        self._ends = [fd for fd in ends if fd is not None]
        self._signals = signals
        self._outbox = Outbox()
        self._lines = Lines(LONGEST)
        self._link = Link(
            lambda to_daemon: Conversation(self._outbox.put, to_daemon, log), path, aim, starter, log
        )
        self._conversation = self._link.conversation
        self._poll = select.poll()
        self._watched: dict[int, int] = {}
        self._until = math.inf
        """When to end whatever is under way."""
        self._listening = True
        """The editor has not closed its side."""
        self._code: int | None = None

    def run(self) -> int:
        """Until the editor leaves or a signal comes: the exit code."""
        now = time.monotonic()
        for fd in (*self._ends, self._signals):
            if fd is not None:
                self._poll.register(fd, select.POLLIN)
        while not self._is_over(now):
            self._watch()
            now = self._turns(self._pause(now))
            self._conversation.tick(now)
            if self._outbox.size < FULL:
                self._link.tick(now)
            self._flush(now)
        self._conversation.give_up_all()  # who only stopped writing still reads
        self._flush(now)
        return 0 if self._code is None else self._code

    def close(self) -> None:
        self._link.close()

    def _turns(self, pause: int | None) -> float:
        """Wait and handle what comes; more than once while messages go to and fro and nothing else is to do.

        Few steps, since a call comes by here twice: with the processor's caches cold, as they are when we
        are woken, each costs several times what it costs in a loop.
        """
        link, reads, poll = self._link, self._reads, self._poll.poll
        to_editor, to_daemon = self._outbox.frames, link.outbox.frames
        connected = link.fd
        once = pause is not None or bool(to_editor or to_daemon)  # else all is watched for reading
        while True:
            ready = poll(pause)
            now = time.monotonic()
            for fd, events in ready:
                if events != select.POLLIN:
                    self._handle(fd, events, now)
                elif fd == connected == link.fd:
                    link.readable(now)
                elif fd == reads:
                    self._read(now)
                else:
                    self._handle(fd, events, now)
            if to_daemon or to_editor:
                self._flush(now)
                if to_daemon or to_editor:
                    return now
            if once or link.fd != connected or not self._is_calm():
                return now

    def _is_calm(self) -> bool:
        """Nothing is to be done before the next message comes, on the descriptors that are watched."""
        return self._listening and self._code is None and self._conversation.is_calm

    def _is_over(self, now: float) -> bool:
        if self._code is not None or now >= self._until:
            return True
        return not self._listening and not self._outbox.frames and not self._conversation.is_at_work

    def _pause(self, now: float) -> int | None:
        """Milliseconds until something has to be done, rounded up."""
        at = min(self._conversation.next_at(), self._until)
        if self._outbox.size < FULL:
            at = min(at, self._link.next_at())
        return None if at == math.inf else max(0, math.ceil((at - now) * 1000))

    # ── what is watched ─────────────────────────────────────────────────────────────────────────

    def _watch(self) -> None:
        """A side is read only while the other takes what comes of it."""
        link, waiting = self._link, self._outbox.size
        room, behind = waiting < FULL, link.outbox.size
        wanted: dict[int, int] = {}
        if self._listening:
            wanted[self._reads] = select.POLLIN if room and behind < FULL else select.POLLRDHUP
        if waiting:
            wanted[self._writes] = wanted.get(self._writes, 0) | select.POLLOUT
        if (fd := link.fd) is not None:
            events = (select.POLLIN if room else 0) | (select.POLLOUT if behind else 0)
            if events:  # else not even its end, which would be told again and again
                wanted[fd] = events
        if link.starter is not None and (fd := link.starter.fd) is not None:
            wanted[fd] = select.POLLIN
        if wanted != self._watched:
            for fd in self._watched.keys() - wanted.keys():
                self._poll.unregister(fd)
            for fd, events in wanted.items():
                if self._watched.get(fd) != events:
                    self._poll.register(fd, events)
            self._watched = wanted

    def _handle(self, fd: int, events: int, now: float) -> None:
        link = self._link
        if fd == link.fd:
            if events & ~select.POLLOUT:
                link.readable(now)
        elif fd in (self._reads, self._writes):
            if fd == self._reads and self._listening:
                if events & select.POLLIN:
                    self._read(now)
                elif events & (_GONE | select.POLLRDHUP):
                    self._editor_left(now)
            if fd == self._writes and events & select.POLLERR:
                self._code = 0  # nobody will read our answers
        elif fd == self._signals:
            self._signalled(fd)
        elif fd in self._ends:
            self._poll.unregister(fd)
            self._editor_left(now)
        elif link.starter is not None and fd == link.starter.fd:
            link.started(now)

    # ── the editor ──────────────────────────────────────────────────────────────────────────────

    def _read(self, now: float) -> None:
        try:
            portion = os.read(self._reads, READ)
        except BlockingIOError:
            return
        except OSError:
            portion = b""
        if portion:
            self._take(self._lines.feed(portion), now)
        else:
            self._editor_left(now)

    def _take(self, lines: list[bytes], now: float) -> None:
        from_editor = self._conversation.from_editor
        for line in lines:
            from_editor(line, now)
        while self._lines.left_out:
            self._lines.left_out -= 1
            self._conversation.line_left_out(LONGEST)
        if not self._conversation.up:
            self._link.wanted(now)

    def _editor_left(self, now: float) -> None:
        """It will say nothing more. Answers that are nearly there still go out."""
        if self._listening and (rest := self._lines.rest()):
            self._take([rest + b"\n"], now)
        self._listening = False
        self._until = min(self._until, now + LAST_MOMENT)

    def _signalled(self, fd: int) -> None:
        with suppress(BlockingIOError):
            self._code = 128 + os.read(fd, 1)[0]

    def _flush(self, now: float) -> None:
        self._link.flush(now)
        if self._outbox.frames:
            try:
                self._outbox.flush(self._write)
            except OSError:
                self._code = 0

    def _write(self, data: bytes | memoryview) -> int:
        return os.write(self._writes, data)


# ── the process ─────────────────────────────────────────────────────────────────────────────────


def _cwd() -> str | None:
    try:
        return os.fsencode(os.getcwd()).decode(errors="replace")
    except OSError:
        return None


@contextmanager
def _watched_parent(parent: int) -> Iterator[int | None]:
    """A descriptor that becomes readable when the parent ends: its end of our stdin may live on in a child of
    its. No parent-death signal: that one follows the *thread* that started us.
    """
    fd = None
    with suppress(OSError):
        if parent > 1:
            fd = os.pidfd_open(parent)
            if os.getppid() != parent:  # too late: the number may be another process's
                os.close(fd)
                fd = os.open(os.devnull, os.O_RDONLY)  # always readable
    try:
        yield fd
    finally:
        if fd is not None:
            os.close(fd)


@contextmanager
def _signals() -> Iterator[int]:
    """A descriptor that brings the numbers of the signals that end us."""
    ours, theirs = socket.socketpair()
    ours.setblocking(False)
    theirs.setblocking(False)
    before = [signal.signal(number, lambda *_: None) for number in _SIGNALS]
    signal.set_wakeup_fd(theirs.fileno(), warn_on_full_buffer=False)
    try:
        yield ours.fileno()
    finally:
        signal.set_wakeup_fd(-1)
        for number, handler in zip(_SIGNALS, before, strict=True):
            signal.signal(number, handler)
        ours.close()
        theirs.close()


@contextmanager
def _unblocked(fd: int) -> Iterator[None]:
    """Others may share the descriptor's flags (a terminal's shell does): they are put back."""
    was = os.get_blocking(fd)
    os.set_blocking(fd, False)
    try:
        yield
    finally:
        with suppress(OSError):
            os.set_blocking(fd, was)

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

from ctl.bridge.daemon_link import AttachTarget, DaemonLink, StarterProtocol
from ctl.bridge.daemon_starter import DaemonStarter
from ctl.bridge.editor_session import EditorSession
from ctl.bridge.pipes import LineReader, WriteBuffer
from mcpd.support.paths import socket_path

MAX_LINE = 32 * 1024 * 1024
"""Of a line from the editor: what the daemon takes."""
HIGH_WATER_MARK = 1024 * 1024
"""Bytes that wait for one side at which the other is read no more."""
SHUTDOWN_GRACE = 0.7
"""Seconds for answers under way after the editor has closed its side."""
READ_SIZE = 64 * 1024
_HANGUP_EVENTS = select.POLLHUP | select.POLLERR | select.POLLNVAL
_SIGNALS = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP)
_PIPE_BUF = 4096
"""PIPE_BUF: what a pipe that is ready for writing takes without waiting."""


class BridgeOptions(NamedTuple):
    """The command line."""

    socket: str = ""
    """Empty: where the environment says."""
    may_start: bool = True
    server: str | None = None
    profile: str | None = None
    client: str = ""


def run(options: BridgeOptions, environ: Mapping[str, str]) -> int:
    """Serve the editor at stdin and stdout until it leaves or a signal comes; the exit code."""
    try:
        os.fstat(0), os.fstat(1)
    except OSError:
        log("stdin or stdout is closed: an editor starts this, and speaks MCP with it")
        return 2
    if os.isatty(0):
        log("speaks MCP on stdin and stdout: an editor starts it; Ctrl-D ends it")

    def find_socket() -> str:
        return socket_path({**environ, "MCPD_SOCKET": options.socket} if options.socket else environ)

    parent = os.getppid()
    with _parent_pidfd(parent) as parent_fd, _signal_socket() as signal_fd, _nonblocking(1):
        target = AttachTarget(options.server, options.profile, options.client, parent, _cwd())
        starter = DaemonStarter() if options.may_start else None
        loop = BridgeLoop(0, 1, find_socket, target, starter, log, exit_fds=(parent_fd,), signal_fd=signal_fd)
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
            os.write(2, line[: _PIPE_BUF - 1].replace(b"\x1b", b"?") + b"\n")


class BridgeLoop:
    """Owns nothing but its poll object: whoever made the descriptors closes them, `close` closes the link."""

    def __init__(
        self,
        read_fd: int,
        write_fd: int,
        find_socket: Callable[[], str],
        target: AttachTarget,
        starter: StarterProtocol | None,
        log: Callable[[str], None],
        *,
        exit_fds: tuple[int | None, ...] = (),
        signal_fd: int | None = None,
    ) -> None:
        """`ends` are descriptors that become readable when the editor has gone; `signals` brings numbers."""
        self._read_fd = read_fd
        self._write_fd = write_fd
        self._exit_fds = [fd for fd in exit_fds if fd is not None]
        self._signal_fd = signal_fd
        self._outbox = WriteBuffer()
        self._lines = LineReader(MAX_LINE)
        self._link = DaemonLink(
            lambda to_daemon: EditorSession(self._outbox.put, to_daemon, log),
            find_socket,
            target,
            starter,
            log,
        )
        self._session = self._link.make_session
        self._poll = select.poll()
        self._watched: dict[int, int] = {}
        self._deadline = math.inf
        """When to end whatever is under way."""
        self._editor_open = True
        """The editor has not closed its side."""
        self._exit_code: int | None = None

    def run(self) -> int:
        """Until the editor leaves or a signal comes: the exit code."""
        now = time.monotonic()
        for fd in (*self._exit_fds, self._signal_fd):
            if fd is not None:
                self._poll.register(fd, select.POLLIN)
        while not self._is_finished(now):
            self._update_poll()
            now = self._poll_and_handle(self._poll_timeout(now))
            self._session.tick(now)
            if self._outbox.size < HIGH_WATER_MARK:
                self._link.tick(now)
            self._flush(now)
        self._session.fail_all()  # who only stopped writing still reads
        self._flush(now)
        return 0 if self._exit_code is None else self._exit_code

    def close(self) -> None:
        self._link.close()

    def _poll_and_handle(self, pause: int | None) -> float:
        """Wait and handle what comes; more than once while messages go to and fro and nothing else is to do.

        Few steps, since a call comes by here twice: with the processor's caches cold, as they are when we
        are woken, each costs several times what it costs in a loop.
        """
        link, reads, poll = self._link, self._read_fd, self._poll.poll
        to_editor, to_daemon = self._outbox.frames, link.outbox.frames
        connected = link.fd
        once = pause is not None or bool(to_editor or to_daemon)  # else all is watched for reading
        while True:
            ready = poll(pause)
            now = time.monotonic()
            for fd, events in ready:
                if events != select.POLLIN:
                    self._on_event(fd, events, now)
                elif fd == connected == link.fd:
                    link.on_readable(now)
                elif fd == reads:
                    self._on_editor_readable(now)
                else:
                    self._on_event(fd, events, now)
            if to_daemon or to_editor:
                self._flush(now)
                if to_daemon or to_editor:
                    return now
            if once or link.fd != connected or not self._is_idle():
                return now

    def _is_idle(self) -> bool:
        """Nothing is to be done before the next message comes, on the descriptors that are watched."""
        return self._editor_open and self._exit_code is None and self._session.is_idle

    def _is_finished(self, now: float) -> bool:
        if self._exit_code is not None or now >= self._deadline:
            return True
        return not self._editor_open and not self._outbox.frames and not self._session.has_open_requests

    def _poll_timeout(self, now: float) -> int | None:
        """Milliseconds until something has to be done, rounded up."""
        at = min(self._session.next_at(), self._deadline)
        if self._outbox.size < HIGH_WATER_MARK:
            at = min(at, self._link.next_at())
        return None if at == math.inf else max(0, math.ceil((at - now) * 1000))

    # ── what is watched ─────────────────────────────────────────────────────────────────────────

    def _update_poll(self) -> None:
        """A side is read only while the other takes what comes of it."""
        link, waiting = self._link, self._outbox.size
        room, behind = waiting < HIGH_WATER_MARK, link.outbox.size
        wanted: dict[int, int] = {}
        if self._editor_open:
            wanted[self._read_fd] = select.POLLIN if room and behind < HIGH_WATER_MARK else select.POLLRDHUP
        if waiting:
            wanted[self._write_fd] = wanted.get(self._write_fd, 0) | select.POLLOUT
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

    def _on_event(self, fd: int, events: int, now: float) -> None:
        link = self._link
        if fd == link.fd:
            if events & ~select.POLLOUT:
                link.on_readable(now)
        elif fd in (self._read_fd, self._write_fd):
            if fd == self._read_fd and self._editor_open:
                if events & select.POLLIN:
                    self._on_editor_readable(now)
                elif events & (_HANGUP_EVENTS | select.POLLRDHUP):
                    self._on_editor_closed(now)
            if fd == self._write_fd and events & select.POLLERR:
                self._exit_code = 0  # nobody will read our answers
        elif fd == self._signal_fd:
            self._on_signal(fd)
        elif fd in self._exit_fds:
            self._poll.unregister(fd)
            self._on_editor_closed(now)
        elif link.starter is not None and fd == link.starter.fd:
            link.on_starter_finished(now)

    # ── the editor ──────────────────────────────────────────────────────────────────────────────

    def _on_editor_readable(self, now: float) -> None:
        try:
            portion = os.read(self._read_fd, READ_SIZE)
        except BlockingIOError:
            return
        except OSError:
            portion = b""
        if portion:
            self._handle_lines(self._lines.feed(portion), now)
        else:
            self._on_editor_closed(now)

    def _handle_lines(self, lines: list[bytes], now: float) -> None:
        from_editor = self._session.from_editor
        for line in lines:
            from_editor(line, now)
        while self._lines.left_out:
            self._lines.left_out -= 1
            self._session.reject_long_line(MAX_LINE)
        if not self._session.connected:
            self._link.hasten_retry(now)

    def _on_editor_closed(self, now: float) -> None:
        """It will say nothing more. Answers that are nearly there still go out."""
        if self._editor_open and (rest := self._lines.rest()):
            self._handle_lines([rest + b"\n"], now)
        self._editor_open = False
        self._deadline = min(self._deadline, now + SHUTDOWN_GRACE)

    def _on_signal(self, fd: int) -> None:
        with suppress(BlockingIOError):
            self._exit_code = 128 + os.read(fd, 1)[0]

    def _flush(self, now: float) -> None:
        self._link.flush(now)
        if self._outbox.frames:
            try:
                self._outbox.flush(self._write)
            except OSError:
                self._exit_code = 0

    def _write(self, data: bytes | memoryview) -> int:
        return os.write(self._write_fd, data)


# ── the process ─────────────────────────────────────────────────────────────────────────────────


def _cwd() -> str | None:
    try:
        return os.fsencode(os.getcwd()).decode(errors="replace")
    except OSError:
        return None


@contextmanager
def _parent_pidfd(parent: int) -> Iterator[int | None]:
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
def _signal_socket() -> Iterator[int]:
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
def _nonblocking(fd: int) -> Iterator[None]:
    """Others may share the descriptor's flags (a terminal's shell does): they are put back."""
    was = os.get_blocking(fd)
    os.set_blocking(fd, False)
    try:
        yield
    finally:
        with suppress(OSError):
            os.set_blocking(fd, was)

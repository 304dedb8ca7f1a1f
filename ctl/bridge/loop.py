"""The poll loop between an editor's pipes and the daemon's socket: the only part of the bridge that waits."""

from __future__ import annotations

import fcntl
import math
import os
import select
import signal
import socket
import termios
import time
from array import array
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress

from ctl.bridge.daemon_link import AttachTarget, DaemonLink, MakeSession
from ctl.bridge.daemon_starter import DaemonStarter
from ctl.bridge.editor_session import EditorSession
from ctl.bridge.write_buffer import WriteBuffer
from mcpd.files.paths import socket_path
from mcpd.model.message_limit import MAX_MESSAGE
from mcpd.wire.framing import LineSplitter

HIGH_WATER_MARK = 1024 * 1024
"""Bytes that wait for one side before the other side is no longer read."""
SHUTDOWN_GRACE = 0.7
"""Seconds that open requests still have after the editor has closed stdin."""
READ_SIZE = 64 * 1024
_HANGUP_EVENTS = select.POLLHUP | select.POLLERR | select.POLLNVAL
_SIGNALS = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP)
_PROGRESS_TIMEOUT = 0.05
"""Seconds that the editor may take to read progress before the response follows."""
_PIPE_BUF = 4096
"""Bytes that a writable pipe takes without blocking (POSIX)."""


def run(
    target: AttachTarget, environ: Mapping[str, str], chosen_socket: str, may_start: bool, host: str = ""
) -> int:
    """Serve the editor on stdin and stdout until it closes them or a signal arrives. Return the exit code.

    `target` lacks the process and directory. An empty `chosen_socket` leaves the choice to the environment.
    With `host`, the daemon is that of another machine.
    """
    try:
        os.fstat(0), os.fstat(1)
    except OSError:
        log("stdin or stdout is closed; an editor must start mcpctl bridge and speak MCP with it")
        return 2
    if os.isatty(0):
        log("waiting for MCP messages on stdin; editors start this command. Press Ctrl-D to exit.")

    def find_socket() -> str:
        return socket_path({**environ, "MCPD_SOCKET": chosen_socket} if chosen_socket else environ)

    parent = os.getppid()
    with _parent_pidfd(parent) as parent_fd, _signal_socket() as signal_fd, _nonblocking(1):
        if host:  # the process and the directory mean nothing there
            from ctl.bridge.ssh_link import SshLink

            def make_link(make_session: MakeSession) -> DaemonLink:
                return SshLink(make_session, target, log, host, chosen_socket, may_start=may_start)
        else:
            known = target._replace(pid=parent, cwd=_cwd())
            starter = DaemonStarter() if may_start else None

            def make_link(make_session: MakeSession) -> DaemonLink:
                return DaemonLink(make_session, find_socket, known, starter, log)

        loop = BridgeLoop(0, 1, make_link, log, exit_fds=(parent_fd,), signal_fd=signal_fd)
        try:
            return loop.run()
        finally:
            loop.close()


def log(text: str) -> None:
    """Write a line to stderr, the editor's log. Never blocks, because the editor may not read it."""
    line = f"mcpctl bridge: {text}".encode(errors="replace")
    with suppress(OSError, ValueError):
        poll = select.poll()
        poll.register(2, select.POLLOUT)
        if any(events & select.POLLOUT for _, events in poll.poll(0)):
            os.write(2, line[: _PIPE_BUF - 1].replace(b"\x1b", b"?") + b"\n")


class BridgeLoop:
    """Owns its poll object and the daemon link; the caller closes the descriptors."""

    def __init__(
        self,
        read_fd: int,
        write_fd: int,
        make_link: Callable[[MakeSession], DaemonLink],
        log: Callable[[str], None],
        *,
        exit_fds: tuple[int | None, ...] = (),
        signal_fd: int | None = None,
    ) -> None:
        """`exit_fds` become readable when the editor has exited; `signal_fd` delivers signal numbers."""
        self._read_fd = read_fd
        self._write_fd = write_fd
        self._exit_fds = [fd for fd in exit_fds if fd is not None]
        self._signal_fd = signal_fd
        self._outbox = WriteBuffer()
        self._lines = LineSplitter(MAX_MESSAGE, longest=math.inf)
        self._link = make_link(lambda to_daemon: EditorSession(self._outbox.put, to_daemon, log))
        self._session = self._link.session
        self._poll = select.poll()
        self._watched: dict[int, int] = {}
        self._deadline = math.inf
        """When to exit, even with open requests."""
        self._editor_open = True
        """The editor has not closed stdin."""
        self._exit_code: int | None = None
        self._count_unread = termios.TIOCOUTQ
        """Returns the bytes that the other end of a socket has not read; FIONREAD does so for a pipe."""

    def run(self) -> int:
        """Run until the editor leaves or a signal arrives. Return the exit code."""
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
        self._session.fail_all()  # the editor may still read
        self._flush(now)
        return 0 if self._exit_code is None else self._exit_code

    def close(self) -> None:
        self._link.close()

    def _poll_and_handle(self, pause: int | None) -> float:
        """Wait for events and handle them; repeat while only messages pass and no timer is needed.

        Every call passes here twice, right after a wake-up and with cold processor caches, when each step
        costs several times as much as in a tight loop. So there are few of them.
        """
        link, reads, poll = self._link, self._read_fd, self._poll.poll
        to_editor, to_daemon = self._outbox.frames, link.outbox.frames
        connected = link.fd
        once = pause is not None or bool(to_editor or to_daemon)  # otherwise only reads are polled
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
        """Return whether there is nothing to do until the next message arrives."""
        return self._editor_open and self._exit_code is None and self._session.is_idle

    def _is_finished(self, now: float) -> bool:
        if self._exit_code is not None or now >= self._deadline:
            return True
        return not self._editor_open and not self._outbox.frames and not self._session.pending.has_open

    def _poll_timeout(self, now: float) -> int | None:
        """Return the milliseconds until the next timer, rounded up; None if there is none."""
        at = min(self._session.next_at(), self._deadline)
        if self._outbox.size < HIGH_WATER_MARK:
            at = min(at, self._link.next_at())
        return None if at == math.inf else max(0, math.ceil((at - now) * 1000))

    def _update_poll(self) -> None:
        """Poll each side for reading only while the other side keeps up (backpressure)."""
        link, waiting = self._link, self._outbox.size
        room, behind = waiting < HIGH_WATER_MARK, link.outbox.size
        wanted: dict[int, int] = {}
        if self._editor_open:
            wanted[self._read_fd] = select.POLLIN if room and behind < HIGH_WATER_MARK else select.POLLRDHUP
        if waiting:
            wanted[self._write_fd] = wanted.get(self._write_fd, 0) | select.POLLOUT
        if (fd := link.fd) is not None:
            events = (select.POLLIN if room else 0) | (select.POLLOUT if behind else 0)
            if events:  # with none, even a hang-up would be reported in a busy loop
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
                self._exit_code = 0  # the editor no longer reads
        elif fd == self._signal_fd:
            self._on_signal(fd)
        elif fd in self._exit_fds:
            self._poll.unregister(fd)
            self._on_editor_closed(now)
        elif link.starter is not None and fd == link.starter.fd:
            link.on_starter_finished(now)

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
        while self._lines.dropped:
            dropped = self._lines.dropped.pop(0)
            reason = f"a message with {dropped.reason} is not accepted"
            self._session.reject(dropped.request_id(), reason)
        for line in lines:
            from_editor(line + b"\n", now)
        if not self._session.connected:
            self._link.hasten_retry(now)

    def _on_editor_closed(self, now: float) -> None:
        """Stop reading, and give open requests SHUTDOWN_GRACE seconds."""
        if self._editor_open and (rest := self._lines.rest()):
            self._handle_lines([rest], now)
        self._editor_open = False
        self._deadline = min(self._deadline, now + SHUTDOWN_GRACE)

    def _on_signal(self, fd: int) -> None:
        with suppress(BlockingIOError):
            self._exit_code = 128 + os.read(fd, 1)[0]

    def _flush(self, now: float) -> None:
        self._link.flush(now)
        if self._outbox.frames:
            try:
                self._outbox.flush(self._write, self._wait_read)
            except OSError:
                self._exit_code = 0

    def _wait_read(self) -> None:
        """Wait until the editor has read everything, but only briefly."""
        end = time.monotonic() + _PROGRESS_TIMEOUT
        unread = array("i", [0])
        while time.monotonic() < end:
            try:
                fcntl.ioctl(self._write_fd, self._count_unread, unread)
            except OSError:
                if self._count_unread == termios.FIONREAD:
                    return  # it is neither a socket nor a pipe
                self._count_unread = termios.FIONREAD
                continue
            if not unread[0]:
                return
            time.sleep(0.0002)

    def _write(self, data: bytes | memoryview) -> int:
        return os.write(self._write_fd, data)


def _cwd() -> str | None:
    try:
        return os.fsencode(os.getcwd()).decode(errors="replace")
    except OSError:
        return None


@contextmanager
def _parent_pidfd(parent: int) -> Iterator[int | None]:
    """Provide a descriptor that becomes readable when the parent exits.

    The end of stdin is not enough, because a child of the editor may hold a copy of the pipe.
    PR_SET_PDEATHSIG follows the *thread* that started this process, not the process.
    """
    fd = None
    with suppress(OSError):
        if parent > 1:
            fd = os.pidfd_open(parent)
            if os.getppid() != parent:  # it exited before: the pid may belong to another process
                os.close(fd)
                fd = os.open(os.devnull, os.O_RDONLY)  # always readable
    try:
        yield fd
    finally:
        if fd is not None:
            os.close(fd)


@contextmanager
def _signal_socket() -> Iterator[int]:
    """Provide a descriptor that delivers the numbers of termination signals."""
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
    """Make a descriptor non-blocking, and restore the flag at the end: other processes may share it."""
    was = os.get_blocking(fd)
    os.set_blocking(fd, False)
    try:
        yield
    finally:
        with suppress(OSError):
            os.set_blocking(fd, was)

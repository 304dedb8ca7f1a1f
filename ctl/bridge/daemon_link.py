"""The connection to the daemon: connect, start a daemon if needed, attach, and reconnect."""

from __future__ import annotations

import math
import os
import socket
from collections.abc import Callable
from typing import NamedTuple

import msgspec

from ctl.bridge.daemon_starter import DaemonStarter
from ctl.bridge.editor_session import EditorSession
from ctl.bridge.error_replies import ErrorObject, parse_error
from ctl.bridge.write_buffer import WriteBuffer
from ctl.daemon.start_lock import STOP_TIMEOUT, SUCCESSOR_TIME, is_being_started
from mcpd.files.paths import UnusablePath
from mcpd.process.instance_lock import find_lock_holder
from mcpd.wire import message as wire
from mcpd.wire.framing import LineSplitter, LineTooLong
from mcpd.wire.message import ABSENT

ATTACH_TIMEOUT = 10.0
"""Seconds for the daemon to accept `mcpd/attach`."""
RETRY_DELAY, MAX_RETRY_DELAY = 0.05, 5.0
"""Seconds until the next attempt; the delay doubles each time. A daemon restarts in a third of a second."""
STABLE_AFTER = 10.0
"""Seconds after which a lost connection resets the delay."""
MIN_ATTEMPT_INTERVAL = 0.25
"""Seconds between two attempts that requests of the editor cause."""
START_RETRY_DELAY, MAX_START_RETRY_DELAY = 1.0, 30.0
"""Seconds after a failed start of the daemon; the delay doubles each time."""
GRACE_AFTER_FAILED_START = 2.0
"""Seconds that requests still wait after a failed start: another process may be starting a daemon."""
STARTING_POLL = 0.1
"""Seconds between attempts while another process starts or restarts the daemon."""
MAX_LINE = 128 * 1024 * 1024
"""Bytes of a line from the daemon, whose own limits are lower."""
READ_SIZE = 64 * 1024
MakeSession = Callable[[Callable[[bytes], None]], EditorSession]
"""Makes a session with what sends its lines to the daemon."""
_ATTACH_ID = b'"mcpctl-bridge-attach"'


class AttachTarget(NamedTuple):
    """What to attach to, and for which client."""

    server: str | None = None
    """None for all servers."""
    profile: str | None = None
    client: str = ""
    pid: int = 0
    """The editor's process."""
    cwd: str | None = None
    surface: str | None = None

    def params(self) -> bytes:
        client: dict[str, object] = {"name": self.client, "pid": self.pid}
        if self.cwd is not None:
            client["cwd"] = self.cwd
        if self.surface is not None:
            client["surface"] = self.surface
        params: dict[str, object] = {"client": client}
        if self.server is not None:
            params["server"] = self.server
        if self.profile is not None:
            params["profile"] = self.profile
        return msgspec.json.encode(params)


class DaemonLink:
    """Keeps at most one connection. Nothing here waits: the loop calls it when there is something to do."""

    def __init__(
        self,
        make_session: MakeSession,
        find_socket: Callable[[], str],
        target: AttachTarget,
        starter: DaemonStarter | None,
        log: Callable[[str], None],
    ) -> None:
        """`find_socket` returns the socket path or raises UnusablePath. No starter: no daemon is started."""
        self.outbox = WriteBuffer()
        """Lines for the daemon; empty while there is no connection."""
        self.session = make_session(self.outbox.put)
        self.starter = starter
        self._find_socket = find_socket
        self._target = target
        self._log = log
        self._socket: socket.socket | None = None
        self._lines = LineSplitter(MAX_LINE)
        self._attached = False
        self._attempt_started = 0.0
        self._failures = 0
        self._next_attempt = 0.0
        self._next_start = 0.0
        self._start_failures = 0
        self._start_error = ""
        """Why the daemon could not be started, which explains more than that no daemon is running."""
        self._last_logged = ""
        self._lost_at = self._last_running = -math.inf
        """When the last connection ended, and when its daemon was last known to be running."""
        self._may_start_early = True
        """Whether to start a daemon without a request from the editor; only when the bridge starts."""

    @property
    def fd(self) -> int | None:
        return None if self._socket is None else self._socket.fileno()

    def next_at(self) -> float:
        """Return when `tick` has something to do."""
        if self._socket is None:
            is_starting = self.starter is not None and self.starter.fd is not None
            return math.inf if is_starting else self._next_attempt
        return math.inf if self.session.connected else self._attempt_started + ATTACH_TIMEOUT

    def tick(self, now: float) -> None:
        """Connect when the next attempt is due; disconnect from a daemon that does not answer."""
        if now < self.next_at():
            return
        if self._socket is None:
            self._connect(now)
        else:
            self.drop_connection("mcpd accepts connections but does not answer (mcpctl daemon restart)", now)

    def hasten_retry(self, now: float) -> None:
        """Connect soon, because the editor sent something."""
        if self._socket is None:
            earliest = max(now, self._attempt_started + MIN_ATTEMPT_INTERVAL)
            self._next_attempt = min(self._next_attempt, earliest)

    def _connect(self, now: float) -> None:
        self._attempt_started = now
        try:
            path = self._find_socket()
        except UnusablePath as problem:
            self._schedule_retry(str(problem), now)
            return
        connection = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        connection.setblocking(False)
        try:
            connection.connect(path)
        except OSError as error:
            connection.close()
            if isinstance(error, (FileNotFoundError, ConnectionRefusedError)):
                self._on_no_listener(path, now)
            elif isinstance(error, BlockingIOError):
                reason = f"mcpd at {path} does not accept connections (mcpctl daemon restart)"
                self._schedule_retry(reason, now)
            else:
                self._schedule_retry(f"cannot connect to {path}: {error.strerror}", now)
            return
        self._attach(connection)

    def _attach(self, connection: socket.socket) -> None:
        self._socket = connection
        self._lines = LineSplitter(MAX_LINE)
        self._attached = False
        self.outbox.put(wire.request(_ATTACH_ID, "mcpd/attach", self._target.params()))

    def _on_no_listener(self, path: str, now: float) -> None:
        """Start a daemon if the bridge has just started or a request waits, and nobody else is starting one.

        Otherwise the user may have stopped the daemon on purpose.
        """
        reason = f"mcpd is not running at {path}"
        if self.starter is None:
            self._schedule_retry(f"{reason} (start it with: mcpctl daemon start)", now)
            return
        may_start = now >= self._next_start and (self._may_start_early or self.session.pending.has_unsent)
        if may_start and self._is_successor_likely(path, now):
            # The starter would wait, too, but one starter per bridge would slow the other process down.
            self.session.down_reason = self._start_error or reason
            self._next_attempt = now + STARTING_POLL
            return
        self._schedule_retry(self._start_error or reason, now)
        if may_start:
            try:
                self.starter.begin(path)
            except OSError as error:
                self._schedule_retry(f"cannot start mcpd: {error.strerror}", now)

    def _is_successor_likely(self, path: str, now: float) -> bool:
        """Return whether another process starts the daemon, or may do so because it has just stopped."""
        if is_being_started(path):
            return True
        if find_lock_holder(path) is not None:  # it is stopping
            if now < self._lost_at + STOP_TIMEOUT:
                self._last_running = now
        elif os.path.lexists(path):  # it was killed: one that stops removes its socket first
            return False
        return now < self._last_running + SUCCESSOR_TIME

    def on_starter_finished(self, now: float) -> None:
        """Connect to the daemon that was started, or report why none was."""
        assert self.starter is not None
        reason = self._start_error = self.starter.outcome()
        if not reason:
            self._start_failures = 0
            self._next_attempt = now
            return
        self._may_start_early = False
        self._next_start = now + min(START_RETRY_DELAY * 2**self._start_failures, MAX_START_RETRY_DELAY)
        self._start_failures += 1
        self._log_once(reason)
        self.session.daemon_unreachable(reason, now + GRACE_AFTER_FAILED_START)

    def on_readable(self, now: float) -> bool:
        """Read and handle what arrived. Return whether there was anything, so that there may be more."""
        assert self._socket is not None
        try:
            portion = self._socket.recv(READ_SIZE)
        except BlockingIOError:
            return False
        except OSError as error:
            self.drop_connection(f"the connection to mcpd broke ({error.strerror})", now)
            return False
        if not portion:
            self.drop_connection("mcpd closed the connection", now)
            return False
        from_daemon = self.session.from_daemon
        try:
            lines = self._lines.feed(portion)
        except LineTooLong:
            self.drop_connection(f"mcpd sent a message longer than {MAX_LINE} bytes", now)
            return False
        for line in lines:
            if self._attached:
                from_daemon(line + b"\n", now)
            elif not self._on_attach_response(line, now):
                return False
        return True

    def flush(self, now: float) -> None:
        if self._socket is not None and self.outbox.frames:
            connection = self._socket
            try:
                self.outbox.flush(connection.send)
            except OSError as error:
                while self._socket is connection and self.on_readable(now):
                    pass  # responses may have arrived before the daemon closed the connection
                self.drop_connection(f"the connection to mcpd broke ({error.strerror})", now)

    def drop_connection(self, reason: str, now: float) -> None:
        """Close the connection, if there is one, and schedule the next attempt."""
        if self._socket is None:
            return
        self._disconnect(reason, now)
        if now - self._attempt_started > STABLE_AFTER:
            self._failures = 0
        self._schedule_retry(reason, now)

    def close(self) -> None:
        """Close the connection permanently; the daemon cancels its open calls."""
        if self._socket is not None:
            self._socket.close()
            self._socket = None
        if self.starter is not None:
            self.starter.stop()

    def _on_attach_response(self, line: bytes, now: float) -> bool:
        """Handle a line that came before the attach response. Return False if the connection was closed."""
        try:
            message = wire.decode_envelope(line)
        except wire.DECODE_ERRORS:
            self._on_attach_refused(ErrorObject(message="the program at mcpd's socket is not mcpd"), now)
            return False
        if message.method:
            return True
        if message.error is not ABSENT:
            error = parse_error(message.error)
            if error.code == wire.METHOD_NOT_FOUND:
                error.message += " (the running mcpd may be older than this mcpctl: mcpctl daemon restart)"
            self._on_attach_refused(error, now)
            return False
        self._attached = True
        self._start_error = ""
        if self._last_logged:
            self._last_logged = ""
            self._log("connected to mcpd")
        self._may_start_early = False
        self.session.on_connected()
        return True

    def _on_attach_refused(self, error: ErrorObject, now: float) -> None:
        """Fail the waiting requests immediately, because a retry will be refused too."""
        self._disconnect(error.message, now)
        self._schedule_retry(error.message, now)
        self._failures = max(self._failures, 5)
        self.session.daemon_unreachable(error, now)

    def _disconnect(self, reason: str, now: float) -> None:
        assert self._socket is not None
        self._socket.close()
        self._socket = None
        self._lost_at = self._last_running = now
        unwritten = list(self.outbox.frames)
        self.outbox.clear()
        self.session.on_disconnected(reason, unwritten, now)

    def _schedule_retry(self, reason: str, now: float) -> None:
        """Back off exponentially, with jitter so that many bridges do not reconnect at the same time."""
        self._log_once(reason)
        self.session.down_reason = reason
        jitter = 0.5 + int.from_bytes(os.urandom(2), "big") / 131072  # `random` takes long to import
        self._next_attempt = now + min(RETRY_DELAY * 2**self._failures, MAX_RETRY_DELAY) * jitter
        self._failures = min(self._failures + 1, 16)

    def _log_once(self, reason: str) -> None:
        if reason != self._last_logged:
            self._last_logged = reason
            self._log(reason)

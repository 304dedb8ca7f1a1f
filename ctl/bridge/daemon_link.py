"""The way to the daemon: found, started when needed, attached, lost, found again."""

from __future__ import annotations

import math
import os
import socket
from collections.abc import Callable
from typing import NamedTuple, Protocol

import msgspec

from ctl.bridge import envelope
from ctl.bridge.editor_session import EditorSession
from ctl.bridge.envelope import ABSENT, Malformed
from ctl.bridge.pipes import LineReader, WriteBuffer
from mcpd.support.paths import UnusablePath

ATTACH_TIMEOUT = 10.0
"""Seconds for a daemon to let a new connection in."""
RETRY_DELAY, MAX_RETRY_DELAY = 0.05, 5.0
"""Seconds until the first new attempt, doubled each time. A daemon takes a third of a second to come back."""
STABLE_AFTER = 10.0
"""A link that lasted so long was a good one: the next attempts begin quickly again."""
MIN_ATTEMPT_INTERVAL = 0.25
"""Between two attempts that the editor's requests cause."""
START_RETRY_DELAY, MAX_START_RETRY_DELAY = 1.0, 30.0
"""Seconds after a daemon could not be started, doubled each time."""
GRACE_AFTER_FAILED_START = 2.0
"""How much longer requests wait after that: somebody else may be starting one."""
MAX_LINE = 128 * 1024 * 1024
"""The daemon's own limits are lower."""
READ_SIZE, LARGE_READ_SIZE = 64 * 1024, 512 * 1024
"""Bytes for one read, and for one in the middle of a long line. Always asking for much costs 15 µs a time:
the C library gives the memory back to the system."""
_ATTACH_ID = b'"mcpctl-bridge-attach"'
_OUTDATED_DAEMON_HINT = "the running mcpd may be older than this mcpctl: mcpctl daemon restart"


class AttachTarget(NamedTuple):
    """What to attach to, and as whom."""

    server: str | None = None
    """None: all servers together."""
    profile: str | None = None
    client: str = ""
    pid: int = 0
    """The editor's."""
    cwd: str | None = None

    def params(self) -> bytes:
        """Of `mcpd/attach`."""
        client: dict[str, object] = {"name": self.client, "pid": self.pid}
        if self.cwd is not None:
            client["cwd"] = self.cwd
        params: dict[str, object] = {"client": client}
        if self.server is not None:
            params["server"] = self.server
        if self.profile is not None:
            params["profile"] = self.profile
        return msgspec.json.encode(params)


class StarterProtocol(Protocol):
    """See `ctl.bridge.daemon_starter.Starter`."""

    @property
    def fd(self) -> int | None: ...
    def begin(self, socket: str, /) -> None: ...
    def outcome(self) -> str: ...
    def stop(self) -> None: ...


class DaemonLink:
    """At most one connection. The loop calls; nothing here waits."""

    def __init__(
        self,
        session: Callable[[Callable[[bytes], None]], EditorSession],
        find_socket: Callable[[], str],
        target: AttachTarget,
        starter: StarterProtocol | None,
        log: Callable[[str], None],
    ) -> None:
        """`path` says where the daemon listens, or raises UnusablePath. No starter: none is started."""
        self.outbox = WriteBuffer()
        """Lines for the daemon: of this connection, or there are none."""
        self.make_session = session(self.outbox.put)
        self.starter = starter
        self._find_socket = find_socket
        self._target = target
        self._log = log
        self._socket: socket.socket | None = None
        self._lines = LineReader(MAX_LINE)
        self._read_size = READ_SIZE
        self._attached = False
        self._attempt_started = 0.0
        """When the last attempt began."""
        self._failures = 0
        self._next_attempt = 0.0
        self._next_start = 0.0
        self._start_failures = 0
        self._start_error = ""
        """Why a daemon could not be started: more to the point than that there is none."""
        self._last_logged = ""
        self._may_start_early = True
        """Whether to start a daemon before the editor asks for anything: only at the beginning."""

    @property
    def fd(self) -> int | None:
        """The connection's descriptor, while there is one."""
        return None if self._socket is None else self._socket.fileno()

    def next_at(self) -> float:
        """When `tick` has something to do."""
        if self._socket is None:
            return (
                math.inf if self.starter is not None and self.starter.fd is not None else self._next_attempt
            )
        return math.inf if self.make_session.connected else self._attempt_started + ATTACH_TIMEOUT

    def tick(self, now: float) -> None:
        """Dial, when it is time; hang up on a daemon that does not answer."""
        if now < self.next_at():
            return
        if self._socket is None:
            self._connect(now)
        else:
            words = "mcpd accepts connections but does not answer (mcpctl daemon restart)"
            self.drop_connection(words, now)

    def hasten_retry(self, now: float) -> None:
        """The editor has asked for something: do not leave it to the next attempt but one."""
        if self._socket is None:
            self._next_attempt = min(
                self._next_attempt, max(now, self._attempt_started + MIN_ATTEMPT_INTERVAL)
            )

    # ── dialling ────────────────────────────────────────────────────────────────────────────────

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
                self._schedule_retry(
                    f"mcpd at {path} does not accept connections (mcpctl daemon restart)", now
                )
            else:
                self._schedule_retry(f"cannot connect to {path}: {error.strerror}", now)
            return
        self._socket = connection
        self._lines = LineReader(MAX_LINE)
        self._attached = False
        self.outbox.put(envelope.request(_ATTACH_ID, "mcpd/attach", self._target.params()))

    def _on_no_listener(self, path: str, now: float) -> None:
        """Nobody listens. Later on a daemon is started only for an editor that waits: the user may have
        stopped it.
        """
        reason = f"no mcpd is running at {path}"
        if self.starter is None:
            self._schedule_retry(f"{reason} (start it with: mcpctl daemon start)", now)
            return
        self._schedule_retry(self._start_error or reason, now)
        if now >= self._next_start and (self._may_start_early or self.make_session.has_unsent_requests):
            try:
                self.starter.begin(path)
            except OSError as error:
                self._schedule_retry(f"cannot start mcpd: {error.strerror}", now)

    def on_starter_finished(self, now: float) -> None:
        """The starter is done."""
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
        self.make_session.daemon_unreachable(reason, now + GRACE_AFTER_FAILED_START)

    # ── the connection ──────────────────────────────────────────────────────────────────────────

    def on_readable(self, now: float) -> None:
        """Take what has come, or notice the end."""
        assert self._socket is not None
        try:
            portion = self._socket.recv(self._read_size)
        except BlockingIOError:
            return
        except OSError as error:
            self.drop_connection(f"the connection to mcpd broke ({error.strerror})", now)
            return
        if not portion:
            self.drop_connection("mcpd closed the connection", now)
            return
        inside = len(portion) == self._read_size and b"\n" not in portion
        self._read_size = LARGE_READ_SIZE if inside else READ_SIZE
        from_daemon = self.make_session.from_daemon
        for line in self._lines.feed(portion):
            if self._attached:
                from_daemon(line, now)
            elif not self._on_attach_response(line, now):
                return
        if self._lines.left_out:
            self.drop_connection(f"mcpd sent a message longer than {MAX_LINE} bytes", now)

    def flush(self, now: float) -> None:
        """Write what the daemon takes."""
        if self._socket is not None and self.outbox.frames:
            try:
                self.outbox.flush(self._socket.send)
            except OSError as error:
                self.drop_connection(f"the connection to mcpd broke ({error.strerror})", now)

    def drop_connection(self, reason: str, now: float) -> None:
        """The connection is of no more use: close it, and tell whom it concerns."""
        if self._socket is None:
            return
        self._disconnect(reason, now)
        if now - self._attempt_started > STABLE_AFTER:
            self._failures = 0
        self._schedule_retry(reason, now)

    def close(self) -> None:
        """At the end. The daemon cancels what was under way."""
        if self._socket is not None:
            self._socket.close()
            self._socket = None
        if self.starter is not None:
            self.starter.stop()

    def _on_attach_response(self, line: bytes, now: float) -> bool:
        """Whether the daemon's first answer is what it should be. Otherwise the connection is closed."""
        try:
            message = envelope.message(line)
        except Malformed:
            self._on_attach_refused(
                envelope.Error(message="what answers there does not speak mcpd's language"), now
            )
            return False
        if message.method:
            return True
        if message.error is not ABSENT:
            error = envelope.error_of(message.error)
            code = envelope.members(error.data).get("code", ABSENT)
            if error.code == envelope.METHOD_NOT_FOUND or bytes(code) == b'"invalid_arguments"':
                error.message = f"{error.message} ({_OUTDATED_DAEMON_HINT})"
            self._on_attach_refused(error, now)
            return False
        self._attached = True
        self._start_error = ""
        if self._last_logged:
            self._last_logged = ""
            self._log("connected to mcpd")
        self._may_start_early = False
        self.make_session.on_connected()
        return True

    def _on_attach_refused(self, error: envelope.Error, now: float) -> None:
        """The daemon is there and will not have us: nothing to wait for."""
        self._disconnect(error.message, now)
        self._schedule_retry(error.message, now)
        self._failures = max(self._failures, 5)
        self.make_session.daemon_unreachable(error, now)

    def _disconnect(self, reason: str, now: float) -> None:
        assert self._socket is not None
        self._socket.close()
        self._socket = None
        unwritten = list(self.outbox.frames)
        self.outbox.clear()
        self.make_session.on_disconnected(reason, unwritten, now)

    def _schedule_retry(self, reason: str, now: float) -> None:
        """This attempt is over. The next one comes later than the last did, and not with everybody else's."""
        self._log_once(reason)
        self.make_session.down_reason = reason
        jitter = 0.5 + int.from_bytes(os.urandom(2), "big") / 131072  # `random` takes long to import
        self._next_attempt = now + min(RETRY_DELAY * 2**self._failures, MAX_RETRY_DELAY) * jitter
        self._failures = min(self._failures + 1, 16)

    def _log_once(self, reason: str) -> None:
        if reason != self._last_logged:
            self._last_logged = reason
            self._log(reason)

"""The way to the daemon: found, started when needed, attached, lost, found again."""

from __future__ import annotations

import math
import os
import socket
from collections.abc import Callable
from typing import NamedTuple, Protocol

import msgspec

from ctl.bridge import envelope
from ctl.bridge.editor_session import Conversation
from ctl.bridge.envelope import ABSENT, Malformed
from ctl.bridge.pipes import Lines, Outbox
from mcpd.support.paths import UnusablePath

ANSWER_WITHIN = 10.0
"""Seconds for a daemon to let a new connection in."""
RETRY, RETRY_AT_MOST = 0.05, 5.0
"""Seconds until the first new attempt, doubled each time. A daemon takes a third of a second to come back."""
STEADY = 10.0
"""A link that lasted so long was a good one: the next attempts begin quickly again."""
NO_SOONER = 0.25
"""Between two attempts that the editor's requests cause."""
START_AGAIN, START_AGAIN_AT_MOST = 1.0, 30.0
"""Seconds after a daemon could not be started, doubled each time."""
LAST_CHANCE = 2.0
"""How much longer requests wait after that: somebody else may be starting one."""
MAX_LINE = 128 * 1024 * 1024
"""The daemon's own limits are lower."""
READ, READ_INSIDE = 64 * 1024, 512 * 1024
"""Bytes for one read, and for one in the middle of a long line. Always asking for much costs 15 µs a time:
the C library gives the memory back to the system."""
_ATTACH = b'"mcpctl-bridge-attach"'
_TOO_OLD = "the running mcpd may be older than this mcpctl: mcpctl daemon restart"


class Aim(NamedTuple):
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


class Starts(Protocol):
    """See `ctl.bridge.daemon_starter.Starter`."""

    @property
    def fd(self) -> int | None: ...
    def begin(self, socket: str, /) -> None: ...
    def outcome(self) -> str: ...
    def stop(self) -> None: ...


class Link:
    """At most one connection. The loop calls; nothing here waits."""

    def __init__(
        self,
        conversation: Callable[[Callable[[bytes], None]], Conversation],
        path: Callable[[], str],
        aim: Aim,
        starter: Starts | None,
        log: Callable[[str], None],
    ) -> None:
        """`path` says where the daemon listens, or raises UnusablePath. No starter: none is started."""
        self.outbox = Outbox()
        """Lines for the daemon: of this connection, or there are none."""
        self.conversation = conversation(self.outbox.put)
        self.starter = starter
        self._path = path
        self._aim = aim
        self._log = log
        self._socket: socket.socket | None = None
        self._lines = Lines(MAX_LINE)
        self._size = READ
        self._attached = False
        self._since = 0.0
        """When the last attempt began."""
        self._failures = 0
        self._retry_at = 0.0
        self._start_at = 0.0
        self._start_failures = 0
        self._no_start = ""
        """Why a daemon could not be started: more to the point than that there is none."""
        self._said = ""
        self._unasked = True
        """Whether to start a daemon before the editor asks for anything: only at the beginning."""

    @property
    def fd(self) -> int | None:
        """The connection's descriptor, while there is one."""
        return None if self._socket is None else self._socket.fileno()

    def next_at(self) -> float:
        """When `tick` has something to do."""
        if self._socket is None:
            return math.inf if self.starter is not None and self.starter.fd is not None else self._retry_at
        return math.inf if self.conversation.up else self._since + ANSWER_WITHIN

    def tick(self, now: float) -> None:
        """Dial, when it is time; hang up on a daemon that does not answer."""
        if now < self.next_at():
            return
        if self._socket is None:
            self._dial(now)
        else:
            words = "mcpd accepts connections but does not answer (mcpctl daemon restart)"
            self.lost(words, now)

    def wanted(self, now: float) -> None:
        """The editor has asked for something: do not leave it to the next attempt but one."""
        if self._socket is None:
            self._retry_at = min(self._retry_at, max(now, self._since + NO_SOONER))

    # ── dialling ────────────────────────────────────────────────────────────────────────────────

    def _dial(self, now: float) -> None:
        self._since = now
        try:
            path = self._path()
        except UnusablePath as problem:
            self._fail(str(problem), now)
            return
        connection = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        connection.setblocking(False)
        try:
            connection.connect(path)
        except OSError as error:
            connection.close()
            if isinstance(error, (FileNotFoundError, ConnectionRefusedError)):
                self._nobody(path, now)
            elif isinstance(error, BlockingIOError):
                self._fail(f"mcpd at {path} does not accept connections (mcpctl daemon restart)", now)
            else:
                self._fail(f"cannot connect to {path}: {error.strerror}", now)
            return
        self._socket = connection
        self._lines = Lines(MAX_LINE)
        self._attached = False
        self.outbox.put(envelope.request(_ATTACH, "mcpd/attach", self._aim.params()))

    def _nobody(self, path: str, now: float) -> None:
        """Nobody listens. Later on a daemon is started only for an editor that waits: the user may have
        stopped it.
        """
        reason = f"no mcpd is running at {path}"
        if self.starter is None:
            self._fail(f"{reason} (start it with: mcpctl daemon start)", now)
            return
        self._fail(self._no_start or reason, now)
        if now >= self._start_at and (self._unasked or self.conversation.waits):
            try:
                self.starter.begin(path)
            except OSError as error:
                self._fail(f"cannot start mcpd: {error.strerror}", now)

    def started(self, now: float) -> None:
        """The starter is done."""
        assert self.starter is not None
        reason = self._no_start = self.starter.outcome()
        if not reason:
            self._start_failures = 0
            self._retry_at = now
            return
        self._unasked = False
        self._start_at = now + min(START_AGAIN * 2**self._start_failures, START_AGAIN_AT_MOST)
        self._start_failures += 1
        self._say(reason)
        self.conversation.cannot_reach(reason, now + LAST_CHANCE)

    # ── the connection ──────────────────────────────────────────────────────────────────────────

    def readable(self, now: float) -> None:
        """Take what has come, or notice the end."""
        assert self._socket is not None
        try:
            portion = self._socket.recv(self._size)
        except BlockingIOError:
            return
        except OSError as error:
            self.lost(f"the connection to mcpd broke ({error.strerror})", now)
            return
        if not portion:
            self.lost("mcpd closed the connection", now)
            return
        inside = len(portion) == self._size and b"\n" not in portion
        self._size = READ_INSIDE if inside else READ
        from_daemon = self.conversation.from_daemon
        for line in self._lines.feed(portion):
            if self._attached:
                from_daemon(line, now)
            elif not self._let_in(line, now):
                return
        if self._lines.left_out:
            self.lost(f"mcpd sent a message longer than {MAX_LINE} bytes", now)

    def flush(self, now: float) -> None:
        """Write what the daemon takes."""
        if self._socket is not None and self.outbox.frames:
            try:
                self.outbox.flush(self._socket.send)
            except OSError as error:
                self.lost(f"the connection to mcpd broke ({error.strerror})", now)

    def lost(self, reason: str, now: float) -> None:
        """The connection is of no more use: close it, and tell whom it concerns."""
        if self._socket is None:
            return
        self._hang_up(reason, now)
        if now - self._since > STEADY:
            self._failures = 0
        self._fail(reason, now)

    def close(self) -> None:
        """At the end. The daemon cancels what was under way."""
        if self._socket is not None:
            self._socket.close()
            self._socket = None
        if self.starter is not None:
            self.starter.stop()

    def _let_in(self, line: bytes, now: float) -> bool:
        """Whether the daemon's first answer is what it should be. Otherwise the connection is closed."""
        try:
            message = envelope.message(line)
        except Malformed:
            self._refused(envelope.Error(message="what answers there does not speak mcpd's language"), now)
            return False
        if message.method:
            return True
        if message.error is not ABSENT:
            error = envelope.error_of(message.error)
            code = envelope.members(error.data).get("code", ABSENT)
            if error.code == envelope.METHOD_NOT_FOUND or bytes(code) == b'"invalid_arguments"':
                error.message = f"{error.message} ({_TOO_OLD})"
            self._refused(error, now)
            return False
        self._attached = True
        self._no_start = ""
        if self._said:
            self._said = ""
            self._log("connected to mcpd")
        self._unasked = False
        self.conversation.link_up()
        return True

    def _refused(self, error: envelope.Error, now: float) -> None:
        """The daemon is there and will not have us: nothing to wait for."""
        self._hang_up(error.message, now)
        self._fail(error.message, now)
        self._failures = max(self._failures, 5)
        self.conversation.cannot_reach(error, now)

    def _hang_up(self, reason: str, now: float) -> None:
        assert self._socket is not None
        self._socket.close()
        self._socket = None
        unwritten = list(self.outbox.frames)
        self.outbox.clear()
        self.conversation.link_lost(reason, unwritten, now)

    def _fail(self, reason: str, now: float) -> None:
        """This attempt is over. The next one comes later than the last did, and not with everybody else's."""
        self._say(reason)
        self.conversation.why_down = reason
        jitter = 0.5 + int.from_bytes(os.urandom(2), "big") / 131072  # `random` takes long to import
        self._retry_at = now + min(RETRY * 2**self._failures, RETRY_AT_MOST) * jitter
        self._failures = min(self._failures + 1, 16)

    def _say(self, reason: str) -> None:
        if reason != self._said:
            self._said = reason
            self._log(reason)

"""The bridge's connection to the daemon of another machine, with the same rules as to the one here."""

from __future__ import annotations

from collections.abc import Callable

import msgspec

from ctl.bridge.daemon_link import AttachTarget, DaemonLink, MakeSession
from ctl.bridge.error_replies import ErrorObject
from ctl.cli.errors import CtlError, DaemonUnreachable
from ctl.daemon.ssh import CONNECT_TIMEOUT, RelayMissing, SshProcess, read_hello
from mcpd.wire import message as wire

IDLE_RETRY_DELAY = 60.0
"""Seconds between attempts while no request waits, when the machine may be switched off."""
_PATIENT_ATTEMPTS = 8
"""Attempts in a row that fail before this delay is used."""


class SshLink(DaemonLink):
    """Each attempt starts an ssh, whose relay starts the daemon if a request waits."""

    def __init__(
        self,
        make_session: MakeSession,
        target: AttachTarget,
        log: Callable[[str], None],
        host: str,
        socket_option: str,
        *,
        may_start: bool,
    ) -> None:
        super().__init__(make_session, lambda: socket_option, target, None, log)
        self._host = host
        self._may_start = may_start
        self._ssh: SshProcess | None = None
        self._is_final = False
        """Whether another attempt could not do more than this one: it starts the daemon if it may."""
        self._fruitless = 0
        """Attempts in a row that have not reached the daemon."""

    def next_at(self) -> float:
        return super().next_at() + (0.0 if self._socket is None else CONNECT_TIMEOUT)

    def _connect(self, now: float) -> None:
        self._attempt_started = now
        # Otherwise the user of the other machine may have stopped the daemon on purpose.
        starts = self._may_start and (self._may_start_early or self.session.pending.has_unsent)
        self._is_final = starts or not self._may_start
        try:
            self._ssh = SshProcess(self._host, self._find_socket(), may_start=starts, asks=False)
        except DaemonUnreachable as error:
            self._schedule_retry(error.message, now)
            return
        self._ssh.stream.setblocking(False)
        self._attach(self._ssh.stream)

    def _on_attach_response(self, line: bytes, now: float) -> bool:
        assert self._ssh is not None
        if self._ssh.is_greeted:
            return super()._on_attach_response(line, now)
        if (hello := read_hello(line, self._host)) is None:
            return True
        self._ssh.is_greeted = True
        if hello.error is not None:
            if self._is_final:
                self._refuse(hello.error, now)
            else:
                self._drop(hello.error.message, now)
            return False
        self._fruitless = 0
        if difference := hello.difference(self._host):
            self._log(difference)
        return True

    def drop_connection(self, reason: str, now: float) -> None:
        if self._socket is None or self._ssh is None:
            return
        error = self._ssh.failure()
        if isinstance(error, RelayMissing):
            self._refuse(error, now)
        else:
            self._drop(reason if error is None else error.message, now)

    def _drop(self, reason: str, now: float) -> None:
        super().drop_connection(reason, now)
        if self._ssh is not None and self._ssh.is_greeted and self.session.pending.has_unsent:
            self.hasten_retry(now)

    def _refuse(self, error: CtlError, now: float) -> None:
        """Fail the waiting requests immediately."""
        message = f"{error.message} ({error.hint})" if error.hint else error.message
        facts = msgspec.json.encode({"code": error.code, "exit": error.exit})
        self._on_attach_refused(ErrorObject(wire.SERVER_ERROR, message, msgspec.Raw(facts)), now)

    def _schedule_retry(self, reason: str, now: float) -> None:
        super()._schedule_retry(reason, now)
        self._fruitless += 1
        if self._fruitless > _PATIENT_ATTEMPTS and not self.session.pending.has_unsent:
            self._next_attempt = now + IDLE_RETRY_DELAY

"""The connection to the mcpd of another machine: an `ssh` process here, and `mcpctl _relay` there.

Keys, agents, jump hosts and all else about the way to the machine are the business of ssh and its
configuration. The relay starts mcpd there if it is not running, says hello, and then passes bytes on.
"""

from __future__ import annotations

import fcntl
import json
import os
import re
import shlex
import socket
import subprocess
import sys
import time
from typing import NamedTuple

from ctl.cli.errors import CtlError, DaemonError, DaemonUnreachable, TimedOut, UsageError
from ctl.cli.json_text import mapping
from ctl.daemon.client import DaemonClient, with_effect
from mcpd import __version__
from mcpd.model.text import shorten

HELLO = "mcpd/relay"
"""The method of the relay's first line, a notification. What a login script prints before it is ignored."""
CONNECT_TIMEOUT = 60.0
"""Seconds to reach the other machine and start mcpd there; a person may have to type a passphrase."""
_EXIT_TIMEOUT = 0.5
"""Seconds that ssh has to exit after it closed its output."""
_MAX_ERRORS = 16 * 1024
_MAX_GREETING = 1 << 20
"""Bytes before the relay's hello: what a login shell prints."""
"""Bytes that are kept of what ssh and the other machine write to stderr."""
_OPTIONS = (
    "-T",
    "-a",  # mcpd would keep the agent of the first client that starts it
    "-x",
    # A connection that is dead is noticed in 15 s, so that the next one can be made.
    "-oConnectTimeout=10",
    "-oServerAliveInterval=5",
    "-oServerAliveCountMax=2",
    # These belong to a person's own sessions; scp switches them off, too.
    "-oClearAllForwardings=yes",
    "-oRemoteCommand=none",
)
_PATH = "$PATH:$HOME/.local/bin:/usr/local/bin"
"""Where mcpctl is looked for: a shell that runs one command often lacks ~/.local/bin, as of uv and pipx."""
_HOST = re.compile(r"(?!-)[\w.@:/%+\[\]~-]+")
_NOT_FOUND, _USAGE = 127, 2


def checked_host(host: str) -> str:
    """Return a host as ssh takes it: a name, an address, USER@HOST or ssh://URI. Raises UsageError."""
    if _HOST.fullmatch(host):
        return host
    raise UsageError(f"{host!r} is not a host", hint="write HOST, USER@HOST or ssh://URI, as for ssh")


class Hello(NamedTuple):
    """What the relay says first."""

    version: str
    """The version of mcpctl there."""
    error: DaemonUnreachable | None
    """Why it has no connection to mcpd."""

    def difference(self, host: str) -> str:
        """Return a remark on another version than this one; empty if it is the same."""
        if self.version == __version__:
            return ""
        return f"{host} has mcpd {self.version}, and this is {__version__}: update the older one"


def read_hello(line: str | bytes, host: str) -> Hello | None:
    """Return what the relay said; None for any other line."""
    try:
        message = mapping(json.loads(line))
    except (ValueError, RecursionError):
        return None
    if message.get("method") != HELLO:
        return None
    params = mapping(message.get("params"))
    error = mapping(params.get("error"))
    found = None
    if error:
        said = DaemonError(error)
        found = DaemonUnreachable(f"{host}: {said.message}", hint=said.hint, **said.details)
        found.code, found.exit = said.code, said.exit
    return Hello(shorten(str(params.get("version")), 40), found)


class SshProcess:
    """An ssh that connects `stream` to the relay. It exits when `stream` is closed.

    `asks`: it may ask for a passphrase or show a message on the terminal.
    """

    def __init__(self, host: str, socket_option: str, *, may_start: bool, asks: bool) -> None:
        """Start ssh, or raise DaemonUnreachable. `socket_option` is a path there; empty for the default."""
        self._host = host
        self.is_greeted = False
        """Set this when the relay has said hello."""
        self._errors = None if asks else open(_make_file(), "rb", 0)  # noqa: SIM115 # until this object goes
        self.stream, theirs = socket.socketpair()
        try:
            self._process = subprocess.Popen(
                _command(host, socket_option, may_start=may_start, asks=asks),
                stdin=theirs.fileno(),
                stdout=theirs.fileno(),
                stderr=self._errors and self._errors.fileno(),
                start_new_session=not asks,
            )
        except OSError as error:
            self.stream.close()
            message = f"cannot run ssh: {error.strerror}"
            raise DaemonUnreachable(message, hint="install the client of OpenSSH") from None
        finally:
            theirs.close()

    def failure(self) -> DaemonUnreachable | None:
        """Return why ssh ended; None if it still runs. Ends one that has not reached the relay."""
        host = self._host
        try:
            status = self._process.wait(_EXIT_TIMEOUT)
        except subprocess.TimeoutExpired:
            if not self.is_greeted:
                self._process.kill()
            return None
        said = self._last_error()
        if self.is_greeted and status == 0:
            return DaemonUnreachable(f"mcpd on {host} closed the connection")
        if self.is_greeted:
            return DaemonUnreachable(f"the ssh connection to {host} broke ({said})")
        if status == _NOT_FOUND:
            hint = f"install mcpd on {host}, and put mcpctl, or a link to it, into ~/.local/bin there"
            return RelayMissing(f"mcpctl was not found on {host}", hint=hint)
        if status == _USAGE:
            return RelayMissing(f"mcpctl on {host} is too old for --host", hint=f"update mcpd on {host}")
        return DaemonUnreachable(f"cannot connect to {host} with ssh: {said}", hint=f"try: ssh {host}")

    def _last_error(self) -> str:
        text = b"" if self._errors is None else os.pread(self._errors.fileno(), _MAX_ERRORS, 0)
        lines = text.rstrip(b"\0").decode(errors="replace").split("\n")
        last = next((line.strip() for line in reversed(lines) if line.strip()), "")
        return shorten(last, 300) if last else f"it exited with status {self._process.returncode}"


def _command(host: str, socket_option: str, *, may_start: bool, asks: bool) -> list[str]:
    options = ["--socket", socket_option] if socket_option else []
    options += [] if may_start else ["--no-start"]
    there = f'PATH="{_PATH}"; export PATH; exec mcpctl {shlex.join(options)} _relay'
    silent = () if asks else ("-oBatchMode=yes",)
    # In a shell of its own, because the login shell may be of another kind.
    return ["ssh", *_OPTIONS, *silent, "--", host, f"sh -c {shlex.quote(there)}"]


def _make_file() -> int:
    """Return a file in memory that cannot grow, so that ssh never waits for it as for a full pipe."""
    fd = os.memfd_create("ssh", os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING)
    os.ftruncate(fd, _MAX_ERRORS)
    fcntl.fcntl(fd, fcntl.F_ADD_SEALS, fcntl.F_SEAL_GROW)
    return fd


class RelayMissing(DaemonUnreachable):
    """The other machine was reached, but has no relay: another attempt does not help."""


class RemoteClient(DaemonClient):
    """A client of the mcpd on another machine. Raises DaemonUnreachable, or why mcpd does not run there."""

    def __init__(self, host: str, socket_option: str, *, may_start: bool) -> None:
        self.host = host
        self._ssh = SshProcess(host, socket_option, may_start=may_start, asks=sys.stderr.isatty())
        super().__init__(f"mcpd on {host}", self._ssh.stream)
        end = time.monotonic() + CONNECT_TIMEOUT
        self._longest = _MAX_GREETING
        try:
            while (hello := read_hello(self._read_line(end, HELLO), host)) is None:
                pass
            if hello.error is not None:
                raise hello.error
        except CtlError as error:
            self.close()
            if isinstance(error, TimedOut):
                self._ssh.failure()  # ends it
                raise DaemonUnreachable(f"{host} did not answer within {CONNECT_TIMEOUT:.0f} s") from None
            raise
        self._ssh.is_greeted, self._longest = True, float("inf")
        self.difference = hello.difference(host)
        """A remark if the other machine has another version."""

    def _closed(self, error: OSError | None, method: str, *, sent: bool) -> CtlError:
        found = self._ssh.failure() or DaemonUnreachable(f"the connection to {self.host} was closed")
        return with_effect(found, method, sent=sent)


def hello_line(error: CtlError | None) -> bytes:
    """Return the line that `mcpctl _relay` writes first."""
    params: dict[str, object] = {"version": __version__}
    if error is not None:
        facts = {"code": error.code, "exit": error.exit, **error.details, "fix": error.hint}
        params["error"] = {"message": error.message, "data": facts}
    return json.dumps({"jsonrpc": "2.0", "method": HELLO, "params": params}).encode() + b"\n"

"""Starts the daemon in a separate process, because `ctl.daemon.process` blocks and the poll loop must not.

That process runs the currently installed version: a bridge lives for days and may be older than the daemon
that it starts. Run as: python -P -m ctl.bridge.daemon_starter SOCKET
"""

from __future__ import annotations

import os
import signal
import sys
from contextlib import suppress

from ctl.cli.errors import CtlError

_MAX_REASON = 4096
_START_FAILED = "the attempt to start mcpd failed"


class DaemonStarter:
    """Makes one attempt at a time. `fd` becomes readable when the attempt ends; None if there is none."""

    def __init__(self) -> None:
        self.fd: int | None = None
        self._pid = 0

    def begin(self, socket: str) -> None:
        """Start an attempt. Raises OSError if the system cannot create a process."""
        self.fd, write_end = os.pipe()
        try:
            self._pid = os.fork()
        except OSError:
            os.close(write_end)
            os.close(self.fd)
            self.fd = None
            raise
        if self._pid == 0:
            _exec_starter(socket, write_end)
        os.close(write_end)

    def outcome(self) -> str:
        """Return why the daemon was not started, or an empty string. Call it once `fd` is readable."""
        assert self.fd is not None
        reason = b""
        while len(reason) < _MAX_REASON and (more := os.read(self.fd, _MAX_REASON)):
            reason += more
        status = self._reap()
        if not reason and status:
            return f"{_START_FAILED} (status {status}); check that mcpctl is still installed"
        return reason.decode(errors="replace")

    def stop(self) -> None:
        """End the attempt. A daemon that has been started keeps running."""
        if self.fd is not None:
            with suppress(ProcessLookupError):
                os.kill(self._pid, signal.SIGKILL)
            self._reap()

    def _reap(self) -> int:
        """Close the pipe and return the exit status of the process."""
        assert self.fd is not None
        os.close(self.fd)
        self.fd = None
        try:
            return os.waitstatus_to_exitcode(os.waitpid(self._pid, 0)[1])
        except ChildProcessError:
            return 0


def _exec_starter(socket: str, write_end: int) -> None:
    """Replace the child process with the starter. Never returns."""
    try:
        signal.set_wakeup_fd(-1)
        for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
            signal.signal(number, signal.SIG_DFL)
        # The editor may wait for its pipes to close, and its stdout must carry nothing but MCP.
        os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
        os.dup2(write_end, 1)
        # -P: do not import modules from the editor's working directory.
        argv = [sys.executable, "-P", "-m", "ctl.bridge.daemon_starter", socket]
        os.execv(argv[0], argv)  # noqa: S606 - no shell needed
    except BaseException as error:  # this process must exit here, with a reason
        with suppress(BaseException):
            os.write(write_end, f"{_START_FAILED}: {error!r}".encode(errors="replace")[:_MAX_REASON])
    finally:
        os._exit(1)


def main(socket: str) -> int:
    """Start the daemon, or print why that failed. Return the exit code."""
    try:
        from ctl.daemon.process import ensure_daemon

        # An editor that was started from the desktop lacks directories such as ~/.local/bin.
        ensure_daemon(socket, with_login_path=True)
    except CtlError as error:
        print(f"{error.message} ({error.hint})" if error.hint else error.message)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1]))

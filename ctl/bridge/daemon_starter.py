"""Starting the daemon beside the loop: `ctl.autostart` waits, so a process of its own does it for us.

That process is a new Python, and begins with what is installed by then: an editor's bridge lives for days,
and may be older than the daemon it starts. Run as: python -P -m ctl.bridge.daemon_starter SOCKET
"""

from __future__ import annotations

import os
import signal
import sys
from contextlib import suppress

from ctl.errors import CtlError

_MAX_REASON = 4096
_START_FAILED = "the attempt to start mcpd failed"


class DaemonStarter:
    """One attempt at a time. `fd` becomes readable when it is over; None while there is none."""

    def __init__(self) -> None:
        self.fd: int | None = None
        self._pid = 0

    def begin(self, socket: str) -> None:
        """Raises OSError when the system has no room for another process."""
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
        """Once `fd` is readable: why there is no daemon; empty when there is one."""
        assert self.fd is not None
        reason = b""
        while len(reason) < _MAX_REASON and (more := os.read(self.fd, _MAX_REASON)):
            reason += more
        status = self._reap()
        if not reason and status:
            return f"{_START_FAILED} (status {status}): is mcpctl installed as it was when this began?"
        return reason.decode(errors="replace")

    def stop(self) -> None:
        """Give up waiting. A daemon that has been started stays."""
        if self.fd is not None:
            with suppress(ProcessLookupError):
                os.kill(self._pid, signal.SIGKILL)
            self._reap()

    def _reap(self) -> int:
        """Close up; the process's exit status."""
        assert self.fd is not None
        os.close(self.fd)
        self.fd = None
        try:
            return os.waitstatus_to_exitcode(os.waitpid(self._pid, 0)[1])
        except ChildProcessError:
            return 0


def _exec_starter(socket: str, write_end: int) -> None:
    """In the new process. Never returns."""
    try:
        signal.set_wakeup_fd(-1)
        for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
            signal.signal(number, signal.SIG_DFL)
        # The editor waits for the end of its pipes; and nothing but MCP goes to its stdout.
        os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
        os.dup2(write_end, 1)
        # -P: whatever lies in the editor's directory is no module of ours.
        argv = [sys.executable, "-P", "-m", "ctl.bridge.daemon_starter", socket]
        os.execv(argv[0], argv)  # noqa: S606 - a shell would be one more to trust
    except BaseException as error:  # whatever it is, this process ends here, and says why
        with suppress(BaseException):
            os.write(write_end, f"{_START_FAILED}: {error!r}".encode(errors="replace")[:_MAX_REASON])
    finally:
        os._exit(1)


def main(socket: str) -> int:
    """Start the daemon; on stdout the reason why it could not be."""
    try:
        from ctl.autostart import ensure_daemon

        ensure_daemon(socket)
    except CtlError as error:
        print(f"{error.message} ({error.hint})" if error.hint else error.message)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1]))

"""Starting the daemon beside the loop: `ctl.autostart` waits, so a forked process does it for us."""

from __future__ import annotations

import os
import signal
import sys
from contextlib import suppress

from ctl.errors import CtlError

_MAX_REASON = 4096


class Starter:
    """One attempt at a time. `fd` becomes readable when it is over; None while there is none."""

    def __init__(self) -> None:
        self.fd: int | None = None
        self._pid = 0

    def begin(self, socket: str) -> None:
        """Raises OSError when the system has no room for another process."""
        self.fd, told = os.pipe()
        try:
            self._pid = os.fork()
        except OSError:
            os.close(told)
            os.close(self.fd)
            self.fd = None
            raise
        if self._pid == 0:
            _start(socket, told)
        os.close(told)

    def outcome(self) -> str:
        """Once `fd` is readable: why there is no daemon; empty when there is one."""
        assert self.fd is not None
        reason = b""
        while len(reason) < _MAX_REASON and (more := os.read(self.fd, _MAX_REASON)):
            reason += more
        self._over()
        return reason.decode(errors="replace")

    def stop(self) -> None:
        """Give up waiting. A daemon that has been started stays."""
        if self.fd is not None:
            with suppress(ProcessLookupError):
                os.kill(self._pid, signal.SIGKILL)
            self._over()

    def _over(self) -> None:
        assert self.fd is not None
        os.close(self.fd)
        self.fd = None
        with suppress(ChildProcessError):
            os.waitpid(self._pid, 0)


def _start(socket: str, told: int) -> None:
    """In the new process. Never returns."""
    reason = "the attempt to start mcpd ended in an error of mcpctl's own"
    try:
        signal.set_wakeup_fd(-1)
        for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
            signal.signal(number, signal.SIG_DFL)
        # The editor waits for the end of these; and nothing but MCP goes to its stdout.
        os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
        os.dup2(2, 1)
        from ctl.autostart import ensure_daemon

        ensure_daemon(socket)
        reason = ""
    except CtlError as error:
        reason = f"{error.message} ({error.hint})" if error.hint else error.message
    except BaseException as error:  # whatever it is, this process ends here, and says why
        reason = f"{reason}: {error!r}"
    finally:
        with suppress(BaseException):
            os.write(told, reason.encode(errors="replace")[:_MAX_REASON])
            sys.stderr.flush()
        os._exit(0)

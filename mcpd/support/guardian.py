"""Our side of the guardian: the process that ends our children when we cannot any more (SIGKILL, a crash).

A parent-death signal would be the shorter way, and a wrong one: it follows the *thread* that forked, and
trio forks in worker threads that end when they have been idle, so healthy children would be killed.
"""

from __future__ import annotations

import logging
import os
import subprocess
import sys
from contextlib import suppress

import trio

_SCRIPT = os.path.join(os.path.dirname(os.path.abspath(__file__)), "guardian_process.py")
with open(_SCRIPT, encoding="utf-8") as _file:
    _SOURCE = _file.read()
_STOP_TIMEOUT = 1.0
"""How long a guardian that was dismissed may take before it is killed."""
_RESTART_DELAYS = (0.0, 0.1, 0.5)
"""Before each attempt to replace a guardian; the last one repeats."""
_FORWARDED_VARIABLES = ("LD_LIBRARY_PATH", "DYLD_LIBRARY_PATH")
"""All of our environment that an interpreter may need to start; the rest may hold secrets."""

_log = logging.getLogger(__name__)


class Guardian:
    """Keeps one guardian process alive and informed. `run` owns the process; the rest never blocks.

    The groups registered when the process dies, whoever killed it, are registered with its successor
    within a second.
    """

    def __init__(self, instance: str) -> None:
        self._instance = instance
        self._groups: set[int] = set()
        self._process: trio.Process | None = None

    @property
    def pid(self) -> int | None:
        """The guardian's process, which `run` waits for; None in the moments without one."""
        return None if self._process is None else self._process.pid

    def guard(self, pgid: int) -> None:
        """From now on, end this process group if we die. Never blocks, never raises."""
        self._groups.add(pgid)
        self._send(b"+%d\n" % pgid)

    def release(self, pgid: int) -> None:
        """The group is gone; its number may be somebody else's from now on. Never blocks, never raises."""
        self._groups.discard(pgid)
        self._send(b"-%d\n" % pgid)

    async def run(self, *, task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED) -> None:
        """Keep a guardian until cancelled; started once the first is there (OSError if it cannot be).

        Cancel it last: groups still registered then are ended by the guardian on its way out.
        """
        process = await self._start()
        task_status.started()
        while True:
            try:
                self._process = process
                self._send(b"".join(b"+%d\n" % group for group in self._groups))
                await process.wait()
            finally:
                self._process = None
                await _stop(process)
            _log.warning("the guardian process %d ended (%s); replacing it", process.pid, process.returncode)
            process = await self._restart()

    async def _start(self) -> trio.Process:
        return await trio.lowlevel.open_process(
            [sys.executable, "-I", "-S", *_script_arguments(), self._instance],
            stdin=subprocess.PIPE,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            env={name: os.environ[name] for name in _FORWARDED_VARIABLES if name in os.environ},
            cwd="/",
            start_new_session=True,  # so that what is sent to our group, such as Ctrl-C, does not reach it
        )

    async def _restart(self) -> trio.Process:
        attempt = 0
        while True:
            await trio.sleep(_RESTART_DELAYS[min(attempt, len(_RESTART_DELAYS) - 1)])
            attempt += 1
            try:
                return await self._start()
            except OSError as error:  # no process or descriptor left: there may be one in a moment
                if attempt == 1:
                    _log.error("cannot start a guardian process (%s); trying on", error)

    def _send(self, data: bytes) -> None:
        process = self._process
        if process is None or process.stdin is None or not data:
            return  # its successor will be told everything
        try:
            written = os.write(process.stdin.fileno(), data)  # type: ignore[attr-defined]
        except BlockingIOError:
            written = 0
        except OSError:
            return  # it has just died, or we are closing it; `run` sees to it
        if written < len(data):  # it does not read, so it is of no use: a stopped process takes SIGKILL
            process.kill()


def _script_arguments() -> list[str]:
    """The script; once another has been installed in its place, what it said when we were started."""
    try:
        with open(_SCRIPT, encoding="utf-8") as file:
            replaced = file.read() != _SOURCE
    except (OSError, UnicodeDecodeError):
        replaced = True
    return ["-c", _SOURCE] if replaced else [_SCRIPT]


async def _stop(process: trio.Process) -> None:
    """Say goodbye, so that it goes without ending anything but what is still registered; and reap it.

    The pipe is closed last: one that is closed without a goodbye means that the daemon has died.
    """
    assert process.stdin is not None
    with trio.move_on_after(_STOP_TIMEOUT, shield=True):
        if process.returncode is None:
            with suppress(trio.BrokenResourceError, trio.ClosedResourceError):
                await process.stdin.send_all(b".\n")
        await process.wait()
    if process.returncode is None:
        process.kill()
    with trio.CancelScope(shield=True):  # bounded, for SIGKILL is certain
        await process.wait()
        await process.stdin.aclose()

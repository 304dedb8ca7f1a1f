"""Runs the guardian: a process that kills the daemon's children if the daemon is killed or crashes.

A parent-death signal (PR_SET_PDEATHSIG) does not work here: it is sent when the *thread* that forked exits,
and trio forks in worker threads that exit when idle.
"""

from __future__ import annotations

import logging
import os
import subprocess
import sys
from contextlib import suppress

import msgspec
import trio

from mcpd.process.labels import are_supported, guardian_label, labels_of, start_process
from mcpd.process.replacement import AdoptedProcess, exit_if_replaceable

_FILE = os.path.join(os.path.dirname(os.path.abspath(__file__)), "guardian_process.py")
with open(_FILE, encoding="utf-8") as _file:
    _KILL_PROGRAM = _file.read()
"""Read now, because an upgrade may replace the file before it is needed."""
_WAIT_PROGRAM = """\
trap '' 1 2 3 4 5 6 7 8 10 11 12 13 14 15
groups=' '
while read -r line; do
    case $line in
        +*[!0-9]* | + | +0 | +1) ;;
        +*) groups="$groups${line#+} " ;;
        -*) case $groups in *" ${line#-} "*)
            groups="${groups%%" ${line#-} "*} ${groups#*" ${line#-} "}"
        esac ;;
        .) [ "$groups" = ' ' ] && exit 0; break ;;
    esac
done
for group in $groups; do kill -TERM "-$group"; done
[ -z "$5" ] || for script in "$5"/*/end.sh; do
    [ -f "$script" ] && timeout 10 sh "$script" &
done
wait
[ -x "$1" ] && exec "$1" -I -S -c 'import os; exec(os.environ["MCPD_GUARDIAN_KILL"])' "$2" "$3" "$4" $groups
sleep 0.2
for group in $groups; do kill -KILL "-$group"; done
"""
"""Waits for the end of the daemon in a shell, because an idle Python takes 3.5 MB and a shell 0.3.

It ignores the signals that usually end a process, and keeps the groups of the lines `+PGID` and `-PGID`. At
the end of its input the daemon has died, and after `.` it stops in order. Then the shell becomes the program
that kills the groups; if Python has been uninstalled, it kills them itself. Containers end first, as an
engine needs its processes for that (`containers.py`).
"""
_PROGRAMS = {"MCPD_GUARDIAN_WAIT": _WAIT_PROGRAM, "MCPD_GUARDIAN_KILL": _KILL_PROGRAM}
"""Passed in the environment, because `ps` shows arguments."""
_STOP_TIMEOUT = 1.0
"""Seconds that the guardian may take to exit before it is killed."""
_RESTART_DELAY = 0.1
"""Seconds before each attempt to replace the guardian."""
_FORWARDED_VARIABLES = ("LD_LIBRARY_PATH", "DYLD_LIBRARY_PATH")
"""The variables that an interpreter may need to start. The others may contain secrets."""

_log = logging.getLogger(__name__)


class GuardianState(msgspec.Struct):
    """A running guardian, for the next version of the daemon."""

    pid: int
    stdin: int
    groups: list[int]


class Guardian:
    """Keeps one guardian process running and informed. `run` owns the process; other methods never block.

    If the process dies, its successor knows all registered groups within a second.
    """

    def __init__(self, instance: str, containers: str = "", running: GuardianState | None = None) -> None:
        """`containers`: the directory for what tracks containers of this instance. `running`: the process of
        the version before this one."""
        self._instance = instance
        self._containers = containers
        self._running = running
        self._groups: set[int] = set() if running is None else set(running.groups)
        self._process: trio.Process | AdoptedProcess | None = None

    @property
    def pid(self) -> int | None:
        """The process id of the guardian; None while it is being replaced."""
        return None if self._process is None else self._process.pid

    def state(self) -> GuardianState | None:
        """Return what the next version needs to go on with the process; None while that is replaced."""
        if self._process is None or self._process.stdin is None:
            return None
        return GuardianState(self._process.pid, _fileno(self._process), sorted(self._groups))

    def guard(self, pgid: int) -> None:
        """End this process group if the daemon dies. Never blocks, never raises."""
        self._groups.add(pgid)
        self._send(b"+%d\n" % pgid)

    def release(self, pgid: int) -> None:
        """Forget a group that has ended, since its number can be reused. Never blocks, never raises."""
        self._groups.discard(pgid)
        self._send(b"-%d\n" % pgid)

    async def run(self, *, task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED) -> None:
        """Keep a guardian running until cancelled. Raises OSError if the first one cannot be started.

        Cancel this last: when the guardian exits, it ends the groups that are still registered.
        """
        process: trio.Process | AdoptedProcess
        process = await self._start() if self._running is None else _adopt(self._running)
        task_status.started()
        while True:
            try:
                self._process = process
                if isinstance(process, trio.Process):  # another one knows them already
                    self._send(b"".join(b"+%d\n" % group for group in self._groups))
                await process.wait()
            finally:
                exit_if_replaceable()
                self._process = None
                await _stop(process)
            _log.warning("the guardian process %d ended (%s); replacing it", process.pid, process.returncode)
            process = await self._restart()

    async def _start(self) -> trio.Process:
        labels = labels_of(self._instance) if are_supported() else range(0)
        return await start_process(
            [
                *("/bin/sh", "-c", 'eval "$MCPD_GUARDIAN_WAIT"', "mcpd-guardian", sys.executable),
                *(self._instance, str(labels.start), str(labels.stop), self._containers),
            ],
            guardian_label(self._instance),
            stdin=subprocess.PIPE,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            env={name: os.environ[name] for name in _FORWARDED_VARIABLES if name in os.environ} | _PROGRAMS,
            cwd="/",
            start_new_session=True,  # so that signals to the daemon's group, such as Ctrl-C, do not reach it
        )

    async def _restart(self) -> trio.Process:
        problem: OSError | None = None
        while True:
            await trio.sleep(_RESTART_DELAY)
            try:
                return await self._start()
            except OSError as error:  # out of processes or descriptors, perhaps only for a moment
                if problem is None:
                    _log.error("cannot start a guardian process (%s); retrying", error)
                problem = error

    def _send(self, data: bytes) -> None:
        process = self._process
        if process is None or process.stdin is None or not data:
            return  # its successor gets all groups
        try:
            written = os.write(_fileno(process), data)
        except BlockingIOError:
            written = 0
        except OSError:
            return  # it has died or is being stopped; `run` handles that
        if written < len(data):  # it does not read, so replace it; SIGKILL also ends a stopped process
            process.kill()


def _adopt(running: GuardianState) -> AdoptedProcess:
    return AdoptedProcess(running.pid, trio.lowlevel.FdStream(running.stdin))


def _fileno(process: trio.Process | AdoptedProcess) -> int:
    assert isinstance(process.stdin, trio.lowlevel.FdStream)
    return process.stdin.fileno()


async def _stop(process: trio.Process | AdoptedProcess) -> None:
    """Stop the guardian in order, so that it ends only the groups that are still registered, and reap it.

    The pipe is closed last: if it is closed without a stop command, the daemon has died.
    """
    assert process.stdin is not None
    with trio.move_on_after(_STOP_TIMEOUT, shield=True):
        if process.returncode is None:
            assert isinstance(process.stdin, trio.abc.SendStream)
            with suppress(trio.BrokenResourceError, trio.ClosedResourceError):
                await process.stdin.send_all(b".\n")
        await process.wait()
    if process.returncode is None:
        process.kill()
    with trio.CancelScope(shield=True):  # short, because the process was sent SIGKILL
        await process.wait()
        await process.stdin.aclose()

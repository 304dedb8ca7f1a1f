"""A child process: its environment, start, output, and stop with all its descendants."""

from __future__ import annotations

import fcntl
import os
import shutil
import signal
import subprocess
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import asynccontextmanager, suppress
from errno import E2BIG, EACCES, EISDIR, ELOOP, ENAMETOOLONG, ENOENT, ENOEXEC, ENOTDIR, EPERM
from typing import Protocol

import msgspec
import trio

from mcpd.config.inherited_environment import inherited_environment
from mcpd.io.turns import TurnLimit
from mcpd.model.server_spec import StdioSpec
from mcpd.process.containers import CONTAINERS, END_TIMEOUT, Containers, track_containers
from mcpd.process.labels import INSTANCE_VARIABLE, labels_of, send_kill, start_process
from mcpd.process.replacement import AdoptedProcess

DEFAULT_PATH = "/usr/local/bin:/usr/bin:/bin"


class CannotStart(Exception):
    """The definition cannot be started as it is; retrying would not help."""


class Launch(msgspec.Struct, frozen=True, kw_only=True):
    """Everything needed for `execve`, checked before the fork."""

    executable: str
    argv: tuple[str, ...]
    env: Mapping[str, str]
    cwd: str | None
    umask: int
    containers: Containers | None = None
    """The containers that the command starts."""


def child_environment(spec: StdioSpec, ours: Mapping[str, str], mark: str) -> dict[str, str]:
    """Return the inherited variables, those of the definition, and mcpd's mark."""
    return {"PATH": DEFAULT_PATH, **inherited_environment(ours), **spec.env, INSTANCE_VARIABLE: mark}


def prepare_launch(spec: StdioSpec, ours: Mapping[str, str], mark: str, runtime: str = "") -> Launch:
    """Find the program and check the directory. Raises CannotStart with advice.

    `runtime`: the directory for what tracks containers.
    """
    env = child_environment(spec, ours, mark)
    if spec.cwd is not None and not os.path.isdir(spec.cwd):
        wrong = "is a file" if os.path.exists(spec.cwd) else "does not exist"
        raise CannotStart(f"its directory {spec.cwd} {wrong} (see `cwd` in its definition)")
    path = env["PATH"]
    command = os.path.expanduser(spec.command)
    if "/" in command:
        place = os.path.join(spec.cwd or os.getcwd(), command)
        if not os.path.exists(place):
            raise CannotStart(
                _whole_command_line_hint(command, path) or f"there is no file {place}; correct `command`"
            )
        if os.path.isdir(place):
            raise CannotStart(f"{place} is a directory; set `command` to a program")
        if not os.access(place, os.X_OK):
            raise CannotStart(
                f"{place} is not executable; `chmod +x` it, or set `command` to its interpreter"
            )
        found: str | None = place
    else:
        found = shutil.which(command, path=path)
    if found is None:
        if hint := _whole_command_line_hint(command, path):
            raise CannotStart(hint)
        searched = ":".join(dict.fromkeys(path.split(":")))
        raise CannotStart(
            f"command not found: {command} (set `command` to its full path, or set `env.PATH`); "
            f"looked in PATH={searched}"
        )
    argv: tuple[str, ...] = (command, *spec.args)
    containers = None
    if runtime:
        directory = os.path.join(runtime, CONTAINERS, *mark.split(".")[:2])
        argv, containers = track_containers(argv, env, spec.cwd or os.getcwd(), directory)
    return Launch(executable=found, argv=argv, env=env, cwd=spec.cwd, umask=spec.umask, containers=containers)


def _whole_command_line_hint(command: str, path: str) -> str:
    """Return advice if `command` contains a whole command line; otherwise an empty string."""
    program, *arguments = command.split() or [""]
    if not arguments or shutil.which(os.path.expanduser(program), path=path) is None:
        return ""
    return f"there is no program named {command!r}; to run {program!r}, move the rest to `args`"


PIPE_SIZE = 1 << 18
"""Of a child's stdout. An unprivileged user may have 64 MiB of pipe buffers: enough for 256 servers."""
_POLL_INTERVAL = 0.01
"""Seconds between checks whether a stopping group is empty; no event is available."""
_STRAYS_TIMEOUT = 1.0
"""Seconds to wait for killed processes; one that is stuck in the kernel is left alone."""
_STDERR_PORTION = 4096
"""Bytes that are handled at once: 2 to 5 ms if all of them are newlines."""
_STDERR_DRAIN_TIMEOUT = 0.1
_PERMANENT_ERRORS = (E2BIG, EACCES, EISDIR, ELOOP, ENAMETOOLONG, ENOENT, ENOEXEC, ENOTDIR, EPERM)
"""`exec` would fail in the same way next time."""
_NO_SIGNAL = 0
"""Signal 0 only checks whether a process exists."""


class ProcessGroupGuard(Protocol):
    """Kills our process groups if the daemon dies."""

    def guard(self, pgid: int) -> None: ...
    def release(self, pgid: int) -> None: ...


class RunningChild(msgspec.Struct, kw_only=True):
    """A child process with its pipes, for the next version of the daemon."""

    pid: int
    stdin: int
    stdout: int
    stderr: int
    launch: Launch


class Child:
    """A running or exited child process. Created by `spawn`, which also stops it."""

    def __init__(
        self, process: trio.Process | AdoptedProcess, mark: str, containers: Containers | None = None
    ) -> None:
        self._process = process
        self.containers = containers
        self.pid = process.pid
        self.mark = mark
        self.stdin = _fileno(process.stdin)
        self.stdout = _fileno(process.stdout)
        self._stderr = _fileno(process.stderr)
        self._stderr_drained = trio.Event()

    @property
    def returncode(self) -> int | None:
        return self._process.returncode

    def running(self, launch: Launch) -> RunningChild:
        """Return what the next version of the daemon needs to adopt it."""
        return RunningChild(
            pid=self.pid, stdin=self.stdin, stdout=self.stdout, stderr=self._stderr, launch=launch
        )

    def on_forked(self) -> None:
        """It is the child of another process now."""
        process = self._process
        self._process = AdoptedProcess(self.pid, process.stdin, process.stdout, process.stderr)

    async def wait_exited(self) -> int:
        """Return the exit status of the process itself; its descendants may live on and hold its pipes."""
        return await self._process.wait()

    async def pump_stderr(self, sink: Callable[[bytes], None]) -> None:
        """Pass stderr to `sink` until it closes, so that a full pipe does not block the child.

        `sink` gets small portions, and other tasks run between them. Nothing that was read is lost.
        """
        turns = TurnLimit()
        while True:
            await trio.lowlevel.wait_readable(self._stderr)
            try:
                portion = os.read(self._stderr, 1 << 16)
            except BlockingIOError:
                continue
            if not portion:
                self._stderr_drained.set()
                return
            for start in range(0, len(portion), _STDERR_PORTION):
                try:
                    await turns.pause()
                except trio.Cancelled:
                    sink(portion[start:])
                    raise
                sink(portion[start : start + _STDERR_PORTION])

    async def wait_stderr_drained(self) -> None:
        """Wait for the last output, but only briefly: a descendant may keep the pipe open."""
        with trio.move_on_after(_STDERR_DRAIN_TIMEOUT) as waiting:
            await self._stderr_drained.wait()
        if waiting.cancelled_caught:  # on a busy machine, the output and the end of the time come together
            await trio.lowlevel.checkpoint()

    def signal_group(self, number: int) -> bool:
        """Signal all processes of the group. Return False if there are none."""
        try:
            os.killpg(self.pid, number)
        except ProcessLookupError:
            return False
        except PermissionError:  # only a zombie or a setuid program is left
            return self.returncode is None
        return True

    def is_stopped(self) -> bool:
        """Return whether a process of the group is stopped (SIGSTOP or a debugger)."""
        try:
            entries = os.listdir("/proc")
        except OSError:  # out of file descriptors
            return False
        for entry in entries:
            if not entry.isdigit():
                continue
            with suppress(OSError, ValueError, IndexError):
                state, group = _state_and_group(int(entry))
                if group == self.pid and state in _STOPPED:
                    return True
        return False

    def is_leader_stopped(self) -> bool:
        """Like `is_stopped`, but only for the process that mcpd started, which takes a single read."""
        with suppress(OSError, ValueError, IndexError):
            return _state_and_group(self.pid)[0] in _STOPPED
        return False

    async def stop(self, after_close: float, after_term: float) -> None:
        """Close stdin, wait, SIGTERM to the group, wait, SIGKILL to it and to processes that left it.

        Takes little more than `after_close + after_term` seconds, and less if all processes exit earlier.
        """
        assert self._process.stdin is not None
        await self._process.stdin.aclose()
        with trio.move_on_after(after_close) as waiting:
            await self._wait_group_empty()
        if waiting.cancelled_caught:
            self.signal_group(signal.SIGTERM)
            with trio.move_on_after(after_term):
                await self._wait_group_empty()
        if self.containers is not None:
            await self.containers.end()
        self.signal_group(signal.SIGKILL)
        await self._end_strays()
        await self._process.wait()

    async def _end_strays(self) -> None:
        """Kill processes that left the group, repeatedly because they may fork."""
        with trio.move_on_after(_STRAYS_TIMEOUT):
            while send_kill(self.mark):  # noqa: ASYNC110 - the end of another process is no event
                await trio.sleep(_POLL_INTERVAL)

    async def _wait_group_empty(self) -> None:
        await self._process.wait()
        self._reap_group()
        while self.signal_group(_NO_SIGNAL):
            await trio.sleep(_POLL_INTERVAL)
            self._reap_group()

    def _reap_group(self) -> None:
        """Reap orphaned members: mcpd is their subreaper, and zombies still count as members."""
        with suppress(ChildProcessError):
            while os.waitpid(-self.pid, os.WNOHANG)[0]:
                pass

    async def close_pipes(self) -> None:
        for stream in (self._process.stdin, self._process.stdout, self._process.stderr):
            if stream is not None:
                await stream.aclose()


@asynccontextmanager
async def spawn(
    launch: Launch,
    *,
    guard: ProcessGroupGuard,
    stderr: Callable[[bytes], None],
    stop_close: float,
    stop_term: float,
    adopted: RunningChild | None = None,
) -> AsyncIterator[Child]:
    """Run a child process, or go on with `adopted`; leaving the block stops it and its descendants.

    Raises CannotStart for permanent errors, OSError for others.
    """
    mark = launch.env[INSTANCE_VARIABLE]
    process = await _start(launch, mark) if adopted is None else _adopt(adopted)
    child = Child(process, mark, launch.containers)
    guard.guard(child.pid)
    with suppress(OSError):  # saves wake-ups with large results; limited by a per-user quota
        fcntl.fcntl(child.stdout, fcntl.F_SETPIPE_SZ, PIPE_SIZE)
    try:
        async with trio.open_nursery() as nursery:
            nursery.start_soon(child.pump_stderr, stderr)
            try:
                yield child
            finally:
                bound = stop_close + stop_term + 2 + (launch.containers is not None) * END_TIMEOUT
                with trio.CancelScope(shield=True, deadline=trio.current_time() + bound):
                    await child.stop(stop_close, stop_term)
                nursery.cancel_scope.cancel(reason="the process has ended")
    finally:
        with trio.CancelScope(shield=True, deadline=trio.current_time() + 1):
            await child.close_pipes()
        guard.release(child.pid)


def _adopt(child: RunningChild) -> AdoptedProcess:
    return AdoptedProcess(child.pid, *map(trio.lowlevel.FdStream, (child.stdin, child.stdout, child.stderr)))


async def _start(launch: Launch, mark: str) -> trio.Process:
    """Start the process. Raises CannotStart and OSError as `spawn`."""
    if launch.containers is not None:
        launch.containers.prepare()
    try:
        return await start_process(
            list(launch.argv),
            labels_of(mark),
            executable=launch.executable,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            env=dict(launch.env),
            cwd=launch.cwd,
            umask=launch.umask,
            start_new_session=True,
        )
    except OSError as error:
        if error.errno not in _PERMANENT_ERRORS:
            raise
        if launch.cwd is not None and error.filename == launch.cwd:
            raise CannotStart(f"its directory {launch.cwd} is unusable: {error.strerror}") from None
        raise CannotStart(
            f"{launch.executable} cannot be run: {error.strerror} (check its `#!` line)"
        ) from None
    except ValueError as error:  # a NUL in an argument or a variable
        raise CannotStart(f"its definition cannot be passed to a process: {error}") from None


def _fileno(stream: object) -> int:
    assert isinstance(stream, trio.lowlevel.FdStream)
    return stream.fileno()


def describe_exit(returncode: int) -> str:
    """Return `exited with status 1`, `was killed by SIGKILL` or similar."""
    if returncode >= 0:
        return f"exited with status {returncode}"
    with suppress(ValueError):
        return f"was killed by {signal.Signals(-returncode).name}"
    return f"was killed by signal {-returncode}"


_STOPPED = (b"T", b"t")
"""States in /proc/PID/stat of a process that is stopped by a signal or a debugger."""


def _state_and_group(pid: int) -> tuple[bytes, int]:
    """Return the state of a process and its process group. Raises OSError, ValueError, or IndexError."""
    with open(f"/proc/{pid}/stat", "rb") as file:
        state, _, group = file.read().rpartition(b") ")[2].split()[:3]
    return state, int(group)

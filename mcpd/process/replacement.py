"""Replaces the program of this process by another version of it, which takes over what is open.

    this process ─┬─ execve: the new version starts ── asks for the state ─────────── goes on
                  └─ fork: the old version goes on ─── hands over and exits, or stays if nobody asks

The process id and the children stay with the new version, and nobody waits while it starts. It gets the state
in a sealed memory file (`memfd_create`), and the descriptors, over a socket.
"""

from __future__ import annotations

import array
import fcntl
import importlib
import logging
import os
import select
import signal
import socket as sockets
import subprocess
import sys
from collections.abc import Iterable, Iterator, MutableMapping, Sequence
from contextlib import ExitStack, closing, contextmanager, suppress
from tempfile import TemporaryDirectory

import msgspec
import trio

from mcpd import __version__
from mcpd.io.reader import is_readable
from mcpd.model.text import shorten
from mcpd.privacy.logs import write_all
from mcpd.process.labels import fork_daemon, start_process
from mcpd.process.systemd import notify

log = logging.getLogger("mcpd")

FORMAT = 1
"""Of the state. A version that reads another format refuses to take over."""
VARIABLE = "MCPD_UPGRADE"
"""`check:FD`: say whether this version could take over the state in this file. `take:FD`: take over; the
descriptor is that of a socket to the old version."""
_MODULES = "MCPD_UPGRADE_MODULES"
"""The modules that the old version uses: the new one loads them before anybody has to wait for it."""
TRIAL_TIMEOUT = 20.0
"""Seconds that the new version may take to say so."""
START_TIMEOUT = 25.0
"""Seconds that the new version may take to start, while the old one serves: less than `WatchdogSec`."""
_TAKE_TIMEOUT = 10.0
_WATCHDOG_INTERVAL = 5.0
_MAX_OUTPUT = 64 * 1024
_FDS_AT_ONCE = 200
"""The kernel passes 253."""
_READY, _TAKEN = b"ready", b"taken"
_STOP_SIGNALS = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP)
"""They wait while no version can handle them."""
_SEALS = fcntl.F_SEAL_WRITE | fcntl.F_SEAL_SHRINK | fcntl.F_SEAL_GROW | fcntl.F_SEAL_SEAL


class CannotReplace(Exception):
    """The new version cannot take over; the message says why."""


class _Header(msgspec.Struct, frozen=True):
    """What every version can read."""

    format: int
    version: str
    """The version that hands over."""


class TrialAnswer(msgspec.Struct, frozen=True):
    """The last line that a new version writes to stdout if it could take over."""

    upgrade_format: int
    version: str


def own_command() -> list[str]:
    """Return the command line that started this process. Its program may be another version by now."""
    program = os.path.abspath(sys.argv[0])
    if os.path.basename(program) == "__main__.py":
        return [sys.executable, *sys.orig_argv[1:]]
    return [program, *sys.argv[1:]]


def write_state(version: str, state: bytes) -> int:
    """Return the descriptor of a sealed memory file. Raises OSError."""
    fd = os.memfd_create("mcpd-upgrade", os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING)
    try:
        with open(fd, "wb", closefd=False) as file:
            file.write(msgspec.json.encode(_Header(FORMAT, version)) + b"\n" + state)
        fcntl.fcntl(fd, fcntl.F_ADD_SEALS, _SEALS)
    except BaseException:
        os.close(fd)
        raise
    return fd


def read_state(fd: int) -> bytes:
    """Return the state in a memory file, and close it. Raises CannotReplace."""
    with open(fd, "rb") as file:
        if fcntl.fcntl(file, fcntl.F_GET_SEALS) != _SEALS:
            raise CannotReplace("the state is not sealed")
        file.seek(0)
        header, _, state = file.read().partition(b"\n")
    found = msgspec.json.decode(header, type=_Header).format
    if found != FORMAT:
        raise CannotReplace(f"it reads the state of a running daemon in format {FORMAT}, and not in {found}")
    return state


def find_task(environ: MutableMapping[str, str]) -> tuple[str, int] | None:
    """Return what the old version wants, and the descriptor; see VARIABLE, which is removed.

    Loads the modules that the old version uses, and raises what their code raises.
    """
    mode, _, number = environ.pop(VARIABLE, "").partition(":")
    for name in filter(None, environ.pop(_MODULES, "").split(",")):
        try:
            importlib.import_module(name)
        except ModuleNotFoundError as error:
            if error.name != name:
                raise
    return (mode, int(number)) if mode in ("take", "check") and number.isdigit() else None


def _environment(task: str) -> dict[str, str]:
    modules = ",".join(name for name in sys.modules if name.startswith("mcpd."))
    return {**os.environ, VARIABLE: task, _MODULES: modules}


async def try_out(command: Sequence[str], version: str, state: bytes) -> str:
    """Start the new version on trial with this state. Return its version. Raises CannotReplace."""
    with ExitStack() as stack:
        try:
            fd = write_state(version, state)
            stack.callback(os.close, fd)
            scratch = stack.enter_context(TemporaryDirectory(prefix="mcpd-"))
            process = await start_process(
                command,
                None,
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=subprocess.PIPE,
                env={**_environment(f"check:{fd}"), "TMPDIR": scratch, "NOTIFY_SOCKET": ""},
                pass_fds=(fd,),
                start_new_session=True,
            )
        except OSError as error:
            raise CannotReplace(f"it cannot be started: {error.strerror or error}") from None
        output, errors = bytearray(), bytearray()
        with trio.move_on_after(TRIAL_TIMEOUT) as waiting:
            try:
                async with trio.open_nursery() as nursery:
                    nursery.start_soon(_collect, process.stdout, output)
                    nursery.start_soon(_collect, process.stderr, errors)
                    await process.wait()
                    nursery.cancel_scope.deadline = trio.current_time() + 0.5  # a descendant has its output
            finally:
                with suppress(ProcessLookupError):
                    os.killpg(process.pid, signal.SIGKILL)
                with trio.CancelScope(shield=True):
                    await process.wait()
                    for stream in (process.stdout, process.stderr):
                        if stream is not None:
                            await stream.aclose()
    if waiting.cancelled_caught:
        raise CannotReplace(f"it has not answered within {TRIAL_TIMEOUT:g} s")
    return _read_answer(process.returncode, bytes(output), bytes(errors))


async def _collect(stream: trio.abc.ReceiveStream | None, into: bytearray) -> None:
    assert stream is not None
    async for portion in stream:
        into += portion[: _MAX_OUTPUT - len(into)]


def _read_answer(status: int | None, output: bytes, errors: bytes) -> str:
    said = (errors.strip() or output.strip()).decode("utf-8", "replace").splitlines()
    reason = f": {shorten(said[-1].removeprefix('mcpd: '), 500)}" if said else ""
    if status:
        how = f"was killed by signal {-status}" if status < 0 else f"exited with status {status}"
        raise CannotReplace(f"it {how}{reason}")
    try:
        answer = msgspec.json.decode(output.strip().rpartition(b"\n")[2], type=TrialAnswer)
    except msgspec.MsgspecError:
        raise CannotReplace(f"it cannot replace a running daemon{reason}") from None
    if answer.upgrade_format != FORMAT:
        raise CannotReplace(f"it reads format {answer.upgrade_format} of the state, and this is {FORMAT}")
    return answer.version


class Successor:
    """The new version, as the old one sees it in a child of it. See `start`."""

    def __init__(self, connection: sockets.socket) -> None:
        self._pid = os.getppid()
        self._connection = connection
        connection.setblocking(False)

    async def wait_ready(self) -> None:
        """Wait until it asks for the state. Raises CannotReplace."""
        with trio.move_on_after(START_TIMEOUT):
            await trio.lowlevel.wait_readable(self._connection)
            if self._connection.recv(len(_READY)) == _READY:
                return
            raise CannotReplace("it has ended while it started")
        raise CannotReplace(f"it has not started within {START_TIMEOUT:g} s")

    def hand_over(self, version: str, state: bytes, descriptors: Sequence[int]) -> None:
        """Send everything to it, and exit when it has taken over. Raises CannotReplace."""
        try:
            fd = write_state(version, state)
            self._connection.settimeout(_TAKE_TIMEOUT)
            sockets.send_fds(self._connection, [b"%d" % len(descriptors)], [fd])
            for at in range(0, len(descriptors), _FDS_AT_ONCE):
                sockets.send_fds(self._connection, [b"."], descriptors[at : at + _FDS_AT_ONCE])
            taken = self._connection.recv(len(_TAKEN)) == _TAKEN
        except OSError as error:
            raise CannotReplace(f"it did not take over: {error.strerror or error}") from None
        if taken:
            self._connection.close()  # so that it does not wait until all memory is freed
            write_all()
            os._exit(0)
        raise CannotReplace("it has ended while it took over")

    def end(self) -> None:
        """Make sure that it does not take over any more."""
        self._connection.close()
        if os.getppid() == self._pid:
            os.kill(self._pid, signal.SIGKILL)


async def start(command: Sequence[str]) -> Successor:
    """Make this process the new version, and go on in a child.

    Raises OSError if the new version cannot be started; this process goes on then.
    """
    ours, theirs = sockets.socketpair(sockets.AF_UNIX, sockets.SOCK_SEQPACKET)
    reads, writes = os.pipe2(os.O_CLOEXEC)
    signal.pthread_sigmask(signal.SIG_BLOCK, _STOP_SIGNALS)
    try:
        child = await fork_daemon()
        if child:
            try:
                theirs.set_inheritable(True)
                os.execve(  # noqa: S606 - the installed version of this program
                    command[0], list(command), _environment(f"take:{theirs.fileno()}")
                )
            except BaseException:
                os.kill(child, signal.SIGKILL)  # it waits for the end of the pipe
                os.waitpid(child, 0)  # noqa: ASYNC222 - it was killed
                ours.close()
                raise
        os.close(writes)
        writes = -1
        os.read(reads, 1)
    finally:
        admit_signals()
        theirs.close()
        os.close(reads)
        if writes >= 0:
            os.close(writes)
    return Successor(ours)


def receive_descriptors(connection: sockets.socket) -> tuple[bytes, list[int]]:
    """Return a message, and the descriptors with it, which other programs do not inherit."""
    found = array.array("i")
    # Not by recv_fds, which ignores the flags.
    room = sockets.CMSG_LEN(_FDS_AT_ONCE * found.itemsize)
    data, rights, _, _ = connection.recvmsg(16, room, sockets.MSG_CMSG_CLOEXEC)
    for _, _, each in rights:
        found.frombytes(each)
    return data, list(found)


class Predecessor:
    """The old version, as the new one sees it. Until `dismiss`, nothing may be changed that the old version
    needs to go on: this process exits at once if it fails before (`exit_if_replaceable`)."""

    undismissed: Predecessor | None = None

    def __init__(self, fd: int) -> None:
        Predecessor.undismissed = self
        self._connection = sockets.socket(fileno=fd)
        self._connection.set_inheritable(False)

    def ask(self) -> tuple[bytes, list[int]]:
        """Return the state, and the descriptors in their order. Raises CannotReplace."""
        try:
            self._connection.send(_READY)
            while not select.select([self._connection], [], [], _WATCHDOG_INTERVAL)[0]:
                notify(WATCHDOG=1)  # this is the main process of the service already
            count, found = receive_descriptors(self._connection)
            descriptors: list[int] = []
            while len(descriptors) < int(count):
                descriptors += receive_descriptors(self._connection)[1]
            return read_state(found[0]), descriptors
        except (OSError, ValueError, IndexError) as error:
            raise CannotReplace(f"the old version does not hand over: {error}") from None

    def dismiss(self) -> None:
        """Say that everything is taken over, and wait until the old version knows that."""
        with self._connection:
            self._connection.send(_TAKEN)
            self._connection.recv(1)
        Predecessor.undismissed = None


def exit_if_replaceable() -> None:
    """Something has failed: exit without ending anything if the old version can go on."""
    if Predecessor.undismissed is not None:
        log.error("mcpd %s cannot take over", __version__, exc_info=sys.exc_info()[0] is not None)
        write_all()
        os._exit(1)


@contextmanager
def replaceable() -> Iterator[None]:
    """Call `exit_if_replaceable` if the block fails."""
    try:
        yield
    except BaseException:
        exit_if_replaceable()
        raise


def admit_signals() -> None:
    """Handle again what `replace` lets wait. To be called when there are handlers."""
    signal.pthread_sigmask(signal.SIG_UNBLOCK, _STOP_SIGNALS)


Stream = trio.abc.AsyncResource | None


class AdoptedProcess:
    """A child that another version of this process has started. It is used like a `trio.Process`, which would
    take it for one that has exited while it is the child of another process."""

    def __init__(self, pid: int, stdin: Stream, stdout: Stream = None, stderr: Stream = None) -> None:
        """Raises OSError if there is no such process."""
        self.pid = pid
        self.stdin, self.stdout, self.stderr = stdin, stdout, stderr
        self._exited = os.pidfd_open(pid)
        self._status: int | None = None
        self._waiting = trio.Lock()

    @property
    def returncode(self) -> int | None:
        if self._status is None:
            try:
                pid, status = os.waitpid(self.pid, os.WNOHANG)
            except ChildProcessError:
                # It is a child of the old version, which has not exited yet, or was waited for.
                pid, status = (self.pid, 0) if is_readable(self._exited) else (0, 0)
            if pid:
                self._status = os.waitstatus_to_exitcode(status)
        return self._status

    async def wait(self) -> int:
        async with self._waiting:
            while (status := self.returncode) is None:
                await trio.lowlevel.wait_readable(self._exited)
            if self._exited >= 0:
                os.close(self._exited)
                self._exited = -1
        return status

    def kill(self) -> None:
        if self.returncode is None:
            os.kill(self.pid, signal.SIGKILL)


def discard(pid: int, descriptors: Iterable[int]) -> None:
    """Kill a process group that nobody adopts."""
    with suppress(OSError):
        os.killpg(pid, signal.SIGKILL)
    for each in descriptors:
        with suppress(OSError), closing(open(each, "rb", buffering=0)):
            pass

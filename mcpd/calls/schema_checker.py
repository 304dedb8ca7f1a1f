"""Checks values against JSON Schemas in a process of its own, with limits on CPU and memory.

The process is started for the first check and ended after some idle seconds. If the limits end it, the
schema at hand is refused permanently; all others are compiled again when they are needed. Servers whose
checks were slow share a second process, so that the checks of others do not wait for theirs.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections import OrderedDict, deque

import msgspec
import trio

from mcpd.calls.schema_checker_process import CPU_SECONDS, HEADER, MEMORY
from mcpd.process.labels import start_process

_PROGRAM = (
    "import sys; sys.path[:] = sys.argv[1:]; from mcpd.calls import schema_checker_process; "
    "schema_checker_process.main()"
)
_FORWARDED_VARIABLES = ("LD_LIBRARY_PATH", "DYLD_LIBRARY_PATH")
"""The variables that an interpreter may need to start. The others may contain secrets."""
_WAIT_SECONDS = 2.0
"""How long a check waits for the checks before it."""
_CHECK_SECONDS = 10.0
"""How long a check may take, on a busy machine too."""
_SLOW_SECONDS = 0.25
"""A server of which a check took longer has its checks done by the second process from then on."""
_IDLE_SECONDS = 30.0
_MAX_WAITING = 64
_MAX_REFUSALS = 1000
_MAX_ANSWER = 1 << 17


class CheckResult(msgspec.Struct, frozen=True):
    """The result of a check. The value is valid if there are neither problems nor a failure."""

    problems: tuple[tuple[str, str], ...] = ()
    """The path within the value and a description, for each problem."""
    failure: str = ""
    """Why the value was not checked, as a clause: "compiling it took more than 1 s of CPU time"."""


class _Job(msgspec.Struct, eq=False):
    server: str
    digest: bytes
    schema: bytes
    value: bytes
    started: trio.Event = msgspec.field(default_factory=trio.Event)
    finished: trio.Event = msgspec.field(default_factory=trio.Event)
    answer: CheckResult = CheckResult(failure="mcpd is stopping")


class _ProcessEnded(Exception):
    """The process closed its output."""


class SchemaChecker:
    """Runs one process, one check at a time. Use `schema_checker()` for the one that checks for a server."""

    def __init__(self, slow_servers: set[str], refused: OrderedDict[bytes, CheckResult]) -> None:
        """`slow_servers` gets the names of servers whose checks were slow, and `refused` the results for
        schemas that are not used again, by digest."""
        self._slow_servers = slow_servers
        self._refused = refused
        self._waiting: deque[_Job] = deque()
        self._process: trio.Process | None = None
        self._sent: set[bytes] = set()
        """The digests of the schemas that the process may know."""
        self._is_running = False
        self._wake = trio.Event()

    @property
    def pid(self) -> int | None:
        """The process ID; None while no process runs."""
        return None if self._process is None else self._process.pid

    async def check(self, server: str, digest: bytes, schema: bytes, value: bytes) -> CheckResult:
        """Check a JSON value against a JSON Schema of a server. Never raises.

        `digest` identifies the schema (16 bytes). Returns within _WAIT_SECONDS + _CHECK_SECONDS.
        """
        if (refusal := self._refused.get(digest)) is not None:
            self._refused.move_to_end(digest)
            return refusal
        if len(self._waiting) >= _MAX_WAITING:
            return CheckResult(failure=f"{_MAX_WAITING} other checks are waiting")
        job = _Job(server, digest, schema, value)
        self._waiting.append(job)
        self._wake.set()
        if not self._is_running:
            self._is_running = True
            trio.lowlevel.spawn_system_task(self._run, name="schema checker")
        try:
            with trio.move_on_after(_WAIT_SECONDS):
                await job.started.wait()
        finally:
            if not job.started.is_set():
                self._waiting.remove(job)
        if not job.started.is_set():
            return CheckResult(failure=f"other checks took more than {_WAIT_SECONDS:g} s")
        await job.finished.wait()
        return job.answer

    async def _run(self) -> None:
        """Work until there has been nothing to do for a while. Cancelled when the trio run ends."""
        try:
            while True:
                while self._waiting:
                    job = self._waiting.popleft()
                    job.started.set()
                    try:
                        job.answer = await self._answer(job)
                    finally:
                        job.finished.set()
                self._wake = trio.Event()
                with trio.move_on_after(_IDLE_SECONDS):
                    await self._wake.wait()
                if not self._waiting:
                    return
        finally:
            with trio.CancelScope(shield=True):
                await self._stop()
            self._is_running = False
            if self._waiting:  # it came while we stopped
                self._is_running = True
                trio.lowlevel.spawn_system_task(self._run, name="schema checker")

    async def _answer(self, job: _Job) -> CheckResult:
        """Have the process answer, in a new one if another schema may have used up its memory."""
        while True:
            is_alone = False
            try:
                await self._start()
                is_alone = self._sent <= {job.digest}
                is_new, began = not self._sent, trio.current_time()
                with trio.fail_after(_CHECK_SECONDS):
                    answer = await self._exchange(job)
                if not is_new and trio.current_time() - began > _SLOW_SECONDS:
                    self._slow_servers.add(job.server)
                return answer
            except trio.TooSlowError:
                self._slow_servers.add(job.server)
                await self._stop()
                return CheckResult(failure=f"it took more than {_CHECK_SECONDS:g} s")
            except _ProcessEnded as ended:
                status = await self._stop()
                if status == -signal.SIGPROF:
                    self._slow_servers.add(job.server)
                    failure = f"{ended} took more than {CPU_SECONDS:g} s of CPU time"
                elif status not in (-signal.SIGABRT, -signal.SIGSEGV, -signal.SIGBUS):
                    return CheckResult(failure=f"the process that checks ended (status {status})")
                elif not is_alone:
                    continue
                else:
                    failure = f"{ended} took more than {MEMORY >> 20} MiB of memory"
                return self._refuse(job.digest, failure)
            except Exception as error:  # an exception would end the daemon: see trio.lowlevel
                await self._stop()
                return CheckResult(failure=f"the process that checks failed: {error!r}")

    async def _exchange(self, job: _Job) -> CheckResult:
        """Send the job and read the answer. Raises _ProcessEnded with what it was doing."""
        is_known = job.digest in self._sent
        self._sent.add(job.digest)
        await self._send(job, b"" if is_known else job.schema)
        doing = "checking a value against it" if is_known else "compiling it"
        buffer = b""
        while True:
            while b"\n" not in buffer:
                portion = await self._receive()
                if not portion or len(buffer) > _MAX_ANSWER:
                    raise _ProcessEnded(doing)
                buffer += portion
            line, _, buffer = buffer.partition(b"\n")
            answer = msgspec.json.decode(line, type=dict[str, object])
            if "compiled" in answer:
                doing = "checking a value against it"
            elif "unknown" in answer:
                doing = "compiling it"
                await self._send(job, job.schema)
            elif "error" in answer:
                if doing == "compiling it":
                    return self._refuse(job.digest, str(answer["error"]))
                return CheckResult(failure=str(answer["error"]))
            else:
                problems = msgspec.convert(answer["problems"], tuple[tuple[str, str], ...])
                return CheckResult(problems)

    def _refuse(self, digest: bytes, failure: str) -> CheckResult:
        refusal = self._refused[digest] = CheckResult(failure=failure)
        if len(self._refused) > _MAX_REFUSALS:
            self._refused.popitem(last=False)
        return refusal

    async def _send(self, job: _Job, schema: bytes) -> None:
        assert self._process is not None
        assert self._process.stdin is not None
        header = HEADER.pack(job.digest, len(schema), len(job.value))
        try:
            for part in (header, schema, job.value):
                await self._process.stdin.send_all(part)
        except trio.BrokenResourceError:
            return  # the end of its output says the rest

    async def _receive(self) -> bytes:
        assert self._process is not None
        assert self._process.stdout is not None
        return bytes(await self._process.stdout.receive_some())

    async def _start(self) -> None:
        """Start the process if none runs. Raises OSError."""
        if self._process is not None and self._process.poll() is None:
            return
        await self._stop()
        self._process = await start_process(
            [sys.executable, "-I", "-S", "-c", _PROGRAM, *map(os.path.abspath, sys.path)],
            None,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,  # never read: its end tells the process that the daemon has ended
            env={name: os.environ[name] for name in _FORWARDED_VARIABLES if name in os.environ},
            cwd="/",
            start_new_session=True,  # so that signals to the daemon's group, such as Ctrl-C, do not reach it
        )

    async def _stop(self) -> int | None:
        """Kill and reap the process. Return its exit status."""
        process, self._process = self._process, None
        self._sent.clear()
        if process is None:
            return None
        process.kill()
        status = await process.wait()
        for stream in (process.stdin, process.stdout, process.stderr):
            if stream is not None:
                await stream.aclose()
        return status


class _Checkers:
    """The checkers of a trio run."""

    def __init__(self) -> None:
        self.slow_servers: set[str] = set()
        refused: OrderedDict[bytes, CheckResult] = OrderedDict()
        self.usual = SchemaChecker(self.slow_servers, refused)
        self.slow = SchemaChecker(self.slow_servers, refused)


_checkers: trio.lowlevel.RunVar[_Checkers] = trio.lowlevel.RunVar("schema checkers")


def schema_checker(server: str) -> SchemaChecker:
    """Return the checker of this trio run that checks values for a server."""
    checkers = _current()
    return checkers.slow if server in checkers.slow_servers else checkers.usual


def schema_checker_pids() -> set[int]:
    """Return the process IDs of the checkers of this trio run."""
    checkers = _current()
    return {pid for pid in (checkers.usual.pid, checkers.slow.pid) if pid is not None}


def _current() -> _Checkers:
    try:
        return _checkers.get()
    except LookupError:
        checkers = _Checkers()
        _checkers.set(checkers)
        return checkers

"""An in-process MCP server that follows a script over real pipes, so that a mock clock controls all
timing."""

from __future__ import annotations

import json
import math
import os
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager, contextmanager
from pathlib import Path
from typing import Any, NoReturn
from unittest import mock

import attrs
import trio

from mcpd.model.events import Event
from mcpd.model.server_spec import StdioSpec
from mcpd.model.status import ServerState, ServerStatus
from mcpd.privacy.redact import Redactor
from mcpd.state.state_file import StateFile
from mcpd.supervision.managed_server import ManagedServer
from mcpd.supervision.secrets import Secrets
from mcpd.supervision.supervisor_context import SupervisorContext
from mcpd.transports.child_process import Launch, describe_exit
from mcpd.transports.stdio import PipeChannel

Json = dict[str, Any]


@attrs.frozen(kw_only=True)
class Life:
    """One run of the server process, starting at its spawn."""

    lasts: float = math.inf
    """Seconds from the handshake to the exit. With 0, it exits without answering the handshake."""
    able_from: float = 0
    """The clock's time before which it exits without answering the handshake."""
    status: int = 1
    prints: bytes = b""
    """What it writes to stdout before it reads."""
    mute: bool = False
    """Whether the server answers nothing."""
    deaf_after: float = math.inf
    """Seconds from the spawn until the server stops reading."""
    deaf_until: float = math.inf
    """Seconds from the spawn until the server reads again and answers the pending requests."""
    stopped: bool = False
    """Whether the process is reported as stopped while it does not read."""
    legacy_dies: bool = False
    """Exits when asked `server/discover`."""
    modern: bool = False
    """Whether it refuses `initialize`. Otherwise it refuses `server/discover`."""
    names_versions: bool = False
    """Whether it refuses `initialize` as the specification says, with the versions that it speaks."""
    lists: Callable[[], list[str]] = lambda: ["echo"]
    list_takes: float = 0
    discover_takes: float = 0
    """Seconds that it works on `server/discover`, during which it reads nothing."""
    hints: Json = attrs.field(factory=dict)
    """`ttlMs` and `cacheScope` of its list."""
    list_fails: Callable[[], bool] = lambda: False
    """Whether it answers `tools/list` with an error."""
    drops: tuple[str, ...] = ()
    """Methods it never answers."""
    exits_at: str = ""
    """The method at which it exits without an answer."""
    dual: bool = False
    """Whether it speaks both eras, regardless of `modern`."""
    wakes_after: float = 0
    """Seconds from the spawn until the server starts to read."""
    capabilities: Json = attrs.field(factory=lambda: {"tools": {}})


class Guard:
    def guard(self, pgid: int) -> None: ...
    def release(self, pgid: int) -> None: ...


@attrs.define(eq=False)
class FakeChild:
    pid: int
    life: Life
    born: float
    returncode: int | None = None
    containers: None = None

    def is_stopped(self) -> bool:
        return self.life.stopped and trio.current_time() >= self.born + self.life.deaf_after

    def signal_group(self, number: int) -> bool:
        return False

    async def wait_stderr_drained(self) -> None:
        await trio.lowlevel.checkpoint()


@attrs.define(eq=False)
class FakeTransport:
    child: FakeChild
    channel: PipeChannel

    async def run(self) -> NoReturn:
        await self.channel.run()


@attrs.define(eq=False)
class Script:
    """The lives of a server in order; the last one repeats. An exception is a start that fails."""

    lives: list[Life | Exception]
    starts: list[float] = attrs.field(factory=list)
    """The `trio.current_time()` of each start."""
    asked: list[str] = attrs.field(factory=list)
    """The methods of all requests, over all lives."""
    answers: list[Json] = attrs.field(factory=list)
    """The responses to the server's own requests."""
    marks: list[str] = attrs.field(factory=list)
    talk: Callable[[Json], None] = lambda message: None
    """Send a message from the server in its current life."""

    @asynccontextmanager
    async def open(self, spec: StdioSpec, launch: Launch, **_: object) -> AsyncIterator[FakeTransport]:
        """Replace `open_stdio`."""
        self.starts.append(trio.current_time())
        self.marks.append(launch.env["MCPD_INSTANCE"])
        life = self.lives[min(len(self.starts), len(self.lives)) - 1]
        if isinstance(life, Exception):
            raise life
        child = FakeChild(1000 + len(self.starts), life, trio.current_time())
        with pipe() as (stdin_fd, theirs), pipe() as (ours, stdout_fd):

            async def why_ended() -> str:
                return describe_exit(life.status)

            link = PipeChannel(spec, ours, theirs, why_ended)
            async with trio.open_nursery() as nursery:
                nursery.start_soon(self._serve, life, child, stdin_fd, stdout_fd)
                try:
                    yield FakeTransport(child, link)
                finally:
                    link.close("it is being stopped")
                    nursery.cancel_scope.cancel()

    async def _serve(self, life: Life, child: FakeChild, stdin_fd: int, stdout_fd: int) -> None:
        def say(message: Json) -> None:
            if says_open:
                os.write(stdout_fd, json.dumps({"jsonrpc": "2.0", **message}).encode() + b"\n")

        def end() -> None:
            """End the output; the opener closes the pipe's descriptor."""
            says_open.clear()
            child.returncode = life.status
            nowhere = os.open("/dev/null", os.O_WRONLY)
            os.dup2(nowhere, stdout_fd)
            os.close(nowhere)

        says_open = [True]
        await trio.sleep(life.wakes_after)
        os.write(stdout_fd, life.prints)
        self.talk = say
        dies_at, pending = math.inf, b""
        while True:
            with trio.move_on_at(dies_at) as waiting:
                await trio.lowlevel.wait_readable(stdin_fd)
            if waiting.cancelled_caught:
                end()
                await trio.sleep_forever()
            if child.born + life.deaf_after <= trio.current_time() and life.deaf_until < math.inf:
                await trio.sleep_until(child.born + life.deaf_until)
            pending += os.read(stdin_fd, 1 << 16)
            *lines, pending = pending.split(b"\n")
            for line in lines:
                message = json.loads(line)
                method = message.get("method", "")
                self.asked.append(method)
                if not method:
                    self.answers.append(message)
                    continue
                age = trio.current_time() - child.born
                if (
                    "id" not in message
                    or life.mute
                    or method in life.drops
                    or life.deaf_after <= age < life.deaf_until
                ):
                    continue
                unable = life.lasts == 0 or child.born < life.able_from
                if unable or method == life.exits_at or (life.legacy_dies and method == "server/discover"):
                    end()
                    await trio.sleep_forever()
                if method == "server/discover" and life.discover_takes:
                    await trio.sleep(life.discover_takes)
                if method == "tools/list" and life.list_takes:
                    await trio.sleep(life.list_takes)
                if method == "subscriptions/listen":
                    say(acknowledgement(message))
                    continue
                answer = self._answer(life, method)
                if answer is not None:
                    say({"id": message["id"], **answer})
                if (
                    dies_at == math.inf
                    and "result" in (answer or {})
                    and method in ("initialize", "server/discover")
                ):
                    dies_at = trio.current_time() + life.lasts

    def _answer(self, life: Life, method: str) -> Json | None:
        hello: Json = {"capabilities": life.capabilities}
        refused = {"error": {"code": -32601, "message": f"no {method}"}}
        if life.names_versions and method == "initialize":
            data = {"supported": ["2026-07-28"], "requested": "2025-11-25"}
            return {"error": {"code": -32022, "message": "Unsupported protocol version", "data": data}}
        match method:
            case "server/discover":
                modern = life.modern or life.dual
                return {"result": hello | {"supportedVersions": ["2026-07-28"]}} if modern else refused
            case "initialize":
                return (
                    refused
                    if life.modern and not life.dual
                    else {"result": hello | {"protocolVersion": "2025-11-25"}}
                )
            case "tools/list" if life.list_fails():
                return {"error": {"code": -32603, "message": "no database"}}
            case "tools/list":
                tools = [{"name": n, "inputSchema": {}} for n in life.lists()]
                return {"result": {"tools": tools, **life.hints}}
            case "never":
                return None
            case _:
                return {"result": {}}


def acknowledgement(listen: Json) -> Json:
    params = {"notifications": listen["params"]["notifications"]}
    meta = {"io.modelcontextprotocol/subscriptionId": listen["id"]}
    method = "notifications/subscriptions/acknowledged"
    return {"method": method, "params": {**params, "_meta": meta}}


@contextmanager
def pipe() -> Iterator[tuple[int, int]]:
    ends = os.pipe2(os.O_NONBLOCK | os.O_CLOEXEC)
    try:
        yield ends
    finally:
        for end in ends:
            os.close(end)


@attrs.define(eq=False)
class World:
    """A managed server, its script, and the status events it announced with their times."""

    server: ManagedServer
    script: Script
    events: list[tuple[float, Event]]

    @property
    def starts(self) -> list[float]:
        return self.script.starts

    @property
    def pauses(self) -> list[float]:
        """The seconds between consecutive starts."""
        return [
            round(later - earlier, 6) for earlier, later in zip(self.starts, self.starts[1:], strict=False)
        ]

    def states(self) -> list[str]:
        return [event.status.status.value for _, event in self.events if event.status is not None]

    async def wait(self, is_so: Callable[[ServerStatus], bool]) -> ServerStatus:
        """Wait until the status satisfies `is_so`. Polls ten times a (virtual) second."""
        with trio.fail_after(100_000):
            while not is_so(self.server.status()):  # noqa: ASYNC110 - no single event covers the whole status
                await trio.sleep(0.1)
        return self.server.status()

    async def wait_connected(self) -> None:
        await self.wait(lambda status: status.status is ServerState.CONNECTED)


def surroundings(home: Path, announce: Callable[[Event], None], chance: float = 0.5) -> SupervisorContext:
    environ, redactor = {"PATH": "/bin"}, Redactor()
    return SupervisorContext(
        instance="test",
        environ=environ,
        store=StateFile(home / "state", home / "cache"),
        guard=Guard(),
        redactor=redactor,
        secrets=Secrets("test", environ, redactor),
        log_dir=home / "logs",
        start_limiter=trio.CapacityLimiter(8),
        random=lambda: chance,
        announce=announce,
    )


@contextmanager
def scripted(scripts: dict[str, Script]) -> Iterator[None]:
    """Replace the processes of the named servers by their scripts."""

    def open_(spec: StdioSpec, launch: Launch, **more: object) -> Any:
        return scripts[spec.name].open(spec, launch, **more)

    with mock.patch("mcpd.supervision.connect.open_stdio", open_):
        yield


@asynccontextmanager
async def living(
    home: Path, *lives: Life | Exception, chance: float = 0.5, **definition: Any
) -> AsyncIterator[World]:
    """Run a server with these lives until the block ends."""
    events: list[tuple[float, Event]] = []
    around = surroundings(home, lambda event: events.append((trio.current_time(), event)), chance)
    script = Script(list(lives) or [Life()])
    spec = StdioSpec(name="it", command="/bin/sh", **definition)
    world = World(ManagedServer(spec, around), script, events)
    with scripted({"it": script}):
        async with trio.open_nursery() as nursery:
            nursery.start_soon(world.server.run)
            try:
                yield world
            finally:
                nursery.cancel_scope.cancel()

"""The client library with the real daemon, under trio and asyncio."""

from __future__ import annotations

import asyncio
import json
import signal
import socket
import subprocess
import sys
import threading
import warnings
from collections.abc import Awaitable, Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

import anyio
import pytest
import trio

from mcpd.client import (
    CallTimedOut,
    ClientError,
    ConnectionClosed,
    InvalidCall,
    Mcp,
    NotReady,
    NotRunning,
    ServerRefused,
    Tool,
    ToolFailed,
    Unknown,
    connect,
)
from mcpd.client.mcpd_client import PERMISSIVE
from tests.e2e.conftest import start
from tests.e2e.harness import BOUND, Daemon, fake, in_flight

__all__ = ["start"]

Start = Any
EXAMPLES = Path(__file__).parents[2] / "examples"


@pytest.fixture(params=["trio", "asyncio"])
def run(request: pytest.FixtureRequest) -> Callable[[Callable[[], Awaitable[None]]], None]:
    """Run a coroutine function under trio or asyncio, with a time limit."""

    def bounded(work: Callable[[], Awaitable[None]]) -> None:
        async def main() -> None:
            with anyio.fail_after(BOUND):
                await work()

        if request.param == "trio":
            trio.run(main)
        else:
            asyncio.run(main())

    return bounded


def test_tools_are_listed_with_descriptions_and_schemas(start: Start, run: Any) -> None:
    """One list covers several servers; names, descriptions and schemas are unchanged."""
    daemon = start({"fs": fake(), "other": fake()})
    daemon.wait_connected("fs", "other")

    async def work() -> None:
        async with connect(daemon.socket) as mcp:
            every = await mcp.list_tools()
            assert {tool.server for tool in every} == {"fs", "other"}
            assert len({tool.name for tool in every}) == len(every)
            echo = next(tool for tool in await mcp.list_tools(prefix="fs") if tool.tool == "echo")
            assert (echo.name, echo.server, echo.schema) == ("fs__echo", "fs", {"type": "object"})
            result = await echo.execute({"a": 1}, b="two")
            assert json.loads(result.output) == {"a": 1, "b": "two"}
            with pytest.raises(Unknown, match="did you mean"):
                await mcp.list_tools(server="fss")

    run(work)


def test_concurrent_calls_return_to_their_own_callers(start: Start, run: Any) -> None:
    """Any number of tasks can call concurrently over one connection."""
    daemon = start({"fs": fake()})
    daemon.wait_connected("fs")

    async def work() -> None:
        async with connect(daemon.socket) as mcp, anyio.create_task_group() as tasks:
            for number in range(50):
                tasks.start_soon(echo_own, mcp, number)

    async def echo_own(mcp: Mcp, number: int) -> None:
        result = await mcp.call("fs", "echo", {"n": number})
        assert json.loads(result.output) == {"n": number}

    run(work)


def test_failures_raise_specific_exceptions(start: Start, run: Any) -> None:
    """Each failure raises its own exception with a useful message."""
    daemon = start({"fs": fake(), "off": fake(enabled=False), "typed": fake("--bad-tools")})
    daemon.wait_connected("fs")

    async def work() -> None:
        async with connect(daemon.socket) as mcp:
            for error, call in (
                (Unknown, mcp.call("nowhere", "echo")),
                (Unknown, mcp.call("fs", "ecko")),
                (NotReady, mcp.call("off", "echo")),
                (CallTimedOut, mcp.call("fs", "drop", timeout=0.2)),
                (ToolFailed, mcp.call("fs", "fail")),
            ):
                with pytest.raises(error):
                    await call
            with pytest.raises(ToolFailed) as failed:
                await mcp.call("fs", "fail")
            assert (failed.value.code, failed.value.may_have_run) == ("tool_error", True)  # it has
            with pytest.raises(ServerRefused) as refused:
                await mcp.call("fs", "error")
            assert (refused.value.code, refused.value.may_have_run) == ("upstream_error", True)
            with pytest.raises(ClientError) as lost:
                await mcp.call("fs", "die", {"how": "KILL"})
            assert lost.value.may_have_run
            assert isinstance(lost.value, ClientError)

    run(work)
    with pytest.raises(NotRunning, match="mcpctl daemon start"):
        trio.run(connect_to, daemon.socket + "-none")


async def connect_to(path: str) -> None:
    async with connect(path):
        pass


def test_a_cancelled_call_is_cancelled_at_the_server(start: Start, run: Any) -> None:
    daemon = start({"fs": fake()})
    daemon.wait_connected("fs")

    async def work() -> None:
        async with connect(daemon.socket) as mcp:
            async with anyio.create_task_group() as tasks:
                tasks.start_soon(mcp.call, "fs", "drop")
                await anyio.to_thread.run_sync(in_flight, daemon, "fs", 1)
                tasks.cancel_scope.cancel()
            counts = json.loads((await mcp.call("fs", "counts")).output)
            assert len(counts["cancelled"]) == 1

    run(work)


def test_pending_calls_fail_when_the_daemon_dies(start: Start, run: Any) -> None:
    """The error says that the call may have run."""
    daemon: Daemon = start({"fs": fake()})
    daemon.wait_connected("fs")

    async def work() -> None:
        async with connect(daemon.socket) as mcp:
            async with anyio.create_task_group() as tasks:
                tasks.start_soon(kill_when_called, daemon)
                with pytest.raises(ConnectionClosed) as closed:
                    await mcp.call("fs", "drop")
                assert closed.value.may_have_run
            with pytest.raises(ConnectionClosed):
                await mcp.status()

    run(work)


async def kill_when_called(daemon: Daemon) -> None:
    await anyio.to_thread.run_sync(in_flight, daemon, "fs", 1)
    daemon.process.send_signal(signal.SIGKILL)


def test_progress_is_reported_while_a_call_runs(start: Start, run: Any) -> None:
    daemon = start({"fs": fake()})
    daemon.wait_connected("fs")
    told: list[float] = []

    async def work() -> None:
        async with connect(daemon.socket) as mcp:
            await mcp.call(
                "fs", "progress", {"total": 0.3}, progress=lambda done, total, words: told.append(done)
            )

    run(work)
    assert told
    assert told == sorted(told)


def test_exception_of_a_progress_callback_is_raised_in_its_call(start: Start, run: Any) -> None:
    """The connection and its other calls are not affected."""
    daemon = start({"fs": fake()})
    daemon.wait_connected("fs")

    def broken(*_: object) -> None:
        raise KeyError("a bug of the program")

    async def work() -> None:
        async with connect(daemon.socket) as mcp:
            with pytest.raises(KeyError, match="a bug of the program"):
                await mcp.call("fs", "progress", {"total": 20}, progress=broken)
            assert (await mcp.call("fs", "echo", {"text": "still there"})).success

    run(work)


def test_call_to_a_stopped_daemon_times_out(
    tmp_path: Path, run: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A stopped process still accepts connections, and the kernel buffers part of a request."""
    monkeypatch.setattr("mcpd.client.mcpd_client._SEND_TIMEOUT", 0.3)
    path = str(tmp_path / "d.sock")

    async def work() -> None:
        async with connect(path) as mcp:
            with pytest.raises(ConnectionClosed, match="has not read its input"):
                await mcp.call("fs", "echo", {"text": "x" * (16 << 20)})
            with pytest.raises(ConnectionClosed, match="has not read its input"):
                await mcp.status()

    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as deaf:
        deaf.bind(path)
        deaf.listen()
        run(work)


def test_endless_response_ends_the_connection(
    tmp_path: Path, run: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The memory of the client stays bounded, too."""
    monkeypatch.setattr("mcpd.client.mcpd_client._MAX_LINE", 1 << 20)
    path = str(tmp_path / "d.sock")

    async def work() -> None:
        async with connect(path) as mcp:
            with pytest.raises(ConnectionClosed, match="longer than the limit"):
                await mcp.status()

    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as listener:
        listener.bind(path)
        listener.listen()

        def talk() -> None:
            with listener.accept()[0] as endless, suppress(OSError):
                while True:
                    endless.sendall(b"x" * 65536)

        talking = threading.Thread(target=talk)
        talking.start()
        run(work)
        talking.join()


def test_unconvertible_schema_becomes_permissive() -> None:
    """A tool whose schema cannot be converted accepts any object."""
    tool = Tool(
        name="s__t",
        server="s",
        tool="t",
        title="",
        description="",
        schema={"type": "array"},
        output_schema=None,
        annotations={},
        definition={},
        mcp=None,  # type: ignore[arg-type] # not used here
    )

    def convert(schema: Any) -> Any:
        if schema["type"] != "object":
            raise ValueError("not an object")
        return schema

    with warnings.catch_warnings(record=True) as warned:
        warnings.simplefilter("always")
        assert tool.converted(convert) == PERMISSIVE
    assert "s__t" in str(warned[0].message)


def test_invalid_arguments_are_not_sent(start: Start, run: Any) -> None:
    """Invalid arguments for the real time server raise InvalidCall and are not sent."""
    bin_dir = Path(sys.executable).parent
    daemon = start(
        {"time": {"command": str(bin_dir / "mcp-server-time"), "args": ["--local-timezone", "UTC"]}}
    )
    daemon.wait_connected("time")

    async def work() -> None:
        async with connect(daemon.socket) as mcp:
            with pytest.raises(InvalidCall, match="timezone"):
                await mcp.call("time", "get_current_time", {"timezone": 5})

    run(work)


@pytest.mark.parametrize(
    ("example", "says"), [("agent_trio.py", "tools to call"), ("agent_asyncio.py", "Asia/Tokyo")]
)
def test_the_example_agents_run(start: Start, example: str, says: str) -> None:
    bin_dir = Path(sys.executable).parent
    daemon = start(
        {"time": {"command": str(bin_dir / "mcp-server-time"), "args": ["--local-timezone", "UTC"]}}
    )
    daemon.wait_connected("time")
    done = subprocess.run(
        [sys.executable, str(EXAMPLES / example)],
        env=dict(daemon.environ),
        capture_output=True,
        text=True,
        timeout=2 * BOUND,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert says in done.stdout

"""The client library with the real daemon, under trio and asyncio."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import sys
import warnings
from collections.abc import Awaitable, Callable
from functools import partial
from pathlib import Path
from typing import Any

import anyio
import pytest
import trio

from mcpd.client import (
    CallTimedOut,
    ClientError,
    ConnectionClosed,
    Denied,
    LoginRequired,
    Mcp,
    NotReady,
    NotRunning,
    ServerRefused,
    Tool,
    ToolFailed,
    Unknown,
    connect,
)
from mcpd.client.errors import error_from_response
from mcpd.client.mcpd_client import PERMISSIVE
from mcpd.client.sync import connect as connect_sync
from tests.e2e.conftest import start
from tests.e2e.harness import BOUND, fake, in_flight, private_environment, wait_until
from tests.example_server import TEST_SERVER

__all__ = ["start"]

Start = Any
BUNDLED = {"command": sys.executable, "args": [TEST_SERVER]}


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
            (echo,) = await mcp.list_tools(server="fs", match="ech?")
            assert [tool.name for tool in await mcp.find_tools("echoing")][:1] == ["fs__echo"]
            assert (echo.name, echo.server, echo.schema) == ("fs__echo", "fs", {"type": "object"})
            assert echo.description.startswith("[fs]")
            assert echo.definition.get("description", "") == echo.description.removeprefix("[fs]").strip()
            assert len(repr(echo)) < 300
            result = await echo.execute({"a": 1}, b="two")
            assert json.loads(result.output) == {"a": 1, "b": "two"}
            with pytest.raises(Unknown, match="did you mean"):
                await mcp.list_tools(server="fss")

    run(work)


def test_option_with_the_name_of_an_argument_is_refused() -> None:
    """`execute(timeout=5)` of a tool with an argument `timeout` must not be lost silently."""
    tool = make_tool({"type": "object", "properties": {"timeout": {"type": "number"}}})
    with pytest.raises(TypeError, match=r"execute\(\{'timeout': 5\}\)"):
        trio.run(partial(tool.execute, timeout=5))


def test_name_and_profile_of_a_program(start: Start, run: Any) -> None:
    """The profile limits lists and calls; the name is shown, and policies compare it."""
    settings = {
        "profiles": {"work": {"servers": ["fs"], "excludeTools": ["fail"]}},
        "policies": [{"decision": "deny", "clients": ["nightly"], "tools": ["stderr"]}],
    }
    daemon = start({"fs": fake(), "other": fake(), "gone": {"command": "no-such"}}, settings=settings)
    daemon.wait_connected("fs", "other")

    async def work() -> None:
        async with connect(daemon.socket, profile="work", client="nightly") as mcp:
            tools = await mcp.list_tools()
            names = {tool.name for tool in tools}
            assert "fs__echo" in names
            assert not names & {"fs__fail", "fs__stderr", "other__echo"}
            assert tools.missing == ()
            assert (await mcp.call("fs", "echo")).success
            with pytest.raises(Unknown, match="'fail' is not in the profile 'work'"):
                await mcp.call("fs", "fail")
            with pytest.raises(Unknown, match="other: not in the profile 'work'"):
                await mcp.call("other", "echo")
            with pytest.raises(Denied, match="denies it"):
                await mcp.call("fs", "stderr", {"text": "x"})
        with pytest.raises(Unknown, match="no profile named 'wrok'"):
            async with connect(daemon.socket, profile="wrok"):
                pass
        async with connect(daemon.socket) as mcp:
            assert {"fs__fail", "other__echo"} <= {tool.name for tool in await mcp.list_tools()}
            assert [each.server for each in (await mcp.list_tools()).missing] == ["gone"]
            assert (await mcp.call("other", "echo")).success

    run(work)


def test_needed_login_has_its_own_exception() -> None:
    """Both from a call that was refused, and from a server that already waits for a login."""
    for data in ({"code": "auth_required"}, {"code": "not_ready", "state": "needs-auth"}):
        assert type(error_from_response({"message": "m", "data": data})) is LoginRequired
    assert type(error_from_response({"message": "m", "data": {"code": "not_ready"}})) is NotReady


def test_daemon_is_started_if_necessary(tmp_path: Path, run: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """As by every `mcpctl` command, and by the next request after it was killed."""
    monkeypatch.setattr("mcpd.client.connection._RESTART_TIME", float(BOUND))
    for name, value in private_environment(tmp_path).items():
        monkeypatch.setenv(name, value)
    for name in ("MCPD_SOCKET", "MCPD_CONFIG", "MCPD_SERVERS"):
        monkeypatch.delenv(name, raising=False)

    async def work() -> None:
        async with connect() as mcp:
            pids.append((await mcp.status())["daemon"]["pid"])
            os.kill(pids[0], signal.SIGKILL)
            pids.append((await mcp.status())["daemon"]["pid"])

    pids: list[int] = []
    try:
        run(work)
    finally:
        for pid in pids[1:]:
            os.kill(pid, signal.SIGTERM)
    assert pids[0] != pids[1]
    wait_until(lambda: not exists(pids[1]), lambda: "the daemon still runs")


def test_daemon_at_another_path_is_not_started(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The path may be wrong, and a second daemon would start all servers a second time."""
    started: list[str | None] = []

    async def start_daemon(path: str | None) -> None:
        started.append(path)

    async def connect_to(path: str | Path | None, start: bool | None) -> None:
        async with connect(path, start=start):
            pass

    monkeypatch.setattr("mcpd.client.connecting._start_daemon", start_daemon)
    own, other = str(tmp_path / "own.sock"), str(tmp_path / "other one.sock")
    monkeypatch.setenv("MCPD_SOCKET", own)
    with pytest.raises(NotRunning):  # also as a Path
        trio.run(connect_to, tmp_path / "other one.sock", None)
    for path, may_start, expected in (
        (other, None, f"mcpd is not running at {other}"),
        (other, False, f"mcpctl --socket '{other}' daemon start"),
        (own, False, f"mcpd is not running at {own}"),
    ):
        with pytest.raises(NotRunning) as missing:
            trio.run(connect_to, path, may_start)
        assert expected in str(missing.value)
    assert started == []
    for where, allowed in ((other, True), (own, None), (None, None)):
        with pytest.raises(NotRunning):  # because nothing was started
            trio.run(connect_to, where, allowed)
        assert started.pop() == where


def exists(pid: int | str) -> bool:
    return Path(f"/proc/{pid}").exists()


# ── without async functions ─────────────────────────────────────────────────────────────────────────


def test_synchronous_client_does_the_same(start: Start) -> None:
    daemon = start({"test": BUNDLED})
    daemon.wait_connected("test")
    with connect_sync(daemon.socket) as mcp:
        (echo,) = mcp.list_tools(server="test", prefix="t", match="echo")
        assert (echo.name, echo.server, echo.execute(text="hello").output) == ("t_echo", "test", "hello")
        assert echo.converted(dict) == echo.schema
        with pytest.raises(ToolFailed):
            mcp.call("test", "fail")
        (resource, *_) = mcp.list_resources()
        assert resource.read()[0]["uri"] == resource.uri
        assert mcp.list_resource_templates()
        (prompt, *_) = mcp.list_prompts()
        assert prompt.get({argument["name"]: "x" for argument in prompt.arguments})
        assert mcp.read("test", resource.uri)
        assert mcp.prompt("test", prompt.name, {argument["name"]: "x" for argument in prompt.arguments})
        assert mcp.connection.request("mcpd/status").keys() == mcp.status().keys()
        mcp.close()
        with pytest.raises(ConnectionClosed):
            mcp.status()


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
    with pytest.raises(NotRunning, match=r"daemon start`$"):
        trio.run(connect_to, daemon.socket + "-none")


async def connect_to(path: str) -> None:
    async with connect(path, start=False):
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


def test_progress_is_reported_while_a_call_runs(start: Start, run: Any) -> None:
    daemon = start({"fs": fake()})
    daemon.wait_connected("fs")
    received: list[float] = []

    async def work() -> None:
        async with connect(daemon.socket) as mcp:
            await mcp.call(
                "fs", "progress", {"total": 0.3}, progress=lambda done, total, words: received.append(done)
            )

    run(work)
    assert received
    assert received == sorted(received)


def make_tool(schema: dict[str, Any]) -> Tool:
    return Tool(
        name="s__t",
        server="s",
        tool="t",
        title="",
        description="",
        schema=schema,
        output_schema=None,
        annotations={},
        definition={},
        mcp=None,  # type: ignore[arg-type] # not used here
    )


def test_unconvertible_schema_becomes_permissive() -> None:
    """A tool whose schema cannot be converted accepts any object."""
    tool = make_tool({"type": "array"})

    def convert(schema: Any) -> Any:
        if schema["type"] != "object":
            raise ValueError("not an object")
        return schema

    with warnings.catch_warnings(record=True) as warned:
        warnings.simplefilter("always")
        assert tool.converted(convert) == PERMISSIVE
    assert "s__t" in str(warned[0].message)

"""Tools are called by the names that models see, and lists say what they lack."""

from __future__ import annotations

import logging
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import anyio.to_thread
import pytest

from mcpd.client import InvalidCall, MissingServer, Unknown
from mcpd.client import connect as connect_async
from mcpd.client.sync import connect
from mcpd.model.status import ServerState
from tests.ctl.fake_daemon import Caller, FakeDaemon, Fault, Silence

DONE = {"success": True, "output": "done", "data": None, "error": None, "content": [], "warnings": []}


@pytest.fixture
def daemon() -> Iterator[FakeDaemon]:
    with tempfile.TemporaryDirectory(prefix="t-", dir="/tmp") as directory:
        fake = FakeDaemon(Path(directory) / "d.sock")
        fake.answers |= {
            "mcpd/tools": {"tools": [{"server": "time", "name": "now"}], "dropped": 0},
            "mcpd/status": {"servers": [{"name": "time"}, {"name": "git"}]},
            "mcpd/call": DONE,
        }
        yield fake
        fake.close()


def called(daemon: FakeDaemon) -> tuple[Any, ...]:
    sent = daemon.params_of("mcpd/call")
    return sent["server"], sent["tool"], sent["arguments"]


def test_call_accepts_the_name_that_models_see(daemon: FakeDaemon) -> None:
    """It is looked up when it is first used, and again after it turned out to be wrong."""
    with connect(str(daemon.path), start=False) as mcp:
        assert mcp.call("time__now", {"zone": "UTC"}).output == "done"
        assert called(daemon) == ("time", "now", {"zone": "UTC"})
        mcp.call("time__now")
        assert called(daemon) == ("time", "now", {})
        mcp.call("git__git_status", arguments={"repo": "."})  # of a server that has not started yet
        assert called(daemon) == ("git", "git_status", {"repo": "."})
        mcp.call("time", "now", {"zone": "UTC"})
        methods = [method for method, _ in daemon.requests]
        assert (methods.count("mcpd/tools"), methods.count("mcpd/status")) == (2, 1)
        daemon.answers["mcpd/call"] = Fault("no such tool", code="unknown_tool")
        for _ in range(2):
            with pytest.raises(Unknown):
                mcp.call("time__now")
        assert [method for method, _ in daemon.requests].count("mcpd/tools") == 3


def test_unclear_names_are_refused(daemon: FakeDaemon) -> None:
    """Nothing is called."""
    with connect(str(daemon.path), start=False) as mcp:
        with pytest.raises(Unknown, match="did you mean time__now") as unknown:
            mcp.call("time_now")
        assert not unknown.value.may_have_run
        tools = [{"server": "mcp_a", "name": "b"}, {"server": "a", "name": "_b"}]
        daemon.answers["mcpd/tools"] = {"tools": tools, "dropped": 0}
        with pytest.raises(InvalidCall, match=r"call\('mcp_a', 'b', …\) or call\('a', '_b', …\)"):
            mcp.call("mcp_a__b", {})
        with pytest.raises(TypeError, match="only once"):
            mcp.call("time__now", {}, {})  # type: ignore[call-overload]
    assert "mcpd/call" not in [method for method, _ in daemon.requests]


def test_list_of_tools_says_which_servers_are_missing(
    daemon: FakeDaemon, caplog: pytest.LogCaptureFixture
) -> None:
    """In an attribute, and once in the log of the program."""
    tools = [{"server": "time", "name": "now"}]
    missing = [{"server": "git", "state": "failed", "reason": "git has failed: no token"}]
    daemon.answers["mcpd/tools"] = {"tools": tools, "dropped": 0, "missing": missing}
    with connect(str(daemon.path), start=False) as mcp, caplog.at_level(logging.WARNING):
        for _ in range(2):
            listed = mcp.list_tools()
            assert listed.missing == (
                MissingServer(server="git", state=ServerState.FAILED, reason="git has failed: no token"),
            )
        assert [record.message for record in caplog.records] == [
            "the tools of git are not listed: git has failed: no token"
        ]
        daemon.answers["mcpd/resources"] = {"resources": [], "resource_templates": [], "missing": missing}
        daemon.answers["mcpd/prompts"] = {"prompts": [], "missing": missing}
        for empty in (mcp.list_resources(), mcp.list_resource_templates(), mcp.list_prompts()):
            assert (list(empty), [each.server for each in empty.missing]) == ([], ["git"])


@pytest.mark.parametrize(
    ("arguments", "error"),
    [
        ({"limit": float("nan")}, InvalidCall),
        ({"text": "\ud800"}, InvalidCall),
        ({"o": {"a": [0, {3, 1}]}}, TypeError),
        ({"b": b"x"}, TypeError),
        ('{"a": 1}', TypeError),
    ],
)
def test_arguments_that_json_does_not_have_are_refused(
    daemon: FakeDaemon, arguments: Any, error: type[Exception]
) -> None:
    """Before anything is sent."""
    with connect(daemon.path, start=False) as mcp:
        with pytest.raises(error) as raised:
            mcp.call("time", "now", arguments)
        assert not isinstance(raised.value, InvalidCall) or not raised.value.may_have_run
        assert not daemon.requests
        mcp.call("time", "now", {"null": None, "n": 1e308})
        assert called(daemon)[2] == {"null": None, "n": 1e308}


@pytest.mark.parametrize("timeout", [0, -1, float("nan")])
def test_timeout_must_be_above_0(daemon: FakeDaemon, timeout: float) -> None:
    with connect(str(daemon.path), start=False) as mcp:
        with pytest.raises(InvalidCall, match="above 0") as raised:
            mcp.call("time", "now", timeout=timeout)
        assert not raised.value.may_have_run
        assert not daemon.requests


@pytest.mark.parametrize("backend", ["asyncio", "trio"])
def test_connection_of_another_event_loop_is_refused(daemon: FakeDaemon, backend: str) -> None:
    """It would wait there forever, and not even a cancellation would end that."""

    async def work() -> None:
        async with connect_async(str(daemon.path), start=False) as mcp:
            with pytest.raises(RuntimeError, match="belongs to another event loop"):
                await anyio.to_thread.run_sync(anyio.run, mcp.status)
            assert await mcp.status()

    anyio.run(work, backend=backend)


def test_tool_has_the_names_of_mcpctl(daemon: FakeDaemon) -> None:
    tool = {"server": "time", "name": "now", "qualified_name": "now@time", "tags": ["clock"]}
    daemon.answers["mcpd/tools"] = {"tools": [tool], "dropped": 0}
    with connect(str(daemon.path), start=False) as mcp:
        (found,) = mcp.list_tools()
    assert (found.name, found.tool, found.qualified_name) == ("time__now", "now", "now@time")
    assert found.tags == ("clock",)


def test_exception_of_a_progress_callback_cancels_the_call(daemon: FakeDaemon) -> None:
    """The caller gets it as it is, and the connection can still be used."""

    def report(caller: Caller, params: dict[str, Any]) -> object:
        caller.notify("notifications/progress", {"progressToken": caller.request, "progress": 1})
        return Silence()

    def broken(*_: object) -> None:
        raise KeyError("a bug of the program")

    daemon.answers["mcpd/call"] = report
    with connect(str(daemon.path), start=False) as mcp:
        for timeout in (None, 60):
            daemon.requests.clear()
            with pytest.raises(KeyError, match="a bug of the program"):
                mcp.call("time", "now", progress=broken, timeout=timeout)
            assert daemon.wait_for("notifications/cancelled")["requestId"]
        assert mcp.status()["servers"]

"""Tools are called by the names that models see, and lists say what they lack."""

from __future__ import annotations

import logging
import tempfile
from collections import OrderedDict
from collections.abc import Iterator
from datetime import date
from decimal import Decimal
from enum import StrEnum
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from mcpd.client import InvalidCall, MissingServer, ToolList, Unknown
from mcpd.client.sync import connect
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
            assert isinstance(listed, ToolList)
            assert listed == list(listed)
            assert listed.missing == (MissingServer("git", "failed", "git has failed: no token"),)
        assert [record.message for record in caplog.records] == [
            "the tools of git are not listed: git has failed: no token"
        ]
        daemon.answers["mcpd/resources"] = {"resources": [], "resource_templates": [], "missing": missing}
        daemon.answers["mcpd/prompts"] = {"prompts": [], "missing": missing}
        for empty in (mcp.list_resources(), mcp.list_resource_templates(), mcp.list_prompts()):
            assert (list(empty), [each.server for each in empty.missing]) == ([], ["git"])


@pytest.mark.parametrize(
    ("arguments", "error", "says"),
    [
        ({"n": 1, "limit": float("nan")}, InvalidCall, "the argument limit is NaN"),
        ({"a": [None, {"b": float("-inf")}]}, InvalidCall, r"the argument a\[1\].b is -Infinity"),
        ({"text": "\ud800"}, InvalidCall, "the argument text cannot be sent as JSON: .*surrogates"),
        ({"n": 1, "z": 1j}, TypeError, "the argument z cannot be sent as JSON: .*complex"),
        (
            {"n": 1, "o": {"a": [0, {3, 1}]}},
            TypeError,
            r"the argument o\.a\[1\] .* it is of type set; pass a str",
        ),
        ({"b": b"x"}, TypeError, "the argument b cannot be sent as JSON: .* bytes"),
        ({"d": [Decimal("1.5")]}, TypeError, r"the argument d\[0\] .* of type decimal\.Decimal"),
        ({"at": date(2026, 1, 2)}, TypeError, r"the argument at .* of type datetime\.date"),
        ({"k": {1: "one"}}, TypeError, "the argument k .* its key 1 is of type int; pass a str"),
        ({"k": {None: "one"}}, TypeError, "the argument k .* its key None is of type NoneType; pass a str"),
        (["zone", "UTC"], TypeError, "the arguments must be a mapping .*, not list"),
        ("UTC", TypeError, "the arguments must be a mapping .*, not str"),
    ],
)
def test_arguments_that_json_does_not_have_are_refused(
    daemon: FakeDaemon, arguments: Any, error: type[Exception], says: str
) -> None:
    """Before anything is sent. The error names the argument."""
    with connect(str(daemon.path), start=False) as mcp:
        (tool,) = mcp.list_tools()
        daemon.requests.clear()
        for call in (partial(mcp.call, "time", "now"), tool.execute, partial(mcp.prompt, "time", "now")):
            with pytest.raises(error, match=says) as raised:
                call(arguments)
            assert not isinstance(raised.value, InvalidCall) or not raised.value.may_have_run
        assert not daemon.requests
        mcp.call("time", "now", {"null": None, "n": 1e308})
        assert called(daemon)[2] == {"null": None, "n": 1e308}


def test_subclasses_of_the_types_of_json_are_sent(daemon: FakeDaemon) -> None:
    class Text(str): ...

    class Number(float): ...

    class Color(StrEnum):
        RED = "red"

    with connect(str(daemon.path), start=False) as mcp:
        given = {
            "e": Color.RED,
            "t": [Text("x"), {Color.RED: (Number(1.5), True)}],
            "o": OrderedDict(a=2**70),
        }
        mcp.call("time", "now", given)
        assert called(daemon)[2] == {"e": "red", "t": ["x", {"red": [1.5, True]}], "o": {"a": 2**70}}
        with pytest.raises(InvalidCall, match="the argument n is NaN"):
            mcp.call("time", "now", {"n": Number("nan")})
        loop: list[object] = []
        loop.append(loop)
        with pytest.raises(InvalidCall, match="the argument loop cannot be sent as JSON"):
            mcp.call("time", "now", {"loop": loop})


@pytest.mark.parametrize(
    ("timeout", "error"),
    [
        (float("nan"), InvalidCall),
        (float("inf"), InvalidCall),
        (0, InvalidCall),
        (-1, InvalidCall),
        ("x", TypeError),
    ],
)
def test_timeout_must_be_finite_and_above_zero(
    daemon: FakeDaemon, timeout: Any, error: type[Exception]
) -> None:
    message = f"the timeout must be a number of seconds above 0, .* not {timeout!r}"
    with connect(str(daemon.path), start=False) as mcp, pytest.raises(error, match=message) as refused:
        mcp.call("time", "now", timeout=timeout)
    assert not daemon.requests
    assert not getattr(refused.value, "may_have_run", False)


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


async def forward(progress: float, total: float | None, message: str) -> None: ...


def test_progress_callback_that_would_have_to_be_awaited_is_refused(daemon: FakeDaemon) -> None:
    """At once if it is an async function, else when it is first called."""

    def report(caller: Caller, params: dict[str, Any]) -> object:
        caller.notify("notifications/progress", {"progressToken": caller.request, "progress": 1})
        return Silence()

    daemon.answers["mcpd/call"] = report
    with connect(str(daemon.path), start=False) as mcp:
        for wrong in (forward, partial(forward)):
            with pytest.raises(TypeError, match="not awaited"):
                mcp.call("time", "now", progress=wrong)  # type: ignore[arg-type]
        assert not daemon.requests
        with pytest.raises(TypeError, match="not awaited"):
            mcp.call("time", "now", progress=lambda *report: forward(*report))  # type: ignore[arg-type]

"""`mcpctl call`: arguments, results and errors."""

from __future__ import annotations

import io
import json
from pathlib import Path
from typing import Any

import pytest

from tests.ctl.conftest import Mcpctl
from tests.ctl.fake_daemon import Caller, FakeDaemon, Silence, server, status


def result(output: str = "", **more: object) -> dict[str, object]:
    return {
        "success": True,
        "output": output,
        "data": None,
        "error": None,
        "content": [],
        "warnings": [],
        **more,
    }


def test_qualified_name_of_a_server_that_has_not_started(daemon: FakeDaemon, mcpctl: Mcpctl) -> None:
    """Its tools are not known, but its name is."""
    daemon.answers["mcpd/tools"] = {"tools": [], "dropped": 0}
    daemon.answers["mcpd/status"] = status(server("git"), server("time"))
    daemon.answers["mcpd/call"] = result("clean")
    assert mcpctl("call", "git__git_status", "repo=.").out == "clean\n"
    sent = daemon.params_of("mcpd/call")
    assert (sent["server"], sent["tool"], sent["arguments"]) == ("git", "git_status", {"repo": "."})


def test_arguments_from_json_file_or_stdin(
    daemon: FakeDaemon, mcpctl: Mcpctl, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """KEY=VALUE arguments override them."""
    daemon.answers["mcpd/call"] = result()
    file = tmp_path / "args.json"
    file.write_text('{"a": [1]}')
    monkeypatch.setattr("sys.stdin", io.TextIOWrapper(io.BytesIO(b'{"a": [1]}')))
    for source in ('{"a": [1]}', f"@{file}", "-"):
        assert mcpctl("call", "t@s", "--args", source, "b=2").code == 0
        assert daemon.params_of("mcpd/call")["arguments"] == {"a": [1], "b": "2"}


def test_trace_context_is_forwarded(daemon: FakeDaemon, mcpctl: Mcpctl) -> None:
    """OpenTelemetry passes trace context to child processes in the environment."""
    daemon.answers["mcpd/call"] = result()
    parent = "00-0af7651916cd43dd8448eb211c80319c-00f067aa0ba902b7-01"
    mcpctl("call", "now@time", TRACEPARENT=parent, TRACESTATE="rojo=1")
    ((_, sent),) = [each for each in daemon.requests if each[0] == "mcpd/call"]
    assert sent["_meta"] == {"traceparent": parent, "tracestate": "rojo=1", "progressToken": 1}
    mcpctl("call", "now@time", BAGGAGE="a=b")
    assert "baggage" not in daemon.requests[-1][1]["_meta"]


def test_timeout_limits_the_wait_for_the_types_of_the_arguments(daemon: FakeDaemon, mcpctl: Mcpctl) -> None:
    """A server that does not list its tools gets no call, and the error says that nothing was sent."""
    daemon.answers["mcpd/tools"] = lambda caller, params: Silence()
    ran = mcpctl("call", "now@time", "zone=UTC", "--timeout", "0.2", "--json")
    assert ran.code == 7
    error = json.loads(ran.err)["error"]
    assert error["message"].startswith("time did not list its tools, ")
    assert (error["code"], error["may_have_run"], error["next"]) == ("timeout", False, "mcpctl why time")
    assert "mcpd/call" not in dict(daemon.requests)


SUM = {
    "server": "math",
    "name": "get-sum",
    "inputSchema": {
        "type": "object",
        "properties": {
            "a": {"type": "number"},
            "b": {"type": ["integer", "null"]},
            "exact": {"type": "boolean"},
            "list": {"anyOf": [{"type": "array"}, {"type": "null"}]},
            "round_to": {"type": "integer"},
            "note": {"type": "string"},
            "any": {},
            "mixed": {"type": ["string", "number"]},
        },
    },
}


@pytest.mark.parametrize(
    ("words", "arguments"),
    [
        (["a=1", "b=2"], {"a": 1, "b": 2}),
        (["a=1.5", "b=null", "exact=true", "list=[1]"], {"a": 1.5, "b": None, "exact": True, "list": [1]}),
        (["note=1", "any=1", "mixed=1"], {"note": "1", "any": "1", "mixed": "1"}),  # text where it is allowed
        (["a=one", "b=1.5", "exact=1"], {"a": "one", "b": "1.5", "exact": "1"}),  # reported by the daemon
        (["a=1", "note=x=y", "round_to=2"], {"a": 1, "note": "x=y", "round_to": 2}),
        (['{"a": 1, "b": 2}', "b=3"], {"a": 1, "b": 3}),
        (["a:=2", "note=a=b"], {"a": 2, "note": "a=b"}),
    ],
)
@pytest.mark.parametrize(
    "target", [["math.get-sum"], ["math", "get-sum"], ["get-sum@math"], ["math__get-sum"]]
)
def test_schema_decides_the_types_of_arguments(
    daemon: FakeDaemon, mcpctl: Mcpctl, target: list[str], words: list[str], arguments: dict[str, Any]
) -> None:
    daemon.answers["mcpd/tools"] = {"tools": [SUM], "dropped": 0}
    daemon.answers["mcpd/call"] = result("3")
    ran = mcpctl("call", *target, *words)
    assert (ran.code, ran.err) == (0, "")
    sent = daemon.params_of("mcpd/call")
    assert (sent["server"], sent["tool"], sent["arguments"]) == ("math", "get-sum", arguments)
    assert repr(sent["arguments"]) == repr(arguments)  # 1 is not True


def test_lost_connection_exits_with_3(daemon: FakeDaemon, mcpctl: Mcpctl) -> None:
    """Without a traceback."""

    def answer(caller: Caller, _: dict[str, Any]) -> object:
        caller.hang_up()
        return {}

    daemon.answers["mcpd/call"] = answer
    ran = mcpctl("call", "now@time")
    assert (ran.code, "closed the connection" in ran.err) == (3, True)
    assert "\nnote: it may have run: check its effect before you repeat it\n" in ran.err
    error = mcpctl("call", "now@time", "--json").error()
    assert (error["code"], error["exit"], error["may_have_run"]) == ("daemon_unreachable", 3, True)


@pytest.mark.parametrize(
    ("words", "code"),
    [
        (["now@time", "--socket", "/nowhere/mcpd.sock"], 3),
        (["now", "--socket", "/nowhere/mcpd.sock"], 3),  # it may be the tool of one server
        (["now@time", "x"], 2),
        (["now@time", "--args", "{"], 2),
    ],
)
def test_call_that_was_not_sent_has_not_run(
    daemon: FakeDaemon, mcpctl: Mcpctl, words: list[str], code: int
) -> None:
    error = mcpctl("call", *words, "--json").error()
    assert (error["may_have_run"], error["exit"]) == (False, code)
    assert "may have run" not in mcpctl("call", *words).err


def test_lost_daemon_during_a_change_is_reported_with_its_effect(daemon: FakeDaemon, mcpctl: Mcpctl) -> None:
    """Not for a command that only reads, which is safe to repeat."""

    def hang_up(caller: Caller, _: dict[str, Any]) -> object:
        caller.hang_up()
        return {}

    daemon.answers |= dict.fromkeys(("mcpd/remove", "mcpd/tools"), hang_up)
    assert mcpctl("remove", "git", "--yes", "--json").error()["may_have_run"] is True
    assert "may_have_run" not in mcpctl("list-tools", "--json").error()


@pytest.mark.parametrize("line", ["nonsense", "[]", '{"a" 1}', '{"a":1', "\ufeff{}"])
def test_other_program_on_the_socket_exits_with_3(daemon: FakeDaemon, mcpctl: Mcpctl, line: str) -> None:
    """An invalid response does not cause a traceback."""

    def answer(caller: Caller, _: dict[str, Any]) -> object:
        caller.connection.sendall(line.encode() + b"\n")
        return {}

    daemon.answers["mcpd/call"] = answer
    ran = mcpctl("call", "now@time")
    assert (ran.code, "is not mcpd" in ran.err) == (3, True)


def test_output_is_written_to_a_file(daemon: FakeDaemon, mcpctl: Mcpctl, tmp_path: Path) -> None:
    """An image as its bytes. A failed tool writes nothing."""
    file = tmp_path / "out"
    image = {"content": [{"type": "image", "data": "iVBORw==", "mimeType": "image/png"}]}
    text = {"content": [{"type": "text", "text": "a\n"}, {"type": "text", "text": "b"}]}
    for answer, written in ((image, b"\x89PNG"), (text, b"a\n\nb"), ({"structuredContent": [1]}, b"[1]")):
        daemon.answers["mcpd/call"] = answer
        assert mcpctl("call", "t@s", "--output", str(file)).code == 0
        assert file.read_bytes() == written
    daemon.answers["mcpd/call"] = {**text, "isError": True}
    assert mcpctl("call", "t@s", "--output", str(tmp_path / "none")).code == 1
    assert not (tmp_path / "none").exists()
    assert mcpctl("call", "t@s", "--output", str(file / "x")).code == 1
    assert mcpctl("call", "t@s", "--output", str(file), "--raw").code == 2

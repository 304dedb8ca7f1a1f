"""`mcpctl call`: arguments, results and errors."""

from __future__ import annotations

import io
import json
from pathlib import Path
from typing import Any

import pytest

from tests.ctl.conftest import Mcpctl
from tests.ctl.fake_daemon import Caller, FakeDaemon, Fault, Raw, Silence, detail, failure, server, status


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


@pytest.mark.parametrize("words", [["now@time"], ["time/now"], ["time", "now"]])
def test_tool_target_spellings(daemon: FakeDaemon, mcpctl: Mcpctl, words: list[str]) -> None:
    """list-tools prints TOOL@SERVER; users also type the other forms."""
    daemon.answers["mcpd/call"] = result("12:00")
    ran = mcpctl("call", *words, "zone=Europe/Paris", "n:=3")
    assert (ran.code, ran.out, ran.err) == (0, "12:00\n", "")
    assert daemon.params_of("mcpd/call") == {
        "server": "time",
        "tool": "now",
        "arguments": {"zone": "Europe/Paris", "n": 3},
        "raw": False,
    }


def test_qualified_names_work_and_bare_names_suggest_the_server(daemon: FakeDaemon, mcpctl: Mcpctl) -> None:
    """Editors show `SERVER__TOOL`. Both parts may contain `__`, so the list of tools decides."""
    tools = [{"server": "my__time", "name": "now"}, {"server": "clock", "name": "now"}]
    daemon.answers["mcpd/tools"] = {"tools": tools, "dropped": 0}
    daemon.answers["mcpd/call"] = result("12:00")
    assert mcpctl("call", "my__time__now", "zone=UTC").out == "12:00\n"
    sent = daemon.params_of("mcpd/call")
    assert (sent["server"], sent["tool"], sent["arguments"]) == ("my__time", "now", {"zone": "UTC"})
    ran = mcpctl("call", "now", "zone=UTC")
    assert (ran.code, "use now@my__time or now@clock" in ran.err) == (2, True)


def test_qualified_name_of_a_server_that_has_not_started(daemon: FakeDaemon, mcpctl: Mcpctl) -> None:
    """Its tools are not known, but its name is."""
    daemon.answers["mcpd/tools"] = {"tools": [], "dropped": 0}
    daemon.answers["mcpd/status"] = status(server("git"), server("time"))
    daemon.answers["mcpd/call"] = result("clean")
    assert mcpctl("call", "git__git_status", "repo=.").out == "clean\n"
    sent = daemon.params_of("mcpd/call")
    assert (sent["server"], sent["tool"], sent["arguments"]) == ("git", "git_status", {"repo": "."})


def test_ambiguous_and_misplaced_qualified_names_are_explained(daemon: FakeDaemon, mcpctl: Mcpctl) -> None:
    """Several servers may have the same beginning; and a value without its key looks like a tool."""
    tools = [{"server": "mcp_a", "name": "b"}, {"server": "a", "name": "_b"}]
    daemon.answers["mcpd/tools"] = {"tools": tools, "dropped": 0}
    ran = mcpctl("call", "mcp_a__b", "x=1")
    assert (ran.code, "use b@mcp_a or _b@a" in ran.err) == (2, True)
    daemon.answers["mcpd/call"] = Fault("no server named 'a___b'", code="unknown_server", exit=5)
    ran = mcpctl("call", "a___b", ".")
    assert (ran.code, "mcpctl call _b@a KEY=VALUE" in ran.err) == (5, True)
    daemon.answers["mcpd/status"] = {"servers": [{"name": "a"}, {"name": "mcp_a"}, {"name": "git"}]}
    daemon.answers["mcpd/call"] = Fault("no server named 'a__no'", code="unknown_server", exit=5)
    assert "next: mcpctl list-tools a   (a has no tool 'no')\n" in mcpctl("call", "a__no", ".").err
    assert "mcpctl call log@git KEY=VALUE" in mcpctl("call", "git__log", ".").err, "its tools are not known"


def test_at_sign_in_an_argument_is_not_a_server(daemon: FakeDaemon, mcpctl: Mcpctl) -> None:
    """Only the first argument names the tool, and it is split at the last @."""
    daemon.answers["mcpd/call"] = result()
    mcpctl("call", "mail@work@smtp", "to=a@b.c", "q=x=y")
    sent = daemon.params_of("mcpd/call")
    assert (sent["tool"], sent["server"], sent["arguments"]) == (
        "mail@work",
        "smtp",
        {"to": "a@b.c", "q": "x=y"},
    )


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


@pytest.mark.parametrize(
    "words",
    [
        ["t"],
        ["t@s", "word"],
        ["t@s", "a:=nope"],
        ["t@s", "--args", "[1]"],
        ["@s"],
        ["t@s", "--args", "{"],
        [],
    ],
)
def test_invalid_command_lines_exit_with_2(daemon: FakeDaemon, mcpctl: Mcpctl, words: list[str]) -> None:
    """No tool is called, and the error shows the correct form."""
    ran = mcpctl("call", *words)
    assert ran.code == 2
    assert ran.err.startswith("error: ")
    assert "mcpd/call" not in [method for method, _ in daemon.requests]
    assert mcpctl("call", *words, "--json").error()["code"] == "usage"


@pytest.mark.parametrize(
    ("words", "says"),
    [
        (["n:=NaN"], "the argument n is NaN, which JSON does not have"),
        (["n=Infinity"], "the argument n is Infinity"),
        (['{"a": [1, {"b": -1e999}]}'], "the argument a[1].b is -Infinity"),
        (["--args", '{"n": NaN}'], "the argument n is NaN"),
    ],
)
def test_numbers_that_json_does_not_have_are_refused(
    daemon: FakeDaemon, mcpctl: Mcpctl, words: list[str], says: str
) -> None:
    """Python reads them, but a server would not get them."""
    schema = {"properties": {"n": {"type": "number"}}}
    tool = {"server": "time", "name": "now", "inputSchema": schema}
    daemon.answers["mcpd/tools"] = {"tools": [tool], "dropped": 0}
    ran = mcpctl("call", "now@time", *words)
    assert (ran.code, says in ran.err) == (2, True), ran.err
    assert "mcpd/call" not in [method for method, _ in daemon.requests]


def test_tool_error_exits_with_1_and_goes_to_stderr(daemon: FakeDaemon, mcpctl: Mcpctl) -> None:
    """stdout stays empty, so that a script does not mistake the error for a result."""
    daemon.answers["mcpd/call"] = result("no such zone", success=False, error="no such zone")
    ran = mcpctl("call", "now@time")
    assert (ran.code, ran.out, ran.err) == (1, "", "no such zone\n")
    ran = mcpctl("call", "now@time", "--json")
    assert (ran.code, ran.json()["error"]) == (1, "no such zone")


def test_trace_context_is_forwarded(daemon: FakeDaemon, mcpctl: Mcpctl) -> None:
    """OpenTelemetry passes trace context to child processes in the environment."""
    daemon.answers["mcpd/call"] = result()
    parent = "00-0af7651916cd43dd8448eb211c80319c-00f067aa0ba902b7-01"
    mcpctl("call", "now@time", TRACEPARENT=parent, TRACESTATE="rojo=1")
    ((_, sent),) = [each for each in daemon.requests if each[0] == "mcpd/call"]
    assert sent["_meta"] == {"traceparent": parent, "tracestate": "rojo=1", "progressToken": 1}
    mcpctl("call", "now@time", BAGGAGE="a=b")
    assert "baggage" not in daemon.requests[-1][1]["_meta"]


def test_structured_content_is_printed_without_text(daemon: FakeDaemon, mcpctl: Mcpctl) -> None:
    """As indented JSON."""
    daemon.answers["mcpd/call"] = result(data={"temperature": 21})
    assert mcpctl("call", "now@time").out == '{\n  "temperature": 21\n}\n'


def test_warnings_go_to_stderr(daemon: FakeDaemon, mcpctl: Mcpctl) -> None:
    """The output on stdout does not change."""
    daemon.answers["mcpd/call"] = result("ok", warnings=["does not fit its outputSchema"])
    ran = mcpctl("call", "now@time")
    assert (ran.out, ran.err) == ("ok\n", "warning: does not fit its outputSchema\n")


def test_raw_prints_the_mcp_result_unchanged(daemon: FakeDaemon, mcpctl: Mcpctl) -> None:
    """With and without --json. The exit code follows `isError`."""
    text = '{"content":[],"isError":true,"n":1e5,"n":1.0}'
    daemon.answers["mcpd/call"] = Raw(text)
    for more in ([], ["--json"]):
        ran = mcpctl("call", "now@time", "--raw", *more)
        assert (ran.code, ran.out) == (1, text + "\n")
    assert daemon.params_of("mcpd/call")["raw"] is True


def test_piped_output_is_unchanged(daemon: FakeDaemon, mcpctl: Mcpctl) -> None:
    """In a pipe it is data, which sanitizing would damage."""
    daemon.answers["mcpd/call"] = result("a\x1b[1mb\u200d\n")
    assert mcpctl("call", "now@time").out == "a\x1b[1mb\u200d\n"


def test_progress_is_requested_but_not_shown_in_a_pipe(daemon: FakeDaemon, mcpctl: Mcpctl) -> None:
    """The progress token is the id of the request."""

    def answer(caller: Caller, params: dict[str, Any]) -> object:
        assert params["_meta"]["progressToken"] == caller.request
        caller.notify("notifications/progress", {"progressToken": caller.request, "progress": 1, "total": 2})
        return result("done")

    daemon.answers["mcpd/call"] = answer
    ran = mcpctl("call", "now@time")
    assert (ran.out, ran.err) == ("done\n", "")


def test_exit_code_of_the_daemons_error_is_used(daemon: FakeDaemon, mcpctl: Mcpctl) -> None:
    """The JSON form contains its code and details."""
    daemon.answers["mcpd/call"] = Fault(
        "time has failed",
        code="not_ready",
        exit=6,
        server="time",
        state="failed",
        retry_at=None,
        may_have_run=False,
    )
    ran = mcpctl("call", "now@time")
    assert ran.code == 6
    assert "next: mcpctl why time\n" in ran.err
    error = mcpctl("call", "now@time", "--json").error()
    assert (error["code"], error["state"], error["may_have_run"]) == ("not_ready", "failed", False)
    assert error["next"] == error["hint"] == "mcpctl why time"


def test_next_step_after_a_refused_call_is_that_of_the_server(daemon: FakeDaemon, mcpctl: Mcpctl) -> None:
    """Unless its state has changed in the meantime."""
    login = failure("HTTP 401: rejected", kind="auth", http_status=401)
    hub = detail(
        server("hub", "needs-auth", last_error=login), definition={"headers": {"A": "${secret:HUB_TOKEN}"}}
    )
    fault = Fault("hub needs a login", code="not_ready", exit=4, server="hub", state="needs-auth")
    daemon.answers |= {"mcpd/call": fault, "mcpd/server": hub}
    ran = mcpctl("call", "x@hub")
    assert "next: mcpctl secret set HUB_TOKEN   (the server rejected" in ran.err
    daemon.answers["mcpd/server"] = detail(server("hub"))
    assert "next: mcpctl why hub\n" in mcpctl("call", "x@hub").err


@pytest.mark.parametrize("command", [["call", "now@time"], ["list-tools", "time"], ["resources", "time"]])
@pytest.mark.parametrize("how", ["enable", "connect"])
def test_disabled_server_is_an_error_with_the_command_that_enables_it(
    daemon: FakeDaemon, mcpctl: Mcpctl, command: list[str], how: str
) -> None:
    """The same command in the message and as the next step."""
    fault = Fault(
        f"time is disabled: off. Nothing was sent; run `mcpctl {how} time`",
        code="not_ready",
        exit=6,
        server="time",
        state="disabled",
    )
    daemon.answers |= dict.fromkeys(("mcpd/call", "mcpd/tools", "mcpd/resources"), fault)
    ran = mcpctl(*command, "--json")
    assert (ran.code, ran.error()["next"]) == (6, f"mcpctl {how} time")


def test_timeout_names_the_limit_with_its_fraction(daemon: FakeDaemon, mcpctl: Mcpctl) -> None:
    daemon.answers["mcpd/call"] = Fault("too slow", code="timeout", exit=7, server="time", after=0.3)
    assert "next: raise the limit with --timeout SECONDS (was 0.3 s)\n" in mcpctl("call", "now@time").err


@pytest.mark.parametrize(
    ("code", "message"),
    [
        ("timeout", "was not sent within 1 s, because nobody has approved it (mcpctl approvals)"),
        ("denied", "it requires approval by the rule at $.x, and was not approved within 300 s"),
    ],
)
def test_call_that_nobody_approved_names_the_command(
    daemon: FakeDaemon, mcpctl: Mcpctl, code: str, message: str
) -> None:
    """A longer timeout would not help."""
    daemon.answers["mcpd/call"] = Fault(message, code=code, exit=7, server="time", may_have_run=False)
    (_, step) = mcpctl("call", "now@time").err.splitlines()
    assert step == "next: call it again, and answer with mcpctl approvals while it waits"


@pytest.mark.parametrize("code", ["timeout", "upstream_error"])
def test_text_of_an_error_says_that_the_call_may_have_run(
    daemon: FakeDaemon, mcpctl: Mcpctl, code: str
) -> None:
    daemon.answers["mcpd/call"] = Fault("time: no", code=code, exit=7, server="time", may_have_run=True)
    lines = mcpctl("call", "now@time").err.splitlines()
    assert lines[:2] == ["error: time: no", "note: it may have run: check its effect before you repeat it"]


def test_timeout_of_a_stopped_server_suggests_to_continue_it(daemon: FakeDaemon, mcpctl: Mcpctl) -> None:
    """A higher limit would not help."""
    daemon.answers["mcpd/call"] = Fault("too slow", code="timeout", exit=7, server="time", after=0.3)
    stopped = server("time", degraded="its process is stopped (SIGSTOP)")
    daemon.answers["mcpd/server"] = detail(stopped)
    assert "next: kill -CONT -4711   (continues it; or" in mcpctl("call", "now@time").err
    assert daemon.params_of("mcpd/ping") == {"server": "time", "timeout": 1.0}


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
        (["--a", "1", "--note=x=y", "--round-to", "2"], {"a": 1, "note": "x=y", "round_to": 2}),
        (["--exact", "--a", "-5"], {"exact": True, "a": -5}),
        (['{"a": 1, "b": 2}', "b=3"], {"a": 1, "b": 3}),
        (["a:=2", "--note", "a=b"], {"a": 2, "note": "a=b"}),
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


@pytest.mark.parametrize("word", ["--tmeout", "--c", "--a"])
def test_unknown_options_are_refused(daemon: FakeDaemon, mcpctl: Mcpctl, word: str) -> None:
    """Neither options of mcpctl nor arguments of the tool; and an argument without a value."""
    daemon.answers["mcpd/tools"] = {"tools": [SUM], "dropped": 0}
    ran = mcpctl("call", "get-sum@math", word)
    assert (ran.code, word in ran.err) == (2, True)
    assert "mcpd/call" not in [method for method, _ in daemon.requests]


def test_call_with_only_a_server_lists_its_tools(daemon: FakeDaemon, mcpctl: Mcpctl) -> None:
    """With the arguments of each."""
    daemon.answers["mcpd/tools"] = {"tools": [SUM], "dropped": 0}
    ran = mcpctl("call", "math")
    tool, error, step = ran.err.splitlines()
    assert ran.code == 2
    assert tool.startswith("  get-sum@math  [a:number] [b] [exact:boolean]")
    assert error == "error: which tool of math?"
    assert step == "next: mcpctl call get-sum@math KEY=VALUE"
    assert mcpctl("call", "math", "--json").error()["suggestions"] == ["get-sum"]


def test_text_that_fits_no_type_suggests_the_schema(daemon: FakeDaemon, mcpctl: Mcpctl) -> None:
    """The daemon reports the argument."""
    problems = [{"path": "$.a", "message": '"1" is not of type "number"', "fix": ""}]
    daemon.answers["mcpd/call"] = Fault(
        'bad arguments: "1" is not of type "number" @ $.a',
        code="invalid_arguments",
        exit=2,
        problems=problems,
    )
    ran = mcpctl("call", "sum@math", "a=1")
    assert ran.code == 2
    assert ran.err.splitlines()[:2] == ["error: bad arguments", '  $.a: "1" is not of type "number"']
    assert "KEY:=JSON" in ran.err
    problems[0]["message"] = '"b" is a required property'
    assert "list-tools SERVER --schema" in mcpctl("call", "sum@math", "a=1").err


def test_unknown_tool_exits_with_5_and_a_suggestion(daemon: FakeDaemon, mcpctl: Mcpctl) -> None:
    """Suggestions come from the tools of that server."""
    daemon.answers["mcpd/status"] = status(server())
    daemon.answers["mcpd/tools"] = {"tools": [{"name": "convert_time", "server": "time"}], "dropped": 0}
    daemon.answers["mcpd/call"] = Fault("no such tool", code="unknown_tool", exit=5, server="time")
    ran = mcpctl("call", "convert_tim@time")
    assert (ran.code, "did you mean convert_time?" in ran.err) == (5, True)
    assert daemon.params_of("mcpd/tools") == {"server": "time"}


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
    "words", [["now@time", "--socket", "/nowhere/mcpd.sock"], ["now@time", "x"], ["now@time", "--args", "{"]]
)
def test_call_that_was_not_sent_has_not_run(daemon: FakeDaemon, mcpctl: Mcpctl, words: list[str]) -> None:
    error = mcpctl("call", *words, "--json").error()
    assert error["may_have_run"] is False
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

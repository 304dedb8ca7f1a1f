"""Names of commands that people try, commands for several servers, and what `add` and `logs` say."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from ctl.commands import EVERYDAY
from ctl.commands.try_ import try_
from tests.ctl.conftest import Mcpctl
from tests.ctl.fake_daemon import Caller, FakeDaemon, Fault, detail, server, status
from tests.ctl.test_commands import APPLIED, TOOL


@pytest.mark.parametrize("name", [["restart", "git"], ["ls"], ["ps"], ["list"], ["tools"], ["search", "now"]])
def test_names_of_other_programs_work(daemon: FakeDaemon, mcpctl: Mcpctl, name: list[str]) -> None:
    daemon.answers["mcpd/reconnect"] = {"server": server("git")}
    daemon.answers["mcpd/tools"] = {"tools": [TOOL], "dropped": 0}
    ran = mcpctl(*name)
    assert (ran.code, ran.err) == (0, "")


@pytest.mark.parametrize("name", ["start", "stop", "kill", "describe", "test", "init", "run"])
def test_other_names_lead_to_the_right_command(mcpctl: Mcpctl, name: str) -> None:
    """And not to the command that is spelled most like it."""
    ran = mcpctl(name, "git")
    assert ran.code == 2
    assert "did you mean" not in ran.err
    assert ran.err.splitlines()[1].startswith("next: mcpctl ")


def test_help_begins_with_the_everyday_commands(mcpctl: Mcpctl) -> None:
    out = mcpctl("--help").out
    everyday = out.partition("Everyday commands:\n")[2].partition("\n\n")[0]
    assert [line.split()[0] for line in everyday.splitlines() if line[2] != " "] == [*EVERYDAY]
    assert len(EVERYDAY) == 10
    assert out.count("\n  status ") == 1


def test_list_tools_reports_the_servers_without_tools(daemon: FakeDaemon, mcpctl: Mcpctl) -> None:
    """On stderr, with the cause and the next command."""
    missing = [
        {"server": "git", "state": "failed", "reason": "git has failed: exited (1): no token"},
        {"server": "late", "state": "idle", "reason": "late is idle: starts on first use"},
    ]
    daemon.answers["mcpd/tools"] = {"tools": [TOOL], "dropped": 0, "missing": missing}
    ran = mcpctl("list-tools")
    assert ran.err.splitlines() == [
        "not listed: git has failed: exited (1): no token   (mcpctl why git)",
        "not listed: late is idle: starts on first use   (mcpctl list-tools late)",
    ]
    assert "not listed" not in ran.out
    many = [{**missing[0], "server": f"s{number}"} for number in range(12)]
    daemon.answers["mcpd/tools"] = {"tools": [], "dropped": 0, "missing": many}
    assert mcpctl("list-tools").err.splitlines()[-1] == "not listed: 2 more servers   (mcpctl status)"
    daemon.answers["mcpd/resources"] = {"resources": [], "resource_templates": [], "missing": missing}
    daemon.answers["mcpd/prompts"] = {"prompts": [{"server": "git", "name": "p"}], "missing": missing}
    for command in ("resources", "prompts"):
        assert "not listed: git has failed: exited (1): no token   (mcpctl why git)" in mcpctl(command).err


def test_list_tools_can_be_filtered(daemon: FakeDaemon, mcpctl: Mcpctl) -> None:
    """By every word, in any case, in names and descriptions. Also with --json."""
    other = {**TOOL, "name": "convert", "qualified_name": "convert@time", "description": "Between zones."}
    daemon.answers["mcpd/tools"] = {"tools": [TOOL, other], "dropped": 0}
    assert [line.split()[0] for line in mcpctl("search", "BETWEEN", "time").out.splitlines()[1:]] == [
        "convert@time"
    ]
    assert [each["name"] for each in mcpctl("list-tools", "-g", "now", "--json").json()["tools"]] == ["now"]
    ran = mcpctl("list-tools", "--grep", "convert@TIME")  # as printed
    assert [line.split()[0] for line in ran.out.splitlines()[1:]] == ["convert@time"]
    ran = mcpctl("list-tools", "--grep", "nothing")
    assert (ran.code, ran.out, ran.err) == (0, "", "no tool contains 'nothing'\n")


def test_tools_are_grouped(daemon: FakeDaemon, mcpctl: Mcpctl) -> None:
    """By effect with the most harmful last, or by server in the order of the daemon."""
    kinds = [("a", "wipe", {"destructiveHint": True}), ("b", "see", {"readOnlyHint": True}), ("a", "any", {})]
    kinds.append(("b", "note", {"readOnlyHint": False, "destructiveHint": False}))
    tools = [
        {**TOOL, "name": name, "server": server, "qualified_name": f"{name}@{server}", "annotations": hints}
        for server, name, hints in kinds
    ]
    daemon.answers["mcpd/tools"] = {"tools": tools, "dropped": 0}

    def first_words(*words: str) -> list[str]:
        lines = mcpctl("list-tools", "--group-by", *words).out.splitlines()
        return [line.partition("  ")[0] for line in lines if line and not line.startswith("TOOL ")]

    assert first_words("effect") == [
        *("reads only (1 tool)", "see@b", "not declared (1 tool)", "any@a"),
        *("writes (1 tool)", "note@b", "destroys (1 tool)", "wipe@a"),
    ]
    assert first_words("server") == ["a (2 tools)", "wipe@a", "any@a", "b (2 tools)", "see@b", "note@b"]
    assert mcpctl("list-tools", "--group-by", "effect", "--schema").code == 2


def test_server_in_place_of_an_editor_leads_to_the_command_for_servers(mcpctl: Mcpctl) -> None:
    """Elsewhere, `install` and `uninstall` are about packages."""
    assert mcpctl("install", "time").err.endswith("; to add a server, use: mcpctl add NAME -- COMMAND\n")
    assert mcpctl("uninstall", "time").err.endswith("; to remove a server, use: mcpctl remove NAME\n")


@pytest.mark.parametrize(
    ("words", "complaint"),
    [
        (["bad", "name", "--", "x"], "unexpected before --: name"),
        (["files", "npx", "-y", "x"], "put -- before the server's command"),
        (["--", "x"], "Missing argument 'NAME'"),
    ],
)
def test_add_refuses_what_was_meant_otherwise(
    daemon: FakeDaemon, mcpctl: Mcpctl, words: list[str], complaint: str
) -> None:
    """A definition like {"command": "name", "args": ["x"]} would be saved."""
    ran = mcpctl("add", *words)
    assert (ran.code, complaint in ran.err) == (2, True)
    assert daemon.requests == []


def test_several_servers_are_removed_and_shown(daemon: FakeDaemon, mcpctl: Mcpctl) -> None:
    """One that does not exist does not keep the others."""

    def remove(_: Caller, params: dict[str, Any]) -> object:
        if params["server"] == "nope":
            raise Fault("no such server: nope", code="unknown_server", exit=5, server="nope")
        return {**APPLIED, "added": [], "removed": [params["server"]]}

    daemon.answers["mcpd/remove"] = remove
    daemon.answers["mcpd/server"] = lambda _, params: detail(server(params["server"], "failed"))
    ran = mcpctl("remove", "git", "nope", "old", "--yes")
    assert (ran.code, "- git\n" in ran.out, "- old\n" in ran.out) == (5, True, True)
    daemon.answers["mcpd/status"] = status(server("git"), server("old"))
    assert mcpctl("remove", "--all", "--yes", "--json").json()["removed"] == ["git", "old"]
    assert mcpctl("remove", "git", "--all", "--yes").code == 2
    ran = mcpctl("status", "git", "old")
    assert (ran.code, ran.out.count("state: failed")) == (6, 2)
    received = mcpctl("status", "git", "old", "--json").json()
    assert [each["server"]["name"] for each in received["servers"]] == ["git", "old"]


@pytest.mark.parametrize("command", ["enable", "disable"])
def test_all_servers_are_enabled_or_disabled(daemon: FakeDaemon, mcpctl: Mcpctl, command: str) -> None:
    daemon.answers["mcpd/status"] = status(server("git", "disabled"), server("old"))
    daemon.answers[f"mcpd/{command}"] = lambda _, params: {"server": server(params["server"])}
    assert mcpctl(command, "--all").code == 0
    asked = [params["server"] for method, params in daemon.requests if method == f"mcpd/{command}"]
    assert asked == ["git", "old"]
    assert mcpctl(command).code == 2


def test_empty_log_is_no_silence(daemon: FakeDaemon, mcpctl: Mcpctl) -> None:
    daemon.answers["mcpd/logs"] = {"lines": []}
    ran = mcpctl("logs", "git")
    assert (ran.code, ran.out) == (0, "")
    assert ran.err == "git has not written anything to stderr yet (a remote server never does)\n"


@pytest.mark.parametrize(
    ("words", "url", "command", "tool"),
    [
        ("https://a.example/mcp", "https://a.example/mcp", (), ()),
        ("https://a.example/mcp -- echo text=a", "https://a.example/mcp", (), ("echo", "text=a")),
        ("-- npx server -- echo --timeout 3 --raw a=b", None, ("npx", "server"), ("echo", "a=b")),
        ("--url wss://a.example -- echo", "wss://a.example", (), ("echo",)),
        ("-- npx -y server", None, ("npx", "-y", "server"), ()),
        ("-- npx https://a.example -- echo", None, ("npx", "https://a.example"), ("echo",)),
        ("-- mcp-proxy -- echo text=--", None, ("mcp-proxy",), ("echo", "text=--")),
    ],
)
def test_try_takes_an_address_or_a_command(
    words: str, url: str | None, command: tuple[str, ...], tool: tuple[str, ...]
) -> None:
    params = try_.make_context("try", words.split()).params
    assert (params["url"], params["command"], params["tool"].get("words", ())) == (url, command, tool)


def test_try_takes_the_options_of_call(daemon: FakeDaemon, mcpctl: Mcpctl) -> None:
    """After the tool, as they are documented. Errors do not name the server, which is gone afterwards."""

    def refuse(_: Caller, params: dict[str, Any]) -> object:
        text = f"{params['server']}: the tool needs something else"
        raise Fault(text, code="invalid_arguments", exit=2, server=params["server"])

    tool = {"server": "s", "name": "hang", "inputSchema": {"properties": {"n": {"type": "integer"}}}}
    daemon.answers |= {
        "mcpd/add": {},
        "mcpd/connect": {"server": server("s")},
        "mcpd/tools": {"tools": [tool], "dropped": 0},
        "mcpd/remove": {},
        "mcpd/call": refuse,
    }
    options = ["--timeout", "1", "--args", '{"m": 2}', "--raw", "n=1"]
    ran = mcpctl("try", "--", "server", "--", "hang", *options)
    sent = daemon.params_of("mcpd/call")
    assert (sent["timeout"], sent["raw"], sent["arguments"]) == (1.0, True, {"m": 2, "n": 1})
    assert (ran.code, ran.err) == (2, "error: the tool needs something else\n")
    assert mcpctl("try", "--", "server", "--", "hang", "--json").error()["code"] == "invalid_arguments"
    assert mcpctl("try", "--", "server", "--", "hang", "--timeout", "soon").code == 2


def test_try_that_waits_too_short_names_the_option(daemon: FakeDaemon, mcpctl: Mcpctl) -> None:
    pending = server("s", "pending", reason="connecting")
    daemon.answers |= {
        "mcpd/add": {},
        "mcpd/connect": {"server": pending},
        "mcpd/server": detail(pending),
        "mcpd/remove": {},
    }
    ran = mcpctl("try", "--wait", "3", "--", "sleep", "100")
    assert (ran.code, ran.err.splitlines()) == (
        6,
        [
            "error: the server is not connected yet (connecting)",
            "next: wait longer with --wait SECONDS (was 3 s)",
        ],
    )


@pytest.mark.parametrize("place", ["before", "after"])
def test_next_steps_name_the_daemon_of_the_command(mcpctl: Mcpctl, tmp_path: Path, place: str) -> None:
    """Without `--socket`, they would start or examine another daemon."""
    option = ["--socket", f"{tmp_path}/my socket"]
    words = [*option, "status"] if place == "before" else ["call", "t@s", *option]
    step = f"mcpctl --socket '{tmp_path}/my socket' daemon start"
    assert f"next: start it with: {step}\n" in mcpctl(*words).err
    assert mcpctl(*words, "--json").error()["next"] == f"start it with: {step}"

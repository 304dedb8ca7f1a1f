"""The other commands: requests, output and exit codes."""

from __future__ import annotations

import json
import re
import time
from pathlib import Path
from typing import Any

import pytest

from ctl.cli.errors import EXIT_CODES
from ctl.commands import COMMANDS
from mcpd.model.status import parse_timestamp, rfc3339
from tests.ctl.conftest import Mcpctl
from tests.ctl.editors.terminal import on_terminal
from tests.ctl.fake_daemon import NOW, Caller, FakeDaemon, Fault, Silence, detail, failure, server, status

APPLIED = {
    "added": ["git"], "removed": ["old"], "changed": [], "unchanged": ["time"],
    "generation": 4, "errors": [], "dry_run": False, "saved": None,
}  # fmt: skip


def events(*items: dict[str, Any]) -> object:
    def answer(caller: Caller, _: dict[str, Any]) -> object:
        for item in items:
            caller.notify(
                "mcpd/event", {"request": caller.request, "event": {"at": NOW, "message": "", **item}}
            )
        caller.hang_up()
        return {}

    return answer


def test_invalid_file_is_named_once(daemon: FakeDaemon, mcpctl: Mcpctl) -> None:
    """Problems are listed below, with their path unless it is the whole file."""

    def refuse(_: Caller, params: dict[str, Any]) -> object:
        problems = [
            {"path": "/c.json:3:1", "message": "not valid JSON", "fix": "fix it"},
            {"path": "$", "message": "/c.json is read-only", "fix": ""},
        ]
        words = "/c.json: not valid JSON @ /c.json:3:1 (fix it); /c.json is read-only @ $"
        raise Fault(words, code="bad_spec", exit=2, problems=problems)

    daemon.answers["mcpd/reload"] = refuse
    ran = mcpctl("reload")
    assert ran.code == 2
    assert ran.err.splitlines() == [
        "error: /c.json is invalid",
        "  /c.json:3:1: not valid JSON (fix it)",
        "  /c.json is read-only",
    ]


def test_write_error_says_what_was_not_done(daemon: FakeDaemon, mcpctl: Mcpctl) -> None:
    """The file is valid, so this is no error of the configuration: exit code 1, and what to do."""
    reason, fix = "cannot write /c.json: No space left on device", "free space on its disk"

    def refuse(_: Caller, params: dict[str, Any]) -> object:
        raise Fault(f"{reason} ({fix})", code="cannot_write", exit=1, fix=fix)

    daemon.answers |= {"mcpd/add": refuse, "mcpd/remove": refuse}
    for verb, argv in {
        "removed": ("remove", "it", "--yes"),
        "added": ("add", "it", "--", "true"),
        "changed": ("add", "it", "--replace", "--", "true"),
    }.items():
        ran = mcpctl(*argv)
        assert (ran.code, ran.err.splitlines()) == (
            1,
            [f"error: it was not {verb}: {reason}", f"next: {fix}"],
        )
    error = json.loads(mcpctl("--json", "remove", "it", "--yes").err)["error"]
    assert (error["code"], error["exit"], error["next"]) == ("cannot_write", 1, fix)


def test_refused_server_was_neither_added_nor_saved(
    daemon: FakeDaemon, mcpctl: Mcpctl, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A variable of this shell does not count: mcpd got its environment when it started."""
    message = "the environment variable NOPE_TOKEN is not set"
    problem = {"path": "$.mcpServers.it.env.TOKEN", "message": message, "fix": "set it"}

    def refuse(_: Caller, params: dict[str, Any]) -> object:
        raise Fault(message, code="bad_spec", exit=2, problems=[problem])

    monkeypatch.setattr("ctl.daemon.systemd.is_installed", lambda: False)
    monkeypatch.setenv("NOPE_TOKEN", "abc")
    daemon.answers |= {"mcpd/add": refuse, "mcpd/reload": refuse}
    ran = mcpctl("add", "it", "-e", "TOKEN=${NOPE_TOKEN}", "--", "true")
    assert ran.code == 2
    first, second, step = ran.err.splitlines()
    assert first == (
        "error: it was not added, nothing was saved; mcpd uses the environment in which it was started"
    )
    assert second == f"  $.mcpServers.it.env.TOKEN: {message} (set it)"
    assert step.startswith("next: mcpctl daemon restart   (passes NOPE_TOKEN of this shell to mcpd; ")
    assert mcpctl("reload").err.splitlines()[-1] == step


def test_reload_names_changed_settings(daemon: FakeDaemon, mcpctl: Mcpctl) -> None:
    """Those that need a restart have a next step."""
    lists: dict[str, list[str]] = {"added": [], "removed": [], "changed": ["a"], "unchanged": []}
    daemon.answers["mcpd/reload"] = {
        **lists,
        "generation": 2,
        "settings_changed": ["http", "policies"],
        "restart_needed": ["http"],
    }
    ran = mcpctl("reload")
    assert ran.out.splitlines() == [
        "~ a",
        "0 added, 1 changed, 0 removed; 0 servers unchanged; generation 2",
        "settings changed: http, policies",
        "not in effect until mcpd is restarted: http",
    ]
    assert ran.err == "next: mcpctl daemon restart\n"


# ---- wishes --------------------------------------------------------------------------------------


def test_several_servers_are_changed_concurrently(daemon: FakeDaemon, mcpctl: Mcpctl) -> None:
    """An unknown name does not prevent the others from connecting, but sets the exit code."""

    def connect(_: Caller, params: dict[str, Any]) -> object:
        if params["server"] == "nope":
            raise Fault("no such server: nope", code="unknown_server", exit=5, server="nope")
        return {"server": server(params["server"])}

    daemon.answers["mcpd/connect"] = connect
    ran = mcpctl("connect", "time", "nope", "time", "--wait", "2")
    assert (ran.code, ran.out) == (5, "time: connected (2 tools, pid 4711)\n")
    assert "no such server: nope" in ran.err
    asked = [params for method, params in daemon.requests if method == "mcpd/connect"]
    assert asked == [{"server": "time", "wait": 2.0}, {"server": "nope", "wait": 2.0}]


def test_failed_connection_exits_with_6_and_the_reason(daemon: FakeDaemon, mcpctl: Mcpctl) -> None:
    """With `--wait 0` the exit code is 0, because the result is not known yet."""
    daemon.answers["mcpd/enable"] = {"server": server("git", "failed", last_error=failure("not found: gti"))}
    ran = mcpctl("enable", "git")
    assert (ran.code, ran.out) == (6, "git: failed: not found: gti\n")
    assert mcpctl("enable", "git", "--wait", "0").code == 0
    assert mcpctl("enable", "git", "--json").json()["servers"][0]["status"] == "failed"


def test_disable_succeeds_when_the_server_is_disabled(daemon: FakeDaemon, mcpctl: Mcpctl) -> None:
    """Disabled is the requested state."""
    daemon.answers["mcpd/disable"] = {"server": server("git", "disabled", reason="switched off")}
    ran = mcpctl("disable", "git")
    assert (ran.code, ran.out) == (0, "git: disabled (switched off)\n")


def test_a_setting_that_cannot_be_saved_is_a_warning(daemon: FakeDaemon, mcpctl: Mcpctl) -> None:
    """Each cause once on stderr, or in the document. The setting holds, so the exit code is 0."""
    off = {"server": server("git", "disabled", reason="switched off"), "warnings": ["disk full; free space"]}
    daemon.answers["mcpd/disable"] = off
    ran = mcpctl("disable", "git", "time")
    assert (ran.code, ran.err) == (0, "warning: disk full; free space\n")
    ran = mcpctl("disable", "git", "--json")
    assert (ran.json()["warnings"], ran.err) == (["disk full; free space"], "")
    daemon.answers["mcpd/reload"] = {**APPLIED, "warnings": ["disk full; free space"]}
    assert mcpctl("reload").err == "warning: disk full; free space\n"


def test_disable_for_sends_the_end_time(daemon: FakeDaemon, mcpctl: Mcpctl) -> None:
    """For both --for and --until. The output shows when the server is enabled again."""
    reason = "switched off until 2026-11-22 18:00:00 UTC"
    before = time.time()
    end = rfc3339(before + 7230)
    daemon.answers["mcpd/disable"] = {"server": server("git", "disabled", reason=reason, off_until=end)}
    ran = mcpctl("disable", "git", "--for", "2h")
    assert ran.code == 0
    assert re.fullmatch(
        r"git: disabled \(switched off until 2026-11-22 14:30:00 -03:30, in [12]h\d*m?\)\n", ran.out
    )
    until = parse_timestamp(daemon.params_of("mcpd/disable")["until"])
    assert before - 0.001 <= until - 7200 <= time.time()
    mcpctl("disable", "git", "--until", "2126-11-22T18:00Z")
    assert daemon.params_of("mcpd/disable")["until"] == "2126-11-22T18:00:00.000Z"
    mcpctl("disable", "git")
    assert "until" not in daemon.params_of("mcpd/disable")


@pytest.mark.parametrize(
    ("words", "complaint"),
    [
        (["--for", "2"], "Invalid value for '--for': '2' is not a duration"),
        (["--until", "six"], "Invalid value for '--until': 'six' is not a time"),
        (["--until", "2001-01-01T12:00"], "is in the past"),
        (["--for", "2h", "--until", "2126-11-22"], "--for and --until cannot be combined"),
    ],
)
def test_disable_refuses_invalid_times(
    daemon: FakeDaemon, mcpctl: Mcpctl, words: list[str], complaint: str
) -> None:
    """No request is sent."""
    ran = mcpctl("disable", "git", *words)
    assert (ran.code, ran.out) == (2, "")
    assert complaint in ran.err
    assert daemon.requests == []


@pytest.mark.parametrize(
    ("flag", "chosen"), [("--failed", ["git", "mail"]), ("--all", ["git", "mail", "time"])]
)
def test_reconnect_selects_servers_by_state(
    daemon: FakeDaemon, mcpctl: Mcpctl, flag: str, chosen: list[str]
) -> None:
    """--all does not include disabled servers."""
    daemon.answers["mcpd/status"] = status(
        server("git", "failed"), server("mail", "needs-auth"), server("time"), server("off", "disabled")
    )
    daemon.answers["mcpd/reconnect"] = lambda _, params: {"server": server(params["server"])}
    assert mcpctl("reconnect", flag).code == 0
    assert [params["server"] for method, params in daemon.requests if method == "mcpd/reconnect"] == chosen


@pytest.mark.parametrize("words", [[], ["git", "--all"], ["--failed", "--all"]])
def test_reconnect_requires_exactly_one_selection(
    daemon: FakeDaemon, mcpctl: Mcpctl, words: list[str]
) -> None:
    """Any other combination could reconnect more servers than intended."""
    assert mcpctl("reconnect", *words).code == 2


# ---- wait ----------------------------------------------------------------------------------------


def test_wait_returns_when_the_server_is_connected(daemon: FakeDaemon, mcpctl: Mcpctl) -> None:
    """Changes come from the event stream, without polling."""
    daemon.answers["mcpd/server"] = detail(server("git", "pending"))
    daemon.answers["mcpd/events"] = events(
        {"kind": "snapshot", "server": "git", "status": server("git", "pending")},
        {"kind": "status", "server": "git", "status": server("git", "failed", retry_at=NOW)},
        {"kind": "status", "server": "git", "status": server("git")},
    )
    ran = mcpctl("wait", "git", "--timeout", "5")
    assert (ran.code, ran.out) == (0, "git: connected (2 tools, pid 4711)\n")


@pytest.mark.parametrize(("stderr", "code"), [("API_KEY is required", 6), ("connection refused", 7)])
def test_wait_ends_when_a_person_has_to_act(
    daemon: FakeDaemon, mcpctl: Mcpctl, stderr: str, code: int
) -> None:
    """Although mcpd retries; but not for a crash that may end by itself."""
    last = failure("exited (1)", kind="exited", exit_code=1, stderr=["starting", stderr])
    daemon.answers["mcpd/server"] = detail(server("git", "failed", retry_at=NOW, last_error=last))
    daemon.answers["mcpd/events"] = Silence()
    ran = mcpctl("wait", "git", "--timeout", "60" if code == 6 else "0.1")
    assert ran.code == code
    assert code == 7 or "next: mcpctl edit   (add API_KEY to its `env`)" in ran.err


def test_wait_times_out(daemon: FakeDaemon, mcpctl: Mcpctl) -> None:
    """It exits with 7 and shows the current state."""
    daemon.answers["mcpd/status"] = status(server("git", "pending"), server("off", "disabled"))
    daemon.answers["mcpd/events"] = Silence()
    ran = mcpctl("wait", "--timeout", "0.1")
    assert (ran.code, "git is not connected yet" in ran.err, "off" in ran.err) == (7, True, False)


@pytest.mark.parametrize(("word", "code"), [("disabled", 6), ("failed", 6), ("needs-auth", 4)])
def test_wait_exits_early_if_a_server_needs_attention(
    daemon: FakeDaemon, mcpctl: Mcpctl, word: str, code: int
) -> None:
    """A failure without a retry is final; `settled` accepts it."""
    daemon.answers["mcpd/server"] = detail(server("git", word))
    assert mcpctl("wait", "git").code == code
    assert mcpctl("wait", "git", "--for", "settled").code == 0


# ---- lists ---------------------------------------------------------------------------------------

SCHEMA = {"properties": {"fmt": {"type": "string"}, "zone": {"type": "string"}}, "required": ["zone"]}
TOOL = {
    "name": "now",
    "server": "time",
    "qualified_name": "now@time",
    "description": "The\ntime.\x1b[2J",
    "inputSchema": SCHEMA,
    "annotations": {"readOnlyHint": True},
}


def test_tools_are_listed_under_the_names_that_call_accepts(daemon: FakeDaemon, mcpctl: Mcpctl) -> None:
    """Required arguments come first, optional ones in brackets."""
    daemon.answers["mcpd/tools"] = {"tools": [TOOL], "dropped": 1}
    ran = mcpctl("tools")
    assert ran.out.splitlines() == [
        "TOOL      ARGUMENTS   DESCRIPTION",
        "now@time  zone [fmt]  The time.",
    ]
    assert "1 tool omitted" in ran.err
    assert mcpctl("list-tools", "time", "--schema").out.startswith("now@time\n  The\n  time.")
    assert mcpctl("tools", "--json").json()["tools"] == [TOOL]
    daemon.answers["mcpd/tools"] = {"tools": [{**TOOL, "qualified_name": "mcp_time_now"}], "dropped": 0}
    assert mcpctl("tools").out.splitlines()[1].startswith("mcp_time_now  zone"), "as `toolNames` says"


def test_resources_templates_and_prompts_are_listed(daemon: FakeDaemon, mcpctl: Mcpctl) -> None:
    """Each row names the server."""
    daemon.answers["mcpd/resources"] = {
        "resources": [{"uri": "a://1", "name": "one", "server": "s"}],
        "resource_templates": [
            {"uriTemplate": "a://{x}", "name": "any", "mimeType": "text/plain", "server": "s"}
        ],
    }
    assert [line.split() for line in mcpctl("resources").out.splitlines()[1:]] == [
        ["s", "a://1", "-", "one"],
        ["s", "a://{x}", "text/plain", "any"],
    ]
    arguments = [{"name": "tone"}, {"name": "city", "required": True}]
    daemon.answers["mcpd/prompts"] = {"prompts": [{"name": "hi", "server": "s", "arguments": arguments}]}
    assert mcpctl("prompts").out.splitlines()[1].split() == ["hi@s", "city", "[tone]", "-"]


def test_resource_is_read_as_text_or_bytes(daemon: FakeDaemon, mcpctl: Mcpctl, tmp_path: Path) -> None:
    """Binary content is written unchanged to a pipe or a file."""
    daemon.answers["mcpd/read"] = {"contents": [{"uri": "a://1", "blob": "AP8="}]}
    target = tmp_path / "out"
    assert mcpctl("read", "a://x@y@s", "-o", str(target)).code == 0
    assert target.read_bytes() == b"\x00\xff"
    assert daemon.params_of("mcpd/read") == {"server": "s", "uri": "a://x@y"}


def test_prompt_arguments_must_be_text(daemon: FakeDaemon, mcpctl: Mcpctl) -> None:
    """MCP has no other type for prompt arguments."""
    daemon.answers["mcpd/prompt"] = {
        "messages": [{"role": "user", "content": {"type": "text", "text": "Hi"}}]
    }
    assert mcpctl("prompt", "hi@s", "city=Paris").out == "user:\nHi\n"
    assert daemon.params_of("mcpd/prompt") == {"server": "s", "prompt": "hi", "arguments": {"city": "Paris"}}
    assert mcpctl("prompt", "hi@s", "n:=1").code == 2


# ---- the set -------------------------------------------------------------------------------------


def test_add_sends_a_definition_and_reports_the_state(daemon: FakeDaemon, mcpctl: Mcpctl) -> None:
    """Everything after `--` is the command, including its own options."""
    daemon.answers["mcpd/add"] = {**APPLIED, "saved": "/c.json"}
    daemon.answers["mcpd/connect"] = {"server": server("git")}
    ran = mcpctl("add", "git", "--env", "A=b=c", "--", "uvx", "mcp-git", "--json", "-v")
    assert daemon.params_of("mcpd/add") == {
        "server": "git",
        "definition": {"command": "uvx", "args": ["mcp-git", "--json", "-v"], "env": {"A": "b=c"}},
        "save": True,
        "replace": False,
    }
    assert ran.out == "git: added, saved in /c.json\ngit: connected (2 tools, pid 4711)\n"


@pytest.mark.parametrize("words", [["https://x/mcp"], ["--url", "https://x/mcp"], ["--", "https://x/mcp"]])
def test_add_takes_an_address_for_a_remote_server(
    daemon: FakeDaemon, mcpctl: Mcpctl, words: list[str]
) -> None:
    daemon.answers["mcpd/add"] = APPLIED
    assert mcpctl("add", "docs", "--wait", "0", "-H", "A=b", *words).code == 0
    definition = daemon.params_of("mcpd/add")["definition"]
    assert definition == {"url": "https://x/mcp", "headers": {"A": "b"}}


def test_add_sets_cwd_for_relative_files(
    daemon: FakeDaemon, mcpctl: Mcpctl, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The daemon runs in another directory and would not find `server.py`."""
    monkeypatch.chdir(tmp_path)
    Path("server.py").touch()
    daemon.answers["mcpd/add"] = APPLIED
    ran = mcpctl("add", "mine", "--wait", "0", "--", "python", "server.py")
    assert daemon.params_of("mcpd/add")["definition"]["cwd"] == str(tmp_path)
    assert str(tmp_path) in ran.err


@pytest.mark.parametrize(
    "words", [["git"], ["git", "--url", "http://x", "--", "x"], ["git", "--env", "A", "--", "x"]]
)
def test_add_requires_a_command_or_a_url(daemon: FakeDaemon, mcpctl: Mcpctl, words: list[str]) -> None:
    """Both, or neither, is an error."""
    assert mcpctl("add", *words).code == 2
    assert not daemon.requests


def test_added_server_with_a_mistyped_command_can_be_removed_at_once(tmp_path: Path) -> None:
    """Otherwise the file fills up with typos. Without a terminal, nobody is asked."""
    fake = FakeDaemon(tmp_path / "no.sock")
    missing = server("x", "failed", last_error=failure("command not found: uvxx", kind="spawn"))
    fake.answers |= {"mcpd/add": {**APPLIED, "saved": "/c.json"}, "mcpd/connect": {"server": missing}}
    fake.answers |= {"mcpd/server": detail(missing), "mcpd/remove": {**APPLIED, "removed": ["x"]}}
    code, seen = on_terminal(tmp_path, {"Remove x again? [y/N]": "y"}, "add", "x", "--", "uvxx")
    assert (code, "- x" in seen) == (6, True)
    assert fake.params_of("mcpd/remove") == {"server": "x", "save": True}
    fake.close()


def test_remove_asks_or_requires_yes(daemon: FakeDaemon, mcpctl: Mcpctl) -> None:
    """It changes the user's file."""
    daemon.answers["mcpd/remove"] = {**APPLIED, "added": []}
    assert mcpctl("remove", "old").code == 2
    assert not daemon.requests
    assert mcpctl("remove", "old", "--yes").out.startswith(
        "- old\n0 added, 0 changed, 1 removed; 1 server unchanged"
    )


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("a.json", '{"mcpServers": {"git": {"command": "g", "cwd": "sub"}}} // a remark'),
        ("b.json", '{"mcp": {"servers": {"git": {"command": "g", "cwd": "sub"}}}}'),
        ("c.yaml", "mcpServers:\n  git:\n    command: g\n    cwd: sub\n"),
        ("d.toml", '[mcpServers.git]\ncommand = "g"\ncwd = "sub"\n'),
    ],
)
def test_apply_reads_every_layout_and_format(
    daemon: FakeDaemon, mcpctl: Mcpctl, tmp_path: Path, name: str, text: str
) -> None:
    """It makes a relative `cwd` absolute, because the daemon does not know the file's directory."""
    file = tmp_path / name
    file.write_text(text)
    daemon.answers["mcpd/servers/set"] = {**APPLIED, "dry_run": True}
    ran = mcpctl("apply", str(file), "--plan", "--if-generation", "3")
    assert daemon.params_of("mcpd/servers/set") == {
        "servers": {"git": {"command": "g", "cwd": str(tmp_path / "sub")}},
        "dry_run": True,
        "if_generation": 3,
    }
    assert (ran.code, ran.out.splitlines()[:2]) == (0, ["+ git", "- old"])


def test_invalid_set_exits_with_2_and_lists_every_problem(
    daemon: FakeDaemon, mcpctl: Mcpctl, tmp_path: Path
) -> None:
    """For errors found by mcpctl and by the daemon."""
    file = tmp_path / "a.json"
    file.write_text('{"mcpServers": [')
    assert mcpctl("apply", str(file)).code == 2
    assert mcpctl("apply", str(tmp_path / "none.json")).code == 2
    file.write_text('{"mcpServers": {"git": {}}}')
    problem = {"path": "$.mcpServers.git", "message": "neither command nor url", "fix": "add one"}
    daemon.answers["mcpd/servers/set"] = {**APPLIED, "added": [], "errors": [problem]}
    ran = mcpctl("apply", str(file))
    assert (ran.code, ran.out) == (2, "")
    assert "$.mcpServers.git: neither command nor url (add one)" in ran.err


def test_config_validate_needs_no_daemon(mcpctl: Mcpctl, tmp_path: Path) -> None:
    """It validates files before the daemon reads them."""
    file = tmp_path / "a.json"
    file.write_text('{"mcpServers": {"git": {"command": "g"}}}')
    assert mcpctl("config", "validate", str(file), "--json").json()["servers"] == ["git"]
    file.write_text('{"mcpServers": {"git": {"comand": "g"}}}')
    ran = mcpctl("config", "validate", str(file))
    assert (ran.code, "$.mcpServers.git" in ran.err) == (2, True)
    assert mcpctl("config", "validate", str(file), "--json").error()["problems"]


def test_config_path_works_for_invalid_files(
    mcpctl: Mcpctl, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A user who wants to fix the file needs its path. It is ambiguous only if two files exist."""
    for variable in ("MCPD_CONFIG", "MCPD_SERVERS"):
        monkeypatch.delenv(variable, raising=False)
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path))
    file = tmp_path / "mcpd" / "config.json"
    assert mcpctl("config", "path").out == f"{file}\n"
    file.parent.mkdir()
    file.write_text("{")
    assert mcpctl("config", "path").out == f"{file}\n"
    file.with_suffix(".toml").touch()
    ran = mcpctl("config", "path")
    assert (ran.code, ran.out) == (2, "")
    assert "there are 2 configuration files" in ran.err


# ---- looking closer ------------------------------------------------------------------------------


def test_events_print_one_line_each(daemon: FakeDaemon, mcpctl: Mcpctl) -> None:
    """With --json one object each. `status --watch` in a pipe prints the same."""
    daemon.answers["mcpd/events"] = events(
        {"kind": "snapshot", "server": "git", "status": server("git")},
        {"kind": "removed", "server": "git"},
        {"kind": "config", "message": "reloaded"},
    )
    daemon.answers["mcpd/status"] = status(server("git"), server("a-name-of-17-chars"))
    ran = mcpctl("events")
    assert ran.out.splitlines()[0].startswith("03:00:00  git                 connected")
    assert [line.split() for line in ran.out.splitlines()] == [
        ["03:00:00", "git", "connected", "(2", "tools,", "pid", "4711)"],
        ["03:00:00", "git", "removed"],
        ["03:00:00", "-", "config:", "reloaded"],
    ]
    assert mcpctl("status", "--watch").out == ran.out
    assert len(mcpctl("events", "--json").out.splitlines()) == 3


def test_debug_shows_everything_the_daemon_knows(daemon: FakeDaemon, mcpctl: Mcpctl) -> None:
    """Process, connection steps and protocol."""
    daemon.answers["mcpd/server"] = detail(server(), junk_lines=3, junk_sample="Starting...")
    out = mcpctl("debug", "time").out
    for fact in (
        "/usr/bin/uvx",
        "/usr/bin:/bin",
        "HOME PATH",
        "12 ms",
        "initialize",
        "Starting...",
        "time.log",
    ):
        assert fact in out


# ---- mcpctl itself -------------------------------------------------------------------------------


def test_overview_summaries_match_the_commands_help(mcpctl: Mcpctl) -> None:
    """The overview imports no command module. All help texts fit 80 columns."""
    import click

    from ctl.cli.app import app

    context = click.Context(app)
    overview = mcpctl("--help").out
    for name, entry in COMMANDS.items():
        command = app.get_command(context, name)
        assert command is not None
        own = (command.help or "").strip().partition("\n")[0]
        assert own == entry.help or entry.hidden, name
        assert entry.hidden or f"  {name} " in overview
        assert all(len(line) <= 80 for line in mcpctl(name, "--help").out.splitlines()), name


def test_misspelled_command_exits_with_2_and_a_suggestion(mcpctl: Mcpctl) -> None:
    """Also with --json."""
    ran = mcpctl("recconect")
    assert (ran.code, "did you mean reconnect" in ran.err) == (2, True)
    assert "reconnect" in mcpctl("recconect", "--json").error()["suggestions"]


def test_group_without_a_command_shows_help(mcpctl: Mcpctl) -> None:
    """Like `mcpctl` without arguments. With --json it is an error."""
    for group in ("daemon", "config"):
        assert mcpctl(group).out == mcpctl(group, "--help").out
        ran = mcpctl(group, "--json")
        assert (ran.code, ran.error()["message"]) == (2, "Missing command.")


def test_exit_codes_can_be_listed(mcpctl: Mcpctl) -> None:
    """With two commands, and in the documentation."""
    out = mcpctl("help", "exit-codes").out
    assert mcpctl("exit-codes").out == out
    page = (Path(__file__).parents[2] / "docs" / "reference" / "exit-codes.md").read_text()
    for code, meaning in EXIT_CODES:
        assert meaning in out
        assert f"| {code} | {meaning} |" in page


def test_every_command_is_documented() -> None:
    """Each has a heading or an example."""
    page = (Path(__file__).parents[2] / "docs" / "reference" / "mcpctl.md").read_text()
    for name, entry in COMMANDS.items():
        assert entry.hidden or f"mcpctl {name}" in page, name


def test_version_works_without_a_daemon(mcpctl: Mcpctl) -> None:
    """And does not start it."""
    ran = mcpctl("version", MCPD_NO_START="")
    assert (ran.code, "not running" in ran.out) == (0, True)
    assert mcpctl("version", "--json").json()["daemon"] is None


def test_completion_uses_names_from_the_daemon(
    daemon: FakeDaemon, mcpctl: Mcpctl, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Servers, tools and arguments of tools."""
    daemon.answers["mcpd/status"] = status(server("github"), server("time"))
    daemon.answers["mcpd/tools"] = {"tools": [TOOL], "dropped": 0}

    def complete(line: str) -> list[str]:
        monkeypatch.setenv("COMP_LINE", line)
        return mcpctl(_MCPCTL_COMPLETE="bash_complete").out.split()

    assert complete("mcpctl status g") == ["plain,github"]
    assert complete("mcpctl call n") == ["plain,now@time"]
    assert complete("mcpctl call now@time z") == ["plain,zone="]
    assert complete("mcpctl rec") == ["plain,reconnect"]


def test_completion_without_a_daemon_is_silent(mcpctl: Mcpctl, monkeypatch: pytest.MonkeyPatch) -> None:
    """It never starts a daemon."""
    monkeypatch.setenv("COMP_LINE", "mcpctl status g")
    ran = mcpctl(_MCPCTL_COMPLETE="bash_complete", MCPD_NO_START="")
    assert (ran.out.strip(), ran.err) == ("", "")


@pytest.mark.parametrize(
    ("argv", "environ", "is_json"),
    [
        (["status", "-o", "json"], {}, True),
        (["--format=jsonl", "status"], {}, True),
        (["status"], {"MCPCTL_OUTPUT": "jsonl"}, True),
        (["status", "-o", "table"], {"MCPCTL_OUTPUT": "json"}, False),
    ],
)
def test_output_format_is_selected_by_name(
    daemon: FakeDaemon, mcpctl: Mcpctl, argv: list[str], environ: dict[str, str], is_json: bool
) -> None:
    """Options override the environment."""
    daemon.answers["mcpd/status"] = status(server("git"))
    assert mcpctl(*argv, **environ).out.startswith("{") is is_json
    assert mcpctl("status", "-o", "yaml").code == 2

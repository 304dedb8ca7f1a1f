"""`mcpctl status`: the table, one server in detail, and the fast path."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from ctl.cli.text import ago, until
from ctl.show.status import status_table
from tests.ctl.conftest import Mcpctl
from tests.ctl.fake_daemon import NOW, FakeDaemon, Fault, Raw, detail, failure, server, status

ESCAPES = "\x1b[31mred\x1b[0m \x1b]0;title\x07 \u202eevil\x9b2J"


def test_table_has_a_row_per_server(daemon: FakeDaemon, mcpctl: Mcpctl) -> None:
    """In a pipe: all columns, nothing truncated, no colour."""
    message = "exited with status 1: " + "long " * 40
    daemon.answers["mcpd/status"] = status(
        server("time", restarts=3), server("git", "failed", last_error=failure(message), attempts=4)
    )
    ran = mcpctl("status")
    header, time, git, *rest = ran.out.splitlines()
    assert time.split()[5] == ago(NOW).partition(" ")[0]
    assert git.split()[5] == "-"
    assert header.split() == ["SERVER", "STATUS", "PID", "TOOLS", "RESTARTS", "UPTIME", "LAST", "ERROR"]
    assert time.split()[:5] == ["time", "connected", "4711", "2", "3"]
    assert message.strip() in git
    assert "mcpctl why git" in rest[-1]
    assert (ran.code, ran.err) == (0, "")


def test_cause_is_worth_more_than_numbers(daemon: FakeDaemon, mcpctl: Mcpctl) -> None:
    """In a terminal of 80 columns."""
    last = failure("exited with status 1", summary="exited (1): MY_API_KEY is required")
    one = server("everything-vscode", "needs-auth")
    table = status_table(status(one, server("git", "failed", last_error=last)), 80)  # type: ignore[arg-type]
    assert "".join(table[0]).split() == ["SERVER", "STATUS", "TOOLS", "UPTIME", "LAST", "ERROR"]
    assert "".join(table[2]).endswith("exited (1): MY_API_KEY is required")


def test_summary_of_the_failure_is_shown(daemon: FakeDaemon, mcpctl: Mcpctl) -> None:
    """It contains the line of stderr that helps; the message alone does not."""
    last = failure("exited with status 1 before initialize", summary="exited (1): MY_API_KEY is required")
    daemon.answers["mcpd/status"] = status(server("git", "failed", last_error=last))
    assert mcpctl("status").out.splitlines()[1].endswith("  exited (1): MY_API_KEY is required")


def test_past_failure_is_shown_with_its_age(daemon: FakeDaemon, mcpctl: Mcpctl) -> None:
    """A connected server with an old error must not look broken."""
    daemon.answers["mcpd/status"] = status(server("time", last_error=failure()))
    assert f"exited with status 1 ({ago(NOW)})" in mcpctl("status").out


def test_current_activity_precedes_the_last_failure(daemon: FakeDaemon, mcpctl: Mcpctl) -> None:
    """For example a download. "connecting" is omitted, because the state says so."""
    daemon.answers["mcpd/status"] = status(
        server("one", "pending", reason="npx is installing it", last_error=failure("no disk; see above")),
        server("two", "pending", reason="connecting", last_error=failure("no disk")),
    )
    _, one, two, *_ = mcpctl("status").out.splitlines()
    assert one.endswith("  npx is installing it (before: no disk)")
    assert two.endswith("  no disk")


def test_failed_attempts_are_shown_only_while_failing(daemon: FakeDaemon, mcpctl: Mcpctl) -> None:
    """The daemon keeps the count for a while after a recovery."""
    daemon.answers["mcpd/server"] = detail(server(restarts=2, attempts=1))
    assert "restarts: 2\n" in mcpctl("status", "time").out
    daemon.answers["mcpd/server"] = detail(server(status="failed", restarts=2, attempts=1))
    assert "restarts: 2; consecutive failed attempts: 1\n" in mcpctl("status", "time").out


QUESTION = {
    "client": "cursor (pid 7)",
    "call": "tool 'deploy'",
    "method": "elicitation/create",
    "text": "Really?",
    "since": NOW,
    "client_is_connected": False,
}
BLOCKED: dict[str, Any] = {
    "questions": [QUESTION],
    "waiting": [{"client": "zed (pid 8)", "call": "tool 'build'", "since": NOW}],
    "waiting_calls": 3,
}


def test_calls_that_wait_for_an_answer_are_shown(daemon: FakeDaemon, mcpctl: Mcpctl) -> None:
    """Who was asked what, since when, and who waits; without a call that waits, only in the details."""
    daemon.answers["mcpd/status"] = status(server("time", **BLOCKED))
    table = mcpctl("status").out
    assert f"3 calls wait: cursor (pid 7) was asked {ago(NOW)}" in table
    assert table.splitlines()[-1] == "next: mcpctl why time"
    daemon.answers["mcpd/server"] = detail(server("time", **BLOCKED))
    details = mcpctl("status", "time", "--utc").out
    assert "asked: cursor (pid 7), disconnected at " in details
    assert ", by tool 'deploy': Really?" in details
    assert "waiting: tool 'build' of zed (pid 8), since 2026" in details
    assert "waiting: and 2 calls more" in details
    ran = mcpctl("why", "time", "--no-shell")
    assert "cause: 3 calls wait: cursor (pid 7) was asked" in ran.out
    assert ", by tool 'deploy': Really?" in ran.out
    assert 'next: mcpctl edit   (add "share": "client"' in ran.out
    received = mcpctl("why", "time", "--no-shell", "--json").json()
    assert (received["questions"], received["waiting_calls"]) == ([QUESTION], 3)
    daemon.answers["mcpd/status"] = status(server("time", questions=[QUESTION]))
    assert "cursor" not in mcpctl("status").out


@pytest.mark.parametrize(("number", "line"), [(1, "1 call waits"), (2, "2 calls wait")])
def test_calls_that_wait_for_approval_are_shown(
    daemon: FakeDaemon, mcpctl: Mcpctl, number: int, line: str
) -> None:
    answer = status(server("time"))
    answer["daemon"]["approvals"] = number
    daemon.answers["mcpd/status"] = answer
    assert mcpctl("status").out.splitlines()[-1] == f"{line} for your approval: mcpctl approvals"


def test_temporarily_disabled_server_shows_until_when(daemon: FakeDaemon, mcpctl: Mcpctl) -> None:
    """It replaces the last error, which is irrelevant while the server is disabled."""
    reason = "switched off until 2026-11-21 18:00:00 UTC"
    off = server("time", "disabled", reason=reason, off_until=NOW, last_error=failure())
    daemon.answers["mcpd/status"] = status(off)
    assert mcpctl("status").out.splitlines()[1].endswith("  switched off until 2026-11-21 14:30:00 -03:30")
    assert mcpctl("status", "--utc").out.splitlines()[1].endswith(f"  {reason}")


def test_json_is_the_daemons_result_byte_for_byte(daemon: FakeDaemon, mcpctl: Mcpctl) -> None:
    """Numbers, key order and duplicate keys do not change."""
    from tests.ctl.fake_daemon import Raw

    text = '{"servers": [],"x":1.10,"big":123456789012345678901234567890,"x":"\\u00e9é"}'
    daemon.answers["mcpd/status"] = Raw(text)
    assert mcpctl("status", "--json").out == text[:-1] + ', "next": null}\n'


def test_json_of_all_servers_has_the_step_of_the_table(daemon: FakeDaemon, mcpctl: Mcpctl) -> None:
    daemon.answers["mcpd/status"] = status(server(), server("git", "failed", last_error=failure()))
    assert mcpctl("status").out.endswith("\nnext: mcpctl why git\n")
    assert mcpctl("status", "--json").json()["next"] == "mcpctl why git"


@pytest.mark.parametrize("argv", [["status", "--json"], ["--json", "status"], ["status"]])
def test_json_option_is_accepted_in_three_places(daemon: FakeDaemon, mcpctl: Mcpctl, argv: list[str]) -> None:
    """Before the command, after it, or as MCPCTL_OUTPUT."""
    assert mcpctl(*argv, MCPCTL_OUTPUT="json" if "--json" not in argv else "").json()["servers"] == []


def test_fast_path_and_full_command_line_print_the_same(daemon: FakeDaemon, mcpctl: Mcpctl) -> None:
    """`--` sends a plain status to the full command line."""
    daemon.answers["mcpd/status"] = status(server())
    daemon.answers["mcpd/server"] = detail(server())
    assert mcpctl("status") == mcpctl("status", "--")
    assert mcpctl("status", "time") == mcpctl("status", "--", "time")


def test_status_without_servers_shows_first_steps(daemon: FakeDaemon, mcpctl: Mcpctl) -> None:
    """The exit code is 0."""
    ran = mcpctl("status")
    assert ran.code == 0
    assert "mcpctl add" in ran.out
    assert "/home/me/.config/mcpd/config.json" in ran.out


def test_invalid_configuration_is_shown_below_the_table(daemon: FakeDaemon, mcpctl: Mcpctl) -> None:
    """With every problem and a next step."""
    problem = {"path": "$.mcpServers.git.command", "message": "must be a string", "fix": "quote it"}
    daemon.answers["mcpd/status"] = status(server(), problems=[problem])
    out = mcpctl("status").out
    assert "The configuration file has errors" in out
    assert "$.mcpServers.git.command: must be a string (quote it)" in out
    assert "next: mcpctl edit" in out


def test_server_without_a_valid_definition_is_named(daemon: FakeDaemon, mcpctl: Mcpctl) -> None:
    """No earlier definition is used for it, and no program was looked for."""
    problem = {"path": "$.mcpServers.git.comand", "message": "unknown field", "fix": "remove it"}
    cause = failure("unknown field @ $.mcpServers.git.comand (remove it)", kind="config")
    git = server("git", "failed", last_error=cause)
    daemon.answers["mcpd/status"] = status(server(), git, problems=[problem])
    out = mcpctl("status").out
    assert "has errors; cannot start git: /home/me/.config/mcpd/config.json\n" in out
    other = {**problem, "path": "$.settings.htpp"}
    daemon.answers["mcpd/status"] = status(server(), git, problems=[problem, other])
    assert "has errors; cannot start git; using the configuration loaded " in mcpctl("status").out
    daemon.answers["mcpd/server"] = detail(git, executable="", definition={"comand": "x"})
    daemon.answers["mcpd/history"] = {"entries": []}
    assert "executable" not in mcpctl("why", "git", "--no-shell").out


@pytest.mark.parametrize(
    ("config", "effect"),
    [
        ({"rejected": True}, "using the configuration loaded "),
        (
            {"rejected": True, "source": "/state/last-valid-config.json"},
            "using the last valid configuration, saved ",
        ),
        ({"rejected": False}, "entries with errors are not used: /home"),
        ({"rejected": False, "path": "$.settings.policies[0].decision"}, "every use is denied until "),
    ],
)
def test_effect_of_errors_is_named(
    daemon: FakeDaemon, mcpctl: Mcpctl, config: dict[str, object], effect: str
) -> None:
    """The whole file may be rejected, also at the start, or only some entries."""
    path = config.pop("path", "$.mcpServers.time.comand")
    problem = {"path": path, "message": "unknown field", "fix": "remove it"}
    daemon.answers["mcpd/status"] = status(server(), problems=[problem], **config)
    assert f"The configuration file has errors; {effect}" in mcpctl("status").out


def test_set_from_a_command_is_named(daemon: FakeDaemon, mcpctl: Mcpctl) -> None:
    """The file is not in effect until it is loaded again."""
    daemon.answers["mcpd/status"] = status(server(), source="api")
    shown = mcpctl("status").out
    path = "/home/me/.config/mcpd/config.json"
    assert f"The servers come from a command, and {path} is not in effect; to use it: mcpctl reload" in shown


def test_deleted_configuration_is_named(daemon: FakeDaemon, mcpctl: Mcpctl) -> None:
    """If there are no servers, this may be the reason."""
    warning = "/c is gone; its 1 server can be restored from a copy; mcpctl import /copy"
    daemon.answers["mcpd/status"] = status(source="none", warnings=[warning])
    assert f"warning: {warning}" in mcpctl("status").out
    daemon.answers["mcpd/status"] = status(source="none", warnings=["no configuration yet: write it"])
    assert "warning" not in mcpctl("status").out


def test_configuration_warnings_take_one_line(daemon: FakeDaemon, mcpctl: Mcpctl) -> None:
    """The first warning, and where to find the rest."""
    warnings = ["$.profiles: not used here", "another", "third"]
    daemon.answers["mcpd/status"] = status(server(), warnings=warnings)
    out = mcpctl("status").out
    assert "warning: $.profiles: not used here (2 more: mcpctl config validate)\n" in out
    assert "another" not in out


def test_what_the_daemon_cannot_save_is_shown_below_the_table(daemon: FakeDaemon, mcpctl: Mcpctl) -> None:
    for servers in ([server()], []):
        answer = status(*servers)
        answer["daemon"]["warnings"] = ["cannot write state.json: full; free space", "another"]
        daemon.answers["mcpd/status"] = answer
        out = mcpctl("status").out
        assert out.endswith("\n\nwarning: cannot write state.json: full; free space\n\nwarning: another\n")


def test_text_from_servers_is_sanitized(daemon: FakeDaemon, mcpctl: Mcpctl) -> None:
    """In the table and in the details, even if colour is forced."""
    bad = server("time", "failed", last_error=failure(ESCAPES, stderr=[ESCAPES]), warnings=[ESCAPES])
    daemon.answers["mcpd/status"] = status(bad)
    daemon.answers["mcpd/server"] = detail(bad, log=[ESCAPES])
    for out in (mcpctl("status").out, mcpctl("status", "time").out):
        assert out.isprintable() or {c for c in out if not c.isprintable()} == {"\n"}
        assert "red evil2J" in out
    colored = mcpctl("status", "time", "--color", "always").out
    assert "\x1b[31mred" not in colored.replace("\x1b[31mred evil2J\x1b[0m", "")
    assert "\u202e" not in colored
    assert "\x07" not in colored


@pytest.mark.parametrize(
    ("word", "code"),
    [("connected", 0), ("idle", 0), ("failed", 6), ("pending", 6), ("disabled", 6), ("needs-auth", 4)],
)
def test_exit_code_of_status_shows_readiness(
    daemon: FakeDaemon, mcpctl: Mcpctl, word: str, code: int
) -> None:
    """Scripts need not parse the output."""
    daemon.answers["mcpd/server"] = detail(server("time", word))
    assert mcpctl("status", "time").code == code
    assert mcpctl("status", "time", "--json").code == code


def test_failed_server_is_shown_with_its_evidence(daemon: FakeDaemon, mcpctl: Mcpctl) -> None:
    """Cause, stderr, next attempt and next step."""
    last = failure("exited at once", exit_code=3, stderr=["ImportError: no tz", "bye"], crash_loop=True)
    failed = server(
        "time", "failed", reason="crash loop", retry_at="2099-01-01T00:00:00.000Z", last_error=last
    )
    daemon.answers["mcpd/server"] = detail(failed)
    out = mcpctl("status", "time").out
    for evidence in (
        "failed since 2026-11-21 03:00:00 (",
        "reason: crash loop",
        "uvx mcp-server-time --tz 'Europe/Paris now'",
        "[exited, exit code 3, crash loop] exited at once",
        "| ImportError: no tz",
        "(2098-12-31 20:30:00)",
        "2026-11-21 03:00:00.123 ready",
        "next: mcpctl logs time",
    ):
        assert evidence in out


@pytest.mark.parametrize(
    ("transport", "session", "line"),
    [
        ("stdio", None, "protocol: stdio · 2025-11-25 · legacy"),
        ("http", True, "protocol: http · 2025-11-25 · legacy · session"),
        ("http", False, "protocol: http · 2025-11-25 · legacy · no session"),
    ],
)
def test_protocol_is_shown_in_one_line(
    daemon: FakeDaemon, mcpctl: Mcpctl, transport: str, session: bool | None, line: str
) -> None:
    """Transport, revision, era and whether there is a session."""
    daemon.answers["mcpd/server"] = detail(server("far", transport=transport, session=session))
    assert line in [text.strip() for text in mcpctl("status", "far").out.splitlines()]


def test_unknown_server_exits_with_5_and_a_suggestion(daemon: FakeDaemon, mcpctl: Mcpctl) -> None:
    """The closest name is suggested."""
    daemon.answers["mcpd/status"] = status(server("github"), server("time"))
    daemon.answers["mcpd/server"] = Fault(
        "no such server: gitub", code="unknown_server", exit=5, server="gitub"
    )
    ran = mcpctl("status", "gitub")
    assert ran.code == 5
    assert "did you mean github?" in ran.err
    assert mcpctl("status", "gitub", "--json").error()["suggestions"] == ["github"]


def test_missing_daemon_exits_with_3_and_a_hint(mcpctl: Mcpctl) -> None:
    """With --json as one object on stderr."""
    ran = mcpctl("status")
    assert (ran.code, ran.out) == (3, "")
    assert "mcpctl daemon start" in ran.err
    assert mcpctl("--json", "status").error()["code"] == "daemon_unreachable"


def test_version_mismatch_is_noted(daemon: FakeDaemon, mcpctl: Mcpctl) -> None:
    """On stderr, because it is not part of the answer."""
    daemon.answers["mcpd/status"] = {**status(server()), "daemon": {"version": "0.0.1"}}
    assert "mcpctl daemon restart" in mcpctl("status").err


def test_fast_path_imports_neither_click_nor_the_daemon(daemon: FakeDaemon, mcpctl: Mcpctl) -> None:
    """Each of these imports would take longer than the rest of the run."""
    heavy = [
        "click",
        "attrs",
        "attr",
        "cattrs",
        "trio",
        "msgspec",
        "rich",
        "mcpd.model",
        "typing",
        "datetime",
        "difflib",
        "json",
        "re",
        "enum",
    ]
    script = (
        "import sys; from ctl.main import run; import os; code = run(['status'], os.environ);"
        f"print([name for name in {heavy!r} if name in sys.modules], file=sys.stderr); sys.exit(code)"
    )
    done = subprocess.run(
        [sys.executable, "-c", script], env={"MCPD_SOCKET": mcpctl.socket}, capture_output=True, timeout=90
    )
    assert (done.returncode, done.stderr) == (0, b"[]\n")


def test_relative_times() -> None:
    """They use the largest unit that fits, rounded down."""
    now = 1795242600.0  # NOW, in seconds since the epoch
    assert [ago(NOW, now + s) for s in (0.2, 5, 185, 7300, 200000)] == [
        "just now", "5s ago", "3m ago", "2h ago", "2d ago"
    ]  # fmt: skip
    assert (until(NOW, now - 90), until(NOW, now + 5), until(None), ago("nonsense")) == (
        "in 1m",
        "now",
        "",
        "-",
    )


def test_json_suggests_the_same_next_step_as_the_text(
    mcpctl: Mcpctl, daemon: FakeDaemon, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Only a terminal knows where its user's programs are."""
    missing = server("time", "failed", last_error=failure("command not found: its-program", kind="spawn"))
    daemon.answers["mcpd/server"] = detail(
        missing, command=["its-program"], executable=None, next="mcpctl why time"
    )
    program = tmp_path / "its-program"
    program.write_text("")
    program.chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path))
    shown = mcpctl("status", "time").out.splitlines()[-1].removeprefix("next: ")
    assert shown.startswith("mcpctl daemon restart   (uses the PATH of this shell")
    assert mcpctl("status", "time", "--json").json()["next"] == shown
    assert mcpctl("status", "time", "git", "--json").json()["servers"][1]["next"] == shown


def test_json_of_one_server_is_that_of_the_daemon(mcpctl: Mcpctl, daemon: FakeDaemon) -> None:
    """Byte for byte, unless the next step differs."""
    text = json.dumps(detail(server("time"), next="mcpctl list-tools time")).replace(": 0", ": 0.0")
    daemon.answers["mcpd/server"] = Raw(text)
    assert mcpctl("status", "time", "--json").out == text + "\n"

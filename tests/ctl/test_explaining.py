"""`mcpctl why`, `history`, `stats`, `top`, `tap`, `metrics`: what a person sees of what the daemon knows."""

from __future__ import annotations

import os
import signal
import subprocess
import time
from pathlib import Path

import pytest

from ctl import doctor_checks, login_shell, systemd_units
from ctl.commands.ui import has_browser
from tests.ctl.conftest import Mcpctl
from tests.ctl.fake_daemon import NOW, Caller, FakeDaemon, Fault, detail, failure, server

ENTRY = {
    "at": NOW,
    "what": "state",
    "server": "time",
    "state": "disabled",
    "message": "it was switched off",
    "by": "zed (pid 7)",
    "kind": None,
    "exit_code": None,
    "signal": None,
    "times": 1,
}
COUNTS = {"calls": 12, "errors": 2, "lost": 1, "cancelled": 0, "p50_ms": 2.6, "p95_ms": 87.0, "p99_ms": None}
CLIENT = {"pid": 7, "name": "zed", "since": NOW, "attached": "time", "calls": 3}


def stats(at: str = NOW, memory: int = 151_000_000, cpu: float = 1.0, calls: int = 12) -> dict[str, object]:
    cost = {"processes": 3, "memory": memory, "cpu_seconds": cpu}
    one = {
        "server": "time",
        "status": "connected",
        "counts": {**COUNTS, "calls": calls},
        "seconds": 1.5,
        "in_flight": 1,
        "restarts": 0,
        "buckets": [],
        "tools": [{"tool": "convert", "counts": COUNTS}],
        "clients": [CLIENT, {**CLIENT, "attached": ""}],
        "cost": cost,
    }
    return {"since": NOW, "at": at, "servers": [one], "clients": [CLIENT], "daemon": {**cost, "processes": 1}}


@pytest.fixture
def shell(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A login shell whose PATH has a directory of its own, with one program."""
    tools = tmp_path / "tools"
    tools.mkdir()
    program = tools / "mcp-server-files"
    program.write_text("#!/bin/sh\n")
    program.chmod(0o755)
    (tmp_path / "shell").write_text(
        f'#!/bin/sh\necho a greeting\nexport PATH={tools}:$PATH HTTPS_PROXY=http://ann:secret@p\neval "$4"\n'
    )
    (tmp_path / "shell").chmod(0o755)
    monkeypatch.setenv("SHELL", str(tmp_path / "shell"))
    return tools


def test_a_program_that_only_the_shell_finds_is_the_answer(
    daemon: FakeDaemon, mcpctl: Mcpctl, shell: Path
) -> None:
    """The classic: works in the terminal, not in the service. The value of no variable is shown."""
    gone = failure(
        "command not found: mcp-server-files; looked in PATH=/usr/bin", kind="spawn", exit_code=None
    )
    daemon.answers["mcpd/server"] = detail(
        server("files", "failed", last_error=gone),
        command=["mcp-server-files"],
        executable=None,
        path="/usr/bin:/bin",
        history=[ENTRY],
    )
    ran = mcpctl("why", "files")
    assert ran.code == 6
    assert "files: failed since" in ran.out
    assert "cause: command not found: mcp-server-files\n" in ran.out
    assert f"your shell: runs {shell}/mcp-server-files" in ran.out
    assert f"PATH lacks: {shell}" in ran.out
    assert "HTTPS_PROXY" in ran.out
    assert "secret" not in ran.out
    assert "zed (pid 7)" in ran.out
    assert f"{shell}/mcp-server-files as its command" in ran.out.splitlines()[-1]
    told = mcpctl("why", "files", "--json").json()
    assert told["binary"]["in_login_shell"] == f"{shell}/mcp-server-files"
    assert "HTTPS_PROXY" in told["environment"]["variables_only_in_login_shell"]
    assert told["evidence"]["kind"] == "spawn"


def test_a_path_in_the_definition_is_not_mended_by_a_restart(
    daemon: FakeDaemon, mcpctl: Mcpctl, shell: Path
) -> None:
    """It wins over the daemon's, whatever that has taken over from a shell."""
    gone = failure("command not found: mcp-server-files", kind="spawn", exit_code=None)
    definition = {"command": "mcp-server-files", "env": {"PATH": "/opt/bin"}}
    daemon.answers["mcpd/server"] = detail(
        server("files", "failed", last_error=gone),
        command=["mcp-server-files"],
        executable=None,
        path="/opt/bin",
        definition=definition,
    )
    last = mcpctl("why", "files").out.splitlines()[-1]
    assert last.startswith(f"next: mcpctl edit   (use {shell}/mcp-server-files as its command, or fix")


def test_the_end_of_a_process_is_told_with_its_last_words(
    daemon: FakeDaemon, mcpctl: Mcpctl, shell: Path
) -> None:
    """Exit status, stderr, when it is tried again."""
    died = failure(stderr=["no database", "", "giving up"])
    daemon.answers["mcpd/server"] = detail(server(status="failed", last_error=died, retry_at=NOW))
    out = mcpctl("why", "time").out
    assert "exited (exit code 1)" in out
    assert "stderr: no database" in out
    assert "giving up" in out
    assert out.count("stderr: ") == 2
    assert "next try now" in out


def test_trouble_is_dated_from_its_beginning(daemon: FakeDaemon, mcpctl: Mcpctl) -> None:
    """Not from the last of a hundred attempts; and it begins anew with each connection."""

    def entry(hour: int, state: str | None) -> dict[str, object]:
        what = "tools" if state is None else "state"
        return {**ENTRY, "at": f"2026-11-21T{hour:02}:00:00.000Z", "what": what, "state": state, "by": ""}

    past = [
        entry(1, "failed"),
        entry(2, "connected"),
        entry(3, "pending"),
        entry(4, None),
        entry(5, "failed"),
    ]
    daemon.answers["mcpd/history"] = {"entries": past, "dropped": 0}
    daemon.answers["mcpd/server"] = detail(server(status="failed", last_error=failure()))
    assert "down since: 2026-11-21 03:00:00 UTC (" in mcpctl("why", "time", "--no-shell").out
    daemon.answers["mcpd/history"] = {"entries": past[:1], "dropped": 0}
    assert mcpctl("why", "time", "--no-shell", "--json").json()["down_since"] == past[0]["at"]
    daemon.answers["mcpd/server"] = detail(server())
    assert mcpctl("why", "time", "--json").json()["down_since"] is None
    daemon.answers["mcpd/history"] = {"entries": [entry(7, "pending")], "dropped": 0}  # when it was installed
    daemon.answers["mcpd/server"] = detail(server(status="pending"))
    assert "down since" not in mcpctl("why", "time", "--no-shell").out


def test_what_it_printed_instead_of_messages_is_evidence(daemon: FakeDaemon, mcpctl: Mcpctl) -> None:
    """The usage of a program that is no server, say: it is on stdout, and no log has it."""
    noise = "3 lines on its stdout were not JSON-RPC; the first: Usage: it [OPTIONS]"
    daemon.answers["mcpd/server"] = detail(server(status="failed", last_error=failure(noise=noise)))
    assert f"stdout: {noise}" in mcpctl("why", "time", "--no-shell").out
    assert noise in mcpctl("status", "time").out
    assert mcpctl("why", "time", "--no-shell", "--json").json()["evidence"]["noise"] == noise


def test_a_path_is_not_searched_for_and_nobody_installs_it(daemon: FakeDaemon, mcpctl: Mcpctl) -> None:
    """PATH plays no part in `/opt/tool/it`."""
    gone = failure("there is no file /opt/tool/it; correct `command`", kind="spawn", exit_code=None)
    daemon.answers["mcpd/server"] = detail(
        server(status="failed", last_error=gone), command=["/opt/tool/it"], executable=None
    )
    out = mcpctl("why", "time", "--no-shell").out
    assert "searched" not in out
    assert "not found" not in out  # it may be there, and not be executable
    assert "executable: /opt/tool/it cannot be run" in out
    assert "install" not in out
    assert "\nnext: mcpctl edit " in out


def test_an_http_status_is_evidence(daemon: FakeDaemon, mcpctl: Mcpctl) -> None:
    """Of a server behind a URL, which has no process and no PATH."""
    refused = failure("answered HTTP 503", kind="http", exit_code=None, http_status=503)
    daemon.answers["mcpd/server"] = detail(
        server(status="failed", last_error=refused, transport="http"), command=[], path="", url="https://x"
    )
    out = mcpctl("why", "time").out
    assert "url: https://x" in out
    assert "http (HTTP status 503)" in out
    assert "PATH" not in out


def test_who_switched_it_off_is_named(daemon: FakeDaemon, mcpctl: Mcpctl) -> None:
    """With the command that brings it back; no shell is started for that."""
    daemon.answers["mcpd/server"] = detail(server(status="disabled", reason="switched off"), history=[ENTRY])
    out = mcpctl("why", "time", SHELL="/bin/false").out
    assert "cause: switched off, by zed (pid 7)" in out
    assert out.splitlines()[-1] == "next: mcpctl enable time"


@pytest.mark.parametrize("script", ["exit 1", "sleep 60", "echo only this"])
def test_a_shell_that_does_not_answer_is_left(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, script: str
) -> None:
    """Somebody's start-up files hang: that must not hang us."""
    monkeypatch.setattr(login_shell, "TIMEOUT", 0.3)
    shell = tmp_path / "shell"
    shell.write_text(f"#!/bin/sh\n{script}\n")
    shell.chmod(0o755)
    assert login_shell.login_environment({"SHELL": str(shell)}) is None
    assert login_shell.login_environment({"SHELL": str(tmp_path / "none")}) is None


def test_a_shell_that_leaves_something_running_is_heard_all_the_same(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An agent that a start-up file begins, in a session of its own, holds our pipe until it ends."""
    monkeypatch.setattr(login_shell, "TIMEOUT", 8.0)
    shell, pid = tmp_path / "shell", tmp_path / "pid"
    shell.write_text(f'#!/bin/sh\nsetsid sleep 120 &\necho $! >{pid}\nexec sh -c "$4"\n')
    shell.chmod(0o755)
    began = time.monotonic()
    try:
        found = login_shell.login_environment({"SHELL": str(shell), "HOME": "/h"})
    finally:
        os.kill(int(pid.read_text()), signal.SIGKILL)
    assert found is not None
    assert found["HOME"] == "/h"
    assert time.monotonic() - began < 60


def test_programs_of_version_managers_are_found_where_they_put_them(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """nvm and its like change the PATH of interactive shells only."""
    monkeypatch.setenv("HOME", str(tmp_path))
    place = tmp_path / ".nvm/versions/node/v20.1.0/bin/npx-of-mine"
    place.parent.mkdir(parents=True)
    place.write_text("")
    place.chmod(0o755)
    assert login_shell.find_elsewhere("npx-of-mine") == [str(place)]
    assert login_shell.find_elsewhere("/usr/bin/npx-of-mine") == []


def test_history_is_a_table_oldest_first(daemon: FakeDaemon, mcpctl: Mcpctl) -> None:
    """With who asked; of a thing that repeats itself, how often."""
    again = {**ENTRY, "state": "failed", "kind": "exited", "exit_code": 3, "times": 8, "by": ""}
    daemon.answers["mcpd/history"] = {"entries": [ENTRY, again], "dropped": 4}
    ran = mcpctl("history", "-n", "2")
    assert daemon.params_of("mcpd/history") == {"server": None, "limit": 2}
    heading, first, second = ran.out.splitlines()
    assert heading.split() == ["WHEN", "(UTC)", "SERVER", "WHAT", "BY", "CAUSE"]
    assert "zed (pid 7)" in first
    assert second.endswith("[exited, exit code 3] it was switched off (8 times so far)")
    assert "4 entries could not be written" in ran.err


def test_stats_of_all_and_of_one(daemon: FakeDaemon, mcpctl: Mcpctl) -> None:
    """The process table is looked at for one only."""
    daemon.answers["mcpd/stats"] = stats()
    out = mcpctl("stats").out
    assert out.splitlines()[1].split()[:8] == ["time", "connected", "12", "2", "1", "2.6", "ms", "87"]
    assert "zed (2)" in out
    assert daemon.params_of("mcpd/stats") == {"server": None, "processes": False}
    out = mcpctl("stats", "time").out
    assert daemon.params_of("mcpd/stats") == {"server": "time", "processes": True}
    assert "151 MB in 3 processes" in out
    assert "convert" in out


def test_top_tells_rates_between_two_looks(daemon: FakeDaemon, mcpctl: Mcpctl) -> None:
    """A quarter of a processor, five calls a second."""
    answers = iter([stats(), stats(at="2026-11-21T06:30:02.000Z", cpu=1.5, calls=22)])
    daemon.answers["mcpd/stats"] = lambda *_: next(answers)
    row = mcpctl("top").out.splitlines()[1]
    assert "151 MB" in row
    assert "25 %" in row
    assert "5.0" in row.split()


def test_frames_are_a_line_each(daemon: FakeDaemon, mcpctl: Mcpctl) -> None:
    """And under --json an object each; what was dropped is said before it."""
    frame = {
        "at": NOW,
        "server": "time",
        "direction": "from-server",
        "method": "tools/call",
        "id": "3",
        "bytes": 20,
        "message": {"id": 3, "result": {}},
        "text": "",
        "cut": False,
        "dropped": 5,
    }

    def answer(caller: Caller, _: object) -> object:
        caller.notify("mcpd/frame", {"request": caller.request, "frame": frame})
        caller.hang_up()
        return {}

    daemon.answers["mcpd/tap"] = answer
    ran = mcpctl("tap", "time", "-m", "tools/*")
    assert daemon.params_of("mcpd/tap") == {"server": "time", "methods": ["tools/*"], "limit": 65536}
    assert ran.out.splitlines() == [
        "… 5 messages skipped (too fast to show)",
        '06:30:00.000 ← tools/call #3 {"id": 3, "result": {}}',
    ]
    assert mcpctl("tap", "time", "--json").json() == frame


def test_metrics_are_printed_as_they_are(daemon: FakeDaemon, mcpctl: Mcpctl) -> None:
    """A collector reads them."""
    daemon.answers["mcpd/metrics"] = {"content_type": "text/plain", "text": "a 1\nb 2\n"}
    assert mcpctl("metrics").out == "a 1\nb 2\n"


def test_the_page_is_printed_where_no_window_can_be_opened(daemon: FakeDaemon, mcpctl: Mcpctl) -> None:
    """And where that is asked for; the address alone is on stdout."""
    url = "http://127.0.0.1:8931/#code"
    daemon.answers["mcpd/page"] = {"url": url, "seconds": 60.0}
    assert mcpctl("ui", "--print").out == f"{url}\n"
    assert mcpctl("ui", "--json").json() == {"url": url, "seconds": 60.0}
    assert not has_browser({"TERM": "xterm"})
    assert has_browser({"WAYLAND_DISPLAY": "wayland-0"})


def test_how_to_have_a_page_is_told(daemon: FakeDaemon, mcpctl: Mcpctl) -> None:
    """What to type; nobody knows a setting's spelling by heart."""
    daemon.answers["mcpd/page"] = Fault("there is no page", code="unsupported", exit=1)
    ran = mcpctl("ui")
    assert ran.code == 1
    assert 'mcpctl edit   ("settings": {"http": "127.0.0.1:8931"}), then: mcpctl daemon restart' in ran.err


def test_the_page_is_opened_in_the_users_browser(
    daemon: FakeDaemon, mcpctl: Mcpctl, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    told = tmp_path / "told"
    browser = tmp_path / "browser"
    browser.write_text(f'#!/bin/sh\necho "$1" > {told}\n')
    browser.chmod(0o700)
    monkeypatch.setenv("BROWSER", f"{browser} %s")
    monkeypatch.setattr("webbrowser._tryorder", None)
    daemon.answers["mcpd/page"] = {"url": "http://127.0.0.1:8931/#code", "seconds": 60.0}
    ran = mcpctl("ui")
    assert ran.out == ""
    assert told.read_text() == "http://127.0.0.1:8931/#code\n"


def test_an_installation_under_a_running_daemon_is_told(mcpctl: Mcpctl) -> None:
    """RELIABILITY E11: files replaced under us; the fix is a restart."""
    (finding,) = doctor_checks.check_installation(started_at=0.0)
    assert (finding.result, finding.fix) == ("warning", "mcpctl daemon restart")
    (finding,) = doctor_checks.check_installation(started_at=time.time() + 3600)
    assert finding.result == "ok"


def test_a_broken_program_fails_only_where_it_is_needed(tmp_path: Path) -> None:
    """A shim that starts nothing: version managers leave them behind."""
    shim = tmp_path / "npx"
    shim.write_text("#!/bin/sh\necho 'no version is set' >&2\nexit 126\n")
    shim.chmod(0o755)
    for needed, result in ({"npx"}, "failure"), (set[str](), "warning"):
        found = [
            f
            for f in doctor_checks.check_programs(needed, str(tmp_path), None)
            if "does not run" in f.message
        ]
        assert [(f.result, f.message) for f in found] == [(result, f"{shim} does not run: no version is set")]


def test_a_directory_that_others_may_read_is_told(tmp_path: Path) -> None:
    """And one that is not there yet is no failure where it can be made."""
    place = tmp_path / "state"
    (finding,) = doctor_checks.check_directories({"state directory": str(place)})
    assert finding.result == "ok"
    place.mkdir(mode=0o755)
    place.chmod(0o755)
    (finding,) = doctor_checks.check_directories({"state directory": str(place)})
    assert (finding.result, finding.fix) == ("failure", f"chmod 700 {place}")


def test_units_that_start_something_else_are_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """After `pipx reinstall`, another Python, an upgrade: the service runs what it was written for."""
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path))
    ours = ["/usr/bin/env", "mcpd"]
    systemd_units.write_units(ours, "/home/me/100% mine/bin:/usr/bin")
    assert systemd_units.outdated_reason(ours) == ""
    assert "mcpd.service starts /usr/bin/env mcpd, but" in systemd_units.outdated_reason(["/opt/mcpd"])
    systemd_units.write_units(["/gone away/100%/mcpd"], "/usr/bin")
    assert (
        systemd_units.outdated_reason(ours)
        == "mcpd.service starts /gone away/100%/mcpd, which does not exist"
    )
    (service, socket) = systemd_units.write_units(ours, "/usr/bin")
    service.write_text(service.read_text().replace("KillMode=mixed", "KillMode=process"))
    assert "from another version" in systemd_units.outdated_reason(ours)
    systemd_units.write_units(ours, "/usr/bin")
    socket.unlink()
    assert "mcpd.socket cannot be read" in systemd_units.outdated_reason(ours)


def test_a_configuration_that_others_may_write_or_read_is_told(tmp_path: Path) -> None:
    """Who writes it starts programs as us; who reads it has the tokens in it. Each fix is typed as it is."""
    file = tmp_path / "my config.json"
    file.write_text('{"mcpServers": {"it": {"env": {"TOKEN": "hunter-of-tokens"}}}}')
    both = ["failure", "warning"]
    for mode, results in (
        (0o600, []),
        (0o660, []),
        (0o646, both),
        (0o644, ["warning"]),
        (0o602, ["failure"]),
    ):
        file.chmod(mode)
        found = list(doctor_checks.check_file_permissions(str(file), ["hunter-of-tokens", "elsewhere"]))
        assert [finding.result for finding in found] == results
        for finding in found:
            subprocess.run(finding.fix, shell=True, check=True)
        assert not list(doctor_checks.check_file_permissions(str(file), ["hunter-of-tokens"]))
    file.chmod(0o644)
    assert not list(doctor_checks.check_file_permissions(str(file), []))
    assert not list(doctor_checks.check_file_permissions(str(tmp_path / "none"), []))

"""`mcpctl why`, `history`, `stats`, `top`, `tap`, `metrics`, `ui` and `doctor`."""

from __future__ import annotations

import os
import signal
import subprocess
import time
from pathlib import Path
from typing import Any

import pytest

from ctl.commands.doctor import _loaded_findings, _path_of_next_daemon, _server_finding, ping_servers
from ctl.commands.ui import has_browser
from ctl.daemon import process, systemd
from ctl.daemon.client import DaemonClient
from ctl.explain import checks, environment
from mcpd.model.status import rfc3339
from mcpd.support.find_programs import find_elsewhere
from tests.ctl.conftest import Mcpctl
from tests.ctl.fake_daemon import NOW, Caller, FakeDaemon, Fault, detail, failure, server, status

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
    """A login shell whose PATH has an extra directory with one program."""
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


def test_why_does_not_guess_who_killed_a_server(daemon: FakeDaemon, mcpctl: Mcpctl) -> None:
    """It names all who may have sent SIGKILL, and how to find out whether memory was short."""
    killed = failure("was killed by SIGKILL", kind="killed", exit_code=None, signal="SIGKILL")
    daemon.answers["mcpd/server"] = detail(server("time", "failed", last_error=killed))
    daemon.answers["mcpd/history"] = {"entries": [], "dropped": 0}
    out = mcpctl("why", "time", "--no-shell").out
    assert "cause: was killed by SIGKILL\n" in out
    assert "SIGKILL: sent by a user, a program, or the kernel if memory was short: journalctl -k " in out
    assert "next: mcpctl reconnect time   (something else ended it" in out


def test_degraded_server_is_not_called_healthy(daemon: FakeDaemon, mcpctl: Mcpctl) -> None:
    """`why`, `status`, and `doctor` say what is wrong, the last failure, and what to do."""
    flapping = server("time", degraded="it restarted 6 times in the last minute", last_error=failure())
    daemon.answers["mcpd/server"] = detail(flapping)
    explained = mcpctl("why", "time", "--json").json()
    assert explained["cause"].startswith(
        "connected, but it restarted 6 times in the last minute; last failure"
    )
    assert explained["because"] == explained["cause"]
    assert explained["next"] == "mcpctl logs time   (look for the cause of the restarts)"
    assert daemon.params_of("mcpd/ping") == {"server": "time", "timeout": 2.0}
    assert "but: it restarted 6 times in the last minute\n" in mcpctl("status", "time").out
    daemon.answers["mcpd/status"] = status(flapping)
    table = mcpctl("status").out
    assert "it restarted 6 times in the last minute\n" in table
    assert table.endswith("next: mcpctl why time\n")
    finding = _server_finding(detail(flapping), {"server": "time", "ms": 1.0}, None)  # type: ignore[arg-type]
    assert (finding.result, finding.message) == (
        "warning",
        "connected, but it restarted 6 times in the last minute; the last time: exited with status 1",
    )
    assert finding.fix == explained["next"]


def test_server_is_healthy_again_after_a_minute(daemon: FakeDaemon, mcpctl: Mcpctl) -> None:
    """The last failure need not have ended a connection: it may have been an attempt to connect."""
    for seconds, said in ((1, "connected again "), (61, "healthy; last failure ")):
        since = rfc3339(time.time() - seconds)
        daemon.answers["mcpd/server"] = detail(server("time", since=since, last_error=failure()))
        assert mcpctl("why", "time", "--json").json()["cause"].startswith(said)


def test_why_finds_a_program_only_in_the_shells_path(daemon: FakeDaemon, mcpctl: Mcpctl, shell: Path) -> None:
    """It works in the terminal but not in the service. Values of variables are never shown."""
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
    assert "HTTPS_PROXY" not in ran.out  # no variable makes a program appear
    assert "secret" not in ran.out
    assert "zed (pid 7)" in ran.out
    assert f"{shell}/mcp-server-files as its command" in ran.out.splitlines()[-1]
    received = mcpctl("why", "files", "--json").json()
    assert received["binary"]["in_login_shell"] == f"{shell}/mcp-server-files"
    assert "HTTPS_PROXY" in received["environment"]["variables_only_in_login_shell"]
    assert received["evidence"]["kind"] == "spawn"


@pytest.mark.parametrize(
    ("concurrency", "shown"),
    [
        ("auto", "of different clients"),
        ("writes", "one at a time"),
        ("serial", "one at a time"),
        ("free", ""),
    ],
)
def test_why_shows_which_calls_wait(daemon: FakeDaemon, mcpctl: Mcpctl, concurrency: str, shown: str) -> None:
    daemon.answers["mcpd/server"] = detail(server("files"), concurrency=concurrency)
    out = mcpctl("why", "files", "--no-shell").out
    assert (f"(concurrency: {concurrency})" in out) is bool(shown)
    assert shown in out
    received = mcpctl("why", "files", "--no-shell", "--json").json()
    assert received["concurrency"] == concurrency


@pytest.mark.parametrize(
    ("share", "shown"),
    [("all", ""), ("client", "each one"), ("root", "their directories"), ("declared-root", "they declare")],
)
def test_why_shows_which_clients_share_a_process(
    daemon: FakeDaemon, mcpctl: Mcpctl, share: str, shown: str
) -> None:
    daemon.answers["mcpd/server"] = detail(server("files"), share=share)
    out = mcpctl("why", "files", "--no-shell").out
    assert (f"(share: {share})" in out) is bool(shown)
    assert shown in out
    assert mcpctl("why", "files", "--no-shell", "--json").json()["share"] == share


def test_why_suggests_fixing_path_in_the_definition(daemon: FakeDaemon, mcpctl: Mcpctl, shell: Path) -> None:
    """It overrides the daemon's PATH, so a restart would not help."""
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


def test_why_shows_which_variables_differ_most_probable_first(
    daemon: FakeDaemon, mcpctl: Mcpctl, shell: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Those of the login shell, and those of this terminal that programs need. Values are never shown."""
    for name in [
        name for name in os.environ if "CERT" in name or "BUNDLE" in name or "_proxy" in name.lower()
    ]:
        monkeypatch.delenv(name)
    monkeypatch.setenv("LANG", "de_DE.UTF-8")
    monkeypatch.setenv("SSL_CERT_FILE", "/corporate.pem")
    monkeypatch.setenv("NODE_EXTRA_CA_CERTS", "/corporate.pem")
    monkeypatch.setenv("NVM_DIR", "/home/me/.nvm")
    monkeypatch.setenv("WINDOWID", "7")
    died = failure(stderr=["ERLANG: unable to get local issuer certificate"])
    gone = detail(server(status="failed", last_error=died), inherited_env={"NODE_EXTRA_CA_CERTS": "/old.pem"})
    gone["env"] = ["HOME", "PATH", "NODE_EXTRA_CA_CERTS"]
    daemon.answers["mcpd/server"] = gone
    ran = mcpctl("why", "time")
    environment = mcpctl("why", "time", "--json").json()["environment"]
    needed = [name for name in environment["missing"] if name in ("SSL_CERT_FILE", "HTTPS_PROXY", "NVM_DIR")]
    assert needed == ["SSL_CERT_FILE", "HTTPS_PROXY", "NVM_DIR"]
    assert environment["missing"][0] == "SSL_CERT_FILE"
    assert environment["missing"].index("LANG") > environment["missing"].index("NVM_DIR")
    assert "WINDOWID" not in environment["missing"]
    assert environment["different"] == ["NODE_EXTRA_CA_CERTS"]
    assert "not passed: SSL_CERT_FILE " in ran.out
    assert "differs: NODE_EXTRA_CA_CERTS (your shell has another value" in ran.out
    assert "corporate" not in ran.out
    assert "secret" not in ran.out
    gone["server"]["last_error"] = failure(stderr=["getaddrinfo ENOTFOUND api.example.com"])
    assert mcpctl("why", "time", "--json").json()["environment"]["missing"][0] == "HTTPS_PROXY"
    gone["server"]["last_error"] = failure(stderr=["API_URL: please set NVM_DIR"])
    assert mcpctl("why", "time", "--json").json()["environment"]["missing"][0] == "NVM_DIR"


def test_why_shell_compares_also_for_a_connected_server(
    daemon: FakeDaemon, mcpctl: Mcpctl, shell: Path
) -> None:
    """Its tools may fail for the lack of a variable, although it connects."""
    daemon.answers["mcpd/server"] = detail(server())
    assert "HTTPS_PROXY" in mcpctl("why", "time", "--shell").out
    assert "HTTPS_PROXY" not in mcpctl("why", "time").out


def test_why_shows_exit_details_and_stderr(daemon: FakeDaemon, mcpctl: Mcpctl, shell: Path) -> None:
    """Exit status, stderr and the next attempt."""
    died = failure(stderr=["no database", "", "giving up"])
    daemon.answers["mcpd/server"] = detail(server(status="failed", last_error=died, retry_at=NOW))
    out = mcpctl("why", "time").out
    assert "exited (exit code 1)" in out
    assert "stderr: no database" in out
    assert "giving up" in out
    assert out.count("stderr: ") == 2
    assert "next try now" in out


def test_why_shows_since_when_a_server_is_down(daemon: FakeDaemon, mcpctl: Mcpctl) -> None:
    """Since the first failure after the last connection, not since the last attempt."""

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
    assert "down since: 2026-11-21 03:00:00 UTC (" in mcpctl("why", "time", "--no-shell", "--utc").out
    daemon.answers["mcpd/history"] = {"entries": past[:1], "dropped": 0}
    assert mcpctl("why", "time", "--no-shell", "--json").json()["down_since"] == past[0]["at"]
    daemon.answers["mcpd/server"] = detail(server())
    assert mcpctl("why", "time", "--json").json()["down_since"] is None
    daemon.answers["mcpd/history"] = {"entries": [entry(7, "pending")], "dropped": 0}  # when it was installed
    daemon.answers["mcpd/server"] = detail(server(status="pending"))
    assert "down since" not in mcpctl("why", "time", "--no-shell").out


def test_why_shows_unparsable_output(daemon: FakeDaemon, mcpctl: Mcpctl) -> None:
    """For example usage text on stdout, which is in no log."""
    noise = "3 lines on its stdout were not JSON-RPC; the first: Usage: it [OPTIONS]"
    daemon.answers["mcpd/server"] = detail(server(status="failed", last_error=failure(noise=noise)))
    assert f"stdout: {noise}" in mcpctl("why", "time", "--no-shell").out
    assert noise in mcpctl("status", "time").out
    assert mcpctl("why", "time", "--no-shell", "--json").json()["evidence"]["noise"] == noise


def test_why_handles_a_missing_absolute_path(daemon: FakeDaemon, mcpctl: Mcpctl) -> None:
    """PATH is irrelevant for an absolute path."""
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


def test_why_shows_the_http_status(daemon: FakeDaemon, mcpctl: Mcpctl) -> None:
    """A remote server has no process and no PATH."""
    refused = failure("answered HTTP 503", kind="http", exit_code=None, http_status=503)
    daemon.answers["mcpd/server"] = detail(
        server(status="failed", last_error=refused, transport="http"), command=[], path="", url="https://x"
    )
    out = mcpctl("why", "time").out
    assert "url: https://x" in out
    assert "http (HTTP status 503)" in out
    assert "PATH" not in out


def test_why_names_who_disabled_a_server(daemon: FakeDaemon, mcpctl: Mcpctl) -> None:
    """And suggests `enable`, without starting a login shell."""
    daemon.answers["mcpd/server"] = detail(server(status="disabled", reason="switched off"), history=[ENTRY])
    out = mcpctl("why", "time", SHELL="/bin/false").out
    assert "cause: switched off, by zed (pid 7)" in out
    assert out.splitlines()[-1] == "next: mcpctl enable time"


@pytest.mark.parametrize("script", ["exit 1", "sleep 60", "echo only this"])
def test_slow_login_shell_is_abandoned(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, script: str) -> None:
    """Startup files that hang must not block mcpctl."""
    monkeypatch.setattr(environment, "TIMEOUT", 0.3)
    shell = tmp_path / "shell"
    shell.write_text(f"#!/bin/sh\n{script}\n")
    shell.chmod(0o755)
    assert environment.login_environment({"SHELL": str(shell)}) is None
    assert environment.login_environment({"SHELL": str(tmp_path / "none")}) is None


def test_daemon_gets_the_directories_of_the_login_shell(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """They follow those of the editor that starts the bridge, which keep their order."""
    shell = tmp_path / "shell"
    shell.write_text('#!/bin/sh\nPATH=/home/me/bin:/bin:/opt/bin\neval "$4"\n')
    shell.chmod(0o755)
    monkeypatch.setenv("SHELL", str(shell))
    monkeypatch.setenv("PATH", "/usr/bin:/bin")
    monkeypatch.setattr(environment, "TIMEOUT", 60.0)
    process._extend_path()
    assert os.environ["PATH"] == "/usr/bin:/bin:/home/me/bin:/opt/bin"
    monkeypatch.setenv("SHELL", str(tmp_path / "none"))
    process._extend_path()
    assert os.environ["PATH"] == "/usr/bin:/bin:/home/me/bin:/opt/bin"


def test_login_shell_with_a_background_process_is_read(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A background process of a startup file keeps the pipe open."""
    monkeypatch.setattr(environment, "TIMEOUT", 8.0)
    shell, pid = tmp_path / "shell", tmp_path / "pid"
    shell.write_text(f'#!/bin/sh\nsetsid sleep 120 &\necho $! >{pid}\nexec sh -c "$4"\n')
    shell.chmod(0o755)
    began = time.monotonic()
    try:
        found = environment.login_environment({"SHELL": str(shell), "HOME": "/h"})
    finally:
        os.kill(int(pid.read_text()), signal.SIGKILL)
    assert found is not None
    assert found["HOME"] == "/h"
    assert time.monotonic() - began < 60


def test_programs_of_version_managers_are_found(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """nvm and similar tools change PATH only in interactive shells."""
    monkeypatch.setenv("HOME", str(tmp_path))
    place = tmp_path / ".nvm/versions/node/v20.1.0/bin/npx-of-mine"
    place.parent.mkdir(parents=True)
    place.write_text("")
    place.chmod(0o755)
    assert find_elsewhere("npx-of-mine") == [str(place)]
    assert find_elsewhere("/usr/bin/npx-of-mine") == []


def test_history_table_is_oldest_first(daemon: FakeDaemon, mcpctl: Mcpctl) -> None:
    """With the requester, and with the count of repeated events."""
    again = {**ENTRY, "state": "failed", "kind": "exited", "exit_code": 3, "times": 8, "by": ""}
    daemon.answers["mcpd/history"] = {"entries": [ENTRY, again], "dropped": 4}
    ran = mcpctl("history", "-n", "2")
    assert daemon.params_of("mcpd/history") == {"server": None, "limit": 2}
    heading, first, second = ran.out.splitlines()
    assert mcpctl("history", "--utc").out.split()[:2] == ["WHEN", "(UTC)"]
    assert heading.split() == ["WHEN", "SERVER", "WHAT", "BY", "CAUSE"]
    assert "zed (pid 7)" in first
    assert second.endswith("[exited, exit code 3] it was switched off (8 times so far)")
    assert "4 entries could not be written" in ran.err


def test_stats_of_all_servers_and_of_one(daemon: FakeDaemon, mcpctl: Mcpctl) -> None:
    """Process costs are requested only for a single server."""
    daemon.answers["mcpd/stats"] = stats()
    out = mcpctl("stats").out
    assert out.splitlines()[1].split()[:8] == ["time", "connected", "12", "2", "1", "2.6", "ms", "87"]
    assert "zed (2)" in out
    assert daemon.params_of("mcpd/stats") == {"server": None, "processes": False}
    out = mcpctl("stats", "time").out
    assert daemon.params_of("mcpd/stats") == {"server": "time", "processes": True}
    assert "151 MB in 3 processes" in out
    assert "convert" in out


def test_top_computes_rates_from_two_samples(daemon: FakeDaemon, mcpctl: Mcpctl) -> None:
    """25 % CPU and five calls per second."""
    answers = iter([stats(), stats(at="2026-11-21T06:30:02.000Z", cpu=1.5, calls=22)])
    daemon.answers["mcpd/stats"] = lambda *_: next(answers)
    row = mcpctl("top").out.splitlines()[1]
    assert "151 MB" in row
    assert "25 %" in row
    assert "5.0" in row.split()


def test_tap_prints_one_line_per_message(daemon: FakeDaemon, mcpctl: Mcpctl) -> None:
    """With --json one object each. Skipped messages are counted."""
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
        '03:00:00.000 ← tools/call #3 {"id": 3, "result": {}}',
    ]
    assert mcpctl("tap", "time", "--json").json() == frame


def test_metrics_are_printed_unchanged(daemon: FakeDaemon, mcpctl: Mcpctl) -> None:
    """A collector parses them."""
    daemon.answers["mcpd/metrics"] = {"content_type": "text/plain", "text": "a 1\nb 2\n"}
    assert mcpctl("metrics").out == "a 1\nb 2\n"


def test_ui_prints_the_address_without_a_browser(daemon: FakeDaemon, mcpctl: Mcpctl) -> None:
    """Also with --print. Only the address is on stdout."""
    url = "http://127.0.0.1:8931/#code"
    daemon.answers["mcpd/page"] = {"url": url, "seconds": 60.0}
    assert mcpctl("ui", "--print").out == f"{url}\n"
    assert mcpctl("ui", "--json").json() == {"url": url, "seconds": 60.0}
    assert not has_browser({"TERM": "xterm"})
    assert has_browser({"WAYLAND_DISPLAY": "wayland-0"})


def test_ui_opens_the_users_browser(
    daemon: FakeDaemon, mcpctl: Mcpctl, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    received = tmp_path / "told"
    browser = tmp_path / "browser"
    browser.write_text(f'#!/bin/sh\necho "$1" > {received}\n')
    browser.chmod(0o700)
    monkeypatch.setenv("BROWSER", f"{browser} %s")
    monkeypatch.setattr("webbrowser._tryorder", None)
    daemon.answers["mcpd/page"] = {"url": "http://127.0.0.1:8931/#code", "seconds": 60.0}
    ran = mcpctl("ui")
    assert ran.out == ""
    assert received.read_text() == "http://127.0.0.1:8931/#code\n"


def test_doctor_reports_an_update_under_a_running_daemon(mcpctl: Mcpctl) -> None:
    """The installed files changed after the daemon started; the fix is a restart."""
    (finding,) = checks.check_installation(started_at=0.0)
    assert (finding.result, finding.fix) == ("warning", "mcpctl daemon restart")
    (finding,) = checks.check_installation(started_at=time.time() + 3600)
    assert finding.result == "ok"


def test_doctor_fails_for_a_broken_program_only_if_needed(tmp_path: Path) -> None:
    """For example a stale shim of a version manager."""
    shim = tmp_path / "npx"
    shim.write_text("#!/bin/sh\necho 'no version is set' >&2\nexit 126\n")
    shim.chmod(0o755)
    for needed, result in ({"npx"}, "failure"), (set[str](), "warning"):
        found = [f for f in checks.check_programs(needed, str(tmp_path), None) if "does not run" in f.message]
        assert [(f.result, f.message) for f in found] == [(result, f"{shim} does not run: no version is set")]


def test_doctor_names_secrets_that_are_not_stored(tmp_path: Path) -> None:
    """Not those with a default, nor of a disabled server."""
    environ = {"XDG_CONFIG_HOME": str(tmp_path)}
    definitions: dict[str, dict[str, object]] = {
        "sec": {"command": "x", "env": {"A": "${secret:SEC}", "B": "${secret:OTHER:-none}"}},
        "off": {"command": "x", "args": ["${secret:OFF}"], "disabled": True},
    }
    (finding,) = checks.check_secrets(environ, definitions)
    assert (finding.result, finding.fix) == ("failure", "mcpctl secret set SEC")
    assert finding.message == "SEC is not stored, but needed by sec"
    assert list(checks.check_secrets(environ, {})) == []
    file = tmp_path / "mcpd" / "secrets.json"
    file.parent.mkdir()
    file.write_text('{"SEC": "x"}')
    file.chmod(0o600)
    (finding,) = checks.check_secrets(environ, definitions)
    assert finding.result == "ok"


def test_doctor_shows_the_line_of_stderr_that_helps() -> None:
    """As `status` does: `exited with status 1` fits every cause."""
    last = failure("exited with status 1", summary="exited (1): MY_API_KEY is required")
    finding = _server_finding(detail(server("x", "failed", last_error=last)), {"ms": 1.0}, None)  # type: ignore[arg-type]
    assert finding.message == "[exited] exited (1): MY_API_KEY is required"


def test_doctor_pings_a_server_again_that_was_off_when_it_was_pinged(daemon: FakeDaemon) -> None:
    """Another server may delay all answers. The outcome of a ping must belong to the state that is shown."""
    off = Fault("time is disabled: switched off until 12:30", code="not_ready", exit=6, server="time")
    slow = Fault("slow: no answer to ping within 10 s", code="timeout", exit=7, server="slow")
    outcomes: dict[str, list[Any]] = {
        "slow": [slow],
        "time": [off, {"server": "time", "ms": 1.0}],
        "flapping": [off] * 9,
    }

    def ping(_: Caller, params: dict[str, Any]) -> object:
        outcome = outcomes[params["server"]].pop(0)
        if isinstance(outcome, Fault):
            raise outcome
        return outcome

    daemon.answers |= {
        "mcpd/ping": ping,
        "mcpd/server": lambda _, params: detail(server(params["server"])),
    }
    with DaemonClient(str(daemon.path)) as client:
        found = ping_servers(client, list(outcomes))
    findings = {name: _server_finding(state, ping, None) for name, (state, ping) in found.items()}
    assert list(findings) == ["slow", "time", "flapping"]
    assert {name: each.result for name, each in findings.items()} == {
        "slow": "failure",
        "time": "ok",
        "flapping": "warning",
    }
    assert outcomes["slow"] == []
    assert findings["flapping"].fix == "mcpctl why flapping"


def test_doctor_reports_readable_directories(tmp_path: Path) -> None:
    """A missing directory that can be created is no failure."""
    place = tmp_path / "state"
    (finding,) = checks.check_directories({"state directory": str(place)})
    assert finding.result == "ok"
    place.mkdir(mode=0o755)
    place.chmod(0o755)
    (finding,) = checks.check_directories({"state directory": str(place)})
    assert (finding.result, finding.fix) == ("failure", f"chmod 700 {place}")


def test_outdated_units_are_reported(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """After a reinstallation or upgrade, the service may start an old path."""
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path))
    ours = ["/usr/bin/env", "mcpd"]
    systemd.write_units(ours, "/home/me/100% mine/bin:/usr/bin")
    assert systemd.outdated_reason(ours) == ""
    assert "mcpd.service starts /usr/bin/env mcpd, but" in systemd.outdated_reason(["/opt/mcpd"])
    systemd.write_units(["/gone away/100%/mcpd"], "/usr/bin")
    assert systemd.outdated_reason(ours) == "mcpd.service starts /gone away/100%/mcpd, which does not exist"
    (service, socket) = systemd.write_units(ours, "/usr/bin")
    service.write_text(service.read_text().replace("KillMode=mixed", "KillMode=process"))
    assert "from another version" in systemd.outdated_reason(ours)
    systemd.write_units(ours, "/usr/bin")
    service.write_bytes(service.read_bytes()[:99] + b"\xff" + service.read_bytes()[99:])
    assert systemd.outdated_reason(ours)
    systemd.write_units(ours, "/usr/bin")
    socket.unlink()
    assert "mcpd.socket cannot be read" in systemd.outdated_reason(ours)


def test_unit_of_another_program_is_left_alone(
    tmp_path: Path, mcpctl: Mcpctl, monkeypatch: pytest.MonkeyPatch
) -> None:
    """ahodges22/mcpd installs a unit of the same name."""
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path))
    unit = systemd.unit_directory() / "mcpd.service"
    unit.parent.mkdir(parents=True)
    unit.write_text(
        "[Unit]\nDescription=mcpd, the local MCP proxy daemon\n[Service]\nExecStart=%h/bin/mcpd\n"
    )
    before = unit.read_bytes()
    assert not systemd.is_installed()
    ran = mcpctl("daemon", "install")
    assert ran.code == 1
    assert f"{unit} belongs to another program named mcpd" in ran.err
    assert "nothing" in mcpctl("daemon", "uninstall").out or unit.exists()
    assert unit.read_bytes() == before
    monkeypatch.setattr(systemd, "is_available", lambda: True)
    (finding,) = checks.check_service("/run/mcpd.sock")
    assert (finding.result, "another program" in finding.message) == ("warning", True)
    unit.unlink()
    systemd.write_units(["/opt/mcpd"], "/usr/bin")
    assert systemd.is_installed()


def test_service_that_refused_its_configuration_is_not_to_be_restarted(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """`mcpctl daemon restart` would refuse, and the log says the same as the finding below it."""
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path))
    systemd.write_units(["/opt/mcpd"], "/usr/bin")
    monkeypatch.setattr(systemd, "is_available", lambda: True)
    unit = {"ActiveState": "failed", "SubState": "failed", "Result": "exit-code", "ExecMainStatus": "2"}
    monkeypatch.setattr(systemd, "service_properties", lambda: unit)
    (refused, *_) = checks.check_service("/run/mcpd.sock")
    assert refused.message == "failed (failed), 0 restarts: it refused its configuration"
    assert refused.fix == "mcpctl edit, then: mcpctl daemon start"
    unit["ExecMainStatus"] = "1"
    (crashed, *_) = checks.check_service("/run/mcpd.sock")
    assert crashed.fix == "mcpctl daemon logs, then: mcpctl daemon restart"


def test_step_for_an_http_port_in_use_has_all_parts() -> None:
    """`mcpctl edit` alone does not help."""
    step = "choose another port, or end the program that uses it, then run `mcpctl daemon restart`"
    (finding, _) = _loaded_findings(1, "/c", [f"cannot listen on 127.0.0.1:80 for HTTP: in use; {step}"])
    assert (finding.message, finding.fix) == ("cannot listen on 127.0.0.1:80 for HTTP: in use", step)


def test_doctor_without_a_daemon_searches_the_path_of_the_next_one(monkeypatch: pytest.MonkeyPatch) -> None:
    """That is the PATH of this terminal, unless systemd starts mcpd. That of a login shell may differ."""
    terminal = {"PATH": "/home/me/.venv/bin:/usr/bin"}
    assert _path_of_next_daemon("/run/mcpd.sock", terminal) == terminal["PATH"]
    monkeypatch.setattr(systemd, "manages_socket", lambda _: True)
    monkeypatch.setattr(systemd, "service_environment", lambda: {"PATH": "/unit/bin"})
    assert _path_of_next_daemon("/run/mcpd.sock", terminal) == "/unit/bin"


def test_log_of_the_service_has_times(mcpctl: Mcpctl, monkeypatch: pytest.MonkeyPatch) -> None:
    """The daemon writes none under systemd, because the journal has them."""
    commands: list[list[str]] = []

    def journalctl(command: list[str], **_: object) -> subprocess.CompletedProcess[str]:
        commands.append(command)
        return subprocess.CompletedProcess(command, 0, "2026-11-21T06:30:00+0000 mcpd[1]: ready\n")

    monkeypatch.setattr(systemd, "manages_socket", lambda _: True)
    monkeypatch.setattr(systemd, "service_properties", lambda: {"StandardOutput": "journal"})
    monkeypatch.setattr("ctl.commands.daemon.subprocess.run", journalctl)
    assert mcpctl("daemon", "logs", "--utc").out == "2026-11-21T06:30:00+0000 mcpd[1]: ready\n"
    assert commands[0][-4:] == ["-o", "short-iso", "--no-hostname", "--utc"]


def test_doctor_reports_another_mcpd_in_path(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Users who type `mcpd` would run that program."""
    ours, other = tmp_path / "ours" / "mcpd", tmp_path / "other" / "mcpd"
    for path, text in ((ours, "#!/usr/bin/python\nfrom mcpd.main import main\n"), (other, "\x7fELF")):
        path.parent.mkdir()
        path.write_text(text)
        path.chmod(0o755)
    monkeypatch.setattr(checks, "daemon_command", lambda: [str(ours)])
    assert list(checks.check_name(str(ours.parent))) == []
    assert list(checks.check_name("/nowhere")) == []
    (finding,) = checks.check_name(f"{other.parent}:{ours.parent}")
    assert (finding.result, "another program named mcpd" in finding.message) == ("warning", True)
    other.write_bytes(ours.read_bytes())
    (finding,) = checks.check_name(str(other.parent))
    assert "another installation of this mcpd" in finding.message

"""Waiting for several servers: each is reported as it settles, and all are before the command ends."""

from __future__ import annotations

import io
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.ctl.conftest import Mcpctl
from tests.ctl.fake_daemon import NOW, Caller, FakeDaemon, Silence, detail, failure, server, status

LOGIN = failure("HTTP 401", kind="auth", http_status=401)


def announce(caller: Caller, **changed: str) -> None:
    for name, state in changed.items():
        event = {"kind": "status", "at": NOW, "server": name, "status": server(name, state)}
        caller.notify("mcpd/event", {"request": caller.request, "event": event})


def test_wait_reports_all_servers_although_one_needs_a_login(daemon: FakeDaemon, mcpctl: Mcpctl) -> None:
    """The others may be the ones that are needed. The first line comes before the last event."""
    daemon.answers["mcpd/status"] = status(
        server("slow", "pending"), server("hub", "needs-auth", last_error=LOGIN), server("time", "pending")
    )
    daemon.answers["mcpd/server"] = detail(server("hub", "needs-auth", last_error=LOGIN))

    def events(caller: Caller, _: dict[str, Any]) -> object:
        announce(caller, time="connected")
        announce(caller, slow="connected")
        return Silence()

    daemon.answers["mcpd/events"] = events
    ran = mcpctl("wait")
    assert ran.code == 4
    assert [line.split()[:2] for line in ran.out.splitlines()] == [
        ["hub:", "needs-auth:"],
        ["time:", "connected"],
        ["slow:", "connected"],
    ]
    error, step = ran.err.splitlines()
    assert error == "error: 1 of 3 servers not connected: hub needs a login"
    assert step.startswith("next: mcpctl login hub")


def test_wait_warns_of_a_server_that_keeps_crashing(daemon: FakeDaemon, mcpctl: Mcpctl) -> None:
    """It is connected at this moment, so the exit code is 0."""
    crash = server("crash", degraded="it restarted 8 times in the last minute")
    daemon.answers["mcpd/status"] = status(server("time"), crash)
    daemon.answers["mcpd/server"] = detail(crash)
    for argv in (("wait",), ("wait", "crash")):
        ran = mcpctl(*argv)
        assert ran.code == 0
        assert ran.err.splitlines() == [
            "warning: crash is connected, but it restarted 8 times in the last minute",
            "next: mcpctl why crash",
        ]
    ran = mcpctl("wait", "crash", "--json")
    assert (ran.err, ran.json()["servers"][0]["degraded"]) == ("", crash["degraded"])


def test_wait_exits_with_6_unless_only_logins_are_missing(daemon: FakeDaemon, mcpctl: Mcpctl) -> None:
    """With --json, the error has the statuses of all servers."""
    ghost = server("ghost", "failed", last_error=failure())
    daemon.answers["mcpd/status"] = status(server("hub", "needs-auth"), ghost, server("time"))
    daemon.answers["mcpd/server"] = detail(server("hub", "needs-auth"))
    ran = mcpctl("wait", "--json")
    assert (ran.code, ran.out) == (6, "")
    assert [each["name"] for each in ran.error()["servers"]] == ["hub", "ghost", "time"]
    assert ran.error()["hint"].startswith("mcpctl login hub")


def test_wait_does_not_call_a_rejected_token_a_missing_login(daemon: FakeDaemon, mcpctl: Mcpctl) -> None:
    """As `why` says it: the stored value has to be changed."""
    definition = {"url": "https://hub.test/", "headers": {"Authorization": "Bearer ${secret:HUB}"}}
    daemon.answers["mcpd/server"] = detail(
        server("hub", "needs-auth", last_error=LOGIN), definition=definition
    )
    error, step = mcpctl("wait", "hub").err.splitlines()
    assert error.startswith("error: hub rejects mcpd's credentials")
    assert step.startswith("next: mcpctl secret set HUB")


def test_wait_reports_every_server_on_timeout(daemon: FakeDaemon, mcpctl: Mcpctl) -> None:
    daemon.answers["mcpd/status"] = status(server("slow", "pending", reason="connecting"), server("time"))
    daemon.answers["mcpd/server"] = detail(server("slow", "pending"))
    daemon.answers["mcpd/events"] = Silence()
    ran = mcpctl("wait", "--timeout", "0.1")
    assert ran.code == 7
    assert ran.out.splitlines() == ["time: connected (2 tools, pid 4711)", "slow: pending (connecting)"]
    assert ran.err.splitlines()[-1] == "next: mcpctl wait slow"


def test_timeout_of_wait_names_all_servers_that_are_not_ready(daemon: FakeDaemon, mcpctl: Mcpctl) -> None:
    """Also those that it does not wait for any more. One server's next step would leave out the others."""
    hub, slow = server("hub", "needs-auth"), server("slow", "pending")
    daemon.answers["mcpd/status"] = status(hub, slow, server("late", "pending"), server("time"))
    daemon.answers["mcpd/events"] = Silence()
    error, step = mcpctl("wait", "--timeout", "0.1").err.splitlines()
    assert "hub needs a login, slow is not connected yet, late is not connected yet" in error
    assert step == "next: mcpctl doctor   (shows the next step for each of them)"


def test_wait_says_why_a_server_is_still_awaited(daemon: FakeDaemon, mcpctl: Mcpctl) -> None:
    """Without a terminal, too: a host that does not answer is retried until the timeout."""
    down = server("far", "failed", last_error=failure("cannot connect", kind="unreachable"), retry_at=NOW)
    daemon.answers["mcpd/status"] = status(server("far", "pending"))

    def events(caller: Caller, _: dict[str, Any]) -> object:
        for state in (down, server("far", "pending"), down, server("far")):
            event = {"kind": "status", "at": NOW, "server": "far", "status": state}
            caller.notify("mcpd/event", {"request": caller.request, "event": event})
        return Silence()

    daemon.answers["mcpd/events"] = events
    ran = mcpctl("wait")
    assert (ran.code, ran.err) == (0, "still waiting for far: cannot connect\n")
    assert mcpctl("wait", "--json").err == ""


def test_failed_reconnect_names_the_next_step(daemon: FakeDaemon, mcpctl: Mcpctl) -> None:
    ghost = server("ghost", "failed", last_error=failure(stderr=["MY_API_KEY is required"]))
    daemon.answers["mcpd/reconnect"] = {"server": ghost}
    daemon.answers["mcpd/server"] = detail(ghost)
    ran = mcpctl("reconnect", "ghost")
    assert (ran.code, ran.err) == (6, "next: mcpctl edit   (add MY_API_KEY to its `env`)\n")


def test_progress_is_shown_on_a_terminal(
    daemon: FakeDaemon, mcpctl: Mcpctl, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With what the server is doing, and why it is retried; the line is cleared before the result."""

    class Terminal(io.StringIO):
        def isatty(self) -> bool:
            return True

        def reconfigure(self, **_: object) -> None:
            pass

    def reconnect(caller: Caller, _: dict[str, Any]) -> object:
        daemon.wait_for("mcpd/events")
        busy = server("slow", "pending", reason="npx is installing it")
        broken = server(
            "slow", "failed", reason="retrying", last_error=failure(summary="exited (1): no database")
        )
        for state in (busy, broken):
            event = {"kind": "status", "at": NOW, "server": "slow", "status": state}
            caller.notify("mcpd/event", {"request": 1, "event": event})
        return {"server": server("slow")}

    daemon.answers["mcpd/events"] = Silence()
    daemon.answers["mcpd/reconnect"] = reconnect
    monkeypatch.setattr(sys, "stderr", terminal := Terminal())
    ran = mcpctl("reconnect", "slow", COLUMNS="80")
    assert (ran.code, ran.out) == (0, "slow: connected (2 tools, pid 4711)\n")
    assert terminal.getvalue() == (
        "\r\x1b[Kwaiting for slow\r\x1b[Kwaiting for slow (npx is installing it)"
        "\r\x1b[Kwaiting for slow (retrying: exited (1): no database)\r\x1b[K"
    )
    assert daemon.params_of("mcpd/events") == {"servers": ["slow"]}


def test_apply_names_the_servers_that_could_not_connect(
    daemon: FakeDaemon, mcpctl: Mcpctl, tmp_path: Path
) -> None:
    """The set was applied, so the exit code is 0."""
    ghost = server("ghost", "failed", last_error=failure("command not found: nonesuch", kind="spawn"))
    daemon.answers["mcpd/servers/set"] = applied = {
        "added": ["ghost", "git"], "removed": [], "changed": [], "unchanged": ["time"],
        "generation": 4, "errors": [], "dry_run": False, "saved": None,
    }  # fmt: skip
    daemon.answers["mcpd/status"] = status(ghost, server("git"), server("time"))
    daemon.answers["mcpd/server"] = detail(ghost)
    file = tmp_path / "set.json"
    file.write_text('{"mcpServers": {"ghost": {"command": "nonesuch"}, "git": {"command": "git"}}}')
    ran = mcpctl("apply", str(file))
    assert ran.code == 0
    assert ran.out.splitlines()[-2:] == [
        "ghost: failed: command not found: nonesuch",
        "git: connected (2 tools, pid 4711)",
    ]
    assert "applied, but not connected: ghost\n" in ran.err
    received = mcpctl("apply", str(file), "--json").json()
    failed = {"server": "ghost", "state": "failed", "error": "command not found: nonesuch"}
    assert received == {**applied, "not_connected": [failed]}
    assert mcpctl("apply", str(file), "--wait", "0").err == ""
    assert "ghost: failed" not in mcpctl("apply", str(file), "--plan").out


def test_stored_secret_retries_the_servers_that_wait_for_it(
    daemon: FakeDaemon, mcpctl: Mcpctl, tmp_path: Path
) -> None:
    """A server that runs with the old value is not interrupted."""
    uses = {"command": "x", "env": {"A": "${secret:TOKEN}"}}
    daemon.answers["mcpd/config"] = {"servers": {"waits": uses, "runs": uses, "other": {"command": "x"}}}
    daemon.answers["mcpd/status"] = status(
        server("waits", "failed"), server("runs"), server("other", "failed")
    )
    daemon.answers["mcpd/reconnect"] = {"server": server("waits")}
    ran = subprocess.run(
        [sys.executable, "-m", "ctl", "secret", "set", "TOKEN"],
        env={**os.environ, **mcpctl.environ, "XDG_CONFIG_HOME": str(tmp_path)},
        input="s3cr3t\n", capture_output=True, text=True, timeout=60, check=False,
    )  # fmt: skip
    assert ran.returncode == 0, ran.stderr
    assert ran.stdout.splitlines()[1] == "waits: connected (2 tools, pid 4711)"
    assert ran.stderr == "next: mcpctl reconnect runs   (still running with the old value)\n"
    assert [params["server"] for method, params in daemon.requests if method == "mcpd/reconnect"] == ["waits"]

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
from tests.ctl.fake_daemon import NOW, Caller, FakeDaemon, Silence, failure, server, status


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

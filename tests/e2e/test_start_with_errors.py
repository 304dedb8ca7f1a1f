"""A daemon that starts with a configuration that has errors runs everything that has none."""

from __future__ import annotations

import json
import subprocess
import sys

from tests.e2e.conftest import Start
from tests.e2e.harness import BOUND, Daemon, fake


def test_one_broken_entry_does_not_affect_the_others(start: Start) -> None:
    """Every command says what is wrong. After the fix, the server is started and nothing is reported."""
    unset = fake(env={"TOKEN": "${NOT_SET_ANYWHERE}"})
    daemon = start({"good": fake(), "broken": {"comand": "x"}, "unset": unset})
    daemon.wait_connected("good")
    broken = daemon.wait_status("broken", lambda status: status["status"] == "failed")
    assert broken["last_error"]["kind"] == "config"
    assert "did you mean 'command'?" in broken["last_error"]["message"]
    waiting = daemon.wait_status("unset", lambda status: status["status"] == "failed")
    assert "NOT_SET_ANYWHERE is not set" in waiting["last_error"]["message"]
    assert daemon.client().call("good", "echo", {})["success"]
    assert "unknown field 'comand'" in daemon.log

    shown = daemon.mcpctl("status")
    assert "$.mcpServers.broken.comand: unknown field" in shown.stdout
    for command in ("why", "status"):
        assert "mcpctl edit" in daemon.mcpctl(command, "broken").stdout
    checks = (daemon.mcpctl("config", "validate"), validate(daemon), daemon.mcpctl("reload"))
    assert [each.returncode for each in checks] == [2, 2, 0]
    for check in checks:
        assert "comand" in check.stdout + check.stderr
        assert "NOT_SET_ANYWHERE" in check.stdout + check.stderr

    daemon.config.write_text(json.dumps({"mcpServers": {"good": fake(), "broken": fake()}}))
    daemon.wait_connected("broken")
    assert daemon.mcpctl("config", "validate").returncode == 0
    assert daemon.client().request("mcpd/status")["config"]["problems"] == []


def validate(daemon: Daemon) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "mcpd", "--config", str(daemon.config), "--validate-config"],
        env=dict(daemon.environ),
        capture_output=True,
        text=True,
        timeout=BOUND,
    )

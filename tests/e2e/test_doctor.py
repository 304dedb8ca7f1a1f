"""`mcpctl doctor` with and without a real daemon; its report contains no secrets."""

from __future__ import annotations

import json
import os
import stat
import subprocess
import sys
import tarfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from tests.e2e.conftest import Start
from tests.e2e.harness import fake, private_environment

CANARIES = {
    "env": "canary-environment-1",
    "argument": "canary-argument-22",
    "header": "canary-header-333",
    "query": "canary-query-4444",
    "taken": "canary-variable-55555",
    "stderr": "canary-stderr-666666",
    "call": 'canary-"call"-7777777',
}


def mcpctl(environ: Mapping[str, str], *argv: str) -> subprocess.CompletedProcess[str]:
    done = subprocess.run(
        [sys.executable, "-m", "ctl", *argv],
        env={**environ, "SHELL": "/bin/sh", "PYTHONPATH": str(Path(__file__).parents[2])},
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert "Traceback" not in done.stderr, done.stderr
    return done


def findings(done: subprocess.CompletedProcess[str]) -> dict[str, Any]:
    return {finding["check"]: finding for finding in json.loads(done.stdout)["findings"]}


def test_doctor_works_without_a_daemon_and_starts_none(tmp_path: Path) -> None:
    """It checks what it can without a daemon, and reports errors in the configuration with their fixes."""
    config = tmp_path / "config.json"
    config.write_text(json.dumps({"mcpServers": {"good": fake()}}))
    environ = {**private_environment(tmp_path), "MCPD_CONFIG": str(config)}
    done = mcpctl(environ, "doctor", "--json")
    found = findings(done)
    assert done.returncode == 0
    assert found["daemon"]["result"] == "skipped"
    assert not (tmp_path / "run/mcpd/mcpd.sock").exists()
    assert "secrets" not in found
    store = Path(environ["XDG_CONFIG_HOME"]) / "mcpd/secrets.json"
    store.parent.mkdir(parents=True)
    store.write_text('{"A": "b"}')
    store.chmod(0o644)
    found = findings(mcpctl(environ, "doctor", "--json", "--no-shell"))
    assert (found["secrets"]["result"], found["secrets"]["next"]) == ("failure", f"chmod 600 {store}")
    store.chmod(0o600)
    found = findings(mcpctl(environ, "doctor", "--json", "--no-shell"))
    assert (found["secrets"]["result"], found["secrets"]["message"]) == ("ok", f"1 secret in {store}")
    config.write_text('{"mcpServers": {"good": {"comand": "x"}}}')
    found = findings(mcpctl(environ, "doctor", "--json", "--no-shell"))
    assert found["configuration"]["result"] == "failure"
    assert "did you mean 'command'?" in found["configuration"]["next"]
    assert found["daemon"]["next"] == "start it with: mcpctl daemon start"
    config.write_text("{ not JSON")  # with which no daemon starts
    found = findings(mcpctl(environ, "doctor", "--json", "--no-shell"))
    assert found["configuration"]["next"] == "mcpctl edit   (fix the syntax there)"


def test_every_server_is_checked_and_every_failure_has_a_fix(start: Start) -> None:
    """It makes a timed round trip to each server, and exits with 1 if any check fails, otherwise with 0."""
    daemon = start(
        {
            "fake": fake(),
            "dying": {"command": "/bin/false"},
            "off": {"command": "not-installed", "enabled": False},
            "refusing": fake("--era", "legacy", "--refuse", "ping=-32603"),
            "lacking": fake("--era", "legacy", "--refuse", "ping=-32601"),
        }
    )
    daemon.wait_connected("fake", "refusing", "lacking")
    daemon.wait_status("dying", lambda status: status["last_error"] is not None)
    environ = {**daemon.environ, "MCPD_SOCKET": daemon.socket}
    done = mcpctl(environ, "doctor", "--json")
    found = findings(done)
    assert found["server fake"]["result"] == "ok"
    assert found["server fake"]["ms"] > 0
    assert found["server lacking"]["result"] == "ok"
    assert found["server refusing"]["result"] == "warning"
    assert "answers a ping with an error" in found["server refusing"]["message"]
    # While the server restarts, the outcome is not known.
    assert found["server dying"]["result"] in ("failure", "warning")
    assert done.returncode == int(any(one["result"] == "failure" for one in found.values()))
    assert found["server off"]["result"] == "skipped"
    assert found["socket"]["result"] == "ok"
    assert all(
        f["next"] for f in json.loads(done.stdout)["findings"] if f["result"] in ("failure", "warning")
    )
    os.chmod(daemon.socket, 0o666)
    assert findings(mcpctl(environ, "doctor", "--json"))["socket"]["result"] == "failure"
    os.chmod(daemon.socket, 0o600)
    daemon.client().request("mcpd/remove", server="dying", save=False)
    done = mcpctl(environ, "doctor")
    assert done.returncode == 0, done.stdout


@pytest.mark.parametrize("running", [True, False])
def test_a_report_has_no_secrets(start: Start, tmp_path: Path, running: bool) -> None:
    """Secrets are planted in every source of the report."""
    servers = {
        "fake": fake(
            "--at",
            "ready",
            "stderr",
            json.dumps({"text": f"Authorization: Bearer {CANARIES['stderr']}"}),
            env={"API_TOKEN": CANARIES["env"], "TAKEN": "${TAKEN_HERE}"},
        ),
        "dying": {
            "command": "/bin/sh",
            "args": ["-c", f"echo {CANARIES['argument']} >&2; exit 3", "--api-key", CANARIES["argument"]],
        },
        "remote": {
            "url": f"http://127.0.0.1:9/mcp?token={CANARIES['query']}",
            "headers": {"Authorization": f"Bearer {CANARIES['header']}"},
        },
    }
    planted = {"TAKEN_HERE": CANARIES["taken"]}
    daemon = start(servers, environ=planted)
    daemon.wait_connected("fake")
    daemon.wait_status("dying", lambda status: status["last_error"] is not None)
    client = daemon.client()
    client.call("fake", "echo", {"password": CANARIES["call"], "env": CANARIES["env"]})
    client.call("fake", "stderr", {"text": f"{CANARIES['taken']} {CANARIES['env']}"})
    environ = {**daemon.environ, "MCPD_SOCKET": daemon.socket, "MCPD_CONFIG": str(daemon.config)}
    journal = tmp_path / "journalctl"
    journal.write_text(f"#!/bin/sh\necho line with {CANARIES['env']}\n")
    journal.chmod(0o755)
    environ["PATH"] = f"{tmp_path}:{environ['PATH']}"
    if not running:
        daemon.stop()
    report = tmp_path / "report.tar.gz"
    done = mcpctl(environ, "doctor", "--no-shell", "--bundle", str(report))
    assert stat.S_IMODE(report.stat().st_mode) == 0o600
    with tarfile.open(report) as tar:
        files = {member.name: tar.extractfile(member) for member in tar.getmembers()}
        texts = {name: file.read().decode() for name, file in files.items() if file is not None}
    assert {"mcpd-report/doctor.json", "mcpd-report/versions.json", "mcpd-report/config.json"} <= texts.keys()
    assert "mcpd-report/logs/servers/fake.log" in texts
    assert texts["mcpd-report/logs/journal.log"].startswith("line with ***")
    assert ("mcpd-report/servers/fake.json" in texts) is running
    for name, text in texts.items():
        if name.endswith(".json"):
            json.loads(text)
        for where, canary in CANARIES.items():
            assert canary not in text, f"{where} in {name}"
            assert json.dumps(canary)[1:-1] not in text, f"{where} in {name}"
    assert not any(canary in done.stdout + done.stderr for canary in CANARIES.values())

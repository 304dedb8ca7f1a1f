"""Import servers from a real editor's file, and install mcpd in the editor."""

from __future__ import annotations

import json
import os
import subprocess
from pathlib import Path
from typing import Any

from tests.e2e.conftest import Start
from tests.e2e.harness import BOUND, Daemon, fake

INITIALIZE = {
    "jsonrpc": "2.0",
    "id": 1,
    "method": "initialize",
    "params": {
        "protocolVersion": "2025-06-18",
        "capabilities": {},
        "clientInfo": {"name": "an-editor", "version": "1"},
    },
}


def mcpctl(daemon: Daemon, *words: str) -> str:
    done = daemon.mcpctl(*words, cwd=daemon.home / "src")
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_imported_servers_run_in_mcpd_and_the_editor_reaches_them(start: Start, tmp_path: Path) -> None:
    """The servers are imported, connect, are disabled in the editor's file, and are reachable as the editor
    does it.
    """
    (tmp_path / "src").mkdir()
    path = tmp_path / ".kiro/settings/mcp.json"
    path.parent.mkdir(parents=True)
    path.write_text(json.dumps({"mcpServers": {"a": fake(), "broken": {}}}, indent=2))
    before = path.read_bytes()
    daemon = start({})

    assert "1 server saved in" in mcpctl(daemon, "import", "kiro", "--yes")
    daemon.wait_connected("a")
    answer = json.loads(mcpctl(daemon, "install", "kiro", "--server", "a", "--take-over", "--json"))
    assert answer["editors"][0]["taken_over"] == [{"name": "a", "removed": False}]

    entries: Any = json.loads(path.read_text())["mcpServers"]
    assert entries["a"]["disabled"] is True
    ours = entries["mcpd-a"]
    assert os.path.isabs(ours["command"])
    said = subprocess.run(
        [ours["command"], *ours["args"]],
        input=json.dumps(INITIALIZE) + "\n",
        env={**daemon.environ, "PYTHONPATH": os.environ.get("PYTHONPATH", ""), "MCPD_SOCKET": daemon.socket},
        capture_output=True,
        text=True,
        timeout=BOUND,
    )
    assert json.loads(said.stdout.splitlines()[0])["result"]["serverInfo"]["name"], said.stderr

    assert "restored to its original content" in mcpctl(daemon, "uninstall", "kiro")
    assert path.read_bytes() == before

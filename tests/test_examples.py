"""The examples run."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

from tests.e2e.harness import running

EXAMPLES = Path(__file__).parent.parent / "examples"


def test_editor_example_works_with_the_bridge(tmp_path: Path) -> None:
    """Run an MCP client without knowledge of mcpd with the command that `mcpctl install` writes."""
    server = {"command": sys.executable, "args": ["-m", "mcpd.testserver"]}
    bridge = [sys.executable, "-m", "ctl", "bridge", "--client", "test"]
    with running(tmp_path, {"one": server, "two": server}) as daemon:
        daemon.wait_connected("one", "two")
        done = subprocess.run(
            [sys.executable, str(EXAMPLES / "editor.py"), "--call", "two__add", '{"a": 1, "b": 2}', *bridge],
            env={**daemon.environ, "MCPD_SOCKET": daemon.socket},
            capture_output=True,
            text=True,
            timeout=60,
        )
    assert done.returncode == 0, done.stderr
    assert "10 tools: 5 of one, 5 of two\ntwo__add: 3\n" in done.stdout


def test_ten_line_client_gets_a_response(tmp_path: Path) -> None:
    """This is the first example that a programmer copies from the documentation."""
    server = {"command": sys.executable, "args": ["-m", "mcpd.testserver"]}
    with running(tmp_path, {"test": server}) as daemon:
        done = subprocess.run(
            [sys.executable, str(EXAMPLES / "client.py")],
            env=daemon.environ,
            capture_output=True,
            text=True,
            timeout=60,
        )
    assert "'output': '3'" in done.stdout, done.stderr

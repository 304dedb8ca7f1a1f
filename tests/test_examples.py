"""The examples run."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

from tests.e2e.harness import running

EXAMPLES = Path(__file__).parent.parent / "examples"


def test_the_ten_line_client_gets_an_answer(tmp_path: Path) -> None:
    """The first thing that a programmer copies from the documentation."""
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

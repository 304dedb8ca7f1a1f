"""A library's warning may quote a file with secrets, so only its kind and place are shown."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.e2e.harness import BOUND, private_environment

SECRET = "kanarie-0123456789"
TWICE = f"""
mcpServers:
  one: {{command: cat, env: {{API_TOKEN: &key {SECRET}-1}}}}
  two: {{command: cat, env: {{API_TOKEN: &key {SECRET}-2, B: *key}}}}
"""
"""ruamel warns of the second definition of the anchor, and quotes both lines."""


@pytest.mark.parametrize(
    "argv",
    [
        ("mcpd", "--validate-config", "--config", "FILE"),
        ("ctl", "config", "validate", "FILE"),
    ],
    ids=lambda argv: " ".join(argv[:2]),
)
def test_warning_about_a_file_does_not_show_its_lines(argv: tuple[str, ...], tmp_path: Path) -> None:
    file = tmp_path / "servers.yaml"
    file.write_text(TWICE)
    done = subprocess.run(
        [sys.executable, "-W", "always", "-m", *(str(file) if each == "FILE" else each for each in argv)],
        env={
            **private_environment(tmp_path),
            "MCPD_CONFIG": str(file),
            "MCPD_NO_START": "1",
            "PYTHONPATH": os.getcwd(),
        },
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=BOUND,
    )
    assert SECRET not in done.stdout + done.stderr
    assert "ReusedAnchor" not in done.stdout + done.stderr

"""Completion in a real bash, which every machine of ours has."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.ctl.conftest import Mcpctl
from tests.ctl.fake_daemon import FakeDaemon

TOOLS = {
    "tools": [
        {
            "server": "test",
            "name": "echo",
            "inputSchema": {"properties": {"text": {"type": "string"}, "times": {"type": "integer"}}},
        }
    ],
    "dropped": 0,
}
ROOT = Path(__file__).parent.parent.parent


@pytest.mark.parametrize(
    ("line", "replies"),
    [
        ("mcpctl recon", ["reconnect"]),
        ("mcpctl call ec", ["echo@test"]),
        ("mcpctl call echo@te", ["@test"]),
        ("mcpctl call echo@test te", ["text="]),
        ("mcpctl call echo@test ", ["text=", "times:="]),
        ("mcpctl call echo@test times:", ["="]),
    ],
)
def test_bash_is_told_what_it_will_put_in_place_of_the_word(
    daemon: FakeDaemon, mcpctl: Mcpctl, tmp_path: Path, line: str, replies: list[str]
) -> None:
    """It breaks words at @, = and :, so that what we reply is only the rest."""
    daemon.answers["mcpd/tools"] = TOOLS
    program = tmp_path / "mcpctl"
    program.write_text(f'#!/bin/sh\nexec {sys.executable} -m ctl "$@"\n')
    program.chmod(0o755)
    script = (
        'compopt() { :; }; eval "$(mcpctl completion bash)"; COMP_LINE=$1; COMP_POINT=${#1};'
        ' _mcpctl_completion mcpctl; printf "%s\\n" "${COMPREPLY[@]}"'
    )
    ran = subprocess.run(
        ["bash", "--norc", "-c", script, "bash", line],
        env={**mcpctl.environ, "PATH": f"{tmp_path}:{os.environ['PATH']}", "PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert ran.stdout.split() == replies, ran.stderr

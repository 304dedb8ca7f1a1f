"""mcpd as a service of a real `systemd --user` instance."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from tests.systemd import scenarios

pytestmark = [pytest.mark.root, pytest.mark.slow]

HERE = Path(__file__).parent
CANNOT = 77
"""The exit status of user-manager.sh on a machine without root, namespaces or systemd."""


@pytest.mark.parametrize("name", scenarios.SCENES)
def test_scenario_under_a_user_manager(name: str, tmp_path: Path) -> None:
    """Each scenario of scenarios.py runs in its own manager; its docstring states the expectation."""
    if not shutil.which("bash"):
        pytest.skip("bash is not installed")
    argv = ["bash", str(HERE / "user-manager.sh"), str(tmp_path), sys.executable, scenarios.__file__, name]
    environ = {
        "PATH": os.environ["PATH"],
        "SECRET_TOKEN": "SECRET",
        "LANG": "C.UTF-8",
    }
    done = subprocess.run(argv, env=environ, capture_output=True, text=True, timeout=480)
    if done.returncode == CANNOT:
        pytest.skip(done.stderr.strip().splitlines()[-1])
    assert done.returncode == 0, done.stderr + done.stdout

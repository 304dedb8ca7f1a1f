"""An empty home directory, and mcpctl in it."""

from __future__ import annotations

from pathlib import Path

import pytest

import ctl.commands.install
from tests.ctl.conftest import Mcpctl


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty $HOME that contains the current directory; no variable points elsewhere."""
    home = tmp_path / "ann"
    (home / "src").mkdir(parents=True)
    for variable in ("XDG_CONFIG_HOME", "XDG_STATE_HOME", "CLAUDE_CONFIG_DIR", "CODEX_HOME", "COPILOT_HOME"):
        monkeypatch.delenv(variable, raising=False)
    for variable in ("MCPD_CONFIG", "MCPD_SERVERS", "OPENCODE_CONFIG", "OPENCODE_CONFIG_DIR"):
        monkeypatch.delenv(variable, raising=False)
    monkeypatch.setenv("HOME", str(home))
    monkeypatch.chdir(home / "src")
    monkeypatch.setattr(ctl.commands.install, "mcpctl_path", lambda: "/opt/mcpctl")
    return home


@pytest.fixture
def alone(home: Path, mcpctl: Mcpctl) -> Mcpctl:
    """mcpctl in that home directory, without a daemon."""
    return mcpctl

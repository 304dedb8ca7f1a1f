"""`mcpctl install --own`: the editor keeps what it had, through mcpd."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from tests.ctl.conftest import Mcpctl
from tests.ctl.fake_daemon import FakeDaemon, server, status

OURS = {name: {"command": "uvx", "args": [f"{name}-mcp"]} for name in ("git", "time", "mail", "web")}
HAD = ("time", "git")


@pytest.fixture
def config(home: Path, daemon: FakeDaemon) -> Path:
    """mcpd's file with four servers, and Cursor's with two of them and another one."""
    cursor = home / ".cursor/mcp.json"
    cursor.parent.mkdir()
    theirs = {name: OURS[name] for name in HAD} | {"other": {"command": "other"}}
    cursor.write_text(json.dumps({"mcpServers": theirs}, indent=2))
    path = home / ".config/mcpd/config.json"
    path.parent.mkdir(parents=True)
    path.write_text(json.dumps({"mcpServers": OURS}, indent=2))
    daemon.answers |= {
        "mcpd/config": {"path": str(path), "servers": OURS},
        "mcpd/status": status(*map(server, OURS)),
        "mcpd/tools": {"tools": [{"name": "t", "server": name} for name in OURS], "dropped": 0},
        "mcpd/reload": {"errors": []},
    }
    return path


def profiles(config: Path) -> Any:
    return json.loads(config.read_text()).get("settings", {}).get("profiles")


def entries(home: Path) -> Any:
    return json.loads((home / ".cursor/mcp.json").read_text())["mcpServers"]


def test_own_adds_a_profile(home: Path, config: Path, mcpctl: Mcpctl) -> None:
    """Also after the entries were removed by an earlier take-over. The entry keeps its name."""
    before, config_before = (home / ".cursor/mcp.json").read_bytes(), config.read_text()
    document = json.loads(config_before) | {
        "settings": {"policies": [{"clients": ["cursor"], "tools": ["x"], "decision": "deny"}]}
    }
    config.write_text(config_before := json.dumps(document, indent=2))
    mcpctl("install", "cursor", "--take-over")
    assert list(entries(home)) == ["other", "mcpd"]
    dry = mcpctl("install", "cursor", "--own", "--dry-run")
    assert "  profile cursor: would be added with git, time\n" in dry.out
    assert profiles(config) is None
    ran = mcpctl("install", "cursor", "--own", "--json").json()["editors"][0]
    assert ran["profile"] == {"name": "cursor", "servers": ["git", "time"], "added": True}
    assert profiles(config) == {"cursor": {"servers": ["git", "time"]}}
    assert entries(home)["mcpd"]["args"] == ["bridge", "--client", "cursor", "--profile", "cursor"]
    again = mcpctl("install", "cursor", "--own")
    assert "already configured" in again.out
    assert mcpctl("config", "validate", str(config)).code == 0
    assert "'mcpd' would be replaced in" in mcpctl("install", "cursor", "--dry-run").out
    assert mcpctl("install", "cursor").code == 0
    assert "--profile" not in entries(home)["mcpd"]["args"]
    ran = mcpctl("uninstall", "cursor")
    assert (ran.code, "  profile cursor: removed\n" in ran.out) == (0, True)
    assert (home / ".cursor/mcp.json").read_bytes() == before
    assert config.read_text() == config_before


@pytest.mark.parametrize("change", ["changed", "referred to", "used by a project"])
def test_profile_that_is_needed_is_not_removed(
    change: str, home: Path, config: Path, mcpctl: Mcpctl, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Somebody has changed it, another setting refers to it, or a project's file of the editor uses it."""
    assert mcpctl("install", "cursor", "--own").code == 0
    document = json.loads(config.read_text())
    if change == "changed":
        document["settings"]["profiles"]["cursor"]["servers"] = ["git"]
    elif change == "referred to":
        document["settings"]["profileByDirectory"] = {"/src": "cursor"}
    else:
        (home / "project").mkdir()
        monkeypatch.chdir(home / "project")
        assert mcpctl("install", "cursor", "--profile", "cursor", "--project").code == 0
        monkeypatch.chdir(home)
    config.write_text(json.dumps(document))
    ran = mcpctl("uninstall", "cursor")
    assert ran.code == 0
    assert ("  profile cursor: kept" in ran.out) is (change != "used by a project")
    assert json.loads(config.read_text()) == document
    if change == "used by a project":
        monkeypatch.chdir(home / "project")
        assert "  profile cursor: removed\n" in mcpctl("uninstall", "cursor", "--project").out
        assert profiles(config) is None


def test_editor_that_had_no_servers(home: Path, config: Path, mcpctl: Mcpctl) -> None:
    """By name an error; with --all it gets all servers."""
    (home / ".cursor/mcp.json").write_text("{}")
    ran = mcpctl("install", "cursor", "--own")
    assert (ran.code, "Cursor has no servers that are in mcpd" in ran.err) == (5, True)
    assert "next: mcpctl import cursor, or omit --own" in ran.err
    ran = mcpctl("install", "--all", "--own")
    assert (ran.code, profiles(config)) == (0, None)
    assert entries(home)["mcpd"]["args"] == ["bridge", "--client", "cursor"]


def test_editor_whose_servers_are_not_in_mcpd_does_not_get_all(
    home: Path, config: Path, mcpctl: Mcpctl
) -> None:
    """With --all, too: it would see servers that it did not have."""
    (home / ".cursor/mcp.json").write_text('{"mcpServers": {"another": {"command": "nobody-has-it"}}}')
    ran = mcpctl("install", "--all", "--own")
    assert (ran.code, "Cursor has no servers that are in mcpd" in ran.err) == (5, True)
    assert "mcpd" not in entries(home)

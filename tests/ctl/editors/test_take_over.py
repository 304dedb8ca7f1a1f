"""`mcpctl install --take-over`: only servers that mcpd can serve now, and what the editor sees afterwards."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.ctl.conftest import Mcpctl
from tests.ctl.fake_daemon import FakeDaemon, failure, server, status

NAMES = ("good", "lazy", "hub", "ghost", "again", "slow", "fresh")
DEFINITIONS = {name: {"command": "uvx", "args": [f"{name}-mcp"]} for name in NAMES}
STATES = [
    server("good"),
    server("lazy", "idle"),
    server("hub", "needs-auth", last_error=failure("HTTP 401", kind="auth")),
    server("ghost", "failed", last_error=failure(summary="exited (1): no database")),
    server("again", "pending", last_error=failure(summary="exited (1): no module")),
    server("slow", "pending"),
]


@pytest.fixture
def cursor(home: Path, daemon: FakeDaemon) -> Path:
    """Cursor's file with the servers that mcpd has, in different states."""
    path = home / ".cursor/mcp.json"
    path.parent.mkdir()
    path.write_text(json.dumps({"mcpServers": DEFINITIONS}, indent=2))
    ours = home / ".config/mcpd/config.json"
    ours.parent.mkdir(parents=True)
    ours.write_text(json.dumps({"mcpServers": DEFINITIONS}))
    daemon.answers["mcpd/config"] = {"path": str(ours), "servers": DEFINITIONS}
    daemon.answers["mcpd/status"] = status(*STATES)
    return path


def entries(path: Path) -> list[str]:
    return [*json.loads(path.read_text())["mcpServers"]]


def test_only_servers_that_mcpd_can_serve_are_taken_over(
    cursor: Path, daemon: FakeDaemon, mcpctl: Mcpctl
) -> None:
    """An editor that logs in by itself must not lose its server. A removal of the server is noted."""
    ran = mcpctl("install", "cursor", "--take-over", "--dry-run")
    assert "hub: would be left on" in ran.out
    ran = mcpctl("install", "cursor", "--take-over")
    assert ran.code == 0
    assert entries(cursor) == ["hub", "ghost", "again", "slow", "fresh", "mcpd"]
    for line in (
        "  good: removed until mcpctl uninstall (provided by mcpd)",
        "  hub: left on, because it needs a login in mcpd (mcpctl login hub)",
        "  ghost: left on, because it has failed in mcpd: exited (1): no database (mcpctl why ghost)",
        "  again: left on, because it has failed in mcpd: exited (1): no module (mcpctl why again)",
        "  slow: left on, because it is still starting in mcpd",
        "  fresh: left on, because mcpd has not loaded it",
    ):
        assert line in ran.out.splitlines()
    daemon.answers["mcpd/remove"] = {"removed": ["good"], "errors": []}
    ran = mcpctl("remove", "good", "--yes")
    assert "~/.cursor/mcp.json had an entry for it, which mcpctl install replaced; mcpctl uninst" in ran.err


def test_servers_that_have_failed_are_not_also_provided(cursor: Path, mcpctl: Mcpctl, tmp_path: Path) -> None:
    """As far as is known: without a daemon, nothing is."""
    ran = mcpctl("install", "cursor")
    assert "  also provided by mcpd: fresh, good, lazy, slow; disable" in ran.out
    ran = mcpctl("install", "cursor", "--socket", str(tmp_path / "none.sock"))
    assert "  also provided by mcpd: again, fresh, ghost, good, hub, lazy, slow; disable" in ran.out


def test_nothing_is_taken_over_without_a_daemon(cursor: Path, mcpctl: Mcpctl, tmp_path: Path) -> None:
    """Nobody knows what would work."""
    ran = mcpctl("install", "cursor", "--take-over", "--socket", str(tmp_path / "none.sock"))
    assert ran.code == 0
    assert "  good: left on, because mcpd is not running" in ran.out.splitlines()
    assert entries(cursor) == [*NAMES, "mcpd"]


def test_preview_without_a_daemon_shows_what_would_happen(
    cursor: Path, mcpctl: Mcpctl, tmp_path: Path
) -> None:
    """The command would start mcpd, unless that is forbidden."""
    words = ("install", "cursor", "--take-over", "--dry-run", "--socket", str(tmp_path / "none.sock"))
    assert "good: would be left on, because mcpd is not running" in mcpctl(*words).out
    ran = mcpctl(*words, MCPD_NO_START="")
    assert "  good: would be removed" in ran.out
    assert "note: mcpd would be started; " in ran.err


def test_entry_of_mcpd_keeps_when_tools_are_loaded(cursor: Path, mcpctl: Mcpctl) -> None:
    """Also when it is written again."""
    document = json.loads(cursor.read_text())
    document["mcpServers"]["good"] |= {"alwaysLoad": True, "deferTools": "never"}
    cursor.write_text(json.dumps(document))
    for number in range(2):
        ran = mcpctl("install", "cursor", "--take-over")
        assert ran.code == 0
        assert ("alwaysLoad of good is set for all tools of 'mcpd'" in ran.out) is (number == 0)
        entry = json.loads(cursor.read_text())["mcpServers"]["mcpd"]
        assert (entry["alwaysLoad"], entry["deferTools"]) == (True, "never")


def test_entry_that_differs_stays_on_and_the_reason_names_the_difference(
    cursor: Path, mcpctl: Mcpctl
) -> None:
    document = json.loads(cursor.read_text())
    document["mcpServers"]["good"]["args"] = ["--other"]
    document["mcpServers"]["unknown"] = {"command": "nobody-has-it"}
    document["mcpServers"]["files"] = {"command": "f", "args": ["${workspaceFolder}"]}
    document["mcpServers"]["off"] = {"disabled": True, "args": ["${workspaceFolder}"]}
    cursor.write_text(json.dumps(document))
    project = Path(".cursor/mcp.json")
    project.parent.mkdir()
    project.write_text('{"mcpServers": {"db": {"command": "db"}}}')
    lines = mcpctl("install", "cursor", "--take-over").out.splitlines()
    assert (
        "  good: left on, because mcpd's good differs from it in args: make them equal, or disable this entry"
        in lines
    )
    assert [line[:43] for line in lines if line.startswith(("  files:", "  off:"))] == [
        "  files: left on, because mcpctl cannot impor"[:43]
    ]
    assert "  unknown: left on, because mcpd does not have it (mcpctl import)" in lines
    assert "  db: left on, because it is an entry for ~/src only" in lines

"""A rule of an editor about a server holds for the same program under another name."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from tests.ctl.conftest import Mcpctl
from tests.ctl.editors.test_import_rules import policies, put

PYTHON = "/usr/bin/python3"
SCRIPT: dict[str, Any] = {"command": PYTHON, "args": ["/srv/weather.py"]}


def keyed(key: str) -> dict[str, Any]:
    return {**SCRIPT, "env": {"WEATHER_API_KEY": key}}


def rules(home: Path) -> set[tuple[str, ...]]:
    """Return decision, client, server and tool of each rule."""
    return {
        (one["decision"], one["clients"][0], one["servers"][0], tool)
        for one in policies(home)
        for tool in one["tools"]
    }


OF_CLAUDE = {
    (decision, "claude-code", server, tool)
    for decision, tool in (("deny", "drop"), ("ask", "read"))
    for server in ("weather", "weather-gemini")
}


@pytest.fixture
def claude(home: Path) -> Path:
    """Claude Code with rules about one of its two entries that run the same program."""
    put(home, ".claude.json", {"mcpServers": {"weather": keyed("k-one"), "weather2": keyed("k-two")}})
    permissions = {"deny": ["mcp__weather__drop"], "ask": ["mcp__weather__read"]}
    return put(home, ".claude/settings.json", {"permissions": permissions})


@pytest.mark.parametrize(
    ("mine", "others"),
    [
        (keyed("k-one"), keyed("k-gemini")),
        (
            {"command": PYTHON, "args": ["/srv/a.py", "--api-key", "k-one-1234"]},
            {"command": "python3", "args": ["-u", "/srv/a.py"]},
        ),
        (
            {"command": PYTHON, "args": ["-m", "weather", "--de"]},
            {"command": "python3", "args": ["-m", "weather"]},
        ),
        (
            {"command": "weather-mcp", "args": ["--token", "ghp_0123456789abcdefghij0123456789abcdef"]},
            {"command": "weather-mcp", "args": ["--token", "ghp_9876543210abcdefghij0123456789abcdef"]},
        ),
    ],
)
def test_twin_that_the_import_adds(
    mine: dict[str, Any], others: dict[str, Any], home: Path, claude: Path, alone: Mcpctl
) -> None:
    """Not the editor's own second entry, for which it has no rule."""
    put(home, ".claude.json", {"mcpServers": {"weather": mine, "weather2": {**mine, "env": {"A": "2"}}}})
    put(home, ".gemini/settings.json", {"mcpServers": {"weather": others}})
    shown = alone("import", "--yes").out
    assert "Claude Code: deny drop of weather-gemini, the same program as weather (~/.cl" in shown
    assert rules(home) == OF_CLAUDE
    assert alone("import", "--yes", "--json").json()["rules"] == []
    assert alone("import", "--yes", "--json", "-s", "weather").json()["rules"] == []


def test_twin_that_a_later_import_adds(home: Path, claude: Path, alone: Mcpctl) -> None:
    """Although that one does not read the editor's files any more."""
    alone("import", "--yes")
    put(home, ".gemini/settings.json", {"mcpServers": {"weather": keyed("k-gemini")}})
    shown = alone("import", "--yes", "gemini", "-s", "weather").out
    assert "Claude Code: ask about read of weather-gemini, the same program as weather" in shown
    assert "1 server to import, 2 rules" in shown
    assert rules(home) == OF_CLAUDE


def test_twin_that_is_in_mcpd(home: Path, claude: Path, alone: Mcpctl) -> None:
    """Also for what an entry excludes by itself."""
    put(home, ".config/mcpd/config.json", {"mcpServers": {"weather-gemini": keyed("k-gemini")}})
    put(home, ".cursor/mcp.json", {"mcpServers": {"forecast": {**keyed("k-3"), "excludeTools": ["drop"]}}})
    alone("import", "--yes")
    everywhere = {("deny", "cursor", name, "drop") for name in ("weather", "weather2", "weather-gemini")}
    assert {one for one in rules(home) if one[1] == "cursor"} == everywhere
    assert rules(home) >= OF_CLAUDE


def test_rules_about_mcpd_itself_are_not_imported(home: Path, alone: Mcpctl) -> None:
    """`install --permissions` has renamed them, and mcpd has the rules already."""
    entry = {"command": "/x/mcpctl", "args": ["bridge", "--client", "claude-code"]}
    put(home, ".claude.json", {"mcpServers": {"mcpd": entry, "my": entry, "other": {"command": "x"}}})
    denied = ["mcp__mcpd__weather__drop", "mcp__my__weather__drop", "mcp__later__x"]
    ask = ["mcp__mcpd__weather__read"]
    put(home, ".claude/settings.json", {"permissions": {"deny": denied, "ask": ask}})
    cursor = {"mcpServers": {"mcpd": entry, "other": {"command": "x"}}}
    put(home, ".cursor/mcp.json", cursor)
    put(home, ".cursor/cli-config.json", {"permissions": {"deny": ["Mcp(mcpd:weather__drop)"]}})
    alone("import", "--yes")
    assert rules(home) == {("deny", "claude-code", "later", "x")}

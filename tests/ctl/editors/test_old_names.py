"""After a take-over: what names the former tools, the permission lists that are rewritten, and the way back.

The files are those that the documentation of the editors shows.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from tests.ctl.conftest import Mcpctl
from tests.ctl.fake_daemon import FakeDaemon, server, status

WEATHER: dict[str, Any] = {"command": "uvx", "args": ["weather-mcp"]}
AGENT = """---
name: forecaster
tools: Read, mcp__weather__get, mcp__weather
---
Ask mcp__weather__get_alerts. Do not use mcp__weather2__x or my_mcp__weather__y.
"""
SETTINGS = """{
  // mine
  "permissions": {
    "allow": ["mcp__weather__get_forecast",   "Bash(ls:*)"],
    "ask": ["mcp__weather__send_*", "mcp__weather-eu__x"],
    "deny": ["mcp__weather", "mcp__other__drop"]
  },
  "hooks": {
    "PreToolUse": [{ "matcher": "mcp__weather__.*|Edit", "hooks": [] }]
  }
}
"""


def put(path: Path, content: object) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(content if isinstance(content, str) else json.dumps(content))
    return path


@pytest.fixture
def claude(home: Path, daemon: FakeDaemon) -> Path:
    """Claude Code with two servers that mcpd has, one under another name. Returns its settings."""
    eu = {**WEATHER, "args": ["weather-eu"]}
    servers = {"forecasts": WEATHER, "weather-eu": eu}
    ours = put(home / ".config/mcpd/config.json", {"mcpServers": servers})
    daemon.answers["mcpd/config"] = {"path": str(ours), "servers": servers}
    daemon.answers["mcpd/status"] = status(server("forecasts"), server("weather-eu"))
    entries = {"weather": WEATHER, "weather-eu": eu}
    put(home / ".claude.json", {"mcpServers": entries, "projects": {str(home / "other"): {}}})
    put(home / "other/.claude/settings.local.json", {"permissions": {"allow": ["mcp__weather__other"]}})
    put(home / ".claude/agents/forecaster.md", AGENT)
    put(home / "src/.claude/commands/rain.md", "---\nallowed-tools: mcp__weather__*\n---\nRain?\n")
    put(home / "src/.claude/settings.json", {"permissions": {"deny": ["mcp__weather__wipe"]}})
    return put(home / ".claude/settings.json", SETTINGS)


def test_former_names_are_told_with_the_new_ones(claude: Path, mcpctl: Mcpctl) -> None:
    before = claude.read_bytes()
    ran = mcpctl("install", "claude-code", "--take-over")
    shown = ran.out[ran.out.index("  these still name") :].splitlines()
    assert shown[1:-1] == [
        "    ~/.claude/settings.json:4: mcp__weather__get_forecast → mcp__mcpd__forecasts__get_forecast",
        "    ~/.claude/settings.json:5: mcp__weather__send_* → mcp__mcpd__forecasts__send_*",
        "    ~/.claude/settings.json:5: mcp__weather-eu__x → mcp__mcpd__weather-eu__x",
        "    ~/.claude/settings.json:6: mcp__weather → mcp__mcpd__forecasts__*",
        "    ~/.claude/settings.json:9: mcp__weather__.* → mcp__mcpd__forecasts__.*",
        "    ~/other/.claude/settings.local.json:1: mcp__weather__other → mcp__mcpd__forecasts__other",
        "    ~/src/.claude/settings.json:1: mcp__weather__wipe → mcp__mcpd__forecasts__wipe",
        "    ~/.claude/agents/forecaster.md:3: mcp__weather__get → mcp__mcpd__forecasts__get",
        "    ~/.claude/agents/forecaster.md:3: mcp__weather → mcp__mcpd__forecasts__*",
        "    ~/.claude/agents/forecaster.md:5: mcp__weather__get_alerts → mcp__mcpd__forecasts__get_alerts",
        "    ~/src/.claude/commands/rain.md:2: mcp__weather__* → mcp__mcpd__forecasts__*",
    ]
    assert shown[-1] == (
        "  rename those in permission lists with: mcpctl install claude-code --take-over --permissions"
    )
    assert claude.read_bytes() == before


@pytest.mark.parametrize("is_changed_since", [False, True])
def test_permission_lists_are_rewritten_and_restored(
    claude: Path, mcpctl: Mcpctl, is_changed_since: bool
) -> None:
    """In two steps, and also if the user has changed the file since. What then names mcpd's tools is told."""
    assert mcpctl("install", "claude-code", "--take-over", "--permissions", "--dry-run").code == 0
    assert claude.read_text() == SETTINGS
    mcpctl("install", "claude-code", "--take-over")
    ran = mcpctl("install", "claude-code", "--take-over", "--permissions")
    assert "    mcp__weather → mcp__mcpd__forecasts__*" in ran.out
    assert "which have other names now; edit them by hand:\n    ~/.claude/settings.json:9: " in ran.out
    assert "next: in Claude Code, start a new session" in ran.err
    assert "~/.claude/settings.json:4" not in ran.out
    text = claude.read_text()
    assert '"allow": ["mcp__mcpd__forecasts__get_forecast"' in text.replace("[\n      ", "[")
    assert '"mcp__mcpd__weather-eu__x"' in text
    assert "// mine" in text
    assert text.count("mcp__weather") == 1, "the hook"
    assert "mcpctl uninstall" not in mcpctl("uninstall", "--all", "--dry-run").out
    if is_changed_since:
        mine = '"Bash(cat:*)", "mcp__mcpd__forecasts__wipe", "mcp__mcpd__other__x"'
        text = text.replace('"Bash(ls:*)"', mine)
        claude.write_text(text.replace("mcp__weather__.*|Edit", "mcp__mcpd__forecasts__(get|set)_x|Edit"))
    ran = mcpctl("uninstall", "claude-code")
    assert "~/.claude/settings.json: permission lists restored" in ran.out
    restored = claude.read_text()
    left = ran.out.partition("these still name tools of mcpd, which the editor no")[2].splitlines()
    assert [line.partition("settings.json:")[2].partition(" ")[2] for line in left[1:]] == (
        [
            "mcp__mcpd__forecasts__wipe → mcp__weather__wipe",
            "mcp__mcpd__other__x",
            "mcp__mcpd__forecasts__ → mcp__weather__",
        ]
        if is_changed_since
        else []
    )
    if is_changed_since:
        assert restored.count("mcp__mcpd") == len(left) - 1
        assert '"mcp__weather__send_*"' in restored
        assert "Bash(cat:*)" in restored
    else:
        assert restored == SETTINGS


@pytest.mark.parametrize("has_entry_of_user", [False, True])
def test_names_of_mcpd_in_a_project_are_told_unless_the_user_has_its_entry(
    has_entry_of_user: bool, claude: Path, home: Path, mcpctl: Mcpctl
) -> None:
    """The entry in the user's own file provides the same tools."""
    put(home / "src/.mcp.json", {"mcpServers": {"weather": WEATHER}})
    if has_entry_of_user:
        mcpctl("install", "claude-code")
    mcpctl("install", "claude-code", "--project", "--take-over=all")
    put(home / "src/.claude/settings.local.json", {"permissions": {"deny": ["mcp__mcpd__forecasts__get"]}})
    ran = mcpctl("uninstall", "claude-code", "--project")
    told = "settings.local.json:1: mcp__mcpd__forecasts__get → mcp__weather__get\n"
    assert ran.out.endswith(told) is not has_entry_of_user
    assert ("mcp__mcpd" in ran.out) is not has_entry_of_user


@pytest.mark.parametrize(
    ("editor", "entries", "file", "content", "new"),
    [
        (
            "cursor",
            ".cursor/mcp.json",
            ".cursor/permissions.json",
            '{"mcpAllowlist": ["weather:get", "weather:*"]}',
            ["mcpd:forecasts__get", "mcpd:forecasts__*"],
        ),
        (
            "cursor",
            ".cursor/mcp.json",
            ".cursor/cli-config.json",
            '{"permissions": {"allow": ["Mcp(weather:get)"], "deny": ["Shell(rm)"]}}',
            ["Mcp(mcpd:forecasts__get)", "Shell(rm)"],
        ),
        (
            "vscode",
            ".config/Code/User/mcp.json",
            "src/.github/agents/x.agent.md",
            "---\ntools: ['weather/get', 'weather/*', 'edit']\n---\nSee weather/README\n",
            ["weather/get → mcpd/forecasts__get", "weather/* → mcpd/*"],
        ),
        (
            "gemini",
            ".gemini/settings.json",
            ".gemini/policies/mine.toml",
            '[[rule]]\ntoolName = "mcp_weather_get"\ndecision = "deny"\n',
            ["mcp_weather_get → mcp_mcpd_forecasts__get"],
        ),
        (
            "gemini",
            ".gemini/settings.json",
            ".gemini/settings.json",
            json.dumps({"mcpServers": {"weather": WEATHER}, "tools": {"allowed": ["mcp_weather_get"]}}),
            ["mcp_mcpd_forecasts__get"],
        ),
    ],
)
def test_other_editors(
    editor: str,
    entries: str,
    file: str,
    content: str,
    new: list[str],
    claude: Path,
    home: Path,
    mcpctl: Mcpctl,
) -> None:
    slot = "servers" if editor == "vscode" else "mcpServers"
    if file != entries:
        put(home / entries, {slot: {"weather": WEATHER}})
    path = put(home / file, content)
    ran = mcpctl("install", editor, "--take-over=all", "--permissions")
    for each in new:
        assert each in (ran.out if "→" in each else path.read_text())
    if file == entries:  # the editor writes its own file, too
        text = path.read_text()
        path.write_text(f"{text}\n")
        mcpctl("uninstall", editor)
        assert json.loads(path.read_text()) == json.loads(content)
        path.write_text(content)
        mcpctl("install", editor, "--take-over=all", "--permissions")
    mcpctl("uninstall", editor)
    assert path.read_text() == content

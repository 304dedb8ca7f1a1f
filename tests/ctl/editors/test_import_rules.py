"""`mcpctl import` and the rules: shown, written once, and never instead of the user's own."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from tests.ctl.conftest import Mcpctl
from tests.ctl.editors.terminal import on_terminal
from tests.ctl.fake_daemon import Caller, FakeDaemon, Fault

DB: dict[str, Any] = {"command": "db-mcp"}
CLINE = ".config/Code/User/globalStorage/saoudrizwan.claude-dev/settings/cline_mcp_settings.json"


def put(home: Path, path: str, content: object) -> Path:
    file = home / path
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text(json.dumps(content))
    return file


@pytest.fixture
def editors(home: Path) -> Path:
    """Claude Code and Cline with one server. Returns Claude Code's settings."""
    put(home, ".claude.json", {"mcpServers": {"db": DB}})
    put(home, CLINE, {"mcpServers": {"db": {**DB, "autoApprove": ["read", "count"]}}})
    return put(home, ".claude/settings.json", {"permissions": {"allow": ["mcp__db"]}})


def policies(home: Path) -> list[dict[str, Any]]:
    document = json.loads((home / ".config/mcpd/config.json").read_text())
    found: list[dict[str, Any]] = document.get("settings", {}).get("policies", [])
    return found


CLAUDE = {
    "decision": "allow",
    "clients": ["claude-code"],
    "servers": ["db"],
    "tools": ["*"],
    "reason": "imported from Claude Code",
}
OF_CLINE = CLAUDE | {"clients": ["cline"], "tools": ["read", "count"], "reason": "imported from Cline"}


def test_rules_are_shown_and_written_once(home: Path, editors: Path, alone: Mcpctl) -> None:
    before = {path: path.read_bytes() for path in home.rglob("*.json")}
    shown = alone("import", "--dry-run")
    assert (
        "rules to import into settings.policies, after the existing ones\n"
        "  Claude Code: allow all tools of db (~/.claude/settings.json)\n"
        f"  Cline: allow read, count of db (~/{CLINE})\n\n"
        "1 server to import, 2 rules, from 2 files\n"
    ) in shown.out
    assert not (home / ".config/mcpd").exists()
    assert [one["rule"] for one in alone("import", "--dry-run", "--json").json()["rules"]] == [
        CLAUDE,
        OF_CLINE,
    ]
    ran = alone("import", "--yes")
    assert f"2 rules added to settings.policies in {home}/.config/mcpd/config.json\n" in ran.out
    assert policies(home) == [CLAUDE, OF_CLINE]
    assert alone("config", "validate").code == 0
    again = alone("import", "--yes", "--json").json()
    assert (again["rules"], again["written"]) == ([], False)
    assert policies(home) == [CLAUDE, OF_CLINE]
    assert {path: path.read_bytes() for path in before} == before, "the editors' files stay"


def test_no_rules_leaves_them(home: Path, editors: Path, alone: Mcpctl) -> None:
    assert "rules to import" not in alone("import", "--no-rules", "--dry-run").out
    alone("import", "--no-rules", "--yes")
    assert policies(home) == []
    later = alone("import")
    assert later.code == 2, "rules need confirmation as well"
    assert alone("import", "--yes").code == 0
    assert policies(home) == [CLAUDE, OF_CLINE]


def test_rules_of_the_user_stay_and_come_first(home: Path, editors: Path, alone: Mcpctl) -> None:
    """Also a rule that says the same, and the absence of one that was imported and deleted."""
    mine = [{"decision": "deny", "tools": ["drop"]}, {**CLAUDE, "reason": "I say so"}]
    config = put(home, ".config/mcpd/config.json", {"mcpServers": {"db": DB}, "settings": {"policies": mine}})
    alone("import", "--yes")
    assert policies(home) == [*mine, OF_CLINE]
    document = json.loads(config.read_text())
    document["settings"]["policies"] = mine[:1]
    config.write_text(json.dumps(document))
    (home / ".local/state/mcpd/imports.json").rename(home / "history")
    alone("import", "--yes")
    assert policies(home) == [mine[0], CLAUDE, OF_CLINE], "without a history, they are new"
    document["settings"]["policies"] = []
    config.write_text(json.dumps(document))
    alone("import", "--yes")
    assert policies(home) == [], "the user has deleted them"


def test_later_denial_is_inserted_before_what_was_imported(home: Path, editors: Path, alone: Mcpctl) -> None:
    """Otherwise it would have no effect, and what the editor allows further is appended."""
    alone("import", "--yes")
    permissions = {"allow": ["mcp__db"], "deny": ["mcp__db__drop"], "ask": ["mcp__db__write"]}
    editors.write_text(json.dumps({"permissions": permissions}))
    put(home, CLINE, {"mcpServers": {"db": {**DB, "autoApprove": ["read", "count", "list"]}}})
    shown = alone("import", "--dry-run").out
    assert "  Claude Code: deny drop of db (~/.claude/settings.json)\n" in shown
    alone("import", "--yes")
    assert policies(home) == [
        {**CLAUDE, "decision": "deny", "tools": ["drop"]},
        {**CLAUDE, "decision": "ask", "tools": ["write"]},
        CLAUDE,
        OF_CLINE,
        {**OF_CLINE, "tools": ["list"]},
    ]


def test_only_rules_of_the_named_server_are_imported(home: Path, editors: Path, alone: Mcpctl) -> None:
    put(home, ".claude.json", {"mcpServers": {"db": DB, "web": {"command": "web-mcp"}}})
    editors.write_text(json.dumps({"permissions": {"allow": ["mcp__db", "mcp__web"], "deny": ["mcp__gone"]}}))
    found = alone("import", "claude-code", "--server", "web", "--dry-run", "--json").json()["rules"]
    assert [one["rule"]["servers"] for one in found] == [["web"]]
    alone("import", "claude-code", "--yes")
    assert policies(home) == [{**CLAUDE, "servers": ["db", "web"]}], "servers with equal tools share a rule"


def test_trust_of_gemini_is_limited_to_gemini(home: Path, alone: Mcpctl) -> None:
    put(home, ".gemini/settings.json", {"mcpServers": {"db": {**DB, "trust": True}}})
    alone("import", "--yes")
    config = json.loads((home / ".config/mcpd/config.json").read_text())
    assert config["mcpServers"] == {"db": DB}
    assert policies(home) == [{**CLAUDE, "clients": ["gemini"], "reason": "imported from Gemini CLI"}]


def test_user_is_asked_about_rules(home: Path, editors: Path) -> None:
    code, seen = on_terminal(home, {"c: choose": "y", "Add 2 rules to settings.policies": "n"}, "import")
    assert (code, policies(home)) == (0, [])
    assert "1 server saved" in seen
    code, seen = on_terminal(home, {"Add 2 rules to settings.policies": "y"}, "import")
    assert (code, policies(home)) == (0, [CLAUDE, OF_CLINE])


def test_refused_rules_change_nothing(home: Path, editors: Path, mcpctl: Mcpctl, daemon: FakeDaemon) -> None:
    config = put(home, ".config/mcpd/config.json", {"mcpServers": {"db": DB}})
    before = config.read_bytes()

    def refuse(_: Caller, __: dict[str, Any]) -> object:
        raise Fault("no", code="bad_spec", exit=2, problems=[{"path": "$", "message": "no", "fix": ""}])

    daemon.answers["mcpd/config"] = {"path": str(config), "servers": {"db": {}}}
    daemon.answers["mcpd/servers/set"] = {"errors": []}
    daemon.answers["mcpd/reload"] = refuse
    assert mcpctl("import", "--yes").code == 2
    assert config.read_bytes() == before
    daemon.answers["mcpd/reload"] = {"errors": []}
    assert mcpctl("import", "--yes").code == 0
    assert policies(home) == [CLAUDE, OF_CLINE]

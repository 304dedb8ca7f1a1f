"""`mcpctl import` and the rules: shown, written once, and never instead of the user's own."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from tests.ctl.conftest import Mcpctl
from tests.ctl.fake_daemon import Caller, FakeDaemon, Fault

DB: dict[str, Any] = {"command": "db-mcp"}


def put(home: Path, path: str, content: object) -> Path:
    file = home / path
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text(content if isinstance(content, str) else json.dumps(content))
    return file


@pytest.fixture
def editors(home: Path) -> Path:
    """Claude Code and Codex with one server. Returns Claude Code's settings."""
    put(home, ".claude.json", {"mcpServers": {"db": DB}})
    codex = '[mcp_servers.db]\ncommand = "db-mcp"\ndefault_tools_approval_mode = "prompt"\n'
    put(home, ".codex/config.toml", codex)
    return put(
        home, ".claude/settings.json", {"permissions": {"deny": ["mcp__db__drop"], "allow": ["mcp__db"]}}
    )


def policies(home: Path) -> list[dict[str, Any]]:
    document = json.loads((home / ".config/mcpd/config.json").read_text())
    found: list[dict[str, Any]] = document.get("settings", {}).get("policies", [])
    return found


OF_CLAUDE = {
    "decision": "deny",
    "clients": ["claude-code"],
    "servers": ["db"],
    "tools": ["drop"],
    "reason": "imported from Claude Code",
}
OF_CODEX = {
    "decision": "ask",
    "clients": ["codex"],
    "servers": ["db"],
    "tools": ["*"],
    "reason": "imported from Codex",
}


def test_rules_are_shown_and_written_once(home: Path, editors: Path, alone: Mcpctl) -> None:
    before = {path: path.read_bytes() for path in home.rglob("*.json")}
    shown = alone("import", "--dry-run")
    assert (
        "rules to import into settings.policies\n"
        "  Claude Code: deny drop of db (~/.claude/settings.json)\n"
        "  Codex: ask about all tools of db (~/.codex/config.toml)\n\n"
        "1 server to import, 2 rules, from 2 files\n"
    ) in shown.out
    assert not (home / ".config/mcpd").exists()
    shown_rules = alone("import", "--dry-run", "--json").json()["rules"]
    assert [one["rule"] for one in shown_rules] == [OF_CLAUDE, OF_CODEX]
    assert alone("import", "--yes").code == 0
    assert policies(home) == [OF_CLAUDE, OF_CODEX]
    assert alone("config", "validate").code == 0
    again = alone("import", "--yes", "--json").json()
    assert (again["rules"], again["written"]) == ([], False)
    assert policies(home) == [OF_CLAUDE, OF_CODEX]
    assert {path: path.read_bytes() for path in before} == before, "the editors' files stay"


def test_rules_of_the_user_stay_and_come_first(home: Path, editors: Path, alone: Mcpctl) -> None:
    """Also a rule that says the same."""
    mine = [{"decision": "allow", "tools": ["x"]}, {**OF_CLAUDE, "reason": "I say so"}]
    document = {"mcpServers": {"db": DB}, "settings": {"policies": mine}}
    put(home, ".config/mcpd/config.json", document)
    alone("import", "--yes")
    assert policies(home) == [*mine, OF_CODEX]


def test_rule_is_inserted_before_imported_ones_that_are_less_strict(
    home: Path, editors: Path, alone: Mcpctl
) -> None:
    """Otherwise it would have no effect. A former version imported what editors allow, too."""
    allow = {**OF_CLAUDE, "decision": "allow", "tools": ["*"]}
    mine = {"decision": "ask", "tools": ["mine"]}
    document = {"mcpServers": {"db": DB}, "settings": {"policies": [mine, OF_CLAUDE, OF_CODEX, allow]}}
    put(home, ".config/mcpd/config.json", document)
    permissions = {"deny": ["mcp__db__drop", "mcp__db__wipe"], "ask": ["mcp__db__write"]}
    editors.write_text(json.dumps({"permissions": permissions}))
    alone("import", "--yes")
    assert policies(home) == [
        mine,
        OF_CLAUDE,
        {**OF_CLAUDE, "tools": ["wipe"]},
        OF_CODEX,
        {**OF_CLAUDE, "decision": "ask", "tools": ["write"]},
        allow,
    ]


def test_denial_is_never_dropped(home: Path, alone: Mcpctl) -> None:
    """Its server is skipped, is blocked, or is another one with the same package, or both."""
    skipped = {"url": {}, "command": ""}
    near = {"command": "npx", "args": ["-y", "near-mcp", "--verbose"]}
    unset = {"command": "x", "env": {"A": "${SURELY_NOT_SET}"}}
    both = {**near, **unset, "command": "npx"}
    put(home, ".claude.json", {"mcpServers": {"broken": skipped, "near": near, "unset": unset, "both": both}})
    put(home, ".config/mcpd/config.json", {"mcpServers": {"other": {**near, "args": ["-y", "near-mcp"]}}})
    denied = ["mcp__broken__a", "mcp__near__b", "mcp__unset__c[1]", "mcp__both__d", "mcp__later__e"]
    put(home, ".claude/settings.json", {"permissions": {"deny": denied}})
    alone("import", "--yes")
    found = {(one["servers"][0], tool) for one in policies(home) for tool in one["tools"]}
    assert found == {("broken", "a"), ("other", "b"), ("unset", "c?1?"), ("other", "d"), ("later", "e")}


def test_excluded_tools_stay_denied_if_another_entry_is_used(home: Path, alone: Mcpctl) -> None:
    """Its editor may use a server of mcpd, or of another editor, that does not exclude them; also if the user
    has named the file."""
    put(home, ".config/mcpd/config.json", {"mcpServers": {"db": {**DB, "excludeTools": ["old"]}}})
    mine = 'command = "db-mcp"\ndisabled_tools = ["old", "drop_*"]\n'
    file = put(home, ".codex/config.toml", f"[mcp_servers.db]\n{mine}")
    cursor = {"db": DB, "x": {"command": "x"}}
    put(home, ".cursor/mcp.json", {"mcpServers": cursor})
    put(home, ".gemini/settings.json", {"mcpServers": {"x": {"command": "x", "excludeTools": ["a"]}}})
    alone("import", "--yes")
    found = [(one["clients"], one["servers"], one["tools"]) for one in policies(home)]
    assert sorted(found) == [(["codex"], ["db"], ["drop_*"]), (["gemini"], ["x"], ["a"])]
    put(home, ".config/mcpd/config.json", {"mcpServers": {"db": DB}})
    alone("import", "--yes", str(file))
    assert policies(home)[0]["tools"] == ["old", "drop_*"]


def test_project_is_not_trusted_with_a_yes(home: Path, alone: Mcpctl) -> None:
    """What the file of a cloned repository runs is imported only if a person has seen it, or has named it."""
    evil = {"command": "sh", "args": ["-c", "evil"]}
    file = put(
        home,
        "src/.mcp.json",
        {"mcpServers": {"github": evil, "DB": {"command": "evil"}, "new": {"command": "e"}}},
    )
    put(home, "src/.cursor/mcp.json", {"mcpServers": {"cursor-evil": evil}})
    put(home, ".claude.json", {"mcpServers": {"github": {"url": {}, "command": ""}, "db": DB}})
    ran = alone("import", "--yes")
    config = home / ".config/mcpd/config.json"
    assert list(json.loads(config.read_text())["mcpServers"]) == ["db"]
    assert f"so --yes does not import it; look at it with: mcpctl import {file}" in ran.out
    alone("import", "--yes", "-s", "github")
    assert list(json.loads(config.read_text())["mcpServers"]) == ["db"]
    alone("import", "--yes", "-s", "new")
    assert set(json.loads(config.read_text())["mcpServers"]) == {"db", "new"}
    shown = alone("import", "--dry-run", "--json").json()["servers"]
    assert [one["name"] for one in shown] == ["github-claude-code"], "not the user's name"
    alone("import", "--yes", str(file))
    assert "evil" in config.read_text()


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

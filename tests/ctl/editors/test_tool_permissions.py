"""What editors allow, ask about, and deny becomes rules."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from ctl.editors.discovery import EntrySource
from ctl.editors.editor_paths import UserContext
from ctl.editors.import_rules import RuleAtom, read_rules
from ctl.editors.tool_permissions import entry_permissions, tools_after
from mcpd.config.loader import load
from mcpd.model.policy import ClientFacts, UsedItem, decide

NAMES = ("git hub", "db")


def rules(home: Path, editor: str, project: Path | None = None) -> list[tuple[str, ...]]:
    """Return the rules in the settings of an editor that has two servers."""
    sources = [EntrySource(editor, editor, home / "x", "user", name) for name in NAMES]
    names = {source: source.name.replace(" ", "-") for source in sources}
    context = UserContext({"HOME": str(home)}, project or home / "elsewhere", root=home / "root")
    found = read_rules(names, {}, [editor], context).found
    return [tuple(part for part in (*atom[:1], *atom[2:]) if part) for atom, _ in found]


def write(path: Path, content: object) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(content if isinstance(content, str) else json.dumps(content))


@pytest.mark.parametrize(
    ("pattern", "prefix", "tools"),
    [
        ("git_push", "git_", ("push",)),
        ("git_pu*", "git_", ("pu*",)),
        ("git*", "git_", ("*",)),
        ("*", "git_", ("*",)),
        ("*_delete_*", "git_", ("*_delete_*", "delete_*")),
        ("mcp_*_drop", "mcp_git_", ("drop",)),
        ("mcp__g*__drop*", "mcp__git__", ("drop*",)),
        ("mcp__g*", "mcp__git__", ("*",)),
        ("g?t_*", "git_", ("*",)),
        ("git_", "git_", ()),
        ("db_push", "git_", ()),
    ],
)
def test_pattern_of_server_and_tool_is_split(pattern: str, prefix: str, tools: tuple[str, ...]) -> None:
    assert tools_after(pattern, prefix) == tools


def test_claude_code(home: Path) -> None:
    """Deny before ask before allow, over all files. Rules that Claude Code ignores are left out."""
    project = home / "shop"
    user = {"allow": ["Bash(ls)", "mcp__git_hub__read", "mcp__db", "mcp__*"], "ask": ["mcp__db__write"]}
    write(home / ".claude/settings.json", {"permissions": user})
    local = {"deny": ["mcp__git_hub__delete_*", "mcp__other__x"], "allow": ["mcp__db__x(y)"]}
    write(project / ".claude/settings.local.json", {"permissions": local})
    write(home / "root/etc/claude-code/managed-settings.json", {"permissions": {"deny": ["mcp__*__drop"]}})
    (home / "old").mkdir()
    old = {"allowedTools": ["mcp__db__count"]}
    write(home / ".claude.json", {"projects": {str(home / "old"): old, "/gone": old}})
    assert rules(home, "claude-code", project) == [
        ("deny", "git-hub", "delete_*", str(project)),
        ("deny", "git-hub", "drop"),
        ("deny", "db", "drop"),
        ("ask", "db", "write"),
        ("allow", "git-hub", "read"),
        ("allow", "db", "*"),
        ("allow", "db", "count", str(home / "old")),
    ]


def test_cursor(home: Path) -> None:
    write(home / ".cursor/permissions.json", '{"mcpAllowlist": ["db:*", "git hub:list_*"]} // mine')
    write(
        home / ".cursor/cli-config.json",
        {"permissions": {"allow": ["Mcp(db:read)", "Shell(ls)"], "deny": ["Mcp(*:drop)"]}},
    )
    assert rules(home, "cursor") == [
        ("deny", "git-hub", "drop"),
        ("deny", "db", "drop"),
        ("allow", "db", "read"),
        ("allow", "db", "*"),
        ("allow", "git-hub", "list_*"),
    ]


def test_gemini(home: Path) -> None:
    """By priority. What depends on arguments or modes is left out."""
    policy = """
[[rule]]
mcpName = "db"
decision = "ask_user"
priority = 10
[[rule]]
mcpName = "db"
toolName = ["read", "count"]
decision = "allow"
priority = 100
[[rule]]
toolName = "mcp_*_drop"
decision = "deny"
priority = 200
[[rule]]
mcpName = "db"
toolName = "query"
argsPattern = "select"
decision = "allow"
[[rule]]
toolName = "run_shell_command"
decision = "allow"
"""
    write(home / ".gemini/policies/mine.toml", policy)
    assert rules(home, "gemini") == [
        ("deny", "git-hub", "drop"),
        ("deny", "db", "drop"),
        ("allow", "db", "read"),
        ("allow", "db", "count"),
        ("ask", "db", "*"),
    ]


def test_opencode_decides_by_the_last_match(home: Path) -> None:
    permission = {"*": "ask", "db_*": "deny", "db_read": "allow", "bash": {"git *": "allow"}}
    settings = {"mcp": {}, "permission": permission, "tools": {"git_hub_push": False}}
    write(home / ".config/opencode/opencode.json", settings)
    assert rules(home, "opencode") == [
        ("allow", "db", "read"),
        ("deny", "db", "*"),
        ("ask", "git-hub", "*"),
        ("ask", "db", "*"),
        ("deny", "git-hub", "push"),
    ]


@pytest.mark.parametrize(
    ("editor", "path", "settings", "expected"),
    [
        (
            "zed",
            ".config/zed/settings.json",
            {
                "agent": {
                    "tool_permissions": {
                        "default": "allow",
                        "tools": {"mcp:db:drop": {"default": "deny"}, "terminal": {"default": "deny"}},
                    }
                }
            },
            [("deny", "db", "drop"), ("allow", "git-hub", "*"), ("allow", "db", "*")],
        ),
        (
            "goose",
            ".config/goose/permission.yaml",
            "user:\n  always_allow: [db__read]\n  never_allow: [git_hub__push]\n",
            [("deny", "git-hub", "push"), ("allow", "db", "read")],
        ),
        (
            "amp",
            ".config/amp/settings.json",
            {
                "amp.permissions": [
                    {"tool": "mcp__db__drop", "action": "reject"},
                    {"tool": "mcp__db__*", "action": "allow", "matches": {"a": "b"}},
                    {"tool": "mcp__db__*", "action": "ask"},
                ]
            },
            [("deny", "db", "drop"), ("ask", "db", "*")],
        ),
        (
            "crush",
            ".config/crush/crush.json",
            {"permissions": {"allowed_tools": ["view", "mcp_db_read"]}},
            [("allow", "db", "read")],
        ),
        (
            "vibe",
            ".vibe/config.toml",
            '[tools.db_read]\npermission = "always"\n[tools.db_drop]\npermission = "never"\n',
            [("allow", "db", "read"), ("deny", "db", "drop")],
        ),
        (
            "vscode",
            ".config/Code/User/settings.json",
            {"chat.tools.global.autoApprove": True},
            [("allow", "git-hub", "*"), ("allow", "db", "*")],
        ),
        ("lmstudio", ".lmstudio/mcp.json", {"permissions": {"allow": ["*"]}}, []),
    ],
)
def test_other_editors(
    editor: str, path: str, settings: object, expected: list[tuple[str, ...]], home: Path
) -> None:
    write(home / path, settings)
    assert rules(home, editor) == expected


@pytest.mark.parametrize(
    ("fields", "expected"),
    [
        ({"autoApprove": ["a", "b", "a"]}, [("allow", "a"), ("allow", "b")]),
        ({"alwaysAllow": ["*"], "autoApprove": []}, [("allow", "*")]),
        ({"trust": True}, [("allow", "*")]),
        ({"trust": False, "tools": ["x"]}, []),
        (
            {
                "default_tools_approval_mode": "prompt",
                "tools": {"a": {"approval_mode": "approve"}, "b": {"approval_mode": "auto"}},
            },
            [("allow", "a"), ("ask", "*")],
        ),
        ({"default_tools_approval_mode": "writes"}, [("ask", "*", True)]),
    ],
)
def test_entries(fields: dict[str, Any], expected: list[tuple[object, ...]]) -> None:
    found = entry_permissions(fields, Path("/x"), None)
    assert [(one.decision, one.pattern, *([True] if one.writes_only else [])) for one in found] == expected


def test_rules_are_valid_and_decide_as_in_the_editor(home: Path, tmp_path: Path) -> None:
    write(home / ".config/opencode/opencode.json", {"permission": {"db_*": "deny", "db_read": "allow"}})
    source = EntrySource("opencode", "opencode", home / "x", "user", "db")
    codex = EntrySource("codex", "Codex", home / "y", "user", "db")
    in_entries = {codex: entry_permissions({"default_tools_approval_mode": "writes"}, home, tmp_path)}
    context = UserContext({"HOME": str(home)}, home / "src")
    found = read_rules({source: "db", codex: "db"}, in_entries, ["opencode"], context)
    new = found.new_rules(["db"], [], [], {})
    file = tmp_path / "c.json"
    document = {
        "mcpServers": {"db": {"command": "x"}},
        "settings": {"policies": [dict(one.rule) for one in new]},
    }
    file.write_text(json.dumps(document))
    policies = load(file, {}).settings.policies

    def verdict(client: str, tool: str, *, reads: bool = False) -> str:
        item = UsedItem(server="db", kind="tool", name=tool, hints={"readOnlyHint": reads})
        directory = str(tmp_path / "below")
        facts = ClientFacts(names=(client,), shown=(client,), transport="bridge", directory=directory)
        return decide(policies, facts, item).decision.value

    assert [verdict("opencode", tool) for tool in ("read", "drop")] == ["allow", "deny"]
    assert [verdict("codex", "x"), verdict("codex", "x", reads=True)] == ["ask", "allow"]
    assert verdict("zed", "drop") == "allow"


def test_name_that_a_rule_cannot_contain_is_reported(home: Path) -> None:
    source = EntrySource("cline", "Cline", home / "x", "user", "db")
    approved = ["a[b]", "c", "", "\ud800", "*d" * 300]
    permissions = entry_permissions({"autoApprove": approved}, home / "x", None)
    found = read_rules({source: "db"}, {source: permissions}, [], UserContext({"HOME": str(home)}, home))
    assert [atom for atom, _ in found.found] == [RuleAtom("allow", "cline", "db", "c")]
    assert found.skipped[0] == "allow a[b] of db: a rule cannot contain this name (~/x)"
    assert len(found.skipped) == 3


def test_server_that_is_the_same_as_another_has_its_rules(home: Path) -> None:
    source = EntrySource("cline", "Cline", home / "x", "user", "db")
    permissions = entry_permissions({"autoApprove": ["c"]}, home / "x", None)
    found = read_rules(
        {source: "db-cline"}, {source: permissions}, [], UserContext({"HOME": str(home)}, home)
    )
    (new,) = found.new_rules(["db"], [], [], {"db-cline": "db"})
    assert new.rule["servers"] == ["db"]
    assert found.new_rules(["db"], [], [], {}) == []

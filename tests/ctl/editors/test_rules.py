"""What editors deny and ask about becomes rules."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from ctl.editors.config_files import BY_NAME, UserContext
from ctl.editors.permission_rules import (
    EditorRules,
    ImportedRule,
    editor_permissions,
    entry_permissions,
    tools_after,
)

ENTRIES = (("git hub", "git-hub"), ("db", "db"))


def rules(home: Path, editor: str, project: Path | None = None) -> list[tuple[str, ...]]:
    """Return the rules in the settings of an editor that has two servers."""
    context = UserContext({"HOME": str(home)}, project or home / "elsewhere", root=home / "root")
    found, spec = EditorRules(), BY_NAME[editor]
    found.add(spec, ENTRIES, editor_permissions(spec, context), context)
    return sorted(tuple(part for part in (*one[:1], *one[2:]) if part) for one in found.found)


def write(path: Path, content: object) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(content if isinstance(content, str) else json.dumps(content))


@pytest.mark.parametrize(
    ("pattern", "prefix", "tools"),
    [
        ("git_push", "git_", ("push",)),
        ("git_pu*", "git_", ("pu*",)),
        ("git*", "git_", ("*",)),
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
    """Over all files. Rules about arguments are left out."""
    project = home / "shop"
    user = {"allow": ["mcp__git_hub__read"], "ask": ["mcp__db__write"]}
    write(home / ".claude/settings.json", {"permissions": user})
    local = {"deny": ["mcp__git_hub__delete_*", "mcp__other__x", "mcp__db__x(y)", "Bash(ls)"]}
    write(project / ".claude/settings.local.json", {"permissions": local})
    write(home / "root/etc/claude-code/managed-settings.json", {"permissions": {"deny": ["mcp__*__drop"]}})
    assert rules(home, "claude-code", project) == [
        ("ask", "db", "write"),
        ("deny", "db", "drop"),
        ("deny", "git-hub", "delete_*", str(project)),
        ("deny", "git-hub", "drop"),
        ("deny", "other", "drop"),
        ("deny", "other", "x", str(project)),
    ]


def test_gemini(home: Path) -> None:
    """What depends on arguments or modes is left out, and what an earlier rule allows."""
    policy = """
[[rule]]
mcpName = "db"
decision = "ask_user"
priority = 10
[[rule]]
toolName = "mcp_*_drop"
decision = "deny"
priority = 200
[[rule]]
mcpName = "git hub"
decision = "allow"
priority = 100
[[rule]]
mcpName = "git hub"
decision = "deny"
[[rule]]
mcpName = "db"
toolName = "query"
argsPattern = "select"
decision = "deny"
[[rule]]
toolName = "run_shell_command"
decision = "deny"
"""
    write(home / ".gemini/policies/mine.toml", policy)
    assert rules(home, "gemini") == [("ask", "db", "*"), ("deny", "db", "drop"), ("deny", "git-hub", "drop")]


def test_opencode_decides_by_the_last_match(home: Path) -> None:
    permission = {"*": "ask", "db_*": "deny", "git_hub_*": "allow", "bash": {"git *": "allow"}}
    settings = {"mcp": {}, "permission": permission, "tools": {"git_hub_push": False}}
    write(home / ".config/opencode/opencode.json", settings)
    assert rules(home, "opencode") == [("ask", "db", "*"), ("deny", "db", "*")]


@pytest.mark.parametrize(
    ("editor", "path", "settings", "expected"),
    [
        (
            "cursor",
            ".cursor/cli-config.json",
            {"permissions": {"allow": ["Mcp(db:read)"], "deny": ["Mcp(*:drop)", "Shell(ls)"]}},
            [("deny", "db", "drop"), ("deny", "git-hub", "drop")],
        ),
        (
            "zed",
            ".config/zed/settings.json",
            {"agent": {"tool_permissions": {"tools": {"mcp:db:drop": {"default": "deny"}, "terminal": {}}}}},
            [("deny", "db", "drop")],
        ),
        (
            "goose",
            ".config/goose/permission.yaml",
            "user:\n  always_allow: [db__read]\n  ask_before: [db__x]\n  never_allow: [git_hub__push]\n",
            [("ask", "db", "x"), ("deny", "git-hub", "push")],
        ),
        (
            "amp",
            ".config/amp/settings.json",
            {
                "amp.permissions": [
                    {"tool": "mcp__db__drop", "action": "reject"},
                    {"tool": "mcp__db__*", "action": "reject", "matches": {"a": "b"}},
                    {"tool": "mcp__db__*", "action": "ask"},
                ]
            },
            [("ask", "db", "*"), ("deny", "db", "drop")],
        ),
        (
            "vibe",
            ".vibe/config.toml",
            '[tools.db_read]\npermission = "always"\n[tools.db_drop]\npermission = "never"\n',
            [("deny", "db", "drop")],
        ),
        ("lmstudio", ".lmstudio/mcp.json", {"permissions": {"deny": ["*"]}}, []),
    ],
)
def test_other_editors(
    editor: str, path: str, settings: object, expected: list[tuple[str, ...]], home: Path
) -> None:
    write(home / path, settings)
    assert rules(home, editor) == expected


def test_name_that_a_rule_cannot_contain_is_reported(home: Path) -> None:
    context, codex = UserContext({"HOME": str(home)}, home), BY_NAME["codex"]
    tools = {name: {"approval_mode": "prompt"} for name in ("a[b]", "c", "", "\ud800", "*d" * 300)}
    found = EditorRules()
    found.add(codex, [("db", "db")], entry_permissions({"tools": tools}, home / "x", None), context)
    assert list(found.found) == [
        ImportedRule("ask", "codex", "db", "a?b?"),
        ImportedRule("ask", "codex", "db", "c"),
    ]
    assert found.skipped[0].startswith("Codex: ask \ufffd of db: a rule cannot contain this name")
    assert len(found.skipped) == 2

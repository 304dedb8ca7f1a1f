"""Reads what editors allow, ask about, and deny: in their settings, and in their entries for MCP servers.

Rules are returned in the order in which the first that matches decides, whatever the editor's own order is.
What depends on arguments or modes is left out, because mcpd's rules do not.
"""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from fnmatch import fnmatchcase
from pathlib import Path

import attrs

from ctl.cli.json_text import mapping, objects, strings
from ctl.editors.editor_catalog import EditorSpec
from ctl.editors.editor_paths import UserContext, find_editor_files
from mcpd.config.in_place_edits.document import read_document
from mcpd.model.errors import BadSpec

Fields = Mapping[str, object]
_DECISIONS = {
    "allow": "allow",
    "always": "allow",
    "approve": "allow",
    "ask": "ask",
    "ask_user": "ask",
    "confirm": "ask",
    "prompt": "ask",
    "deny": "deny",
    "never": "deny",
    "reject": "deny",
}
"""An editor's word for a decision → mcpd's."""
_APPROVED = ("autoApprove", "alwaysAllow", "auto_approve", "always_allow")
_CONDITIONS = (
    "argsPattern", "commandPrefix", "commandRegex", "interactive", "modes", "subagent", "toolAnnotations",
)  # fmt: skip
"""Conditions of Gemini's rules that mcpd's rules cannot have."""


@attrs.frozen
class ToolPermission:
    """One rule of an editor about tools of MCP servers."""

    decision: str
    """`allow`, `ask` or `deny`."""
    pattern: str
    """What it is about, with the wildcards `*` and `?`: a server and a tool as the editor joins them, or the
    tool alone in an entry."""
    path: Path
    project: Path | None = None
    """The directory to which it is limited."""
    prefix: Callable[[str], str] | None = None
    """Returns what comes before the tool in `pattern`, for a server; None in an entry."""
    writes_only: bool = False
    """Whether it is only about tools that are not read-only."""

    def tools_of(self, server: str) -> tuple[str, ...]:
        """Return patterns for the tools of a server that it is about, and nothing if there are none."""
        if self.prefix is None:
            return (self.pattern,)
        return tools_after(self.pattern, self.prefix(server))


def tools_after(pattern: str, prefix: str) -> tuple[str, ...]:
    """Return patterns that together match the tools T for which `pattern` matches `prefix` + T.

    If the prefix ends with a separator that the pattern has as well, as in `mcp__*__drop`, a wildcard before
    that stands for a server only.
    """
    found: dict[str, bool] = {}
    for at in range(1, len(pattern) + 1):
        if fnmatchcase(prefix, pattern[:at]):
            in_wildcard = pattern[at - 1] == "*"
            tool = f"*{pattern[at:]}" if in_wildcard else pattern[at:]
            if tool:
                found.setdefault(re.sub(r"\*+", "*", tool), in_wildcard)
    if prefix.startswith("mcp") or prefix.endswith((":", "__", "/")):
        exact = [tool for tool, in_wildcard in found.items() if not in_wildcard]
        found = dict.fromkeys(exact[-1:] or found, False)
    return ("*",) if "*" in found else tuple(found)


def entry_permissions(fields: Fields, path: Path, project: Path | None) -> tuple[ToolPermission, ...]:
    """Return the rules in an entry: lists of approved tools, Gemini's `trust`, Codex's approval modes."""
    found: list[tuple[str, str]] = []
    for tool, settings in mapping(fields.get("tools")).items():
        found.append((str(mapping(settings).get("approval_mode")), str(tool)))
    found.append((str(fields.get("default_tools_approval_mode")), "*"))
    for key in _APPROVED:
        approved = fields.get(key)
        found += [("allow", name) for name in (["*"] if approved is True else strings(approved))]
    if fields.get("trust") is True:
        found.append(("allow", "*"))
    return tuple(
        ToolPermission(_DECISIONS.get(mode, "ask"), tool, path, project, writes_only=mode == "writes")
        for mode, tool in dict.fromkeys(found)
        if mode in _DECISIONS or mode == "writes"
    )


def editor_permissions(editor: EditorSpec, context: UserContext) -> list[ToolPermission]:
    """Return the rules in an editor's settings, of the user and the current project."""
    read = _READERS.get(editor.name)
    return list(read(editor, context)) if read is not None else []


def _claude_code(editor: EditorSpec, context: UserContext) -> Iterator[ToolPermission]:
    """Claude Code: deny before ask before allow, whatever the file (Claude Code docs, permissions)."""
    ours = context.environ.get("CLAUDE_CONFIG_DIR")
    user = Path(ours) if ours else context.home / ".claude"
    files: list[tuple[Path, Path | None]] = [(user / "settings.json", None)]
    for name in ("settings.json", "settings.local.json"):
        files += [(each / ".claude" / name, each) for each in context.project_directories()]
    files += [
        (context.root / each / "managed-settings.json", None)
        for each in ("etc/claude-code", "Library/Application Support/ClaudeCode")
    ]
    settings = [(path, project, mapping(_read(path).get("permissions"))) for path, project in _once(files)]
    state = (Path(ours) if ours else context.home) / ".claude.json"
    for directory, remembered in mapping(_read(state).get("projects")).items():
        if os.path.isabs(str(directory)) and os.path.isdir(str(directory)):
            allowed = {"allow": mapping(remembered).get("allowedTools")}
            settings.append((state, Path(str(directory)), allowed))

    def prefix(server: str) -> str:
        return f"mcp__{_word(server)}__"

    for decision in ("deny", "ask", "allow"):
        for path, project, lists in settings:
            for pattern in strings(lists.get(decision)):
                server, joint, _ = pattern.removeprefix("mcp__").partition("__")
                if (
                    not pattern.startswith("mcp__")
                    or "(" in pattern
                    or (decision == "allow" and "*" in server)
                ):
                    continue  # Claude Code ignores such rules, too
                whole = pattern if joint else f"{pattern}__*"
                yield ToolPermission(decision, whole, path, project, prefix)


def _cursor(editor: EditorSpec, context: UserContext) -> Iterator[ToolPermission]:
    """Cursor: the allowlist of the editor, and the permissions of its CLI, where deny comes first."""
    places = [(context.home, None), *((each, each) for each in context.project_directories())]
    clis: list[tuple[Path, Path | None]] = [(context.home / ".cursor/cli-config.json", None)]
    clis += [(each / ".cursor/cli.json", each) for each in context.project_directories()]
    found: list[tuple[str, str, Path, Path | None]] = []
    for path, project in _once(clis):
        lists = mapping(_read(path).get("permissions"))
        for decision in ("deny", "allow"):
            for text in strings(lists.get(decision)):
                if inner := re.fullmatch(r"Mcp\((.+:.+)\)", text):
                    found.append((decision, inner[1], path, project))
    for path, project in _once([(base / ".cursor/permissions.json", project) for base, project in places]):
        for text in strings(_read(path).get("mcpAllowlist")):
            found.append(("allow", text if ":" in text else f"{text}:*", path, project))
    found.sort(key=lambda one: one[0] != "deny")
    for decision, pattern, path, project in found:
        yield ToolPermission(decision, pattern, path, project, lambda server: f"{server}:")


def _gemini(editor: EditorSpec, context: UserContext) -> Iterator[ToolPermission]:
    """Gemini CLI: its policies, of the system before the user's before a project's, by priority."""
    places: list[tuple[Path, Path | None]] = [
        (context.root / "etc/gemini-cli/policies", None),
        (context.home / ".gemini/policies", None),
        *((each / ".gemini/policies", each) for each in context.project_directories()),
    ]
    for directory, project in _once(places):
        found = [
            (rule, path)
            for path in sorted(directory.glob("*.toml"))
            for rule in objects(_read(path).get("rule"))
            if not any(rule.get(key) not in (None, []) for key in _CONDITIONS)
        ]
        found.sort(key=lambda one: -_priority(one[0]))
        for rule, path in found:
            decision, server = _DECISIONS.get(str(rule.get("decision"))), rule.get("mcpName")
            names = rule.get("toolName", "*")
            for tool in [names] if isinstance(names, str) else strings(names):
                if decision is None or (server is None and not tool.startswith(("mcp_", "*"))):
                    continue
                if isinstance(server, str):
                    yield ToolPermission(decision, f"{server}:{tool}", path, project, lambda name: f"{name}:")
                else:
                    yield ToolPermission(decision, tool, path, project, lambda name: f"mcp_{name}_")


def _opencode(editor: EditorSpec, context: UserContext) -> Iterator[ToolPermission]:
    """opencode: the last rule that matches decides. Its former `tools` say `true` or `false`."""

    def prefix(server: str) -> str:
        return f"{_word(server)}_"

    for path, project, settings in _main_files(editor, context):
        permission = settings.get("permission")
        rules: list[tuple[str, object]] = [
            (str(tool), "allow" if on is True else "deny")
            for tool, on in mapping(settings.get("tools")).items()
            if isinstance(on, bool)
        ]
        rules += [("*", permission)] if isinstance(permission, str) else mapping(permission).items()
        for pattern, action in reversed(rules):
            word = action.get("*") if isinstance(action, Mapping) and len(action) == 1 else action
            decision = _DECISIONS.get(word) if isinstance(word, str) else None
            if decision is not None:
                yield ToolPermission(decision, pattern, path, project, prefix)


def _zed(editor: EditorSpec, context: UserContext) -> Iterator[ToolPermission]:
    """Zed: a default for each tool, and one for all. Its own default is to ask."""
    for path, project, settings in _main_files(editor, context):
        agent = mapping(settings.get("agent"))
        permissions = mapping(agent.get("tool_permissions"))
        for name, rule in mapping(permissions.get("tools")).items():
            decision = _DECISIONS.get(str(mapping(rule).get("default")))
            if decision is not None and str(name).startswith("mcp:"):
                yield ToolPermission(decision, str(name), path, project, lambda server: f"mcp:{server}:")
        general = "allow" if agent.get("always_allow_tool_actions") is True else permissions.get("default")
        if general in ("allow", "deny"):
            yield ToolPermission(str(general), "*", path, project, lambda server: f"mcp:{server}:")


def _goose(editor: EditorSpec, context: UserContext) -> Iterator[ToolPermission]:
    path = context.config / "goose" / "permission.yaml"
    lists = mapping(_read(path).get("user"))
    for key, decision in (("never_allow", "deny"), ("ask_before", "ask"), ("always_allow", "allow")):
        for name in strings(lists.get(key)):
            yield ToolPermission(decision, name, path, None, lambda server: f"{_word(server).lower()}__")


def _amp(editor: EditorSpec, context: UserContext) -> Iterator[ToolPermission]:
    for path, project, settings in _main_files(editor, context):
        for rule in objects(settings.get("amp.permissions")):
            decision, tool = _DECISIONS.get(str(rule.get("action"))), rule.get("tool")
            if decision is not None and isinstance(tool, str) and not rule.get("matches"):
                yield ToolPermission(decision, tool, path, project, lambda server: f"mcp__{_word(server)}__")


def _crush(editor: EditorSpec, context: UserContext) -> Iterator[ToolPermission]:
    for path, project, settings in _main_files(editor, context):
        for tool in strings(mapping(settings.get("permissions")).get("allowed_tools")):
            yield ToolPermission("allow", tool, path, project, lambda server: f"mcp_{server}_")


def _vibe(editor: EditorSpec, context: UserContext) -> Iterator[ToolPermission]:
    for path, project, settings in _main_files(editor, context):
        for tool, rule in mapping(settings.get("tools")).items():
            decision = _DECISIONS.get(str(mapping(rule).get("permission")))
            if decision is not None:
                yield ToolPermission(decision, str(tool), path, project, lambda server: f"{server}_")


def _vscode(editor: EditorSpec, context: UserContext) -> Iterator[ToolPermission]:
    """VS Code: the approval of everything. What was approved in a dialog is not in its settings."""
    for path, project, settings in _main_files(editor, context):
        if any(settings.get(f"chat.tools.{key}") is True for key in ("global.autoApprove", "autoApprove")):
            yield ToolPermission("allow", "*", path, project, lambda server: f"{server}/")


_READERS: Mapping[str, Callable[[EditorSpec, UserContext], Iterator[ToolPermission]]] = {
    "claude-code": _claude_code,
    "cursor": _cursor,
    "gemini": _gemini,
    "opencode": _opencode,
    "zed": _zed,
    "goose": _goose,
    "amp": _amp,
    "crush": _crush,
    "vibe": _vibe,
    "vscode": _vscode,
    "vscode-insiders": _vscode,
    "vscodium": _vscode,
}


def _main_files(editor: EditorSpec, context: UserContext) -> Iterator[tuple[Path, Path | None, Fields]]:
    """Yield the files in which the editor has its MCP servers, nearest scope first."""
    for found in find_editor_files((editor,), context):
        yield found.path, found.project, _read(found.path)


def _once(files: Iterable[tuple[Path, Path | None]]) -> list[tuple[Path, Path | None]]:
    """Return each path once: in the home directory, the user's files are the project's as well."""
    found: dict[Path, Path | None] = {}
    for path, project in files:
        found.setdefault(path, project)
    return list(found.items())


def _read(path: Path) -> Fields:
    try:
        return read_document(path, foreign=True).value
    except BadSpec:
        return {}  # the editor reports it


def _word(name: str) -> str:
    """Return a name as editors use it in the name of a tool."""
    return re.sub(r"[^A-Za-z0-9_-]", "_", name)


def _priority(rule: Fields) -> float:
    value = rule.get("priority")
    return float(value) if isinstance(value, (int, float)) else 0.0

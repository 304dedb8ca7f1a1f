"""What editors deny and ask about, as rules for `settings.policies`.

What an editor allows is not imported, and neither is what depends on arguments or modes: mcpd's rules would
allow more than the editor did.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from fnmatch import fnmatchcase
from pathlib import Path
from typing import NamedTuple

import attrs

from ctl.cli.json_text import mapping, objects, strings
from ctl.daemon.client import Json
from ctl.editors.editor_catalog import BY_NAME, EditorSpec
from ctl.editors.editor_paths import UserContext, find_editor_files
from mcpd.config.in_place_edits.document import read_document
from mcpd.model.errors import BadSpec
from mcpd.model.text import shorten

Fields = Mapping[str, object]
_ALLOW, _ASK, _DENY = "allow", "ask", "deny"
_STRICTNESS = (_DENY, _ASK, _ALLOW)
_DECISIONS = {
    **dict.fromkeys(("allow", "always", "approve"), _ALLOW),
    **dict.fromkeys(("ask", "ask_user", "confirm", "prompt", "writes"), _ASK),
    **dict.fromkeys(("deny", "never", "reject"), _DENY),
}
"""An editor's word for a decision → mcpd's."""
_CONDITIONS = (
    "argsPattern", "commandPrefix", "commandRegex", "interactive", "modes", "subagent", "toolAnnotations",
)  # fmt: skip
"""Conditions of Gemini's rules that mcpd's rules cannot have."""
_CLIENT_NAMES = {
    "vscode": ("vscode", "Visual Studio Code"),
    "vscode-insiders": ("vscode-insiders", "Visual Studio Code - Insiders"),
}
"""The names of clients that may connect without `mcpctl bridge --client`."""
_MAX_PATTERN = 500
"""Characters. No tool has a longer name."""
_IMPORTED = "imported from "


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

    def tools_of(self, server: str) -> tuple[str, ...]:
        """Return patterns for the tools of a server that it is about, and nothing if there are none."""
        if self.prefix is None:
            return (self.pattern,) if self.pattern else ()
        if len(self.pattern) > _MAX_PATTERN:
            return (self.pattern,)
        return tools_after(self.pattern, self.prefix(server))


class ImportedRule(NamedTuple):
    """What is denied or asked about in one editor: a pattern of tools of one server."""

    decision: str
    editor: str
    server: str
    """The name in mcpd."""
    tool: str
    directory: str = ""


@attrs.frozen
class NewRule:
    """A rule to write."""

    rule: Mapping[str, object]
    """The rule as it is written in the file."""
    before: int
    """The index in the list at which to insert it, after the rules before this one have been inserted."""
    title: str
    """Of the editor."""
    paths: tuple[Path, ...]

    def describe(self, context: UserContext) -> str:
        """Return the rule in one line."""
        decision, tools = str(self.rule["decision"]), strings(self.rule["tools"])
        what = "all tools" if tools == ["*"] else ", ".join(tools)
        where = ", ".join(context.display_path(Path(each)) for each in strings(self.rule.get("directories")))
        servers = ", ".join(strings(self.rule["servers"]))
        about = f"{'ask about' if decision == _ASK else decision} {what} of {servers}"
        return f"{about}{f' in {where}' if where else ''}"

    def to_json(self) -> Json:
        return {"rule": dict(self.rule), "paths": [str(path) for path in self.paths]}


@attrs.define
class EditorRules:
    """What editors deny and ask about."""

    found: dict[ImportedRule, Path] = attrs.field(factory=dict)
    """Each with the file that says so."""
    skipped: list[str] = attrs.field(factory=list)
    """Notes about what cannot be a rule."""

    def add(
        self,
        editor: EditorSpec,
        entries: Iterable[tuple[str, str | None]],
        permissions: Sequence[ToolPermission],
        context: UserContext,
    ) -> None:
        """Add permissions, of which the first that matches decides.

        `entries`: the names of entries, and of their servers in mcpd; None if it is not imported.
        """
        for entry, server in dict.fromkeys(entries):
            for one in permissions:
                tools = one.tools_of(entry)
                if one.decision == _ALLOW and "*" in tools and one.project is None:
                    break  # nothing after it has an effect
                for tool in tools if one.decision != _ALLOW else ():
                    directory = "" if one.project is None else str(one.project)
                    why = _why_not(server, tool, directory)
                    if why or server is None:
                        what = f"{one.decision} {shorten(tool, 80)} of {server or entry}"
                        note = f"{editor.title}: {what}: {why} ({context.display_path(one.path)})"
                        self.skipped += [note] if note not in self.skipped else []
                    else:
                        rule = ImportedRule(one.decision, editor.name, server, tool, directory)
                        self.found.setdefault(rule, one.path)

    def new_rules(self, policies: Sequence[object]) -> list[NewRule]:
        """Return the rules that `policies`, the rules in the file, do not contain yet.

        The user's own rules stay first. A rule is inserted before the imported ones that are less strict.
        """
        present = frozenset[ImportedRule]().union(*map(parts_of, policies))
        grouped = _grouped((one, path) for one, path in self.found.items() if one not in present)
        imported = [_strictness(rule) for rule in policies]
        result: list[NewRule] = []
        for parts in sorted(grouped, key=lambda parts: _STRICTNESS.index(next(iter(parts)).decision)):
            first = next(iter(parts))
            level = _STRICTNESS.index(first.decision)
            looser = (n for n, other in enumerate(imported) if other is not None and other > level)
            index = next(looser, len(imported))
            title = BY_NAME[first.editor].title
            paths = tuple(dict.fromkeys(parts.values()))
            result.append(NewRule(_written(list(parts), title), index, title, paths))
            imported.insert(index, level)
        return result


def _why_not(server: str | None, tool: str, directory: str) -> str:
    """Return why there can be no rule about a tool; empty if there can."""
    if server is None:
        return "its server is not imported"
    if len(tool) > _MAX_PATTERN or re.search(r"[\[\]]", tool) or not f"{tool}{directory}".isprintable():
        return "a rule cannot contain this name"
    return "a rule cannot contain its directory" if re.search(r"[*?\[\]]", directory) else ""


def parts_of(rule: object) -> frozenset[ImportedRule]:
    """Return the parts of a rule in the file; nothing if an import could not have written it."""
    fields = mapping(rule)
    needed = {"decision", "clients", "servers", "tools"}
    if not needed <= fields.keys() <= needed | {"directories", "reason"}:
        return frozenset()
    return frozenset(
        ImportedRule(str(fields["decision"]), client, server, tool, directory)
        for client in strings(fields["clients"])
        if client in BY_NAME
        for server in strings(fields["servers"])
        for tool in strings(fields["tools"])
        for directory in (strings(fields.get("directories")) or [""])
    )


def _strictness(rule: object) -> int | None:
    """Return the level of a rule that an import has written; None for one of the user."""
    fields = mapping(rule)
    is_imported = str(fields.get("reason", "")).startswith(_IMPORTED)
    decision = fields.get("decision")
    return _STRICTNESS.index(str(decision)) if is_imported and decision in _STRICTNESS else None


def _grouped(found: Iterable[tuple[ImportedRule, Path]]) -> list[dict[ImportedRule, Path]]:
    """Group parts that can be one rule: first the tools of each server, then servers with equal tools."""
    by_server: dict[tuple[str, ...], dict[ImportedRule, Path]] = {}
    for one, path in found:
        by_server.setdefault((one.decision, one.editor, one.directory, one.server), {})[one] = path
    by_tools: dict[tuple[object, ...], dict[ImportedRule, Path]] = {}
    for (*common, _), parts in by_server.items():
        tools = tuple(sorted(one.tool for one in parts))
        by_tools.setdefault((*common, tools), {}).update(parts)
    return list(by_tools.values())


def _written(parts: Sequence[ImportedRule], title: str) -> dict[str, object]:
    first = parts[0]
    return {
        "decision": first.decision,
        "clients": list(_CLIENT_NAMES.get(first.editor, (first.editor,))),
        "servers": list(dict.fromkeys(one.server for one in parts)),
        "tools": list(dict.fromkeys(one.tool for one in parts)),
        **({"directories": [first.directory]} if first.directory else {}),
        "reason": f"{_IMPORTED}{title}",
    }


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


# ---- the settings of editors -------------------------------------------------------------------------


def entry_permissions(fields: Fields, path: Path, project: Path | None) -> tuple[ToolPermission, ...]:
    """Return the approval modes in an entry, which Codex has."""
    modes = [(mapping(one).get("approval_mode"), tool) for tool, one in mapping(fields.get("tools")).items()]
    modes.append((fields.get("default_tools_approval_mode"), "*"))
    return tuple(
        ToolPermission(_DECISIONS[str(mode)], str(tool), path, project)
        for mode, tool in modes
        if str(mode) in _DECISIONS
    )


def editor_permissions(editor: EditorSpec, context: UserContext) -> list[ToolPermission]:
    """Return the rules in an editor's settings, of the user and the current project.

    Of those for one server, the first that matches decides, whatever the editor's own order is.
    """
    read = _READERS.get(editor.name)
    return list(read(editor, context)) if read is not None else []


def _claude_code(editor: EditorSpec, context: UserContext) -> Iterator[ToolPermission]:
    """Claude Code: deny before ask, whatever the file (Claude Code docs, permissions)."""
    files: list[tuple[Path, Path | None]] = [(context.claude / "settings.json", None)]
    for name in ("settings.json", "settings.local.json"):
        files += [(each / ".claude" / name, each) for each in context.project_directories()]
    for each in ("etc/claude-code", "Library/Application Support/ClaudeCode"):
        files.append((context.root / each / "managed-settings.json", None))
    for decision in (_DENY, _ASK):
        for path, project in _once(files):
            for pattern in strings(mapping(_read(path).get("permissions")).get(decision)):
                if pattern.startswith("mcp__") and "(" not in pattern:
                    whole = pattern if "__" in pattern[5:] else f"{pattern}__*"
                    yield ToolPermission(
                        decision, whole, path, project, lambda server: f"mcp__{_word(server)}__"
                    )


def _cursor(editor: EditorSpec, context: UserContext) -> Iterator[ToolPermission]:
    """Cursor: what its CLI denies."""
    files: list[tuple[Path, Path | None]] = [(context.home / ".cursor/cli-config.json", None)]
    files += [(each / ".cursor/cli.json", each) for each in context.project_directories()]
    for path, project in _once(files):
        for text in strings(mapping(_read(path).get("permissions")).get("deny")):
            if inner := re.fullmatch(r"Mcp\((.+:.+)\)", text):
                yield ToolPermission(_DENY, inner[1], path, project, lambda server: f"{server}:")


def _gemini(editor: EditorSpec, context: UserContext) -> Iterator[ToolPermission]:
    """Gemini CLI: its policies, of the system before the user's before a project's, by priority."""
    places: list[tuple[Path, Path | None]] = [
        (context.root / "etc/gemini-cli/policies", None),
        (context.home / ".gemini/policies", None),
        *((each / ".gemini/policies", each) for each in context.project_directories()),
    ]
    for directory, project in _once(places):
        files = sorted(directory.glob("*.toml"))
        found = [(rule, path) for path in files for rule in objects(_read(path).get("rule"))]
        for rule, path in sorted(found, key=lambda one: -_priority(one[0])):
            if not any(rule.get(key) not in (None, []) for key in _CONDITIONS):
                yield from _of_gemini(rule, path, project)


def _of_gemini(rule: Fields, path: Path, project: Path | None) -> Iterator[ToolPermission]:
    decision, server = _DECISIONS.get(str(rule.get("decision"))), rule.get("mcpName")
    names = rule.get("toolName", "*")
    for tool in [names] if isinstance(names, str) else strings(names):
        if decision is not None and isinstance(server, str):
            yield ToolPermission(decision, f"{server}:{tool}", path, project, lambda name: f"{name}:")
        elif decision is not None and server is None and tool.startswith(("mcp_", "*")):
            yield ToolPermission(decision, tool, path, project, lambda name: f"mcp_{name}_")


def _opencode(editor: EditorSpec, context: UserContext) -> Iterator[ToolPermission]:
    """opencode: the last rule that matches decides. Its former `tools` say `true` or `false`."""
    for path, project, settings in _main_files(editor, context):
        permission = settings.get("permission")
        rules: list[tuple[str, object]] = [
            (str(tool), _ALLOW if on is True else _DENY)
            for tool, on in mapping(settings.get("tools")).items()
            if isinstance(on, bool)
        ]
        rules += [("*", permission)] if isinstance(permission, str) else mapping(permission).items()
        for pattern, action in reversed(rules):
            word = action.get("*") if isinstance(action, Mapping) and len(action) == 1 else action
            decision = _DECISIONS.get(word) if isinstance(word, str) else None
            if decision is not None:
                yield ToolPermission(decision, pattern, path, project, lambda server: f"{_word(server)}_")


def _zed(editor: EditorSpec, context: UserContext) -> Iterator[ToolPermission]:
    """Zed: a default for each tool, and one for all."""
    for path, project, settings in _main_files(editor, context):
        permissions = mapping(mapping(settings.get("agent")).get("tool_permissions"))
        rules = [
            (str(name), mapping(rule).get("default"))
            for name, rule in mapping(permissions.get("tools")).items()
            if str(name).startswith("mcp:")
        ]
        for pattern, word in [*rules, ("*", permissions.get("default"))]:
            decision = _DECISIONS.get(str(word))
            if decision is not None and (pattern, decision) != ("*", _ASK):  # Zed asks by itself
                yield ToolPermission(decision, pattern, path, project, lambda server: f"mcp:{server}:")


def _goose(editor: EditorSpec, context: UserContext) -> Iterator[ToolPermission]:
    path = context.config / "goose" / "permission.yaml"
    lists = mapping(_read(path).get("user"))
    for key, decision in (("never_allow", _DENY), ("ask_before", _ASK)):
        for name in strings(lists.get(key)):
            yield ToolPermission(decision, name, path, None, lambda server: f"{_word(server).lower()}__")


def _amp(editor: EditorSpec, context: UserContext) -> Iterator[ToolPermission]:
    for path, project, settings in _main_files(editor, context):
        for rule in objects(settings.get("amp.permissions")):
            decision, tool = _DECISIONS.get(str(rule.get("action"))), rule.get("tool")
            if decision is not None and isinstance(tool, str) and not rule.get("matches"):
                yield ToolPermission(decision, tool, path, project, lambda server: f"mcp__{_word(server)}__")


def _vibe(editor: EditorSpec, context: UserContext) -> Iterator[ToolPermission]:
    for path, project, settings in _main_files(editor, context):
        for tool, rule in mapping(settings.get("tools")).items():
            if decision := _DECISIONS.get(str(mapping(rule).get("permission"))):
                yield ToolPermission(decision, str(tool), path, project, lambda server: f"{server}_")


_READERS: Mapping[str, Callable[[EditorSpec, UserContext], Iterator[ToolPermission]]] = {
    "claude-code": _claude_code,
    "cursor": _cursor,
    "gemini": _gemini,
    "opencode": _opencode,
    "zed": _zed,
    "goose": _goose,
    "amp": _amp,
    "vibe": _vibe,
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

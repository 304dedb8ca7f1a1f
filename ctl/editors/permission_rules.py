"""What editors deny and ask about, as rules for `settings.policies`.

What an editor allows is not imported, and neither is what depends on arguments or modes: mcpd's rules would
allow more than the editor did.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from fnmatch import fnmatchcase
from pathlib import Path
from typing import NamedTuple

import attrs

from ctl.cli.json_text import mapping, objects, strings
from ctl.daemon.client import Json
from ctl.editors.config_files import BY_NAME, EditorSpec, UserContext, find_editor_files
from mcpd.config.in_place_edits.document import read_document
from mcpd.model.errors import BadSpec
from mcpd.model.text import shorten

Fields = Mapping[str, object]
_ALLOW, _ASK, _DENY = "allow", "ask", "deny"
_LEVELS = {_DENY: 0, _ASK: 1, _ALLOW: 2}
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
    prefix: str = ""
    """What comes before the tool in `pattern`, with the name of the server as `{server}`, or as `{word}` or
    `{lower}` if editors change it."""

    def tools_of(self, server: str) -> tuple[str, ...]:
        """Return patterns for the tools of a server that it is about, and nothing if there are none."""
        if not self.prefix or len(self.pattern) > _MAX_PATTERN:
            return (self.pattern,) if self.pattern else ()
        word = re.sub(r"[^A-Za-z0-9_-]", "_", server)
        return tools_after(self.pattern, self.prefix.format(server=server, word=word, lower=word.lower()))

    def named_servers(self) -> list[tuple[str, str]]:
        """Return the server that the pattern names, if that is certain: as an entry, and in mcpd."""
        form = re.escape(self.prefix).replace(r"\{word\}", "(.+?)").replace(r"\{server\}", "([^:]+)")
        found = re.fullmatch(f"{form}.+", self.pattern) if self.prefix.endswith(("__", ":")) else None
        name = found[1] if found and found.groups() else ""
        return [(name, name)] if re.fullmatch(r"[A-Za-z0-9_.-]+", name) else []


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
    twin_of: str = ""
    """The server that the editor names, if this rule is about the same program under another name."""

    def describe(self, context: UserContext) -> str:
        """Return the rule in one line."""
        decision, tools = str(self.rule["decision"]), strings(self.rule["tools"])
        what = "all tools" if tools == ["*"] else ", ".join(tools)
        where = ", ".join(context.display_path(Path(each)) for each in strings(self.rule.get("directories")))
        servers = ", ".join(strings(self.rule["servers"]))
        about = f"{'ask about' if decision == _ASK else decision} {what} of {servers}"
        twin = f", the same program as {self.twin_of}" if self.twin_of else ""
        return f"{about}{f' in {where}' if where else ''}{twin}"

    def to_json(self) -> Json:
        return {"rule": dict(self.rule), "paths": list(map(str, self.paths))}


@attrs.define
class EditorRules:
    """What editors deny and ask about."""

    found: dict[ImportedRule, Path] = attrs.field(factory=dict)
    """Each with the file that says so."""
    skipped: list[str] = attrs.field(factory=list)
    """Notes about what cannot be a rule."""
    twin_of: dict[ImportedRule, str] = attrs.field(factory=dict)
    """The rules of `add_twins`, each with the server that the editor names."""

    def add(
        self,
        editor: EditorSpec,
        entries: Iterable[tuple[str, str]],
        permissions: Sequence[ToolPermission],
        context: UserContext,
        of_mcpd: Collection[str] = (),
    ) -> None:
        """Add permissions, of which the first that matches decides.

        `entries`: the names of entries, and of their servers in mcpd, which may be added there later.
        `of_mcpd`: the names of mcpd's own entries, about whose tools there can be no rule.
        """
        known = dict.fromkeys(entries)
        for one in permissions:  # its server may be added to mcpd later
            if one.decision == _DENY and not any(one.tools_of(entry) for entry, _ in known):
                known |= {each: None for each in one.named_servers() if each[0] not in of_mcpd}
        for entry, server in known:
            for one in permissions:
                tools = one.tools_of(entry)
                if one.decision == _ALLOW and "*" in tools and one.project is None:
                    break  # nothing after it has an effect
                for tool in map(_as_pattern, tools) if one.decision != _ALLOW else ():
                    directory = "" if one.project is None else _as_pattern(str(one.project))
                    why = _why_not(tool, directory)
                    if why:
                        what = f"{one.decision} {shorten(tool, 80)} of {server}"
                        note = f"{editor.title}: {what}: {why} ({context.display_path(one.path)})"
                        self.skipped += [note] if note not in self.skipped else []
                    else:
                        rule = ImportedRule(one.decision, editor.name, server, tool, directory)
                        self.found.setdefault(rule, one.path)

    def add_twins(
        self,
        policies: Sequence[object],
        path: Path,
        twins_for: Callable[[str, str], Iterable[str]],
        new_servers: Collection[str],
    ) -> None:
        """Add each rule for the servers that are the same program under another name, which the editor could
        not use before. Rules that an earlier import wrote are added for new servers only.

        `policies`: the rules in the file at `path`. `twins_for`: such servers, for an editor and a server.
        """
        written = (each for each in policies if _strictness(each) is not None)
        present = frozenset[ImportedRule]().union(*map(parts_of, written))
        for one, origin in [*self.found.items(), *((each, path) for each in sorted(present))]:
            for twin in twins_for(one.editor, one.server):
                rule = one._replace(server=twin)
                if rule not in self.found and (one not in present or twin in new_servers):
                    self.found[rule], self.twin_of[rule] = origin, one.server

    def new_rules(self, policies: Sequence[object]) -> list[NewRule]:
        """Return the rules that `policies`, the rules in the file, do not contain yet.

        The user's own rules stay first. A rule is inserted before the imported ones that are less strict.
        """
        present = frozenset[ImportedRule]().union(*map(parts_of, policies))
        groups: dict[tuple[str, ...], dict[ImportedRule, Path]] = {}
        for one, path in self.found.items():
            if one not in present:
                groups.setdefault((one.decision, one.editor, one.server, one.directory), {})[one] = path
        imported = [_strictness(rule) for rule in policies]
        result: list[NewRule] = []
        for (decision, editor, *_), parts in sorted(groups.items(), key=lambda each: _LEVELS[each[0][0]]):
            level, title = _LEVELS[decision], BY_NAME[editor].title
            looser = (n for n, other in enumerate(imported) if other is not None and other > level)
            index = next(looser, len(imported))
            paths = tuple(dict.fromkeys(parts.values()))
            twin_of = self.twin_of.get(next(iter(parts)), "")
            result.append(NewRule(_written(list(parts), title), index, title, paths, twin_of))
            imported.insert(index, level)
        return result


def _as_pattern(name: str) -> str:
    """Return a pattern that also matches this name, which may contain brackets."""
    return re.sub(r"[\[\]]", "?", name)


def _why_not(tool: str, directory: str) -> str:
    """Return why there can be no rule about a tool; empty if there can."""
    is_possible = len(tool) <= _MAX_PATTERN and f"{tool}{directory}".isprintable()
    return "" if is_possible else "a rule cannot contain this name"


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
    return _LEVELS.get(str(fields.get("decision"))) if is_imported else None


def _written(parts: Sequence[ImportedRule], title: str) -> dict[str, object]:
    first = parts[0]
    return {
        "decision": first.decision,
        "clients": list(_CLIENT_NAMES.get(first.editor, (first.editor,))),
        "servers": [first.server],
        "tools": [one.tool for one in parts],
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
    found: list[ToolPermission] = []
    if editor.name in _SETTINGS:
        for path, project, settings in _settings_files(editor, context):
            for word, pattern, prefix in _SETTINGS[editor.name](settings):
                if decision := _DECISIONS.get(word):
                    found.append(ToolPermission(decision, pattern, path, project, prefix))
    return found


Words = Iterator[tuple[str, str, str]]
"""An editor's word for a decision, the pattern, and what comes before the tool in it."""


def _claude_code(settings: Fields) -> Words:
    """Claude Code: deny before ask (Claude Code docs, permissions). Rules about arguments are left out."""
    for word in (_DENY, _ASK):
        for pattern in strings(mapping(settings.get("permissions")).get(word)):
            if pattern.startswith("mcp__") and "(" not in pattern:
                whole = pattern if "__" in pattern[5:] else f"{pattern}__*"
                yield word, whole, "mcp__{word}__"


def _cursor(settings: Fields) -> Words:
    """Cursor: what its CLI denies."""
    for text in strings(mapping(settings.get("permissions")).get("deny")):
        if inner := re.fullmatch(r"Mcp\((.+:.+)\)", text):
            yield _DENY, inner[1], "{server}:"


def _gemini(settings: Fields) -> Words:
    """Gemini CLI: its policies, by priority."""
    for rule in sorted(objects(settings.get("rule")), key=_priority, reverse=True):
        word, server, names = str(rule.get("decision")), rule.get("mcpName"), rule.get("toolName", "*")
        if any(rule.get(key) not in (None, []) for key in _CONDITIONS):
            continue
        for tool in [names] if isinstance(names, str) else strings(names):
            if isinstance(server, str):
                yield word, f"{server}:{tool}", "{server}:"
            elif server is None and tool.startswith(("mcp_", "*")):
                yield word, tool, "mcp_{server}_"


def _opencode(settings: Fields) -> Words:
    """opencode: the last rule that matches decides. Its former `tools` say `true` or `false`."""
    permission = settings.get("permission")
    rules: list[tuple[str, object]] = [
        (tool, _ALLOW if on else _DENY)
        for tool, on in mapping(settings.get("tools")).items()
        if isinstance(on, bool)
    ]
    rules += [("*", permission)] if isinstance(permission, str) else mapping(permission).items()
    for pattern, action in reversed(rules):
        word = action.get("*") if isinstance(action, Mapping) and len(action) == 1 else action
        yield str(word), str(pattern), "{word}_"


def _zed(settings: Fields) -> Words:
    """Zed: a default for each tool, and one for all. It asks by itself."""
    permissions = mapping(mapping(settings.get("agent")).get("tool_permissions"))
    for name, rule in mapping(permissions.get("tools")).items():
        if str(name).startswith("mcp:"):
            yield str(mapping(rule).get("default")), str(name), "mcp:{server}:"
    if permissions.get("default") == "deny":
        yield "deny", "*", "mcp:{server}:"


def _goose(settings: Fields) -> Words:
    lists = mapping(settings.get("user"))
    for key, word in (("never_allow", _DENY), ("ask_before", _ASK)):
        for name in strings(lists.get(key)):
            yield word, name, "{lower}__"


def _amp(settings: Fields) -> Words:
    for rule in objects(settings.get("amp.permissions")):
        if isinstance(rule.get("tool"), str) and not rule.get("matches"):
            yield str(rule.get("action")), str(rule["tool"]), "mcp__{word}__"


def _vibe(settings: Fields) -> Words:
    for tool, rule in mapping(settings.get("tools")).items():
        yield str(mapping(rule).get("permission")), str(tool), "{server}_"


_SETTINGS: Mapping[str, Callable[[Fields], Words]] = {
    "claude-code": _claude_code,
    "cursor": _cursor,
    "gemini": _gemini,
    "opencode": _opencode,
    "zed": _zed,
    "goose": _goose,
    "amp": _amp,
    "vibe": _vibe,
}


def _settings_files(editor: EditorSpec, context: UserContext) -> Iterator[tuple[Path, Path | None, Fields]]:
    """Yield the files with the permissions of an editor: those of the user, and those of the project."""
    home, projects = context.home, context.project_directories()
    places: list[tuple[Path, str, Path | None]] = []
    match editor.name:
        case "claude-code":
            places.append((context.claude, "settings.json", None))
            for name in ("settings.json", "settings.local.json"):
                places += [(each, f".claude/{name}", each) for each in projects]
            for name in ("etc/claude-code", "Library/Application Support/ClaudeCode"):
                places.append((context.root, f"{name}/managed-settings.json", None))
        case "cursor":
            places.append((home, ".cursor/cli-config.json", None))
            places += [(each, ".cursor/cli.json", each) for each in projects]
        case "gemini":
            places.append((context.root, "etc/gemini-cli/policies/*.toml", None))
            places.append((home, ".gemini/policies/*.toml", None))
            places += [(each, ".gemini/policies/*.toml", each) for each in projects]
        case "goose":
            places.append((context.config, "goose/permission.yaml", None))
    found: dict[Path, Path | None] = {}
    for directory, pattern, project in places:
        for path in sorted(directory.glob(pattern)):
            found.setdefault(path, project)  # in the home directory, those of the project are the user's
    if not places:
        found = {each.path: each.project for each in find_editor_files((editor,), context)}
    for path, project in found.items():
        with suppress(BadSpec):  # the editor reports it
            yield path, project, read_document(path, foreign=True).value


def _priority(rule: Fields) -> float:
    value = rule.get("priority")
    return float(value) if isinstance(value, (int, float)) else 0.0

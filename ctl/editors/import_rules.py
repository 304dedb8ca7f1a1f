"""Converts the permissions of editors to rules for `settings.policies`, and finds those that are new."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

import attrs

from ctl.cli.json_text import mapping, strings
from ctl.daemon.client import Json
from ctl.editors.discovery import EntrySource
from ctl.editors.editor_catalog import BY_NAME
from ctl.editors.editor_paths import UserContext
from ctl.editors.tool_permissions import ToolPermission, editor_permissions
from mcpd.config.policy_rules import MAX_RULES
from mcpd.model.policy import HINTS
from mcpd.model.text import shorten

_CLIENT_NAMES = {
    "vscode": ("vscode", "Visual Studio Code"),
    "vscode-insiders": ("vscode-insiders", "Visual Studio Code - Insiders"),
}
"""The names of clients that may connect without `mcpctl bridge --client`."""
_MAX_PATTERN = 500
"""Characters. No tool has a longer name."""
_MEMBERS = frozenset(("decision", "clients", "servers", "tools", "directories", "annotations", "reason"))
_IMPORTED = "imported from "
_WRITES = {"readOnlyHint": False}
assert set(_WRITES) <= set(HINTS)


class RuleAtom(NamedTuple):
    """The smallest part of a rule: what holds for one editor and one pattern of tools of one server."""

    decision: str
    editor: str
    server: str
    """The name in mcpd."""
    tool: str
    directory: str = ""
    writes_only: str = ""
    """`yes`, or empty."""


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
    atoms: tuple[RuleAtom, ...]

    def describe(self, context: UserContext) -> str:
        """Return the rule in one line."""
        decision, servers = str(self.rule["decision"]), ", ".join(strings(self.rule["servers"]))
        decision = "ask about" if decision == "ask" else decision
        tools = strings(self.rule["tools"])
        what = "all tools" if tools == ["*"] else ", ".join(tools)
        what += " if they may change something" if "annotations" in self.rule else ""
        where = ", ".join(context.display_path(Path(each)) for each in strings(self.rule.get("directories")))
        return f"{decision} {what} of {servers}{f' in {where}' if where else ''}"

    def to_json(self) -> Json:
        return {"rule": dict(self.rule), "paths": [str(path) for path in self.paths]}


@attrs.frozen
class EditorRules:
    """What the editors allow, ask about and deny, in the order in which the first that matches decides."""

    found: tuple[tuple[RuleAtom, Path], ...] = ()
    skipped: tuple[str, ...] = ()
    """Notes about what cannot be a rule."""

    def new_rules(
        self,
        servers: Iterable[str],
        policies: Sequence[object],
        imported: Iterable[RuleAtom],
        same: Mapping[str, str],
    ) -> list[NewRule]:
        """Return the rules for `servers` that `policies`, the rules in the file, do not contain yet.

        What was `imported` before is not returned again, because the user may have deleted it. A new rule
        comes after the user's own rules. If it has to come before an imported one of the same editor, it is
        inserted there. `same`: server → the one that is used instead.
        """
        chosen, before = set(servers), set(imported)
        used: dict[RuleAtom, Path] = {}
        for atom, path in self.found:
            used.setdefault(atom._replace(server=same.get(atom.server, atom.server)), path)
        wanted = [(atom, path) for atom, path in used.items() if atom.server in chosen]
        current = [atoms_of(rule) for rule in policies]
        ours = [
            bool(there) and (there <= before or _is_marked(rule))
            for rule, there in zip(policies, current, strict=True)
        ]
        present = before.union(*current)
        result: list[NewRule] = []
        at = 0
        while at < len(wanted):
            first, end = wanted[at][0], at
            while end < len(wanted) and _segment(wanted[end][0]) == _segment(first):
                end += 1
            later = {atom for atom, _ in wanted[end:]}
            for atoms, paths in _grouped(
                (atom, path) for atom, path in wanted[at:end] if atom not in present
            ):
                index = next(
                    (
                        number
                        for number, there in enumerate(current)
                        if ours[number] and not there.isdisjoint(later)
                    ),
                    len(current),
                )
                title = BY_NAME[first.editor].title
                result.append(NewRule(_written(atoms, title), index, title, paths, atoms))
                current.insert(index, frozenset(atoms))
                ours.insert(index, False)
            at = end
        return result if len(current) <= MAX_RULES else []


NO_RULES = EditorRules()


def read_rules(
    names: Mapping[EntrySource, str],
    in_entries: Mapping[EntrySource, Sequence[ToolPermission]],
    editors: Iterable[str],
    context: UserContext,
) -> EditorRules:
    """Return the permissions in the settings of `editors`, and those in entries.

    `names`: entry → name of its server in mcpd.
    """
    found: dict[RuleAtom, Path] = {}
    skipped: dict[str, None] = {}
    chosen = frozenset(editors)
    for editor in dict.fromkeys(source.editor for source in names):
        if editor not in BY_NAME or BY_NAME[editor].entry_form is None:
            continue  # it cannot use mcpd
        sources = [source for source in names if source.editor == editor]
        settings = editor_permissions(BY_NAME[editor], context) if editor in chosen else []
        pairs = [(source, one) for one in settings for source in sources]
        pairs += [(source, one) for source in sources for one in in_entries.get(source, ())]
        for source, one in pairs:
            directory = "" if one.project is None else str(one.project)
            usable = len(one.pattern) <= _MAX_PATTERN and not re.search(r"[*?\[\]]", directory)
            for tool in one.tools_of(source.name) if usable else (one.pattern,):
                if usable and tool and not re.search(r"[\[\]]", tool) and f"{tool}{directory}".isprintable():
                    writes = "yes" if one.writes_only else ""
                    atom = RuleAtom(one.decision, editor, names[source], tool, directory, writes)
                    found.setdefault(atom, one.path)
                elif tool:
                    what = f"{one.decision} {shorten(tool, 80)} of {names[source]}"
                    why = "a rule cannot contain this name"
                    skipped[f"{what}: {why} ({context.display_path(one.path)})"] = None
    return EditorRules(tuple(found.items()), tuple(skipped))


def atoms_of(rule: object) -> frozenset[RuleAtom]:
    """Return the parts of a rule in the file; nothing if an import could not have written it."""
    fields = mapping(rule)
    hints = fields.get("annotations")
    if not {"decision", "clients", "servers", "tools"} <= fields.keys() <= _MEMBERS:
        return frozenset()
    if hints not in (None, _WRITES):
        return frozenset()
    return frozenset(
        RuleAtom(str(fields["decision"]), client, server, tool, directory, "yes" if hints else "")
        for client in strings(fields["clients"])
        if client in BY_NAME
        for server in strings(fields["servers"])
        for tool in strings(fields["tools"])
        for directory in (strings(fields.get("directories")) or [""])
    )


def _is_marked(rule: object) -> bool:
    return str(mapping(rule).get("reason", "")).startswith(_IMPORTED)


def _segment(atom: RuleAtom) -> tuple[str, str]:
    """Return what rules have in common whose order does not matter."""
    return atom.editor, atom.decision


def _grouped(
    found: Iterable[tuple[RuleAtom, Path]],
) -> Iterator[tuple[tuple[RuleAtom, ...], tuple[Path, ...]]]:
    """Group parts with the same decision: first the tools of each server, then servers with equal tools."""
    by_server: dict[tuple[str, str, str], dict[RuleAtom, Path]] = {}
    for atom, path in found:
        by_server.setdefault((atom.server, atom.directory, atom.writes_only), {})[atom] = path
    by_tools: dict[tuple[object, ...], dict[RuleAtom, Path]] = {}
    for (_, directory, writes_only), atoms in by_server.items():
        tools = tuple(sorted(atom.tool for atom in atoms))
        by_tools.setdefault((directory, writes_only, tools), {}).update(atoms)
    for group in by_tools.values():
        yield tuple(group), tuple(dict.fromkeys(group.values()))


def _written(atoms: Sequence[RuleAtom], title: str) -> dict[str, object]:
    first = atoms[0]
    rule: dict[str, object] = {
        "decision": first.decision,
        "clients": list(_CLIENT_NAMES.get(first.editor, (first.editor,))),
        "servers": list(dict.fromkeys(atom.server for atom in atoms)),
        "tools": list(dict.fromkeys(atom.tool for atom in atoms)),
    }
    if first.directory:
        rule["directories"] = [first.directory]
    if first.writes_only:
        rule["annotations"] = dict(_WRITES)
    return rule | {"reason": f"{_IMPORTED}{title}"}

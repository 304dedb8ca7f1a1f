"""Plans an import (what can be imported, with which secrets) and writes it."""

from __future__ import annotations

import functools
import os
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from pathlib import Path
from types import NoneType

import attrs

from ctl.cli.errors import DaemonError
from ctl.cli.invocation import CliContext
from ctl.cli.json_text import objects
from ctl.editors.backup import EditorBackups
from ctl.editors.discovery import DiscoveredEntries, EntrySource, unwrap_candidate
from ctl.editors.import_drift import ImportDrift, ServerUpdate, compare_with_history, lift_update_secrets
from ctl.editors.import_history import ImportedEntry, ImportHistory, entry_key
from ctl.editors.import_rules import NO_RULES, EditorRules, NewRule, RuleAtom
from ctl.editors.import_target import ImportTarget, find_problems, read_definitions
from ctl.editors.inline_secrets import LiftedDefinition, free_secret_name, lift_secrets
from ctl.editors.merging import (
    MergedServer,
    MergeResult,
    fill_in_secrets,
    for_all_editors,
    merge_candidates,
    notes_about_filters,
    replace_text,
)
from ctl.editors.missing_variables import ask_for_missing_variables
from ctl.editors.needed_secrets import SecretNames, names_used
from ctl.editors.similar_servers import SimilarServer, find_similar
from ctl.editors.tool_filters import note_about, note_about_ours, unlike_ours
from ctl.editors.tool_permissions import ToolPermission
from ctl.editors.variables import NeededSecret, secret_reference
from mcpd.config.definition_view import is_enabled
from mcpd.config.edit_config_file import put_servers
from mcpd.config.secret_store import change_secrets, read_secrets
from mcpd.model.errors import BadSpec, CannotWrite
from mcpd.support.atomic_files import write_atomically

Definition = dict[str, object]
ImportNames = Mapping[EntrySource, str]
"""Entry → name of its server in mcpd."""

EntryPermissions = Mapping[EntrySource, Sequence[ToolPermission]]
_REMOVED = "it was imported before and then removed from mcpd"


@attrs.frozen
class ImportPlan:
    """Everything that can be imported, before the user decides."""

    merged: MergeResult
    drift: ImportDrift
    lifted: Mapping[str, LiftedDefinition]
    """Server → definition with references in place of inline secrets."""
    blocked: Mapping[str, str]
    """Server → why it cannot be imported now."""
    stored: Mapping[str, str] = attrs.field(repr=False)
    """The stored secrets."""

    discovered: DiscoveredEntries
    similar: Mapping[str, SimilarServer] = attrs.field(factory=dict)
    """Server → one that it is probably the same as, although the definitions differ."""
    asked: frozenset[str] = frozenset()
    """Servers in which a secret replaces an environment variable that mcpd does not have."""
    known_notes: Mapping[EntrySource, tuple[str, ...]] = attrs.field(factory=dict)
    """Entries of servers that mcpd has, and what differs in them and does not apply."""
    rules: EditorRules = NO_RULES
    """The permissions of the editors."""
    policies: Sequence[object] = ()
    """The rules in mcpd's file."""
    imported_rules: frozenset[RuleAtom] = frozenset()
    unwrapped: frozenset[EntrySource] = frozenset()
    """Entries that are imported without their `mcp-remote`."""

    @property
    def new_servers(self) -> list[MergedServer]:
        """Return the servers that can be added."""
        return [server for server in self.merged.servers if server.name not in self.blocked]

    @property
    def updates(self) -> list[ServerUpdate]:
        """Return the servers that can be updated."""
        return [one for one in self.drift.updates if one.server.name not in self.blocked]

    def new_rules(self, added: Iterable[str], same: Mapping[str, str]) -> list[NewRule]:
        """Return the rules to add for the servers in mcpd and those to be `added`."""
        updated = (one.server.name for one in self.drift.updates)
        servers = {*added, *updated, *same.values(), *(name for name, _ in self.merged.known)}
        return self.rules.new_rules(servers, self.policies, self.imported_rules, same)

    def missing_secrets(self, server: MergedServer) -> list[NeededSecret]:
        """Return the secrets that a server needs and only the user knows."""
        return [one for one in server.needed_secrets if one.value is None and one.name not in self.stored]


@attrs.define
class ImportResult:
    """What to write."""

    definitions: dict[str, Definition] = attrs.field(factory=dict)
    replaced: dict[str, Mapping[str, object]] = attrs.field(factory=dict)
    """The current definitions of the servers that are updated."""
    secrets: dict[str, str] = attrs.field(factory=dict, repr=False)
    rules: Sequence[NewRule] = ()
    origins: dict[str, str] = attrs.field(factory=dict)
    """Where the secrets come from → their names."""
    same: Mapping[str, str] = attrs.field(factory=dict)
    """Servers that are not imported, because the user has said that they are another one."""


def plan_import(
    cli: CliContext,
    target: ImportTarget,
    discovered: DiscoveredEntries,
    history: ImportHistory,
    *,
    disabled: bool,
    unfold: bool,
    can_ask: bool,
    named: Collection[str],
    read_permissions: Callable[[ImportNames, EntryPermissions], EditorRules] | None = None,
) -> ImportPlan:
    """Plan an import. Raises DaemonError if the secrets are unreadable.

    Servers that need a secret or a decision are blocked unless `can_ask`; `named` servers need no decision.
    `read_permissions` returns the permissions for entries with these names in mcpd.
    """
    try:
        stored = read_secrets(os.environ)
    except BadSpec as error:
        raise DaemonError({"message": f"{error.source} cannot be used", "data": error.data()}) from None
    discovered, without = _unwrap_proxies(discovered, history, unfold)
    drift = compare_with_history(
        discovered, history, target.servers, os.environ, _disabled_by_us(EditorBackups(os.environ))
    )
    merged = merge_candidates(
        drift.remaining,
        target.servers,
        os.environ,
        lambda one: len(lift_secrets("x", one.definition, {}).secrets),
    )
    merged = attrs.evolve(merged, known=(*drift.known, *merged.known))
    if disabled:
        off = [attrs.evolve(one, definition={**one.definition, "enabled": False}) for one in merged.servers]
        merged = attrs.evolve(merged, servers=tuple(off))
    secret_names = dict(stored)
    servers = [*merged.servers, *(one.server for one in drift.updates)]

    def check(some: Sequence[MergedServer]) -> dict[str, str]:
        return find_problems(cli, target, {server.name: _with_placeholders(server) for server in some})

    blocked, asked = check(servers), frozenset[str]()
    if can_ask:
        new, blocked, asked = ask_for_missing_variables(merged.servers, blocked, check)
        merged = attrs.evolve(merged, servers=tuple(new))
    else:
        left = ask_for_missing_variables(merged.servers, blocked, check)[1]
        asks = "mcpctl import in a terminal without --yes asks for it"
        blocked = {name: why if name in left else f"{why}; {asks}" for name, why in blocked.items()}
    names = SecretNames(secret_names, history.secrets, names_used(target.servers.values()))
    merged = attrs.evolve(merged, servers=tuple(map(names.in_server, merged.servers)))
    drift.updates = list(map(names.in_update, drift.updates))
    servers = [*merged.servers, *(one.server for one in drift.updates)]
    lifted = {
        server.name: lift_secrets(server.name, server.definition, secret_names) for server in merged.servers
    }
    lifted |= {one.server.name: lift_update_secrets(one, secret_names) for one in drift.updates}
    similar = find_similar(merged.servers, target.servers, os.environ)
    notes = _known_notes(discovered, merged, drift, target)
    result = ImportPlan(
        merged,
        drift,
        lifted,
        blocked,
        stored,
        discovered,
        similar,
        asked,
        notes,
        unwrapped=without,
        imported_rules=frozenset(history.rules),
    )
    if read_permissions is not None and isinstance(target.policies, (list, NoneType)):
        found = {source: server.name for server in servers for source in server.sources}
        found |= {source: name for name, source in merged.known}
        in_entries = {one.source: one.permissions for one in discovered.candidates}
        rules = read_permissions(found, in_entries)
        result = attrs.evolve(result, rules=rules, policies=target.policies or [])
    if can_ask:
        noted = (
            attrs.evolve(one, notes=(*one.notes, _REMOVED)) if _was_removed(one, drift) else one
            for one in merged.servers
        )
        return attrs.evolve(result, merged=attrs.evolve(merged, servers=tuple(noted)))
    for server in servers:
        missing = [one.name for one in result.missing_secrets(server)]
        if missing:
            reason = f"it needs a secret that only you know: {', '.join(missing)}"
            blocked.setdefault(
                server.name, f"{reason}; run mcpctl import in a terminal without --yes to enter it"
            )
    conflicts = {one.server.name: "; ".join(one.conflicts) for one in drift.updates if one.conflicts}
    conflicts |= {one.name: _REMOVED for one in merged.servers if _was_removed(one, drift)}
    for name, reason in conflicts.items():  # mcpd or another editor has a different definition
        if name not in named:
            blocked.setdefault(name, f"{reason}; mcpctl import --server {name} --yes imports it anyway")
    return result


def _known_notes(
    discovered: DiscoveredEntries, merged: MergeResult, drift: ImportDrift, target: ImportTarget
) -> dict[EntrySource, tuple[str, ...]]:
    """Return notes about lists of tools that do not apply, and about servers that are off in mcpd only."""
    filters = _unused_filters(merged, drift, target)
    on = {one.source for one in discovered.candidates if is_enabled(one.definition)}
    notes: dict[EntrySource, tuple[str, ...]] = {}
    for name, source in merged.known:
        is_off = source in on and not is_enabled(target.servers[name]) and source not in drift.changed_here
        off = f"it is enabled in {source.title}, but disabled in mcpd; to use it: mcpctl enable {name}"
        notes[source] = tuple(note for note in (off if is_off else "", filters.get(source, "")) if note)
    return notes


def _unused_filters(merged: MergeResult, drift: ImportDrift, target: ImportTarget) -> dict[EntrySource, str]:
    """Return a note for each known entry whose editor has no profile of its own, which would keep them."""
    own_files = {each.path for each in EditorBackups(os.environ).kept_profiles()}
    return {
        source: note
        for name, source in merged.known
        if (source.scope == "project" or source.editor not in target.profiles)
        and str(source.path) not in own_files
        and (filters := unlike_ours(drift.definitions[source], target.servers[name]))
        and (note := note_about(filters, source.editor, source.title, source.scope))
    }


def _was_removed(server: MergedServer, drift: ImportDrift) -> bool:
    return any(source in drift.removed for source in server.sources)


def _unwrap_proxies(
    discovered: DiscoveredEntries, history: ImportHistory, unfold: bool
) -> tuple[DiscoveredEntries, frozenset[EntrySource]]:
    """Unwrap all candidates if `unfold`, otherwise those that were imported unwrapped before."""
    unwrapped_sources: set[EntrySource] = set()
    candidates = []
    for one in discovered.candidates:
        imported = history.get(one.source)
        if unfold or (imported is not None and imported.unfolded):
            unwrapped = unwrap_candidate(one)
            if unwrapped is not one:
                unwrapped_sources.add(one.source)
            one = unwrapped
        candidates.append(one)
    return attrs.evolve(discovered, candidates=candidates), frozenset(unwrapped_sources)


def _disabled_by_us(backups: EditorBackups) -> Callable[[EntrySource], bool]:
    @functools.cache
    def names(path: Path) -> frozenset[str]:
        record = backups.load(path)
        return frozenset(one.name for one in record.disabled) if record is not None else frozenset()

    return lambda source: source.name in names(source.path)


def name_secrets_again(plan: ImportPlan, servers: Sequence[MergedServer]) -> ImportPlan:
    """Return the plan with the secrets in the definitions of these servers named as if there were no others.

    Servers that were not chosen, or that are the same as another one, need no names.
    """
    taken = dict(plan.stored)
    for server in servers:
        for one in server.needed_secrets:
            taken.setdefault(one.name, f"\0{one.origin}" if one.value is None else one.value)
    updates = {one.server.name: one for one in plan.drift.updates}
    lifted = dict(plan.lifted)
    for server in servers:
        update = updates.get(server.name)
        lifted[server.name] = (
            lift_secrets(server.name, server.definition, taken)
            if update is None
            else lift_update_secrets(update, taken)
        )
    return attrs.evolve(plan, lifted=lifted)


def build_result(
    plan: ImportPlan, servers: Sequence[MergedServer], answers: Mapping[str, str], *, keep: bool
) -> ImportResult:
    """Return what to write for the chosen servers.

    `answers`: the secrets that the user entered, by name. `keep`: secrets stay in the definitions.
    """
    result = ImportResult()
    secret_names = dict(plan.stored)
    for server in servers:
        definition = server.definition
        if not keep:
            definition = plan.lifted[server.name].definition
            for literal in plan.lifted[server.name].secrets:
                secret_names[literal.name] = result.secrets[literal.name] = literal.value
                result.origins[f"{server.sources[0].path} {server.name} {literal.location}"] = literal.name
        for one in server.needed_secrets:
            value = answers.get(one.name) if one.value is None else one.value
            old = secret_reference(one.name)
            if value is None:  # it is stored already
                result.origins[one.origin] = one.name
                continue
            if keep:
                definition = replace_text(definition, old, value.replace("${", "$${"))
                continue
            name = free_secret_name(one.name, server.name, value, secret_names)
            secret_names[name] = result.secrets[name] = value
            result.origins[one.origin] = name
            definition = replace_text(definition, old, secret_reference(name))
        result.definitions[server.name] = definition
    here = {change.server.name: change.current for change in plan.drift.updates}
    result.replaced = {name: here[name] for name in result.definitions if name in here}
    result.secrets = {name: value for name, value in result.secrets.items() if name not in plan.stored}
    return result


def unite_servers(
    plan: ImportPlan, target: ImportTarget, result: ImportResult, same: Mapping[str, str]
) -> list[str]:
    """Use one server for those that are the `same` as it. Returns notes about the editors' lists of tools.

    A new server is defined so that it suits all its editors. The definition of one that mcpd has stays.
    """
    kept = target.servers.keys() | result.definitions.keys()
    result.same = {name: other for name, other in same.items() if other in kept}
    new = {server.name: server for server in plan.merged.servers}
    notes: list[str] = []
    for other in dict.fromkeys(result.same.values()):
        names = [other, *(name for name, its in result.same.items() if its == other)]
        group = [new[name] for name in names if name in new]
        entries = [(server.definition, source) for server in group for source in server.sources]
        if other in target.servers:
            ours = target.servers[other]
            for theirs, source in entries:
                notes.append(note_about_ours(theirs, ours, other, source.title))
                notes.append(note_about(unlike_ours(theirs, ours), source.editor, source.title, source.scope))
        else:
            definitions = [server.definition for server in group]
            result.definitions[other] = for_all_editors(result.definitions[other], definitions)
            notes += notes_about_filters(entries)
    return list(dict.fromkeys(filter(None, notes)))


def write_import(cli: CliContext, target: ImportTarget, result: ImportResult) -> bool:
    """Write secrets and servers, and reload the daemon. Return whether it is running.

    Raises CannotWrite, or DaemonError if the daemon rejects the servers, with both files restored.
    """
    before = target.path.read_bytes() if target.path.exists() else None
    stored: Mapping[str, str] = {}
    try:
        if result.secrets:
            change_secrets(os.environ, result.secrets)
            stored = result.secrets
        rules = [(one.before, one.rule) for one in result.rules]
        put_servers(target.path, result.definitions, result.replaced, rules, target.policies)
        if target.running:
            reply = cli.call("mcpd/reload")
            if problems := objects(reply.value.get("errors")):
                invalid = {"code": "bad_spec", "exit": 2, "problems": problems}
                raise DaemonError({"message": "", "data": invalid})
    except CannotWrite as error:
        _roll_back(target, before, stored)
        raise CannotWrite(f"nothing was imported: {error.reason}", error.fix) from None
    except (BadSpec, DaemonError) as bad:
        _roll_back(target, before, stored)
        data = bad.data() if isinstance(bad, BadSpec) else {**bad.details, "code": bad.code, "exit": bad.exit}
        message = "nothing was imported, because the result is invalid"
        raise DaemonError({"message": message, "data": data}) from None
    return target.running


def record_import(
    history: ImportHistory, target: ImportTarget, plan: ImportPlan, result: ImportResult
) -> None:
    """Remember what was written, and entries that match mcpd for the first time."""
    history.rules.update(atom for one in result.rules for atom in one.atoms)
    history.secrets |= result.origins
    ours = read_definitions(target.path)
    now = {source: history.digests(theirs) for source, theirs in plan.drift.definitions.items()}
    servers = [*plan.merged.servers, *(one.server for one in plan.drift.updates)]
    written = [
        (one.name, source) for one in servers if one.name in result.definitions for source in one.sources
    ]
    same = {
        source: result.same[one.name] for one in servers if one.name in result.same for source in one.sources
    }
    written += [(name, source) for source, name in same.items()]
    for name, source in plan.merged.known:
        imported = history.get(source)
        if imported is None or (imported.server, imported.theirs) != (name, now[source]):
            written.append((name, source))
    history.forget_servers(result.definitions.keys() - result.replaced.keys())
    for name, source in written:
        if name in ours and source not in plan.drift.ambiguous:
            here = history.digests(fill_in_secrets(ours[name], os.environ))
            history.entries[entry_key(source)] = ImportedEntry(
                name,
                source.editor,
                now[source],
                here,
                source in plan.unwrapped,
                source in same or name in plan.asked,
                history.digests(ours[name]),
            )


def _roll_back(target: ImportTarget, before: bytes | None, stored: Mapping[str, str]) -> None:
    if before is None:
        target.path.unlink(missing_ok=True)
    elif target.path.read_bytes() != before:  # otherwise the write itself failed, perhaps on a full disk
        write_atomically(target.path, before)
    if stored:
        change_secrets(os.environ, dict.fromkeys(stored))


def _with_placeholders(server: MergedServer) -> Definition:
    """Return the definition with placeholders for missing secrets, so that the rest can be checked."""
    definition = server.definition
    for one in server.needed_secrets:
        definition = replace_text(definition, secret_reference(one.name), "x")
    return definition

"""Plans an import (which servers and rules, with which secrets) and writes it."""

from __future__ import annotations

import os
from collections.abc import Collection, Mapping, Sequence
from fnmatch import fnmatchcase
from functools import partial
from pathlib import Path

import attrs

from ctl.cli.errors import DaemonError, DaemonUnreachable
from ctl.cli.invocation import CliContext
from ctl.cli.json_text import mapping, objects, strings
from ctl.daemon.client import Json
from ctl.editors.config_files import BY_NAME, UserContext
from ctl.editors.merge import (
    Definition,
    KnownServers,
    MergedServer,
    MergeResult,
    merge_candidates,
    program_of,
)
from ctl.editors.permission_rules import EditorRules, NewRule, ToolPermission, editor_permissions
from ctl.editors.read_entries import (
    IS_MCPD,
    DiscoveredEntries,
    EntrySource,
    ImportCandidate,
    unwrap_candidate,
    valid_server_name,
)
from ctl.editors.secrets import (
    ExtractedSecrets,
    extract_secrets,
    free_secret_name,
    named_by_owner,
    replace_text,
)
from ctl.editors.variables import NeededSecret, secret_reference
from ctl.explain.config_check import next_environment
from ctl.explain.next_steps import config_step
from mcpd.config.edit_config_file import put_servers
from mcpd.config.in_place_edits.document import read_document
from mcpd.config.loader import default_path, read_layout
from mcpd.config.secret_store import change_secrets, read_secrets
from mcpd.config.server_specs import parse_servers
from mcpd.config.settings import Settings
from mcpd.files.atomic import write_atomically
from mcpd.model.errors import BadSpec, CannotWrite, Problem


@attrs.define
class ImportPlan:
    """Everything that can be imported, before the user decides."""

    discovered: DiscoveredEntries
    merged: MergeResult
    stored: Mapping[str, str] = attrs.field(repr=False)
    """The stored secrets."""
    blocked: Mapping[str, str]
    """Server → why it cannot be imported now."""
    rules: Sequence[NewRule] = ()
    skipped_rules: Sequence[str] = ()
    """Notes about what the editors deny or ask about and no rule can say."""
    without_secrets: dict[str, ExtractedSecrets] = attrs.field(init=False)
    """Server → definition with references in place of inline secrets."""

    def __attrs_post_init__(self) -> None:
        taken = dict(self.stored)
        self.without_secrets = {one.name: _without_secrets(one, taken, {}, {}) for one in self.merged.servers}

    @property
    def new_servers(self) -> list[MergedServer]:
        """Return the servers that can be added."""
        return [server for server in self.merged.servers if server.name not in self.blocked]

    def missing_secrets(self, server: MergedServer) -> list[NeededSecret]:
        """Return the secrets that a server needs and only the user knows."""
        return [one for one in server.needed_secrets if one.value is None and one.name not in self.stored]


@attrs.define
class ImportResult:
    """What to write."""

    definitions: dict[str, dict[str, object]] = attrs.field(factory=dict)
    secrets: dict[str, str] = attrs.field(factory=dict, repr=False)
    rules: Sequence[NewRule] = ()


def plan_import(
    cli: CliContext,
    target: ImportTarget,
    discovered: DiscoveredEntries,
    user: UserContext,
    *,
    named: Collection[str],
    with_rules: bool,
    unfold: bool,
    can_ask: bool,
) -> ImportPlan:
    """Plan an import. Raises DaemonError if the secrets are unreadable.

    `named` servers are imported although others are similar. `with_rules`: also what the editors deny and ask
    about. Servers that need a secret are blocked unless `can_ask`.
    """
    try:
        stored = read_secrets(os.environ)
    except BadSpec as error:
        raise DaemonError({"message": f"{error.source} cannot be used", "data": error.data()}) from None
    candidates = [named_by_owner(unwrap_candidate(one) if unfold else one) for one in discovered.candidates]

    reserved = [one.source.name for one in discovered.skipped if one.source.scope != "project"]
    merge = partial(merge_candidates, candidates, target.servers, os.environ, named, reserved)
    merged = merge()
    problems = _first_problems(cli, target, merged)
    unusable = {source for one in merged.servers if one.name in problems for source in one.sources}
    if unusable and merged.similar:
        merged = merge(unusable)
        problems = _first_problems(cli, target, merged)
    plan = ImportPlan(discovered, merged, stored, problems)
    if not can_ask:
        plan.blocked = {**_unanswered(plan), **problems}
    if with_rules:
        policies = target.policies if isinstance(target.policies, list) else []
        rules = _rules(plan, user, target, policies)
        plan.rules, plan.skipped_rules = rules.new_rules(policies), rules.skipped
    return plan


def _first_problems(cli: CliContext, target: ImportTarget, merged: MergeResult) -> dict[str, str]:
    """Return why servers cannot be used, by name."""
    found = find_problems(cli, target, {one.name: _with_placeholders(one) for one in merged.servers})
    return {name: texts[0] for name, texts in found.items()}


def _with_placeholders(server: MergedServer) -> dict[str, object]:
    """Return the definition with placeholders for missing secrets, so that the rest can be checked."""
    definition = server.definition
    for one in server.needed_secrets:
        definition = replace_text(definition, secret_reference(one.name), "x")
    return definition


def _unanswered(plan: ImportPlan) -> dict[str, str]:
    """Return the servers with secrets that only the user knows, and what to do."""
    blocked: dict[str, str] = {}
    for server in plan.merged.servers:
        if missing := [one.name for one in plan.missing_secrets(server)]:
            steps = "; ".join(f"mcpctl secret set {name}" for name in missing)
            blocked[server.name] = (
                f"it needs a secret that only you know: {', '.join(missing)}; run mcpctl import in a "
                f"terminal without --yes to enter it, or: {steps}"
            )
    return blocked


def _rules(
    plan: ImportPlan, user: UserContext, target: ImportTarget, policies: Sequence[object]
) -> EditorRules:
    """Return what the editors deny and ask about.

    A rule about an entry that is left out is for the servers that are used instead, and for its own name.
    Each rule is also for other servers with the same program, unless the editor has an entry for them.
    """
    new = {one.name: one.definition for one in plan.merged.servers}
    definitions: dict[str, Definition] = {**target.servers, **new}
    servers, rules = _servers_of_entries(plan, definitions), EditorRules()
    own = {(source.editor, server) for source, found in servers.items() for server in found}
    mcpd = KnownServers(definitions, os.environ)
    own |= {(one.source.editor, mcpd.find(one) or "") for one in plan.discovered.not_chosen}
    programs = {name: program_of(each, os.environ) for name, each in definitions.items()}

    def twins_for(editor: str, server: str) -> list[str]:
        wanted = programs.get(server)
        same = [name for name, each in programs.items() if each == wanted and name != server]
        return [name for name in same if (editor, name) not in own] if wanted is not None else []

    for name in dict.fromkeys(source.editor for source in servers):
        editor = BY_NAME.get(name)
        if editor is None or editor.entry_form is None:
            continue  # it cannot use mcpd
        entries = [
            (source.name, server)
            for source, found in servers.items()
            if source.editor == name
            for server in found
        ]
        of_mcpd = {one.source.name for one in plan.discovered.skipped if one.reason == IS_MCPD} | {"mcpd"}
        rules.add(editor, entries, editor_permissions(editor, user), user, of_mcpd)
        for one in plan.discovered.candidates:
            found = servers[one.source] if one.source.editor == name else []
            rules.add(editor, [(one.source.name, server) for server in found], one.permissions, user)
            for server in [*found, *(twin for each in found for twin in twins_for(name, each))]:
                definition = definitions.get(server, {})
                rules.add(editor, [(one.source.name, server)], _exclusions(one, definition), user)
                if one.definition.get("includeTools") not in (None, definition.get("includeTools")):
                    path = user.display_path(one.source.path)
                    note = f"only some tools of {server}: set includeTools in its definition ({path})"
                    rules.skipped.append(f"{editor.title}: {note}")
    rules.add_twins(policies, target.path, twins_for, new)
    return rules


def _exclusions(one: ImportCandidate, server: Definition) -> list[ToolPermission]:
    """Return what an entry excludes, and the server that is used for it does not."""
    also = strings(server.get("excludeTools"))
    excluded = [tool for tool in strings(one.definition.get("excludeTools")) if tool not in also]
    return [ToolPermission("deny", tool, one.source.path, one.source.project) for tool in excluded]


def _servers_of_entries(
    plan: ImportPlan, everything: Mapping[str, Definition]
) -> dict[EntrySource, list[str]]:
    """Return the servers in mcpd that do what each entry does: the one that it will be, or for an entry that
    is left out, those with its package or URL, and the one that it would be."""
    servers: dict[EntrySource, list[str]] = {}
    for one in plan.discovered.skipped:
        if one.reason != IS_MCPD:
            wanted = program_of(one.fields, os.environ)
            alike = [name for name, each in everything.items() if program_of(each, os.environ) == wanted]
            own = valid_server_name(one.source.name)
            servers[one.source] = list(dict.fromkeys([*(alike if wanted else ()), own]))
    for server in plan.merged.servers:
        servers |= {source: [server.name] for source in server.sources}
    for entry in (*plan.merged.known, *plan.merged.similar):
        servers[entry.source] = [entry.server]
    return servers


def build_result(
    plan: ImportPlan, servers: Sequence[MergedServer], answers: Mapping[str, str]
) -> ImportResult:
    """Return what to write for the chosen servers. `answers`: the secrets that the user entered, by name."""
    result = ImportResult(rules=plan.rules)
    taken = dict(plan.stored)
    for server in servers:
        done = _without_secrets(server, taken, answers, result.secrets)
        result.definitions[server.name] = done.definition
    result.secrets = {name: value for name, value in result.secrets.items() if name not in plan.stored}
    return result


def _without_secrets(
    server: MergedServer, taken: dict[str, str], answers: Mapping[str, str], secrets: dict[str, str]
) -> ExtractedSecrets:
    """Return the definition with references to secrets, and those that were in it. Adds all to `secrets`.

    `taken` and `answers`: the values by name, of the secrets in use, and of those that the user entered.
    """
    extracted = extract_secrets(server.name, server.definition, taken)
    definition = extracted.definition
    secrets |= {one.name: one.value for one in extracted.secrets}
    for one in server.needed_secrets:
        value = answers.get(one.name) if one.value is None else one.value
        if value is None:
            continue  # it is stored already, or not known yet
        name = one.name if one.value is None else free_secret_name(one.name, server.name, value, taken)
        taken[name] = secrets[name] = value
        definition = replace_text(definition, secret_reference(one.name), secret_reference(name))
    return attrs.evolve(extracted, definition=definition)


def write_import(cli: CliContext, target: ImportTarget, result: ImportResult) -> bool:
    """Write secrets, servers and rules, and reload the daemon. Return whether it is running.

    Raises CannotWrite, or DaemonError if the daemon rejects the servers, with both files restored.
    """
    before = target.path.read_bytes() if target.path.exists() else None
    stored: Mapping[str, str] = {}
    try:
        if result.secrets:
            change_secrets(os.environ, result.secrets)
            stored = result.secrets
        rules = [(one.before, one.rule) for one in result.rules]
        put_servers(target.path, result.definitions, rules, target.policies)
        if target.running:
            reply = cli.call("mcpd/reload")
            if problems := objects(reply.value.get("errors")):
                invalid = {"code": "bad_spec", "exit": 2, "problems": problems}
                raise DaemonError({"message": "", "data": invalid})
    except CannotWrite as error:
        _roll_back(target.path, before, stored)
        raise CannotWrite(f"nothing was imported: {error.reason}", error.fix) from None
    except (BadSpec, DaemonError) as bad:
        _roll_back(target.path, before, stored)
        data = bad.data() if isinstance(bad, BadSpec) else {**bad.details, "code": bad.code, "exit": bad.exit}
        message = "nothing was imported, because the result is invalid"
        raise DaemonError({"message": message, "data": data}) from None
    return target.running


def _roll_back(path: Path, before: bytes | None, stored: Mapping[str, str]) -> None:
    if before is None:
        path.unlink(missing_ok=True)
    elif path.read_bytes() != before:  # otherwise the write itself failed, perhaps on a full disk
        write_atomically(path, before)
    if stored:
        change_secrets(os.environ, dict.fromkeys(stored))


# ---- the configuration of mcpd --------------------------------------------------------------------------


@attrs.frozen
class ImportTarget:
    """The configuration file of mcpd that an import changes."""

    path: Path
    servers: Mapping[str, Mapping[str, object]] = attrs.field(repr=False)
    """Name → definition, as in the file."""
    addresses: frozenset[str]
    """Where mcpd listens: the socket path, and HOST:PORT if HTTP is on."""
    running: bool
    """Whether the daemon is running."""
    server_names: frozenset[str] = frozenset()
    """All servers, including those of a running daemon that other files or clients defined."""
    profiles: Mapping[str, object] = attrs.field(factory=dict)
    """Name → profile, as in the file."""
    policies: object = None
    """The rules, as in the file."""
    shared_env: Collection[str] = ()
    """The names of the variables that all servers have, as in the file."""
    client_tool_names: object = None
    """`clientToolNames`, as in the file."""

    def visible_servers(self, server: str | None, profile: str | None) -> Mapping[str, Mapping[str, object]]:
        """Return the servers that an entry for one server, one profile, or everything provides."""
        if server:
            return {name: one for name, one in self.servers.items() if name == server}
        if not profile:
            return self.servers
        everything = ["*"] if profile in self.profiles else []
        patterns = strings(mapping(self.profiles.get(profile)).get("servers", everything))
        matches = (name for name in self.servers if any(fnmatchcase(name, each) for each in patterns))
        return {name: self.servers[name] for name in matches}


def find_import_target(cli: CliContext) -> ImportTarget:
    """Return the configuration that the daemon uses, or would use if it were running. Never starts it.

    Raises DaemonError if the file is unreadable, or was deleted while the daemon uses it.
    Definitions are not checked, because they may refer to variables that only the daemon has.
    """
    cli.may_start = False
    try:
        config = cli.call("mcpd/config").value
        path, running, active = Path(config["path"]), True, frozenset(config["servers"])
        was_read = bool(active) and config.get("source") == str(path)
    except DaemonUnreachable:
        path, running, active, was_read = Path(), False, frozenset[str](), False
    problems: list[Problem] = []
    try:
        if not running:
            variables = next_environment(cli.socket, os.environ).variables
            path = default_path({**variables, "MCPD_SERVERS": ""})
        found = read_layout(read_document(path).value, problems, [])
        if was_read and not path.exists():
            fix = "restore it, or create it with the content {} to begin without its servers"
            problems.append(Problem("$", "it was deleted", fix))
        if problems:
            raise BadSpec(problems, str(path))
    except BadSpec as error:
        message = f"{error.source or path} cannot be used"
        invalid = DaemonError({"message": message, "data": error.data()})
        invalid.hint = config_step(invalid.problems)
        raise invalid from None
    http = found.settings.get("http")
    addresses = frozenset({cli.socket, http} if isinstance(http, str) else {cli.socket})
    servers = {str(name): fields for name, fields, _ in found.servers if isinstance(fields, dict)}
    profiles = mapping(found.settings.get("profiles"))
    return ImportTarget(
        path,
        servers,
        addresses,
        running,
        active | frozenset(servers),
        profiles,
        found.settings.get("policies"),
        mapping(found.settings.get("env")).keys(),
        client_tool_names=found.settings.get("clientToolNames"),
    )


def find_problems(
    cli: CliContext, target: ImportTarget, definitions: Mapping[str, Mapping[str, object]]
) -> dict[str, list[str]]:
    """Return the problems of each invalid definition, as the running daemon sees it.

    One invalid server would make the whole file invalid.
    """
    if target.running and definitions:
        asked: list[Json] = [
            {"servers": {name: definition}, "dry_run": True} for name, definition in definitions.items()
        ]
        answers = cli.call_all("mcpd/servers/set", asked, timeout=30.0)
        found = {
            name: answer.problems if isinstance(answer, DaemonError) else objects(answer.value.get("errors"))
            for name, answer in zip(definitions, answers, strict=True)
        }
    else:
        found = {name: _parse_problems(name, definition) for name, definition in definitions.items()}
    return {name: list(map(_problem_text, problems)) for name, problems in found.items() if problems}


def _parse_problems(name: str, definition: Mapping[str, object]) -> list[Mapping[str, object]]:
    servers = {name: definition}
    try:
        parse_servers(servers, environ=os.environ, settings=Settings(), base_dir=Path("/"), path="$")
    except BadSpec as error:
        return [attrs.asdict(problem) for problem in error.problems]
    return []


def _problem_text(problem: Mapping[str, object]) -> str:
    fix = problem.get("fix")
    return f"{problem.get('message')}{f'; {fix}' if fix else ''}"

"""mcpd's side of an import: the file to write, its servers, and whether a definition is valid."""

from __future__ import annotations

import os
from collections.abc import Mapping
from fnmatch import fnmatchcase
from pathlib import Path

import attrs

from ctl.cli.errors import DaemonError, DaemonUnreachable
from ctl.cli.invocation import CliContext
from ctl.cli.json_text import mapping, objects, strings
from ctl.daemon.client import Json
from ctl.explain.next_steps import config_step
from mcpd.config.in_place_edits.document import read_document
from mcpd.config.loader import default_path, read_layout
from mcpd.config.server_definition import parse_servers
from mcpd.config.settings import Settings
from mcpd.model.errors import BadSpec, Problem


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
        path = path if running else default_path({**os.environ, "MCPD_SERVERS": ""})
        found = read_layout(read_document(path).value, problems, [])
        if was_read and not path.exists():
            fix = "restore it, or create it with the content {} to begin without its servers"
            problems.append(Problem("$", "it was deleted", fix))
        if problems:
            raise BadSpec(problems, str(path))
    except BadSpec as error:
        message = f"{error.source or path} cannot be used"
        invalid = DaemonError({"message": message, "data": error.data()})
        invalid.hint = config_step(invalid.problems, error.source or path)
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

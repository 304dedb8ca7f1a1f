"""What `mcpctl import` found, for people and for programs. No secret is ever in it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from ctl.daemon_client import Json
from ctl.editors.discovery import OURSELVES, Source
from ctl.editors.drift import Change
from ctl.editors.editor_paths import Surroundings
from ctl.editors.import_target import Home
from ctl.editors.importing import Plan
from ctl.editors.inline_secrets import Lifted, shown
from ctl.editors.merging import Server
from ctl.output import Line, paint
from ctl.status_view import shell_join
from ctl.terminal_text import count
from mcpd.config.masking import mask_definition
from mcpd.model.server_spec import definition_parts


def found_lines(made: Plan, around: Surroundings, only_here: Sequence[str]) -> list[Line]:
    """Every server with exactly what would run, what has changed in the editors, what is here already, only
    here (`only_here`), and what is left out."""
    lines: list[Line] = []
    for server in made.merged.servers:
        lines += _server_lines(server, made.safe[server.name], made.trouble.get(server.name, ""), around)
    for change in made.drift.changes:
        name = change.server.name
        lines += _change_lines(change, made.safe[name], made.trouble.get(name, ""), around)
    if made.merged.known:
        lines.append([paint("already in mcpd", "bold")])
        places: dict[str, list[str]] = {}
        for name, source in made.merged.known:
            since = " (changed here since)" if source in made.drift.changed_here else ""
            places.setdefault(name, []).append(_from(source, around, name) + since)
        lines += [[f"  {name}: {'; '.join(found)}"] for name, found in places.items()]
        lines.append([])
    if only_here:
        lines += [[paint("only in mcpd", "bold")], [f"  {', '.join(only_here)}"], []]
    passed = [one for one in made.seen.passed if one.reason != OURSELVES]
    if passed:
        lines.append([paint("left where they are", "bold")])
        lines += [[f"  {one.source.name}: {one.reason} ({_from(one.source, around)})"] for one in passed]
        lines.append([])
    looked = count(len(made.seen.files), "file")
    changes = f", {count(len(made.changes), 'change')} to take over" if made.drift.changes else ""
    later = f", {len(made.trouble)} not now ({', '.join(made.trouble)})" if made.trouble else ""
    lines.append([f"{count(len(made.possible), 'server')} to import{changes}, from {looked}{later}"])
    return lines


def as_json(made: Plan, only_here: Sequence[str]) -> dict[str, object]:
    """The same as the answer under `--json`."""
    return {
        "files": [str(path) for path in made.seen.files],
        "servers": [_server_json(server, made) for server in made.merged.servers],
        "changed": [
            _server_json(one.server, made)
            | {
                "parts": [
                    {"part": part, "here": here, "there": there, "changed_here": part in one.here_too}
                    for part, here, there in _parts(one, made.safe[one.server.name])
                ]
            }
            for one in made.drift.changes
        ],
        "known": [
            {"name": name, "source": _source(source), "changed_here": source in made.drift.changed_here}
            for name, source in made.merged.known
        ],
        "only_here": list(only_here),
        "skipped": [{"source": _source(one.source), "reason": one.reason} for one in made.seen.passed],
        "warnings": list(made.seen.warnings),
    }


def only_in(home: Home, made: Plan) -> list[str]:
    """The servers of ours that no editor has."""
    elsewhere = {name for name, _ in made.merged.known} | {one.server.name for one in made.drift.changes}
    return [name for name in home.servers if name not in elsewhere]


def taking_over(change: Change) -> str:
    """What taking it over does, in a few words."""
    titles = dict.fromkeys(source.title for source in change.server.sources)
    return f"{', '.join(change.parts)} from {' and '.join(titles)}"


def what_runs(definition: Mapping[str, object]) -> str:
    """The command line or URL of a definition."""
    if "url" in definition:
        kind = definition.get("type")
        return f"{definition['url']}{f' ({kind})' if kind else ''}"
    args = definition.get("args")
    words = [definition.get("command"), *(args if isinstance(args, list) else [])]
    return shell_join([str(word) for word in words])


def _server_lines(server: Server, safe: Lifted, trouble: str, around: Surroundings) -> list[Line]:
    definition = shown(safe)
    off = ", switched off" if definition.get("enabled") is False else ""
    lines: list[Line] = [[paint(server.name, "bold"), off], ["  runs: ", what_runs(definition)]]
    if "url" in definition:
        lines[-1] = ["  is at: ", what_runs(definition)]
    for key, word in (("env", "with"), ("headers", "sends")):
        values = definition.get(key)
        if isinstance(values, dict):
            lines.append([f"  {word}: ", ", ".join(f"{name}={value}" for name, value in values.items())])
    if "cwd" in definition:
        lines.append(["  in: ", str(definition["cwd"])])
    return lines + _about(server, server.notes, safe, trouble, around)


def _change_lines(change: Change, safe: Lifted, trouble: str, around: Surroundings) -> list[Line]:
    server = change.server
    titles = dict.fromkeys(source.title for source in server.sources)
    lines: list[Line] = [
        [paint(server.name, "bold"), f", changed in {' and '.join(titles)} since it was imported"]
    ]
    for part, here, there in _parts(change, safe):
        new = f"{_value(there)} (another value)" if here == there else _value(there)
        lines.append([f"  {part}: ", f"{_value(here)} -> {new}"])
    notes = [*server.notes, *([] if trouble else change.doubts)]
    return lines + _about(server, notes, safe, trouble, around)


def _about(
    server: Server, notes: Sequence[str], safe: Lifted, trouble: str, around: Surroundings
) -> list[Line]:
    """Where it comes from, and what has to be known before it is taken."""
    lines: list[Line] = [["  from: ", "; ".join(_from(one, around, server.name) for one in server.sources)]]
    lines += [["  note: ", note] for note in notes]
    lines += [["  secret: ", f"{one.place} is written out in the file"] for one in safe.literals]
    lines += [["  needs: ", f"the secret {one.name} ({one.prompt})"] for one in server.needed]
    if trouble:
        lines.append([paint("  not now: ", "yellow"), trouble])
    lines.append([])
    return lines


def _parts(change: Change, safe: Lifted) -> list[tuple[str, object, object]]:
    """Each part that differs, here and there; secrets masked."""
    on = {"enabled": True}
    here, there = on | definition_parts(mask_definition(change.here)), on | definition_parts(shown(safe))
    return [(part, here.get(part), there.get(part)) for part in change.parts]


def _value(value: object) -> str:
    if value is None:
        return "nothing"
    if isinstance(value, list):
        return shell_join([str(word) for word in value]) or "nothing"
    return str(value).lower() if isinstance(value, bool) else str(value)


def _server_json(server: Server, made: Plan) -> dict[str, object]:
    safe = made.safe[server.name]
    return {
        "name": server.name,
        "definition": shown(safe),
        "sources": [_source(one) for one in server.sources],
        "notes": list(server.notes),
        "secrets": [{"name": one.name, "place": one.place} for one in safe.literals],
        "needs": [one.name for one in server.needed],
        "problem": made.trouble.get(server.name),
    }


def _from(source: Source, around: Surroundings, name: str = "") -> str:
    """Where it stands, and as what, if that is not `name`."""
    scope = f", {source.scope}" if source.scope != "user" else ""
    called = f" as '{source.name}'" if name and source.name != name else ""
    return f"{source.title}{scope}, {around.shown(source.path)}{called}"


def _source(source: Source) -> Json:
    return {
        "editor": source.editor,
        "path": str(source.path),
        "scope": source.scope,
        "name": source.name,
        "project": None if source.project is None else str(source.project),
    }

"""What `mcpctl import` found, for people and for programs. No secret is ever in it."""

from __future__ import annotations

from collections.abc import Mapping

from ctl.client import Json
from ctl.editors.literals import Lifted, shown
from ctl.editors.merging import Merged, Server
from ctl.editors.places import Surroundings
from ctl.editors.survey import OURSELVES, Source, Survey
from ctl.render import Line, paint
from ctl.text import count
from ctl.views import quoted


def found_lines(
    survey: Survey,
    merged: Merged,
    safe: Mapping[str, Lifted],
    trouble: Mapping[str, str],
    around: Surroundings,
) -> list[Line]:
    """Every server with exactly what would run, then what is here already and what is left out."""
    lines: list[Line] = []
    for server in merged.servers:
        lines += _server_lines(server, safe[server.name], trouble.get(server.name, ""), around)
    passed = [one for one in survey.passed if one.reason != OURSELVES]
    if merged.known:
        lines.append([paint("already in mcpd", "bold")])
        lines += [[f"  {name}: {_from(source, around, name)}"] for name, source in merged.known]
        lines.append([])
    if passed:
        lines.append([paint("left where they are", "bold")])
        lines += [[f"  {one.source.name}: {one.reason} ({_from(one.source, around)})"] for one in passed]
        lines.append([])
    looked = count(len(survey.files), "file")
    ready = sum(server.name not in trouble for server in merged.servers)
    later = f", {len(trouble)} not now ({', '.join(trouble)})" if trouble else ""
    lines.append([f"{count(ready, 'server')} to import, from {looked}{later}"])
    return lines


def as_json(
    survey: Survey, merged: Merged, safe: Mapping[str, Lifted], trouble: Mapping[str, str]
) -> dict[str, object]:
    """The same as the answer under `--json`."""
    return {
        "files": [str(path) for path in survey.files],
        "servers": [
            {
                "name": server.name,
                "definition": shown(safe[server.name]),
                "sources": [_source(one) for one in server.sources],
                "notes": list(server.notes),
                "secrets": [{"name": one.name, "place": one.place} for one in safe[server.name].literals],
                "needs": [one.name for one in server.needed],
                "problem": trouble.get(server.name),
            }
            for server in merged.servers
        ],
        "known": [{"name": name, "source": _source(source)} for name, source in merged.known],
        "skipped": [{"source": _source(one.source), "reason": one.reason} for one in survey.passed],
        "warnings": list(survey.warnings),
    }


def what_runs(definition: Mapping[str, object]) -> str:
    """The command line or URL of a definition."""
    if "url" in definition:
        kind = definition.get("type")
        return f"{definition['url']}{f' ({kind})' if kind else ''}"
    args = definition.get("args")
    words = [definition.get("command"), *(args if isinstance(args, list) else [])]
    return quoted([str(word) for word in words])


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
    lines.append(["  from: ", "; ".join(_from(one, around, server.name) for one in server.sources)])
    lines += [["  note: ", note] for note in server.notes]
    lines += [["  secret: ", f"{one.place} is written out in the file"] for one in safe.literals]
    lines += [["  needs: ", f"the secret {one.name} ({one.prompt})"] for one in server.needed]
    if trouble:
        lines.append([paint("  not now: ", "yellow"), trouble])
    lines.append([])
    return lines


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

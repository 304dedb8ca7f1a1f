"""The two shapes of a document, and the list in `MCPD_SERVERS` → servers with their places, and settings."""

from __future__ import annotations

from collections.abc import Mapping

import attrs

from mcpd.config.fields import is_comment
from mcpd.config.json_path import closest_match, join_path, type_name
from mcpd.config.section import Section
from mcpd.config.settings import SETTINGS
from mcpd.model.errors import Problem
from mcpd.model.text import shorten

_EXAMPLE = 'write {"mcpServers": {"NAME": {"command": "…"}}}'
_FOREIGN_KEYS = {"servers", "mcp_servers", "context_servers", "extensions", "amp.mcpServers"}
"""Where other products keep what we call `mcpServers`."""


@attrs.frozen
class DocumentLayout:
    """A document taken apart, nothing in it checked yet."""

    servers: list[tuple[object, object, str]] = attrs.field(factory=list)
    """Name, definition, place."""
    settings: Mapping[str, object] = attrs.field(factory=dict)
    settings_path: str = "$.settings"
    enabled: bool = True


def read_layout(document: object, problems: list[Problem], warnings: list[str]) -> DocumentLayout:
    """Take either shape apart. What fits neither is added to `problems`."""
    if not isinstance(document, Mapping):
        problems.append(
            Problem("$", f"the configuration must be an object, not {type_name(document)}", _EXAMPLE)
        )
        return DocumentLayout()
    section = Section(document, "$", problems)
    settings_in = "mcp.globalSettings" if section.has("mcp") else "settings"
    for key in document:
        _check_top_level_key(key, section, warnings, settings_in)
    if section.has("mcp") and section.has("mcpServers"):
        section.add_problem("mcp", "both 'mcp' and 'mcpServers' are there", "keep one of the two shapes")
        return DocumentLayout()
    if not section.has("mcp"):
        settings = section.child("settings")
        servers = _parse_servers(document.get("mcpServers"), "$.mcpServers", problems)
        return DocumentLayout(servers, {} if settings is None else settings.values)
    inner = section.child("mcp")
    if inner is None:
        return DocumentLayout()
    inner.refuse_unknown(("enabled", "servers", "globalSettings"))
    if section.has("settings"):
        section.add_problem(
            "settings", "'settings' does not go with 'mcp'", "write them into 'mcp.globalSettings'"
        )
    settings = inner.child("globalSettings")
    return DocumentLayout(
        _parse_servers(inner.values.get("servers"), "$.mcp.servers", problems),
        {} if settings is None else settings.values,
        "$.mcp.globalSettings",
        inner.boolean("enabled") is not False,
    )


def parse_server_list(value: object, path: str, problems: list[Problem]) -> list[tuple[object, object, str]]:
    """The servers of a list whose entries carry their `name`."""
    if not isinstance(value, list):
        fix = 'write [{"name": "…", "command": "…"}]'
        problems.append(Problem(path, f"this must be a list of servers, not {type_name(value)}", fix))
        return []
    servers: list[tuple[object, object, str]] = []
    for index, entry in enumerate(value):
        here = join_path(path, index)
        if not isinstance(entry, Mapping):
            problems.append(Problem(here, f"a server must be an object, not {type_name(entry)}", _EXAMPLE))
        elif entry.get("name") is None:
            problems.append(Problem(here, "this server has no 'name'", "add 'name'"))
        else:
            rest = {key: inner for key, inner in entry.items() if key != "name"}
            servers.append((entry["name"], rest, here))
    return servers


def _parse_servers(value: object, path: str, problems: list[Problem]) -> list[tuple[object, object, str]]:
    if value is None:
        return []
    if isinstance(value, list):
        return parse_server_list(value, path, problems)
    if not isinstance(value, Mapping):
        problems.append(Problem(path, f"the servers must be an object, not {type_name(value)}", _EXAMPLE))
        return []
    return [(name, definition, join_path(path, str(name))) for name, definition in value.items()]


def _check_top_level_key(key: object, section: Section, warnings: list[str], settings_in: str) -> None:
    """An editor's file may hold much else beside its servers; only what looks like ours is refused."""
    known = ["mcpServers", "settings", "mcp"]
    if key in known:
        return
    if not isinstance(key, str):
        section.problems.append(Problem("$", "a key of the document is not a string", _EXAMPLE))
    elif key in _FOREIGN_KEYS:
        section.add_problem(key, f"servers under '{key}' are not read", "rename it to 'mcpServers'")
    elif (meant := closest_match(key, known)) is not None:
        section.add_problem(key, f"unknown field '{shorten(key, 64)}'", f"did you mean '{meant}'?")
    elif not is_comment(key):
        setting = closest_match(key, [field.name for field in SETTINGS])
        fix = f"; did you mean '{setting}' in '{settings_in}'?" if setting else ""
        warnings.append(
            f"{join_path('$', key)}: '{shorten(key, 64)}' is not used by mcpd here and was ignored{fix}"
        )

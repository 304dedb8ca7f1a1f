"""Where the configuration comes from: a variable, a flag, a variable's path or the default file."""

from __future__ import annotations

import hashlib
import os
import re
import stat
from collections.abc import Mapping
from pathlib import Path

import attrs

from mcpd.config.definition import parse_located_servers
from mcpd.config.fields import is_comment
from mcpd.config.json_path import closest_match, is_too_large, join_path, type_name
from mcpd.config.jsonc import JsoncSyntaxError, JsonObject
from mcpd.config.jsonc import parse_jsonc as parse_json
from mcpd.config.masking import quote_line
from mcpd.config.section import Section
from mcpd.config.settings import SETTINGS, Settings, parse_settings
from mcpd.model.errors import BadSpec, Problem
from mcpd.model.server_spec import ServerSpec
from mcpd.model.text import shorten

DEFAULT_NAME = "config.json"
VARIABLE_SOURCE = "$MCPD_SERVERS"


@attrs.frozen
class LoadedConfig:
    """A whole configuration, checked."""

    specs: dict[str, ServerSpec]
    definitions: dict[str, Mapping[str, object]]
    """As they were written: references in place, so nothing in here came from a variable."""
    settings: Settings
    secrets: frozenset[str] = attrs.field(repr=False)
    """Values to mask wherever something is shown or logged."""
    source: str
    """The file's path, `$MCPD_SERVERS`, or `none`."""
    path: Path
    """The file that a reload reads and `mcpctl add` writes, there or not."""
    warnings: tuple[str, ...]
    digest: str
    """SHA-256 of the bytes read, in hex; empty when there was nothing to read."""


def load(flag: Path | None, environ: Mapping[str, str]) -> LoadedConfig:
    """Find, read and check the configuration.

    `MCPD_SERVERS`, then `flag`, then `MCPD_CONFIG`, then the default file; an empty variable counts as
    not set. Nothing at all is no error: there are no servers, and a warning says how to add one.
    Raises BadSpec with every problem, also when a file cannot be read.
    """
    servers = environ.get("MCPD_SERVERS", "").strip()
    if servers:
        return _from_variable(servers, _find_path_or_default(flag, environ), environ)
    path, chosen = _find_path(flag, environ)
    data = _read_file(path, required=chosen)
    if data is None:
        hint = f"no configuration yet: add a server with `mcpctl add`, or write {path}"
        return LoadedConfig({}, {}, Settings(), frozenset(), "none", path, (hint,), "")
    return parse_config(path, data, environ)


def parse_config(path: Path, data: bytes, environ: Mapping[str, str]) -> LoadedConfig:
    """What a file at `path` with these bytes means. Raises BadSpec with every problem."""
    source = str(path)
    document = parse_text(decode_utf8(data, source), format_of(path, source), source)
    problems: list[Problem] = []
    warnings: list[str] = []
    outlined = read_layout(document, problems, warnings)
    return _build(outlined, problems, warnings, environ, source, path, path.parent, data)


def default_directory(environ: Mapping[str, str]) -> Path:
    """`$XDG_CONFIG_HOME/mcpd`, or `~/.config/mcpd`; a relative XDG_CONFIG_HOME is ignored, as XDG says."""
    base = environ.get("XDG_CONFIG_HOME", "")
    return (Path(base) if base.startswith("/") else _home(environ) / ".config") / "mcpd"


def default_path(environ: Mapping[str, str]) -> Path:
    """The file that `load` reads without a flag, there or not. Raises BadSpec when there are two."""
    return _find_path(None, environ)[0]


def candidate_paths(flag: Path | None, environ: Mapping[str, str]) -> tuple[Path, ...]:
    """The file that was named, or all that are looked for; absolute, there or not."""
    named = str(flag) if flag is not None else environ.get("MCPD_CONFIG", "")
    if named:
        if named == "~" or named.startswith("~/"):
            named = str(_home(environ)) + named[1:]
        return (Path(os.path.abspath(named)),)
    directory = default_directory(environ)
    return tuple(directory / f"config{suffix}" for suffix in SUFFIXES)


def _find_path(flag: Path | None, environ: Mapping[str, str]) -> tuple[Path, bool]:
    """The file, and whether somebody named it, so that it has to be there."""
    all_of_them = candidate_paths(flag, environ)
    if len(all_of_them) == 1:
        return all_of_them[0], True
    directory = default_directory(environ)
    there = [path for path in all_of_them if os.path.lexists(path)]
    if len(there) > 1:
        message = f"there are {len(there)} configurations: {', '.join(map(str, there))}"
        fix = "keep one, or name one with --config or MCPD_CONFIG"
        raise BadSpec([Problem("$", message, fix)], str(directory))
    return (there[0], True) if there else (directory / DEFAULT_NAME, False)


def _find_path_or_default(flag: Path | None, environ: Mapping[str, str]) -> Path:
    """The file for later, while `MCPD_SERVERS` wins; two default files are no trouble then."""
    try:
        return _find_path(flag, environ)[0]
    except BadSpec:
        return default_directory(environ) / DEFAULT_NAME


def _home(environ: Mapping[str, str]) -> Path:
    return Path(environ.get("HOME") or os.path.expanduser("~"))


def _read_file(path: Path, *, required: bool) -> bytes | None:
    """Its bytes; None when it is not there and need not be. Raises BadSpec."""
    try:
        # A FIFO with nobody at its other end would hold up the daemon for ever.
        if not stat.S_ISREG(path.stat().st_mode):
            kind = "a directory" if path.is_dir() else "no regular file"
            raise BadSpec([Problem("$", f"{path} is {kind}", "name a file")], str(path))
        return path.read_bytes()
    except FileNotFoundError:
        if not required:
            return None
        fix = "create it, or name another one with --config or MCPD_CONFIG"
        raise BadSpec([Problem("$", f"the file {path} does not exist", fix)], str(path)) from None
    except OSError as error:
        message = f"cannot read {path}: {error.strerror or error}"
        fix = "check its permissions and those of its directories"
        raise BadSpec([Problem("$", message, fix)], str(path)) from None


def _from_variable(text: str, path: Path, environ: Mapping[str, str]) -> LoadedConfig:
    problems: list[Problem] = []
    listed = parse_server_list(parse_text(text, "JSON", VARIABLE_SOURCE), "$", problems)
    data = text.encode("utf-8", "surrogateescape")
    return _build(DocumentLayout(listed), problems, [], environ, VARIABLE_SOURCE, path, _home(environ), data)


def _build(
    outlined: DocumentLayout,
    problems: list[Problem],
    warnings: list[str],
    environ: Mapping[str, str],
    source: str,
    path: Path,
    base_dir: Path,
    data: bytes,
) -> LoadedConfig:
    settings = parse_settings(
        outlined.settings,
        environ=environ,
        path=outlined.settings_path,
        problems=problems,
        warnings=warnings,
    )
    if settings.allow_commands and source != VARIABLE_SOURCE and _is_writable_by_others(path):
        message = f"others may write to {path}, so it cannot allow commands"
        problems.append(
            Problem(join_path(outlined.settings_path, "allowCommands"), message, f"chmod go-w {path}")
        )
        settings = attrs.evolve(settings, allow_commands=False)
    try:
        parsed = parse_located_servers(
            outlined.servers, environ=environ, settings=settings, base_dir=base_dir
        )
    except BadSpec as error:
        raise BadSpec(problems + error.problems, source) from None
    if problems:
        raise BadSpec(problems, source)
    specs = parsed.specs
    if not outlined.enabled:
        warnings.append("$.mcp.enabled: all servers are switched off")
        specs = {name: attrs.evolve(spec, enabled=False) for name, spec in specs.items()}
    definitions: dict[str, Mapping[str, object]] = {
        str(name): _mapping(definition) for name, definition, _ in outlined.servers
    }
    warnings += parsed.warnings
    warnings += _unknown_profile_servers(settings, definitions, join_path(outlined.settings_path, "profiles"))
    digest = hashlib.sha256(data).hexdigest()
    return LoadedConfig(specs, definitions, settings, parsed.secrets, source, path, tuple(warnings), digest)


def _unknown_profile_servers(settings: Settings, servers: Mapping[str, object], place: str) -> list[str]:
    """Names in profiles that no server has; where no server is defined at all, they come from elsewhere."""
    warnings = []
    for name, profile in settings.profiles.items() if servers else ():
        for pattern in profile.servers or ():
            if pattern not in servers and not set("*?[") & set(pattern):
                meant = closest_match(pattern, list(servers))
                hint = f"; did you mean '{meant}'?" if meant else ""
                where = join_path(join_path(place, name), "servers")
                warnings.append(f"{where}: there is no server '{shorten(pattern, 40)}'{hint}")
    return warnings


def _is_writable_by_others(path: Path) -> bool:
    try:
        found = path.stat()
    except FileNotFoundError:
        return False  # it is about to be written, by us
    return bool(found.st_mode & (stat.S_IWGRP | stat.S_IWOTH)) or found.st_uid not in (os.getuid(), 0)


def _mapping(value: object) -> Mapping[str, object]:
    assert isinstance(value, Mapping)
    return value


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


SUFFIXES = {
    ".json": "JSON",
    ".jsonc": "JSON",
    ".toml": "TOML",
    ".yaml": "YAML",
    ".yml": "YAML",
}
"""In the order in which the default places are looked at."""

MAX_FILE_SIZE = 4 * 1024 * 1024
"""Bytes. A configuration beyond this is some other file."""


def decode_utf8(data: bytes, source: str, largest: int = MAX_FILE_SIZE) -> str:
    """The text of a file; a byte order mark is dropped. Raises BadSpec when it is not UTF-8."""
    if len(data) > largest:
        message = f"the file has {len(data)} bytes; a configuration has at most {largest}"
        raise BadSpec([Problem("$", message, "is this the right file?")], source)
    try:
        return data.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        line = data.count(b"\n", 0, error.start) + 1
        problem = Problem(
            f"{source}:{line}", f"byte {error.start} is not UTF-8", "save the file in the UTF-8 encoding"
        )
        raise BadSpec([problem], source) from None


def format_of(path: Path, source: str) -> str:
    """`JSON`, `TOML` or `YAML`. Raises BadSpec for a suffix that says none of them."""
    kind = SUFFIXES.get(path.suffix.lower())
    if kind is None:
        message = f"cannot tell the format of {path.name!r}"
        raise BadSpec([Problem("$", message, f"give it one of the suffixes {', '.join(SUFFIXES)}")], source)
    return kind


def parse_text(text: str, kind: str, source: str, *, foreign: bool = False) -> object:
    """Plain values of a document in format `kind`. Raises BadSpec naming file, line and column.

    `foreign`: another program's file, which may be long, and where a key written twice is its business.
    """
    try:
        readers = {"JSON": parse_json, "TOML": _toml, "YAML": _yaml}
        value = readers[kind](text)
        if is_too_large(value, max_values=20_000_000 if foreign else 200_000):
            raise RecursionError
        twice = [] if foreign else _duplicate_keys(value, "$")
        if twice:
            raise BadSpec(twice, source)
        return value
    except JsoncSyntaxError as fault:
        lines = text.splitlines()
        line = lines[fault.line - 1] if 0 < fault.line <= len(lines) else ""
        quote = f", in `{quote_line(line)}`" if line.strip() else ""
        place = f"{source}:{fault.line}:{fault.column}"
        raise BadSpec(
            [Problem(place, f"not valid {kind}: {fault.message}{quote}", "mend the syntax there")], source
        ) from None
    except RecursionError:
        raise BadSpec(
            [Problem("$", f"this {kind} is nested too deeply, or in itself", "flatten it")], source
        ) from None


def _toml(text: str) -> object:
    import tomllib

    try:
        return tomllib.loads(text.replace("\r\n", "\n"))
    except tomllib.TOMLDecodeError as error:
        message = str(error)
        place = re.search(r" \(at line (\d+), column (\d+)\)$", message)
        if place:
            raise JsoncSyntaxError(message[: place.start()], int(place[1]), int(place[2])) from None
        raise JsoncSyntaxError.at_offset(message, text, len(text.rstrip())) from None


def _yaml(text: str) -> object:
    from ruamel.yaml import YAML  # 6 MB: loaded only for a YAML file
    from ruamel.yaml.error import MarkedYAMLError, YAMLError

    try:
        value = YAML(typ="safe", pure=True).load(text)
    except MarkedYAMLError as error:
        mark = error.problem_mark or error.context_mark
        line, column = (mark.line + 1, mark.column + 1) if mark else (1, 1)
        message = (error.problem or error.context or "cannot be read").split(" with value ")[0]
        raise JsoncSyntaxError(message, line, column) from None
    except (YAMLError, ValueError) as error:
        raise JsoncSyntaxError(shorten(str(error).splitlines()[0]), 1, 1) from None
    return {} if value is None else value


def _duplicate_keys(value: object, place: str) -> list[Problem]:
    found: list[Problem] = []
    if isinstance(value, JsonObject):
        for key in value.duplicates:
            found.append(
                Problem(join_path(place, key), f"'{shorten(key, 64)}' is written more than once", "keep one")
            )
        for key, inner in value.items():
            found += _duplicate_keys(inner, join_path(place, key))
    elif isinstance(value, list):
        for index, inner in enumerate(value):
            found += _duplicate_keys(inner, join_path(place, index))
    return found

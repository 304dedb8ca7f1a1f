"""Loads the configuration: finds the file (or `$MCPD_SERVERS`), parses its text, and checks its content."""

from __future__ import annotations

import errno
import os
import re
from collections.abc import Mapping
from hashlib import sha256
from io import StringIO
from itertools import islice
from pathlib import Path

import attrs

from mcpd.config.check_document import (
    VARIABLE_SOURCE,
    ConfigDocument,
    DocumentLayout,
    LoadedConfig,
    check,
)
from mcpd.config.definition import is_comment
from mcpd.config.jsonc import DocumentSyntaxError, JsonObject, parse_jsonc
from mcpd.config.masking import quote_line
from mcpd.config.settings import SETTINGS
from mcpd.config.structuring import field, read
from mcpd.config.variables import expand_home
from mcpd.files.paths import config_dir
from mcpd.files.regular import UnusableFile, read_regular_file
from mcpd.model.codec import Invalid, require_object
from mcpd.model.errors import BadSpec, Problem
from mcpd.model.json_path import closest_match, is_too_large, join_path, type_name
from mcpd.model.record import Record
from mcpd.model.text import shorten

DEFAULT_NAME = "config.json"

SUFFIXES = {".json": "JSON", ".jsonc": "JSON", ".toml": "TOML", ".yaml": "YAML", ".yml": "YAML"}
"""Suffix → format, in the order in which default files are looked for."""

MAX_FILE_SIZE = 4 * 1024 * 1024
"""Bytes. A larger file is not a configuration."""

MAX_SLOW_SIZE = 256 * 1024
"""Bytes of a YAML or TOML file, which takes about a second to parse: enough for 2,000 servers."""

_MANY_DOTS = r"(?<![^\s.=,{}\[\]#])(?:[^\s.=,{}\[\]#]++[ \t]*+\.[ \t]*+){100}"
"""A TOML key of a hundred parts. The parser's time grows with the square of their number."""

NO_FILE = "none"
"""The source of a configuration if there is no file."""
_EXAMPLE = 'write {"mcpServers": {"NAME": {"command": "…"}}}'
_KNOWN_KEYS = ["mcpServers", "settings", "mcp", "services"]
_FOREIGN_KEYS = {"servers", "mcp_servers", "context_servers", "extensions", "amp.mcpServers"}
"""Keys that other products use instead of `mcpServers`."""


def load(flag: Path | None, environ: Mapping[str, str]) -> LoadedConfig:
    """Find, read and check the configuration.

    The first of these wins: `MCPD_SERVERS`, `flag`, `MCPD_CONFIG`, the default file; an empty variable is
    ignored. Without any of them there are no servers, and a warning explains how to add one.
    Raises BadSpec with all problems, also if a file cannot be read.
    """
    try:
        return check(read_document(flag, environ), environ)
    except BadSpec as error:
        error.__context__ = None  # the errors of parsers, and frames, refer to several copies of the text
        raise error.with_traceback(None) from None


def read_document(flag: Path | None, environ: Mapping[str, str]) -> ConfigDocument:
    """Find, read and parse the configuration, but do not check it. Raises BadSpec."""
    servers = environ.get("MCPD_SERVERS", "").strip()
    if servers:
        return _parse_variable(servers, candidate_paths(flag, environ)[0], environ)
    path, required = find_path(flag, environ)
    data = _read_file(path, required=required)
    if data is None:
        hint = f"no configuration yet: add a server with `mcpctl add`, or write {path}"
        return ConfigDocument(source=NO_FILE, path=path, base_dir=path.parent, warnings=[hint])
    return parse_document(path, data)


def parse_config(path: Path, data: bytes, environ: Mapping[str, str]) -> LoadedConfig:
    """Parse `data` as the content of the file `path`. Raises BadSpec with all problems."""
    return check(parse_document(path, data), environ)


def parse_document(path: Path, data: bytes) -> ConfigDocument:
    """Parse `data` as the content of the file `path`, but do not check it. Raises BadSpec."""
    source = str(path)
    problems: list[Problem] = []
    warnings: list[str] = []
    text, kind = decode_utf8(data, source), format_of(path, source)
    if kind == "JSON" and not text.strip():  # probably a save that failed; it must not remove all servers
        raise BadSpec.single("the file is empty", "restore it, or write {} to it", source)
    document = parse_text(text, kind, source, problems=problems)
    return ConfigDocument(
        layout=read_layout(document, problems, warnings),
        problems=problems,
        warnings=warnings,
        source=source,
        path=path,
        base_dir=path.parent,
        digest=sha256(data).hexdigest(),
        text=text,
    )


def default_path(environ: Mapping[str, str]) -> Path:
    """Return the file that `load` reads without a flag; it may not exist. Raises BadSpec if there are two."""
    return find_path(None, environ)[0]


def candidate_paths(flag: Path | None, environ: Mapping[str, str]) -> tuple[Path, ...]:
    """Return the file that `flag` or `MCPD_CONFIG` names, or all default files, as absolute paths."""
    named = str(flag) if flag is not None else environ.get("MCPD_CONFIG", "")
    if named:
        return (Path(os.path.abspath(expand_home(named, environ))),)
    return tuple(Path(config_dir(environ)) / f"config{suffix}" for suffix in SUFFIXES)


def find_path(flag: Path | None, environ: Mapping[str, str]) -> tuple[Path, bool]:
    """Return the file, and whether it has to exist. Raises BadSpec if there are two default files."""
    candidates = candidate_paths(flag, environ)
    if len(candidates) == 1:
        return candidates[0], True
    directory = Path(config_dir(environ))
    found = [path for path in candidates if os.path.lexists(path)]
    if len(found) > 1:
        message = f"there are {len(found)} configuration files: {', '.join(map(str, found))}"
        raise BadSpec.single(message, "keep one, or name one with --config or MCPD_CONFIG", directory)
    return (found[0], True) if found else (directory / DEFAULT_NAME, False)


def _read_file(path: Path, *, required: bool) -> bytes | None:
    """Return the content, or None if the file does not exist and is not required. Raises BadSpec."""
    try:
        return read_regular_file(path, MAX_FILE_SIZE)
    except FileNotFoundError:
        if not required:
            return None
        fix = "create it, or name another one with --config or MCPD_CONFIG"
        raise BadSpec.single(f"the file {path} does not exist", fix, path) from None
    except UnusableFile as error:
        fix = "is this the right file?" if error.errno == errno.EFBIG else "name a file"
        raise BadSpec.single(f"cannot read {path}: {error.strerror}", fix, path) from None
    except OSError as error:
        message = f"cannot read {path}: {error.strerror or error}"
        raise BadSpec.single(message, "check the permissions of the file and its directories", path) from None


def decode_utf8(data: bytes, source: str, max_size: int = MAX_FILE_SIZE) -> str:
    """Decode the content of a file, without a byte order mark. Raises BadSpec."""
    if len(data) > max_size:
        message = f"the file has {len(data)} bytes; a configuration has at most {max_size}"
        raise BadSpec.single(message, "is this the right file?", source)
    try:
        return data.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        line = data.count(b"\n", 0, error.start) + 1
        message = f"byte {error.start} is not UTF-8"
        raise BadSpec.single(message, "save the file as UTF-8", source, f"{source}:{line}") from None


def format_of(path: Path, source: str) -> str:
    """Return `JSON`, `TOML` or `YAML`, according to the suffix. Raises BadSpec for other suffixes."""
    kind = SUFFIXES.get(path.suffix.lower())
    if kind is None:
        message = f"the suffix of {path.name!r} does not name a supported format"
        raise BadSpec.single(message, f"use one of the suffixes {', '.join(SUFFIXES)}", source)
    return kind


def parse_text(
    text: str, kind: str, source: str, *, foreign: bool = False, problems: list[Problem] | None = None
) -> object:
    """Parse a document in the format `kind`. Raises BadSpec that names file, line and column.

    `foreign`: the file of another program; it may be large, and duplicate keys are not an error.
    `problems`: where to add duplicate keys; if None, they raise BadSpec, too.
    """
    if kind == "TOML" and not foreign and re.search(_MANY_DOTS, text):
        raise BadSpec.single("this TOML has a key of over 100 parts", "flatten it", source)
    if kind != "JSON" and not foreign and len(text) > MAX_SLOW_SIZE:
        message = f"the file has {len(text)} characters; a {kind} file has at most {MAX_SLOW_SIZE}"
        raise BadSpec.single(message, "use JSON, which may have 4 MiB, or is this the wrong file?", source)
    try:
        value = {"JSON": parse_jsonc, "TOML": _parse_toml, "YAML": _parse_yaml}[kind](text)
        if is_too_large(value, max_values=2_000_000 if foreign else 200_000):
            raise RecursionError
    except DocumentSyntaxError as error:
        line = next(islice(StringIO(text), max(error.line - 1, 0), None), "")  # a list would take much memory
        quote = f", in `{quote_line(line)}`" if line.strip() else ""
        message = f"not valid {kind}: {error.message}{quote}"
        location = f"{source}:{error.line}:{error.column}"
        raise BadSpec.single(message, "fix the syntax there", source, location) from None
    except RecursionError:
        message = f"this {kind} is nested too deeply, or refers to itself"
        raise BadSpec.single(message, "flatten it", source) from None
    duplicates = [] if foreign else _duplicate_keys(value, "$")
    if problems is not None:
        problems += duplicates
    elif duplicates:
        raise BadSpec(duplicates, source)
    return value


def _parse_toml(text: str) -> object:
    import tomllib

    try:
        return tomllib.loads(text.replace("\r\n", "\n"))
    except tomllib.TOMLDecodeError as error:
        message = str(error)
        position = re.search(r" \(at line (\d+), column (\d+)\)$", message)
        if position:
            message = message[: position.start()]
            raise DocumentSyntaxError(message, int(position[1]), int(position[2])) from None
        raise DocumentSyntaxError.at_offset(message, text, len(text.rstrip())) from None


def _parse_yaml(text: str) -> object:
    from ruamel.yaml import YAML  # 6 MB, so it is imported only for a YAML file
    from ruamel.yaml.error import MarkedYAMLError, YAMLError

    try:
        value = YAML(typ="safe", pure=True).load(text)
    except MarkedYAMLError as error:
        mark = error.problem_mark or error.context_mark
        line, column = (mark.line + 1, mark.column + 1) if mark else (1, 1)
        message = (error.problem or error.context or "cannot be read").split(" with value ")[0]
        raise DocumentSyntaxError(message, line, column) from None
    except (YAMLError, ValueError) as error:
        raise DocumentSyntaxError(shorten(str(error).splitlines()[0]), 1, 1) from None
    return {} if value is None else value


def _duplicate_keys(value: object, path: str) -> list[Problem]:
    found: list[Problem] = []
    if isinstance(value, JsonObject):
        for key in value.duplicates:
            message = f"'{shorten(key, 64)}' is defined more than once"
            found.append(Problem(join_path(path, key), message, "keep one"))
        for key, inner in value.items():
            found += _duplicate_keys(inner, join_path(path, key))
    elif isinstance(value, list):
        for index, inner in enumerate(value):
            found += _duplicate_keys(inner, join_path(path, index))
    return found


def read_layout(document: object, problems: list[Problem], warnings: list[str]) -> DocumentLayout:
    """Split a document with `mcpServers`, `services.mcp` or `mcp` into servers and settings.

    Everything that fits neither is added to `problems`.
    """
    if not isinstance(document, Mapping):
        message = f"the configuration must be an object, not {type_name(document)}"
        problems.append(Problem("$", message, _EXAMPLE))
        return DocumentLayout()
    members = {key: value for key, value in document.items() if value is not None}
    settings_name = "mcp.globalSettings" if "mcp" in members else "settings"
    for key in document:
        _check_top_level_key(key, problems, warnings, settings_name)
    _refuse_foreign_document(members, problems)
    if "services" in members and not members.keys().isdisjoint(("mcpServers", "mcp")):
        problems.append(Problem("$.services", "the servers are in two places", "keep one of them"))
    if "mcp" not in members:
        settings = _object(members.get("settings"), "$.settings", problems)
        if "services" in members and "mcpServers" not in members:
            services = read(members["services"], _Services, "$.services", problems)
            return DocumentLayout(_list_servers(services.mcp, "$.services.mcp", problems), settings)
        return DocumentLayout(_list_servers(members.get("mcpServers"), "$.mcpServers", problems), settings)
    if "mcpServers" in members:
        problems.append(Problem("$.mcp", "the file contains both 'mcp' and 'mcpServers'", "keep one"))
        return DocumentLayout()
    if "settings" in members:
        fix = "move them to 'mcp.globalSettings'"
        problems.append(Problem("$.settings", "'settings' cannot be combined with 'mcp'", fix))
    inner = read(members["mcp"], _Wrapped, "$.mcp", problems)
    return DocumentLayout(
        _list_servers(inner.servers, "$.mcp.servers", problems),
        _object(inner.global_settings, "$.mcp.globalSettings", problems),
        "$.mcp.globalSettings",
        inner.enabled is not False,
    )


@attrs.frozen(kw_only=True, eq=False, repr=False)
class _Wrapped(Record):
    """The member `mcp` of a document."""

    enabled: bool | None = field("Whether to start any server.")
    servers: object = field("The servers.")
    global_settings: object = field("The settings.")


@attrs.frozen(kw_only=True, eq=False, repr=False)
class _Services(Record):
    """The member `services` of a document."""

    mcp: object = field("The servers.")


def _object(value: object, path: str, problems: list[Problem]) -> Mapping[str, object]:
    try:
        return {} if value is None else require_object(value)
    except Invalid as error:
        problems.append(Problem(path, str(error), error.fix))
        return {}


def _list_servers(value: object, path: str, problems: list[Problem]) -> list[tuple[object, object, str]]:
    if value is None:
        return []
    if isinstance(value, list):
        return _parse_named_list(value, path, problems)
    if not isinstance(value, Mapping):
        problems.append(Problem(path, f"the servers must be an object, not {type_name(value)}", _EXAMPLE))
        return []
    return [(name, definition, join_path(path, str(name))) for name, definition in value.items()]


def _parse_named_list(value: object, path: str, problems: list[Problem]) -> list[tuple[object, object, str]]:
    """Split a list of definitions that contain their `name`."""
    if not isinstance(value, list):
        fix = 'write [{"name": "…", "command": "…"}]'
        problems.append(Problem(path, f"expected a list of servers, not {type_name(value)}", fix))
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


def _check_top_level_key(
    key: object, problems: list[Problem], warnings: list[str], settings_name: str
) -> None:
    """Editors keep other things in the same file, so only keys that look like ours are refused."""
    if key in _KNOWN_KEYS:
        return
    if not isinstance(key, str):
        problems.append(Problem("$", "a key of the document is not a string", _EXAMPLE))
        return
    path, shown = join_path("$", key), shorten(key, 64)
    if key in _FOREIGN_KEYS:
        message = f"mcpd does not read servers from '{key}'"
        problems.append(Problem(path, message, "rename it to 'mcpServers'"))
    elif (match := closest_match(key, _KNOWN_KEYS)) is not None:
        problems.append(Problem(path, f"unknown field '{shown}'", f"did you mean '{match}'?"))
    elif not is_comment(key):
        setting = closest_match(key, list(SETTINGS))
        if setting == "policies":  # without an error, calls that the user forbids would be allowed
            fix = f"move the rules to '{settings_name}.policies'"
            problems.append(Problem(path, f"mcpd does not read rules from '{shown}'", fix))
            return
        hint = f"; did you mean '{setting}' in '{settings_name}'?" if setting else ""
        warnings.append(f"{path}: '{shown}' is not used by mcpd here and was ignored{hint}")


def _refuse_foreign_document(members: Mapping[object, object], problems: list[Problem]) -> None:
    """Refuse a document in which nothing is a configuration of mcpd: it was probably named by mistake."""
    keys = [key for key in members if isinstance(key, str) and not is_comment(key)]
    if keys and not any(key in members for key in _KNOWN_KEYS) and not problems:
        message = "this is not a configuration of mcpd: it has no 'mcpServers'"
        problems.append(Problem("$", message, _EXAMPLE))


def _parse_variable(text: str, path: Path, environ: Mapping[str, str]) -> ConfigDocument:
    problems: list[Problem] = []
    servers = _parse_named_list(parse_text(text, "JSON", VARIABLE_SOURCE), "$", problems)
    return ConfigDocument(
        layout=DocumentLayout(servers),
        problems=problems,
        source=VARIABLE_SOURCE,
        path=path,
        base_dir=Path(expand_home("~", environ)),
        digest=sha256(text.encode("utf-8", "surrogateescape")).hexdigest(),
    )

"""Where the configuration comes from: a variable, a flag, a variable's path or the default file."""

from __future__ import annotations

import hashlib
import os
import stat
from collections.abc import Mapping
from pathlib import Path

import attrs

from mcpd.config.definition import parse_located_servers
from mcpd.config.formats import SUFFIXES, decode_utf8, format_of, parse_text
from mcpd.config.json_path import closest_match, join_path
from mcpd.config.layout import DocumentLayout, parse_server_list, read_layout
from mcpd.config.settings import Settings, parse_settings
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

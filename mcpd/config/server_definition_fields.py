"""The fields of one definition → a ServerSpec: those of every server, then those of its transport."""

from __future__ import annotations

import os.path
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Literal, get_args
from urllib.parse import urlsplit

import attrs

from mcpd.config.field_names import FIELDS, TRANSPORT_TYPES
from mcpd.config.json_path import closest_match, join_path
from mcpd.config.oauth_fields import parse_oauth
from mcpd.config.section_reader import Section, parse_restart_policy, parse_timeouts
from mcpd.config.settings import Settings
from mcpd.config.variables import expand_home
from mcpd.model.errors import Problem
from mcpd.model.server_spec import Concurrency, Era, RemoteSpec, ServerSpec, Share, StdioSpec
from mcpd.model.text import shorten

RemoteKind = Literal["http", "sse", "ws"]
TransportKind = Literal["stdio", RemoteKind]

_DEFAULT = ServerSpec(name="")
_DEFAULT_UMASK = StdioSpec(name="", command="").umask
_CONCURRENCY: Mapping[str, Concurrency] = {
    "auto": "auto",
    "free": "free",
    "writes": "writes",
    "serial": "serial",
}
_SHARE: Mapping[str, Share] = {each: each for each in get_args(Share)}
_ERAS: Mapping[str, Era] = {"auto": "auto", "modern": "modern", "legacy": "legacy"}
_HEADER = re.compile(r"[!#$%&'*+.^_`|~0-9A-Za-z-]+")
_DURATION = re.compile(r"([1-9][0-9]{0,5})([smh])")
_UNITS = {"s": 1.0, "m": 60.0, "h": 3600.0}
_SCHEMES: Mapping[str, tuple[str, ...]] = {
    "http": ("http", "https"),
    "sse": ("http", "https"),
    "ws": ("ws", "wss"),
}


def parse_common_fields(name: str, section: Section, settings: Settings, warnings: list[str]) -> ServerSpec:
    """Read the fields that do not depend on the transport. Invalid fields get their default and a problem."""
    include = section.strings("includeTools")
    if include == ():
        warnings.append(f"{section.path}: 'includeTools' is empty, so the server provides no tools")
    debug = section.boolean("debug")
    description = section.string("description") if section.values.get("description") != "" else ""
    validate = section.boolean("validate")
    return ServerSpec(
        name=name,
        enabled=_is_enabled(section),
        lazy=section.boolean("lazy") or False,
        include_tools=include,
        exclude_tools=section.strings("excludeTools") or (),
        tags=_tags(section, "tags"),
        tool_tags=_tool_tags(section),
        cache=_cache(section),
        read_only=section.boolean("readOnly") or False,
        trust=section.boolean("trust") or False,
        debug=settings.debug if debug is None else debug,
        validate=settings.validate if validate is None else validate,
        description=description or "",
        era=section.choice("era", _ERAS) or _DEFAULT.era,
        timeouts=parse_timeouts(section, settings.timeouts, warnings),
        restart=parse_restart_policy(section, settings.restart),
        max_frame=_integer(section, "maxFrame", 1024, _DEFAULT.max_frame),
        max_in_flight=_integer(section, "maxInFlight", 1, _DEFAULT.max_in_flight),
        max_queued=_integer(section, "maxQueued", 0, _DEFAULT.max_queued),
        concurrency=section.choice("concurrency", _CONCURRENCY) or _DEFAULT.concurrency,
        share=section.choice("share", _SHARE) or _DEFAULT.share,
        is_single_process=section.has("share") or section.has("concurrency"),
    )


def _tool_tags(section: Section) -> dict[str, tuple[str, ...]]:
    child = section.child("toolTags")
    return {} if child is None else {pattern: _tags(child, pattern) for pattern in child.values}


def _tags(section: Section, key: str) -> tuple[str, ...]:
    tags = section.strings(key) or ()
    for index, tag in enumerate(tags):
        if not tag or set(tag) & set("*?[]"):
            path = join_path(join_path(section.path, key), index)
            section.problems.append(Problem(path, f"{tag!r} is not a tag", "write a word, such as work"))
    return tags


def _cache(section: Section) -> dict[str, float] | None:
    if section.values.get("cache") is False:
        return None
    lifetimes = {}
    for tool, text in (section.string_map("cache") or {}).items():
        found = _DURATION.fullmatch(text)
        if found is None:
            path = join_path(join_path(section.path, "cache"), tool)
            section.problems.append(Problem(path, f"{text!r} is not a duration", 'write "60s", "5m" or "1h"'))
        else:
            lifetimes[tool] = int(found[1]) * _UNITS[found[2]]
    return lifetimes


def _integer(section: Section, key: str, minimum: int, default: int) -> int:
    value = section.integer(key, minimum=minimum)
    return default if value is None else value


def _is_enabled(section: Section) -> bool:
    enabled, disabled = section.boolean("enabled"), section.boolean("disabled")
    if enabled is not None and disabled is not None and enabled == disabled:
        section.add_problem("disabled", "'enabled' and 'disabled' contradict each other", "keep one")
    return not disabled if enabled is None else enabled


def parse_transport_fields(
    section: Section, common: ServerSpec, base_dir: Path, environ: Mapping[str, str], warnings: list[str]
) -> ServerSpec | None:
    """Return the complete spec, or None if a problem was added to the section.

    Relative paths are resolved against `base_dir`.
    """
    before = len(section.problems)
    kind = _transport_kind(common.name, section)
    if kind is None:
        return None
    side = "stdio" if kind == "stdio" else "remote"
    for field in FIELDS:
        is_for_other_side = field.applies_to not in (None, side) and field.name not in ("command", "url")
        if is_for_other_side and section.has(field.name):
            path = join_path(section.path, field.name)
            warnings.append(f"{path}: '{field.name}' has no effect for {_with_article(kind)} server")
    if kind == "stdio":
        spec: ServerSpec | None = _parse_stdio(section, common, base_dir, environ, warnings)
    else:
        spec = _parse_remote(kind, section, common, base_dir, environ, warnings)
    return spec if len(section.problems) == before else None


def _transport_kind(name: str, section: Section) -> TransportKind | None:
    url = section.values.get("url")
    has_url = section.has("url") or section.has("httpUrl")
    if section.has("command") and has_url:
        message = f"server '{name}' has both 'command' and a URL"
        section.add_problem(None, message, "keep 'command' for a program, or 'url' for a remote server")
        return None
    if section.has("type"):
        text = section.string("type")
        if text is None:
            return None
        kind = TRANSPORT_TYPES.get(text) or TRANSPORT_TYPES.get(text.lower())
        if kind is None:
            match = closest_match(text, list(TRANSPORT_TYPES))
            fix = f"did you mean '{match}'?" if match else "write one of stdio, http, sse, ws"
            section.add_problem("type", f"unknown type '{shorten(text, 40)}' of server '{name}'", fix)
        return kind
    if section.has("command"):
        return "stdio"
    if section.has("httpUrl"):
        return "http"
    if has_url:
        return "ws" if isinstance(url, str) and url.startswith(("ws://", "wss://")) else "http"
    message = f"Missing 'command' or 'url' in server '{name}'"
    section.add_problem(None, message, "add 'command' for a program, or 'url' for a remote server")
    return None


def _parse_stdio(
    section: Section, common: ServerSpec, base_dir: Path, environ: Mapping[str, str], warnings: list[str]
) -> StdioSpec | None:
    command, args = _parse_command(common.name, section, warnings)
    env = section.string_map("env") or {}
    for variable in env:
        if not variable or "=" in variable or "\0" in variable:
            path = join_path(join_path(section.path, "env"), variable)
            section.problems.append(
                Problem(path, "invalid name of an environment variable", "write a name without '='")
            )
    cwd = section.string("cwd")
    if command is None:
        return None
    return StdioSpec(
        **attrs.asdict(common, recurse=False),
        command=expand_home(command, environ),
        args=args,
        env=env,
        cwd=None if cwd is None else os.path.normpath(base_dir / expand_home(cwd, environ)),
        umask=_parse_umask(section),
    )


def _parse_command(name: str, section: Section, warnings: list[str]) -> tuple[str | None, tuple[str, ...]]:
    args = section.strings("args") or ()
    value = section.values.get("command")
    missing = f"Missing 'command' in stdio server '{name}'"
    if isinstance(value, list):
        words = section.strings("command") or ()
        if not words or not words[0]:
            section.add_problem("command", missing, "write the program as the first item")
            return None, args
        return words[0], (*words[1:], *args)
    if value is None:
        fix = "add 'command': the program to start"
        if section.has("url") or section.has("httpUrl"):
            fix = "add 'command', or write 'type': 'http' for a server with a URL"
        section.add_problem(None, missing, fix)
        return None, args
    command = section.string("command")
    if command is not None and not args and re.search(r"\S\s+\S", command) and not os.path.exists(command):
        program = shorten(command.split()[0], 40)
        warnings.append(
            f"{join_path(section.path, 'command')}: the whole string is used as the name of one program;"
            f" to run '{program}', move the rest to 'args'"
        )
    return command, args


def _parse_umask(section: Section) -> int:
    value = section.values.get("umask")
    text = None if isinstance(value, int) else section.string("umask")
    if text is not None and re.fullmatch(r"0?[0-7]{3}", text):
        return int(text, 8)
    if text is not None or isinstance(value, int):
        message = "'umask' must be a string of three octal digits"
        section.add_problem("umask", message, 'write for example "022", in quotes')
    return _DEFAULT_UMASK


def _parse_remote(
    kind: RemoteKind,
    section: Section,
    common: ServerSpec,
    base_dir: Path,
    environ: Mapping[str, str],
    warnings: list[str],
) -> RemoteSpec | None:
    key = "httpUrl" if section.has("httpUrl") else "url"
    if section.has("url") and section.has("httpUrl"):
        section.add_problem("httpUrl", "'url' and 'httpUrl' mean the same", "keep one")
    headers = section.string_map("headers") or {}
    for header, value in headers.items():
        path = join_path(join_path(section.path, "headers"), header)
        if not _HEADER.fullmatch(header):
            section.problems.append(Problem(path, "invalid header name", "use letters, digits and '-'"))
        elif any((c < " " and c != "\t") or c == "\x7f" for c in value):
            message = "the header's value contains a line break or control character"
            section.problems.append(Problem(path, message, "remove it; did it come from a variable?"))
        elif not value.isascii():
            message = "the header's value contains a character that is not ASCII"
            section.problems.append(Problem(path, message, "encode it as the server expects"))
    if not section.has(key):
        message = f"Missing 'url' in {kind} server '{common.name}'"
        section.add_problem(None, message, "add 'url': the address of the server")
        return None
    url = section.string(key)
    if url is None:
        return None
    if key not in section.unresolved:
        _check_url(kind, key, url, section)
    ca_file = section.string("caFile")
    oauth = parse_oauth(section, warnings)
    return RemoteSpec(
        **attrs.asdict(common, recurse=False),
        kind=kind,
        url=url,
        headers=headers,
        kind_is_explicit=section.has("type") or section.has("httpUrl"),
        ca_file=None if ca_file is None else os.path.normpath(base_dir / expand_home(ca_file, environ)),
        oauth=oauth,
    )


def _check_url(kind: RemoteKind, key: str, url: str, section: Section) -> None:
    """Add a problem if the URL is not valid. It is never quoted: it may contain a secret."""
    schemes = _SCHEMES[kind]
    fix = f"write {schemes[-1]}://HOST/PATH"
    try:
        parts = urlsplit(url)
        host, _ = parts.hostname, parts.port
    except ValueError as error:
        section.add_problem(key, f"'{key}' is not a valid URL: {shorten(str(error), 60)}", fix)
        return
    if parts.scheme not in schemes:
        message = f"'{key}' of {_with_article(kind)} server must begin with {schemes[0]}: or {schemes[1]}:"
    elif not host:
        message = f"'{key}' has no host"
    elif re.search(r"[\s\x00-\x1f]", url):
        message, fix = f"'{key}' contains a space or control character", "write it as %20, or remove it"
    else:
        return
    section.add_problem(key, message, fix)


def _with_article(kind: TransportKind) -> str:
    return f"an {kind}" if kind in ("sse", "http") else f"a {kind}"

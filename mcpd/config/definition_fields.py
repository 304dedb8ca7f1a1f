"""The fields that every kind of server has: whether it runs, its tools, its patience."""

from __future__ import annotations

import os.path
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Literal, TypeVar
from urllib.parse import urlsplit

import attrs

from mcpd.config.fields import FIELDS, TRANSPORT_TYPES
from mcpd.config.json_path import closest_match, join_path
from mcpd.config.section import Section, parse_restart_policy, parse_timeouts
from mcpd.config.settings import Settings
from mcpd.model.errors import Problem
from mcpd.model.server_spec import (
    Concurrency,
    Era,
    RemoteSpec,
    RestartPolicy,
    ServerSpec,
    Share,
    StdioSpec,
    Timeouts,
)
from mcpd.model.text import shorten

T = TypeVar("T")
_DEFAULT = ServerSpec(name="")
_CONCURRENCY: Mapping[str, Concurrency] = {"free": "free", "writes": "writes", "serial": "serial"}
_SHARE: Mapping[str, Share] = {"all": "all", "root": "root", "client": "client"}


@attrs.frozen(kw_only=True)
class Shared:
    """The part of a ServerSpec that does not depend on how the server is reached."""

    enabled: bool
    lazy: bool
    trust: bool
    include_tools: tuple[str, ...] | None
    exclude_tools: tuple[str, ...]
    debug: bool
    description: str
    era: Era
    timeouts: Timeouts
    restart: RestartPolicy
    max_frame: int
    max_in_flight: int
    max_queued: int
    concurrency: Concurrency
    share: Share


def parse_common_fields(section: Section, settings: Settings, warnings: list[str]) -> Shared:
    """Read them from `section`; complaints go to its problems, and a default stands in."""
    include = section.strings("includeTools")
    if include == ():
        warnings.append(f"{section.path}: 'includeTools' is empty, so none of its tools is offered")
    debug = section.boolean("debug")
    description = section.string("description") if section.values.get("description") != "" else ""
    return Shared(
        enabled=_enabled(section),
        lazy=section.boolean("lazy") or False,
        trust=section.boolean("trust") or False,
        include_tools=include,
        exclude_tools=section.strings("excludeTools") or (),
        debug=settings.debug if debug is None else debug,
        description=description or "",
        era=_era(section),
        timeouts=parse_timeouts(section, settings.timeouts, warnings),
        restart=parse_restart_policy(section, settings.restart),
        max_frame=_or(section.integer("maxFrame", minimum=1024), _DEFAULT.max_frame),
        max_in_flight=_or(section.integer("maxInFlight", minimum=1), _DEFAULT.max_in_flight),
        max_queued=_or(section.integer("maxQueued", minimum=0), _DEFAULT.max_queued),
        concurrency=_one_of(section, "concurrency", _CONCURRENCY) or _DEFAULT.concurrency,
        share=_one_of(section, "share", _SHARE) or _DEFAULT.share,
    )


def _one_of(section: Section, field: str, values: Mapping[str, T]) -> T | None:
    """None for none or a wrong one, which has been complained about."""
    said = section.string(field)
    if said is not None and said not in values:
        section.add_problem(field, f"unknown '{shorten(said, 40)}'", f"write one of {', '.join(values)}")
    return None if said is None else values.get(said)


def _enabled(section: Section) -> bool:
    enabled, disabled = section.boolean("enabled"), section.boolean("disabled")
    if enabled is not None and disabled is not None and enabled == disabled:
        section.add_problem("disabled", "'enabled' and 'disabled' contradict each other", "keep one")
    if enabled is not None:
        return enabled
    return not disabled


def _era(section: Section) -> Era:
    match section.string("era"):
        case None | "auto":
            return "auto"
        case "modern":
            return "modern"
        case "legacy":
            return "legacy"
        case other:
            section.add_problem(
                "era", f"unknown era '{shorten(other, 40)}'", "write one of auto, modern, legacy"
            )
            return "auto"


def _or(value: int | None, default: int) -> int:
    return default if value is None else value


TransportKind = Literal["stdio", "http", "sse", "ws"]

_PRIVATE = StdioSpec(name="", command="").umask
_HEADER = re.compile(r"[!#$%&'*+.^_`|~0-9A-Za-z-]+")
_SCHEMES: Mapping[str, tuple[str, ...]] = {
    "http": ("http", "https"),
    "sse": ("http", "https"),
    "ws": ("ws", "wss"),
}


def parse_transport_fields(
    name: str,
    section: Section,
    common: Shared,
    base_dir: Path,
    environ: Mapping[str, str],
    warnings: list[str],
) -> ServerSpec | None:
    """The whole spec, or None when `section.problems` has the reason."""
    before = len(section.problems)
    kind = _transport_kind(name, section)
    if kind is None:
        return None
    side = "stdio" if kind == "stdio" else "remote"
    for field in FIELDS:
        if (
            field.applies_to not in (None, side)
            and section.has(field.name)
            and field.name not in ("command", "url")
        ):
            warnings.append(
                f"{join_path(section.path, field.name)}: "
                f"'{field.name}' means nothing for {_with_article(kind)} server"
            )
    spec = (
        _parse_stdio(name, section, common, base_dir, environ, warnings)
        if kind == "stdio"
        else _parse_remote(name, kind, section, common, base_dir, environ)
    )
    return spec if len(section.problems) == before else None


def _transport_kind(name: str, section: Section) -> TransportKind | None:
    url = section.values.get("url")
    command, remote = section.has("command"), section.has("url") or section.has("httpUrl")
    if command and remote:
        message = f"server '{name}' has both 'command' and a URL"
        section.add_problem(None, message, "keep 'command' for a program, or 'url' for a remote server")
        return None
    if section.has("type"):
        written = section.string("type")
        if written is None:
            return None
        kind = TRANSPORT_TYPES.get(written) or TRANSPORT_TYPES.get(written.lower())
        if kind is None:
            meant = closest_match(written, list(TRANSPORT_TYPES))
            fix = f"did you mean '{meant}'?" if meant else "write one of stdio, http, sse, ws"
            section.add_problem("type", f"unknown type '{shorten(written, 40)}' of server '{name}'", fix)
        return kind
    if command:
        return "stdio"
    if section.has("httpUrl"):
        return "http"
    if remote:
        return "ws" if isinstance(url, str) and url.startswith(("ws://", "wss://")) else "http"
    message = f"Missing 'command' or 'url' in server '{name}'"
    section.add_problem(None, message, "add 'command' for a program, or 'url' for a remote server")
    return None


def _parse_stdio(
    name: str,
    section: Section,
    common: Shared,
    base_dir: Path,
    environ: Mapping[str, str],
    warnings: list[str],
) -> StdioSpec | None:
    command, args = _parse_command(name, section, warnings)
    env = section.string_map("env") or {}
    for variable in env:
        if not variable or "=" in variable or "\0" in variable:
            place = join_path(join_path(section.path, "env"), variable)
            fix = "write a name without '='"
            section.problems.append(Problem(place, "this is no name of an environment variable", fix))
    cwd = section.string("cwd")
    if command is None:
        return None
    return StdioSpec(
        name=name,
        command=_expand_home(command, environ),
        args=args,
        env=env,
        cwd=None if cwd is None else os.path.normpath(base_dir / _expand_home(cwd, environ)),
        umask=_parse_umask(section),
        **attrs.asdict(common, recurse=False),
    )


def _parse_command(name: str, section: Section, warnings: list[str]) -> tuple[str | None, tuple[str, ...]]:
    args = section.strings("args") or ()
    written = section.values.get("command")
    if isinstance(written, list):
        whole = section.strings("command") or ()
        if not whole or not whole[0]:
            section.add_problem(
                "command", f"Missing 'command' in stdio server '{name}'", "name the program first"
            )
            return None, args
        return whole[0], (*whole[1:], *args)
    if written is None:
        fix = "add 'command': the program to start"
        if section.has("url") or section.has("httpUrl"):
            fix = "add 'command', or write 'type': 'http' for a server with a URL"
        section.add_problem(None, f"Missing 'command' in stdio server '{name}'", fix)
        return None, args
    command = section.string("command")
    if command is not None and not args and re.search(r"\S\s+\S", command) and not os.path.exists(command):
        program = shorten(command.split()[0], 40)
        warnings.append(
            f"{join_path(section.path, 'command')}: the whole text is taken for the name of one program;"
            f" if '{program}' is meant, write the rest into 'args'"
        )
    return command, args


def _parse_umask(section: Section) -> int:
    written = section.values.get("umask")
    text = None if isinstance(written, int) else section.string("umask")
    if text is not None and re.fullmatch(r"0?[0-7]{3}", text):
        return int(text, 8)
    if text is not None or isinstance(written, int):
        section.add_problem(
            "umask", "'umask' must be a string of three octal digits", 'write for example "022", in quotes'
        )
    return _PRIVATE


def _parse_remote(
    name: str,
    kind: Literal["http", "sse", "ws"],
    section: Section,
    common: Shared,
    base_dir: Path,
    environ: Mapping[str, str],
) -> RemoteSpec | None:
    key = "httpUrl" if section.has("httpUrl") else "url"
    if section.has("url") and section.has("httpUrl"):
        section.add_problem("httpUrl", "'url' and 'httpUrl' mean the same", "keep one")
    headers = section.string_map("headers") or {}
    for header, value in headers.items():
        place = join_path(join_path(section.path, "headers"), header)
        if not _HEADER.fullmatch(header):
            problem = Problem(place, "this is no name of a header", "write letters, digits and '-'")
            section.problems.append(problem)
        elif any(ord(c) < 32 and c != "\t" for c in value):
            message = "the header's value has a line break or control character"
            section.problems.append(Problem(place, message, "remove it; did it come from a variable?"))
    if not section.has(key):
        section.add_problem(
            None, f"Missing 'url' in {kind} server '{name}'", "add 'url': where the server listens"
        )
        return None
    url = section.string(key)
    if url is None or not (key in section.unresolved or _check_url(kind, key, url, section)):
        return None
    ca_file = section.string("caFile")
    return RemoteSpec(
        name=name,
        kind=kind,
        url=url,
        headers=headers,
        kind_is_explicit=section.has("type") or section.has("httpUrl"),
        ca_file=None if ca_file is None else os.path.normpath(base_dir / _expand_home(ca_file, environ)),
        **attrs.asdict(common, recurse=False),
    )


def _check_url(kind: Literal["http", "sse", "ws"], key: str, url: str, section: Section) -> bool:
    """The URL is never quoted: it may hold a secret."""
    schemes = _SCHEMES[kind]
    fix = f"write {schemes[-1]}://HOST/PATH"
    try:
        parts = urlsplit(url)
        host, _ = parts.hostname, parts.port
    except ValueError as error:
        section.add_problem(key, f"'{key}' is no URL: {shorten(str(error), 60)}", fix)
        return False
    if parts.scheme not in schemes:
        fault = f"must begin with {schemes[0]}: or {schemes[1]}:"
        section.add_problem(key, f"'{key}' of {_with_article(kind)} server {fault}", fix)
    elif not host:
        section.add_problem(key, f"'{key}' names no host", fix)
    elif any(c.isspace() or ord(c) < 32 for c in url):
        section.add_problem(
            key, f"'{key}' has a blank or control character in it", "write it as %20, or remove it"
        )
    else:
        return True
    return False


def _expand_home(path: str, environ: Mapping[str, str]) -> str:
    if path == "~" or path.startswith("~/"):
        return (environ.get("HOME") or os.path.expanduser("~")) + path[1:]
    return path


def _with_article(kind: TransportKind) -> str:
    return f"an {kind}" if kind in ("sse", "http") else f"a {kind}"

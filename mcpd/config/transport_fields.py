"""How a server is reached: a program with arguments, or a URL; and what is wrong with the way it was said."""

from __future__ import annotations

import os.path
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Literal
from urllib.parse import urlsplit

import attrs

from mcpd.config.common_fields import Shared
from mcpd.config.fields import FIELDS, TYPES
from mcpd.config.json_path import at, nearest
from mcpd.config.section import Section
from mcpd.model.errors import Problem
from mcpd.model.server_spec import RemoteSpec, ServerSpec, StdioSpec
from mcpd.model.text import shorten

Kind = Literal["stdio", "http", "sse", "ws"]

_PRIVATE = StdioSpec(name="", command="").umask
_HEADER = re.compile(r"[!#$%&'*+.^_`|~0-9A-Za-z-]+")
_SCHEMES: Mapping[str, tuple[str, ...]] = {
    "http": ("http", "https"),
    "sse": ("http", "https"),
    "ws": ("ws", "wss"),
}


def reach(
    name: str,
    section: Section,
    common: Shared,
    base_dir: Path,
    environ: Mapping[str, str],
    warnings: list[str],
) -> ServerSpec | None:
    """The whole spec, or None when `section.problems` has the reason."""
    before = len(section.problems)
    kind = _kind(name, section)
    if kind is None:
        return None
    side = "stdio" if kind == "stdio" else "remote"
    for field in FIELDS:
        if (
            field.only not in (None, side)
            and section.has(field.name)
            and field.name not in ("command", "url")
        ):
            warnings.append(
                f"{at(section.place, field.name)}: '{field.name}' means nothing for {_a(kind)} server"
            )
    spec = (
        _stdio(name, section, common, base_dir, environ, warnings)
        if kind == "stdio"
        else _remote(name, kind, section, common, base_dir, environ)
    )
    return spec if len(section.problems) == before else None


def _kind(name: str, section: Section) -> Kind | None:
    url = section.values.get("url")
    command, remote = section.has("command"), section.has("url") or section.has("httpUrl")
    if command and remote:
        message = f"server '{name}' has both 'command' and a URL"
        section.complain(None, message, "keep 'command' for a program, or 'url' for a remote server")
        return None
    if section.has("type"):
        written = section.string("type")
        if written is None:
            return None
        kind = TYPES.get(written) or TYPES.get(written.lower())
        if kind is None:
            meant = nearest(written, list(TYPES))
            fix = f"did you mean '{meant}'?" if meant else "write one of stdio, http, sse, ws"
            section.complain("type", f"unknown type '{shorten(written, 40)}' of server '{name}'", fix)
        return kind
    if command:
        return "stdio"
    if section.has("httpUrl"):
        return "http"
    if remote:
        return "ws" if isinstance(url, str) and url.startswith(("ws://", "wss://")) else "http"
    message = f"Missing 'command' or 'url' in server '{name}'"
    section.complain(None, message, "add 'command' for a program, or 'url' for a remote server")
    return None


def _stdio(
    name: str,
    section: Section,
    common: Shared,
    base_dir: Path,
    environ: Mapping[str, str],
    warnings: list[str],
) -> StdioSpec | None:
    command, args = _command(name, section, warnings)
    env = section.string_map("env") or {}
    for variable in env:
        if not variable or "=" in variable or "\0" in variable:
            place = at(at(section.place, "env"), variable)
            fix = "write a name without '='"
            section.problems.append(Problem(place, "this is no name of an environment variable", fix))
    cwd = section.string("cwd")
    if command is None:
        return None
    return StdioSpec(
        name=name,
        command=_from_home(command, environ),
        args=args,
        env=env,
        cwd=None if cwd is None else os.path.normpath(base_dir / _from_home(cwd, environ)),
        umask=_umask(section),
        **attrs.asdict(common, recurse=False),
    )


def _command(name: str, section: Section, warnings: list[str]) -> tuple[str | None, tuple[str, ...]]:
    args = section.strings("args") or ()
    written = section.values.get("command")
    if isinstance(written, list):
        whole = section.strings("command") or ()
        if not whole or not whole[0]:
            section.complain(
                "command", f"Missing 'command' in stdio server '{name}'", "name the program first"
            )
            return None, args
        return whole[0], (*whole[1:], *args)
    if written is None:
        fix = "add 'command': the program to start"
        if section.has("url") or section.has("httpUrl"):
            fix = "add 'command', or write 'type': 'http' for a server with a URL"
        section.complain(None, f"Missing 'command' in stdio server '{name}'", fix)
        return None, args
    command = section.string("command")
    if command is not None and not args and re.search(r"\S\s+\S", command) and not os.path.exists(command):
        program = shorten(command.split()[0], 40)
        warnings.append(
            f"{at(section.place, 'command')}: the whole text is taken for the name of one program;"
            f" if '{program}' is meant, write the rest into 'args'"
        )
    return command, args


def _umask(section: Section) -> int:
    written = section.values.get("umask")
    text = None if isinstance(written, int) else section.string("umask")
    if text is not None and re.fullmatch(r"0?[0-7]{3}", text):
        return int(text, 8)
    if text is not None or isinstance(written, int):
        section.complain(
            "umask", "'umask' must be a string of three octal digits", 'write for example "022", in quotes'
        )
    return _PRIVATE


def _remote(
    name: str,
    kind: Literal["http", "sse", "ws"],
    section: Section,
    common: Shared,
    base_dir: Path,
    environ: Mapping[str, str],
) -> RemoteSpec | None:
    key = "httpUrl" if section.has("httpUrl") else "url"
    if section.has("url") and section.has("httpUrl"):
        section.complain("httpUrl", "'url' and 'httpUrl' mean the same", "keep one")
    headers = section.string_map("headers") or {}
    for header, value in headers.items():
        place = at(at(section.place, "headers"), header)
        if not _HEADER.fullmatch(header):
            problem = Problem(place, "this is no name of a header", "write letters, digits and '-'")
            section.problems.append(problem)
        elif any(ord(c) < 32 and c != "\t" for c in value):
            message = "the header's value has a line break or control character"
            section.problems.append(Problem(place, message, "remove it; did it come from a variable?"))
    if not section.has(key):
        section.complain(
            None, f"Missing 'url' in {kind} server '{name}'", "add 'url': where the server listens"
        )
        return None
    url = section.string(key)
    if url is None or not (key in section.later or _good_url(kind, key, url, section)):
        return None
    ca_file = section.string("caFile")
    return RemoteSpec(
        name=name,
        kind=kind,
        url=url,
        headers=headers,
        kind_is_explicit=section.has("type") or section.has("httpUrl"),
        ca_file=None if ca_file is None else os.path.normpath(base_dir / _from_home(ca_file, environ)),
        **attrs.asdict(common, recurse=False),
    )


def _good_url(kind: Literal["http", "sse", "ws"], key: str, url: str, section: Section) -> bool:
    """The URL is never quoted: it may hold a secret."""
    schemes = _SCHEMES[kind]
    fix = f"write {schemes[-1]}://HOST/PATH"
    try:
        parts = urlsplit(url)
        host, _ = parts.hostname, parts.port
    except ValueError as error:
        section.complain(key, f"'{key}' is no URL: {shorten(str(error), 60)}", fix)
        return False
    if parts.scheme not in schemes:
        fault = f"must begin with {schemes[0]}: or {schemes[1]}:"
        section.complain(key, f"'{key}' of {_a(kind)} server {fault}", fix)
    elif not host:
        section.complain(key, f"'{key}' names no host", fix)
    elif any(c.isspace() or ord(c) < 32 for c in url):
        section.complain(
            key, f"'{key}' has a blank or control character in it", "write it as %20, or remove it"
        )
    else:
        return True
    return False


def _from_home(path: str, environ: Mapping[str, str]) -> str:
    if path == "~" or path.startswith("~/"):
        return (environ.get("HOME") or os.path.expanduser("~")) + path[1:]
    return path


def _a(kind: Kind) -> str:
    return f"an {kind}" if kind in ("sse", "http") else f"a {kind}"

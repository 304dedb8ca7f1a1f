"""Compares the URIs of resources with the patterns of policies, in every spelling that a server may accept.

URI parsers differ: in what they decode, in what `..` removes, in where a host ends, and in what they do with
backslashes, invisible characters and slashes that are missing or too many. So a URI has several *readings*. A
rule that restricts matches if any of them matches; one that allows, only if all of them do.
"""

from __future__ import annotations

import functools
import ipaddress
import re
import socket
from collections.abc import Callable
from contextlib import suppress
from fnmatch import translate
from urllib.parse import unquote

from mcpd.model.text import fold

_MAX_LENGTH = 2048
"""Characters of a URI that is compared."""
_MAX_DECODED = 3
"""How often escapes are decoded: servers may do it twice."""
_MAX_READINGS = 16
_SCHEME = re.compile(r"([a-z*?][a-z0-9+.*?-]*):(.*)", re.DOTALL)
"""Also of a pattern."""
_WRAPPED = re.compile(r"\A<?(?:url:)?(.*?)>?\Z", re.DOTALL)
"""Python's `urllib.request` accepts `<URL:file:///path>`."""
_PORTS = {"http": "80", "https": "443", "ws": "80", "wss": "443", "ftp": "21"}
"""The schemes that need a host, so that parsers take any number of slashes before it for two, and their usual
ports."""


def uri_matches(patterns: tuple[str, ...], uri: str, *, strict: bool) -> bool:
    """Return whether a URI matches any pattern. `strict` also accepts one that may lead to the same resource,
    and one with so many readings that it is hard to tell; without it, the URI as it is written and everything
    that it may lead to must match.
    """
    if not strict and not _pattern(patterns).fullmatch(uri):
        return False
    found = _forms(uri) if len(uri) <= _MAX_LENGTH else None
    if found is None:
        return strict
    certain, possible = found
    match = _pattern(tuple(form for each in patterns for form in _pattern_forms(each))).fullmatch
    return any(map(match, possible)) if strict else all(map(match, certain))


@functools.lru_cache(maxsize=4096)
def _pattern(patterns: tuple[str, ...]) -> re.Pattern[str]:
    return re.compile("|".join(translate(each) for each in patterns) or r"(?!)")


@functools.lru_cache(maxsize=8)  # the rules are compared with one URI after the other
def _forms(uri: str) -> tuple[frozenset[str], frozenset[str]] | None:
    """Return the forms of what a URI leads to, and these with all of what it may lead to; None if there are
    too many readings."""
    readings = _readings(uri)
    if readings is None:
        return None
    certain, possible = set[str](), {uri, fold(uri)}
    for reading in readings:
        scheme, rest = _split_scheme(reading)
        path_only = re.split("[?#]", rest, maxsplit=1)[0]
        for part in {rest, path_only}:
            host, path = _split_host(scheme, part)
            names = _hosts(scheme, host)
            if part == rest or scheme == "file":  # in which a query means nothing
                certain |= {_join(scheme, names[0], path), _join(scheme, "", f"{names[0]}/{path}")}
            for plain in _decodings(path):
                for name in names:
                    possible |= {_join(scheme, name, plain), _join(scheme, "", f"{name}/{plain}")}
                possible.add(_without_host(scheme, plain))
    return frozenset(certain), frozenset(possible | {f"{form}/" for form in possible})


@functools.lru_cache(maxsize=4096)
def _pattern_forms(pattern: str) -> tuple[str, ...]:
    """Return a pattern as it is written and in the forms to compare with those of URIs."""
    folded = fold(pattern)
    if not _SCHEME.fullmatch(folded):
        return (pattern, folded)
    forms = [pattern, folded]
    for text in dict.fromkeys((folded, fold(unquote(folded)))):
        scheme, rest = _split_scheme(text.replace("\\", "/"))
        host, path = _split_host(scheme, rest, is_pattern=True)
        name = _hosts(scheme, host)[0]
        forms.append(_join(scheme, name, path))
        if not name:
            forms.append(_without_host(scheme, path))
    return tuple(dict.fromkeys(forms))


def _readings(uri: str) -> set[str] | None:
    """Return what parsers may make of a URI before they split it; None if that is too much."""
    matched = _WRAPPED.match(fold(uri))
    found = {matched[1] if matched else ""}
    steps: tuple[Callable[[str], str], ...] = (
        _decoded,
        _with_slashes,
        _without_empty_parts,
        _without_dots,
        functools.partial(_without_dots, dot="."),
    )
    latest = found
    for _ in range(_MAX_DECODED + 1):
        latest = {step(text) for text in latest for step in steps} - found
        found = found | latest
        if len(found) > _MAX_READINGS:
            return None
        if not latest:
            break
    return found


def _decoded(text: str) -> str:
    return fold(unquote(text)) if "%" in text else text


def _decodings(text: str) -> list[str]:
    found = [text]
    while "%" in found[-1] and len(found) <= _MAX_DECODED:
        found.append(_decoded(found[-1]))
    return found


def _with_slashes(text: str) -> str:
    return text.replace("\\", "/")


def _without_empty_parts(text: str) -> str:
    scheme, rest = _split_scheme(text)
    below = rest.lstrip("/")
    return f"{scheme}:{rest[: len(rest) - len(below)]}{re.sub('//+', '/', below)}" if "//" in below else text


def _without_dots(text: str, dot: str = "%2e") -> str:
    """Remove `.` and `..` as the URL standard does, for which there is a part between two slashes, and `%2e`
    is a dot."""
    if "." not in text and dot not in text:
        return text
    scheme, rest = _split_scheme(text)
    if scheme in _PORTS:
        rest = f"//{rest.lstrip('/')}"
    end = rest.find("/", 2) if rest.startswith("//") else 0
    host, path = (rest, "") if end < 0 else (rest[:end], rest[end:])
    parts: list[str] = []
    for part in path.removeprefix("/").split("/"):
        plain = part.replace(dot, ".")
        if plain == "..":
            del parts[-1:]
        elif plain != ".":
            parts.append(part)
    return f"{scheme}:{host}{'/' if path.startswith('/') else ''}{'/'.join(parts)}"


def _split_scheme(text: str) -> tuple[str, str]:
    """Return the scheme and the rest. A text without a scheme is a path."""
    found = _SCHEME.fullmatch(text)
    return (found[1], found[2]) if found else ("file", text)


def _split_host(scheme: str, rest: str, *, is_pattern: bool = False) -> tuple[str, str]:
    if scheme in _PORTS:
        rest = f"//{rest.lstrip('/')}"
    if not rest.startswith("//"):
        return "", rest
    end = re.search("[/#]" if is_pattern else "[/?#]", rest[2:])
    return (rest[2:], "") if end is None else (rest[2 : end.start() + 2], rest[end.start() + 2 :])


def _hosts(scheme: str, written: str) -> list[str]:
    """Return the forms of a host and its port, the usual one first."""
    written = written.rpartition("@")[2]
    name, _, port = written.partition(":")
    if written.startswith("["):
        name, bracket, port = written.partition("]")
        name, port = name + bracket, port.removeprefix(":")
    name = ".".join(map(_plain_label, name.replace("\u3002", ".").rstrip(".").split(".")))
    if scheme == "file" and name == "localhost":
        name = ""
    with suppress(ValueError, OSError):
        if name.startswith("["):
            address = ipaddress.IPv6Address(name[1:-1])
            name = f"[{address}]" if address.ipv4_mapped is None else str(address.ipv4_mapped)
        elif name[:1].isdigit():
            name = str(ipaddress.IPv4Address(socket.inet_aton(name)))
    port, usual = port.lstrip("0") if port.isdigit() else port, _PORTS.get(scheme, "")
    if port and port != usual:
        return [f"{name}:{port}"] if usual else [f"{name}:{port}", name]
    return [name, f"{name}:{usual}"] if usual else [name]


def _plain_label(label: str) -> str:
    """Return a part of a host's name without the encoding of other letters than those of ASCII."""
    if label.startswith("xn--"):
        with suppress(UnicodeError):
            return fold(label[4:].encode("ascii").decode("punycode"))
    return label


def _join(scheme: str, host: str, path: str) -> str:
    return f"{scheme}:/{'/'.join([*([host] if host else []), *_parts(path)])}"


def _without_host(scheme: str, path: str) -> str:
    return f"{scheme}:///{'/'.join(_parts(path))}"


def _parts(path: str) -> list[str]:
    parts: list[str] = []
    for part in path.split("/"):
        if part == "..":
            del parts[-1:]
        elif part not in ("", "."):
            parts.append(part)
    return parts

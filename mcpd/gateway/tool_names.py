"""Public names: what a tool or prompt of one server among several is called towards MCP clients.

Clients and model APIs take at most 64 characters, several of them letters, digits, `_` and `-` only.
A name is looked up in a table, never taken apart, so neither cutting nor replacing is ambiguous.
"""

from __future__ import annotations

import hashlib
import re
from collections import Counter
from collections.abc import Iterable

from mcpd.model.qualified_names import ClientStyle, NameStyle, qualified_name

MAX_NAME_LENGTH = 64
_HASH_LENGTH = 8
_DISALLOWED = re.compile(r"[^A-Za-z0-9_-]")

OwnedName = tuple[str, str]
"""A server's name, and the name of one of its tools."""


def public_names(style: ClientStyle, owned: Iterable[OwnedName]) -> dict[str, OwnedName]:
    """Public name → (server, name), in the given order, one for each.

    The same pair has the same name whatever else there is, with two exceptions: `plain` says the
    server's name once another one has such a tool, and of two that would be called the same, the
    later one ends in a hash.
    """
    pairs = list(dict.fromkeys(owned))
    shared = Counter(name for _, name in pairs) if style is ClientStyle.PLAIN else Counter[str]()
    names: dict[str, OwnedName] = {}
    for pair in pairs:
        server, name = pair
        plain = style is ClientStyle.PLAIN and shared[name] == 1
        wished = _fit(style, name if plain else _join(style, server, name), pair)
        if wished in names:
            wished = _shorten_with_hash(wished, pair)
        names[wished] = pair
    return names


def _join(style: ClientStyle, server: str, name: str) -> str:
    if style in (ClientStyle.UNDERSCORES, ClientStyle.PLAIN):
        return f"{server}__{name}"
    return qualified_name(NameStyle(style.value), server, name)


def _fit(style: ClientStyle, name: str, pair: OwnedName) -> str:
    if style in (ClientStyle.UNDERSCORES, ClientStyle.PREFIX, ClientStyle.PLAIN):
        name = _DISALLOWED.sub("_", name)
    return name if len(name) <= MAX_NAME_LENGTH else _shorten_with_hash(name, pair)


def _shorten_with_hash(name: str, pair: OwnedName) -> str:
    """Short enough, and unlike any other: the hash is that of the pair."""
    digest = hashlib.sha256("\0".join(pair).encode("utf-8", "surrogatepass")).hexdigest()[:_HASH_LENGTH]
    return f"{name[: MAX_NAME_LENGTH - _HASH_LENGTH - 1]}_{digest}"

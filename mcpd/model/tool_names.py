"""Unique names for the tools of several servers: in mcpctl (`settings.toolNames`) and for MCP clients.

MCP clients and model APIs accept at most 64 characters, and some of them only letters, digits, `_` and `-`.
Client names are looked up in a table and never parsed, so neither shortening nor replacing is ambiguous.
A server name contains no `@`, `:` or `/`: `suffix` and `namespace` can be parsed, `prefix` cannot.
"""

from __future__ import annotations

import enum
import hashlib
import re
from collections import Counter
from collections.abc import Collection, Iterable

from mcpd.model.steps import Steps, run_steps


class NameStyle(enum.Enum):
    """`settings.toolNames`."""

    SUFFIX = "suffix"
    """`echo@test`."""
    PREFIX = "prefix"
    """`mcp_test_echo`."""
    NAMESPACE = "namespace"
    """`test::echo`."""


def qualified_name(style: NameStyle, server: str, tool: str) -> str:
    match style:
        case NameStyle.SUFFIX:
            return f"{tool}@{server}"
        case NameStyle.PREFIX:
            return f"mcp_{server}_{tool}"
        case NameStyle.NAMESPACE:
            return f"{server}::{tool}"


class ClientStyle(enum.Enum):
    """`settings.clientToolNames`: how MCP clients see the tools and prompts of several servers."""

    UNDERSCORES = "underscores"
    """`test__echo`: the default, because several clients accept only letters, digits, `_` and `-`."""
    SUFFIX = "suffix"
    """`echo@test`."""
    PREFIX = "prefix"
    """`mcp_test_echo`."""
    NAMESPACE = "namespace"
    """`test::echo`."""
    PLAIN = "plain"
    """`echo` if no other server has a tool of that name or was given the name before, else `test__echo`."""


MAX_NAME_LENGTH = 64
_HASH_LENGTH = 8
_PORTION = 200
"""Names in one step: each takes up to 5 µs."""
_DISALLOWED = re.compile(r"[^A-Za-z0-9_-]")

OwnedName = tuple[str, str]
"""(server name, tool name)."""


RESERVED_NAMES = frozenset(
    {"find_tools", "describe_tool", "call_tool", "read_result", "run_code", "read_resource", "get_prompt"}
)
"""The names of mcpd's own tools, which no tool of a server gets."""


class GivenNames:
    """The public names that clients were given: a name keeps its meaning, and a pair its name, as servers
    come and go. A running chat goes on using the names that it knows.
    """

    def __init__(self) -> None:
        self.meanings: dict[str, OwnedName] = {}
        self._names: dict[tuple[ClientStyle, OwnedName], str] = {}

    def name(self, style: ClientStyle, pair: OwnedName) -> str | None:
        """Return the name of a pair; None if it was given none."""
        return self._names.get((style, pair))

    def is_free(self, name: str, pair: OwnedName) -> bool:
        return self.meanings.get(name, pair) == pair and name not in RESERVED_NAMES

    def give(self, style: ClientStyle, pair: OwnedName, name: str) -> None:
        self.meanings[name] = pair
        self._names[style, pair] = name

    def keep_only(self, pairs: Collection[OwnedName]) -> None:
        """Forget all other pairs."""
        self.meanings = {name: pair for name, pair in self.meanings.items() if pair in pairs}
        self._names = {key: name for key, name in self._names.items() if key[1] in pairs}


def public_names(style: ClientStyle, owned: Iterable[OwnedName], prefix: str = "") -> dict[str, OwnedName]:
    """Do the same as `public_names_in_steps`, without a pause."""
    return run_steps(public_names_in_steps(style, owned, prefix))


def public_names_in_steps(
    style: ClientStyle, owned: Iterable[OwnedName], prefix: str = "", given: GivenNames | None = None
) -> Steps[dict[str, OwnedName]]:
    """Return public name → (server, name), in the given order, with one public name for each pair.

    With `prefix`, each name begins with it and an underscore: `read_file` → `fs_read_file`.

    The name of a pair does not depend on the others, with two exceptions: `plain` adds the server name if
    several servers have that tool, and of two pairs with the same public name the later one gets a hash.
    `given` are the names that must not change; new ones are added to it.
    """
    given = given or GivenNames()
    pairs: dict[OwnedName, None] = {}
    for number, pair in enumerate(owned):
        pairs[pair] = None
        if not number % _PORTION:
            yield
    shared = Counter(name for _, name in pairs) if style is ClientStyle.PLAIN else Counter[str]()
    names: dict[str, OwnedName] = {}
    for number, pair in enumerate(pairs):
        if not number % _PORTION:
            yield
        public = given.name(style, pair)
        if public is None:
            server, name = pair
            plain = style is ClientStyle.PLAIN and shared[name] == 1 and given.is_free(name, pair)
            public = name if plain else _join(style, server, name)
            public = _fit(style, f"{prefix}_{public}" if prefix else public, pair)
            if not given.is_free(public, pair):
                public = _shorten_with_hash(public, pair)
            given.give(style, pair, public)
        names[public] = pair
    return names


def tools_named(name: str, listed: Iterable[OwnedName], servers: Iterable[str] = ()) -> list[OwnedName]:
    """Return the tools (or prompts) that a user means by a name that contains the server: `test__echo`,
    `mcp_test_echo`, `echo@test`, `test::echo`, `test.echo` or `test/echo`, and as some editors name the tools
    of a server or of mcpd, `mcp__test__echo` and `mcp__mcpd__test__echo`. More than one is ambiguous.

    `listed` are all known tools. If none of them has this name, it may be a tool of one of `servers`, whose
    tools may be unknown.
    """
    pairs = list(dict.fromkeys(listed))
    found = {
        (server, tool): None for server, tool in pairs if name in (f"{server}.{tool}", f"{server}/{tool}")
    }
    for style in ClientStyle:
        if style is not ClientStyle.PLAIN and (pair := public_names(style, pairs).get(name)) is not None:
            found[pair] = None
    if not found and name.startswith("mcp__"):
        inner = name.removeprefix("mcp__")
        return tools_named(inner, pairs, servers) or tools_named(inner.removeprefix("mcpd__"), pairs, servers)
    if not found:
        for server in servers:
            for beginning in (f"{server}__", f"mcp_{server}_", f"{server}::", f"{server}.", f"{server}/"):
                if name.startswith(beginning) and len(name) > len(beginning):
                    found[server, name.removeprefix(beginning)] = None
            if name.endswith(f"@{server}") and len(name) > len(server) + 1:
                found[server, name.removesuffix(f"@{server}")] = None
    return list(found)


def own_name(style: ClientStyle, server: str, public: str) -> str:
    """Return the tool's own name if `public` looks like the name of a tool of that server, which need not be
    known; empty otherwise. Characters that the style replaces, and those that were cut off, are lost."""
    beginnings = {
        ClientStyle.PREFIX: _DISALLOWED.sub("_", f"mcp_{server}_"),
        ClientStyle.NAMESPACE: f"{server}::",
    }
    if style is ClientStyle.SUFFIX:
        return public.removesuffix(f"@{server}") if public.endswith(f"@{server}") else ""
    beginning = beginnings.get(style, _DISALLOWED.sub("_", f"{server}__"))
    return public.removeprefix(beginning) if public.startswith(beginning) else ""


def _join(style: ClientStyle, server: str, name: str) -> str:
    if style in (ClientStyle.UNDERSCORES, ClientStyle.PLAIN):
        return f"{server}__{name}"
    return qualified_name(NameStyle(style.value), server, name)


def _fit(style: ClientStyle, name: str, pair: OwnedName) -> str:
    is_long = len(name) > MAX_NAME_LENGTH
    name = name[:MAX_NAME_LENGTH]
    if style in (ClientStyle.UNDERSCORES, ClientStyle.PREFIX, ClientStyle.PLAIN):
        name = _DISALLOWED.sub("_", name)
    return _shorten_with_hash(name, pair) if is_long else name


def _shorten_with_hash(name: str, pair: OwnedName) -> str:
    """Cut `name` to the maximum length, ending in a hash of the pair that keeps it unique."""
    digest = hashlib.sha256("\0".join(pair).encode("utf-8", "surrogatepass")).hexdigest()[:_HASH_LENGTH]
    return f"{name[: MAX_NAME_LENGTH - _HASH_LENGTH - 1]}_{digest}"

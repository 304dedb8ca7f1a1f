"""Policies: rules that decide which client may use which tool, prompt or resource. Decides without any I/O.

The first rule that matches decides; without one, everything is allowed. Clients choose what they call
themselves, and servers how they name things, so a rule that restricts is matched generously, and a rule that
allows exactly:

- A restricting rule (`deny` or `ask`) also matches if mcpd does not know what it asks for, such as the
  executable of a client on a TCP connection, and names that only look like the one in the rule.
- An allowing rule matches only what is known, and only names as they are written.
"""

from __future__ import annotations

import enum
import functools
import re
import unicodedata
from collections.abc import Mapping, Sequence
from fnmatch import translate
from typing import Literal
from urllib.parse import unquote

import attrs

ItemKind = Literal["tool", "prompt", "resource", "method"]
"""What a client uses. `method`: a request that mcpd does not know and only forwards."""

TRANSPORTS = ("bridge", "socket", "http", "control")
"""How a client is connected: through `mcpctl bridge`, on the socket, over HTTP; and with which protocol:
`control` is the control API, which `mcpctl call` and the Python client use."""

HINTS: Mapping[str, bool] = {
    "readOnlyHint": False,
    "destructiveHint": True,
    "idempotentHint": False,
    "openWorldHint": True,
}
"""The annotations of tools that rules can ask for → what is assumed of a tool that does not say (MCP
2025-11-25, schema, ToolAnnotations)."""


class Decision(enum.Enum):
    ALLOW = "allow"
    ASK = "ask"
    """A person must approve each use."""
    DENY = "deny"


@attrs.frozen(kw_only=True, eq=False)
class ClientFacts:
    """What is known of a client. Compared by identity. Empty means unknown, except for `profile`."""

    names: tuple[str, ...] = ()
    """All names that it is known by: what it calls itself, and the name of its program."""
    executable: str = ""
    """The path of its program's file, according to the kernel."""
    transport: str = ""
    profile: str = ""
    directory: str = ""
    """Its working directory, according to the kernel."""


@attrs.frozen(kw_only=True)
class UsedItem:
    """What a client wants to use."""

    server: str
    kind: ItemKind
    name: str
    """The server's own name for it; the URI of a resource."""
    hints: Mapping[str, bool] | None = None
    """The annotations of a tool, with the assumed values. None if they are not known."""


@attrs.frozen(kw_only=True)
class PolicyRule:
    """One rule. A condition that is None is always met. Names are patterns with `*` and `?`."""

    decision: Decision
    place: str
    """Where it is written, as a JSON path: `$.settings.policies[2]`."""
    reason: str = ""
    """Why it exists, in the user's words."""
    clients: tuple[str, ...] | None = None
    executables: tuple[str, ...] | None = None
    """Paths; a pattern without `/` is compared with the last part."""
    transports: tuple[str, ...] | None = None
    profiles: tuple[str, ...] | None = None
    directories: tuple[str, ...] | None = None
    """Each includes all directories below it."""
    servers: tuple[str, ...] | None = None
    tools: tuple[str, ...] | None = None
    """`TOOL` or `TOOL@SERVER`."""
    prompts: tuple[str, ...] | None = None
    resources: tuple[str, ...] | None = None
    """URIs. A rule with any of `tools`, `prompts` and `resources` is about nothing else."""
    hints: Mapping[str, bool] | None = None
    """Annotations that a tool must have. A rule with them is about tools."""

    def mismatch(self, client: ClientFacts, item: UsedItem) -> str:
        """Return which condition is not met, in words; empty if the rule matches."""
        strict = self.decision is not Decision.ALLOW
        if self.servers is not None and not _matches(self.servers, (item.server,), strict=strict):
            return f"the server is {item.server}"
        if problem := self._item_mismatch(item, strict=strict):
            return problem
        for what, patterns, known in (
            ("client", self.clients, client.names),
            ("executable", self.executables, _path_forms(client.executable)),
            ("transport", self.transports, (client.transport,) if client.transport else ()),
        ):
            if patterns is None or (strict and not known):
                continue
            if not known:
                return f"the {what} is not known"
            if not _matches(patterns, known, strict=strict):
                return f"the {what} is {known[0]}"
        if self.profiles is not None and not _matches(self.profiles, (client.profile,), strict=strict):
            return f"the profile is {client.profile or 'not set'}"
        if self.directories is not None and not (strict and not client.directory):
            if not client.directory:
                return "the directory is not known"
            if not any(_is_within(client.directory, each) for each in self.directories):
                return f"the directory is {client.directory}"
        return ""

    def _item_mismatch(self, item: UsedItem, *, strict: bool) -> str:
        lists = {"tool": self.tools, "prompt": self.prompts, "resource": self.resources}
        patterns = lists.get(item.kind)
        if patterns is None and any(each is not None for each in lists.values()):
            return f"it is not about {item.kind}s"
        if patterns is not None:
            forms = (item.name, f"{item.name}@{item.server}") if item.kind == "tool" else (item.name,)
            if not _matches(patterns, forms, strict=strict, uri=item.kind == "resource"):
                return f"the {item.kind} is {item.name}"
        if self.hints is None:
            return ""
        if item.kind in ("prompt", "resource"):
            return f"it is not about {item.kind}s"
        if item.hints is None:
            return "" if strict else "the annotations are not known"
        for hint, value in self.hints.items():
            if item.hints[hint] is not value:
                return f"{hint} is {str(item.hints[hint]).lower()}"
        return ""


@attrs.frozen(kw_only=True)
class Verdict:
    """A decision, and the rule that made it; None if no rule matches."""

    decision: Decision
    rule: PolicyRule | None = None


ALLOWED = Verdict(decision=Decision.ALLOW)


def decide(rules: Sequence[PolicyRule], client: ClientFacts, item: UsedItem) -> Verdict:
    """Return the decision of the first rule that matches."""
    for rule in rules:
        if not rule.mismatch(client, item):
            return Verdict(decision=rule.decision, rule=rule)
    return ALLOWED


def read_only_rule(place: str, **condition: tuple[str, ...]) -> PolicyRule:
    """Return the rule that `readOnly: true` stands for: tools must be annotated as read-only."""
    return PolicyRule(
        decision=Decision.DENY,
        place=place,
        reason="only tools with readOnlyHint are allowed",
        hints={"readOnlyHint": False},
        **condition,
    )


def _path_forms(path: str) -> tuple[str, ...]:
    return (path, path.rpartition("/")[2]) if path else ()


def _is_within(directory: str, pattern: str) -> bool:
    """Return whether the directory, or one above it, matches. Wildcards do not match `/`."""
    here, wanted = directory.strip("/").split("/"), pattern.strip("/").split("/")
    if wanted == [""]:
        return True
    return len(wanted) <= len(here) and all(
        _pattern((part,)).fullmatch(name) for part, name in zip(wanted, here, strict=False)
    )


def _matches(patterns: tuple[str, ...], names: Sequence[str], *, strict: bool, uri: bool = False) -> bool:
    """Return whether any name matches any pattern. `strict` also accepts what only looks like it."""
    exact = _pattern(patterns)
    if any(exact.fullmatch(name) for name in names):
        return not uri or strict or _matches(patterns, [fold_uri(name) for name in names], strict=True)
    if not strict:
        return False
    folded = _folded_pattern(patterns)
    return any(folded.fullmatch(fold(fold_uri(name) if uri else name)) for name in names)


@functools.lru_cache(maxsize=4096)
def _pattern(patterns: tuple[str, ...]) -> re.Pattern[str]:
    return re.compile("|".join(translate(each) for each in patterns) or r"(?!)")


@functools.lru_cache(maxsize=4096)
def _folded_pattern(patterns: tuple[str, ...]) -> re.Pattern[str]:
    return _pattern(tuple(map(fold, patterns)))


_SAME_SHAPE = {
    "a": "0430 03b1 0251",
    "b": "0432 03b2 044c",
    "c": "0441 03f2",
    "d": "0501",
    "e": "0435 0451 03b5 0454",
    "g": "0261 0581",
    "h": "04bb 043d 0570",
    "k": "043a 03ba",
    "l": "i 1 | 0456 0457 03b9 0269 04cf 05d5 0627",
    "j": "0458 03f3",
    "m": "043c",
    "n": "0578 03b7",
    "o": "0 043e 03bf 03c3 0585 3007 06f0 0966",
    "p": "0440 03c1",
    "q": "051b",
    "r": "0433 0433",
    "s": "0455",
    "t": "0442 03c4",
    "u": "03c5 057d",
    "v": "03bd 0475",
    "w": "051d 03c9",
    "x": "0445 03c7",
    "y": "0443 03b3",
    "_": "- . 00b7 2010 2011 2012 2013 2014 2212",
}
"""A character → those that look like it: themselves, or their code points in hex."""
_FOLDED = {
    ord(each) if len(each) == 1 else int(each, 16): character
    for character, others in _SAME_SHAPE.items()
    for each in others.split()
}
_LATIN_VARIANT = re.compile(r"LATIN (?:SMALL |CAPITAL )?LETTER (?:[A-Z]{2,} )*([A-Z])(?: .*)?")


_MAX_CACHED = 256
"""Characters: clients choose the names, and the cache keeps thousands."""


def fold(name: str) -> str:
    """Return the same text for names that a person, or a tolerant server, may take for each other.

    Case, accents, invisible characters, spaces, and letters of other alphabets that look alike do not count.
    """
    return _fold(name) if len(name) <= _MAX_CACHED else _fold.__wrapped__(name)


@functools.lru_cache(maxsize=4096)
def _fold(name: str) -> str:
    decomposed = unicodedata.normalize("NFKD", unicodedata.normalize("NFKC", name).casefold())
    visible = "".join(
        each if each.isascii() else _latin(each)
        for each in decomposed
        if each.isprintable() and unicodedata.category(each)[0] not in "MC"
    )
    return "_".join(visible.translate(_FOLDED).split())


def _latin(character: str) -> str:
    """Return the plain letter of a variant, such as a small capital or one with a stroke."""
    found = _LATIN_VARIANT.fullmatch(unicodedata.name(character, ""))
    return found[1].lower() if found else character


def fold_uri(uri: str) -> str:
    """Return one spelling for URIs that lead to the same resource: without escapes, `.`, `..` and `//`."""
    for _ in range(3):  # servers may decode twice
        if (decoded := unquote(uri)) == uri:
            break
        uri = decoded
    scheme, found, rest = uri.replace("\\", "/").partition("://")
    if not found:
        return uri
    authority, slash, path = rest.partition("/")
    parts: list[str] = []
    for part in path.split("/"):
        if part == "..":
            del parts[-1:]
        elif part not in ("", "."):
            parts.append(part)
    return f"{scheme.lower()}://{authority.lower()}{slash}{'/'.join(parts)}"

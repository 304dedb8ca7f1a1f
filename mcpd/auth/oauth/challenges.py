"""Reads `WWW-Authenticate` (RFC 9110, 11.6.1). All of it may be hostile."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping
from itertools import islice

import attrs

from mcpd.auth.oauth.documents import parse_scopes, quote

_MAX_FIELDS = 16_384
"""Characters of all fields together."""
_MAX_CHALLENGES = 32
_TOKEN = r"[!#$%&'*+.^_`|~0-9A-Za-z-]+"  # noqa: S105 - a regular expression
_PARAMETER = re.compile(
    rf'({_TOKEN})[ \t]*=[ \t]*(?:({_TOKEN})(?=[ \t]*(?:,|$))|"((?:[^"\\]|\\.)*)")', re.DOTALL
)
_SCHEME = re.compile(rf"({_TOKEN})(?=[ \t]|,|$)")
_TOKEN68 = re.compile(r"[ \t]+[0-9A-Za-z._~+/-]+=*(?=[ \t]*(?:,|$))")
_SEPARATOR = re.compile(r"[ \t,]*")


@attrs.frozen
class Challenge:
    """A challenge of the scheme Bearer or DPoP. Everything in it was chosen by the server."""

    scheme: str = "bearer"
    resource_metadata: str | None = None
    """The URL of the metadata of the protected resource (RFC 9728, 5.1); not checked yet."""
    scopes: tuple[str, ...] | None = None
    """The scopes that this request needs."""
    error: str = ""
    description: str = ""
    """Cut and printable."""

    @property
    def needs_more_scopes(self) -> bool:
        """Whether a new authorization with more scopes helps (RFC 6750, 3.1)."""
        return self.error == "insufficient_scope"


def read_challenge(fields: Iterable[str]) -> Challenge | None:
    """Return the first Bearer challenge of all header fields, else the first DPoP challenge. Never raises.

    `resource_metadata` is taken from any of them, since servers put it into either.
    """
    found = list(islice(_challenges_of(fields), _MAX_CHALLENGES))
    ours = [each for each in found if each[0] in ("bearer", "dpop")]
    if not ours:
        return None
    scheme, parameters = min(ours, key=lambda each: each[0] != "bearer")
    metadata = next((each["resource_metadata"] for _, each in ours if each.get("resource_metadata")), None)
    return Challenge(
        scheme="dpop" if all(name == "dpop" for name, _ in ours) else scheme,
        resource_metadata=metadata,
        scopes=parse_scopes(parameters.get("scope")) or None,
        error=quote(parameters.get("error")),
        description=quote(parameters.get("error_description")),
    )


def _challenges_of(fields: Iterable[str]) -> Iterator[tuple[str, Mapping[str, str]]]:
    left = _MAX_FIELDS
    for field in fields:
        yield from parse_challenges(field[:left])
        left = max(0, left - len(field))


def parse_challenges(field: str) -> Iterator[tuple[str, Mapping[str, str]]]:
    """Return scheme and parameters of each challenge, with lower-case names.

    A field may have several challenges. What has no valid syntax is skipped; nothing raises.
    """
    scheme, parameters = "", dict[str, str]()
    here = 0
    while True:
        separator = _SEPARATOR.match(field, here)
        here = separator.end() if separator else here
        if here >= len(field):
            break
        if scheme and (found := _PARAMETER.match(field, here)):
            value = found[2] if found[2] is not None else re.sub(r"\\(.)", r"\1", found[3], flags=re.DOTALL)
            parameters.setdefault(found[1].lower(), value)
        elif found := _SCHEME.match(field, here):
            if scheme:
                yield scheme, parameters
            scheme, parameters = found[1].lower(), {}
            if token := _TOKEN68.match(field, found.end()):
                found = token
        else:  # skip what is broken
            comma = field.find(",", here)
            here = len(field) if comma < 0 else comma + 1
            continue
        here = found.end()
    if scheme:
        yield scheme, parameters

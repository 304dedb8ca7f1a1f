"""Which scopes to request: first, and after a server asked for more (MCP 2026-07-28, authorization)."""

from __future__ import annotations

from collections.abc import Collection, Iterable

import attrs

from mcpd.auth.oauth.metadata import MAX_SCOPES

OFFLINE_ACCESS = "offline_access"
MAX_STEP_UPS = 2
"""How often one operation may ask a person for more scopes. With the first login, these are three
authorization requests."""
_MAX_OPERATIONS = 1000


def first_request(
    *,
    configured: Collection[str] | None,
    challenge: Collection[str] | None,
    resource: Collection[str] | None,
    server: Collection[str],
) -> tuple[str, ...] | None:
    """Return the scopes of a first authorization; None to leave the parameter out.

    Those of the definition, else of the challenge, else all of the resource's metadata. The list of the
    authorization server (`server`) is about all of its resources and is never requested, except for
    `offline_access`, which asks for a refresh token and is added only where the server knows it.
    """
    if configured is not None:
        return tuple(dict.fromkeys(configured)) or None
    chosen = challenge if challenge else resource
    if not chosen:
        return None
    wanted = list(dict.fromkeys(chosen))[:MAX_SCOPES]
    if OFFLINE_ACCESS in server and OFFLINE_ACCESS not in wanted:
        wanted.append(OFFLINE_ACCESS)
    return tuple(wanted)


def more_scopes(*known: Iterable[str] | None) -> tuple[str, ...]:
    """Return the union, in order: what was requested before, what was granted, and what is needed now."""
    return tuple(dict.fromkeys(scope for scopes in known for scope in scopes or ()))


@attrs.define
class StepUpMemory:
    """Which scopes a person was asked for since the last ordinary login. It ends repeated requests."""

    _asked: dict[str, set[frozenset[str]]] = attrs.field(factory=dict)
    """By operation."""

    def may_ask(self, operation: str, needed: Iterable[str]) -> bool:
        """Return whether a person may be asked for these scopes: only once, for all operations together."""
        scopes = frozenset(needed)
        if any(scopes in each for each in self._asked.values()):
            return False
        return len(self._asked.get(operation, ())) < MAX_STEP_UPS

    def asked(self, operation: str, needed: Iterable[str]) -> None:
        """Remember that a person is asked now."""
        if operation not in self._asked and len(self._asked) >= _MAX_OPERATIONS:
            del self._asked[next(iter(self._asked))]
        self._asked.setdefault(operation, set()).add(frozenset(needed))

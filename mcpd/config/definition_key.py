"""The key under which mcpd stores what it has learned of a definition: its era, its lists, and its habits."""

from __future__ import annotations

from hashlib import sha256

from mcpd.model.server_spec import ServerSpec


def definition_key(spec: ServerSpec) -> str:
    """Return the key. Definitions have the same one if they lead to the same server in the same way."""
    return fingerprint(spec.identity if spec.era == "auto" else (spec.era, *spec.identity))


def fingerprint(identity: object) -> str:
    """Return a stable name for a definition, safe in file names. Does not reveal its secrets."""
    return sha256(repr(identity).encode()).hexdigest()[:32]

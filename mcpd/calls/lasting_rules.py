"""Turns a permanent approval into a rule that allows what was approved, and nothing else."""

from __future__ import annotations

import re

from mcpd.model.policy import ClientFacts, ItemKind

_PATTERN = re.compile(r"[*?\[\]]")
"""What rules cannot take literally."""
_MEMBERS: dict[ItemKind, str] = {"tool": "tools", "prompt": "prompts", "resource": "resources"}
_MAX_NAME = 500


class NoLastingRuleError(ValueError):
    """No rule can allow exactly this. Its text says why."""


def lasting_rule(client: ClientFacts, use: tuple[str, ItemKind, str]) -> dict[str, object]:
    """Return a rule, as it is written, that allows the client this use. Raises NoLastingRuleError.

    The client is identified by its program, according to the kernel, and by the name under which the person
    who approved it saw it, because an interpreter such as `node` runs many programs.
    """
    server, kind, name = use
    if kind not in _MEMBERS:
        raise NoLastingRuleError(f"no rule is about the method {name!r} only")
    for text in (server, name):
        if _PATTERN.search(text) or not text.isprintable() or len(text) > _MAX_NAME:
            raise NoLastingRuleError(f"a rule cannot contain the name {text[:80]!r} literally")
    if not client.shown:
        raise NoLastingRuleError("the client's name is not known")
    own = client.shown[-1]
    if _PATTERN.search(own):
        raise NoLastingRuleError(f"a rule cannot contain the client's name {own!r} literally")
    rule: dict[str, object] = {"decision": "allow", "clients": [own]}
    if client.executable and not _PATTERN.search(client.executable):
        if client.executable.endswith(" (deleted)"):
            raise NoLastingRuleError(
                "the client's program has been replaced since it was started; restart it"
            )
        rule["executables"] = [client.executable]
    else:
        rule["transports"] = [client.transport]
    return {**rule, "servers": [server], _MEMBERS[kind]: [name]}

"""Environment variables that a definition needs and mcpd lacks: the user is asked for their values."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence

import attrs

from ctl.editors.merging import MergedServer, replace_text
from ctl.editors.variables import NeededSecret, secret_name, secret_reference

_UNSET = re.compile(r"the environment variable ([A-Za-z_]\w*) is not set")
"""The beginning of the problem that mcpd finds (mcpd/config/variables.py)."""

Problems = Mapping[str, str]
"""Server → the first problem of its definition."""


def ask_for_missing_variables(
    servers: Sequence[MergedServer], problems: Problems, check: Callable[[Sequence[MergedServer]], Problems]
) -> tuple[list[MergedServer], dict[str, str], frozenset[str]]:
    """Replace unset variables by secrets that the user is asked for.

    `check` returns the remaining problems of changed servers. Returns all servers, the problems that are
    left, and the names of the servers that were changed.
    """
    current = {server.name: server for server in servers}
    left = dict(problems)
    changed: set[str] = set()
    while True:
        step: list[MergedServer] = []
        for name, server in current.items():
            unset = _UNSET.match(left.get(name, ""))
            replaced = _replace_variable(server, unset[1]) if unset else server
            if replaced is not server:
                current[name] = replaced
                step.append(replaced)
                del left[name]
        if not step:
            return list(current.values()), left, frozenset(changed)
        changed |= {server.name for server in step}
        left |= check(step)


def _replace_variable(server: MergedServer, name: str) -> MergedServer:
    """Return the server with a secret in place of `${name}`; the same server if that is not possible."""
    reference, text = f"${{{name}}}", str(server.definition)
    if reference not in text or f"${reference}" in text:  # with a default, or as plain text
        return server
    prompt = f"the value of {name}, which is not set in mcpd's environment"
    needed = NeededSecret(secret_name(name), prompt, origin=f"environment {name}")
    others = [one for one in server.needed_secrets if one.name != needed.name]
    definition = replace_text(server.definition, reference, secret_reference(needed.name))
    return attrs.evolve(server, definition=definition, needed_secrets=(*others, needed))

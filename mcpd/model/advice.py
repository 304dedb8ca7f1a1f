"""What messages about a server advise: `mcpctl` commands, unless it is the server of `mcpctl try`.

That server exists as long as this command, and no other command knows it.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import Protocol

_MAX_LISTED = 10


class Named(Protocol):
    @property
    def name(self) -> str: ...


_TEMPORARY = re.compile("try-[0-9]+")


def temporary_name(pid: int) -> str:
    """Return the name of the server of `mcpctl try`."""
    return f"try-{pid}"


def is_temporary(name: str) -> bool:
    """Whether this is the server of a `mcpctl try`."""
    return _TEMPORARY.fullmatch(name) is not None


def without_name(text: str, name: str) -> str:
    """Return a message about the temporary server of this name without the name: nobody knows it."""
    return text.removeprefix(f"{name}: ").replace(f"@{name}", "").replace(name, "the server")


def to_retry(name: str, *, retries: bool) -> str:
    """`retries`: whether mcpd tries again by itself."""
    if not is_temporary(name):
        return f"see `mcpctl status {name}`, or run `mcpctl reconnect {name}` to retry now"
    return "mcpd will try again" if retries else "connect again when the cause is fixed"


def to_fix(name: str) -> str:
    return "fix its definition" + ("" if is_temporary(name) else f", or run `mcpctl reconnect {name}`")


def to_enable(name: str, command: str) -> str:
    return "enable it" if is_temporary(name) else f"run `mcpctl {command} {name}`"


def to_explain(name: str) -> str:
    return "" if is_temporary(name) else f"see `mcpctl why {name}`"


def to_log_in(name: str) -> str:
    """For a server that nobody has logged in to."""
    if is_temporary(name):
        return "add the server to mcpd, with a login or an `Authorization` header"
    return f"run `mcpctl login {name}`, or add an `Authorization` header to its definition"


def to_log_in_again(name: str, why: str, purpose: str = "to log in again") -> str:
    """For a login that is no longer valid, or not sufficient, because of `why`, which may be empty."""
    if is_temporary(name):
        return why or "the server has refused the login"
    return (f"{why}; " if why else "") + f"run `mcpctl login {name}` {purpose}"


def to_list(name: str, command: str, known: Iterable[Named], what: str = "them") -> str:
    """`command` is that of mcpctl. `known`: what it lists."""
    if not is_temporary(name):
        return f"`mcpctl {command} {name}` lists {what}"
    names = [each.name for each in known]
    more = f", and {len(names) - _MAX_LISTED} more" if len(names) > _MAX_LISTED else ""
    return f"it has {', '.join(names[:_MAX_LISTED])}{more}" if names else "it has none"

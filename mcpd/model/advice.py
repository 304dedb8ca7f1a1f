"""What messages about a server advise: `mcpctl` commands, unless the daemon serves a single program.

The user's mcpctl then talks to another daemon, which does not know the server.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Protocol

_MAX_LISTED = 10


class Named(Protocol):
    @property
    def name(self) -> str: ...


_serves_one_program = False


def serve_one_program(value: bool = True) -> None:
    """Set whether this process's messages leave out `mcpctl` commands that name a server."""
    global _serves_one_program
    _serves_one_program = value


def to_retry(name: str, *, retries: bool) -> str:
    """`retries`: whether mcpd tries again by itself."""
    if not _serves_one_program:
        return f"see `mcpctl status {name}`, or run `mcpctl reconnect {name}` to retry now"
    return "mcpd will try again" if retries else "connect again when the cause is fixed"


def to_fix(name: str) -> str:
    return "fix its definition" + ("" if _serves_one_program else f", or run `mcpctl reconnect {name}`")


def to_enable(name: str, command: str) -> str:
    return "enable it" if _serves_one_program else f"run `mcpctl {command} {name}`"


def to_explain(name: str) -> str:
    return "" if _serves_one_program else f"see `mcpctl why {name}`"


def to_log_in(name: str) -> str:
    """For a server that nobody has logged in to."""
    header = "add an `Authorization` header to its definition"
    return header if _serves_one_program else f"run `mcpctl login {name}`, or {header}"


def to_log_in_again(name: str, why: str, purpose: str = "to log in again") -> str:
    """For a login that is no longer valid, or not sufficient, because of `why`, which may be empty."""
    if _serves_one_program:
        return why or "the server has refused the login"
    return (f"{why}; " if why else "") + f"run `mcpctl login {name}` {purpose}"


def to_list(name: str, command: str, known: Iterable[Named], what: str = "them") -> str:
    """`command` is that of mcpctl. `known`: what it lists."""
    if not _serves_one_program:
        return f"`mcpctl {command} {name}` lists {what}"
    names = [each.name for each in known]
    more = f", and {len(names) - _MAX_LISTED} more" if len(names) > _MAX_LISTED else ""
    return f"it has {', '.join(names[:_MAX_LISTED])}{more}" if names else "it has none"

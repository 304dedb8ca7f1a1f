"""What messages about a server advise: `mcpctl` commands, unless no other command knows the server.

That is so if the daemon serves a single program, because the user's mcpctl then talks to another daemon, and
for the server of `mcpctl try`, which exists as long as this command.
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
_serves_one_program = False


def serve_one_program(value: bool = True) -> None:
    """Set whether this process's messages leave out `mcpctl` commands that name a server."""
    global _serves_one_program
    _serves_one_program = value


def temporary_name(pid: int) -> str:
    """Return the name of the server of `mcpctl try`."""
    return f"try-{pid}"


def is_temporary(name: str) -> bool:
    """Whether this is the server of a `mcpctl try`."""
    return _TEMPORARY.fullmatch(name) is not None


def without_name(text: str, name: str) -> str:
    """Return a message about the temporary server of this name without the name: nobody knows it."""
    return text.removeprefix(f"{name}: ").replace(f"@{name}", "").replace(name, "the server")


def _is_unknown(name: str) -> bool:
    """Whether `mcpctl` commands for this server would fail."""
    return _serves_one_program or is_temporary(name)


def to_retry(name: str, *, retries: bool) -> str:
    """`retries`: whether mcpd tries again by itself."""
    if not _is_unknown(name):
        return f"see `mcpctl status {name}`, or run `mcpctl reconnect {name}` to retry now"
    return "mcpd will try again" if retries else "connect again when the cause is fixed"


def to_fix(name: str) -> str:
    return "fix its definition" + ("" if _is_unknown(name) else f", or run `mcpctl reconnect {name}`")


def to_enable(name: str, command: str) -> str:
    return "enable it" if _is_unknown(name) else f"run `mcpctl {command} {name}`"


def to_explain(name: str) -> str:
    return "" if _is_unknown(name) else f"see `mcpctl why {name}`"


def to_log_in(name: str) -> str:
    """For a server that nobody has logged in to."""
    if is_temporary(name):
        return "add the server to mcpd, with a login or an `Authorization` header"
    header = "add an `Authorization` header to its definition"
    return header if _is_unknown(name) else f"run `mcpctl login {name}`, or {header}"


def to_log_in_again(name: str, why: str, purpose: str = "to log in again") -> str:
    """For a login that is no longer valid, or not sufficient, because of `why`, which may be empty."""
    if _is_unknown(name):
        return why or "the server has refused the login"
    return (f"{why}; " if why else "") + f"run `mcpctl login {name}` {purpose}"


def to_list(name: str, command: str, known: Iterable[Named], what: str = "them") -> str:
    """`command` is that of mcpctl. `known`: what it lists."""
    if not _is_unknown(name):
        return f"`mcpctl {command} {name}` lists {what}"
    names = [each.name for each in known]
    more = f", and {len(names) - _MAX_LISTED} more" if len(names) > _MAX_LISTED else ""
    return f"it has {', '.join(names[:_MAX_LISTED])}{more}" if names else "it has none"

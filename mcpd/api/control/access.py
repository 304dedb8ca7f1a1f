"""Which methods of the control API a WebSocket serves. All others are for the Unix socket only."""

from __future__ import annotations

import msgspec


class Access(msgspec.Struct, frozen=True):
    """What one kind of client may use."""

    protocol: str
    """The subprotocol of its WebSocket."""
    methods: frozenset[str]
    advice: str
    """What to do instead of a method that is not served."""


_CALLS = ("call", "prompt", "prompts", "read", "resources", "tools", "version")
_MCPCTL = (*_CALLS, "complete", "find_tools", "tool_costs")
_LOOK = ("approvals", "calls", "clients", "events", "history", "logs", "server", "stats", "status", "tap")
_OPERATE = ("approve", "disable", "enable", "reconnect")
_LOG_IN = ("login/begin", "login/cancel", "login/wait")


def _methods(*names: str) -> frozenset[str]:
    return frozenset(f"mcpd/{name}" for name in names)


PAGE = Access(
    "mcpd.page",
    _methods(*_CALLS, *_LOOK, *_OPERATE, *_LOG_IN, "edit", "remove"),
    "use mcpctl",
)
"""The dashboard of a person who opened it with `mcpctl ui`. Logins are safe, because a person finishes them
at the authorization server."""
ADMINISTRATOR = Access(
    "mcpd.control",
    _methods(
        *_MCPCTL,
        *_LOOK,
        *_OPERATE,
        *_LOG_IN,
        "auth/explain",
        "auth/refresh",
        "auth/status",
        "cache/clear",
        "config",
        "connect",
        "disconnect",
        "login/answer",
        "logout",
        "metrics",
        "ping",
        "policy",
        "reload",
    ),
    "run mcpctl on the machine of mcpd",
)
"""Who has mcpd's own token, on a port for other machines. What starts other programs than those that the
configuration names, or edits files, is left out."""
PERSON = Access("mcpd.control", _methods(*_MCPCTL), "ask the administrator of mcpd")
"""Who has an access token there: what MCP clients can do with it, too."""

"""What the daemon announces while it runs: one class, because a reader wants one line each."""

from __future__ import annotations

import enum

import attrs

from mcpd.model.status import ServerStatus


class EventKind(enum.Enum):
    SNAPSHOT = "snapshot"
    """How a server is at the moment the stream begins; one for each."""
    STATUS = "status"
    """A server's state or its evidence changed."""
    REMOVED = "removed"
    """A server is no longer in the set."""
    TOOLS = "tools"
    RESOURCES = "resources"
    PROMPTS = "prompts"
    """A server's list was fetched again and differs."""
    CONFIG = "config"
    """A new set is in force, or a configuration was refused; of a server: its definition has changed."""


@attrs.frozen(kw_only=True)
class Event:
    """`mcpd/event` carries one of these."""

    kind: EventKind
    at: str
    server: str | None = None
    message: str = ""
    status: ServerStatus | None = None
    by: str = ""
    """Who asked for it: a client's program and process (`mcpctl (pid 4711)`), a signal, or nobody."""

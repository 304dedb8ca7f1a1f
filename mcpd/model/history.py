"""What happened, as it is remembered: one entry of the journal, and what `mcpd/history` takes and answers."""

from __future__ import annotations

import enum

import attrs

from mcpd.model.status import FailureKind, ServerState


class HistoryEventKind(enum.Enum):
    STATE = "state"
    """A server's state changed."""
    TOOLS = "tools"
    RESOURCES = "resources"
    PROMPTS = "prompts"
    """A server's list was fetched again and differs; the message names what came, went and changed."""
    REMOVED = "removed"
    """A server left the set."""
    CONFIG = "config"
    """A new set came into force, or a configuration was refused."""
    DAEMON = "daemon"
    """mcpd itself started or stopped."""


@attrs.frozen(kw_only=True)
class HistoryEntry:
    """One thing that happened."""

    at: str
    what: HistoryEventKind
    server: str | None = None
    """None: it concerns the daemon, or the set as a whole."""
    state: ServerState | None = None
    """The new one, where `what` is `state`."""
    message: str = ""
    """The cause, in words."""
    by: str = ""
    """Who asked for it: a client's program and process, or a signal. Empty: it happened by itself."""
    kind: FailureKind | None = None
    exit_code: int | None = None
    signal: str | None = None
    times: int = 1
    """The same has happened so often since the server was last well: of a thing that repeats itself only the
    1st, 2nd, 4th, 8th … are written down."""


@attrs.frozen(kw_only=True)
class HistoryParams:
    server: str | None = None
    """None: everything."""
    limit: int = 100
    """The newest so many entries."""


@attrs.frozen(kw_only=True)
class History:
    """`mcpd/history`: oldest first. Bounded by size, kept over restarts of the daemon."""

    entries: tuple[HistoryEntry, ...]
    dropped: int = 0
    """Entries that the disk would not take since the daemon started; they are here, and gone when it ends."""

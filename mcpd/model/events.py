"""What the daemon announces while it runs: one class, because a reader wants one line each."""

from __future__ import annotations

import enum

import attrs
import msgspec

from mcpd.model.status import FailureKind, ServerState, ServerStatus


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


@attrs.frozen(kw_only=True)
class TapParams:
    server: str
    methods: tuple[str, ...] = ()
    """Only messages of these methods, and the answers to them; `*` and `?` allowed. Empty: all."""
    limit: int = 65_536
    """A message of more bytes is cut there."""


class MessageDirection(enum.Enum):
    TO_SERVER = "to-server"
    FROM_SERVER = "from-server"
    NOTE = "note"
    """No message: mcpd says something about the connection, or about the tap."""


@attrs.frozen(kw_only=True)
class TapFrame:
    """One message as it went over the wire, secrets masked."""

    at: str
    server: str
    direction: MessageDirection
    method: str = ""
    """Of an answer, the method that it answers; empty where the question was not seen."""
    id: str = ""
    """As it is spelt in JSON; empty for a notification."""
    bytes: int = 0
    """Its whole length."""
    message: msgspec.Raw | None = None
    """The message; null where it is none, or had to be cut."""
    text: str = ""
    """What there is instead of a message: words, junk, or the beginning of what was cut."""
    cut: bool = False
    dropped: int = 0
    """So many frames before this one are missing here: they came faster than the client reads."""

"""What all servers of a daemon share."""

from __future__ import annotations

import itertools
from collections.abc import Awaitable, Callable, Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING

import msgspec
import trio

from mcpd.io.broadcast import CallbackList
from mcpd.model.events import Event
from mcpd.model.server_spec import RemoteSpec
from mcpd.model.status import OpenQuestion, WaitingCall
from mcpd.privacy.redact import Redactor
from mcpd.protocol.negotiate import Negotiated
from mcpd.state.state_file import StateFile
from mcpd.supervision.secrets import Secrets
from mcpd.transports.child_process import ProcessGroupGuard
from mcpd.transports.stdio import OpenPipes

if TYPE_CHECKING:  # most daemons have no remote servers: test_start_imports_nothing_for_http
    from mcpd.transports.credentials import Credentials

WaitingReport = tuple[tuple[OpenQuestion, ...], tuple[WaitingCall, ...], int]
"""The open questions of a server, its first waiting calls, and the number of all waiting calls."""


class RunningServer(msgspec.Struct, frozen=True, kw_only=True):
    """A connected server, for the next version of the daemon."""

    label: str
    definition: str
    """See `definition_key`."""
    pipes: OpenPipes | None
    """None for a remote server."""
    session: str
    """That of a remote server; empty if there is none."""
    last_id: int
    negotiated: Negotiated
    lists: bytes
    """See `dump_catalog`."""
    subscribed: list[str]
    """The resources that it has confirmed."""
    streams: list[bytes]
    """The ids of its open subscriptions."""
    since: float
    """When it was connected (seconds since the epoch)."""


class ChangeCounter(msgspec.Struct, eq=False):
    """Counts changes. A cached value is still valid if the count is the same as when it was made."""

    value: int = 0


class SupervisorContext(msgspec.Struct, frozen=True, kw_only=True, eq=False):
    """Created once by the daemon."""

    instance: str
    environ: Mapping[str, str]
    store: StateFile
    guard: ProcessGroupGuard
    redactor: Redactor
    secrets: Secrets
    log_dir: Path
    start_limiter: trio.CapacityLimiter
    """Limits how many servers start at the same time."""
    random: Callable[[], float]
    announce: Callable[[Event], None]
    changes: ChangeCounter = msgspec.field(default_factory=ChangeCounter)
    """Changes of the set of servers, of their states and of their lists."""
    credentials_for: Callable[[RemoteSpec], Awaitable[Credentials | None]] | None = None
    """Returns what the connection to a remote server is signed with; None if it has no login."""
    on_resume: CallbackList[float] = msgspec.field(default_factory=CallbackList)
    """Called after a suspend, with its seconds."""
    runtime: str = ""
    """The directory for what tracks containers; empty to track none."""
    debug: bool = False
    """Log all messages of all servers."""
    handed_over: dict[str, RunningServer] = msgspec.field(default_factory=dict)
    """The servers of the version before this one that nobody has adopted yet, by label."""
    child_numbers: Iterator[int] = msgspec.field(default_factory=lambda: itertools.count(1))
    """Makes child marks unique: server names may contain dots, so `1.x` could be taken for a part of
    `1.x.y`."""

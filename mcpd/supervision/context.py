"""What all servers of a daemon have in common."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING

import attrs
import trio

from mcpd.model.events import Event
from mcpd.state_file import StateFile
from mcpd.support.redact import Redactor
from mcpd.transports.base import Channel
from mcpd.transports.child_process import ProcessGroupGuard
from mcpd.transports.outgoing_request import Exchange
from mcpd.wire.message import Message

if TYPE_CHECKING:
    from mcpd.protocol.upstream_session import ServerNotification
    from mcpd.supervision.managed_server import ManagedServer


@attrs.define(kw_only=True, eq=False)
class ClientHooks:
    """What clients do for servers. Filled in by the gateway before any server runs."""

    capabilities: Mapping[str, object] = attrs.field(factory=dict)
    """`elicitation`, `sampling`, `roots`, as declared to every server in its handshake, and in each
    request that has no `Exchange.meta` of its own."""
    on_server_request: Callable[[ManagedServer, Channel, Message, Exchange | None], bool] | None = None
    """`Hooks.asked`, with the server in front."""
    on_notification: Callable[[ManagedServer, ServerNotification], None] | None = None
    """`Hooks.heard`, with the server in front."""


@attrs.frozen(kw_only=True, eq=False)
class SupervisorContext:
    """Handed to each of them by the composition root."""

    instance: str
    environ: Mapping[str, str]
    store: StateFile
    guard: ProcessGroupGuard
    redactor: Redactor
    log_dir: Path
    start_limiter: trio.CapacityLimiter
    """How many may be starting at once."""
    random: Callable[[], float]
    announce: Callable[[Event], None]
    clients: ClientHooks = attrs.field(factory=ClientHooks)
    secret_command_pids: set[int] = attrs.field(factory=set)
    """The processes that are just giving us a secret: they have an owner, who waits for them."""
    debug: bool = False
    """Log every frame of every server."""

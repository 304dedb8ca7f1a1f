"""What all servers of a daemon have in common."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path

import attrs
import trio

from mcpd.model.events import Event
from mcpd.store import Store
from mcpd.support.redact import Redactor
from mcpd.transports.process import Guard


@attrs.frozen(kw_only=True, eq=False)
class Surroundings:
    """Handed to each of them by the composition root."""

    instance: str
    environ: Mapping[str, str]
    store: Store
    guard: Guard
    redactor: Redactor
    log_dir: Path
    starts: trio.CapacityLimiter
    """How many may be starting at once."""
    chance: Callable[[], float]
    announce: Callable[[Event], None]
    debug: bool = False
    """Log every frame of every server."""

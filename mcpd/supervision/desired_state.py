"""What the definition of a server, its users and its clients want it to be: enabled, connected, started."""

from __future__ import annotations

import math
import time

from mcpd.model.server_spec import ServerSpec
from mcpd.model.status import format_time
from mcpd.state.state_file import StateFile

DISCONNECTED = "disconnected by hand"
"""The reason of a server that is off because a user disconnected it, as opposed to a disabled one."""


class DesiredState:
    """Each setter returns whether it changed anything, so that unchanged servers are left alone."""

    def __init__(self, spec: ServerSpec, store: StateFile) -> None:
        self._name, self._store = spec.name, store
        self._default = spec.enabled
        self.enabled = self._wanted
        """The persistent setting if there is one, otherwise `enabled` of the definition."""
        self.disconnected = False
        """Set by the user; lasts until the next connect or until the daemon restarts."""
        self.start_requested = not spec.lazy
        """False for a lazy server that nobody has used yet."""

    @property
    def is_off(self) -> bool:
        return not self.enabled or self.disconnected

    @property
    def off_until(self) -> float | None:
        """When a timed disable ends (seconds since the epoch); None if on, or off without a limit."""
        return None if self.enabled else self._store.disabled_until(self._name)

    @property
    def seconds_until_enabled(self) -> float:
        """Seconds by the wall clock until a timed disable ends: ≤ 0 once it has, infinite without a limit."""
        return math.inf if (until := self.off_until) is None else until - time.time()

    @property
    def off_reason(self) -> str:
        """Why the server is off, for its status."""
        if self.enabled:
            return DISCONNECTED
        if (until := self.off_until) is not None:
            return f"switched off until {format_time(until)}"
        return "switched off" if self._is_toggled else "switched off in its definition"

    @property
    def _is_toggled(self) -> bool:
        return self._store.is_enabled(self._name) is not None

    def connect(self) -> None:
        """Connect, unless the server is disabled."""
        self.disconnected, self.start_requested = False, True

    def disconnect(self) -> bool:
        changed = not self.disconnected
        self.disconnected = True
        return changed

    def set_enabled(self, on: bool, until: float | None = None) -> bool:
        """Enable (which also takes back a disconnect) or disable persistently, or disable `until` then."""
        another_end = not on and until != self._store.disabled_until(self._name)
        self._store.set_toggle(self._name, on if until is None else until)
        if on == self.enabled and not (on and self.disconnected):
            return another_end
        self.enabled, self.disconnected = on, False
        return True

    def end_timed_disable(self) -> None:
        """Return to what held before: the persistent setting or the definition. A disconnected server stays
        disconnected.
        """
        self._store.end_timed_disable(self._name)
        self.enabled = self._wanted

    def set_default(self, enabled: bool) -> bool:
        """Apply `enabled` of a changed definition, unless a persistent setting overrides it."""
        self._default = enabled
        if self._is_toggled:
            return False
        self.enabled = enabled
        return True

    @property
    def _wanted(self) -> bool:
        toggled = self._store.is_enabled(self._name)
        return self._default if toggled is None else toggled

    def request_start(self) -> bool:
        changed = not self.start_requested
        self.start_requested = True
        return changed

"""Desired state: what people and clients wish of one server, as facts that its task acts on."""

from __future__ import annotations

import math
import time

from mcpd.model.server_spec import ServerSpec
from mcpd.model.status import format_time
from mcpd.state_file import StateFile

DISCONNECTED = "disconnected by hand"
"""Why a server is off that was disconnected; any other that is off has been switched off."""


class DesiredState:
    """Every change says whether it is one, so that the server's task need not be disturbed for nothing."""

    def __init__(self, spec: ServerSpec, store: StateFile) -> None:
        self._name, self._store = spec.name, store
        toggled = store.is_enabled(spec.name)
        self.enabled = spec.enabled if toggled is None else toggled
        """The toggle, which outlives the daemon, or else the definition."""
        self.disconnected = False
        """By hand, until it is asked for again or the daemon starts anew."""
        self.start_requested = not spec.lazy
        """Whether somebody wants to use it; a lazy server starts with nobody."""

    @property
    def is_off(self) -> bool:
        return not self.enabled or self.disconnected

    @property
    def off_until(self) -> float | None:
        """When it comes on by itself (seconds since 1970); None while it is on, or off for good."""
        return None if self.enabled else self._store.disabled_until(self._name)

    @property
    def seconds_until_enabled(self) -> float:
        """Until then, as the wall clock has it now; not above 0 once it has gone by."""
        return math.inf if (until := self.off_until) is None else until - time.time()

    @property
    def off_reason(self) -> str:
        """For the status."""
        if self.enabled:
            return DISCONNECTED
        if (until := self.off_until) is not None:
            return f"switched off until {format_time(until)}"
        return "switched off" if self._is_toggled else "switched off in its definition"

    @property
    def _is_toggled(self) -> bool:
        return self._store.is_enabled(self._name) is not None

    def connect(self) -> None:
        """Be connected, as far as the toggle allows it."""
        self.disconnected, self.start_requested = False, True

    def disconnect(self) -> bool:
        changed = not self.disconnected
        self.disconnected = True
        return changed

    def set_enabled(self, on: bool, until: float | None = None) -> bool:
        """Turn the toggle: on, off, or off until then. Switching on takes back a disconnect, too."""
        another_end = not on and until != self._store.disabled_until(self._name)
        self._store.set_toggle(self._name, on if until is None else until)
        if on == self.enabled and not (on and self.disconnected):
            return another_end
        self.enabled, self.disconnected = on, False
        return True

    def end_timed_disable(self) -> None:
        """That it was switched off for: on from now on, and what was disconnected besides stays so."""
        self._store.set_toggle(self._name, True)
        self.enabled = True

    def set_default(self, enabled: bool) -> bool:
        """What another definition says; nothing where a toggle overrules it."""
        if self._is_toggled:
            return False
        self.enabled = enabled
        return True

    def request_start(self) -> bool:
        changed = not self.start_requested
        self.start_requested = True
        return changed

"""Desired state: what people and clients wish of one server, as facts that its task acts on."""

from __future__ import annotations


class Desired:
    """Every change says whether it is one, so that the server's task need not be disturbed for nothing."""

    def __init__(self, *, enabled: bool, demanded: bool) -> None:
        self.enabled = enabled
        """The toggle, which outlives the daemon, or else the definition."""
        self.disconnected = False
        """By hand, until it is asked for again or the daemon starts anew."""
        self.demanded = demanded
        """Whether somebody wants to use it; a lazy server starts with nobody."""

    @property
    def off(self) -> bool:
        return not self.enabled or self.disconnected

    def connect(self) -> None:
        """Be connected, as far as the toggle allows it."""
        self.disconnected, self.demanded = False, True

    def disconnect(self) -> bool:
        changed = not self.disconnected
        self.disconnected = True
        return changed

    def enable(self, on: bool) -> bool:
        """Switching on takes back a disconnect, too."""
        if on == self.enabled and not (on and self.disconnected):
            return False
        self.enabled, self.disconnected = on, False
        return True

    def define(self, enabled: bool) -> None:
        """What a new definition says, where no toggle overrules it."""
        self.enabled = enabled

    def demand(self) -> bool:
        changed = not self.demanded
        self.demanded = True
        return changed

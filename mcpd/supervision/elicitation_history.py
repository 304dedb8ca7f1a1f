"""What is known about the questions of one server, also after a restart of the daemon: which tools ask."""

from __future__ import annotations

import math

from mcpd.state.state_file import StateFile

QUIET_AFTER = 3
"""Calls of a tool without a request from the server after which we assume that it never sends any."""
_MAX_KEPT = 2000
"""Tools and methods that are remembered: clients may call any name."""
_MAX_SAVED = 200
"""Those that outlive the daemon, and the characters of each."""
_SEPARATE = "separate"
"""In the state file, beside the tools, which contain a space: whether clients get processes of their own."""


class ElicitationHistory:
    """Which calls a server has used to send elicitation or sampling requests.

    `store` and `fingerprint`: where it is kept, and by which definition; by default, it is not.
    """

    def __init__(self, store: StateFile | None = None, fingerprint: str = "") -> None:
        self._store = store
        self._fingerprint = fingerprint
        known = dict(store.asking(fingerprint)) if store is not None else {}
        self.names_no_calls = False
        """Whether a request has arrived outside of its call, although the transport could name the call.
        Servers on the Python SDK 1.x send sampling requests like this."""
        self.separates_clients = known.pop(_SEPARATE, False)
        """Whether a request could not be attributed, so that each client that can be asked now uses a process
        of its own."""
        self._quiet_calls: dict[str, float] = {
            key: -math.inf if asks else QUIET_AFTER for key, asks in known.items()
        }
        """Method and tool → calls without a request; -∞ once there was one."""

    def may_ask(self, method: str, tool: str) -> bool:
        """Return whether the server may send elicitation or sampling requests during such a call."""
        return self._quiet_calls.get(f"{method} {tool}", 0) < QUIET_AFTER

    def has_asked(self, method: str, tool: str) -> bool:
        """Return whether the server has sent such a request during such a call, or may have."""
        return self._quiet_calls.get(f"{method} {tool}") == -math.inf

    def record_answer(self, method: str, tool: str) -> None:
        """Count an answered call of a client that the server could have asked."""
        key = f"{method} {tool}"
        calls = self._quiet_calls.get(key, 0) + 1
        self._note(key, calls)
        if calls == QUIET_AFTER:
            self._save(key, asks=False)

    def record_request(self, method: str, tool: str, *, is_certain: bool = True) -> None:
        """Note that the server asks during such calls, or may have done so while the daemon runs."""
        key = f"{method} {tool}"
        self._note(key, -math.inf)
        if is_certain:
            self._save(key, asks=True)

    def _note(self, key: str, calls: float) -> None:
        if len(self._quiet_calls) >= _MAX_KEPT and key not in self._quiet_calls:
            self._quiet_calls.clear()
        self._quiet_calls[key] = calls

    def separate_clients(self) -> None:
        """Let each client that can be asked use a process of its own from now on."""
        self.separates_clients = True
        self._save(_SEPARATE, asks=True)

    def _save(self, key: str, *, asks: bool) -> None:
        if self._store is None or len(key) > _MAX_SAVED:
            return
        known = self._store.asking(self._fingerprint)
        if known.get(key) is not asks and (key in known or len(known) < _MAX_SAVED):
            self._store.set_asking(self._fingerprint, {**known, key: asks})

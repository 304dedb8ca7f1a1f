"""Which servers are enabled, the same on all replicas.

What was changed last in Redis holds. What was changed here while Redis was down is changed there afterwards.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from functools import partial
from typing import TYPE_CHECKING

import msgspec

from mcpd.state.history import acting_for
from mcpd.state.state_file import StateFile
from mcpd.supervision.supervisor import Supervisor

if TYPE_CHECKING:
    from mcpd.state.shared import Link, Work

_KEY = "mcpd:toggles"


class _Toggle(msgspec.Struct, frozen=True):
    on: bool
    until: float | None = None
    """When a timed disable ends, by the clock of Redis."""


class SharedToggles:
    """See `SharedPart`."""

    def __init__(self, supervisor: Supervisor, store: StateFile, exchange_soon: Callable[[], None]) -> None:
        self._supervisor, self._store, self._exchange_soon = supervisor, store, exchange_soon
        self._changed: dict[str, object] = {}
        """Servers whose toggle was changed here, and is not in Redis."""
        self._seen: Mapping[bytes, bytes] = {}

    def note_change(self, server: str) -> None:
        """A person has enabled or disabled a server."""
        self._changed[server] = object()
        self._exchange_soon()

    def prepare(self) -> Work:
        store, changed = self._store, dict(self._changed)
        toggles = {
            name: _Toggle(on, store.disabled_until(name))
            for name in changed
            if (on := store.is_enabled(name)) is not None
        }
        return partial(self._exchange, changed, toggles)

    def _exchange(
        self, changed: Mapping[str, object], toggles: Mapping[str, _Toggle], link: Link
    ) -> Callable[[], None]:
        """Runs in the thread."""
        for name, toggle in toggles.items():
            until = None if toggle.until is None else toggle.until + link.clock
            stored = msgspec.json.encode(_Toggle(toggle.on, until))
            link.redis.hset(_KEY, name, link.seal(f"toggle {name}", stored))
        found: dict[bytes, bytes] = link.redis.hgetall(_KEY)  # type: ignore[assignment]
        news: dict[str, _Toggle] = {}
        for key, sealed in found.items():
            name = key.decode(errors="replace")
            if name in changed or self._seen.get(key) == sealed:
                continue
            content = link.unseal(f"toggle {name}", sealed)
            if content is not None:
                toggle = msgspec.json.decode(content, type=_Toggle)
                until = None if toggle.until is None else toggle.until - link.clock
                news[name] = _Toggle(toggle.on, until)
        return partial(self._apply, changed, news, found)

    def _apply(
        self, changed: Mapping[str, object], news: Mapping[str, _Toggle], found: Mapping[bytes, bytes]
    ) -> None:
        self._seen = found
        self._changed = {name: mark for name, mark in self._changed.items() if changed.get(name) is not mark}
        with acting_for(lambda: "another replica"):
            for name, toggle in news.items():
                if name in self._changed or (toggle.until is not None and toggle.until <= time.time()):
                    continue
                if (server := self._supervisor.find(name)) is not None:
                    server.set_enabled(toggle.on, toggle.until)
                else:
                    self._store.set_toggle(name, toggle.on if toggle.until is None else toggle.until)

"""Reports to systemd while the daemon runs: the status line of the service, and the watchdog signal."""

from __future__ import annotations

import os
from collections import Counter

import trio

from mcpd.io.broadcast import Broadcast
from mcpd.model.events import Event
from mcpd.process import systemd
from mcpd.state.active_config import ActiveConfig
from mcpd.supervision.supervisor import Supervisor


class SystemdStatus:
    """Keeps systemd informed. Sends nothing unless the daemon is a service."""

    def __init__(self, supervisor: Supervisor, configuration: ActiveConfig, events: Broadcast[Event]) -> None:
        self._supervisor = supervisor
        self._configuration = configuration
        self._events = events

    async def run(self) -> None:
        """Send the status line whenever it changes, and the watchdog signal for as long as the event loop is
        not blocked. Runs until cancelled."""
        interval = systemd.watchdog_interval()
        async with trio.open_nursery() as nursery:
            if interval is not None:
                nursery.start_soon(self._feed_watchdog, interval)
            if os.environ.get("NOTIFY_SOCKET"):
                nursery.start_soon(self._update_status_line)

    async def _feed_watchdog(self, interval: float) -> None:
        while True:
            systemd.notify(WATCHDOG="1")
            await trio.sleep(interval)

    async def _update_status_line(self) -> None:
        last = ""
        while True:
            with self._events.listen() as changes:
                async for _ in changes:
                    if (line := self.line()) != last:
                        last = line
                        systemd.notify(STATUS=line)

    def line(self) -> str:
        """Return the status line: how many servers are in each state, and whether the configuration has
        errors."""
        states = Counter(server.state.value for server in self._supervisor.servers())
        counts = ", ".join(f"{count} {state}" for state, count in sorted(states.items()))
        total = states.total()
        line = f"{total} server{'' if total == 1 else 's'}: {counts}" if total else "no servers"
        return f"{line}; the configuration has errors" if self._configuration.status().problems else line

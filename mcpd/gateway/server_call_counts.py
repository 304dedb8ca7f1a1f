"""How many tools of each server one client has called. Ended servers are not kept, only their counts."""

from __future__ import annotations

from collections.abc import Mapping

from mcpd.supervision.managed_server import ManagedServer


class ServerCallCounts:
    """Counts by server. Calls to dedicated instances count for the server of the definition."""

    def __init__(self) -> None:
        self.live: dict[ManagedServer, int] = {}
        """Counts of servers that existed when a new one was last called."""
        self.ended: dict[str, int] = {}
        """Counts of servers that no longer exist, by definition name."""

    def add(self, server: ManagedServer) -> None:
        """Count a call. Ended servers are dropped, so that long sessions do not keep them."""
        try:
            self.live[server] += 1
        except KeyError:
            for ended in [each for each in self.live if each.is_closed]:
                name = (ended.original or ended).spec.name
                self.ended[name] = self.ended.get(name, 0) + self.live.pop(ended)
            self.live[server] = 1

    @property
    def total(self) -> int:
        return sum(self.live.values()) + sum(self.ended.values())

    def by_name(self) -> Mapping[str, int]:
        """Return the counts by definition name."""
        counts = dict(self.ended)
        for server, count in self.live.items():
            name = (server.original or server).spec.name
            counts[name] = counts.get(name, 0) + count
        return counts

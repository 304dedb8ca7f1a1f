"""How many bytes peers can make the daemon keep: each of them, and all together."""

from __future__ import annotations

from collections.abc import Mapping

MAX_PER_PEER = 36 * 1024 * 1024
"""Bytes for one peer: a little more than the longest message that mcpd accepts by default."""
_TOTAL_FACTOR = 2
"""How many peers can use all that they may."""


class ByteBudget:
    """Counts bytes until they are removed: every `add` that succeeds needs a `remove` of the same bytes."""

    def __init__(self, all_peers: str) -> None:
        """`all_peers` says whose bytes the total is, as in "of all clients". See `add`."""
        self.total = 0
        self._all_peers = all_peers
        self._by_peer: dict[object, int] = {}

    def add(self, size: int, peers: Mapping[object, str], limit: int = MAX_PER_PEER) -> str:
        """Count `size` bytes for each of the peers, and once in the total; return an empty string.

        If a peer would have more than `limit` bytes, or all peers more than twice as many, count nothing, and
        return the reason for an error message. `peers` says how that refers to each, as in "of this client".
        """
        used = [(whose, self._by_peer.get(peer, 0), limit) for peer, whose in peers.items()]
        for whose, kept, most in (*used, (self._all_peers, self.total, _TOTAL_FACTOR * limit)):
            if kept + size > most:
                return f"{whose} take {kept} bytes, and these {size} bytes would exceed the limit of {most}"
        self.total += size
        for peer in peers:
            self._by_peer[peer] = self._by_peer.get(peer, 0) + size
        return ""

    def remove(self, size: int, *peers: object) -> None:
        self.total -= size
        for peer in peers:
            self._by_peer[peer] -= size
            if not self._by_peer[peer]:
                del self._by_peer[peer]

    def of(self, peer: object) -> int:
        """Return how many bytes are counted for a peer."""
        return self._by_peer.get(peer, 0)

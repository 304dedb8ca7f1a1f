"""What distinguishes one daemon from others behind the same balancer."""

from __future__ import annotations

from typing import NamedTuple

OWNER_END = "~"
"""Ends the owner at the beginning of an id."""


class Replica(NamedTuple):
    """This daemon. The default is for one that has no replicas."""

    owner: str = ""
    """Begins every id that only this daemon can use, and ends with OWNER_END. Empty: there is one daemon."""
    key: bytes = b""
    """Signs what passes through clients; the same for all replicas. Empty: use a key of this daemon alone."""

    def strip(self, id: str) -> str:
        """Return an id without its owner."""
        return id.partition(OWNER_END)[2] if self.owner and OWNER_END in id else id


ALONE = Replica()

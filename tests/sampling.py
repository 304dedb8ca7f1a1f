"""How many random examples a test tries: all of them in a full run, fewer in `make test-fast`."""

from __future__ import annotations

from hypothesis import settings


def scaled(count: int) -> int:
    """Return `count`, or the share of it that the Hypothesis profile asks for (`fast`: 15 %)."""
    return max(10, count * settings().max_examples // 100)

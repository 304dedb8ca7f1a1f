"""How many random examples a test tries, as the Hypothesis profile asks for (`--hypothesis-profile`)."""

from __future__ import annotations

from hypothesis import settings

FULL = 100
"""`max_examples` of the profile of a full run; that of `fast` is 15, and that of `thorough` is larger."""


def scaled(count: int, divisor: int = 1) -> int:
    """Return `count / divisor`, or the share of it that the profile `fast` asks for.

    `divisor` is for tests whose examples take long. The profile `thorough` tries all `count` of them, too.
    """
    if settings().max_examples > FULL:
        return count
    return max(10, count * settings().max_examples // FULL // divisor)

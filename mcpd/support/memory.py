"""Memory that a rare, huge message took, given back to the system."""

from __future__ import annotations

import ctypes
from contextlib import suppress


def give_back() -> None:
    """Let the C library return what is free. Costs some milliseconds; nothing happens without glibc.

    Portions of a message are small enough to come from the heap, and one later object at its end keeps
    all of them there.
    """
    with suppress(OSError, AttributeError):
        ctypes.CDLL(None).malloc_trim(0)

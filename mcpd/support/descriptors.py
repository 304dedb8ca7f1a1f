"""What can be known of a descriptor without reading from it."""

from __future__ import annotations

import select


def has_hung_up(fd: int) -> bool:
    """Whether the other side has closed the connection altogether, not only its own direction."""
    poll = select.poll()
    poll.register(fd, 0)
    return any(events & (select.POLLHUP | select.POLLERR) for _, events in poll.poll(0))


def is_readable(fd: int) -> bool:
    """Whether there are bytes, an end or an error to be read at once."""
    poll = select.poll()
    poll.register(fd, select.POLLIN)
    return bool(poll.poll(0))

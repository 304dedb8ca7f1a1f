"""systemd integration: sd_notify, the watchdog and socket activation.

The protocol is one datagram of variables and a few environment variables, so no library is needed.
"""

from __future__ import annotations

import array
import atexit
import os
import socket
import time
from collections.abc import Mapping, MutableMapping, Sequence
from functools import cache

import trio

_FIRST_FD = 3
"""SD_LISTEN_FDS_START: the first passed descriptor."""


def notify(descriptors: Sequence[int] = (), **state: str | int) -> bool:
    """Send state to the service manager: `notify(READY=1)`.

    RELOADING=1 is sent with MONOTONIC_USEC, as systemd requires. FDSTORE=1 is sent with descriptors, which
    `listen_fds` of the next process returns. Line breaks in values become spaces. Never blocks and never
    raises; returns False if there is no service manager, or it is too busy.
    """
    address = os.environ.get("NOTIFY_SOCKET", "")
    if address[:1] not in ("/", "@"):
        return False
    if state.get("RELOADING"):
        state = {**state, "MONOTONIC_USEC": time.clock_gettime_ns(time.CLOCK_MONOTONIC) // 1000}
    text = "\n".join(f"{name}={_to_one_line(value)}" for name, value in state.items())
    # A leading @ denotes the NUL byte of Linux's abstract namespace.
    return send("\0" + address[1:] if address[0] == "@" else address, text, descriptors)


def send(target: str, text: str, descriptors: Sequence[int] = ()) -> bool:
    """Send a datagram that passes descriptors. Never blocks and never raises; returns whether it was sent."""
    rights = [(socket.SOL_SOCKET, socket.SCM_RIGHTS, array.array("i", descriptors))] if descriptors else []
    try:
        _notify_socket().sendmsg([text.encode("utf-8", "replace")], rights, socket.MSG_DONTWAIT, target)
    except OSError:  # no receiver, too busy, or out of descriptors
        return False
    return True


@cache
def _notify_socket() -> socket.socket:
    """Return the socket for all notifications: the watchdog must be fed while no descriptor is left."""
    speaker = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM | socket.SOCK_CLOEXEC)
    atexit.register(speaker.close)
    return speaker


def listen_fds(environ: MutableMapping[str, str] | None = None) -> dict[str, int]:
    """Return the listening sockets passed by socket activation, by name; empty if there are none.

    The caller owns the descriptors, but must not unlink or rebind their paths: these belong to the service
    manager. Names are those of FileDescriptorName= (default: the socket unit's name); duplicates get the
    suffix `.1`, `.2` and so on. The variables are removed from the environment, and children do not inherit
    the descriptors.
    """
    environ = os.environ if environ is None else environ
    pid, count, names = (environ.pop(name, "") for name in ("LISTEN_PID", "LISTEN_FDS", "LISTEN_FDNAMES"))
    environ.pop("LISTEN_PIDFDID", None)
    if pid != str(os.getpid()) or not count.isdigit():
        return {}
    found: dict[str, int] = {}
    given = names.split(":") if names else []
    for index in range(int(count)):
        name = unique = given[index] if index < len(given) else "unknown"
        number = 0
        while unique in found:
            number += 1
            unique = f"{name}.{number}"
        os.set_inheritable(_FIRST_FD + index, False)
        found[unique] = _FIRST_FD + index
    return found


def watchdog_interval(environ: Mapping[str, str] | None = None) -> float | None:
    """Return the interval in seconds for `notify(WATCHDOG=1)`: half of WatchdogSec. None: no watchdog."""
    environ = os.environ if environ is None else environ
    period = environ.get("WATCHDOG_USEC", "")
    if environ.get("WATCHDOG_PID", str(os.getpid())) != str(os.getpid()):
        return None
    if not period.isdigit() or int(period) == 0:
        return None
    return int(period) / 2_000_000


async def feed_watchdog(interval: float) -> None:
    """Tell systemd that the event loop is not blocked. Runs until cancelled."""
    while True:
        notify(WATCHDOG="1")
        await trio.sleep(interval)


def _to_one_line(value: str | int) -> str:
    return " ".join(str(value).splitlines())

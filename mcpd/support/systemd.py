"""Speaking to the service manager: how we are, that we live, and the sockets it made for us.

The protocol is a line of variables to a datagram socket and a few numbers in the environment; the
libraries for it are older and larger than it.
"""

from __future__ import annotations

import os
import socket
import time
from collections.abc import Mapping, MutableMapping

_FIRST_FD = 3
"""SD_LISTEN_FDS_START: where the descriptors passed to us begin."""


def notify(**state: str | int) -> bool:
    """Tell the service manager: `notify(READY=1, STATUS="3 servers connected")`.

    RELOADING=1 gets the MONOTONIC_USEC that belongs to it. A line break in a value becomes a space, since
    it would begin another variable. Never blocks and never raises; False when nobody listens: no service
    manager, or one that is too busy.
    """
    address = os.environ.get("NOTIFY_SOCKET", "")
    if address[:1] not in ("/", "@"):
        return False
    if state.get("RELOADING"):
        state = {**state, "MONOTONIC_USEC": time.clock_gettime_ns(time.CLOCK_MONOTONIC) // 1000}
    text = "\n".join(f"{name}={_to_one_line(value)}" for name, value in state.items())
    # A leading @ stands for the NUL byte of Linux's abstract namespace.
    target = "\0" + address[1:] if address[0] == "@" else address
    try:
        with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM | socket.SOCK_CLOEXEC) as speaker:
            speaker.sendto(text.encode("utf-8", "replace"), socket.MSG_DONTWAIT, target)
    except OSError:  # nobody there, too busy, or no descriptor left to say it with
        return False
    return True


def listen_fds(environ: MutableMapping[str, str] | None = None) -> dict[str, int]:
    """The listening sockets the service manager opened for us, by name; empty when there are none.

    The caller owns them from here on, and must neither unlink their paths nor bind these anew: they are
    the manager's and outlive us. Names are those of FileDescriptorName= (the socket unit's name where it
    is not set); a second one of a name gets `.1` behind it, and so on. The variables are taken out of the
    environment, so that no child takes them for its own, and the descriptors are not inherited.
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
    """Every how many seconds to `notify(WATCHDOG=1)`: half of WatchdogSec. None: nobody watches us."""
    environ = os.environ if environ is None else environ
    period = environ.get("WATCHDOG_USEC", "")
    if environ.get("WATCHDOG_PID", str(os.getpid())) != str(os.getpid()):
        return None
    if not period.isdigit() or int(period) == 0:
        return None
    return int(period) / 2_000_000


def _to_one_line(value: str | int) -> str:
    return " ".join(str(value).splitlines())

"""The listening socket of HTTP outlives the daemon, so that clients wait for the next one instead of failing.

While no daemon runs, systemd keeps it in the descriptor store of the service, also after a crash. Without
systemd, `mcpctl daemon restart` keeps it: the daemon that stops leaves it in a datagram socket beside its own
socket, which is the standard input of the next daemon.
"""

from __future__ import annotations

import os
import socket as sockets
import stat
import struct
from collections.abc import Iterator, MutableMapping
from contextlib import contextmanager, suppress

from mcpd.process import systemd

_NAME = "stored-http"
"""Marks the descriptor in the store, among the sockets of the socket unit."""
_MAX_PORTS = 4
_DESCRIPTOR = struct.calcsize("i")


class PortStore:
    """Takes the sockets over that an earlier daemon has left, and leaves our own to the next one."""

    def __init__(self, socket: str, inherited: MutableMapping[str, int]) -> None:
        """`inherited`: the descriptors that systemd passes, by name. Those from the store are removed."""
        stored = [name for name in inherited if name.partition(".")[0] == _NAME]
        found = [inherited.pop(name) for name in stored] + _read_from_stdin()
        self._found = [sockets.socket(fileno=each) for each in found]
        self._own: list[sockets.socket] = []
        self.is_kept = False
        """Whether the service manager keeps the port open."""
        self._next = _next_place(socket)

    def take(self, host: str, port: int) -> sockets.socket | None:
        """Return the socket that listens at this address, at any port if `port` is 0."""
        for each in self._found:
            bound = each.getsockname()
            if bound[0] == host and port in (0, bound[1]):
                self._found.remove(each)
                return each
        return None

    def keep(self, listener: sockets.socket | None) -> None:
        """Keep this socket for the next daemon, and close all others that were found."""
        for each in self._found:
            each.close()
        if self._found:
            systemd.notify(FDSTOREREMOVE=1, FDNAME=_NAME)
            self._found = []
        if listener is not None:
            self._own.append(listener)
            self.is_kept = systemd.notify([listener.fileno()], FDSTORE=1, FDNAME=_NAME)

    def describe(self) -> dict[str, int]:
        """Return our descriptors under the names by which the next version finds them."""
        return {f"{_NAME}.{number}": each.fileno() for number, each in enumerate(self._own)}

    def leave(self) -> bool:
        """The daemon stops: leave its sockets to the next one. Returns whether somebody keeps them for it."""
        sent = [systemd.send(self._next, _NAME, [each.fileno()]) for each in self._own]
        return self.is_kept or any(sent)


@contextmanager
def receiving_ports(socket: str) -> Iterator[int]:
    """Yield the descriptor that receives what the daemon of `socket` leaves when it stops. It is the standard
    input of the next daemon.

    Call this only inside `start_lock`. If the socket cannot be created, the ports are closed as usual.
    """
    path = _next_place(socket)
    with sockets.socket(sockets.AF_UNIX, sockets.SOCK_DGRAM) as receiver:
        with suppress(OSError):
            os.unlink(path)
        with suppress(OSError):
            receiver.bind(path)
        try:
            yield receiver.fileno()
        finally:
            with suppress(OSError):
                os.unlink(path)


def _next_place(socket: str) -> str:
    return socket + ".ports"


def _read_from_stdin() -> list[int]:
    """Return the descriptors that `receiving_ports` has received, and replace the standard input."""
    found: list[int] = []
    with suppress(OSError):
        if not stat.S_ISSOCK(os.fstat(0).st_mode):
            return found
        with sockets.socket(fileno=os.dup(0)) as received:
            if (received.family, received.type) != (sockets.AF_UNIX, sockets.SOCK_DGRAM):
                return found
            null = os.open(os.devnull, os.O_RDONLY | os.O_CLOEXEC)
            os.dup2(null, 0)
            os.close(null)
            flags = sockets.MSG_DONTWAIT | sockets.MSG_CMSG_CLOEXEC
            while len(found) < _MAX_PORTS:  # ends with BlockingIOError
                # Not by recv_fds, which ignores the flags.
                _, rights, _, _ = received.recvmsg(len(_NAME), sockets.CMSG_LEN(_DESCRIPTOR), flags)
                found += [struct.unpack("i", data)[0] for _, _, data in rights]
    return found

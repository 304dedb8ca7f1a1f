"""Opens the listening sockets of the daemon: those that systemd passes, or its own."""

from __future__ import annotations

import socket as sockets
from collections.abc import Iterable
from contextlib import ExitStack

from mcpd.api.listeners import adopt_fd, bind_tcp
from mcpd.api.own_socket import OwnSocket
from mcpd.config.settings import Address
from mcpd.support.instance_lock import InstanceLock


def open_listeners(
    socket: str,
    lock: InstanceLock,
    inherited: Iterable[int],
    stack: ExitStack,
    *,
    http_option: Address | None,
    http_setting: Address | None,
) -> tuple[OwnSocket | sockets.socket, list[sockets.socket], str]:
    """Return the Unix socket, the HTTP ports, and a warning or nothing. `stack` closes them.

    `inherited` are the descriptors of sockets that systemd passes, which are used instead of new ones.

    Raises AlreadyRunning, UnusablePath or OSError, also if the port of `http_option` cannot be opened. If the
    port of `http_setting` cannot be opened, the daemon runs without HTTP, and the warning says why: clients
    of the Unix socket must not be affected.
    """
    adopted = [stack.enter_context(adopt_fd(fd)) for fd in inherited]
    unix: OwnSocket | sockets.socket | None
    unix = next((each for each in adopted if each.family == sockets.AF_UNIX), None)
    if unix is None:
        unix = OwnSocket(socket, lock)
        stack.callback(unix.close)
    ports = [each for each in adopted if each.family != sockets.AF_UNIX]
    warning = ""
    address = http_option or http_setting
    if address is not None and not ports:
        try:
            ports.append(stack.enter_context(bind_tcp(address)))
        except OSError as error:
            if http_option is not None:
                raise
            warning = f"{error.strerror}, then run `mcpctl daemon restart`"
    return unix, ports, warning

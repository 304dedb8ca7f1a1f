"""`HOST:PORT` as a user writes it, for a port that only this machine may reach."""

from __future__ import annotations

import ipaddress

import attrs


@attrs.frozen
class Address:
    """To listen on; port 0 takes a free one."""

    host: str
    """An IP address of the loopback interface."""
    port: int

    def __str__(self) -> str:
        return f"[{self.host}]:{self.port}" if ":" in self.host else f"{self.host}:{self.port}"


def parse_address(text: str) -> Address:
    """Raises ValueError with words for whoever wrote it. `localhost` is 127.0.0.1."""
    host, colon, port = text.rpartition(":")
    if not colon or not (port.isascii() and port.isdigit()) or int(port) > 65535:
        raise ValueError('it must be HOST:PORT, for example "127.0.0.1:8931"')
    if host.startswith("[") and host.endswith("]"):
        host = host[1:-1]
    elif ":" in host:
        raise ValueError('an IPv6 address needs brackets: "[::1]:8931"')
    if host.lower() == "localhost":
        host = "127.0.0.1"
    try:
        found = ipaddress.ip_address(host)
    except ValueError:
        found = None
    if found is None or not found.is_loopback:
        raise ValueError(
            "only this machine may reach it: listen on 127.0.0.1, localhost or [::1], "
            "and come from elsewhere through an ssh tunnel"
        )
    return Address(str(found), int(port))

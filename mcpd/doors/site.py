"""What is at which path. One `Site` for each way in: the port, and the Unix socket."""

from __future__ import annotations

import attrs

from mcpd.core import Core
from mcpd.doors.guard import Guard, UnixGuard
from mcpd.doors.http.connection import Spawn
from mcpd.doors.http.exchange import Exchange
from mcpd.doors.http.parser import Head

HEALTH = "/health"


@attrs.define(eq=False)
class Site:
    core: Core
    guard: Guard

    def visit(self, spawn: Spawn) -> Visit:
        """For one connection."""
        return Visit(self, spawn)


def unix_site(core: Core) -> Site:
    """For the Unix socket, whose peers the kernel knows."""
    return Site(core, UnixGuard())


class Visit:
    """One connection to a site."""

    def __init__(self, site: Site, spawn: Spawn) -> None:
        self._site = site
        self._spawn = spawn
        self.admit = site.guard.admit
        self._client = site.core.clients.arrived(None, "an HTTP client")

    def handle(self, head: Head, body: bytes, exchange: Exchange) -> None:
        if head.path == HEALTH:
            if head.method in ("GET", "HEAD"):
                exchange.respond(200, b'{"status":"ok"}')
            else:
                exchange.respond(405, headers=b"Allow: GET, HEAD\r\n")
        else:
            exchange.respond(404)

    def left(self, reason: str) -> None:
        self._site.core.clients.left(self._client)

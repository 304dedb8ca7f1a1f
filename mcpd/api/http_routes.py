"""What is at which path. One `Site` for each way in: the port, and the Unix socket."""

from __future__ import annotations

import re
from urllib.parse import unquote

import attrs

from mcpd.api import metrics
from mcpd.api.dashboard.page import PATHS, Page
from mcpd.api.http_guard import Guard
from mcpd.api.http_rpc import Rpc
from mcpd.api.http_server.connection import Spawn
from mcpd.api.http_server.http_exchange import TEXT, Exchange
from mcpd.api.http_server.parser import Head
from mcpd.api.mcp_endpoint.endpoint import Endpoint, Place, Visitor
from mcpd.api.mcp_endpoint.legacy import Who
from mcpd.gateway.responder import Client

HEALTH = "/health"
MCP = "/mcp"
METRICS = "/metrics"
RPC = "/rpc"
_EVERYTHING = Place()
_PROFILE = re.compile(r"/mcp/([^/]+)")
_SERVER = re.compile(r"/servers/([^/]+)/mcp")


@attrs.define(eq=False)
class Site:
    endpoint: Endpoint
    guard: Guard
    principal: str
    """As whom the guard lets clients in."""
    controls: bool = False
    """Whether the control API is here."""
    page: Page | None = None
    """The dashboard, where it is."""

    def visit(self, spawn: Spawn, pid: int = 0) -> Visit:
        """For one connection."""
        return Visit(self, spawn, pid)


class Visit:
    """One connection to a site."""

    def __init__(self, site: Site, spawn: Spawn, pid: int) -> None:
        self._core = site.endpoint.gateway.core
        self._spawn = spawn
        self._page = site.page
        self._client = self._core.clients.add(pid or None, "" if pid else "an HTTP client")
        who = Who(site.principal, Client(door="http", pid=pid), self._client)
        self._mcp = Visitor(site.endpoint, who, spawn)
        self._rpc = Rpc(site.endpoint.gateway, pid, spawn) if site.controls else None
        self.admit = site.guard.admit

    def handle(self, head: Head, body: bytes, exchange: Exchange) -> None:
        place = place_of(head.path)
        if place is not None:
            self._mcp.handle(place, head, body, exchange)
        elif head.path == HEALTH:
            if head.method in ("GET", "HEAD"):
                exchange.respond(200, b'{"status":"ok"}')
            else:
                exchange.respond(405, headers=b"Allow: GET, HEAD\r\n")
        elif head.path == METRICS:
            if head.method in ("GET", "HEAD"):
                self._spawn(lambda: self._metrics(exchange))
            else:
                exchange.respond(405, headers=b"Allow: GET, HEAD\r\n")
        elif self._page is not None and head.path in PATHS:
            self._page.handle(head, body, exchange, self._client)
        elif head.path == RPC and self._rpc is not None:
            self._rpc.handle(head, body, exchange)
        else:
            exchange.respond(404, b"there is /mcp, /mcp/PROFILE and /servers/NAME/mcp\n", TEXT)

    async def _metrics(self, exchange: Exchange) -> None:
        stats = await self._core.stats(None, processes=True)
        text = metrics.render(self._core.status(), stats)
        exchange.respond(200, text.encode(), metrics.CONTENT_TYPE.encode())

    def left(self, reason: str) -> None:
        self._core.clients.remove(self._client)
        self._mcp.left(reason)
        if self._rpc is not None:
            self._rpc.left()


def place_of(path: str) -> Place | None:
    """What an MCP endpoint shows; None for a path that is none."""
    if path == MCP:
        return _EVERYTHING
    found = _SERVER.fullmatch(path)
    if found is not None:
        return Place(server=unquote(found[1]))
    found = _PROFILE.fullmatch(path)
    return None if found is None else Place(profile=unquote(found[1]))

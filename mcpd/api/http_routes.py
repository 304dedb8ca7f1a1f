"""What is at which path. One `Site` for each way in: the port, and the Unix socket."""

from __future__ import annotations

import re
from urllib.parse import unquote

import attrs

from mcpd.api import metrics
from mcpd.api.dashboard.page import PATHS, Dashboard
from mcpd.api.http_guard import RequestGuard
from mcpd.api.http_rpc import HttpRpc
from mcpd.api.http_server.connection import SpawnTask
from mcpd.api.http_server.http_exchange import TEXT, HttpExchange
from mcpd.api.http_server.parser import Head
from mcpd.api.mcp_endpoint.endpoint import EndpointScope, McpEndpoint, McpHandler
from mcpd.api.mcp_endpoint.legacy import Principal
from mcpd.gateway.responder import ClientIdentity

HEALTH = "/health"
MCP = "/mcp"
METRICS = "/metrics"
RPC = "/rpc"
_ALL_SERVERS = EndpointScope()
_PROFILE = re.compile(r"/mcp/([^/]+)")
_SERVER = re.compile(r"/servers/([^/]+)/mcp")


@attrs.define(eq=False)
class HttpRoutes:
    endpoint: McpEndpoint
    guard: RequestGuard
    principal: str
    """As whom the guard lets clients in."""
    control_api: bool = False
    """Whether the control API is here."""
    dashboard: Dashboard | None = None
    """The dashboard, where it is."""

    def handler(self, spawn: SpawnTask, pid: int = 0) -> RouteHandler:
        """For one connection."""
        return RouteHandler(self, spawn, pid)


class RouteHandler:
    """One connection to a site."""

    def __init__(self, routes: HttpRoutes, spawn: SpawnTask, pid: int) -> None:
        self._core = routes.endpoint.gateway.core
        self._spawn = spawn
        self._dashboard = routes.dashboard
        self._client = self._core.clients.add(pid or None, "" if pid else "an HTTP client")
        principal = Principal(routes.principal, ClientIdentity(via="http", pid=pid), self._client)
        self._mcp = McpHandler(routes.endpoint, principal, spawn)
        self._rpc = HttpRpc(routes.endpoint.gateway, pid, spawn) if routes.control_api else None
        self.admit = routes.guard.admit

    def handle(self, head: Head, body: bytes, exchange: HttpExchange) -> None:
        scope = endpoint_scope(head.path)
        if scope is not None:
            self._mcp.handle(scope, head, body, exchange)
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
        elif self._dashboard is not None and head.path in PATHS:
            self._dashboard.handle(head, body, exchange, self._client)
        elif head.path == RPC and self._rpc is not None:
            self._rpc.handle(head, body, exchange)
        else:
            exchange.respond(404, b"there is /mcp, /mcp/PROFILE and /servers/NAME/mcp\n", TEXT)

    async def _metrics(self, exchange: HttpExchange) -> None:
        stats = await self._core.stats(None, processes=True)
        text = metrics.render(self._core.status(), stats)
        exchange.respond(200, text.encode(), metrics.CONTENT_TYPE.encode())

    def closed(self, reason: str) -> None:
        self._core.clients.remove(self._client)
        self._mcp.close(reason)
        if self._rpc is not None:
            self._rpc.close()


def endpoint_scope(path: str) -> EndpointScope | None:
    """What an MCP endpoint shows; None for a path that is none."""
    if path == MCP:
        return _ALL_SERVERS
    match = _SERVER.fullmatch(path)
    if match is not None:
        return EndpointScope(server=unquote(match[1]))
    match = _PROFILE.fullmatch(path)
    return None if match is None else EndpointScope(profile=unquote(match[1]))

"""The HTTP API: what each path serves, on the Unix socket and on a loopback TCP port.

Both listeners share one `HttpApi`. Only the Unix socket serves `POST /rpc`, only a port the dashboard.
"""

from __future__ import annotations

import json
import logging
import os
import re
import secrets
import socket as sockets
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from functools import partial
from pathlib import Path
from urllib.parse import unquote

import attrs

from mcpd.api.control.requests import ControlRequests
from mcpd.api.control.stats import collect_metrics
from mcpd.api.dashboard.page import PATHS, Dashboard
from mcpd.api.http.connection import BodyBudget, HttpServerConnection, SpawnTask
from mcpd.api.http.exchange import TEXT, HttpExchange, ServeRequest
from mcpd.api.http.guard import RequestGuard, TcpGuard, UnixGuard, load_token
from mcpd.api.http.parser import Head
from mcpd.api.listeners import ConnectionLimit, Slot
from mcpd.api.mcp.endpoint import EndpointScope, McpEndpoint, McpHandler
from mcpd.api.mcp.frames import (
    EVENT_HEADERS,
    EVENT_STREAM,
    KEEP_ALIVE,
    is_request,
    respond_error,
    sse_event,
)
from mcpd.api.mcp.legacy import LegacyHttpSessions, Principal
from mcpd.api.mcp.sse import SseSessions
from mcpd.calls.client_context import ClientIdentity
from mcpd.config.settings import Address
from mcpd.files.atomic import write_atomically
from mcpd.gateway.gateway import Gateway
from mcpd.model.api import HttpListener
from mcpd.state.clients import ClientConnection
from mcpd.wire import message as wire
from mcpd.wire.message import METHOD_NOT_FOUND, PARSE_ERROR, BadFrame

log = logging.getLogger("mcpd.http")

HEALTH = "/health"
MCP = "/mcp"
METRICS = "/metrics"
RPC = "/rpc"
TOKEN_FILE = "http-token"  # noqa: S105 - the name of a file
ADDRESS_FILE = "http.json"
"""In the runtime directory; tells other programs where the port is."""
_ENDPOINT = re.compile(r"/(mcp|sse)(?:/([^/]+))?/?")
"""The transport, and the profile if any. Many programs add a slash at the end."""
_SERVER = re.compile(r"/servers/([^/]+)/(mcp|sse)/?")
_OF_A_CONNECTION = ("mcpd/attach", "mcpd/identify")
"""Methods that change the requests that follow on their connection. HTTP requests are independent."""


@attrs.frozen(eq=False)
class HttpRoutes:
    """What one listener serves, and to whom."""

    endpoint: McpEndpoint
    guard: RequestGuard
    principal: str
    """The identity that the guard verifies; sessions are bound to it."""
    dashboard: Dashboard | None = None
    serves_rpc: bool = False
    """Whether it serves the control API. A port does not: who can change the servers can start programs."""


@attrs.frozen
class HttpPort:
    """An open TCP port. The caller serves and closes `listener`."""

    listener: sockets.socket
    routes: HttpRoutes
    bodies: BodyBudget
    limit: ConnectionLimit = attrs.field(factory=lambda: ConnectionLimit("tcp"))

    async def serve(self, connection: sockets.socket, slot: Slot) -> None:
        handler = partial(RouteHandler, self.routes)
        await HttpServerConnection(connection, handler, "HTTP client", slot, self.bodies).run()


class HttpApi:
    """The daemon's HTTP API."""

    def __init__(self, gateway: Gateway) -> None:
        self.listener: HttpListener | None = None
        """The published port, while it is open."""
        self._endpoint = McpEndpoint(gateway, LegacyHttpSessions(gateway), SseSessions(gateway))
        self._dashboards: list[Dashboard] = []
        self._bodies = BodyBudget()
        self._socket_routes = HttpRoutes(self._endpoint, UnixGuard(), "user", serves_rpc=True)

    async def serve_unix(self, connection: sockets.socket, slot: Slot) -> None:
        """Serve HTTP on a connection of the Unix socket until it ends."""
        handler = partial(RouteHandler, self._socket_routes, pid=slot.pid)
        name = f"client {slot.pid}"
        await HttpServerConnection(connection, handler, name, slot, self._bodies).run()

    @property
    def dashboard(self) -> Dashboard | None:
        """The dashboard of the port that was opened first."""
        return self._dashboards[0] if self._dashboards else None

    def close(self, reason: str) -> None:
        """End every session and every open stream."""
        self._endpoint.close(reason)
        for dashboard in self._dashboards:
            dashboard.close(reason)

    @contextmanager
    def open_port(
        self, listener: sockets.socket, state_dir: Path, runtime_dir: str, require_token: bool
    ) -> Iterator[HttpPort]:
        """Publish the port's address (status, `http.json`) until the block is left.

        Raises UnusablePath before publishing anything if the token cannot be used.
        """
        host, port = listener.getsockname()[:2]
        url = f"http://{Address(host, port)}{MCP}"
        file = state_dir / TOKEN_FILE
        token = load_token(file) if require_token else None
        if token is not None:
            self._endpoint.gateway.core.redactor.add([token])
        self.listener = HttpListener(
            url=url,
            auth="none" if token is None else "token",
            token_file=None if token is None else str(file),
        )
        address_file = Path(runtime_dir) / ADDRESS_FILE
        contents = {**attrs.asdict(self.listener), "pid": os.getpid()}
        write_atomically(address_file, json.dumps(contents).encode() + b"\n", 0o600)
        log.info("HTTP: listening at %s (%s)", url, f"token in {file}" if token else "no token required")
        if token is None:
            log.warning(
                "--http-auth none: every program of every user on this machine can use all servers at %s", url
            )
        opened, dashboard = self._make_port(listener, token, "anybody" if token is None else "token")
        try:
            yield opened
        finally:
            self.listener = None
            self._dashboards.remove(dashboard)
            with suppress(OSError):
                address_file.unlink()

    def open_dashboard(self, listener: sockets.socket) -> tuple[HttpPort, Dashboard]:
        """Return a port that serves the dashboard alone, until `close`. Its address is not published.

        All other paths need a token that nobody has.
        """
        log.info("the dashboard is served at http://%s", Address(*listener.getsockname()[:2]))
        return self._make_port(listener, secrets.token_urlsafe(32), "nobody")

    def _make_port(
        self, listener: sockets.socket, token: str | None, principal: str
    ) -> tuple[HttpPort, Dashboard]:
        host, port = listener.getsockname()[:2]
        dashboard = Dashboard(self._endpoint.gateway, f"http://{Address(host, port)}", port)
        self._dashboards.append(dashboard)
        guard = TcpGuard(port, token, {HEALTH: 0, **PATHS})
        routes = HttpRoutes(self._endpoint, guard, principal, dashboard)
        return HttpPort(listener, routes, self._bodies), dashboard


class RouteHandler:
    """Routes the requests of one connection. See `ConnectionHandler`."""

    def __init__(self, routes: HttpRoutes, spawn: SpawnTask, pid: int = 0) -> None:
        gateway = routes.endpoint.gateway
        self._operations = gateway.core
        self._spawn = spawn
        self._dashboard = routes.dashboard
        self._client = self._operations.clients.add(pid or None, "" if pid else "an HTTP client")
        principal = Principal(
            routes.principal, ClientIdentity(via="http", pid=pid, peer_pid=pid), self._client
        )
        self._mcp = McpHandler(routes.endpoint, principal, spawn)
        self._rpc = HttpRpc(gateway, self._client, pid, spawn) if routes.serves_rpc else None
        self.admit = routes.guard.admit

    def route(self, head: Head) -> ServeRequest:
        """See `ConnectionHandler`."""
        path = head.path
        scope = endpoint_scope(path)
        if scope is not None:
            return self._mcp.route(scope, head)
        if path in (HEALTH, METRICS):
            return self._serve_monitoring
        if self._dashboard is not None and path in PATHS:
            return partial(self._dashboard.handle, head, self._client)
        if path == RPC and self._rpc is not None:
            return partial(self._rpc.handle, head)
        return _not_found

    def _serve_monitoring(self, _: bytes, exchange: HttpExchange) -> None:
        if exchange.head.method not in ("GET", "HEAD"):
            exchange.respond(405, headers=b"Allow: GET, HEAD\r\n")
        elif exchange.head.path == HEALTH:
            exchange.respond(200, b'{"status":"ok"}')
        else:
            self._spawn(lambda: self._metrics(exchange))

    async def _metrics(self, exchange: HttpExchange) -> None:
        result = await collect_metrics(self._operations)
        exchange.respond(200, result.text.encode(), result.content_type.encode())

    def closed(self, reason: str) -> None:
        self._operations.clients.remove(self._client)
        self._mcp.close(reason)
        if self._rpc is not None:
            self._rpc.close(reason)


class HttpRpc:
    """Handles `/rpc` on one HTTP connection, one request at a time. Implements `ControlResponder`."""

    def __init__(self, gateway: Gateway, client: ClientConnection, pid: int, spawn: SpawnTask) -> None:
        self._exchange: HttpExchange
        self._requests = ControlRequests(
            gateway, self, client, pid, lambda work, _: spawn(work), lambda view, identity: None
        )

    def handle(self, head: Head, body: bytes, exchange: HttpExchange) -> None:
        """See `ServeRequest`."""
        if head.method != "POST":
            respond_error(exchange, 405, "send a POST request", headers=b"Allow: POST\r\n")
            return
        try:
            # Arguments are forwarded as they are, and servers read lines.
            message = wire.parse(body.replace(b"\r", b" ").replace(b"\n", b" "))
        except BadFrame as error:
            respond_error(exchange, 400, f"not a JSON-RPC message: {error}", code=PARSE_ERROR)
            return
        if not message.method or not is_request(message):
            respond_error(exchange, 400, "a request must have an `id` and a `method`", key=message.key)
        elif not message.method.startswith(("mcpd/", "rpc.")) or message.method in _OF_A_CONNECTION:
            text = "/rpc serves the control API, one request at a time; MCP is served at /mcp"
            respond_error(exchange, 404, text, code=METHOD_NOT_FOUND, key=message.key)
        else:
            self._exchange = exchange
            exchange.on_quiet = lambda: self._write(KEEP_ALIVE)
            self._requests.receive(message)

    def close(self, reason: str) -> None:
        """The HTTP client has left: cancel the request in progress."""
        self._requests.cancel_all(reason)
        del self._requests  # it refers back; without the cycle the connection is freed immediately

    def send(self, frame: bytes) -> None:
        """Send an event. A response that has events, or takes long, is an event stream."""
        self._write(sse_event(frame))

    def finish(self, frame: bytes, code: int = 0) -> None:
        if self._exchange.is_streaming:
            self._exchange.write(sse_event(frame))
            self._exchange.end()
        else:
            self._exchange.respond(200, frame.rstrip(b"\n"))

    def drop(self) -> None:
        """No-op: HTTP clients cancel by disconnecting."""

    async def wait_drained(self) -> None:
        """No-op: the HTTP connection ends if its client is too slow."""

    def _write(self, data: bytes) -> None:
        self._exchange.stream(EVENT_STREAM, EVENT_HEADERS)  # no-op if it was started already
        self._exchange.write(data)


def _not_found(_: bytes, exchange: HttpExchange) -> None:
    exchange.respond(404, b"MCP is served at /mcp, /mcp/PROFILE and /servers/NAME/mcp\n", TEXT)


def endpoint_scope(path: str) -> EndpointScope | None:
    """Return what the MCP endpoint at `path` serves, or None if `path` is not an MCP endpoint."""
    if match := _ENDPOINT.fullmatch(path):
        return EndpointScope(profile=unquote(match[2]) if match[2] else None, is_sse=match[1] == "sse")
    match = _SERVER.fullmatch(path)
    return None if match is None else EndpointScope(server=unquote(match[1]), is_sse=match[2] == "sse")

"""The HTTP API: what each path serves, on the Unix socket and on a loopback TCP port.

Both listeners share one `HttpApi`. Only the Unix socket serves `POST /rpc`, only a port for other
machines its WebSocket, and only the other ports the dashboard.
"""

from __future__ import annotations

import json
import logging
import os
import re
import secrets
import socket as sockets
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager, suppress
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING
from urllib.parse import parse_qs, unquote

import attrs

from mcpd.api.control.stats import collect_metrics
from mcpd.api.dashboard.page import PATHS, Dashboard
from mcpd.api.http.connection import BodyBudget, HttpServerConnection, SpawnTask
from mcpd.api.http.exchange import TEXT, HttpExchange, ServeRequest
from mcpd.api.http.guard import RequestGuard, TcpGuard, UnixGuard, load_token
from mcpd.api.http.parser import BadRequest, Head
from mcpd.api.http.rpc import HttpRpc, RemoteControl
from mcpd.api.listeners import ConnectionLimit, Slot
from mcpd.api.mcp.endpoint import McpEndpoint, McpHandler
from mcpd.api.mcp.frames import (
    is_request,
)
from mcpd.api.mcp.kept_sessions import SessionFile
from mcpd.api.mcp.legacy import LegacyHttpSessions, Principal
from mcpd.api.mcp.scope import EndpointScope
from mcpd.api.mcp.sse import SseSessions
from mcpd.calls.client_context import ClientIdentity
from mcpd.config.http import Address, HttpSettings, TlsFiles
from mcpd.files.atomic import write_atomically
from mcpd.gateway.gateway import Gateway
from mcpd.model.api import HttpListener
from mcpd.model.login import LOGIN_PATH
from mcpd.model.policy import ALL_SERVERS, SURFACES
from mcpd.wire import message as wire
from mcpd.wire.message import BadFrame

if TYPE_CHECKING:
    from mcpd.api.http.access_tokens import Person
    from mcpd.api.http.cluster import Cluster
    from mcpd.api.http.network_guard import NetworkGuard
    from mcpd.api.http.tls import TlsServer
    from mcpd.auth.person_login import LoginPages

log = logging.getLogger("mcpd.http")

HEALTH = "/health"
LIVE, READY = "/livez", "/readyz"
MCP = "/mcp"
METRICS = "/metrics"
RPC = "/rpc"
TOKEN_FILE = "http-token"  # noqa: S105 - the name of a file
ADDRESS_FILE = "http.json"
"""In the runtime directory; tells other programs where the port is."""
SESSIONS_FILE = "http-sessions.jsonl"
_ENDPOINT = re.compile(r"/(mcp|sse)(?:/([^/]+))?/?")
"""The transport, and the profile if any. Many programs add a slash at the end."""
_SERVER = re.compile(r"/servers/([^/]+)/(mcp|sse)/?")
_OPEN = {HEALTH: 0, LIVE: 0, READY: 0}
"""Paths that need no token → bytes that the body of a request may have."""
_MAX_PEOPLE = 16
"""People who may use one connection of a balancer at the same time."""


@attrs.frozen(eq=False)
class HttpRoutes:
    """What one listener serves, and to whom."""

    api: HttpApi
    endpoint: McpEndpoint
    guard: RequestGuard
    principal: str
    """The identity that the guard verifies; sessions are bound to it. A `Person` has its own."""
    dashboard: Dashboard | None = None
    serves_rpc: bool = False
    """Whether it serves all of the control API. A port does not: that can start programs."""
    control: RemoteControl | None = None
    """The part of the control API that other machines may use."""
    network: NetworkGuard | None = None
    """The guard, if other machines can reach the port."""


@attrs.frozen
class HttpPort:
    """An open TCP port. The caller serves and closes `listener`."""

    listener: sockets.socket
    routes: HttpRoutes
    bodies: BodyBudget
    connections: set[HttpServerConnection]
    tls: TlsServer | None = None
    background: Callable[[], Awaitable[None]] | None = None
    """Must run while the port is open."""
    limit: ConnectionLimit = attrs.field(factory=lambda: ConnectionLimit("tcp"))

    async def serve(self, connection: sockets.socket, slot: Slot) -> None:
        if self.tls is None:
            await self._serve(connection, slot)
        else:
            await self.tls.serve(connection, slot, partial(self._serve, slot=slot))

    async def _serve(self, connection: sockets.socket, slot: Slot) -> None:
        handler = partial(RouteHandler, self.routes)
        await HttpServerConnection(
            connection, handler, "HTTP client", slot, self.bodies, self.connections
        ).run()


class HttpApi:
    """The daemon's HTTP API."""

    def __init__(self, gateway: Gateway, state_dir: Path, cluster: Cluster | None = None) -> None:
        self.cluster = cluster
        self.listener: HttpListener | None = None
        """The published port, while it is open."""
        owner = gateway.core.replica.owner
        self._sessions = LegacyHttpSessions(gateway, SessionFile(state_dir / SESSIONS_FILE), owner)
        self._endpoint = McpEndpoint(gateway, self._sessions, SseSessions(gateway, owner))
        self._connections: set[HttpServerConnection] = set()
        self._dashboards: list[Dashboard] = []
        self._bodies = BodyBudget()
        self._socket_routes = HttpRoutes(self, self._endpoint, UnixGuard(), "user", serves_rpc=True)
        self._network_guards: list[NetworkGuard] = []
        self._certificates: list[TlsServer] = []
        self._control = RemoteControl(gateway)
        self.is_stopping = False
        """Whether `/readyz` says that this daemon takes no new clients."""

    async def serve_unix(self, connection: sockets.socket, slot: Slot) -> None:
        """Serve HTTP on a connection of the Unix socket until it ends."""
        handler = partial(RouteHandler, self._socket_routes, pid=slot.pid)
        name = f"client {slot.pid}"
        await HttpServerConnection(connection, handler, name, slot, self._bodies, self._connections).run()

    @property
    def dashboard(self) -> Dashboard | None:
        """The dashboard of the port that was opened first."""
        return self._dashboards[0] if self._dashboards else None

    @property
    def serves_network(self) -> bool:
        """Whether a port is open for other machines."""
        return bool(self._network_guards)

    @property
    def problem(self) -> str:
        """Why a renewed certificate cannot be used; empty if there is none, or it is in use."""
        return next((problem for each in self._certificates if (problem := each.renew())), "")

    @property
    def unready(self) -> str:
        """Why a balancer should send requests elsewhere; empty if it should not."""
        if self.is_stopping:
            return "mcpd is stopping"
        shared = self._endpoint.gateway.core.shared
        if shared is not None and shared.is_refused:
            return shared.problem
        return next((guard.problem for guard in self._network_guards if guard.problem), "")

    def hand_over(self) -> None:
        """The port goes to the next daemon: send the requests of connected clients there from now on.

        Just closing a connection could lose a request that its client is sending.
        """
        self._endpoint.is_handed_over = True
        for connection in self._connections:
            connection.route_again()

    def idle_connections(self) -> list[tuple[int, int]]:
        """Return the descriptors of connections on which nothing is in progress, and the pids of clients."""
        return [(fd, each.pid) for each in self._connections if (fd := each.idle_fd) is not None]

    def is_receiving(self, age: float) -> bool:
        """Return whether a request has been arriving for longer than `age`, and is not complete."""
        return any(each.is_receiving(age) for each in self._connections)

    def suspend(self, reason: str) -> None:
        """End what is in progress, and save the sessions at once: the next version needs them."""
        self._endpoint.close(reason)
        self._sessions.save_now()

    def go_on(self) -> None:
        """Undo `suspend`: there is no other version."""
        self._sessions.is_stopping = False

    def close(self, reason: str) -> None:
        """End every open stream, and suspend every session."""
        self._endpoint.close(reason)
        for dashboard in self._dashboards:
            dashboard.close(reason)
        self._control.close(reason)
        if self.cluster is not None:
            self.cluster.close()

    @contextmanager
    def open_port(
        self,
        listener: sockets.socket,
        state_dir: Path,
        runtime_dir: str,
        require_token: bool,
        settings: HttpSettings | None = None,
    ) -> Iterator[HttpPort]:
        """Publish the port's address (status, `http.json`) until the block is left.

        Raises before publishing anything: UnusablePath if the token cannot be used, and OSError if the
        certificate cannot.
        """
        host, port = listener.getsockname()[:2]
        url = f"{settings.scheme if settings else 'http'}://{Address(host, port)}{MCP}"
        file = state_dir / TOKEN_FILE
        token = load_token(file) if require_token else None
        if token is not None:
            self._endpoint.gateway.core.redactor.add([token])
        is_for_network = settings is not None and settings != HttpSettings(listen=settings.listen)
        if settings is not None and is_for_network and token is not None:
            opened, dashboard = self._make_network_port(listener, token, settings), None
        else:
            opened, dashboard = self._make_port(listener, token, "anybody" if token is None else "token")
        self.listener = HttpListener(
            url=url,
            auth="none" if token is None else "jwt" if settings and settings.jwt else "token",
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
        try:
            yield opened
        finally:
            self.listener = None
            if dashboard is not None:
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
        guard = TcpGuard(port, token, {**_OPEN, **PATHS})
        routes = HttpRoutes(self, self._endpoint, guard, principal, dashboard)
        return HttpPort(listener, routes, self._bodies, self._connections), dashboard

    def _make_network_port(self, listener: sockets.socket, token: str, settings: HttpSettings) -> HttpPort:
        """Return a port that other machines can reach. It has no dashboard: that can start programs."""
        from mcpd.api.http.network_guard import NetworkGuard
        from mcpd.api.http.tls import TlsServer

        gateway, tokens = self._endpoint.gateway, None
        tls = TlsServer(settings.tls) if isinstance(settings.tls, TlsFiles) else None
        self._certificates += [] if tls is None else [tls]
        if settings.jwt is not None:
            from mcpd.api.http.access_tokens import AccessTokens
            from mcpd.auth.person_login import LoginPages

            tokens = AccessTokens(settings.jwt, gateway.core.environ)
            core, identify = gateway.core, tokens.identify
            core.login_pages = LoginPages(
                settings.origin, settings.jwt, identify, core.environ, core.replica.owner
            )
        guard = NetworkGuard(settings, token, tokens, _OPEN)
        self._network_guards.append(guard)
        routes = HttpRoutes(
            self,
            self._endpoint,
            guard,
            "token",
            control=self._control,
            network=guard,
        )
        background = tokens.run if tokens else None
        return HttpPort(listener, routes, self._bodies, self._connections, tls, background)


class RouteHandler:
    """Routes the requests of one connection. See `ConnectionHandler`."""

    def __init__(self, routes: HttpRoutes, spawn: SpawnTask, pid: int = 0) -> None:
        gateway = routes.endpoint.gateway
        self._operations = gateway.core
        self._routes = routes
        self._spawn = spawn
        self._endpoint = routes.endpoint
        self._client = self._operations.clients.add(pid or None, "" if pid else "an HTTP client")
        principal = Principal(
            routes.principal, ClientIdentity(via="http", pid=pid, peer_pid=pid), self._client
        )
        self._mcp = McpHandler(routes.endpoint, principal, spawn)
        self._people: dict[Person, McpHandler] = {}
        """Those who use this connection, which may be that of a balancer."""
        self._rpc = HttpRpc(gateway, self._client, pid, spawn) if routes.serves_rpc else None
        self.admit = routes.guard.admit

    def route(self, head: Head) -> ServeRequest:
        """See `ConnectionHandler`."""
        path, dashboard = head.path, self._routes.dashboard
        scope = endpoint_scope(path)
        if scope is not None:
            if head.query and (wanted := parse_qs(head.query).get("surface")):
                if wanted[0] not in SURFACES:
                    text = f"`surface` must be one of {', '.join(SURFACES)}"
                    return partial(_refuse, BadRequest(400, text))
                scope = scope._replace(surface=wanted[0])
            serve = self._mcp.route(scope, head) if self._routes.network is None else self._route(scope, head)
            cluster = self._routes.api.cluster
            if self._endpoint.is_handed_over and self._rpc is None:  # the Unix socket is not handed over
                return partial(self._serve_last, serve)
            return serve if cluster is None else cluster.serve(head, serve, self._spawn)
        if path in (HEALTH, LIVE, READY, METRICS):
            return self._serve_monitoring
        if dashboard is not None and path in PATHS:
            return partial(dashboard.handle, head, self._client)
        if path == RPC and self._rpc is not None:
            return partial(self._rpc.handle, head)
        network, control = self._routes.network, self._routes.control
        if path == RPC and control is not None and network is not None:
            return partial(
                control.serve, network, self._client, lambda person: self._handler_of(person).principal
            )
        if network is not None and path.startswith(LOGIN_PATH):
            cluster = self._routes.api.cluster
            return cluster.serve(head, self._serve_login, self._spawn) if cluster else self._serve_login
        if (
            network is not None
            and path.startswith("/.well-known/")
            and (found := network.metadata(head)) is not None
        ):
            return lambda _, exchange: exchange.respond(200, found)
        return _not_found

    def _route(self, scope: EndpointScope, head: Head) -> ServeRequest:
        """Route a request from another machine by the person whose token it carries."""
        guard = self._routes.network
        assert guard is not None
        try:
            person = guard.person(head)
        except BadRequest as error:
            return partial(_refuse, error)
        if person is None:
            return self._mcp.route(scope, head)
        own = guard.profiles_of(person)
        if own != [ALL_SERVERS]:
            if scope == EndpointScope(is_sse=scope.is_sse, surface=scope.surface) and own:
                scope = scope._replace(profile=own[0])
            elif scope.profile not in own and ALL_SERVERS not in own:
                text = f"{head.path} is not for {person.name}: see `settings.http.profiles`"
                return partial(_refuse, BadRequest(403, text))
        serve = self._handler_of(person).route(scope, head)

        def serve_while_valid(body: bytes, exchange: HttpExchange) -> None:
            """The connection recognizes a head that is repeated, and does not admit it again."""
            try:
                guard.person(head)
            except BadRequest as error:
                _refuse(error, body, exchange)
            else:
                serve(body, exchange)

        return serve_while_valid

    def _handler_of(self, person: Person) -> McpHandler:
        handler = self._people.get(person)
        if handler is None:
            if len(self._people) >= _MAX_PEOPLE:
                self._close_people("evicted: too many people use this connection")
            client = self._operations.clients.add(None, person.name)
            identity = ClientIdentity(
                via="http", person=person.name, person_id=person.id, groups=person.groups
            )
            # A session ends for a person whose groups have changed: they decide what it shows.
            name = f"person {person.name} {sorted(person.groups)}"
            handler = McpHandler(self._routes.endpoint, Principal(name, identity, client), self._spawn)
            self._people[person] = handler
        return handler

    def _serve_last(self, serve: ServeRequest, body: bytes, exchange: HttpExchange) -> None:
        """Redirect the client, unless this may belong to a call that is still in progress here."""
        is_answer = False
        if exchange.head.method == "POST" and not self._endpoint.sessions.is_stopping:
            with suppress(BadFrame):
                is_answer = not is_request(wire.parse(body))
        if is_answer:
            serve(body, exchange)
        else:
            exchange.redirect()

    def _serve_login(self, _: bytes, exchange: HttpExchange) -> None:
        pages, head = self._operations.login_pages, exchange.head
        if pages is None or head.method != "GET":
            _not_found(b"", exchange)
        else:
            self._spawn(partial(_show_login, pages, exchange))

    def _serve_monitoring(self, _: bytes, exchange: HttpExchange) -> None:
        path = exchange.head.path
        if exchange.head.method not in ("GET", "HEAD"):
            exchange.respond(405, headers=b"Allow: GET, HEAD\r\n")
        elif path == READY and (why := self._routes.api.unready):
            exchange.respond(503, f"{why}\n".encode(), TEXT)
        elif path != METRICS:
            exchange.respond(200, b'{"status":"ok"}')
        else:
            self._serve_metrics(exchange)

    def _serve_metrics(self, exchange: HttpExchange) -> None:
        try:
            person = self._routes.guard.person(exchange.head)
        except BadRequest as error:
            _refuse(error, b"", exchange)
            return
        if person is not None:
            exchange.respond(403, b"the metrics are for the person who runs mcpd\n", TEXT)
        else:
            self._spawn(lambda: self._metrics(exchange))

    async def _metrics(self, exchange: HttpExchange) -> None:
        result = await collect_metrics(self._operations)
        exchange.respond(200, result.text.encode(), result.content_type.encode())

    def closed(self, reason: str) -> None:
        self._operations.clients.remove(self._client)
        self._mcp.close(reason)
        self._close_people(reason)
        if self._rpc is not None:
            self._rpc.close(reason)

    def _close_people(self, reason: str) -> None:
        for handler in self._people.values():
            self._operations.clients.remove(handler.principal.connection)
            handler.close(reason)
        self._people.clear()


async def _show_login(pages: LoginPages, exchange: HttpExchange) -> None:
    from mcpd.auth.redirect_listener import PAGE_HEADERS, page_body

    head = exchange.head
    page = await pages.show(head.path, head.query, head.get(b"cookie") or "")
    headers = (PAGE_HEADERS + page.headers).encode("latin-1")
    exchange.respond(page.status, page_body(page), b"text/html; charset=utf-8", headers)


def _refuse(error: BadRequest, _: bytes, exchange: HttpExchange) -> None:
    exchange.respond(error.status, error.message.encode() + b"\n", TEXT, error.headers)


def _not_found(_: bytes, exchange: HttpExchange) -> None:
    exchange.respond(404, b"MCP is served at /mcp, /mcp/PROFILE and /servers/NAME/mcp\n", TEXT)


def endpoint_scope(path: str) -> EndpointScope | None:
    """Return what the MCP endpoint at `path` serves, or None if `path` is not an MCP endpoint."""
    if match := _ENDPOINT.fullmatch(path):
        return EndpointScope(profile=unquote(match[2]) if match[2] else None, is_sse=match[1] == "sse")
    match = _SERVER.fullmatch(path)
    return None if match is None else EndpointScope(server=unquote(match[1]), is_sse=match[2] == "sse")

"""The port for HTTP clients: opened on the loopback interface, told to whom it concerns, closed again."""

from __future__ import annotations

import json
import logging
import os
import socket as sockets
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import attrs

from mcpd.api.connection_limit import LruConnectionLimit, socket_limit
from mcpd.api.dashboard.page import PATHS, Dashboard
from mcpd.api.http_guard import TcpGuard, UnixGuard, load_token
from mcpd.api.http_routes import HEALTH, MCP, HttpRoutes, RouteHandler
from mcpd.api.http_server.connection import HttpServerConnection, SpawnTask
from mcpd.api.mcp_endpoint.endpoint import McpEndpoint
from mcpd.api.mcp_endpoint.legacy import LegacyHttpSessions
from mcpd.config.settings import Address
from mcpd.gateway.gateway import Gateway
from mcpd.model.api import HttpListener
from mcpd.support.atomic_files import write_atomically

log = logging.getLogger("mcpd.http")

TOKEN_FILE = "http-token"  # noqa: S105 - the name of a file
ADDRESS_FILE = "http.json"
"""Beside the socket: where the port is, for tools."""


@attrs.frozen
class HttpPort:
    """An open door. `listener` is the caller's to serve and to close."""

    listener: sockets.socket
    site: HttpRoutes
    limit: LruConnectionLimit = attrs.field(factory=LruConnectionLimit)

    async def serve(self, connection: sockets.socket, _: int) -> None:
        await HttpServerConnection(connection, self.site.handler, "HTTP client", self.limit).run()


class HttpApi:
    """HTTP, whatever the way in. One for a daemon."""

    def __init__(self, gateway: Gateway) -> None:
        self._core = gateway.core
        self._endpoint = McpEndpoint(gateway, LegacyHttpSessions(gateway))
        self._dashboards: list[Dashboard] = []
        self._unix = HttpRoutes(self._endpoint, UnixGuard(), "user", control_api=True)

    async def serve_unix(self, connection: sockets.socket, pid: int) -> None:
        def visit(spawn: SpawnTask) -> RouteHandler:
            return self._unix.handler(spawn, pid)

        await HttpServerConnection(connection, visit, f"client {pid}", socket_limit).run()

    def close(self, reason: str) -> None:
        """End every session, and the streams that clients hold open."""
        self._endpoint.sessions.close(reason)
        for page in self._dashboards:
            page.close(reason)

    @contextmanager
    def open_port(
        self, listener: sockets.socket, state_dir: Path, runtime_dir: str, require_token: bool
    ) -> Iterator[HttpPort]:
        """Say where the port is, for as long as it is open. Raises UnusablePath, with nothing said."""
        core = self._core
        host, port = listener.getsockname()[:2]
        url = f"http://{Address(host, port)}{MCP}"
        file = state_dir / TOKEN_FILE
        token = load_token(file) if require_token else None
        if token is not None:
            core.redactor.add([token])
        core.http = HttpListener(
            url=url,
            auth="none" if token is None else "token",
            token_file=None if token is None else str(file),
        )
        address_file = Path(runtime_dir) / ADDRESS_FILE
        contents = {**attrs.asdict(core.http), "pid": os.getpid()}
        write_atomically(address_file, json.dumps(contents).encode() + b"\n", 0o600)
        how = f"with the token in {file}" if token else "without a token"
        log.info("HTTP clients come in at %s, %s", url, how)
        if token is None:
            log.warning(
                "--http-auth none: every program of every user of this machine can use every server at %s",
                url,
            )
        dashboard = Dashboard(self._endpoint.gateway, url.removesuffix(MCP), port)
        self._dashboards.append(dashboard)
        core.create_dashboard_link = dashboard.create_link
        guard = TcpGuard(port, token, frozenset({HEALTH}) | PATHS)
        try:
            principal = "anybody" if token is None else "token"
            yield HttpPort(listener, HttpRoutes(self._endpoint, guard, principal, dashboard=dashboard))
        finally:
            core.http = core.create_dashboard_link = None
            self._dashboards.remove(dashboard)
            with suppress(OSError):
                address_file.unlink()

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

from mcpd.api.connection_limit import Seats, seats
from mcpd.api.dashboard.page import PATHS, Page
from mcpd.api.http_guard import TcpGuard, UnixGuard, token_in
from mcpd.api.http_routes import HEALTH, MCP, Site, Visit
from mcpd.api.http_server.connection import HttpConnection, Spawn
from mcpd.api.mcp_endpoint.endpoint import Endpoint
from mcpd.api.mcp_endpoint.legacy import Sessions
from mcpd.config.address import Address
from mcpd.gateway.gateway import Gateway
from mcpd.model.api import HttpListener
from mcpd.support.atomic_files import write_atomically

log = logging.getLogger("mcpd.http")

TOKEN = "http-token"  # noqa: S105 - the name of a file
ADDRESS = "http.json"
"""Beside the socket: where the port is, for tools."""


@attrs.frozen
class Port:
    """An open door. `listener` is the caller's to serve and to close."""

    listener: sockets.socket
    site: Site
    seats: Seats = attrs.field(factory=Seats)

    async def serve(self, connection: sockets.socket, _: int) -> None:
        await HttpConnection(connection, self.site.visit, "HTTP client", self.seats).run()


class Web:
    """HTTP, whatever the way in. One for a daemon."""

    def __init__(self, gateway: Gateway) -> None:
        self._core = gateway.core
        self._endpoint = Endpoint(gateway, Sessions(gateway))
        self._pages: list[Page] = []
        self._unix = Site(self._endpoint, UnixGuard(), "user", controls=True)

    async def serve_unix(self, connection: sockets.socket, pid: int) -> None:
        def visit(spawn: Spawn) -> Visit:
            return self._unix.visit(spawn, pid)

        await HttpConnection(connection, visit, f"client {pid}", seats).run()

    def close(self, reason: str) -> None:
        """End every session, and the streams that clients hold open."""
        self._endpoint.sessions.close(reason)
        for page in self._pages:
            page.close(reason)

    @contextmanager
    def opened(self, listener: sockets.socket, state: Path, runtime: str, with_token: bool) -> Iterator[Port]:
        """Say where the port is, for as long as it is open. Raises UnusablePath, with nothing said."""
        core = self._core
        host, port = listener.getsockname()[:2]
        url = f"http://{Address(host, port)}{MCP}"
        file = state / TOKEN
        token = token_in(file) if with_token else None
        if token is not None:
            core.redactor.add([token])
        core.http = HttpListener(
            url=url,
            auth="none" if token is None else "token",
            token_file=None if token is None else str(file),
        )
        told = Path(runtime) / ADDRESS
        facts = {**attrs.asdict(core.http), "pid": os.getpid()}
        write_atomically(told, json.dumps(facts).encode() + b"\n", 0o600)
        how = f"with the token in {file}" if token else "without a token"
        log.info("HTTP clients come in at %s, %s", url, how)
        if token is None:
            log.warning(
                "--http-auth none: every program of every user of this machine can use every server at %s",
                url,
            )
        page = Page(self._endpoint.gateway, url.removesuffix(MCP), port)
        self._pages.append(page)
        core.create_dashboard_link = page.link
        guard = TcpGuard(port, token, frozenset({HEALTH}) | PATHS)
        try:
            principal = "anybody" if token is None else "token"
            yield Port(listener, Site(self._endpoint, guard, principal, page=page))
        finally:
            core.http = core.create_dashboard_link = None
            self._pages.remove(page)
            with suppress(OSError):
                told.unlink()

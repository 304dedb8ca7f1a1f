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

from mcpd.config.address import Address
from mcpd.core import Core
from mcpd.doors.guard import TcpGuard, token_in
from mcpd.doors.http.connection import HttpConnection
from mcpd.doors.site import HEALTH, Site
from mcpd.model.api import HttpDoor
from mcpd.support.atomic import write_atomically

log = logging.getLogger("mcpd.http")

TOKEN = "http-token"  # noqa: S105 - the name of a file
ADDRESS = "http.json"
"""Beside the socket: where the port is, for tools."""


@attrs.frozen
class Port:
    """An open door. `listener` is the caller's to serve and to close."""

    listener: sockets.socket
    site: Site

    async def serve(self, connection: sockets.socket, _: int) -> None:
        await HttpConnection(connection, self.site.visit, "HTTP client").run()


@contextmanager
def opened(
    listener: sockets.socket, core: Core, *, state: Path, runtime: str, with_token: bool
) -> Iterator[Port]:
    """Say where it is, for as long as it is open. Raises UnusablePath, with nothing said."""
    host, port = listener.getsockname()[:2]
    url = f"http://{Address(host, port)}/mcp"
    file = state / TOKEN
    token = token_in(file) if with_token else None
    if token is not None:
        core.redactor.add([token])
    core.http = HttpDoor(
        url=url,
        auth="none" if token is None else "token",
        token_file=None if token is None else str(file),
    )
    told = Path(runtime) / ADDRESS
    facts = {**attrs.asdict(core.http), "pid": os.getpid()}
    write_atomically(told, json.dumps(facts).encode() + b"\n", 0o600)
    log.info(
        "HTTP clients come in at %s, %s", url, f"with the token in {file}" if token else "without a token"
    )
    if token is None:
        log.warning(
            "--http-auth none: every program of every user of this machine can use every server through %s",
            url,
        )
    try:
        yield Port(listener, Site(core, TcpGuard(port, token, frozenset({HEALTH}))))
    finally:
        core.http = None
        with suppress(OSError):
            told.unlink()

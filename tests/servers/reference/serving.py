"""What both reference servers need besides the SDK: a command line, a memory for events, a web server."""

from __future__ import annotations

import argparse
import socket
from collections.abc import Awaitable, Callable
from typing import Any, Literal

import anyio
import uvicorn

RETRY_MS = 100
"""How soon a client whose stream was closed may come back."""


def serve(prog: str, stdio: Callable[[], Awaitable[None]], app: Callable[[], Any]) -> None:
    """Serve as the command line says: `--stdio`, or `--http HOST:PORT`, whose `/mcp` is told on stdout."""
    parser = argparse.ArgumentParser(prog=prog)
    way = parser.add_mutually_exclusive_group(required=True)
    way.add_argument("--stdio", action="store_true")
    way.add_argument("--http", metavar="HOST:PORT", help="port 0 takes a free one")
    chosen = parser.parse_args()
    if chosen.stdio:
        anyio.run(stdio)
        return
    host, _, port = chosen.http.rpartition(":")
    listener = socket.create_server((host, int(port)))
    print(f"http://{host}:{listener.getsockname()[1]}/mcp", flush=True)
    server = uvicorn.Server(uvicorn.Config(app(), http=PARSER, log_level="warning"))
    anyio.run(server.serve, [listener])


PARSER: Literal["h11"] = "h11"
"""httptools 0.9, which uvicorn prefers, leaves white space after a header's value in it (RFC 9110, 5.5)."""


class Events:
    """Everything that was sent on streams, in memory, so that a client can come back to one."""

    def __init__(self) -> None:
        self._events: list[tuple[str, Any]] = []

    def add(self, stream: str, message: Any) -> str:
        """Its id; `message` is None for the event that only tells the client where it is."""
        self._events.append((stream, message))
        return str(len(self._events))

    def after(self, event: str) -> tuple[str | None, list[tuple[str, Any]]]:
        """The stream that an event belongs to, and what followed on it, with ids; None: never heard of it."""
        if not event.isdecimal() or not 0 < int(event) <= len(self._events):
            return None, []
        stream = self._events[int(event) - 1][0]
        later = enumerate(self._events[int(event) :], int(event) + 1)
        return stream, [
            (str(n), message) for n, (where, message) in later if where == stream and message is not None
        ]

"""Compare calls to /servers/NAME/mcp with calls to an HTTP stub over the same plain sockets.

The server behind the daemon is the stub on pipes, so the result contains the HTTP endpoint and the path
through mcpd, but no second HTTP connection.
"""

from __future__ import annotations

import json
import signal
import socket
from contextlib import ExitStack, closing

from benchmarks.daemon import on_pipes, running
from benchmarks.figures import (
    IN_FLIGHT,
    PATIENCE,
    Row,
    Way,
    a_second,
    in_turns,
    micro,
    micro_tenth,
    milli,
    pair,
    ratio,
)
from benchmarks.http_load import Direct, stub
from benchmarks.load import LIMIT, OnLine, Wrong, floor

CALLS, FLOOD, BIG_CALLS = 1000, 20_000, 20
RATE_LIMIT = 27


def speed(rounds: int) -> list[Row]:
    """Measure clients of both eras."""
    return [row for era in ("legacy", "modern") for row in _era(era, rounds)]


def _era(era: str, rounds: int) -> list[Row]:
    signal.alarm(PATIENCE)
    with ExitStack() as held:
        daemon = held.enter_context(running(on_pipes(1), http=True))
        path = b"/servers/stub-1/mcp"
        session = new_session(daemon.http, path) if era == "legacy" else b""
        bare = Way("direct", held.enter_context(closing(Direct(held.enter_context(stub(era)), era))))
        endpoint = Direct(daemon.http, era, path=path, session=session)
        relay, relay_pid = held.enter_context(floor())
        lowest = Way("floor", OnLine(relay), relay_pid)
        through = Way("endpoint", held.enter_context(closing(endpoint)), daemon.pid)
        in_turns((bare, lowest, through), rounds, calls=CALLS, flood=FLOOD, big=BIG_CALLS)
    name = f"HTTP endpoint, {era}"
    return [
        Row(
            f"{name} vs. floor: calls per second, {IN_FLIGHT} in flight",
            pair(lowest.rate, through.rate, a_second),
            100 * ratio(through.rate, lowest.rate),
            RATE_LIMIT,
            at_least=True,
            unit="%",
        ),
        Row(
            f"{name} vs. floor: CPU time per call, {IN_FLIGHT} in flight",
            pair(lowest.cpu, through.cpu, micro_tenth),
            ratio(through.cpu, lowest.cpu),
        ),
        Row(f"{name} vs. direct: p50", pair(bare.p50, through.p50, micro), ratio(through.p50, bare.p50)),
        Row(
            f"{name} vs. direct: 1 MiB result",
            pair(bare.big, through.big, milli),
            ratio(through.big, bare.big),
        ),
    ]


def _hello() -> bytes:
    params = {
        "protocolVersion": "2025-11-25",
        "capabilities": {},
        "clientInfo": {"name": "b", "version": "1"},
    }
    return json.dumps({"jsonrpc": "2.0", "id": 1, "method": "initialize", "params": params}).encode()


def new_session(port: int, path: bytes, more: bytes = b"") -> bytes:
    """Initialize a session and return its ID. `more`: lines of further headers."""
    with socket.create_connection(("127.0.0.1", port), LIMIT) as connection:
        session = b""
        for body in (_hello(), b'{"jsonrpc":"2.0","method":"notifications/initialized"}'):
            known = (
                b"Mcp-Session-Id: %b\r\nMCP-Protocol-Version: 2025-11-25\r\n" % session if session else b""
            )
            connection.sendall(
                b"POST %b HTTP/1.1\r\nHost: 127.0.0.1:%d\r\nContent-Type: application/json\r\n"
                b"Accept: application/json, text/event-stream\r\n%b%bContent-Length: %d\r\n\r\n%b"
                % (path, port, more, known, len(body), body)
            )
            head = connection.recv(1 << 16).split(b"\r\n\r\n")[0]
            at = head.lower().find(b"mcp-session-id: ")
            if not session and at < 0:
                raise Wrong(f"no session: {head!r}")
            session = session or head[at + 16 :].split(b"\r\n")[0]
    return session

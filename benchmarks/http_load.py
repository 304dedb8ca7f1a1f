"""Measure an HTTP server directly, with the lowest possible cost on the client side.

The client uses plain sockets with one request at a time on each. It builds requests from two pieces, and
searches responses only for their end and their result. Every result is checked.
"""

from __future__ import annotations

import select
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from functools import partial
from pathlib import Path

from benchmarks.load import LIMIT, Calls, Wrong, tools_call
from benchmarks.stub import MIB

ROOT = Path(__file__).parent.parent
HEADERS = {
    "legacy": b"MCP-Protocol-Version: 2025-11-25\r\nMcp-Session-Id: 0123456789abcdef\r\n",
    "modern": b"MCP-Protocol-Version: 2026-07-28\r\nMcp-Method: tools/call\r\nMcp-Name: echo\r\n",
}

_P = "io.modelcontextprotocol/"
META: dict[str, object] = {
    f"{_P}protocolVersion": "2026-07-28",
    f"{_P}clientInfo": {"name": "load", "version": "1"},
    f"{_P}clientCapabilities": {},
}


@contextmanager
def stub(era: str, shape: str = "json") -> Iterator[int]:
    """Run a stub server in its own process, and return its port."""
    argv = [sys.executable, "-S", "-m", "benchmarks.http_stub", era, shape]
    with subprocess.Popen(argv, cwd=ROOT, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as child:
        assert child.stdin is not None
        assert child.stdout is not None
        try:
            yield int(child.stdout.readline())
        finally:
            child.stdin.close()
            child.wait(LIMIT)


class Direct:
    """A client with minimal cost. It has one connection for each call in flight."""

    def __init__(
        self,
        port: int,
        era: str,
        *,
        path: bytes = b"/mcp",
        session: bytes = b"",
        more: bytes = b"",
        calls: Callable[[str], Calls] | None = None,
    ) -> None:
        """`calls` makes requests of another kind than those of MCP, and checks their responses. `more`: lines
        of further headers.
        """
        self._port = port
        self._calls = calls or partial(_Calls, meta=META if era == "modern" else None)
        headers = HEADERS[era]
        self._head = (
            (
                b"POST %b HTTP/1.1\r\nHost: 127.0.0.1:%d\r\nContent-Type: application/json\r\n"
                b"Accept: application/json, text/event-stream\r\n" % (path, port)
            )
            + (headers.replace(b"0123456789abcdef", session) if session else headers)
            + more
        )
        self._open: list[socket.socket] = []

    def close(self) -> None:
        while self._open:
            self._open.pop().close()

    def latencies(self, tool: str, count: int) -> list[float]:
        """Make `count` calls on one connection, and return the seconds of each."""
        calls = self._calls(tool)
        [connection] = self._connections(1)
        taken = []
        for _ in range(count):
            request = self._request(calls)
            start = time.perf_counter()
            connection.sendall(request)
            response = _receive(connection)
            taken.append(time.perf_counter() - start)
            calls.check(response)
        return taken

    def rate(self, count: int, in_flight: int) -> float:
        """Make `count` calls over `in_flight` connections, and return the calls per second."""
        calls = self._calls("echo")
        connections = self._connections(in_flight)
        by_number = {connection.fileno(): connection for connection in connections}
        with select.epoll() as poll:
            for number in by_number:
                poll.register(number, select.EPOLLIN)
            start = time.perf_counter()
            for connection in connections:
                connection.sendall(self._request(calls))
            sent, answered = in_flight, 0
            while answered < count:
                for number, _ in poll.poll(LIMIT):
                    connection = by_number[number]
                    calls.check(_receive(connection))
                    answered += 1
                    if sent < count:
                        connection.sendall(self._request(calls))
                        sent += 1
            return count / (time.perf_counter() - start)

    @contextmanager
    def batch(self, count: int) -> Iterator[None]:
        """Send `count` calls at once, each on its own connection, and read their answers after the block."""
        calls = self._calls("echo")
        connections = self._connections(count)
        for connection in connections:
            connection.sendall(self._request(calls))
        yield
        for connection in connections:
            calls.check(_receive(connection))

    def _connections(self, count: int) -> list[socket.socket]:
        while len(self._open) < count:
            connection = socket.create_connection(("127.0.0.1", self._port), LIMIT)
            connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            self._open.append(connection)
        return self._open[:count]

    def _request(self, calls: Calls) -> bytes:
        body = calls.requests(1)[:-1]
        head = self._head
        if calls.tool != "echo":
            head = head.replace(b"Mcp-Name: echo", b"Mcp-Name: " + calls.tool.encode())
        return b"%bContent-Length: %d\r\n\r\n%b" % (head, len(body), body)


class _Calls(Calls):
    def __init__(self, tool: str, meta: Mapping[str, object] | None) -> None:
        super().__init__(tool, partial(tools_call, meta=meta))

    def check(self, answer: bytes) -> None:
        start, end = answer.find(b"{"), answer.rfind(b"}")
        if not answer.startswith(b"HTTP/1.1 200 ") or start < 0:
            raise Wrong(f"not the answer expected: {answer[:200]!r}")
        super().check(answer[start : end + 1])


def _receive(connection: socket.socket) -> bytes:
    """Read one complete response, in one of the two shapes that the stub sends."""
    data = connection.recv(1 << 16)
    end = data.find(b"\r\n\r\n")
    at = data.find(b"Content-Length: ", 0, end)
    if at < 0:
        at = data.find(b"content-length: ", 0, end)  # as balancers write it
    if at < 0:
        parts = [data]
        while not parts[-1].endswith(b"0\r\n\r\n"):
            parts.append(_more(connection))
        return b"".join(parts)
    missing = int(data[at + 16 : data.find(b"\r\n", at)]) - (len(data) - end - 4)
    parts = [data]
    while missing > 0:
        parts.append(_more(connection))
        missing -= len(parts[-1])
    return b"".join(parts)


def _more(connection: socket.socket) -> bytes:
    data = connection.recv(MIB)
    if not data:
        raise Wrong("the stub closed the connection")
    return data

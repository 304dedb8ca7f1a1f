"""A stub server for Streamable HTTP: one thread, one epoll and no parser, so that it adds little time.

    python -S -m benchmarks.http_stub legacy|modern json|sse

The server prints its port and serves until stdin is closed. It parses a request only as far as necessary to
find its end and its method. Responses are JSON documents, or event streams with one event as the official
SDKs send them. The tool `wait` behaves like `echo`, but responds after up to 20 ms.
"""

from __future__ import annotations

import heapq
import os
import random
import select
import socket
import sys
import time
from contextlib import suppress

from benchmarks import stub as on_pipes
from benchmarks.stub import PIPE

SESSION = b"0123456789abcdef"


class Stub:
    """The responses of the stub for one era and one shape."""

    def __init__(self, era: str, shape: str) -> None:
        self.modern = era == "modern"
        self.events = shape == "sse"
        self._answer = on_pipes.Stub(legacy=not self.modern).answer

    def respond(self, method: bytes, body: bytes) -> bytes:
        """Return the complete HTTP response to a request."""
        if method == b"DELETE":
            return b"HTTP/1.1 204 No Content\r\n\r\n"
        if method != b"POST":
            return b"HTTP/1.1 405 Method Not Allowed\r\nContent-Length: 0\r\n\r\n"
        message = self._answer(body)[:-1]
        if not message:
            return b"HTTP/1.1 202 Accepted\r\nContent-Length: 0\r\n\r\n"
        if b'"initialize"' in body:
            return self._carry(message, b"Mcp-Session-Id: " + SESSION + b"\r\n")
        return self._carry(message)

    def _carry(self, message: bytes, headers: bytes = b"") -> bytes:
        if self.events:
            event = b"event: message\r\ndata: %b\r\n\r\n" % message
            return (
                b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nCache-Control: no-cache\r\n%b"
                b"Transfer-Encoding: chunked\r\n\r\n%x\r\n%b\r\n0\r\n\r\n" % (headers, len(event), event)
            )
        return b"HTTP/1.1 200 OK\r\nContent-Type: application/json\r\n%bContent-Length: %d\r\n\r\n%b" % (
            headers,
            len(message),
            message,
        )


def requests(pending: bytes) -> tuple[list[tuple[bytes, bytes]], bytes]:
    """Split received bytes into complete requests, as method and body, and the remaining bytes."""
    found = []
    while (end := pending.find(b"\r\n\r\n")) >= 0:
        head = pending[:end].lower()
        at = head.find(b"\r\ncontent-length:")
        length = int(head[at + 17 :].split(b"\r\n", 1)[0]) if at >= 0 else 0
        if len(pending) < end + 4 + length:
            break
        found.append((pending[: pending.find(b" ")], pending[end + 4 : end + 4 + length]))
        pending = pending[end + 4 + length :]
    return found, pending


class Listener:
    """All connections, and the responses to send later."""

    def __init__(self, stub: Stub) -> None:
        self.stub = stub
        self.socket = socket.create_server(("127.0.0.1", 0), backlog=256)
        self.poll = select.epoll()
        self.poll.register(self.socket, select.EPOLLIN)
        self.connections: dict[int, tuple[socket.socket, bytes]] = {}
        self.later: list[tuple[float, int, socket.socket, bytes]] = []
        self._chance = random.Random(1)
        self._count = 0

    def accept(self) -> None:
        connection, _ = self.socket.accept()
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self.connections[connection.fileno()] = connection, b""
        self.poll.register(connection, select.EPOLLIN)

    def read(self, number: int) -> None:
        connection, pending = self.connections[number]
        try:
            chunk = connection.recv(PIPE)
            whole, pending = requests(pending + chunk)
            for method, body in whole:
                self._answer(connection, self.stub.respond(method, body), late=b'"wait"' in body)
        except OSError:
            chunk = b""
        if chunk:
            self.connections[number] = connection, pending
        else:
            del self.connections[number]
            self.poll.unregister(number)
            connection.close()

    def _answer(self, connection: socket.socket, response: bytes, late: bool) -> None:
        if late:
            self._count += 1
            due = time.monotonic() + 0.02 * self._chance.random()
            heapq.heappush(self.later, (due, self._count, connection, response))
        else:
            connection.sendall(response)

    def patience(self) -> float:
        """Send the responses that are due, and return the seconds until the next one."""
        while self.later:
            wait = self.later[0][0] - time.monotonic()
            if wait > 0:
                return wait
            _, _, connection, response = heapq.heappop(self.later)
            with suppress(OSError):  # the client has disconnected
                connection.sendall(response)
        return -1


def main() -> None:
    """Serve until stdin is closed."""
    listener = Listener(Stub(*sys.argv[1:]))
    listener.poll.register(0, select.EPOLLIN)
    print(listener.socket.getsockname()[1], flush=True)
    while True:
        for number, _ in listener.poll.poll(listener.patience()):
            if number == 0:
                if not os.read(0, PIPE):
                    return
            elif number == listener.socket.fileno():
                listener.accept()
            else:
                listener.read(number)


if __name__ == "__main__":
    main()

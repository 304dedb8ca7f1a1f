"""The stub over Streamable HTTP: one thread, one epoll, no parser, so that it is not what is measured.

    python -S -m benchmarks.http_stub legacy|modern json|sse

Prints its port, serves until stdin ends. It reads of a request only where it ends and what `stub.answer`
looks for; answers are JSON documents, or event streams of one event as the official SDKs send them.
"""

from __future__ import annotations

import os
import select
import socket
import sys

from benchmarks.stub import PIPE, answer

SESSION = b"0123456789abcdef"
DISCOVERED = (
    b'{"resultType":"complete","supportedVersions":["2026-07-28"],"capabilities":{"tools":{}},'
    b'"serverInfo":{"name":"stub","version":"1"}}'
)


class Stub:
    """What it answers, in one era and one shape."""

    def __init__(self, era: str, shape: str) -> None:
        self.modern = era == "modern"
        self.events = shape == "sse"

    def respond(self, method: bytes, body: bytes) -> bytes:
        """The whole HTTP response to a request."""
        if method == b"DELETE":
            return b"HTTP/1.1 204 No Content\r\n\r\n"
        if method != b"POST":
            return b"HTTP/1.1 405 Method Not Allowed\r\nContent-Length: 0\r\n\r\n"
        if self.modern and b'"server/discover"' in body:
            key = body[body.find(b'"id":') + 5 :].split(b",", 1)[0].rstrip(b"} \r")
            return self._carry(b'{"jsonrpc":"2.0","id":%b,"result":%b}' % (key, DISCOVERED))
        message = answer(body)[:-1]
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
    """The whole requests at the start of what was read, as method and body, and the rest."""
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


def main() -> None:
    """Serve until stdin ends."""
    stub = Stub(*sys.argv[1:])
    listener = socket.create_server(("127.0.0.1", 0), backlog=256)
    print(listener.getsockname()[1], flush=True)
    poll = select.epoll()
    poll.register(0, select.EPOLLIN)
    poll.register(listener, select.EPOLLIN)
    open_now: dict[int, tuple[socket.socket, bytes]] = {}
    while True:
        for number, _ in poll.poll():
            if number == 0:
                if not os.read(0, PIPE):
                    return
            elif number == listener.fileno():
                connection, _ = listener.accept()
                connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
                open_now[connection.fileno()] = connection, b""
                poll.register(connection, select.EPOLLIN)
            else:
                connection, pending = open_now[number]
                try:
                    chunk = connection.recv(PIPE)
                    whole, pending = requests(pending + chunk)
                    for request in whole:
                        connection.sendall(stub.respond(*request))
                except OSError:
                    chunk = b""
                if chunk:
                    open_now[number] = connection, pending
                else:
                    del open_now[number]
                    poll.unregister(number)
                    connection.close()


if __name__ == "__main__":
    main()

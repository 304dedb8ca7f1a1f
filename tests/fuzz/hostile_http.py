"""A server on a port that answers each request with the response of a case."""

from __future__ import annotations

import json
import socket
from contextlib import suppress

from tests.fuzz.answers import expected, http_response, login_document
from tests.fuzz.generate import Json, die
from tests.fuzz.hostile_server import case_of
from tests.fuzz.thread_server import ThreadServer


class HostileHttp(ThreadServer):
    """A call names its case; other requests count."""

    def __init__(self, seed: int) -> None:
        self._seed = seed
        self._count = 0
        self.login = 0
        """The case of the documents about logins."""
        super().__init__()
        self.url = f"http://{self.address}"

    def serve(self, connection: socket.socket) -> None:
        with connection, suppress(OSError, ValueError):
            head, _, body = self._read_head(connection)
            fields = dict(line.lower().split(b":", 1) for line in head.split(b"\r\n")[1:] if b":" in line)
            length = int(fields.get(b"content-length", b"0"))
            while len(body) < length:
                portion = connection.recv(65536)
                if not portion:
                    return
                body += portion
            path = head.split(b" ", 2)[1]
            if path != b"/mcp":
                dice = die(self._seed, f"login {path.decode('latin-1')}", self.login)
                connection.sendall(login_document(dice, path, self.url, body))
                return
            request: Json = json.loads(body) if body else None
            if not isinstance(request, dict) or not request.keys() >= {"id", "method"}:
                request = None
            for portion in self._response(head, request):
                connection.sendall(portion)
            connection.shutdown(socket.SHUT_WR)
            while connection.recv(65536):  # otherwise the rest would be lost
                pass

    def _response(self, head: bytes, request: Json | None) -> list[bytes]:
        number = None if request is None else case_of(request)
        if number is not None:
            return http_response(die(self._seed, "http-server", number), request)
        self._count += 1
        dice = die(self._seed, "http-handshake", self._count)
        if request is not None and "id" in request and dice.random() < 0.8:
            body = expected(request)
            return [
                b"HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nContent-Length: %d\r\n\r\n%b"
                % (len(body), body)
            ]
        if head.startswith(b"GET") and dice.random() < 0.5:
            return [b"HTTP/1.1 405 No\r\nContent-Length: 0\r\n\r\n"]
        return http_response(dice, request)

    @staticmethod
    def _read_head(connection: socket.socket) -> tuple[bytes, bytes, bytes]:
        data = b""
        while b"\r\n\r\n" not in data:
            portion = connection.recv(65536)
            if not portion:
                raise OSError("closed")
            data += portion
        return data.partition(b"\r\n\r\n")

"""A client that opens a connection for each call, as the daemon of mcporter requires."""

from __future__ import annotations

import select
import socket
import time

from benchmarks.load import LIMIT, Calls, Request, Wrong
from benchmarks.stub import MIB


class OneCallEach:
    """Calls on a Unix socket whose server closes each connection after its response."""

    def __init__(self, path: str, request: Request) -> None:
        self._path = path
        self._request = request

    def latencies(self, tool: str, count: int) -> list[float]:
        calls = Calls(tool, self._request)
        taken = []
        for _ in range(count):
            request = calls.requests(1)
            start = time.perf_counter()
            with self._send(request) as connection:
                portions = []
                while portion := connection.recv(MIB):
                    portions.append(portion)
            taken.append(time.perf_counter() - start)
            calls.check(b"".join(portions))
        return taken

    def rate(self, count: int, in_flight: int) -> float:
        calls = Calls("echo", self._request)
        received: dict[int, bytes] = {}
        connections: dict[int, socket.socket] = {}
        with select.epoll() as poll:

            def send() -> None:
                connection = self._send(calls.requests(1))
                number = connection.fileno()
                connections[number], received[number] = connection, b""
                poll.register(number, select.EPOLLIN)

            start = time.perf_counter()
            for _ in range(in_flight):
                send()
            sent, answered = in_flight, 0
            while answered < count:
                ready = poll.poll(LIMIT)
                if not ready:
                    raise Wrong(f"no response for {LIMIT} s")
                for number, _ in ready:
                    if portion := connections[number].recv(MIB):
                        received[number] += portion
                        continue
                    connections.pop(number).close()
                    calls.check(received.pop(number))
                    answered += 1
                    if sent < count:
                        send()
                        sent += 1
            return count / (time.perf_counter() - start)

    def _send(self, request: bytes) -> socket.socket:
        connection = socket.socket(socket.AF_UNIX)
        connection.settimeout(LIMIT)
        connection.connect(self._path)
        connection.sendall(request)
        return connection

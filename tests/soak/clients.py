"""Clients of every kind, as objects of one loop: each has a connection and a few calls in flight.

All clients use the same request IDs, so an answer to another client's call is taken for a wrong one.
"""

from __future__ import annotations

import json
import random
import socket
import time
from typing import Any, ClassVar

import attrs

from tests.e2e.harness import BOUND, Json
from tests.gateway.mcp_client import meta
from tests.soak.ledger import Outcome


@attrs.frozen
class Target:
    """A server with the tools `look` and `run`. Each call has a token, and so has the right answer."""

    server: str
    is_slow: bool = False
    """It gets one call at a time, so its calls have to wait."""

    def tool(self, number: int) -> str:
        return "look" if number % 4 else "run"

    def is_right(self, text: str, token: str) -> bool:
        return text == f"{self.server} {token}"


@attrs.frozen
class Address:
    """Where the daemon listens."""

    socket: str
    port: int
    bearer: str


@attrs.define
class Pending:
    """A call that was sent."""

    token: str
    target: Target
    number: int
    sent_at: float


class ClosedByDaemon(Exception):
    """The daemon closed the connection."""


class SoakClient:
    """One client. `fill` sends calls, `read` takes answers; `outcomes` and `wrong` hold the results."""

    kind: ClassVar[str]
    width = 2
    """Calls in flight."""

    def __init__(self, name: str, address: Address, targets: list[Target], seed: int) -> None:
        self.name = name
        self.address = address
        self.targets = targets
        self.dice = random.Random(seed)
        self.pending: dict[object, Pending] = {}
        self.outcomes: list[tuple[str, Outcome]] = []
        self.errors: list[str] = []
        """The codes of errors that mcpd may return while servers are killed."""
        self.wrong: list[str] = []
        self.answered = 0
        self.seconds: list[float] = []
        """The durations of calls of `look` that do not wait for a turn
        (`mcpd/calls/turns.py`)."""
        self.resumes_at = 0.0
        """Not before this time a call is sent: a client that got an error waits a moment."""
        self._number = 0
        self._buffer = b""
        self.socket = self._connect()

    # ── calls ───────────────────────────────────────────────────────────────────────────────────

    def fill(self) -> None:
        """Send calls until `width` are in flight."""
        frames = []
        while len(self.pending) < self.width:
            self._number += 1
            number, target = self._number, self.dice.choice(self.targets)
            key: object = number if number % 3 else f"{number}"
            token = f"{target.server}:{self.name}:{number}"
            self.pending[key] = Pending(token, target, number, time.monotonic())
            frames.append(self.frame(key, target, target.tool(number), {"token": token}))
        if frames:
            self.socket.sendall(b"".join(frames))

    def read(self) -> None:
        """Take what has arrived. Raises ClosedByDaemon."""
        portion = self.socket.recv(1 << 18)
        if not portion:
            raise ClosedByDaemon(f"{self.name}: the daemon closed the connection")
        self._buffer += portion
        for message in self._messages():
            self._take(message)

    def leave(self) -> None:
        """Disconnect in the middle of calls, whose outcome is then unknown."""
        self.socket.close()
        for call in self.pending.values():
            self.outcomes.append((call.token, Outcome.UNKNOWN))
        self.pending.clear()
        self._buffer = b""

    def come_back(self) -> None:
        self.socket = self._connect()

    def _take(self, message: Json) -> None:
        if "method" in message:
            if "id" in message:
                self.wrong.append(f"{self.name} was asked {message['method']}")
            return
        call = self.pending.pop(message.get("id"), None)
        if call is None:
            self.wrong.append(f"{self.name} got an answer to nothing: {json.dumps(message)[:300]}")
            return
        if "error" in message:
            data = message["error"].get("data") or {}
            if "may_have_run" not in data:
                self.wrong.append(f"{self.name}, {call.token}: {json.dumps(message['error'])[:300]}")
            self.errors.append(str(data.get("code")))
            self.resumes_at = time.monotonic() + 0.02
            outcome = Outcome.UNKNOWN if data.get("may_have_run", True) else Outcome.NOT_RUN
            self.outcomes.append((call.token, outcome))
            return
        self.answered += 1
        if not call.target.is_slow and call.target.tool(call.number) == "look":
            self.seconds.append(time.monotonic() - call.sent_at)
        self.outcomes.append((call.token, Outcome.ANSWERED))
        text = self.text(message["result"])
        if not call.target.is_right(text, call.token):
            self.wrong.append(f"{self.name}, {call.token}: got {text[:300]!r}")

    # ── what differs between kinds of clients ───────────────────────────────────────────────────

    def frame(self, key: object, target: Target, tool: str, arguments: Json) -> bytes:
        """Return the bytes of a call."""
        raise NotImplementedError

    def text(self, result: Json) -> str:
        content = result.get("content")
        return str(content[0]["text"]) if content else json.dumps(result)

    def _connect(self) -> socket.socket:
        connection = socket.socket(socket.AF_UNIX)
        connection.settimeout(BOUND)
        connection.connect(self.address.socket)
        return connection

    def _messages(self) -> list[Json]:
        *lines, self._buffer = self._buffer.split(b"\n")
        return [json.loads(line) for line in lines]


def request(key: object, method: str, params: Any) -> bytes:
    message = {"jsonrpc": "2.0", "id": key, "method": method, "params": params}
    return json.dumps(message).encode() + b"\n"


def hello(version: str = "2025-11-25") -> Json:
    return {"protocolVersion": version, "capabilities": {}, "clientInfo": {"name": "soak", "version": "1"}}


class ControlClient(SoakClient):
    """Calls over the control API, as `mcpctl call` and the Python library do."""

    kind = "control"

    def frame(self, key: object, target: Target, tool: str, arguments: Json) -> bytes:
        return request(key, "mcpd/call", {"server": target.server, "tool": tool, "arguments": arguments})

    def text(self, result: Json) -> str:
        return str(result["output"])


class LegacyClient(SoakClient):
    """An MCP client of 2025-11-25 that sees the tools of all servers."""

    kind = "legacy"

    def _connect(self) -> socket.socket:
        connection = super()._connect()
        connection.sendall(request("hello", "initialize", hello()))
        answer = b""
        while not answer.endswith(b"\n"):
            answer += connection.recv(1 << 16) or b"closed\n"
        assert "result" in json.loads(answer), answer
        connection.sendall(b'{"jsonrpc":"2.0","method":"notifications/initialized"}\n')
        return connection

    def frame(self, key: object, target: Target, tool: str, arguments: Json) -> bytes:
        return request(key, "tools/call", {"name": f"{target.server}__{tool}", "arguments": arguments})


class ModernClient(SoakClient):
    """An MCP client of 2026-07-28 that sees the tools of all servers."""

    kind = "modern"

    def frame(self, key: object, target: Target, tool: str, arguments: Json) -> bytes:
        params = {"name": f"{target.server}__{tool}", "arguments": arguments, "_meta": meta()}
        return request(key, "tools/call", params)


class HttpClient(SoakClient):
    """An MCP client of 2025-11-25 over Streamable HTTP: one connection, one call at a time, one session."""

    kind = "http"
    width = 1
    session = ""

    def _connect(self) -> socket.socket:
        connection = socket.create_connection(("127.0.0.1", self.address.port), BOUND)
        self.session = ""
        connection.sendall(self._post(request(0, "initialize", hello())))
        self._buffer = b""
        while not self._responses(connection):
            pass
        connection.sendall(self._post(b'{"jsonrpc":"2.0","method":"notifications/initialized"}'))
        while not self._responses(connection):
            pass
        assert self.session
        return connection

    def frame(self, key: object, target: Target, tool: str, arguments: Json) -> bytes:
        params = {"name": f"{target.server}__{tool}", "arguments": arguments}
        return self._post(request(key, "tools/call", params))

    def _post(self, body: bytes) -> bytes:
        lines = [
            "POST /mcp HTTP/1.1",
            f"Host: 127.0.0.1:{self.address.port}",
            f"Authorization: Bearer {self.address.bearer}",
            "Content-Type: application/json",
            "Accept: application/json, text/event-stream",
            f"Content-Length: {len(body)}",
        ]
        if self.session:
            lines += [f"Mcp-Session-Id: {self.session}", "MCP-Protocol-Version: 2025-11-25"]
        return "\r\n".join([*lines, "", ""]).encode() + body

    def _responses(self, connection: socket.socket) -> list[tuple[int, bytes]]:
        portion = connection.recv(1 << 16)
        assert portion, "the daemon closed the connection"
        self._buffer += portion
        return self._take_responses()

    def _take_responses(self) -> list[tuple[int, bytes]]:
        """Return the status and the body of each complete response."""
        found = []
        while b"\r\n\r\n" in self._buffer:
            head, _, rest = self._buffer.partition(b"\r\n\r\n")
            first, *lines = head.decode("latin-1").split("\r\n")
            headers = {name.lower(): value.strip() for name, _, value in (x.partition(":") for x in lines)}
            if "chunked" in headers.get("transfer-encoding", ""):
                body = _unchunked(rest)
                if body is None:
                    break
                content, rest = body
            else:
                length = int(headers.get("content-length", "0"))
                if len(rest) < length:
                    break
                content, rest = rest[:length], rest[length:]
            self._buffer = rest
            self.session = headers.get("mcp-session-id", self.session)
            if headers.get("content-type", "").startswith("text/event-stream"):
                lines_of_data = (line[5:] for line in content.splitlines() if line.startswith(b"data:"))
                found += [(int(first.split()[1]), line) for line in lines_of_data if line.strip()]
            else:
                found.append((int(first.split()[1]), content))
        return found

    def _messages(self) -> list[Json]:
        found = []
        for status, body in self._take_responses():
            try:
                found.append(dict(json.loads(body)))
            except ValueError:
                self.wrong.append(f"{self.name}: HTTP {status} {body[:300]!r}")
        return found


def _unchunked(data: bytes) -> tuple[bytes, bytes] | None:
    """Return a chunked body and what follows it; None if it is not complete."""
    content = b""
    while b"\r\n" in data:
        size, _, data = data.partition(b"\r\n")
        length = int(size, 16)
        if len(data) < length + 2:
            return None
        content, data = content + data[:length], data[length + 2 :]
        if not length:
            return content, data
    return None


KINDS = {kind.kind: kind for kind in (ControlClient, LegacyClient, ModernClient, HttpClient)}

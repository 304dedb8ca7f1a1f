"""A scripted HTTP server on loopback, in the test's own loop, that can misbehave in every way."""

from __future__ import annotations

import json
import socket
import ssl
import struct
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from contextlib import asynccontextmanager
from typing import Any

import attrs
import trio

Json = dict[str, Any]


@attrs.define(eq=False)
class Request:
    """One request, and the means to answer it well or badly."""

    method: str
    path: str
    headers: Mapping[str, str]
    """Names in lower case."""
    body: bytes
    stream: Any
    hung_up: trio.Event = attrs.field(factory=trio.Event)
    """Set when the client has closed the connection while `wait_hung_up` watched."""

    @property
    def message(self) -> Json:
        return json.loads(self.body) if self.body else {}

    @property
    def rpc(self) -> str:
        """The JSON-RPC method; empty for a response or a request without a body."""
        return str(self.message.get("method", "")) if self.body else ""

    async def reply(
        self, status: int, body: bytes = b"", kind: str = "application/json", **more: str
    ) -> None:
        """A whole response. `more` are headers, `_` for `-`."""
        lines = [f"HTTP/1.1 {status} {'OK' if status < 300 else 'No'}", f"Content-Length: {len(body)}"]
        if kind:
            lines.append(f"Content-Type: {kind}")
        lines += [f"{name.replace('_', '-')}: {value}" for name, value in more.items()]
        await self.raw("\r\n".join(lines).encode() + b"\r\n\r\n" + body)

    async def result(self, result: Any, **headers: str) -> None:
        await self.reply(200, self.answer(result), **headers)

    async def error(self, code: int, status: int = 200, data: Any = None, **more: Any) -> None:
        body = {"code": code, "message": "no", **({} if data is None else {"data": data})}
        message = {"jsonrpc": "2.0", "id": self.message.get("id"), "error": body, **more}
        await self.reply(status, json.dumps(message).encode())

    def answer(self, result: Any) -> bytes:
        return json.dumps({"jsonrpc": "2.0", "id": self.message["id"], "result": result}).encode()

    async def events(self, kind: str = "text/event-stream") -> None:
        """Begin a stream; `send` goes on, `end` ends it."""
        await self.raw(
            f"HTTP/1.1 200 OK\r\nContent-Type: {kind}\r\nTransfer-Encoding: chunked\r\n\r\n".encode()
        )

    async def send(self, data: bytes) -> None:
        await self.raw(b"%x\r\n%b\r\n" % (len(data), data))

    async def event(self, data: bytes = b"", **fields: str) -> None:
        lines = [f"{name}: {value}".encode() for name, value in fields.items()]
        await self.send(b"\n".join([*lines, b"data: " + data, b"", b""]))

    async def end(self) -> None:
        await self.raw(b"0\r\n\r\n")

    async def raw(self, data: bytes) -> None:
        await self.stream.send_all(data)

    def reset(self) -> None:
        """Cut the connection so that the peer sees ECONNRESET."""
        self.stream.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        self.stream.socket.close()

    async def wait_hung_up(self) -> None:
        try:
            while await self.stream.receive_some(1000):
                pass
        except (trio.BrokenResourceError, trio.ClosedResourceError):
            pass
        self.hung_up.set()


Script = Callable[[Request], Awaitable[None]]


@attrs.define(eq=False)
class FakeHttp:
    """A running server: what it was asked, and by how many connections."""

    port: int
    script: Script
    scheme: str = "http"
    requests: list[Request] = attrs.field(factory=list)
    connections: int = 0
    nursery: trio.Nursery | None = None

    @property
    def url(self) -> str:
        return f"{self.scheme}://127.0.0.1:{self.port}/mcp"

    def asked(self) -> list[str]:
        """What each request was: the JSON-RPC method, or the HTTP method where there is none."""
        return [request.rpc or ("response" if request.body else request.method) for request in self.requests]

    def of(self, rpc: str) -> list[Request]:
        return [request for request in self.requests if (request.rpc or request.method) == rpc]

    async def serve(self, stream: Any) -> None:
        self.connections += 1
        pending = b""
        try:
            async with stream:
                while True:
                    while b"\r\n\r\n" not in pending:
                        more = await stream.receive_some(1 << 16)
                        if not more:
                            return
                        pending += more
                    head, _, pending = pending.partition(b"\r\n\r\n")
                    first, *lines = head.decode("latin-1").split("\r\n")
                    headers = {
                        name.strip().lower(): value.strip()
                        for name, _, value in (line.partition(":") for line in lines)
                    }
                    length = int(headers.get("content-length", "0"))
                    while len(pending) < length:
                        pending += await stream.receive_some(1 << 16)
                    body, pending = pending[:length], pending[length:]
                    method, path, _ = first.split(" ")
                    request = Request(method, path, headers, body, stream)
                    self.requests.append(request)
                    await self.script(request)
        except (trio.BrokenResourceError, trio.ClosedResourceError, OSError):
            pass


@asynccontextmanager
async def fake_http(
    script: Script, bound: trio.socket.SocketType | None = None, tls: ssl.SSLContext | None = None
) -> AsyncIterator[FakeHttp]:
    """Serve, on a free port or on a socket that is bound to one, until the block is left; then all is cut."""
    if bound is None:
        (plain,) = await trio.open_tcp_listeners(0, host="127.0.0.1")
    else:
        bound.listen()
        plain = trio.SocketListener(bound)
    listener = plain if tls is None else trio.SSLListener(plain, tls, https_compatible=True)
    server = FakeHttp(plain.socket.getsockname()[1], script, "http" if tls is None else "https")
    async with trio.open_nursery() as nursery:
        server.nursery = nursery
        nursery.start_soon(trio.serve_listeners, server.serve, [listener])
        try:
            yield server
        finally:
            nursery.cancel_scope.cancel()


@attrs.define(eq=False)
class LegacyScript:
    """A well-behaved legacy server with sessions. `on` replaces what it does for a method."""

    on: dict[str, Script] = attrs.field(factory=dict)
    version: str = "2025-11-25"
    capabilities: Json = attrs.field(factory=lambda: {"tools": {}})
    sessions: set[str] = attrs.field(factory=set)
    opened: int = 0
    refusal: tuple[int, bytes] = (404, b'{"error":{"code":-32001,"message":"?"},"id":null}')
    """The status and body of the answer to a request with an unknown session."""

    async def __call__(self, request: Request) -> None:
        rpc = request.rpc
        if rpc == "server/discover" and rpc not in self.on:
            await request.error(-32000, 400)
            return
        named = request.headers.get("mcp-session-id")
        if rpc != "initialize" and named not in self.sessions:
            status, body = self.refusal
            await request.reply(status if named else 400, body)
            return
        special = self.on.get(rpc or ("response" if request.body else request.method))
        if special is not None:
            await special(request)
            return
        match rpc or request.method:
            case "initialize":
                self.opened += 1
                session = f"s-{self.opened}"
                self.sessions.add(session)
                await request.result(
                    {"protocolVersion": self.version, "capabilities": self.capabilities, "serverInfo": {}},
                    Mcp_Session_Id=session,
                )
            case "tools/list":
                await request.result({"tools": [{"name": "echo", "inputSchema": {"type": "object"}}]})
            case "GET":
                await request.reply(405)
            case "DELETE":
                self.sessions.discard(named or "")
                await request.reply(204)
            case _ if "id" not in request.message or not rpc:
                await request.reply(202)
            case _:
                await request.result({"content": [], "echo": request.message["params"].get("arguments")})


@attrs.define(eq=False)
class ModernScript:
    """A well-behaved server of revision 2026-07-28."""

    on: dict[str, Script] = attrs.field(factory=dict)
    capabilities: Json = attrs.field(factory=lambda: {"tools": {}})
    tools: list[Json] = attrs.field(
        factory=lambda: [{"name": "echo", "inputSchema": {"type": "object"}}],
    )

    async def __call__(self, request: Request) -> None:
        rpc = request.rpc
        special = self.on.get(rpc or request.method)
        if special is not None:
            await special(request)
            return
        match rpc:
            case "server/discover":
                await request.result({"supportedVersions": ["2026-07-28"], "capabilities": self.capabilities})
            case "tools/list":
                await request.result({"resultType": "complete", "tools": self.tools})
            case "initialize":
                await request.error(-32601, 404)
            case "":
                await request.reply(405)
            case _:
                await request.result({"content": [], "echo": request.message["params"].get("arguments")})

"""Minimal MCP clients over HTTP, in which a test controls every header."""

from __future__ import annotations

import json
import socket
from collections.abc import Iterator, Mapping
from functools import partial
from pathlib import Path
from typing import Any

import attrs
import httpx

from mcpd.wire.event_stream import SseDecoder, SseEvent
from tests.e2e.harness import BOUND, Daemon, Json

PORT = ("--http", "127.0.0.1:0")
MODERN = "2026-07-28"
P = "io.modelcontextprotocol/"
BOTH = "application/json, text/event-stream"

# The default of httpx is only five seconds.
delete = partial(httpx.delete, timeout=BOUND)
get = partial(httpx.get, timeout=BOUND)
head = partial(httpx.head, timeout=BOUND)
post = partial(httpx.post, timeout=BOUND)


@attrs.frozen
class HttpEndpoint:
    """The address where a daemon listens for HTTP, as the daemon reports it."""

    base: str
    token: str

    @property
    def port(self) -> int:
        return int(self.base.rpartition(":")[2])

    @property
    def connection(self) -> socket.socket:
        """Open a new connection."""
        return socket.create_connection(("127.0.0.1", self.port), timeout=BOUND)

    @property
    def bearer(self) -> dict[str, str]:
        return {"Authorization": f"Bearer {self.token}"}

    def client(self, **options: Any) -> httpx.Client:
        return httpx.Client(
            base_url=self.base, headers={**self.bearer, "Accept": BOTH}, timeout=BOUND, **options
        )


def http_endpoint(daemon: Daemon) -> HttpEndpoint:
    with daemon.client() as client:
        received = client.request("mcpd/status")["daemon"]["http"]
    token = Path(received["token_file"]).read_text().strip() if received["token_file"] else ""
    return HttpEndpoint(received["url"].removesuffix("/mcp"), token)


def over_unix(daemon: Daemon) -> httpx.Client:
    transport = httpx.HTTPTransport(uds=daemon.socket)
    return httpx.Client(
        transport=transport, base_url="http://localhost", headers={"Accept": BOTH}, timeout=BOUND
    )


def meta(capabilities: Json | None = None, **more: Any) -> Json:
    return {f"{P}protocolVersion": MODERN, f"{P}clientCapabilities": capabilities or {}, **more}


def request(method: str, key: object = 1, **params: Any) -> Json:
    return {"jsonrpc": "2.0", "id": key, "method": method, "params": params}


def modern(
    method: str, key: object = 1, *, capabilities: Json | None = None, token: object = None, **params: Any
) -> tuple[Json, dict[str, str]]:
    """Return a request of the modern revision, with its headers."""
    own = meta(capabilities, **({} if token is None else {"progressToken": token}))
    headers = {"MCP-Protocol-Version": MODERN, "Mcp-Method": method}
    name = params.get("uri" if method == "resources/read" else "name")
    if name is not None:
        headers["Mcp-Name"] = name
    return request(method, key, **params, _meta=own), headers


def ask(http: httpx.Client, path: str, method: str, **params: Any) -> httpx.Response:
    body, headers = modern(method, **params)
    return http.post(path, json=body, headers=headers)


def send(connection: socket.socket, path: str, body: Json, headers: Mapping[str, str]) -> None:
    """Send a POST without waiting for the response, on a connection that the test closes."""
    content = json.dumps(body).encode()
    said = {"Content-Type": "application/json", "Content-Length": str(len(content)), **headers}
    lines = "".join(f"{name}: {text}\r\n" for name, text in said.items())
    connection.sendall(f"POST {path} HTTP/1.1\r\n{lines}\r\n".encode() + content)


def events(portions: Iterator[bytes]) -> Iterator[SseEvent]:
    decoder = SseDecoder(64 << 20)
    for portion in portions:
        yield from decoder.feed(portion)


def messages(response: httpx.Response) -> list[Json]:
    """Return all complete messages of a response, from its events or its body."""
    if response.headers["content-type"] != "text/event-stream":
        return [response.json()]
    return [json.loads(event.data) for event in events(iter([response.content])) if event.data]


class Session:
    """A client of a legacy revision."""

    def __init__(
        self,
        http: httpx.Client,
        path: str = "/mcp",
        version: str = "2025-11-25",
        capabilities: Json | None = None,
    ) -> None:
        self.http = http
        self.path = path
        hello = request(
            "initialize",
            0,
            protocolVersion=version,
            capabilities=capabilities or {},
            clientInfo={"name": "test", "version": "1"},
        )
        self.answer = http.post(path, json=hello)
        self.answer.raise_for_status()
        self.headers = {
            "Mcp-Session-Id": self.answer.headers["mcp-session-id"],
            "MCP-Protocol-Version": version,
        }
        assert self.post({"jsonrpc": "2.0", "method": "notifications/initialized"}).status_code == 202

    def post(self, body: object, **headers: str) -> httpx.Response:
        return self.http.post(self.path, json=body, headers={**self.headers, **headers})

    def call(self, tool: str, key: object = 1, token: object = None, **arguments: Any) -> httpx.Response:
        return self.post(self.calling(tool, key, token, **arguments))

    @staticmethod
    def calling(tool: str, key: object = 1, token: object = None, **arguments: Any) -> Json:
        own = {} if token is None else {"_meta": {"progressToken": token}}
        return request("tools/call", key, name=tool, arguments=arguments, **own)

    def listening(self, **headers: str) -> Any:
        return self.http.stream("GET", self.path, headers={**self.headers, **headers})

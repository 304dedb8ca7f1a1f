"""A minimal browser for tests: the login code, the cookie, the key and a WebSocket."""

from __future__ import annotations

import json
import socket
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import attrs
import httpx
from wsproto import ConnectionType, WSConnection
from wsproto.events import (
    AcceptConnection,
    BytesMessage,
    CloseConnection,
    Event,
    RejectConnection,
    RejectData,
    Request,
    TextMessage,
)

from tests.e2e import web
from tests.e2e.harness import BOUND, Daemon, Json
from tests.e2e.web import HttpEndpoint, http_endpoint

KEY = "X-Mcpd-Page"


@attrs.frozen
class Visitor:
    """A logged-in browser. `cookie` is `name=value`."""

    endpoint: HttpEndpoint
    cookie: str
    key: str

    @property
    def headers(self) -> dict[str, str]:
        return {"Cookie": self.cookie, KEY: self.key, "Origin": self.endpoint.base}


def code_of(daemon: Daemon) -> str:
    with daemon.client() as client:
        url = client.request("mcpd/page")["url"]
    address, _, code = url.partition("#")
    assert address == f"{http_endpoint(daemon).base}/"
    return str(code)


def redeem(where: HttpEndpoint, code: str, **headers: str) -> httpx.Response:
    """Exchange the code as the page's script does, except for `headers`."""
    usual = {"Origin": where.base, KEY: "1", "Content-Type": "application/json"}
    return web.post(
        f"{where.base}/page/session",
        content=json.dumps({"code": code}),
        headers={name: value for name, value in {**usual, **headers}.items() if value},
    )


def log_in(daemon: Daemon) -> Visitor:
    where = http_endpoint(daemon)
    answer = redeem(where, code_of(daemon))
    assert answer.status_code == 200, answer.text
    return Visitor(where, answer.headers["set-cookie"].partition(";")[0], answer.json()["key"])


class Socket:
    """A WebSocket to the page's endpoint."""

    def __init__(self, connection: socket.socket, frames: WSConnection) -> None:
        self._socket = connection
        self._frames = frames
        self._events: list[Event] = []
        self._text = ""
        self.received: list[Json] = []

    def send(self, event: Event) -> None:
        self._socket.sendall(self._frames.send(event))

    def next(self) -> Event:
        while not self._events:
            data = self._socket.recv(1 << 16)
            self._frames.receive_data(data or None)
            self._events += list(self._frames.events())
        return self._events.pop(0)

    def message(self) -> Json:
        while True:
            event = self.next()
            assert isinstance(event, TextMessage), event
            self._text += event.data
            if event.message_finished:
                text, self._text = self._text, ""
                return dict(json.loads(text))

    def ask(self, method: str, key: int = 1, **params: Any) -> Json:
        """Send a request and return its response or error. Notifications before it go to `received`."""
        text = json.dumps({"jsonrpc": "2.0", "id": key, "method": method, "params": params})
        self.send(TextMessage(data=text))
        while True:
            message = self.message()
            if message.get("id") == key:
                return message
            self.received.append(message)

    def closed(self) -> CloseConnection:
        """Return how the socket was closed."""
        while True:
            event = self.next()
            if isinstance(event, CloseConnection):
                return event


@contextmanager
def opened(visitor: Visitor, **headers: str) -> Iterator[Socket | int]:
    """Open the socket and return it, or return the status of the refusal. Empty `headers` are left out."""
    usual = {"Cookie": visitor.cookie, "Origin": visitor.endpoint.base, "Host": ""}
    given = {**usual, **headers}
    protocols = given.pop("Protocols", f"mcpd.page,key.{visitor.key}")
    host = given.pop("Host") or f"127.0.0.1:{visitor.endpoint.port}"
    with socket.create_connection(("127.0.0.1", visitor.endpoint.port), timeout=BOUND) as connection:
        frames = WSConnection(ConnectionType.CLIENT)
        extra = [(name.encode(), value.encode()) for name, value in given.items() if value]
        request = Request(
            host=host, target="/page/socket", subprotocols=protocols.split(","), extra_headers=extra
        )
        connection.sendall(frames.send(request))
        while True:
            frames.receive_data(connection.recv(1 << 16) or None)
            for event in frames.events():
                if isinstance(event, AcceptConnection):
                    assert event.subprotocol == "mcpd.page"
                    yield Socket(connection, frames)
                    return
                if isinstance(event, RejectConnection):
                    yield event.status_code
                    return
                assert not isinstance(event, RejectData | BytesMessage | CloseConnection), event


@contextmanager
def socket_of(visitor: Visitor) -> Iterator[Socket]:
    with opened(visitor) as got:
        assert isinstance(got, Socket), got
        yield got

"""A WebSocket server that answers each request with the messages of a case."""

from __future__ import annotations

import json
import socket
from collections.abc import Iterator
from contextlib import suppress

from wsproto import ConnectionType, WSConnection
from wsproto.events import AcceptConnection, BytesMessage, Event, Ping, RejectConnection, Request, TextMessage
from wsproto.utilities import ProtocolError

from tests.fuzz.answers import expected, frames
from tests.fuzz.generate import DIE, Json, die, garble
from tests.fuzz.hostile_server import case_of
from tests.fuzz.thread_server import ThreadServer


class HostileWebSocket(ThreadServer):
    """A call names its case; other requests count."""

    def __init__(self, seed: int) -> None:
        self._seed = seed
        self._count = 0
        super().__init__()
        self.url = f"ws://{self.address}/mcp"

    def serve(self, connection: socket.socket) -> None:
        with connection, suppress(OSError, ProtocolError):
            peer = WSConnection(ConnectionType.SERVER)
            while portion := connection.recv(65536):
                peer.receive_data(portion)
                for event in peer.events():
                    for data in self._answer(peer, event):
                        connection.sendall(data)

    def _answer(self, peer: WSConnection, event: Event) -> Iterator[bytes]:
        """Yield what is written after an event."""
        if isinstance(event, Request):
            dice = self._next()
            refused = RejectConnection(status_code=dice.choice((200, 401, 404, 426, 500)))
            yield garble(
                peer.send(refused if dice.random() < 0.1 else AcceptConnection(subprotocol="mcp")), dice
            )
        elif isinstance(event, Ping):
            yield peer.send(event.response())
        elif isinstance(event, TextMessage):
            request: Json = json.loads(event.data)
            if isinstance(request, dict) and request.keys() >= {"id", "method"}:
                number = case_of(request)
                yield from self._messages(peer, request, number)

    def _messages(self, peer: WSConnection, request: Json, number: int | None) -> Iterator[bytes]:
        dice = self._next() if number is None else die(self._seed, "websocket", number)
        found = frames(dice, request) if number is not None or dice.random() < 0.2 else []
        found.insert(dice.randrange(len(found) + 1), expected(request))
        for message in found:
            text = message.decode("utf-8", "replace")
            event = BytesMessage(data=message) if dice.random() < 0.1 else TextMessage(data=text)
            data = peer.send(event)
            yield data if dice.random() < 0.7 else garble(data, dice)

    def _next(self) -> DIE:
        self._count += 1
        return die(self._seed, "websocket-handshake", self._count)

"""A client's end of an HTTP connection, in memory: all that the endpoint writes to it."""

from __future__ import annotations

import json

from mcpd.api.http.exchange import HttpExchange, ServeUpgraded
from mcpd.api.http.parser import Head
from mcpd.wire.event_stream import SseDecoder, SseEvent

GET = Head("GET", "/mcp", "", {}, frozenset(), False, True)  # 1.0: no chunks to take apart


class Line:
    def __init__(self, head: Head = GET) -> None:
        self.is_last = False
        self.got = b""
        self.over = False
        self.exchange = HttpExchange(self, head)

    def put(self, data: bytes) -> None:
        self.got += data

    def upgrade(self, serve: ServeUpgraded) -> None:
        raise NotImplementedError

    def ended(self, exchange: HttpExchange) -> None:
        self.over = True

    def header(self, name: bytes) -> str:
        return next(
            line.split(b": ")[1].decode() for line in self.got.split(b"\r\n") if line.startswith(name + b":")
        )

    @property
    def events(self) -> list[SseEvent]:
        return list(SseDecoder(1 << 30).feed(self.got.partition(b"\r\n\r\n")[2]))

    @property
    def received(self) -> list[object]:
        return [json.loads(each.data) for each in self.events if each.data]

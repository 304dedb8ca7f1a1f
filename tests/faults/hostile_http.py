"""A remote server over HTTP that does once what would hold up or fill an unprotected daemon.

It runs in a thread of the test, and speaks the legacy era. A call of the tool `attack` names the kind.
"""

from __future__ import annotations

import json
import socket
import threading
import time
import zlib
from collections.abc import Iterator
from contextlib import suppress
from typing import NamedTuple

MIB = 1 << 20
SECONDS = 2.0
"""How long a flood lasts, unless the daemon closes the connection."""


class Attack(NamedTuple):
    start: bytes
    """The beginning of the body."""
    piece: bytes
    """What follows again and again."""
    size: float = float("inf")
    """Bytes of the body, without its compression."""
    end: bytes = b""
    kind: bytes = b"text/event-stream"
    coding: bytes = b""
    more: bytes = b""
    """More fields of the head, with their ends."""


def note(method: bytes, params: bytes) -> bytes:
    return b'data: {"jsonrpc":"2.0","method":"notifications/%b","params":%b}\n\n' % (method, params)


MESSAGE = b'{"jsonrpc":"2.0","id":%d,"result":{"content":'
JSON = b"application/json"
FLOODS = {
    "comments": b":\n",
    "empty events": b"data:\n\n",
    "log messages": note(b"message", b'{"level":"error","data":"x"}'),
    "changed lists": note(b"tools/list_changed", b"{}"),
    "updates": note(b"resources/updated", b'{"uri":"test://nobody/follows/this"}'),
}
ATTACKS = {f"gzip {name}": Attack(b"", piece, coding=b"gzip") for name, piece in FLOODS.items()}
ATTACKS["identity log messages"] = Attack(b"", FLOODS["log messages"])
ATTACKS |= {
    "deflate comments": Attack(b"", b":\n", coding=b"deflate"),
    "event of small values": Attack(b"data: " + MESSAGE + b"[", b"[],", 31 * MIB, b"1]}}\n\n"),
    "event of many lines": Attack(b"data: " + MESSAGE + b"[", b"[],\ndata: ", 31 * MIB, b"1]}}\n\n"),
    "event of escapes": Attack(b"data: " + MESSAGE + b'"', b"\\n", 31 * MIB, b'"}}\n\n'),
    "answer of small values": Attack(MESSAGE + b"[", b"{},", 31 * MIB, b"{}]}}", JSON),
    "answer of many lines": Attack(MESSAGE + b"[", b"{},\n", 31 * MIB, b"{}]}}", JSON),
    "answer of escapes": Attack(MESSAGE + b'"', b"\\u00e9", 31 * MIB, b'"}}', JSON),
    "text of many lines": Attack(
        b"\n" + MESSAGE + b'[{"type":"text","text":"', b"x" * 99, 31 * MIB, b'"}]}}', JSON
    ),
    "unrelated answer": Attack(b'{"jsonrpc":"2.0","id":77,"result":["', b"\\n", 31 * MIB, b'"]}', JSON),
    "gzip answer of small values": Attack(MESSAGE + b"[", b"{},", 31 * MIB, b"{}]}}", JSON, b"gzip"),
}
CHUNKED = b"Transfer-Encoding: chunked\r\n"
OPENING, CLOSING = MESSAGE.replace(b"%d", b"%6d") + b'"', b'3\r\n"}}\r\n0\r\n\r\n'
ATTACKS |= {
    "answer in tiny chunks": Attack(
        b"%x\r\n%b\r\n" % (len(OPENING) + 3, OPENING), b"2\r\nxx\r\n", 28 * MIB, CLOSING, JSON, more=CHUNKED
    ),
    "events in tiny chunks": Attack(b"", b"2\r\n:\n\r\n", 28 * MIB, b"0\r\n\r\n", more=CHUNKED),
    "cookies": Attack(
        MESSAGE + b'"',
        b"x",
        1000,
        b'"}}',
        JSON,
        more=b"".join(b"Set-Cookie: c%d=1; Path=/\r\n" % n for n in range(900)),
    ),
}


class HostileHttp:
    def __init__(self) -> None:
        self._listener = socket.create_server(("127.0.0.1", 0), backlog=128)
        self.url = f"http://127.0.0.1:{self._listener.getsockname()[1]}/mcp"
        threading.Thread(target=self._accept, daemon=True).start()

    def close(self) -> None:
        self._listener.close()

    def _accept(self) -> None:
        with suppress(OSError):
            while True:
                connection, _ = self._listener.accept()
                threading.Thread(target=self._serve, args=(connection,), daemon=True).start()

    def _serve(self, connection: socket.socket) -> None:
        with connection, connection.makefile("rb") as reads, suppress(OSError, ValueError):
            while request := reads.readline():
                length = 0
                while line := reads.readline().strip():
                    if line.lower().startswith(b"content-length:"):
                        length = int(line.partition(b":")[2])
                self._answer(connection, request, reads.read(length))

    def _answer(self, connection: socket.socket, request: bytes, body: bytes) -> None:
        if request.startswith(b"GET /asking"):
            connection.sendall(b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\n\r\n")
            until = time.monotonic() + SECONDS
            while time.monotonic() < until:
                connection.sendall(b'data: {"jsonrpc":"2.0","id":1,"method":"ping"}\n\n' * 1000)
            raise ValueError("the response has ended with the connection")
        if not request.startswith(b"POST"):
            connection.sendall(b"HTTP/1.1 405 No\r\nContent-Length: 0\r\n\r\n")
            return
        message = json.loads(body)
        method = message.get("method")
        if "id" not in message or method is None:
            connection.sendall(b"HTTP/1.1 202 Yes\r\nContent-Length: 0\r\n\r\n")
        elif method == "tools/call" and message["params"]["name"] == "attack":
            attack(connection, ATTACKS[message["params"]["arguments"]["kind"]], message["id"])
        else:
            answer = {"jsonrpc": "2.0", "id": message["id"], **result(method)}
            content = json.dumps(answer).encode()
            head = b"HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nContent-Length: %d\r\n\r\n"
            connection.sendall(head % len(content) + content)


def result(method: str) -> dict[str, object]:
    if method == "initialize":
        capabilities = {"tools": {"listChanged": True}, "resources": {"subscribe": True}}
        info = {"name": "bad", "version": "1"}
        return {"result": {"protocolVersion": "2025-11-25", "capabilities": capabilities, "serverInfo": info}}
    if method == "tools/list":
        return {"result": {"tools": [{"name": "attack", "inputSchema": {"type": "object"}}]}}
    if method == "tools/call":
        return {"result": {"content": []}}
    return {"error": {"code": -32601, "message": "no"}}


def attack(connection: socket.socket, kind: Attack, key: int) -> None:
    """Send a response until it is complete, or until the daemon closes the connection."""
    coding = b"Content-Encoding: %b\r\n" % kind.coding if kind.coding else b""
    fields = coding + kind.more
    head = b"HTTP/1.1 200 OK\r\nContent-Type: %b\r\n%bConnection: close\r\n\r\n" % (kind.kind, fields)
    connection.sendall(head)
    for portion in compressed(kind, key) if coding else plain(kind, key):
        connection.sendall(portion)
    connection.shutdown(socket.SHUT_WR)
    while connection.recv(MIB):
        pass
    raise ValueError("the response has ended with the connection")


def start_of(kind: Attack, key: int) -> bytes:
    return kind.start.replace(b"%d", b"%d" % key).replace(b"%6d", b"%6d" % key)


def plain(kind: Attack, key: int) -> Iterator[bytes]:
    yield start_of(kind, key)
    portion = kind.piece * (65536 // len(kind.piece))
    sent, until = 0, time.monotonic() + SECONDS
    while sent < kind.size and (kind.size < float("inf") or time.monotonic() < until):
        yield portion
        sent += len(portion)
    yield kind.end


def compressed(kind: Attack, key: int) -> Iterator[bytes]:
    press = zlib.compressobj(9, zlib.DEFLATED, 31 if kind.coding == b"gzip" else 15)
    yield press.compress(start_of(kind, key)) + press.flush(zlib.Z_FULL_FLUSH)
    data = kind.piece * (MIB // len(kind.piece))
    portion = press.compress(data) + press.flush(zlib.Z_FULL_FLUSH)
    yield portion
    sent, until = len(data), time.monotonic() + SECONDS
    while sent < kind.size and (kind.size < float("inf") or time.monotonic() < until):
        yield portion
        sent += len(data)

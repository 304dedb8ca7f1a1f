"""An MCP server whose tools have every shape of schema and answer every kind of content.

python -I -S rich.py        standard library only
"""

from __future__ import annotations

import base64
import json
import struct
import sys
import threading
import zlib
from typing import Any

ORDER: dict[str, Any] = {
    "type": "object",
    "required": ["what", "kind", "terms"],
    "$defs": {
        "part": {
            "type": "object",
            "properties": {"name": {"type": "string"}, "count": {"type": "integer"}},
            "required": ["name"],
        }
    },
    "properties": {
        "what": {"type": "string", "title": "What", "description": "What is ordered.", "minLength": 1},
        "number": {"type": "integer", "minimum": 1, "default": 1},
        "kind": {"oneOf": [{"const": "b", "title": "Book"}, {"const": "r", "title": "Record"}]},
        "gift": {"type": "boolean", "default": False},
        "price": {"anyOf": [{"type": "number", "maximum": 1000}, {"type": "null"}]},
        "terms": {"const": "agreed"},
        "tags": {"type": "array", "items": {"type": "string"}},
        "days": {"type": "array", "uniqueItems": True, "items": {"enum": ["mon", "tue", "wed"]}},
        "parts": {"type": "array", "items": {"$ref": "#/$defs/part"}},
        "to": {
            "type": "object",
            "required": ["street"],
            "properties": {"street": {"type": "string"}, "door": {"$ref": "#/$defs/part"}},
        },
        "when": {"type": "string", "format": "date"},
        "extra": {"description": "Whatever else."},
    },
}
TOOLS: dict[str, Any] = {
    "order": ORDER,
    "media": {"type": "object", "properties": {}},
    "fails": {"type": "object", "properties": {}},
    "data": {"type": "object", "properties": {}},
    "slow": {"type": "object", "properties": {}},
    "cancelled": {"type": "object", "properties": {}},
}


def png(side: int) -> bytes:
    def chunk(kind: bytes, data: bytes) -> bytes:
        return struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))

    rows = zlib.compress((b"\0" + b"\x80" * side) * side)
    size = struct.pack(">IIBBBBB", side, side, 8, 0, 0, 0, 0)
    return b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", size) + chunk(b"IDAT", rows) + chunk(b"IEND", b"")


def encoded(data: bytes) -> str:
    return base64.b64encode(data).decode()


def text(words: str) -> dict[str, Any]:
    return {"content": [{"type": "text", "text": words}]}


SVG = b"<svg xmlns='http://www.w3.org/2000/svg' onload='window.pwned=1'><script>window.pwned=1</script></svg>"
MEDIA = [
    {"type": "image", "mimeType": "image/png", "data": encoded(png(16))},
    {"type": "image", "mimeType": "image/png", "data": encoded(b"<script>window.pwned=1</script>")},
    {"type": "image", "mimeType": "image/svg+xml", "data": encoded(SVG)},
    {"type": "image", "mimeType": "image/png", "data": "not base64!"},
    {"type": "resource", "resource": {"uri": "memo://1", "mimeType": "text/html", "blob": encoded(SVG)}},
]
ANSWERS = {
    "media": {"content": MEDIA},
    "fails": {**text("the table is locked"), "isError": True},
    "data": {**text('{"id": 12345678901234567890}'), "structuredContent": {"id": 12345678901234567890}},
}


class Server:
    def __init__(self) -> None:
        self.lock = threading.Lock()
        self.called = 0
        self.cancelled: list[object] = []

    def send(self, **message: Any) -> None:
        with self.lock:
            print(json.dumps({"jsonrpc": "2.0", **message}), flush=True)

    def call(self, key: object, params: dict[str, Any], line: str) -> None:
        name = params["name"]
        self.called += 1
        if name == "slow":  # until it is cancelled
            token = params["_meta"]["progressToken"]
            received = {"progressToken": token, "progress": 3, "total": 8, "message": "reading the shelf"}
            self.send(method="notifications/progress", params=received)
        elif name == "cancelled":
            self.send(id=key, result=text(f"{len(self.cancelled)} of {self.called}"))
        else:
            self.send(id=key, result=ANSWERS.get(name) or text(line))

    def take(self, line: str) -> None:
        message = json.loads(line)
        method, key, params = message.get("method"), message.get("id"), message.get("params", {})
        if method == "notifications/cancelled":
            self.cancelled.append(params["requestId"])
        elif method == "tools/call":
            self.call(key, params, line)
        elif method == "tools/list":
            tools = [{"name": name, "inputSchema": schema} for name, schema in TOOLS.items()]
            self.send(id=key, result={"tools": tools})
        elif method == "initialize":
            about = {"name": "rich", "version": "1"}
            version = params["protocolVersion"]
            self.send(
                id=key,
                result={"protocolVersion": version, "capabilities": {"tools": {}}, "serverInfo": about},
            )
        elif method == "ping":
            self.send(id=key, result={})
        elif key is not None:
            self.send(id=key, error={"code": -32601, "message": "there is no such method"})


def main() -> None:
    server = Server()
    for line in sys.stdin:
        server.take(line)


if __name__ == "__main__":
    main()

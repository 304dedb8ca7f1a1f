"""The test server over Streamable HTTP: sessions for legacy peers, none for modern ones.

A response is plain JSON, or an event stream if notifications are sent before it.
"""

from __future__ import annotations

import json
import secrets
import select
import socket
import sys
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import cast
from urllib.parse import urlsplit

from server import (
    HEADER_MISMATCH,
    INVALID_PARAMS,
    INVALID_REQUEST,
    LEGACY,
    NO_METHOD,
    PARSE_ERROR,
    RESERVED,
    UNSUPPORTED_VERSION,
    Json,
    TestServerSession,
)

PATH = "/mcp"
MAX_BODY = 4 << 20
LOOPBACK = {"localhost", "127.0.0.1", "::1"}
NAMED_BY = {"tools/call": "name", "prompts/get": "name", "resources/read": "uri"}


def serve(host: str, port: int) -> None:
    """Serve at http://HOST:PORT/mcp forever; port 0 selects a free port. Prints the address to stderr."""
    with TestHttpServer((host, port), TestHttpHandler) as server:
        print(f"listening on http://{host}:{server.server_port}{PATH}", file=sys.stderr, flush=True)
        server.serve_forever()


class TestHttpServer(ThreadingHTTPServer):
    daemon_threads = True
    block_on_close = False  # do not wait for slow calls at exit

    def __init__(self, address: tuple[str, int], handler: type[BaseHTTPRequestHandler]) -> None:
        super().__init__(address, handler)
        self.sessions: dict[str, TestServerSession] = {}

    def handle_error(self, request: object, client_address: object) -> None:
        """Ignore disconnects; print other errors as usual."""
        if not isinstance(sys.exc_info()[1], ConnectionError):
            super().handle_error(cast("socket.socket", request), client_address)


class TestHttpHandler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    disable_nagle_algorithm = True  # headers and body are two writes: the second would wait 40 ms
    server: TestHttpServer
    streaming = False

    def log_message(self, format: str, *args: object) -> None:
        """Do not log requests."""

    def do_POST(self) -> None:
        self.streaming = False
        if (body := self._body()) is None or not self._is_allowed():
            return None
        try:
            message = json.loads(body)
        except (ValueError, RecursionError):
            return self._reply_error(400, PARSE_ERROR, "Not JSON")
        if not isinstance(message, dict):
            return self._reply_error(400, INVALID_REQUEST, "Not one JSON-RPC message")
        version = self.headers.get("MCP-Protocol-Version")
        if _is_modern(message) or (version not in (None, *LEGACY) and "Mcp-Session-Id" not in self.headers):
            return self._modern(message, version)
        return self._legacy(message, version)

    def do_GET(self) -> None:
        self._reply_error(
            405, INVALID_REQUEST, "This server sends no unsolicited messages", Allow="POST, DELETE"
        )

    def do_DELETE(self) -> None:
        if not self._is_allowed():
            return None
        if self.server.sessions.pop(self.headers.get("Mcp-Session-Id", ""), None) is None:
            return self._reply_error(404, INVALID_REQUEST, "No such session")
        return self._reply(204)

    def _modern(self, message: Json, version: str | None) -> None:
        if "id" not in message or "method" not in message:
            return (
                self._reply(202)
                if "method" in message
                else self._reply_error(400, INVALID_REQUEST, "No request")
            )
        if not _is_modern(message):
            return self._reply_error(400, INVALID_PARAMS, "params._meta must have protocolVersion", message)
        params = cast("Json", message["params"])
        mirrored = {
            "MCP-Protocol-Version": cast("Json", params["_meta"])[f"{RESERVED}protocolVersion"],
            "Mcp-Method": message["method"],
        }
        if isinstance(named_by := NAMED_BY.get(cast("str", message["method"])), str):
            mirrored["Mcp-Name"] = params.get(named_by)
        for header, value in mirrored.items():
            if _decode_header(self.headers.get(header)) != value:
                return self._reply_error(400, HEADER_MISMATCH, f"{header} differs from the body", message)
        return self._answer(TestServerSession(), message, modern=True)

    def _legacy(self, message: Json, version: str | None) -> None:
        if version not in (None, *LEGACY):
            return self._reply_error(
                400, INVALID_REQUEST, f"Unsupported MCP-Protocol-Version: {version}", message
            )
        if message.get("method") == "initialize":
            return self._answer(TestServerSession(), message, session=secrets.token_urlsafe(24))
        if (session_id := self.headers.get("Mcp-Session-Id")) is None:
            return self._reply_error(400, INVALID_REQUEST, "Mcp-Session-Id is missing", message)
        if (peer := self.server.sessions.get(session_id)) is None:
            return self._reply_error(404, INVALID_REQUEST, "No such session: initialize again", message)
        return self._answer(peer, message)

    def _answer(
        self, peer: TestServerSession, message: Json, *, modern: bool = False, session: str = ""
    ) -> None:
        errors: list[object] = []
        notify = self._send_notification

        def send(item: object) -> None:
            (notify if isinstance(item, dict) and "method" in item else errors.append)(item)

        request = peer.accept(message, send)
        if request is not None:
            # Disconnecting cancels modern requests, but not legacy ones.
            request.hung_up = self._hung_up if modern else None
            answer = peer.answer(request)
        else:
            answer = cast("Json | None", errors[0] if errors else None)
        if session and answer is not None and "result" in answer:
            self.server.sessions[session] = peer
        if self.streaming:
            if answer is not None:
                self._send_event(answer)
            self.wfile.write(b"0\r\n\r\n")
        elif answer is None:
            self._reply(202)
        else:
            self._reply(
                _status(answer) if modern else 200, answer, **({"Mcp-Session-Id": session} if session else {})
            )

    def _send_notification(self, notification: object) -> None:
        if not self.streaming:
            self.streaming = True
            self.send_response(200)
            self.send_header("Content-Type", "text/event-stream")
            self.send_header("Cache-Control", "no-store")
            self.send_header("X-Accel-Buffering", "no")
            self.send_header("Transfer-Encoding", "chunked")
            self.end_headers()
        self._send_event(notification)

    def _send_event(self, message: object) -> None:
        event = b"event: message\ndata: " + json.dumps(message).encode() + b"\n\n"
        self.wfile.write(b"%x\r\n%s\r\n" % (len(event), event))

    def _hung_up(self) -> bool:
        readable, _, _ = select.select([self.connection], [], [], 0)
        return bool(readable) and self.connection.recv(1, socket.MSG_PEEK) == b""

    def _body(self) -> bytes | None:
        length = self.headers.get("Content-Length", "")
        if not length.isdecimal() or int(length) > MAX_BODY:
            self.close_connection = True  # the body is not read
            self._reply_error(
                413 if length.isdecimal() else 411, INVALID_REQUEST, f"At most {MAX_BODY} bytes, counted"
            )
            return None
        return self.rfile.read(int(length))

    def _is_allowed(self) -> bool:
        """Reject other origins (web pages), wrong paths and wrong media types."""
        host = urlsplit(f"//{self.headers.get('Host', '')}").hostname
        origin = self.headers.get("Origin")
        bound_here = self.server.server_address[0] in LOOPBACK
        if (origin is not None and urlsplit(origin).hostname not in LOOPBACK) or (
            bound_here and host not in LOOPBACK
        ):
            self._reply_error(403, INVALID_REQUEST, "Origin or Host is not allowed")
        elif urlsplit(self.path).path != PATH:
            self._reply_error(404, INVALID_REQUEST, f"The endpoint is {PATH}")
        elif self.command == "POST" and self.headers.get_content_type() != "application/json":
            self._reply_error(415, INVALID_REQUEST, "Content-Type must be application/json")
        elif self.command == "POST" and not _accepts_both(self.headers.get("Accept", "")):
            self._reply_error(406, INVALID_REQUEST, "Accept must list application/json and text/event-stream")
        else:
            return True
        return False

    def _reply_error(
        self, status: int, code: int, text: str, message: Json | None = None, **headers: str
    ) -> None:
        known = {"id": message["id"]} if message is not None and "id" in message else {}
        self._reply(status, {"jsonrpc": "2.0", **known, "error": {"code": code, "message": text}}, **headers)

    def _reply(self, status: int, answer: Json | None = None, **headers: str) -> None:
        body = b"" if answer is None else json.dumps(answer).encode()
        self.send_response(status)
        for name, value in headers.items():
            self.send_header(name, value)
        if body:
            self.send_header("Content-Type", "application/json")
        if status != 204:
            self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)


def _is_modern(message: Json) -> bool:
    params = message.get("params")
    meta = params.get("_meta") if isinstance(params, dict) else None
    return isinstance(meta, dict) and f"{RESERVED}protocolVersion" in meta


def _status(answer: Json) -> int:
    error = answer.get("error")
    code = error["code"] if isinstance(error, dict) else None
    return {None: 200, NO_METHOD: 404, INVALID_PARAMS: 400, UNSUPPORTED_VERSION: 400}.get(code, 200)


def _accepts_both(accept: str) -> bool:
    kinds = {kind.split(";")[0].strip() for kind in accept.split(",")}
    return "*/*" in kinds or {"application/json", "text/event-stream"} <= kinds


def _decode_header(header: str | None) -> str | None:
    """Decode the value of a mirrored header; non-ASCII values are sent as `=?base64?…?=`."""
    if header is None or not (header.startswith("=?base64?") and header.endswith("?=")):
        return header
    import base64
    import binascii

    try:
        return base64.b64decode(header[9:-2], validate=True).decode()
    except (binascii.Error, UnicodeDecodeError):
        return None

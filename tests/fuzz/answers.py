"""What hostile servers answer: frames for a pipe, and whole HTTP responses."""

from __future__ import annotations

import json
import zlib
from contextlib import suppress

from tests.fuzz.generate import CANARIES, DIE, Json, Spelled, Writer, garble
from tests.fuzz.messages import NOTIFICATIONS, client_question, line, params, response

TOOL = {"name": "case", "inputSchema": {"type": "object"}}
GOOD: dict[str, Json] = {
    "server/discover": {
        "supportedVersions": ["2026-07-28"],
        "capabilities": {"tools": {"listChanged": True}, "resources": {"subscribe": True}, "logging": {}},
        "resultType": "complete",
    },
    "initialize": {
        "protocolVersion": "2025-11-25",
        "capabilities": {"tools": {"listChanged": True}, "resources": {"subscribe": True}, "logging": {}},
        "serverInfo": {"name": "hostile", "version": "1"},
    },
    "tools/list": {"tools": [TOOL], "resultType": "complete", "ttlMs": 0},
    "ping": {},
}


def expected(request: Json) -> bytes:
    """Return the answer that a good server would give."""
    result = GOOD.get(request["method"])
    if request["method"] == "tools/call":
        text = str((request.get("params") or {}).get("arguments", {}).get("case"))
        result = {"content": [{"type": "text", "text": text}], "resultType": "complete"}
    if result is None:
        error = {"code": -32601, "message": "no"}
        return json.dumps({"jsonrpc": "2.0", "id": request["id"], "error": error}).encode()
    return json.dumps({"jsonrpc": "2.0", "id": request["id"], "result": result}).encode()


def frames(dice: DIE, request: Json) -> list[bytes]:
    """Return what comes before the expected answer to a request, or in place of it."""
    found = [_frame(dice, request) for _ in range(dice.choice((0, 1, 1, 2, 5)))]
    if dice.random() < 0.03:
        found *= dice.choice((10, 100)) if sum(map(len, found)) < 50_000 else 1
    return found


def _frame(dice: DIE, request: Json) -> bytes:
    key = request["id"]
    keys = (key, key, key, str(key), Spelled(b"%s.0" % str(key).encode()), key - 1, key + 1, None, -1, "x")
    kind = dice.random()
    if kind < 0.5:
        return line({"jsonrpc": "2.0", "id": dice.choice(keys), **response(dice)}, dice)
    if kind < 0.75:
        method = dice.choice(NOTIFICATIONS)
        note = params(dice, method)
        if dice.random() < 0.5:
            note["progressToken"] = dice.choice(keys)
        return line({"jsonrpc": "2.0", "method": method, "params": note}, dice)
    if kind < 0.9:
        return line({"jsonrpc": "2.0", "id": dice.choice((1, "q", key, None)), **client_question(dice)}, dice)
    if kind < 0.95:
        return garble(expected(request), dice)
    return dice.choice((b"", b"\r", b"\xef\xbb\xbf{}", b"\0\0", b"null", b"[]", b'"', dice.randbytes(50)))


# ── HTTP ────────────────────────────────────────────────────────────────────────────────────────

_TYPES = (
    b"application/json",
    b"text/event-stream",
    b"application/json; charset=utf-16",
    b"text/html",
    b"",
    b"text/event-stream;x=\xff",
)
_HEADERS = (
    b"Mcp-Session-Id: %s",
    b"Location: %s",
    b"WWW-Authenticate: Bearer resource_metadata=%s",
    b"Retry-After: %s",
    b"Set-Cookie: %s",
    b"Content-Encoding: %s",
    b"MCP-Protocol-Version: %s",
    b"Transfer-Encoding: %s",
    b"Content-Length: %s",
    b"Connection: %s",
    b"X-%s: 1",
)
_VALUES = (
    b"1",
    b"-1",
    b"\xff",
    b"gzip",
    b"br",
    b"chunked",
    b"identity",
    b"close",
    b"http://[",
    b"http://127.0.0.1:9/",
    b"a" * 9000,
    b"2025-11-25",
    b"Fri, 99 Foo 2026",
    b"",
    b"\x00",
)


def http_response(dice: DIE, request: Json | None) -> list[bytes]:
    """Return a response in the portions in which it is sent; the connection is closed after the last."""
    body = b"" if request is None or "id" not in request else expected(request)
    status, kind, extra = b"200 OK" if body else b"202 Accepted", b"application/json", list[bytes]()
    is_odd = dice.random() < 0.7
    if body and request is not None and (is_odd or dice.random() < 0.3):
        before = frames(dice, request) if is_odd else []
        if dice.random() < 0.7:
            kind = b"text/event-stream"
            body = b"".join(
                _event(dice, each) for each in [*before, *([body] if dice.random() < 0.8 else [])]
            )
        elif before:
            body = before[0]
    if is_odd and dice.random() < 0.4:
        status = b"%d %s" % (
            dice.choice(
                (100, 101, 200, 202, 204, 301, 307, 400, 401, 403, 404, 405, 429, 500, 503, 600, 999)
            ),
            dice.choice((b"OK", b"", b"\xff")),
        )
    if is_odd and dice.random() < 0.2:
        kind = dice.choice(_TYPES)
    if is_odd and dice.random() < 0.15:
        press = zlib.compressobj(9, zlib.DEFLATED, 31)
        body = press.compress(body + b"\n" * dice.choice((0, 10, 1_000_000))) + press.flush()
        extra.append(b"Content-Encoding: gzip")
    while is_odd and dice.random() < 0.3:
        extra.append(dice.choice(_HEADERS) % dice.choice(_VALUES))
    if dice.random() < 0.6:
        extra.append(
            b"Content-Length: %d" % (len(body) + (dice.choice((-1, 1, 10**9)) if dice.random() < 0.05 else 0))
        )
    head = b"HTTP/1.1 %b\r\nContent-Type: %b\r\n%b\r\n" % (status, kind, b"".join(e + b"\r\n" for e in extra))
    data = head + body
    if is_odd:
        data = garble(data, dice)
    if dice.random() < 0.3 and data:
        at = dice.randrange(len(data))
        return [data[:at], data[at:]]
    return [data]


def login_document(dice: DIE, path: bytes, url: str, body: bytes) -> bytes:
    """Return the response of a server that demands a login, and of its authorization server."""
    found: Json = {}
    status = b"200 OK"
    if path in (b"/account", b"/kept"):
        status = b"401 Unauthorized"
    elif b"protected-resource" in path:
        found = {
            "resource": f"{url}/account",
            "authorization_servers": [url] * dice.choice((1, 1, 2, 50)),
            "scopes_supported": ["read"] * dice.choice((1, 300)),
        }
    elif b"well-known" in path:
        found = {
            "issuer": url,
            "authorization_endpoint": f"{url}/authorize",
            "token_endpoint": f"{url}/token",
            "registration_endpoint": f"{url}/register",
            "response_types_supported": ["code"],
            "grant_types_supported": ["authorization_code", "refresh_token"],
            "token_endpoint_auth_methods_supported": ["none"],
            "code_challenge_methods_supported": ["S256"],
            "authorization_response_iss_parameter_supported": dice.random() < 0.2,
        }
    elif path == b"/register":
        status = b"201 Created"
        with suppress(ValueError):
            found = json.loads(body)
        found |= {"client_id": "client", "client_secret": CANARIES["refresh"], "client_secret_expires_at": 0}
    elif path == b"/token":
        found = {
            "access_token": CANARIES["access"],
            "refresh_token": CANARIES["refresh"],
            "token_type": "Bearer",
            "expires_in": dice.choice((3600, 0, -1, 1e308)),
            "scope": "read",
        }
        if dice.random() < 0.2:
            known = CANARIES["access"]
            found, status = (
                {"error": dice.choice(("invalid_grant", known)), "error_description": known},
                b"400 X",
            )
    data = Writer(dice).write(found)
    challenge = b""
    if status.startswith(b"401"):
        field = dice.choice(
            (b'Bearer resource_metadata="%b"', b'Bearer realm="x", scope="read %b"', b"Basic %b")
        )
        pointer = f"{url}/.well-known/oauth-protected-resource/account".encode()
        challenge = b"WWW-Authenticate: %b\r\n" % garble(field % pointer, dice).replace(b"\n", b"")
    head = b"HTTP/1.1 %b\r\nContent-Type: application/json\r\n%bConnection: close\r\n" % (status, challenge)
    return head + b"Content-Length: %d\r\n\r\n" % len(data) + garble(data, dice)


def _event(dice: DIE, data: bytes) -> bytes:
    end = dice.choice((b"\n", b"\n", b"\r\n", b"\r"))
    fields = dice.choice(
        (b"", b"id: 7", b"event: message", b"event: ping", b"retry: 1", b": comment", b"id: \0", b"x")
    )
    lines = [fields] if fields else []
    lines += [b"data: " + part for part in data.split(b"\n")]
    return end.join(lines) + end * dice.choice((2, 2, 2, 1, 3))


def stdio_output(dice: DIE, request: Json) -> bytes:
    """Return everything that a hostile server on a pipe writes for one request."""
    found = frames(dice, request)
    if dice.random() < 0.8:
        found.insert(dice.randrange(len(found) + 1), expected(request))
    return b"".join(each + (b"\n" if dice.random() < 0.99 else b"") for each in found)

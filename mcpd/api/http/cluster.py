"""Replicas of mcpd behind a balancer. What has an owner by nature, a session or a suspended call, names it in
the id that its client brings back, and a replica that gets another's id forwards the request to it, once.

The owner's address is encrypted with the key that all replicas share, so that only they can read or make it.
`cryptography` comes with the extra `[keys]`.
"""

from __future__ import annotations

import base64
import hashlib
import logging
import math
from contextlib import suppress
from urllib.parse import unquote

import httpx
import msgspec
import trio
from cryptography.fernet import Fernet, InvalidToken

from mcpd.api.http.connection import SpawnTask
from mcpd.api.http.exchange import HttpExchange, ServeRequest
from mcpd.api.http.parser import Head
from mcpd.api.mcp.frames import EVENT_HEADERS, EVENT_STREAM, end_with_error
from mcpd.config.http import ClusterSettings
from mcpd.model.errors import LinkLost, ProtocolViolation
from mcpd.model.login import LOGIN_PATH
from mcpd.model.message_limit import MAX_MESSAGE
from mcpd.model.replica import OWNER_END, Replica
from mcpd.privacy.logs import FROM_OUTSIDE
from mcpd.transports.http_client import bodies
from mcpd.transports.http_client.connection import describe_error, is_unreachable
from mcpd.transports.http_client.connection_pool import ConnectionPool
from mcpd.wire import message as wire
from mcpd.wire.limits import TooMuchStructure

log = logging.getLogger("mcpd.http")

FORWARDED = b"mcpd-forwarded"
"""The header of a forwarded request, which is not forwarded again."""
_SESSION_HEADER = b"mcp-session-id"
_SESSION_QUERY = "session="
_MAX_OWNER = 400
_MAX_KNOWN = 1000
_MAX_ANSWER = 2 * MAX_MESSAGE
_HOP_BY_HOP = frozenset(
    b"connection content-length expect keep-alive te trailer transfer-encoding upgrade".split()
)
"""RFC 9110, 7.6.1."""


class _StateParams(msgspec.Struct, gc=False):
    state: str = msgspec.field(name="requestState", default="")


class _StateRequest(msgspec.Struct, gc=False):
    params: _StateParams


_decode_state = msgspec.json.Decoder(_StateRequest).decode


class Cluster:
    """This replica among the others."""

    def __init__(self, settings: ClusterSettings) -> None:
        digest = hashlib.sha256(settings.key.encode()).digest()
        self._fernet = Fernet(base64.urlsafe_b64encode(digest))
        self.address = settings.address
        owner = self._fernet.encrypt(settings.address.encode()).decode().rstrip("=")
        self.replica = Replica(owner + OWNER_END, hashlib.sha256(b"requestState" + digest).digest())
        self._known: dict[str, str] = {owner: settings.address}
        """Owner, as it is encrypted → address."""
        self._pools: dict[str, ConnectionPool] = {}

    def serve(self, head: Head, serve: ServeRequest, spawn: SpawnTask) -> ServeRequest:
        """Return what serves requests with this head: `serve`, unless they belong to another replica."""
        if FORWARDED in head.headers:
            return serve
        owner = self._owner_of_session(head)
        if owner is not None:
            return lambda body, exchange: spawn(lambda: self._forward(owner, body, exchange, serve))
        if head.method != "POST":
            return serve

        def serve_or_forward(body: bytes, exchange: HttpExchange) -> None:
            owner = self._owner_of_state(body) if b'"requestState"' in body else None
            if owner is None:
                serve(body, exchange)
            else:
                spawn(lambda: self._forward(owner, body, exchange, serve))

        return serve_or_forward

    def _owner_of_session(self, head: Head) -> str | None:
        if head.path.startswith(LOGIN_PATH):
            key = unquote(head.query.partition("state=")[2]) or head.path.removeprefix(LOGIN_PATH)
        else:
            key = head.get(_SESSION_HEADER) or head.query.partition(_SESSION_QUERY)[2]
        return self._address(key.partition(OWNER_END)[0]) if OWNER_END in key else None

    def _owner_of_state(self, body: bytes) -> str | None:
        try:
            state = _decode_state(body).params.state
        except (msgspec.MsgspecError, RecursionError):
            return None
        return self._address(state[:_MAX_OWNER].partition(OWNER_END)[0]) if OWNER_END in state else None

    def _address(self, owner: str) -> str | None:
        """Return the address of another replica; None for this one, and for what no replica has made."""
        found = self._known.get(owner)
        if found is None and len(owner) <= _MAX_OWNER:
            with suppress(InvalidToken, ValueError):
                found = self._fernet.decrypt(owner + "=" * (-len(owner) % 4)).decode()
                if len(self._known) >= _MAX_KNOWN:
                    self._known.pop(next(reversed(self._known)))
                self._known[owner] = found
        return None if found == self.address else found

    async def _forward(self, address: str, body: bytes, exchange: HttpExchange, serve: ServeRequest) -> None:
        """Let the owner serve the request. If it is gone, `serve` says what that means to the client."""
        scope = trio.CancelScope()
        exchange.on_hang_up = lambda reason: scope.cancel(reason=reason)
        with scope:
            try:
                response = await self._send(address, body, exchange.head)
            except httpx.TransportError as error:
                log.warning("the replica %s: %s", address, describe_error(error), extra=FROM_OUTSIDE)
                if is_unreachable(error):
                    exchange.on_hang_up = None
                    serve(body, exchange)
                else:
                    _fail(exchange, body)
                return
            await _relay(response, exchange, body)

    async def _send(self, address: str, body: bytes, head: Head) -> httpx.Response:
        pool = self._pools.get(address)
        if pool is None:
            if len(self._pools) >= _MAX_KNOWN:
                self._pools.pop(next(iter(self._pools))).close()
            pool = self._pools[address] = ConnectionPool(httpx.URL(address))
        target = head.path + (f"?{head.query}" if head.query else "")
        lines = [f"{head.method} {target} HTTP/1.1".encode("latin-1"), FORWARDED + b": 1"]
        lines += [b"%b: %b" % item for item in head.headers.items() if item[0] not in _HOP_BY_HOP]
        return await pool.send(head.method, b"\r\n".join(lines) + b"\r\n", body)

    def close(self) -> None:
        """Close the idle connections to other replicas."""
        for pool in self._pools.values():
            pool.close()


async def _relay(response: httpx.Response, exchange: HttpExchange, body: bytes) -> None:
    """Pass on the response as it arrives."""
    kind = response.headers.get("content-type", "").encode("latin-1")
    assert isinstance(response.stream, httpx.AsyncByteStream)
    try:
        if kind.startswith(EVENT_STREAM):
            exchange.stream(EVENT_STREAM, EVENT_HEADERS)
            await bodies.feed_body(response, exchange.write, math.inf)
            exchange.end()
        else:
            content = await bodies.read(response, _MAX_ANSWER)
            exchange.respond(response.status_code, content, kind, _own_headers(response))
    except (httpx.TransportError, bodies.BodyTooLarge, ProtocolViolation, TooMuchStructure):
        _fail(exchange, body)
    finally:
        await response.stream.aclose()


def _own_headers(response: httpx.Response) -> bytes:
    """Return the headers that mean something to an MCP client or a browser."""
    names = (
        *("allow", "content-security-policy", "location", "mcp-session-id", "referrer-policy"),
        *("retry-after", "set-cookie", "www-authenticate"),
    )
    found = ((name, response.headers.get(name)) for name in names)
    return b"".join(f"{name}: {value}\r\n".encode("latin-1") for name, value in found if value)


def _fail(exchange: HttpExchange, body: bytes) -> None:
    """The owner ended while it had the request."""
    error = LinkLost("the replica of mcpd that had this session or call has ended; the call may have run")
    try:
        key = bytes(wire.parse(body).key)
    except wire.BadFrame:
        key = b""
    if not exchange.is_streaming:
        # With another status than 200, SDKs end their client instead of the call.
        status = 200 if key else error.http
        exchange.respond(
            status, wire.error(key or b"null", wire.error_body(error.rpc, error.message, error.data()))
        )
    elif key:
        end_with_error(exchange, error, key)
    else:
        exchange.end()

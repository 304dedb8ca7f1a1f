"""Streamable HTTP for revision 2026-07-28: stateless requests, with headers that repeat parts of the body.

The checks follow the specification's order; the gateway does those that are independent of HTTP.
https://modelcontextprotocol.io/specification/2026-07-28/basic/transports#streamable-http
"""

from __future__ import annotations

import msgspec
from msgspec import UNSET, Raw, UnsetType

from mcpd.api.http.exchange import HttpExchange
from mcpd.api.http.parser import Head
from mcpd.api.mcp.frames import (
    EVENT_HEADERS,
    EVENT_STREAM,
    KEEP_ALIVE,
    STATUS,
    accepts_event_stream,
    respond_error,
    sse_event,
)
from mcpd.gateway.session import ClientSession
from mcpd.gateway.views import View
from mcpd.model.errors import McpdError
from mcpd.model.text import shorten
from mcpd.protocol.modern import HEADER_MISMATCH, VERSIONS
from mcpd.wire import message as wire
from mcpd.wire.headers import NAME_PARAMETERS, decode_header_value, mirrored_properties, param_headers
from mcpd.wire.message import ABSENT, INVALID_PARAMS, RESERVED_PREFIX, BadFrame, Message, may_have_meta

_MAX_NAME = 1024 * 1024
"""Bytes of the value that the header Mcp-Name repeats; decoding 31 MiB takes up to 70 ms."""
VERSION_HEADERS = frozenset(version.encode() for version in VERSIONS)


class _Object(msgspec.Struct, gc=False):
    """Any object; its members are skipped."""


class _Meta(msgspec.Struct, gc=False):
    version: str = msgspec.field(name=f"{RESERVED_PREFIX}protocolVersion")
    capabilities: _Object = msgspec.field(name=f"{RESERVED_PREFIX}clientCapabilities")


class _RequestParams(msgspec.Struct, gc=False):
    meta: _Meta = msgspec.field(name="_meta")
    name: Raw | UnsetType = UNSET
    uri: Raw | UnsetType = UNSET
    taskId: Raw | UnsetType = UNSET  # the name in the protocol


_KEY_AT = len(wire.ENVELOPE_START)
_decode = msgspec.json.Decoder(_RequestParams).decode
_text = msgspec.json.Decoder(str).decode


def is_modern_request(message: Message) -> bool:
    """Return whether the message is a request whose `_meta` names any protocol version."""
    if not message.method or message.id is ABSENT or message.params is ABSENT:
        return False
    if not may_have_meta(bytes(message.params)):
        return False
    try:
        meta = wire.members(wire.members(message.params).get("_meta", Raw(b"{}")))
    except BadFrame:
        return False
    return f"{RESERVED_PREFIX}protocolVersion" in meta


class RequestMismatch(Exception):
    """A request whose headers or `_meta` are invalid, with its JSON-RPC code."""

    def __init__(self, code: int, message_text: str) -> None:
        super().__init__(message_text)
        self.code = code


class HeaderCheck:
    """Checks that `_meta` is complete and the body matches the headers of a head. Requests may share it."""

    def __init__(self, head: Head) -> None:
        self._head = head
        self._version = _utf8(head, b"mcp-protocol-version")
        self._method = _utf8(head, b"mcp-method")
        name = head.get(b"mcp-name")
        self._plain_name = None if name is None or name.startswith("=?") else name
        """The name if it needs no decoding."""
        self._is_repeated = any(name.startswith(b"mcp-") for name in head.repeated)

    def check(self, message: Message, view: View) -> None:
        """Raise RequestMismatch if they do not match."""
        head = self._head
        try:
            params = _decode(message.params if message.params is not ABSENT else b"{}")
        except (msgspec.MsgspecError, RecursionError) as error:
            raise RequestMismatch(INVALID_PARAMS, f"params: {error}") from None
        if params.meta.version != self._version:
            raise _header_mismatch(head, "MCP-Protocol-Version", params.meta.version)
        if message.method != self._method:
            raise _header_mismatch(head, "Mcp-Method", message.method)
        if message.method in NAME_PARAMETERS:
            self._check_name(message, params, view)
        if self._is_repeated:
            raise RequestMismatch(HEADER_MISMATCH, "an Mcp- header is repeated")

    def _check_name(self, message: Message, params: _RequestParams, view: View) -> None:
        named_by = NAME_PARAMETERS[message.method]
        given: Raw | UnsetType = getattr(params, named_by)
        if given is not UNSET and len(given) > _MAX_NAME:
            text = f"`{named_by}` has {len(given)} bytes, and mcpd accepts at most {_MAX_NAME}"
            raise RequestMismatch(INVALID_PARAMS, text)
        try:
            name = None if given is UNSET else _text(given)
        except msgspec.MsgspecError:
            name = None
        if (name is not None or given is UNSET) and (name is None or name != self._plain_name):
            _check_header(self._head, "Mcp-Name", name)
        if message.method == "tools/call" and name is not None:
            _check_parameters(self._head, message, name, view)


def _utf8(head: Head, name: bytes) -> str | None:
    value = head.headers.get(name)
    return None if value is None else value.decode("utf-8", "replace")


def _check_header(head: Head, header: str, expected: str | None) -> None:
    """Raise RequestMismatch unless the header equals `expected`, or both are absent."""
    text = head.get(header.lower().encode())
    if text is None and expected is None:
        return
    try:
        value = None if text is None else decode_header_value(text)
    except ValueError as error:
        raise RequestMismatch(HEADER_MISMATCH, f"{header} {error}") from None
    if value != expected:
        raise _header_mismatch(head, header, expected)


def _header_mismatch(head: Head, header: str, expected: str | None) -> RequestMismatch:
    value = head.get(header.lower().encode())
    problem = "is missing" if value is None else f"is {shorten(value, 80)!r}"
    body = "the body has no such value" if expected is None else f"the body has {shorten(expected, 80)!r}"
    return RequestMismatch(HEADER_MISMATCH, f"{header} {problem}, but {body}")


def _check_parameters(head: Head, message: Message, name: str, view: View) -> None:
    """Raise RequestMismatch if an argument and the header that repeats it differ."""
    server = view.single
    if server is None:
        try:
            route = view.route(message.method, bytes(message.params))
        except McpdError:
            return  # the gateway reports the error
        server, name = route.server, route.tool
    catalog = server.catalog
    schema = None if catalog is None else catalog.annotated_tools.get(name)
    if schema is None:
        return
    try:
        arguments = wire.mapping(wire.members(message.params).get("arguments"))
    except BadFrame as error:
        raise RequestMismatch(INVALID_PARAMS, f"arguments: {error}") from None
    wanted = param_headers(schema, arguments)
    for header in mirrored_properties(schema).values():
        text = wanted.get(header)
        _check_value(head, header, None if text is None else decode_header_value(text))


def _check_value(head: Head, header: str, expected: str | None) -> None:
    """Like `_check_header`, but integers are compared by value."""
    text = head.get(header.lower().encode())
    if text is not None and expected is not None and text != expected:
        try:
            if int(text) == int(expected):
                return
        except ValueError:
            pass
    _check_header(head, header, expected)


class ModernReply:
    """Replies with JSON, or with an event stream if there are earlier messages."""

    __slots__ = ("_exchange", "_key", "_session")

    def __init__(self, exchange: HttpExchange, session: ClientSession, key: bytes) -> None:
        self._exchange = exchange
        self._session = session
        self._key = key
        exchange.on_hang_up = self._on_hang_up
        exchange.on_quiet = self._on_quiet

    def send(self, frame: bytes) -> None:
        if accepts_event_stream(self._exchange.head):
            self._write(sse_event(frame))

    def finish(self, frame: bytes, code: int = 0) -> None:
        exchange = self._exchange
        if exchange.is_streaming:
            exchange.write(sse_event(frame))
            exchange.end()
        else:
            if not code and frame.startswith(b',"error":', _KEY_AT + len(self._key)):
                code = _error_code(frame)  # the server's
            exchange.respond(STATUS.get(code, 200), frame)

    def drop(self) -> None:
        """No-op: the request was cancelled because the client disconnected."""

    def _on_quiet(self) -> None:
        if accepts_event_stream(self._exchange.head):
            self._write(KEEP_ALIVE)

    def _write(self, data: bytes) -> None:
        self._exchange.stream(EVENT_STREAM, EVENT_HEADERS)  # no-op if it was started already
        self._exchange.write(data)

    def _on_hang_up(self, _: str) -> None:
        """Cancel the request: in this revision, disconnecting means cancelling."""
        self._session.cancel(self._key, "the client disconnected")


def _error_code(frame: bytes) -> int:
    """Return the code of an error response."""
    try:
        error = wire.value(wire.members(frame).get("error", Raw(b"null")))
    except BadFrame:
        return 0
    code = error.get("code") if isinstance(error, dict) else None
    return code if isinstance(code, int) else 0


def handle_request(
    message: Message, exchange: HttpExchange, session: ClientSession, headers: HeaderCheck
) -> None:
    """Handle one request."""
    try:
        headers.check(message, session.view)
    except RequestMismatch as error:
        respond_error(exchange, STATUS[error.code], str(error), code=error.code, key=message.key)
    else:
        session.receive(message, ModernReply(exchange, session, bytes(message.id)))

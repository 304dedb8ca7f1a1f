"""A bounded HTTP/1.1 request parser for one connection, without I/O.

llhttp (httptools) parses strictly: no bare line feeds, folded headers, repeated Content-Length, or
Content-Length with chunks. Clients usually repeat the same head with a different body, so known heads are
recognized by their bytes and neither parsed nor checked again, at a tenth of the cost.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import NamedTuple, Protocol

import msgspec
from httptools.parser.errors import HttpParserCallbackError, HttpParserError, HttpParserUpgrade
from httptools.parser.parser import HttpRequestParser

from mcpd.model.message_limit import MAX_MESSAGE
from mcpd.wire.limits import COUNTED_FROM, StructureCounter, TooMuchStructure

MAX_HEAD = 64 * 1024
MAX_HEADERS = 100
MAX_BODY = MAX_MESSAGE
"""Bytes of a body after joining its chunks, each of which counts CHUNK_COST bytes in addition."""
CHUNK_COST = 32
"""Bytes that the framing of one chunk counts, so that a body of tiny chunks costs its sender, too."""
_KNOWN_HEADS = 16
_MAX_KNOWN_HEAD = 4096
_SINGLE = (b"authorization", b"content-type", b"host", b"origin")
"""Headers that must not be repeated, because the values would be ambiguous."""


class Head(msgspec.Struct, frozen=True, eq=False):
    """The request line and headers of a request."""

    method: str
    path: str
    """The path as it was sent, with percent-encoding."""
    query: str
    headers: Mapping[bytes, bytes]
    """Names in lower case, values stripped; values of repeated headers are joined by commas."""
    repeated: frozenset[bytes]
    """The names of repeated headers."""
    is_11: bool
    """True for HTTP/1.1, False for 1.0, which has no chunked encoding."""
    keep_alive: bool
    upgrade: bytes = b""
    """The protocol offered in `Upgrade`. A handler that does not support it ignores the offer."""

    def get(self, name: bytes) -> str | None:
        """Return a header's text, decoded as Latin-1 (RFC 9110, 5.5)."""
        value = self.headers.get(name)
        return None if value is None else value.decode("latin-1")


class Admission(NamedTuple):
    """What a request may do, as decided from its head."""

    max_body: int
    """Bytes of its body."""
    is_authenticated: bool
    """Whether the client has proved who it is; before that, it gets almost nothing."""


class BadRequest(Exception):
    """A request that cannot be parsed or must not be read. The connection ends after this response."""

    def __init__(self, status: int, message: str, headers: bytes = b"") -> None:
        super().__init__(message)
        self.status = status
        self.message = message
        self.headers = headers


class ParserCallbacks(Protocol):
    """Callbacks that RequestParser invokes."""

    def take_head(self, head: Head, *, awaits_continue: bool) -> int:
        """A new head is complete; its body has not been read. May raise BadRequest.

        Return the number of bytes that its body may have. The parser refuses a longer one with 413.
        """

    def take_request(self, head: Head, body: bytes) -> None:
        """A request is complete."""


class _KnownHead(msgspec.Struct, frozen=True, eq=False):
    head: Head
    length: int


_INERT_PARSER = HttpRequestParser(object())
"""Replaces the parser of a finished connection."""


class RequestParser:
    """Parses the requests of one connection. Do not feed it again after BadRequest."""

    def __init__(self, callbacks: ParserCallbacks) -> None:
        self._callbacks = callbacks
        self._take_request: Callable[[Head, bytes], None] = callbacks.take_request
        self._limit = MAX_BODY
        self._known_heads: dict[bytes, _KnownHead] = {}
        self._parser = HttpRequestParser(self)
        self._head: Head | None = None
        self._target = b""
        self._headers: dict[bytes, bytes] = {}
        self._repeated: set[bytes] = set()
        self._head_size = 0
        """Bytes so far of the head, or of the chunk framing and trailers."""
        self._header_count = 0
        self._body: bytes | bytearray = b""
        self._size = 0
        """Bytes so far of the body, with CHUNK_COST for each chunk."""
        self._structure: StructureCounter | None = None
        """Counts the body once it is long."""
        self._skipping_upgrade = False
        self._offered_upgrade = b""
        self.is_between = True
        """True if no request is partially received."""

    @property
    def is_in_head(self) -> bool:
        return not self.is_between and self._head is None

    @property
    def buffered(self) -> int:
        """Bytes of an incomplete body that are kept."""
        return len(self._body)

    def is_known(self, data: bytes) -> bool:
        """Return whether `data` is exactly one request with a known head, which costs little to parse."""
        end = data.find(b"\r\n\r\n") + 4
        known = self._known_heads.get(data[:end]) if self.is_between else None
        return known is not None and end + known.length == len(data)

    def feed(self, data: bytes) -> None:
        """Parse `data` and invoke the callbacks. Raises BadRequest."""
        if self.is_between:
            end = data.find(b"\r\n\r\n") + 4
            known = self._known_heads.get(data[:end])
            if known is not None and end + known.length == len(data):
                self._take_request(known.head, data[end:])
                return
        else:
            end = 0
        was_between = self.is_between
        self._feed(data)
        if was_between and self.is_between and 4 < end <= _MAX_KNOWN_HEAD:
            self._remember(data, end)

    def is_complete(self) -> bool:
        """Return whether no request has arrived in part."""
        return self.is_between

    def release(self) -> None:
        """Release all data. No more input may be fed."""
        self._body = b""
        self._known_heads.clear()
        self._parser = _INERT_PARSER  # breaks the reference cycle

    def _remember(self, data: bytes, end: int) -> None:
        """Remember the head of a complete request that arrived in one piece."""
        head = self._head
        self._head = None
        if (
            head is not None
            and head.keep_alive
            and not self._skipping_upgrade
            and b"transfer-encoding" not in head.headers
            and b"expect" not in head.headers
            and end + int(head.headers.get(b"content-length", b"0")) == len(data)
        ):
            if len(self._known_heads) >= _KNOWN_HEADS:
                self._known_heads.clear()
            self._known_heads[data[:end]] = _KnownHead(head, len(data) - end)

    def _feed(self, data: bytes) -> None:
        rest: memoryview | bytes | None = data
        while rest:  # a loop, since every request of a pipeline may offer an upgrade
            rest = self._feed_until_upgrade(rest)
            if rest is not None:
                self._parse_without_upgrade()
        if self._head_size > MAX_HEAD:
            raise BadRequest(431, f"the head of a request is limited to {MAX_HEAD} bytes")
        if self.is_in_head:
            # llhttp buffers an unfinished header; the next call checks the limit.
            self._head_size += len(data)

    def _feed_until_upgrade(self, data: memoryview | bytes) -> memoryview | None:
        """Parse `data` up to a head that offers an upgrade; return what follows it, or None."""
        try:
            self._parser.feed_data(data)
        except HttpParserUpgrade as upgrade:
            return memoryview(data)[upgrade.args[0] :]
        except HttpParserCallbackError as error:
            if isinstance(error.__context__, BadRequest):
                raise error.__context__ from None
            raise
        except HttpParserError as error:
            raise BadRequest(400, f"not HTTP/1.1: {error}") from None
        return None

    def _parse_without_upgrade(self) -> None:
        """Parse the head again without `Upgrade`: llhttp skips the body of a request that offers one."""
        skipped = (b"upgrade", b"connection", b"http2-settings")
        lines = [
            b"%b %b HTTP/1.1" % (self._parser.get_method(), self._target),
            *(b"%b: %b" % item for item in self._headers.items() if item[0] not in skipped),
        ]
        self._skipping_upgrade = False
        self._offered_upgrade = self._headers.get(b"upgrade", b"").lower()
        self._parser = HttpRequestParser(self)
        self._feed_until_upgrade(b"\r\n".join(lines) + b"\r\n\r\n")

    # ── called by httptools ─────────────────────────────────────────────────────────────────────

    def on_message_begin(self) -> None:
        self.is_between = False
        self._head = None
        self._target = b""
        self._headers = {}
        self._repeated = set()
        self._head_size = self._header_count = self._size = 0
        self._body = b""
        self._structure = None

    def on_url(self, portion: bytes) -> None:
        self._target += portion

    def on_header(self, name: bytes, value: bytes) -> None:
        self._header_count += 1
        self._head_size += len(name) + len(value) + 4
        if self._header_count > MAX_HEADERS or self._head_size > MAX_HEAD:
            raise BadRequest(
                431, f"at most {MAX_HEADERS} headers with {MAX_HEAD} bytes in total are accepted"
            )
        if self._head is not None:
            return  # trailers arrive after the request was admitted, so they are ignored
        name = name.lower()
        value = value.strip(b" \t")
        if name in self._headers:
            if name in _SINGLE:
                raise BadRequest(400, f"more than one {name.decode()}")
            self._repeated.add(name)
            value = self._headers[name] + b", " + value
        self._headers[name] = value

    def on_headers_complete(self) -> None:
        parser, headers = self._parser, self._headers
        version = parser.get_http_version()
        if version not in ("1.1", "1.0"):
            raise BadRequest(505, "only HTTP/1.0 and HTTP/1.1 are supported")
        method = parser.get_method()
        if parser.should_upgrade() and method != b"CONNECT":
            self._skipping_upgrade = True
            return
        path, query = self._origin_form()
        self._head = head = Head(
            method=method.decode("latin-1"),
            path=path,
            query=query,
            headers=headers,
            repeated=frozenset(self._repeated),
            is_11=version == "1.1",
            keep_alive=parser.should_keep_alive(),
            upgrade=self._offered_upgrade,
        )
        self._offered_upgrade = b""
        expected = headers.get(b"expect", b"").lower()
        awaits_continue = expected == b"100-continue" and head.is_11
        self._limit = self._callbacks.take_head(head, awaits_continue=awaits_continue)
        is_chunked = b"transfer-encoding" in headers
        if int(headers.get(b"content-length", b"0")) > self._limit or (is_chunked and not self._limit):
            raise self._too_large()
        if expected not in (b"", b"100-continue"):
            raise BadRequest(417, "only `Expect: 100-continue` is supported")

    def on_body(self, portion: bytes) -> None:
        self._size += len(portion)
        if self._size > self._limit:
            raise self._too_large()
        if not self._body:
            self._body = portion
        elif isinstance(self._body, bytearray):
            self._body += portion
        else:
            self._body = bytearray(self._body) + portion
        if len(self._body) > COUNTED_FROM:
            self._limit_structure(portion)

    def _limit_structure(self, portion: bytes) -> None:
        try:
            if self._structure is None:
                self._structure = StructureCounter(self._limit)
                self._structure.feed(self._body)
            else:
                self._structure.feed(portion)
        except TooMuchStructure as error:
            raise BadRequest(413, f"a body with {error} is not accepted") from None

    def on_chunk_header(self) -> None:
        self._header_count = 0
        self._size += CHUNK_COST

    def on_message_complete(self) -> None:
        if self._skipping_upgrade:
            return
        head, body = self._head, self._body
        assert head is not None
        self.is_between = True
        self._body = b""
        self._take_request(head, bytes(body))  # not a copy if it is bytes already

    def _origin_form(self) -> tuple[str, str]:
        target = self._target.decode("latin-1")
        if not target.startswith("/"):
            # Servers must accept the absolute form, too (RFC 9112, 3.2.2).
            scheme, _, rest = target.partition("://")
            authority, slash, path = rest.partition("/")
            if scheme.lower() != "http" or authority.encode("latin-1") != self._headers.get(b"host"):
                raise BadRequest(400, "the request target must be a path on this host")
            target = slash + path or "/"
        path, _, query = target.partition("#")[0].partition("?")
        return path, query

    def _too_large(self) -> BadRequest:
        return BadRequest(
            413,
            f"the body of a request to this path is limited to {self._limit} bytes; each chunk counts "
            f"{CHUNK_COST} more",
        )

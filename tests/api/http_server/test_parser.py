"""Bytes become requests whatever their portions, and what is no HTTP/1.1 becomes a refusal."""

from __future__ import annotations

import itertools
import sys

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from mcpd.api.http.parser import CHUNK_COST, MAX_HEAD, BadRequest, Head, RequestParser
from tests.sampling import scaled

LIMIT = 1000


class Taken:
    """What a parser has received."""

    def __init__(self, limit: int = LIMIT) -> None:
        self.limit = limit
        self.heads: list[Head] = []
        self.continues: list[bool] = []
        self.requests: list[tuple[Head, bytes]] = []
        self.parser = RequestParser(self)

    def take_head(self, head: Head, *, awaits_continue: bool) -> int:
        self.heads.append(head)
        self.continues.append(awaits_continue)
        return 0 if head.path == "/open" else self.limit

    def take_request(self, head: Head, body: bytes) -> None:
        self.requests.append((head, body))

    @property
    def received(self) -> list[tuple[str, str, str, dict[bytes, bytes], bool, bytes]]:
        return [
            (head.method, head.path, head.query, dict(head.headers), head.keep_alive, body)
            for head, body in self.requests
        ]


def fed(*portions: bytes) -> Taken:
    taken = Taken()
    for portion in portions:
        taken.parser.feed(portion)
    return taken


POST = b"POST /mcp?a=b HTTP/1.1\r\nHost: h\r\nContent-Length: 2\r\n\r\nhi"
CHUNKED = (
    b"POST /c HTTP/1.1\r\nHost: h\r\nTransfer-Encoding: chunked\r\n\r\n"
    b"2;x=y\r\nhi\r\n3\r\n th\r\n0\r\nHost: evil\r\n\r\n"
)
GET = b"GET / HTTP/1.1\r\nHost:\t h \r\nX-A: 1\r\nx-a: 2\r\n\r\n"
OLD = b"GET /old HTTP/1.0\r\n\r\n"
EXPECTED = {
    POST: ("POST", "/mcp", "a=b", {b"host": b"h", b"content-length": b"2"}, True, b"hi"),
    CHUNKED: ("POST", "/c", "", {b"host": b"h", b"transfer-encoding": b"chunked"}, True, b"hi th"),
    GET: ("GET", "/", "", {b"host": b"h", b"x-a": b"1, 2"}, True, b""),
    OLD: ("GET", "/old", "", {}, False, b""),
}


@pytest.mark.parametrize("request_", EXPECTED, ids=["length", "chunks and a trailer", "no body", "1.0"])
def test_a_request_is_read(request_: bytes) -> None:
    taken = fed(request_)
    assert taken.received == [EXPECTED[request_]]
    assert taken.parser.is_between
    assert taken.requests[0][0].repeated == (frozenset({b"x-a"}) if request_ is GET else frozenset())


@settings(derandomize=True, max_examples=scaled(200), deadline=None)
@given(
    st.lists(st.sampled_from([POST, CHUNKED, GET]), max_size=6), st.lists(st.integers(0, 500), max_size=12)
)
def test_portions_do_not_matter(requests: list[bytes], cuts: list[int]) -> None:
    """Also where heads come again, which are then recognised and not parsed."""
    stream = b"".join(requests)
    places = sorted({0, len(stream), *(cut for cut in cuts if cut < len(stream))})
    taken = fed(*(stream[a:b] for a, b in itertools.pairwise(places)))
    assert taken.received == [EXPECTED[each] for each in requests]
    assert taken.parser.is_between


@pytest.mark.parametrize(
    ("sent", "status"),
    [
        (b"hello\r\n\r\n", 400),
        (b"GET /\r\n\r\n", 505),
        (b"GET / HTTP/2.0\r\nHost: h\r\n\r\n", 505),
        (b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n", 400),
        (b"GET / HTTP/1.1\nHost: h\n\n", 400),
        (b"GET / HTTP/1.1\r\nHost : h\r\n\r\n", 400),
        (b"GET / HTTP/1.1\r\nA: b\r\n c\r\n\r\n", 400),
        (b"GET / HTTP/1.1\r\nHost: h\r\nHost: h\r\n\r\n", 400),
        (b"GET / HTTP/1.1\r\nAuthorization: a\r\nauthorization: b\r\n\r\n", 400),
        (b"GET http://other/ HTTP/1.1\r\nHost: h\r\n\r\n", 400),
        (b"CONNECT h:1 HTTP/1.1\r\nHost: h:1\r\n\r\n", 400),
        (b"POST / HTTP/1.1\r\nContent-Length: 2\r\nContent-Length: 2\r\n\r\nhi", 400),
        (b"POST / HTTP/1.1\r\nContent-Length: 2\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n", 400),
        (b"POST / HTTP/1.1\r\nTransfer-Encoding: gzip\r\n\r\n", 400),
        (b"POST / HTTP/1.1\r\nContent-Length: -1\r\n\r\n", 400),
        (b"POST / HTTP/1.1\r\nContent-Length: 1001\r\n\r\n", 413),
        (b"POST / HTTP/1.1\r\nTransfer-Encoding: chunked\r\n\r\n3e9\r\n" + b"x" * 1001, 413),
        (b"POST / HTTP/1.1\r\nExpect: a miracle\r\nContent-Length: 1\r\n\r\n", 417),
        (b"GET / HTTP/1.1\r\n" + b"A: b\r\n" * 101 + b"\r\n", 431),
        (b"GET / HTTP/1.1\r\nA: " + b"x" * MAX_HEAD + b"\r\n\r\n", 431),
    ],
)
def test_what_cannot_be_framed_or_is_too_much_is_refused(sent: bytes, status: int) -> None:
    """Strictly, as two readers of one stream must not disagree about where a request ends."""
    with pytest.raises(BadRequest) as refusal:
        fed(sent)
    assert refusal.value.status == status


@pytest.mark.parametrize(
    ("method", "body"), [(b"GET", b""), (b"POST", b"Content-Length: 2\r\n\r\nhi")], ids=["GET", "POST"]
)
def test_an_offer_to_upgrade_is_passed_over(method: bytes, body: bytes) -> None:
    """Java's client offers HTTP/2 with every first request, and goes on without it."""
    offer = b"Host: h\r\nConnection: Upgrade, HTTP2-Settings\r\nUpgrade: h2c\r\nHTTP2-Settings: AAMA\r\n"
    taken = fed(method + b" /x HTTP/1.1\r\n" + offer + (body or b"\r\n"), GET, GET)
    assert [(received[1], received[5]) for received in taken.received] == [
        ("/x", b"hi" if body else b""),
        ("/", b""),
        ("/", b""),
    ]


def test_body_of_tiny_chunks_is_kept_compactly_and_counts_more() -> None:
    taken = Taken(20_000)
    taken.parser.feed(b"POST /c HTTP/1.1\r\nHost: h\r\nTransfer-Encoding: chunked\r\n\r\n")
    for _ in range(500):
        taken.parser.feed(b"2\r\nhi\r\n")
    assert taken.parser.buffered == 1000
    assert sys.getsizeof(taken.parser._body) < 2000
    assert taken.parser._size == 500 * (2 + CHUNK_COST)
    with pytest.raises(BadRequest) as refusal:
        taken.parser.feed(b"2\r\nhi\r\n" * 500)
    assert refusal.value.status == 413
    assert "20000 bytes" in refusal.value.message


def feed_often(parser: RequestParser, portion: bytes, times: int) -> None:
    for _ in range(times):
        parser.feed(portion)


@pytest.mark.parametrize("values", [b"[],", b"1,", b" ", b'{"a":1},'])
def test_body_of_small_values_is_refused(values: bytes) -> None:
    taken = Taken(8 << 20)
    size = 7 << 20
    taken.parser.feed(b"POST / HTTP/1.1\r\nHost: h\r\nContent-Length: %d\r\n\r\n" % size)
    portion = values * (65536 // len(values))
    with pytest.raises(BadRequest, match="more than 2097152 bytes outside of strings") as refusal:
        feed_often(taken.parser, portion, size // len(portion))
    assert refusal.value.status == 413


@pytest.mark.parametrize("framing", [b"Content-Length: 1", b"Transfer-Encoding: chunked"])
def test_path_without_bodies_refuses_one_at_its_head(framing: bytes) -> None:
    with pytest.raises(BadRequest) as refusal:
        fed(b"POST /open HTTP/1.1\r\nHost: h\r\n" + framing + b"\r\n\r\n")
    assert refusal.value.status == 413
    assert fed(b"POST /open HTTP/1.1\r\nHost: h\r\nContent-Length: 0\r\n\r\n").requests


def test_an_absolute_target_of_this_host_is_its_path() -> None:
    """RFC 9112, 3.2.2: every server has to take it."""
    taken = fed(b"GET http://h/a?b HTTP/1.1\r\nHost: h\r\n\r\n")
    assert taken.received[0][1:3] == ("/a", "b")

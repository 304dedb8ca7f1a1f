"""HTTP responses, compared with another parser (h11)."""

from __future__ import annotations

from collections.abc import Iterable

import pytest

from mcpd.wire.http1 import _MAX_HEADERS, MAX_HEAD, BadResponse, Http1Response

Outcome = tuple[object, ...]


def ours(parts: list[bytes], method: str = "POST") -> Outcome:
    """Parse these portions and the end of the connection with mcpd."""
    response, body = Http1Response(method), b""
    try:
        for part in parts:
            body += b"".join(response.feed(part))
        if not response.complete:
            response.end()
        assert response.complete
    except BadResponse:
        return ("bad",)
    return response.status, response.reason, as_compared(response.headers), body, response.reusable


def as_compared(headers: Iterable[tuple[bytes, bytes]]) -> list[tuple[bytes, bytes]]:
    """Drop the headers that h11 rewrites; their effect is visible in the body."""
    lower = [(name.lower(), value) for name, value in headers]
    return [each for each in lower if each[0] not in (b"content-length", b"transfer-encoding")]


@pytest.mark.parametrize(
    ("raw", "expected"),
    [
        (b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nhi", (200, b"OK", b"hi", True)),
        (b"HTTP/1.1 200\r\nContent-Length: 0\r\n\r\n", (200, b"", b"", True)),
        (b"HTTP/1.1 100 Continue\r\n\r\nHTTP/1.1 202 A\r\nContent-Length: 0\r\n\r\n", (202, b"A", b"", True)),
        (b"HTTP/1.1 204 No\r\n\r\n", (204, b"No", b"", True)),
        (b"HTTP/1.1 200 OK\r\n\r\nto the end", (200, b"OK", b"to the end", False)),
        (b"HTTP/1.0 200 OK\r\nContent-Length: 1\r\n\r\nx", (200, b"OK", b"x", False)),
        (b"HTTP/1.1 200 OK\r\nConnection: close\r\nContent-Length: 1\r\n\r\nx", (200, b"OK", b"x", False)),
        (
            b"HTTP/1.0 200 OK\r\nConnection: keep-alive\r\nContent-Length: 1\r\n\r\nx",
            (200, b"OK", b"x", False),
        ),
        (b"HTTP/1.1 200 OK\nContent-Length: 1\n\nx", (200, b"OK", b"x", True)),
        (b"HTTP/1.1 200 OK\r\nContent-Length: 1\r\n\r\nxy", (200, b"OK", b"x", False)),
        (
            b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\nContent-Length: 9\r\n\r\n"
            b"2;x=y\r\nhi\r\n1 \r\n!\r\n0\r\nA: b\r\n\r\n",
            (200, b"OK", b"hi!", True),
        ),
    ],
)
def test_response_does_not_depend_on_how_it_is_cut(
    raw: bytes, expected: tuple[int, bytes, bytes, bool]
) -> None:
    """In one portion, and byte by byte."""
    for parts in [raw], [raw[n : n + 1] for n in range(len(raw))]:
        status, reason, _, body, again = ours(parts)
        assert (status, reason, body, again) == expected


@pytest.mark.parametrize(
    "raw",
    [
        b"",
        b"SSH-2.0-OpenSSH\r\n",
        b"HTTP/2 200\r\n\r\n",
        b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\nContent-Length: 3\r\n\r\nhi",
        b"HTTP/1.1 200 OK\r\nContent-Length: -1\r\n\r\n",
        b"HTTP/1.1 200 OK\r\nContent-Length: 3\r\n\r\nhi",
        b"HTTP/1.1 200 OK\r\nTransfer-Encoding: gzip, chunked\r\n\r\n0\r\n\r\n",
        b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n",
        b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n2\r\nhi\r\n",
        b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n2\r\nhi!\r\n0\r\n\r\n",
        b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\nz\r\nhi\r\n0\r\n\r\n",
        b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n2\nhi\r\n0\r\n\r\n",
        b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n2;x\nhi\r\n0\r\n\r\n",
        b"HTTP/1.1 200 OK\r\nno colon\r\n\r\n",
        b"HTTP/1.1 200 OK\r\n: no name\r\n\r\n",
        b"HTTP/1.1 101 Switching\r\n\r\n",
    ],
)
def test_invalid_or_incomplete_response_is_refused(raw: bytes) -> None:
    """With no other exception."""
    assert ours([raw] if raw else []) == ("bad",)


@pytest.mark.parametrize(
    "endless",
    [b"HTTP/1.1 200 OK\r\nA: b", b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n1;"],
)
def test_endless_head_is_refused(endless: bytes) -> None:
    """The head of a response, and the head of a chunk."""
    response = Http1Response("POST")
    response.feed(endless)
    for _ in range(MAX_HEAD // 1000):
        response.feed(b"x" * 1000)
    with pytest.raises(BadResponse):
        response.feed(b"x" * 1000)


@pytest.mark.parametrize(("count", "is_refused"), [(_MAX_HEADERS, False), (_MAX_HEADERS + 1, True)])
def test_headers_are_limited_in_number(count: int, is_refused: bool) -> None:
    headers = b"A: b\r\n" * (count - 1) + b"Content-Length: 0\r\n"
    assert (ours([b"HTTP/1.1 200 OK\r\n" + headers + b"\r\n"]) == ("bad",)) is is_refused


@pytest.mark.parametrize(
    "follows",
    [
        b"HTTP/1.1 200 OK\r\nContent-Length: 4\r\n\r\nevil",
        b"HTTP/1.1 101 Now\r\nConnection: upgrade\r\nUpgrade: other\r\n\r\nevil",
        b"\x00",
    ],
)
@pytest.mark.parametrize("head", [b"200 OK\r\nContent-Length: 2\r\n\r\nhi", b"204 No\r\n\r\n"])
def test_data_after_a_response_prevents_reuse(head: bytes, follows: bytes) -> None:
    """The next request must not get a response that was sent before it (RFC 9112, 11.2)."""
    for parts in [b"HTTP/1.1 " + head + follows], [b"HTTP/1.1 " + head, follows]:
        response = Http1Response("POST")
        body = b"".join(part for each in parts for part in response.feed(each))
        assert (body, response.complete, response.reusable) == (head.partition(b"\r\n\r\n")[2], True, False)


def test_endless_interim_responses_are_refused() -> None:
    """They are skipped, but not forever."""
    response = Http1Response("POST")
    interim = b"HTTP/1.1 100 Continue\r\n\r\n"
    for _ in range(MAX_HEAD // len(interim)):
        response.feed(interim)
    with pytest.raises(BadResponse):
        response.feed(interim)


def test_keep_alive_timeout_is_read() -> None:
    """Node and uvicorn close after five seconds; a request sent then would be lost."""
    response = Http1Response("POST")
    response.feed(b"HTTP/1.1 200 OK\r\nKeep-Alive: timeout=5, max=100\r\nContent-Length: 0\r\n\r\n")
    assert response.keep_alive_timeout == 5

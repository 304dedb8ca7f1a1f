"""Reading an HTTP response body: bounded and decompressed in portions.

httpx decompresses whatever arrives at once, so that a few KiB become many MiB before anybody can refuse them.
"""

from __future__ import annotations

import time
import zlib
from collections.abc import Awaitable, Callable, Iterator

import httpx
import trio

from mcpd.model.errors import ProtocolViolation
from mcpd.model.text import shorten
from mcpd.transports.http_client.connection import HttpBody
from mcpd.wire.limits import StructureCounter, TooMuchStructure

_PORTION = 1 << 16
_MAX_TURN = 0.002
"""Seconds of processing before other tasks run."""
_MAX_SHORT_BODY = 1 << 20


class BodyTooLarge(ValueError):
    """A decoded body exceeds its limit."""


async def feed_body(
    response: httpx.Response,
    take: Callable[[bytes], Awaitable[None] | None],
    limit: float,
    portion: int = _PORTION,
) -> None:
    """Pass the decoded body to `take` in portions of at most `portion` bytes until it ends.

    Other tasks run between portions. What `take` returns is awaited before the next portion. Raises
    BodyTooLarge, ProtocolViolation, httpx.TransportError, and what `take` raises.
    """
    decode = _decoder(response, portion)
    size = 0
    assert isinstance(response.stream, httpx.AsyncByteStream)
    turn_ends = time.monotonic() + _MAX_TURN
    async for raw in response.stream:
        for part in decode(raw):
            size += len(part)
            if size > limit:
                raise BodyTooLarge
            if (work := take(part)) is not None:
                await work
            if time.monotonic() > turn_ends:
                await trio.lowlevel.checkpoint()
                turn_ends = time.monotonic() + _MAX_TURN


async def read(response: httpx.Response, limit: int) -> bytes:
    """Return the whole decoded body, and close the response.

    Raises as `feed_body`, and TooMuchStructure.
    """
    body = bytearray()  # a chunk may have one byte, and an object for each would take 40 times as much
    counter = StructureCounter(limit)

    def take(part: bytes) -> None:
        body.extend(part)
        counter.feed(part)

    try:
        await feed_body(response, take, limit)
    finally:
        await close(response)
    return bytes(body)


async def read_short(response: httpx.Response) -> bytes:
    """Return a short body, and close the response. The body is empty if it is too long or cannot be read."""
    try:
        return await read(response, _MAX_SHORT_BODY)
    except (httpx.TransportError, BodyTooLarge, TooMuchStructure, ProtocolViolation):
        return b""


async def close(response: httpx.Response) -> None:
    """Return the connection to the pool, or close it if the body was not read to its end."""
    assert isinstance(response.stream, httpx.AsyncByteStream)
    await response.stream.aclose()  # does not wait


def complete_body(response: httpx.Response) -> bytes | None:
    """Return the body if it has arrived completely and is not compressed."""
    if "content-encoding" in response.headers or not isinstance(response.stream, HttpBody):
        return None
    return response.stream.complete()


def to_one_line(data: bytes) -> bytes:
    """Return a JSON document without line breaks, because a line break ends a message on other channels.

    In valid JSON, they are only between its parts.
    """
    return data.replace(b"\r", b" ").replace(b"\n", b" ") if b"\n" in data else data


def content_type(response: httpx.Response) -> str:
    kind: str = response.headers.get("content-type", "")
    return kind.partition(";")[0].strip().lower()


def _decoder(response: httpx.Response, portion: int) -> Callable[[bytes], Iterator[bytes]]:
    coding = response.headers.get("content-encoding", "identity").strip().lower()
    if coding in ("identity", ""):
        return lambda raw: (raw[start : start + portion] for start in range(0, len(raw), portion))
    if coding not in ("gzip", "x-gzip", "deflate"):
        raise ProtocolViolation(f"it used the encoding {shorten(coding, 40)}, which was not requested")
    inflater = zlib.decompressobj(47)  # gzip or zlib

    def inflate(raw: bytes) -> Iterator[bytes]:
        full = True
        while (raw or full) and not inflater.eof:
            try:
                part = inflater.decompress(raw, portion)
            except zlib.error as error:
                raise ProtocolViolation(f"its compressed response cannot be read: {error}") from None
            raw, full = inflater.unconsumed_tail, len(part) == portion
            yield part

    return inflate

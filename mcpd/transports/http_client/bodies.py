"""Reading an HTTP response body: bounded and decompressed in pieces."""

from __future__ import annotations

import zlib
from collections.abc import Callable, Iterator

import httpx
import msgspec
import trio

from mcpd.model.errors import ProtocolViolation
from mcpd.model.text import shorten
from mcpd.transports.http_client.connection import HttpBody

_INFLATE_SIZE = 1 << 20
"""Maximum bytes decompressed at once: a few KiB may expand to many MiB."""
_MAX_ERROR_BODY = 1 << 20


class BodyTooLarge(ValueError):
    """A decoded body exceeds its limit."""


async def feed_body(response: httpx.Response, take: Callable[[bytes], None], limit: float) -> None:
    """Pass the decoded body to `take` in pieces until it ends. Raises BodyTooLarge, httpx.TransportError.

    What `take` raises passes through. (httpx's own iterators are generators, which must not be abandoned.)
    """
    inflate = _decoder(response)
    size = 0
    assert isinstance(response.stream, httpx.AsyncByteStream)
    async for raw in response.stream:
        for part in inflate(raw):
            size += len(part)
            if size > limit:
                raise BodyTooLarge
            take(part)
            if len(part) == _INFLATE_SIZE:
                await trio.lowlevel.checkpoint()


async def read(response: httpx.Response, limit: int) -> bytes:
    """Return the whole decoded body. Raises BodyTooLarge, httpx.TransportError."""
    parts: list[bytes] = []
    await feed_body(response, parts.append, limit)
    return b"".join(parts)


async def read_error(response: httpx.Response) -> bytes:
    """Return the body of an error response; empty if it is too long or cannot be read."""
    try:
        return await read(response, _MAX_ERROR_BODY)
    except (httpx.TransportError, BodyTooLarge, ProtocolViolation):
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
    """Return a JSON document without line breaks, because a line break ends a message on other channels."""
    if b"\n" not in data:
        return data
    try:
        return msgspec.json.format(data, indent=-1)
    except (msgspec.MsgspecError, RecursionError):
        return data.replace(b"\r", b" ").replace(b"\n", b" ")  # invalid JSON, or whitespace between its parts


def content_type(response: httpx.Response) -> str:
    kind: str = response.headers.get("content-type", "")
    return kind.partition(";")[0].strip().lower()


def _decoder(response: httpx.Response) -> Callable[[bytes], Iterator[bytes]]:
    coding = response.headers.get("content-encoding", "identity").strip().lower()
    if coding in ("identity", ""):
        return lambda raw: iter((raw,))
    if coding not in ("gzip", "x-gzip", "deflate"):
        raise ProtocolViolation(f"it used the encoding {shorten(coding, 40)}, which was not requested")
    inflater = zlib.decompressobj(47)  # gzip or zlib

    def inflate(raw: bytes) -> Iterator[bytes]:
        full = True
        while (raw or full) and not inflater.eof:
            try:
                part = inflater.decompress(raw, _INFLATE_SIZE)
            except zlib.error as error:
                raise ProtocolViolation(f"its compressed response cannot be read: {error}") from None
            raw, full = inflater.unconsumed_tail, len(part) == _INFLATE_SIZE
            yield part

    return inflate

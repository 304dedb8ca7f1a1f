"""The body of an HTTP response: read within a bound, inflated portion by portion, given back."""

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
"""What is inflated at once: a portion of a few KiB may hold many MiB."""
_MAX_ERROR_BODY = 1 << 20


class BodyTooLarge(ValueError):
    """A body passed its limit, decoded."""


async def feed_body(response: httpx.Response, take: Callable[[bytes], None], limit: float) -> None:
    """Give `take` the decoded body as it comes, until it ends. Raises BodyTooLong, httpx.TransportError.

    What `take` raises passes through. (httpx's own iterators are generators, which do not like to be left
    early; the stream beneath is none.)
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
    """The whole decoded body. Raises BodyTooLong, httpx.TransportError."""
    parts: list[bytes] = []
    await feed_body(response, parts.append, limit)
    return b"".join(parts)


async def read_error(response: httpx.Response) -> bytes:
    """The body of a refusal; empty when it is too long or cannot be had."""
    try:
        return await read(response, _MAX_ERROR_BODY)
    except (httpx.TransportError, BodyTooLarge, ProtocolViolation):
        return b""


async def close(response: httpx.Response) -> None:
    """Give the connection back, or up when its body was not read."""
    assert isinstance(response.stream, httpx.AsyncByteStream)
    await response.stream.aclose()  # does not wait


def complete_body(response: httpx.Response) -> bytes | None:
    """The body, when all of it is there and it is not compressed: nobody need wait for it."""
    if "content-encoding" in response.headers or not isinstance(response.stream, HttpBody):
        return None
    return response.stream.complete()


def to_one_line(data: bytes) -> bytes:
    """A document without line breaks: it may go on over a channel where each ends a message."""
    if b"\n" not in data:
        return data
    try:
        return msgspec.json.format(data, indent=-1)
    except (msgspec.MsgspecError, RecursionError):
        return data.replace(b"\r", b" ").replace(b"\n", b" ")  # no JSON then, or space between its parts


def content_type(response: httpx.Response) -> str:
    kind: str = response.headers.get("content-type", "")
    return kind.partition(";")[0].strip().lower()


def _decoder(response: httpx.Response) -> Callable[[bytes], Iterator[bytes]]:
    coding = response.headers.get("content-encoding", "identity").strip().lower()
    if coding in ("identity", ""):
        return lambda raw: iter((raw,))
    if coding not in ("gzip", "x-gzip", "deflate"):
        raise ProtocolViolation(f"it answered in the encoding {shorten(coding, 40)}, which was not asked for")
    inflater = zlib.decompressobj(47)  # gzip or zlib, whichever it is

    def inflate(raw: bytes) -> Iterator[bytes]:
        full = True
        while (raw or full) and not inflater.eof:
            try:
                part = inflater.decompress(raw, _INFLATE_SIZE)
            except zlib.error as error:
                raise ProtocolViolation(f"its compressed answer cannot be read: {error}") from None
            raw, full = inflater.unconsumed_tail, len(part) == _INFLATE_SIZE
            yield part

    return inflate

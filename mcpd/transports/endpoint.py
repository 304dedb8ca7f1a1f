"""One HTTP request to a server: which redirects are followed, how much of a body is read, what went wrong."""

from __future__ import annotations

import email.utils
import os
import ssl
import time
import zlib
from collections.abc import Callable, Iterator, Mapping
from urllib.parse import urljoin

import httpx
import msgspec
import trio

from mcpd.model.errors import HttpRefused, LinkLost, McpdError, NeedsAuth, ProtocolViolation, shorten
from mcpd.transports.dial import CONNECT_TIMEOUT
from mcpd.transports.engine import Body, HangUp, Then
from mcpd.transports.pool import Client
from mcpd.wire.url import bare, origin

_REDIRECTS = 3
_REDIRECTING = frozenset((301, 302, 303, 307, 308))
_PORTION = 1 << 20
"""What is inflated at once: a portion of a few KiB may hold many MiB."""
_ERROR_BODY = 1 << 20
LONGEST_RETRY_AFTER = 3600.0


class BodyTooLong(ValueError):
    """A body passed its limit, decoded."""


class Endpoint:
    """Where a server listens. `url` moves when the server says so, within its own origin only."""

    def __init__(self, name: str, client: Client, url: str) -> None:
        self.name = name
        self.url = url
        self._client = client

    async def send(
        self, method: str, headers: Mapping[str, str], content: bytes | None = None
    ) -> httpx.Response:
        """The response, its body unread: `discard` it or `read` it, then close it.

        Method and content survive a redirect (307, 308) within the origin; no other is followed, so
        that no header of ours ever reaches another origin. Raises httpx.TransportError, HttpRefused.
        """
        response = await self._client.send(method, self.url, headers, content)
        return await self.arrived(response, method, headers, content)

    def begin(self, method: str, headers: Mapping[str, str], content: bytes, then: Then) -> HangUp | None:
        """Send at once, if that can be, and have `then` called; see `Engine.begin`. A response that `then` is
        given has to go through `arrived`, unless it is a success."""
        return self._client.begin(method, self.url, headers, content, then)

    async def arrived(
        self, response: httpx.Response, method: str, headers: Mapping[str, str], content: bytes | None
    ) -> httpx.Response:
        """The response to go by: this one, or the one it redirects to. Raises as `send`."""
        for _ in range(_REDIRECTS):
            if response.status_code not in _REDIRECTING:
                return response
            location = response.headers.get("location")
            if not location:
                return response
            await close(response)
            target = urljoin(self.url, location)
            if origin(target) != origin(self.url) or response.status_code not in (307, 308):
                raise HttpRefused(
                    f"{self.name}: HTTP {response.status_code}, it redirects to {shorten(bare(target))}; "
                    "nothing was sent there: if that is the right server, put its URL into the definition",
                    server=self.name,
                    status=response.status_code,
                )
            self.url = target
            response = await self._client.send(method, self.url, headers, content)
        await close(response)
        raise HttpRefused(
            f"{self.name}: more than {_REDIRECTS} redirects in a row", server=self.name, status=310
        )

    def refusal(self, response: httpx.Response, body: bytes = b"") -> McpdError:
        """The error for a status that is no success; nothing of the body but a few words is quoted."""
        status = response.status_code
        said = f"HTTP {status}" + (f" {response.reason_phrase}" if response.reason_phrase else "")
        if status in (401, 403):
            challenge = response.headers.get("www-authenticate", "")
            given = self._client.has_credentials
            advice = (
                "it refuses the `Authorization` header in the definition"
                if given
                else "put an `Authorization` header into `headers` of its definition, or log in"
            )
            return NeedsAuth(
                f"{self.name}: {said}: {advice}", server=self.name, status=status, challenge=challenge
            )
        words = "" if "html" in response.headers.get("content-type", "") else shorten(body.strip())
        if words == response.reason_phrase:  # which is what many frameworks say by themselves
            words = ""
        return HttpRefused(
            f"{self.name}: {said}" + (f": {words}" if words else ""),
            server=self.name,
            status=status,
            retry_after=_retry_after(response.headers.get("retry-after", "")),
        )

    def lost(self, error: Exception, what: str) -> LinkLost:
        """What a failed request means to whoever asked for `what`."""
        return LinkLost(
            f"{self.name}: {explain(error)}; {what} was not answered",
            server=self.name,
            may_have_run=not unsent(error),
        )


def unsent(error: Exception) -> bool:
    """Whether a request surely never left."""
    return isinstance(error, httpx.ConnectError | httpx.ConnectTimeout | httpx.ProxyError | httpx.PoolTimeout)


def explain(error: Exception) -> str:
    """A transport's error in words that help."""
    if isinstance(error, httpx.ConnectTimeout):
        return f"it cannot be reached: no connection within {CONNECT_TIMEOUT:g} s"
    reason = _reason([cause for cause in _causes(error) if isinstance(cause, OSError)])
    if isinstance(error, httpx.ProxyError):  # which names the proxy
        return f"it cannot be reached: {shorten(str(error))}" + (f": {reason}" if reason else "")
    for cause in _causes(error):
        if isinstance(cause, ssl.SSLCertVerificationError):
            return (
                f"its TLS certificate is refused: {cause.verify_message} "
                "(a private authority goes into `caFile` of its definition)"
            )
        if isinstance(cause, ssl.SSLError):
            return f"TLS failed: {cause.reason or cause}"
    if isinstance(error, httpx.ConnectError):
        return f"it cannot be reached: {shorten(reason or str(error) or 'connecting failed')}"
    return f"the connection broke: {shorten(reason or str(error) or type(error).__name__)}"


def _reason(errors: list[OSError]) -> str:
    """The system's own words for the innermost of them: others' are full of addresses nobody has written."""
    for error in reversed(errors):
        if error.errno is not None and error.errno > 0:
            return os.strerror(error.errno)
    return next((error.strerror for error in reversed(errors) if error.strerror), "")


def _causes(error: BaseException) -> Iterator[BaseException]:
    seen: list[BaseException] = [error]
    while seen and len(seen) < 20:
        cause = seen.pop()
        yield cause
        if isinstance(cause, BaseExceptionGroup):
            seen += cause.exceptions
        following = cause.__cause__ or cause.__context__
        if following is not None:
            seen.append(following)


async def pump(response: httpx.Response, take: Callable[[bytes], None], limit: float) -> None:
    """Give `take` the decoded body as it comes, until it ends. Raises BodyTooLong, httpx.TransportError.

    What `take` raises passes through. (httpx's own iterators are generators, which do not like to be left
    early; the stream beneath is none.)
    """
    inflate = _decoding(response)
    size = 0
    assert isinstance(response.stream, httpx.AsyncByteStream)
    async for raw in response.stream:
        for part in inflate(raw):
            size += len(part)
            if size > limit:
                raise BodyTooLong
            take(part)
            if len(part) == _PORTION:
                await trio.lowlevel.checkpoint()


async def read(response: httpx.Response, limit: int) -> bytes:
    """The whole decoded body. Raises BodyTooLong, httpx.TransportError."""
    parts: list[bytes] = []
    await pump(response, parts.append, limit)
    return b"".join(parts)


async def read_error(response: httpx.Response) -> bytes:
    """The body of a refusal; empty when it is too long or cannot be had."""
    try:
        return await read(response, _ERROR_BODY)
    except (httpx.TransportError, BodyTooLong, ProtocolViolation):
        return b""


async def close(response: httpx.Response) -> None:
    """Give the connection back, or up when its body was not read."""
    assert isinstance(response.stream, httpx.AsyncByteStream)
    await response.stream.aclose()  # does not wait


def whole(response: httpx.Response) -> bytes | None:
    """The body, when all of it is there and it is not compressed: nobody need wait for it."""
    if "content-encoding" in response.headers or not isinstance(response.stream, Body):
        return None
    return response.stream.whole()


def one_line(data: bytes) -> bytes:
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


def _decoding(response: httpx.Response) -> Callable[[bytes], Iterator[bytes]]:
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
                part = inflater.decompress(raw, _PORTION)
            except zlib.error as error:
                raise ProtocolViolation(f"its compressed answer cannot be read: {error}") from None
            raw, full = inflater.unconsumed_tail, len(part) == _PORTION
            yield part

    return inflate


def _retry_after(value: str) -> float | None:
    """Seconds, of either spelling of the header."""
    if value.strip().isdigit():
        return min(float(value[:10]), LONGEST_RETRY_AFTER)
    moment = email.utils.parsedate_tz(value)
    if moment is None:
        return None
    return min(max(0.0, email.utils.mktime_tz(moment) - time.time()), LONGEST_RETRY_AFTER)

"""Requests to URLs that strangers named: to metadata, and to token endpoints.

https except to this machine; a public server cannot make mcpd connect to private addresses, also not by a
name that resolves to another address a moment later; at most 1 MiB and 10 seconds; redirects only for
metadata, only within the origin, and at most three; and a limit for the whole chain.
"""

from __future__ import annotations

import ipaddress
import socket
import time
from collections.abc import Callable, Iterable, Mapping
from contextlib import suppress
from urllib.parse import urlsplit

import attrs
import httpx
import trio

from mcpd.auth.keys import DpopKey
from mcpd.auth.oauth.documents import MAX_BYTES, quote
from mcpd.auth.oauth.tokens import TokenError, TokenRequest, TokenSet, parse_token_answer
from mcpd.auth.oauth.urls import (
    http_url,
    is_usable,
)
from mcpd.model.errors import ProtocolViolation
from mcpd.privacy.redact import Redactor
from mcpd.transports.child_process import CannotStart
from mcpd.transports.http_client import bodies, dial
from mcpd.transports.http_client.client_factory import open_client, proxy_for
from mcpd.transports.http_client.connection import describe_error, is_invalid, is_unreachable
from mcpd.transports.http_client.redirects_and_refusals import parse_retry_after
from mcpd.wire.url import is_loopback, redact_url, resolve_same_origin

METADATA_TIMEOUT = 10.0
"""Seconds for one request of the discovery."""
TOKEN_TIMEOUT = 30.0
"""Seconds for a request that issues something, which is never repeated carelessly."""
MAX_REQUESTS = 16
"""Requests of one discovery, with all redirects."""
_MAX_REDIRECTS = 3
_REDIRECTING = frozenset((301, 302, 303, 307, 308))
_UNICAST = ipaddress.IPv6Network("2000::/3")
"""The IPv6 addresses of the Internet (RFC 4291, 2.4)."""
_NAT64 = ipaddress.IPv6Network("64:ff9b::/96")

OnRequest = Callable[[str, str, str, float], None]
"""Called after each request: method, URL without query, outcome, seconds."""


class FetchError(Exception):
    """A request that has no answer. The message is safe to show."""

    def __init__(self, message: str, *, is_forbidden: bool = False, may_have_arrived: bool = False) -> None:
        super().__init__(message)
        self.message = message
        self.is_forbidden = is_forbidden
        """Whether a guard refused it, so that trying again is pointless."""
        self.may_have_arrived = may_have_arrived
        """Whether the server may have received and executed the request."""


@attrs.frozen
class FetchedAnswer:
    """A whole response."""

    status: int
    body: bytes = attrs.field(repr=False)
    headers: httpx.Headers = attrs.field(factory=httpx.Headers, repr=False)

    @property
    def content_type(self) -> str:
        return str(self.headers.get("content-type", ""))

    @property
    def retry_after(self) -> float | None:
        """Seconds that the server asked to wait."""
        return parse_retry_after(self.headers.get("retry-after", ""))


class _ForbiddenAddress(OSError):
    """A guard against requests to this machine and its network."""


@attrs.define(eq=False)
class GuardedFetch:
    """Sends the requests of one chain that began at the MCP server `server_url`. Holds no connection."""

    server_url: str
    environ: Mapping[str, str] = attrs.field(repr=False)
    ca_file: str | None = None
    on_request: OnRequest | None = None
    _left: int = MAX_REQUESTS
    _is_private: bool | None = None
    """Whether the MCP server itself is on a private address; None until it was looked up."""

    async def get(self, url: str, headers: Mapping[str, str] | None = None) -> FetchedAnswer:
        """Return the answer to a GET, after redirects within the origin. Raises FetchError."""
        for _ in range(_MAX_REDIRECTS + 1):
            answer = await self._send("GET", url, headers or {}, None, METADATA_TIMEOUT)
            if answer.status not in _REDIRECTING:
                return answer
            location = answer.headers.get("location", "")
            target = resolve_same_origin(url, location) if location else None
            if target is None:
                where = redact_url(location, url)
                message = f"it redirects to {quote(where)}, which is not followed"
                raise FetchError(message, is_forbidden=True)
            url = target
        raise FetchError(f"more than {_MAX_REDIRECTS} redirects in a row", is_forbidden=True)

    async def post(self, request: TokenRequest) -> FetchedAnswer:
        """Return the answer to a request that issues something. Redirects are answers. Raises FetchError."""
        return await self._send("POST", request.url, request.headers, request.body, TOKEN_TIMEOUT)

    async def probe(self, headers: Mapping[str, str]) -> FetchedAnswer:
        """Return how the MCP server itself answers a GET; of the body only what is short."""
        return await self._send("GET", http_url(self.server_url), headers, None, METADATA_TIMEOUT)

    async def _send(
        self, method: str, url: str, headers: Mapping[str, str], body: bytes | None, limit: float
    ) -> FetchedAnswer:
        began = time.perf_counter()
        outcome = "no answer"
        try:
            answer = await self._guarded(method, url, headers, body, limit)
            outcome = f"HTTP {answer.status}"
            return answer
        except FetchError as error:
            outcome = error.message
            raise
        finally:
            if self.on_request is not None:
                self.on_request(method, redact_url(url), outcome, time.perf_counter() - began)

    async def _guarded(
        self, method: str, url: str, headers: Mapping[str, str], body: bytes | None, limit: float
    ) -> FetchedAnswer:
        is_server = url == http_url(self.server_url)
        if not is_server and not is_usable(url):
            message = f"{quote(redact_url(url))} is not an https URL, so nothing was sent to it"
            raise FetchError(message, is_forbidden=True)
        if self._left <= 0:
            message = f"more than {MAX_REQUESTS} requests for one login"
            raise FetchError(message, is_forbidden=True)
        self._left -= 1
        sent = False
        try:
            with trio.fail_after(limit):
                permit = None if is_server else await self._permit(url)
                async with open_client(
                    url, headers, self.environ, ca_file=self.ca_file, permit=permit
                ) as client:
                    sent = True
                    response = await client.send(method, url, {"Accept": "application/json"}, body)
                    content = await self._read(response)
                    return FetchedAnswer(response.status_code, content, response.headers)
        except trio.TooSlowError:
            raise FetchError(f"no answer within {limit:g} s", may_have_arrived=sent) from None
        except (httpx.TransportError, CannotStart) as error:
            raise _describe(error) from None
        except OSError as error:
            refused = isinstance(error, _ForbiddenAddress)
            raise FetchError(error.strerror or str(error), is_forbidden=refused) from None
        except UnicodeError:
            message = f"{quote(_host(url))} is not a valid host name"
            raise FetchError(message, is_forbidden=True) from None
        except bodies.BodyTooLarge:
            message = f"its answer has more than {MAX_BYTES} bytes"
            raise FetchError(message, may_have_arrived=True) from None
        except ProtocolViolation as error:
            raise FetchError(error.message, may_have_arrived=True) from None

    async def _read(self, response: httpx.Response) -> bytes:
        if bodies.content_type(response) == "text/event-stream":  # the stream of a server without login
            await bodies.close(response)
            return b""
        return await bodies.read(response, MAX_BYTES)

    async def _permit(self, url: str) -> dial.CheckAddress | None:
        """Return a check for the addresses of `url`. Raises OSError."""
        host = _host(url)
        if self._is_private is None:
            self._is_private = await self._look_up_server()
        may_be_private = self._is_private and (is_loopback(host) or _is_related(host, self.server_url))
        if may_be_private:
            return None
        if is_loopback(host):
            raise _forbidden(host)  # plain HTTP to this machine does not look up anything

        def permit(address: str) -> None:
            if not is_public(address):
                raise _forbidden(host)

        if proxy_for(url, self.environ) is not None and (address := _address(host)):
            permit(address)
        return permit

    async def _look_up_server(self) -> bool:
        host = _host(self.server_url)
        if is_loopback(host):
            return True
        if address := _address(host):
            return not is_public(address)
        if proxy_for(http_url(self.server_url), self.environ) is not None:
            return False
        return not all(map(is_public, await dial.look_up(host)))


async def request_tokens(
    fetch: GuardedFetch,
    request: TokenRequest,
    *,
    requested: Iterable[str] | None,
    key: DpopKey | None = None,
    is_exchange: bool = False,
    now: Callable[[], float] = time.time,
) -> TokenSet:
    """Send a token request and return the tokens. Raises FetchError without an answer, and TokenError.

    With `key`, the tokens are bound to it. `is_exchange`: see `parse_token_answer`.
    """
    sent_at = now()
    answer = await post_with_proof(fetch, request, key)
    try:
        return parse_token_answer(
            answer.status,
            answer.body,
            sent_at=sent_at,
            content_type=answer.content_type,
            requested=requested,
            is_exchange=is_exchange,
        )
    except TokenError as error:  # its words are the server's, which may repeat what it got
        redactor = Redactor()
        redactor.add(request.secrets())
        error.message, error.error = redactor.mask(error.message), redactor.mask(error.error)
        error.args = (error.message,)
        raise


async def post_with_proof(fetch: GuardedFetch, request: TokenRequest, key: DpopKey | None) -> FetchedAnswer:
    """Send a token request, with a proof of `key` if there is one (RFC 9449, 5). Raises FetchError.

    A server that wants a nonce in the proof has done nothing yet, so the request is sent once more (8).
    """
    if key is None:
        return await fetch.post(request)
    answer = await fetch.post(_with_proof(request, key))
    is_new = key.take_nonce(request.url, answer.headers.get("dpop-nonce"))
    if is_new and answer.status in (400, 401) and b"use_dpop_nonce" in answer.body:
        answer = await fetch.post(_with_proof(request, key))
    return answer


def _with_proof(request: TokenRequest, key: DpopKey) -> TokenRequest:
    return attrs.evolve(request, headers={**request.headers, "DPoP": key.proof("POST", request.url)})


def is_public(address: str) -> bool:
    """Return whether an IP address belongs to the Internet, and not to this machine or its network."""
    try:
        found = ipaddress.ip_address(address.partition("%")[0])
    except ValueError:
        return False
    if isinstance(found, ipaddress.IPv6Address):
        inner = found.ipv4_mapped or found.sixtofour
        if inner is None and found in _NAT64:
            inner = ipaddress.IPv4Address(int(found) & 0xFFFF_FFFF)
        if inner is not None:
            return is_public(str(inner))
        if found not in _UNICAST:
            return False  # such as the many other ways to write an IPv4 address
    return found.is_global and not found.is_multicast


def _forbidden(host: str) -> _ForbiddenAddress:
    message = f"{quote(host)} has a private address, but the MCP server is on the Internet; nothing was sent"
    return _ForbiddenAddress(0, message)


def _describe(error: Exception) -> FetchError:
    if isinstance(error, CannotStart):
        return FetchError(str(error))
    cause: BaseException | None = error
    while cause is not None:
        if isinstance(cause, _ForbiddenAddress):
            return FetchError(cause.strerror or str(cause), is_forbidden=True)
        cause = cause.__cause__ or cause.__context__
    arrived = not (is_unreachable(error) or is_invalid(error))
    return FetchError(describe_error(error), may_have_arrived=arrived)


def _host(url: str) -> str:
    return (urlsplit(url).hostname or "").lower()


def _address(host: str) -> str:
    """Return the IP address that a host is, also for `127.1` and `0x7f000001`; empty for a name."""
    with suppress(ValueError):
        return str(ipaddress.ip_address(host))
    with suppress(OSError):
        return socket.inet_ntoa(socket.inet_aton(host))
    return ""


def _is_related(host: str, server_url: str) -> bool:
    """Return whether two hosts have the same name under a registry, such as `sso.corp.example`."""
    own = _host(server_url)
    if host == own or _address(host) or _address(own):
        return host == own
    return len(own.split(".")) > 1 and host.split(".")[-2:] == own.split(".")[-2:]

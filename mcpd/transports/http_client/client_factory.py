"""The only place that creates HTTP clients: one per server.

httpx sends everything that crosses a network, and knows URLs, headers, cookies, and proxies. Plain HTTP to
this machine is sent by `ConnectionPool`, because httpx would take most of the time of such a call.
"""

from __future__ import annotations

import base64
import functools
import logging
import math
import os
import ssl
import time
import urllib.request
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from contextlib import asynccontextmanager
from email.message import Message
from http.cookiejar import Cookie, CookieJar, DefaultCookiePolicy
from types import MappingProxyType, SimpleNamespace
from typing import Protocol
from urllib.parse import unquote, urlsplit

import httpx
import trio

from mcpd.files.regular import read_regular_file
from mcpd.model.server_spec import RemoteSpec
from mcpd.model.text import shorten
from mcpd.transports.child_process import CannotStart
from mcpd.transports.credentials import (
    FORBIDDEN,
    UNAUTHORIZED,
    UNSIGNED,
    Credentials,
    Signature,
    signature_for,
)
from mcpd.transports.http_client.connection import Abort, OnOutcome
from mcpd.transports.http_client.connection_pool import ConnectionPool, serialize_head
from mcpd.transports.http_client.dial import CheckAddress
from mcpd.wire.url import is_loopback

logging.getLogger("httpx").setLevel(logging.WARNING)  # a line for each request, with the whole URL

OnResponse = Callable[[httpx.Request, httpx.Response, float], None]
"""Called for each request when the head of its response has arrived, with the seconds in between."""

_MAX_PREPARED = 256
"""Sets of headers; they differ by tool and by mirrored arguments."""
_MAX_CA_FILE = 1024 * 1024
"""Bytes of a `caFile`, which the event loop parses; those of operating systems have about 220 KB."""
_CA_BUNDLES = (
    "/etc/ssl/certs/ca-certificates.crt",
    "/etc/pki/ca-trust/extracted/pem/tls-ca-bundle.pem",
    "/etc/pki/tls/certs/ca-bundle.crt",
    "/etc/ssl/ca-bundle.pem",
    "/etc/ssl/cert.pem",
)
"""Where distributions keep CA certificates; a Python built elsewhere does not look there."""


RenewSecrets = Callable[[], Awaitable[RemoteSpec | None]]
"""Returns the definition with the secrets of now; None if those are the same as before."""
RENEWAL_INTERVAL = 5.0
"""Seconds after the secrets were found to be the same, before they are looked up again."""

SIGNATURE = "mcpd_signature"
"""The extension of a response with HTTP 401 or 403 that contains the `Signature` of its request."""


class HttpClient:
    """Sends requests to one origin: on `loopback` if it is given, otherwise with httpx."""

    def __init__(
        self,
        client: httpx.AsyncClient,
        url: httpx.URL,
        loopback: ConnectionPool | None,
        watch: OnResponse | None = None,
        credentials: Credentials | None = None,
        own: Mapping[str, str] = MappingProxyType({}),
        renew: RenewSecrets | None = None,
    ) -> None:
        """`own`: the headers of the definition."""
        self.credentials = credentials
        """Signs every request; None if the definition contains an `Authorization` header."""
        self.url = str(url)
        """That of the definition."""
        self.former_url = ""
        """The same with a secret that was replaced since."""
        self._own, self._renew = own, renew
        self._renewing = trio.Lock()
        self._renewed_at = -math.inf
        """When the headers of the definition were last found to be the same (`trio.current_time()`)."""
        self._client = client
        self._origin = _origin(url)
        self._loopback = loopback
        self._watch = watch
        self._prepared: dict[tuple[str, ...], tuple[httpx.Request, bytes]] = {}
        """Requests on `loopback` without body and length, and their serialized heads."""

    @property
    def has_own_header(self) -> bool:
        """Whether the definition contains an `Authorization` header, or a user in its URL."""
        return "authorization" in self._client.headers

    @property
    def has_secrets(self) -> bool:
        """Whether a secret of the definition is sent with each request, as far as known."""
        return self._renew is not None and (bool(self._own) or "?" in self.url)

    async def has_newer_secrets(self, refused: httpx.Request) -> bool:
        """Return whether the definition has other headers or another URL now than this request, which was
        refused.

        Its secrets are looked up again for that, once for all requests that were refused meanwhile.
        """
        if self._renew is None:
            return False
        async with self._renewing:
            if self._is_current(refused) and trio.current_time() - self._renewed_at >= RENEWAL_INTERVAL:
                if (spec := await self._renew()) is None:
                    self._renewed_at = trio.current_time()
                else:
                    if (url := str(httpx.URL(spec.url))) != self.url:
                        self.url, self.former_url = url, self.url
                    self._own = _strip(spec.headers)
                    self._client.headers.update(self._own)
                    self._prepared.clear()
            return not self._is_current(refused)

    def _is_current(self, request: httpx.Request) -> bool:
        has_headers = all(request.headers.get(name) == value for name, value in self._own.items())
        return has_headers and str(request.url) != self.former_url

    async def send(
        self, method: str, url: str, headers: Mapping[str, str], content: bytes | None = None
    ) -> httpx.Response:
        """Return the response with its body unread; the caller closes it.

        Raises httpx.TransportError, and McpdError as `Credentials.sign_when_ready` does.
        """
        signature = await signature_for(self.credentials, method, url)
        began = time.perf_counter()
        if self._loopback is None:
            request = self._build_request(method, url, headers, content)
            request.headers.update(signature.headers)
            response = await self._client.send(request, stream=True)
            response.stream = response.extensions["body"]
        else:
            request, head = self._prepare(method, url, headers)
            response = await self._loopback.send(method, head + signature.lines, content or b"")
        return self._observe(request, response, began, signature)

    def send_with_callback(
        self, method: str, url: str, headers: Mapping[str, str], content: bytes, then: OnOutcome
    ) -> Abort | None:
        """See `ConnectionPool.send_with_callback`. None if requests cross a network or must wait for a token.

        Raises httpx.TransportError with nothing sent.
        """
        if self._loopback is None:
            return None
        began = time.perf_counter()
        request, head = self._prepare(method, url, headers)
        found = UNSIGNED if self.credentials is None else self.credentials.sign(method, url)
        if found is None:
            return None
        signature = found

        def heard(outcome: httpx.Response | httpx.TransportError) -> None:
            if isinstance(outcome, httpx.Response):
                outcome = self._observe(request, outcome, began, signature)
            then(outcome)

        return self._loopback.send_with_callback(method, head + signature.lines, content, heard)

    async def watch_idle(self, is_busy: Callable[[], bool]) -> httpx.TransportError | None:
        """See `ConnectionPool.watch_idle`. Returns None immediately if requests cross a network."""
        return None if self._loopback is None else await self._loopback.watch_idle(is_busy)

    def _build_request(
        self, method: str, url: str, headers: Mapping[str, str], content: bytes | None = None
    ) -> httpx.Request:
        try:
            request = self._client.build_request(method, url, headers=headers, content=content)
        except httpx.InvalidURL as error:
            raise httpx.UnsupportedProtocol(f"its URL is invalid: {shorten(str(error))}") from None
        if _origin(request.url) != self._origin:
            raise httpx.UnsupportedProtocol("the request is for another origin", request=request)
        return request

    def _prepare(self, method: str, url: str, headers: Mapping[str, str]) -> tuple[httpx.Request, bytes]:
        key = (method, url, *headers, *headers.values())
        found = self._prepared.get(key)
        if found is None:
            request = self._build_request(method, url, headers)
            request.headers.pop("content-length", None)  # the pool adds it for the actual body
            if len(self._prepared) >= _MAX_PREPARED:
                self._prepared.clear()
            found = self._prepared[key] = request, serialize_head(request)
        return found

    def _observe(
        self, request: httpx.Request, response: httpx.Response, began: float, signature: Signature
    ) -> httpx.Response:
        if response.status_code in (UNAUTHORIZED, FORBIDDEN):
            response.extensions[SIGNATURE] = signature
            response.request = request
        elif response.status_code < 300:
            signature.token.was_accepted = True
        if self._watch is not None:
            self._watch(request, response, time.perf_counter() - began)
        if self._loopback is not None and "set-cookie" in response.headers:
            response.request = request
            self._client.cookies.extract_cookies(response)
            self._prepared.clear()
        return response


@asynccontextmanager
async def open_client(
    url: str,
    headers: Mapping[str, str],
    environ: Mapping[str, str],
    ca_file: str | None = None,
    watch: OnResponse | None = None,
    credentials: Credentials | None = None,
    permit: CheckAddress | None = None,
    renew_secrets: RenewSecrets | None = None,
) -> AsyncIterator[HttpClient]:
    """Open a client for the server at `url`; leaving the block closes its connections.

    `headers` go with every request, as do user and password in `url`. Proxies are taken from `environ`.
    `watch` is called for every request. `credentials` sign every request, unless the definition contains an
    `Authorization` header. `permit` is called as in `dial.open_tcp`. `renew_secrets`: if `url` or `headers`
    contain secrets. Responses have no time limit: the caller sets it. Raises CannotStart if `url`, `ca_file`
    or the proxy is unusable.
    """
    target = parse_url(url)
    given = _strip(headers)
    fixed = httpx.Headers({"User-Agent": "mcpd", "Accept-Encoding": "gzip, deflate", **given})
    if target.userinfo and "authorization" not in fixed:
        user_and_password = base64.b64encode(unquote(target.userinfo.decode()).encode())
        fixed["Authorization"] = f"Basic {user_and_password.decode()}"
    loopback, transport = None, httpx.AsyncBaseTransport()
    if target.scheme == "http" and is_loopback(target.host):
        loopback = ConnectionPool(target)
    else:
        from mcpd.transports.http_client.network_transport import NetworkTransport

        context = ssl_context(ca_file) if target.scheme == "https" else None
        transport = NetworkTransport(context, _proxy(url, environ), permit)
    client = httpx.AsyncClient(
        transport=transport,
        headers=fixed,
        cookies=make_cookie_jar(),
        auth=httpx.Auth(),  # user and password of the URL are in `fixed`
        timeout=None,  # noqa: S113 - `NetworkTransport` and the caller set limits
        follow_redirects=False,  # `HttpEndpoint` does
        trust_env=False,  # proxies come from `environ`; .netrc must not be used
    )
    async with client:
        try:
            own = "authorization" in fixed
            yield HttpClient(
                client, target, loopback, watch, None if own else credentials, given, renew_secrets
            )
        finally:
            if loopback is not None:
                loopback.close()


def _strip(headers: Mapping[str, str]) -> dict[str, str]:
    """Remove what is not part of the values (RFC 9110, 5.5)."""
    return {name: value.strip(" \t") for name, value in headers.items()}


def parse_url(url: str) -> httpx.URL:
    """Raises CannotStart if the URL is invalid, without quoting it."""
    try:
        return httpx.URL(url)
    except httpx.InvalidURL as error:
        raise CannotStart(
            f"its URL is invalid: {shorten(str(error))} (see `url` in its definition)"
        ) from None


def _origin(url: httpx.URL) -> tuple[bytes, bytes, int | None]:
    return url.raw_scheme, url.raw_host, url.port


def ssl_context(ca_file: str | None = None) -> ssl.SSLContext:
    """Return a context that verifies certificates, trusting `ca_file` (PEM) in addition to the system's CAs.

    Raises CannotStart if the file is unusable. Contexts are shared and rebuilt when a file changes, because
    loading the system's CAs blocks for 24 ms and takes 0.8 MB.
    """
    system = ssl.get_default_verify_paths()
    found = None
    if system.cafile is None and system.capath is None:
        found = next(filter(os.path.isfile, _CA_BUNDLES), None)
    files = (system.cafile, system.capath, found, ca_file)
    return _make_context(found, ca_file, tuple((path, _file_version(path)) for path in files))


@functools.lru_cache(maxsize=16)
def _make_context(found: str | None, ca_file: str | None, files: object) -> ssl.SSLContext:
    """`found`: a CA bundle that Python does not know. `files`: all files with versions, as the cache key."""
    context = ssl.create_default_context()
    if found is not None:
        context.load_verify_locations(found)
    if ca_file is not None:
        try:
            # OpenSSL would wait for a writer if the file were a FIFO, and the daemon with it.
            data = read_regular_file(ca_file, _MAX_CA_FILE)
            context.load_verify_locations(cadata=data.decode("ascii", "ignore"))  # comments may have umlauts
        except ValueError:
            raise CannotStart(f"the CA file {ca_file} is unusable: it is empty") from None
        except OSError as error:  # SSLError is one
            raise CannotStart(f"the CA file {ca_file} is unusable: {error.strerror or error}") from None
    return context


def _file_version(path: str | None) -> tuple[int, int, int] | None:
    """A value that changes when a file or directory is written or replaced."""
    try:
        found = os.stat(path) if path is not None else None
    except OSError:
        return None
    return None if found is None else (found.st_ino, found.st_mtime_ns, found.st_size)


def proxy_for(url: str, environ: Mapping[str, str]) -> str | None:
    """Return the proxy that the environment names for `url`; always None for loopback addresses."""
    parts = urlsplit(url)
    host = parts.hostname or ""
    if is_loopback(host):
        return None
    named = {name.lower(): value for name, value in environ.items() if value}
    bypass = urllib.request.proxy_bypass_environment  # type: ignore[attr-defined]  # typeshed has it not
    if bypass(host, {"no": named.get("no_proxy", "")}):
        return None
    found = named.get(f"{parts.scheme}_proxy") or named.get("all_proxy")
    if not found:
        return None
    return found if "://" in found else f"http://{found}"


def _proxy(url: str, environ: Mapping[str, str]) -> httpx.Proxy | None:
    named = proxy_for(url, environ)
    if named is None:
        return None
    try:
        proxy = httpx.Proxy(named)
        if proxy.url.scheme not in ("http", "https") or not proxy.url.host:
            raise ValueError(f"unsupported proxy type {proxy.url.scheme!r}; use http or https")
    except (ValueError, httpx.InvalidURL) as error:
        raise CannotStart(f"the proxy from the environment is unusable: {error}") from None
    proxy.ssl_context = ssl_context() if proxy.url.scheme == "https" else None
    return proxy


MAX_COOKIES = 50
"""Cookies of one server, as many as a browser keeps for a site at least (RFC 6265, 6.1)."""
MAX_SIZE = 4096
"""Characters of a cookie's name and value together."""


class _Policy(DefaultCookiePolicy):
    """Refuses cookies that could not be sent back, and those beyond the limits."""

    jar: CookieJar

    def set_ok(self, cookie: Cookie, request: urllib.request.Request) -> bool:
        text = f"{cookie.name}={cookie.value or ''}"
        if not (text.isascii() and text.isprintable() and len(text) <= MAX_SIZE):
            return False
        is_known = any(each.name == cookie.name and each.path == cookie.path for each in self.jar)
        return (is_known or len(self.jar) < MAX_COOKIES) and super().set_ok(cookie, request)


class _Fields(Protocol):
    def info(self) -> Message: ...


class _Jar(CookieJar):
    """Looks only at the first MAX_COOKIES cookies of a response: each takes 0.1 ms."""

    def extract_cookies(self, response: _Fields, request: urllib.request.Request) -> None:
        """Take cookies from a response, of which `info()` returns the headers."""
        info = response.info()
        fields = info.get_all("Set-Cookie", [])
        if len(fields) > MAX_COOKIES:
            del info["Set-Cookie"]
            for field in fields[:MAX_COOKIES]:
                info["Set-Cookie"] = field
        super().extract_cookies(SimpleNamespace(info=lambda: info), request)  # type: ignore[arg-type]


def make_cookie_jar() -> CookieJar:
    """Return the jar for one server."""
    policy = _Policy()
    policy.jar = _Jar(policy)
    return policy.jar

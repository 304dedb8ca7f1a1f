"""The only place that creates HTTP clients: one per server.

httpx provides URLs, headers, cookies and the response type. Requests are sent by `ConnectionPool`.
"""

from __future__ import annotations

import functools
import logging
import os
import ssl
import time
import urllib.request
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import asynccontextmanager
from urllib.parse import urlsplit

import httpx

from mcpd.transports.child_process import CannotStart
from mcpd.transports.http_client.connection import Abort, OnOutcome
from mcpd.transports.http_client.connection_pool import ConnectionPool
from mcpd.transports.http_client.dial import Proxy, basic_authorization

logging.getLogger("httpx").setLevel(logging.WARNING)  # a line for each request, with the whole URL

OnResponse = Callable[[httpx.Request, httpx.Response, float], None]
"""Called for each request when the head of its response has arrived, with the seconds in between."""

_MAX_PREPARED = 256
"""Sets of headers; they differ by tool and by mirrored arguments."""
_LOOPBACK = ("localhost", "127.0.0.1", "::1")
_CA_BUNDLES = (
    "/etc/ssl/certs/ca-certificates.crt",
    "/etc/pki/ca-trust/extracted/pem/tls-ca-bundle.pem",
    "/etc/pki/tls/certs/ca-bundle.crt",
    "/etc/ssl/ca-bundle.pem",
    "/etc/ssl/cert.pem",
)
"""Where distributions keep CA certificates; a Python built elsewhere does not look there."""


class HttpClient:
    """Prepares requests once for each set of headers and sends them on the pool, without the overhead of
    `AsyncClient.send`: its redirects, hooks and authentication are not used. Cookies work as in httpx.
    """

    def __init__(
        self, client: httpx.AsyncClient, pool: ConnectionPool, watch: OnResponse | None = None
    ) -> None:
        self.engine = pool
        self._client = client
        self._watch = watch
        self._prepared: dict[tuple[object, ...], tuple[httpx.URL, httpx.Headers]] = {}
        self._has_cookies = False

    @property
    def has_credentials(self) -> bool:
        """Whether requests carry an `Authorization` header."""
        return "authorization" in self._client.headers

    async def send(
        self, method: str, url: str, headers: Mapping[str, str], content: bytes | None = None
    ) -> httpx.Response:
        """Return the response with its body unread; the caller closes it. Raises httpx.TransportError."""
        request, began = self._build_request(method, url, headers, content), time.perf_counter()
        return self._observe(request, await self.engine.handle_async_request(request), began)

    def send_with_callback(
        self, method: str, url: str, headers: Mapping[str, str], content: bytes, then: OnOutcome
    ) -> Abort | None:
        """As `ConnectionPool.send_with_callback`. Raises httpx.LocalProtocolError with nothing sent."""
        request, began = self._build_request(method, url, headers, content), time.perf_counter()

        def heard(outcome: httpx.Response | httpx.TransportError) -> None:
            then(self._observe(request, outcome, began) if isinstance(outcome, httpx.Response) else outcome)

        return self.engine.send_with_callback(request, heard)

    def _build_request(
        self, method: str, url: str, headers: Mapping[str, str], content: bytes | None
    ) -> httpx.Request:
        known = (method, url, *headers.items())
        made = self._prepared.get(known)
        if made is None:
            whole = self._client.build_request(method, url, headers=headers)
            whole.headers.pop("content-length", None)  # the pool sets it for the actual body
            if len(self._prepared) >= _MAX_PREPARED:
                self._prepared.clear()
            made = self._prepared[known] = whole.url, whole.headers
        request = httpx.Request(method, made[0], headers=made[1], stream=httpx.ByteStream(content or b""))
        if self._has_cookies:
            request.headers.pop("cookie", None)
            self._client.cookies.set_cookie_header(request)
        return request

    def _observe(self, request: httpx.Request, response: httpx.Response, began: float) -> httpx.Response:
        response.request = request
        if self._watch is not None:
            self._watch(request, response, time.perf_counter() - began)
        if "set-cookie" in response.headers and "cookie" not in self._client.headers:
            self._has_cookies = True
            self._client.cookies.extract_cookies(response)
        return response


@asynccontextmanager
async def open_client(
    url: str,
    headers: Mapping[str, str],
    environ: Mapping[str, str],
    ca_file: str | None = None,
    watch: OnResponse | None = None,
) -> AsyncIterator[HttpClient]:
    """Open a client for the server at `url`; leaving the block closes its connections.

    `headers` go with every request, as do user and password in `url`. Proxies are taken from `environ`.
    `watch` is called for every request. Responses have no time limit: the caller sets it. Raises
    CannotStart if `ca_file` or the proxy is unusable.
    """
    target = httpx.URL(url)
    context = ssl_context(ca_file) if target.scheme == "https" else None
    fixed = httpx.Headers({"User-Agent": "mcpd", "Accept-Encoding": "gzip, deflate", **headers})
    if target.userinfo and "authorization" not in fixed:
        fixed["Authorization"] = basic_authorization(target).decode()
    engine = ConnectionPool(target, context, _proxy(url, environ))
    client = httpx.AsyncClient(
        transport=engine,
        headers=fixed,
        follow_redirects=False,
        trust_env=False,  # proxies come from `environ`; .netrc must not be used
    )
    async with client:
        yield HttpClient(client, engine, watch)


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
    context.set_alpn_protocols(["http/1.1"])
    if found is not None:
        context.load_verify_locations(found)
    if ca_file is not None:
        try:
            context.load_verify_locations(ca_file)
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
    if host in _LOOPBACK or host.startswith("127."):
        return None
    named = {name.lower(): value for name, value in environ.items() if value}
    bypass = urllib.request.proxy_bypass_environment  # type: ignore[attr-defined]  # typeshed has it not
    if bypass(host, {"no": named.get("no_proxy", "")}):
        return None
    found = named.get(f"{parts.scheme}_proxy") or named.get("all_proxy")
    if not found:
        return None
    return found if "://" in found else f"http://{found}"


def _proxy(url: str, environ: Mapping[str, str]) -> Proxy | None:
    named = proxy_for(url, environ)
    if named is None:
        return None
    try:
        return Proxy.from_url(named)
    except (ValueError, httpx.InvalidURL) as error:
        raise CannotStart(f"the proxy from the environment is unusable: {error}") from None

"""The only place that builds an HTTP client: one for each server, its connections kept warm.

httpx is the client; what carries its requests is an engine of our own (see there for why).
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

from mcpd.transports.child_environment import CannotStart
from mcpd.transports.http_client.connection import Abort, OnOutcome
from mcpd.transports.http_client.connection_pool import ConnectionPool
from mcpd.transports.http_client.dial import Proxy, basic_authorization

logging.getLogger("httpx").setLevel(logging.WARNING)  # a line for each request, with the whole URL

OnResponse = Callable[[httpx.Request, httpx.Response, float], None]
"""Told of each request when the head of its response is there: both, and the seconds between them."""

_MAX_PREPARED = 256
"""Sets of headers: they differ by tool, and by arguments that are mirrored in them."""
_LOOPBACK = ("localhost", "127.0.0.1", "::1")
_CA_BUNDLES = (
    "/etc/ssl/certs/ca-certificates.crt",
    "/etc/pki/ca-trust/extracted/pem/tls-ca-bundle.pem",
    "/etc/pki/tls/certs/ca-bundle.crt",
    "/etc/ssl/ca-bundle.pem",
    "/etc/ssl/cert.pem",
)
"""Where distributions keep them: a Python built elsewhere looks in the place of its builder."""


class HttpClient:
    """An httpx client whose requests are cheap to make: what goes with every one of them is put together
    once for each set of headers, and the transport is asked without the detour by `AsyncClient.send`, whose
    redirects, hooks and authentication nobody uses here. Cookies are kept as it keeps them.
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
        """The response, its body unread; whoever asked closes it. Raises httpx.TransportError."""
        request, began = self._build_request(method, url, headers, content), time.perf_counter()
        return self._observe(request, await self.engine.handle_async_request(request), began)

    def send_with_callback(
        self, method: str, url: str, headers: Mapping[str, str], content: bytes, then: OnOutcome
    ) -> Abort | None:
        """See `Engine.begin`. Raises httpx.LocalProtocolError, with nothing sent."""
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
            whole.headers.pop("content-length", None)  # of no body; the engine says that of this one
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
    """A client for the server at `url`; its connections are closed with the block. How many there are is
    for the caller to bound: one is opened whenever none is idle.

    `headers` go with every request, and so do the user and password that may stand in `url`. `environ` is
    where proxies are looked up; `watch` is told of every request. There are no time limits on answers: they
    are the caller's. Raises CannotStart when `ca_file` or the proxy cannot be used.
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
        trust_env=False,  # proxies are looked up here; .netrc holds nobody's MCP token
    )
    async with client:
        yield HttpClient(client, engine, watch)


def ssl_context(ca_file: str | None = None) -> ssl.SSLContext:
    """Certificates are always checked; `ca_file` (PEM) is trusted besides the system's authorities.
    Raises CannotStart when it cannot be used.

    Everybody who trusts the same shares one, which is read anew when a file has changed: reading the
    authorities holds up the daemon for 24 ms and takes 0.8 MB (measured), for each attempt to connect.
    """
    system = ssl.get_default_verify_paths()
    found = None
    if system.cafile is None and system.capath is None:
        found = next(filter(os.path.isfile, _CA_BUNDLES), None)
    files = (system.cafile, system.capath, found, ca_file)
    return _make_context(found, ca_file, tuple((path, _file_version(path)) for path in files))


@functools.lru_cache(maxsize=16)
def _make_context(found: str | None, ca_file: str | None, files: object) -> ssl.SSLContext:
    """`found`: authorities in a place that Python does not know. `files`: all that are read, with their
    versions, so that what was read from older ones is not used."""
    context = ssl.create_default_context()
    context.set_alpn_protocols(["http/1.1"])
    if found is not None:
        context.load_verify_locations(found)
    if ca_file is not None:
        try:
            context.load_verify_locations(ca_file)
        except OSError as error:  # SSLError is one
            raise CannotStart(f"its CA file {ca_file} cannot be used: {error.strerror or error}") from None
    return context


def _file_version(path: str | None) -> tuple[int, int, int] | None:
    """What is another when a file or a directory was written or replaced."""
    try:
        found = os.stat(path) if path is not None else None
    except OSError:
        return None
    return None if found is None else (found.st_ino, found.st_mtime_ns, found.st_size)


def proxy_for(url: str, environ: Mapping[str, str]) -> str | None:
    """The proxy that the environment names for `url`; never one for this machine itself."""
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
        raise CannotStart(f"the proxy that the environment names for it cannot be used: {error}") from None

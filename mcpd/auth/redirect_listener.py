"""The listener on a loopback port to which a browser returns after a login (RFC 8252, 7.3).

It accepts only a GET of its own paths with its own address as `Host`, so that no page of the Internet can
reach it by another name, and shows pages without scripts and tokens.
"""

from __future__ import annotations

import errno
import hashlib
import html
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from contextlib import asynccontextmanager, suppress
from urllib.parse import urlsplit

import attrs
import trio

PORTS = range(32_180, 32_190)
"""Tried in order, so that the redirect URI of a machine hardly ever changes. They are below the range from
which Linux takes the ports of outgoing connections."""
_MAX_HEAD = 16_384
_TIMEOUT = 10.0
"""Seconds for a browser to send its request, and for the login to end."""
_SEND_TIMEOUT = 3.0
"""Seconds for the browser to read the page."""
MAX_CONNECTIONS = 64
"""A further one closes the oldest, so that idle ones do not keep the browser waiting."""
_TAKEN = (errno.EADDRINUSE, errno.EACCES)

ShowPage = Callable[[str], Awaitable["Page"]]
"""Takes the query of a request, and returns what to show."""


@attrs.frozen
class Page:
    """What the browser shows: plain text, escaped here."""

    status: int
    title: str
    text: str
    link: str = ""
    """The URL that the page leads to; it must have been checked."""
    link_text: str = ""
    headers: str = attrs.field(default="", repr=False)
    """Complete lines."""


class PortTaken(Exception):
    """The port that the definition demands is in use."""


@attrs.define(eq=False)
class RedirectListener:
    """Bound, and serving as soon as `serve` runs."""

    uri: str
    """The redirect URI, with the port that is bound."""
    _listeners: list[trio.SocketListener]

    def url(self, path: str) -> str:
        """Return the address of another path."""
        return f"http://{urlsplit(self.uri).netloc}{path}"

    async def serve(self, take: ShowPage, pages: Mapping[str, ShowPage]) -> None:
        """Pass the query of each request for the redirect URI to `take`, and of other paths to that of
        `pages`, until cancelled."""
        answers = {**pages, urlsplit(self.uri).path: take}
        hosts = _hosts(self.uri)
        connections: dict[trio.SocketStream, None] = {}
        """The oldest first, without the one whose answer the login is using."""

        async def handle(stream: trio.SocketStream) -> None:
            connections[stream] = None
            if len(connections) > MAX_CONNECTIONS:
                oldest = next(iter(connections))
                del connections[oldest]
                oldest.socket.close()
            async with stream:
                with suppress(trio.BrokenResourceError, trio.ClosedResourceError):
                    request = None
                    with trio.move_on_after(_TIMEOUT):
                        request = await _read_request(stream)
                    connections.pop(stream, None)
                    if request is not None:
                        page = await _find_page(request, answers, hosts)
                        connections[stream] = None
                        await _respond(stream, page)
            connections.pop(stream, None)

        await trio.serve_listeners(handle, self._listeners)


@asynccontextmanager
async def open_listener(issuer: str, *, demanded: str | None = None) -> AsyncIterator[RedirectListener]:
    """Bind a port, and close it when the block is left. Raises PortTaken, OSError.

    `demanded` is the redirect URI of the definition, whose host, port and path are used as they are. Without
    it, the path names the issuer, so that an answer of one is never taken for that of another.
    """
    if demanded is not None:
        parts = urlsplit(demanded)
        assert parts.hostname is not None
        listeners = await _bind(parts.hostname, (parts.port or 80,))
        uri = demanded
    else:
        listeners = await _bind("127.0.0.1", (*PORTS, 0))
        port = listeners[0].socket.getsockname()[1]
        uri = f"http://127.0.0.1:{port}{callback_path(issuer)}"
    try:
        yield RedirectListener(uri, listeners)
    finally:
        for each in listeners:
            await trio.aclose_forcefully(each)


def callback_path(issuer: str) -> str:
    """Return the path of the redirect URI for an issuer."""
    return f"/callback/{hashlib.sha256(issuer.encode()).hexdigest()[:8]}"


async def _bind(host: str, ports: tuple[int, ...]) -> list[trio.SocketListener]:
    """Return listeners on the first free port; for `localhost` on both families if there are both."""
    first = "127.0.0.1" if host == "localhost" else host
    for port in ports:
        try:
            bound = await trio.open_tcp_listeners(port, host=first)
        except OSError as error:
            if error.errno not in _TAKEN and not isinstance(error.__cause__, OSError):
                raise
            continue
        if host == "localhost":
            bound += await _bind_also("::1", bound[0].socket.getsockname()[1])
        return bound
    raise PortTaken(
        f"port {ports[0]} on {host} is in use, and the definition demands it (`oauth.redirectUri` or "
        "`oauth.callbackPort`): stop the program that uses it"
    )


async def _bind_also(host: str, port: int) -> list[trio.SocketListener]:
    try:
        return await trio.open_tcp_listeners(port, host=host)
    except OSError:  # no IPv6 here; browsers try both
        return []


def _hosts(uri: str) -> frozenset[str]:
    parts = urlsplit(uri)
    names = {parts.netloc.lower()}
    if parts.hostname == "localhost":
        names |= {f"127.0.0.1:{parts.port or 80}", f"[::1]:{parts.port or 80}"}
    if (parts.port or 80) == 80:
        names |= {name.removesuffix(":80") for name in names}
    return frozenset(names)


async def _find_page(request: bytes, answers: Mapping[str, ShowPage], hosts: frozenset[str]) -> Page:
    path, query = _target_of(request, hosts)
    if path in answers:
        with trio.move_on_after(_TIMEOUT):
            return await answers[path](query)
    return Page(400, "Bad request", "This address is only for the answer to a login.")


async def _respond(stream: trio.SocketStream, page: Page) -> None:
    """Send the page, also while the login ends, and wait until the browser has closed the connection."""
    with trio.move_on_after(_SEND_TIMEOUT, shield=True):
        await stream.send_all(_render(page))
        await stream.send_eof()
        await stream.receive_some(1024)


async def _read_request(stream: trio.SocketStream) -> bytes | None:
    head = b""
    while b"\r\n\r\n" not in head and len(head) <= _MAX_HEAD:
        portion = await stream.receive_some(_MAX_HEAD)
        if not portion:
            return None
        head += portion
    return head.partition(b"\r\n\r\n")[0]


def _target_of(head: bytes, hosts: frozenset[str]) -> tuple[str, str]:
    """Return path and query of a GET at one of `hosts`; an empty path for any other request."""
    try:
        first, *lines = head.decode("ascii").split("\r\n")
        method, target, version = first.split(" ")
        named = [value.strip().lower() for name, _, value in (line.partition(":") for line in lines)
                 if name.lower() == "host"]  # fmt: skip
        parts = urlsplit(target)
    except ValueError:
        return "", ""
    usable = method == "GET" and version.startswith("HTTP/1.") and len(named) == 1 and named[0] in hosts
    is_ours = target.startswith("/") and not parts.netloc
    return (parts.path, parts.query) if usable and is_ours else ("", "")


def _render_link(page: Page) -> str:
    if not page.link:
        return ""
    address, text = html.escape(page.link), html.escape(page.link_text)
    return f'<p><a rel="noreferrer" href="{address}">{text}</a>'


PAGE_HEADERS = (
    "Referrer-Policy: no-referrer\r\n"
    "Content-Security-Policy: default-src 'none'; frame-ancestors 'none'; style-src 'unsafe-inline'\r\n"
)


def page_body(page: Page) -> bytes:
    return (
        "<!doctype html><html lang=en><meta charset=utf-8>"
        f"<title>{html.escape(page.title)}</title>"
        "<style>body{font:1.1em system-ui;max-width:32em;margin:4em auto;padding:0 1em}"
        "@media(prefers-color-scheme:dark){body{background:#111;color:#eee}}</style>"
        f"<h1>{html.escape(page.title)}</h1><p>{html.escape(page.text)}{_render_link(page)}"
    ).encode()


def _render(page: Page) -> bytes:
    body = page_body(page)
    reason = "OK" if page.status == 200 else "Bad Request"
    head = (
        f"HTTP/1.1 {page.status} {reason}\r\n"
        "Content-Type: text/html; charset=utf-8\r\n"
        f"Content-Length: {len(body)}\r\n"
        "Cache-Control: no-store\r\n"
        f"{PAGE_HEADERS}"
        "X-Content-Type-Options: nosniff\r\n"
        "Connection: close\r\n\r\n"
    )
    return head.encode() + body

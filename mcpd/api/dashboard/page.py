"""The HTTP side of the dashboard: static files, login, and the upgrade to its WebSocket."""

from __future__ import annotations

import functools
import hashlib
import hmac
import logging
import secrets
import time
from collections.abc import Callable
from pathlib import Path

import attrs
import msgspec

from mcpd.api.control.access import PAGE
from mcpd.api.http.exchange import JSON, TEXT, HttpExchange
from mcpd.api.http.parser import Head
from mcpd.api.websocket import ControlSocket, offered_protocols
from mcpd.gateway.gateway import Gateway
from mcpd.model.api import DashboardLink
from mcpd.state.clients import ClientConnection

CODE_LIFETIME = 60.0
"""Seconds after which a code expires."""
SESSION_LIFETIME = 12 * 3600.0
"""Seconds without an open WebSocket after which a session expires."""
_MAX_CODES = 16
_MAX_SESSIONS = 16
_BYTES = 32


@attrs.define(eq=False)
class DashboardSession:
    """A logged-in browser. `sockets`: its open WebSockets, each with its close function."""

    cookie: str
    key: str
    used_at: float
    sockets: dict[object, Callable[[str], None]] = attrs.field(factory=dict)


@attrs.define(eq=False)
class _LoginCode:
    created_at: float
    session: DashboardSession | None = None
    """The session that it has opened."""


class CodeReused(Exception):
    """A code was used twice, so one user has stolen it. Its session is ended."""


class DashboardSessions:
    """The codes and sessions of one port. They end with the daemon."""

    def __init__(self, clock: Callable[[], float]) -> None:
        self._clock = clock
        self._codes: dict[bytes, _LoginCode] = {}
        self._sessions: list[DashboardSession] = []

    def create_code(self) -> str:
        """Return a new code for a user who was authenticated by the Unix socket."""
        self._expire()
        while len(self._codes) >= _MAX_CODES:
            del self._codes[next(iter(self._codes))]
        code = secrets.token_urlsafe(_BYTES)
        self._codes[_digest(code)] = _LoginCode(self._clock())
        return code

    def redeem(self, code: str) -> DashboardSession | None:
        """Return the session that a code opens; None if it is unknown or expired. Raises CodeReused.

        Other users can read the browser's command line, which contains the code. If a thief is first, the
        user's own attempt is the second one and ends the thief's session.
        """
        self._expire()
        known = self._codes.get(_digest(code))
        if known is None:
            return None
        if known.session is not None:
            self.end(known.session)
            raise CodeReused
        session = DashboardSession(
            secrets.token_urlsafe(_BYTES), secrets.token_urlsafe(_BYTES), self._clock()
        )
        known.session = session
        while len(self._sessions) >= _MAX_SESSIONS:
            self.end(min(self._sessions, key=lambda each: (bool(each.sockets), each.used_at)))
        self._sessions.append(session)
        return session

    def find(self, cookie: str, key: str) -> DashboardSession | None:
        """Return the session that both secrets belong to."""
        self._expire()
        found = None
        for session in self._sessions:
            if _equal(session.cookie, cookie) and _equal(session.key, key):
                found = session
        if found is not None:
            found.used_at = self._clock()
        return found

    def end(self, session: DashboardSession) -> None:
        if session in self._sessions:
            self._sessions.remove(session)
            self._close(session, "logged out")

    def close(self, reason: str) -> None:
        """End all sessions."""
        sessions, self._sessions = self._sessions, []
        for session in sessions:
            self._close(session, reason)

    @property
    def socket_count(self) -> int:
        return sum(len(visit.sockets) for visit in self._sessions)

    def _close(self, session: DashboardSession, reason: str) -> None:
        for close in list(session.sockets.values()):
            close(reason)

    def _expire(self) -> None:
        now = self._clock()
        self._codes = {
            each: code for each, code in self._codes.items() if now - code.created_at <= CODE_LIFETIME
        }
        self._sessions = [
            visit for visit in self._sessions if visit.sockets or now - visit.used_at <= SESSION_LIFETIME
        ]


def _digest(code: str) -> bytes:
    """Return the lookup key of a code; hashing prevents timing attacks."""
    return hashlib.sha256(code.encode("utf-8", "replace")).digest()


def _equal(one: str, other: str) -> bool:
    return hmac.compare_digest(one.encode(), other.encode("utf-8", "replace"))


log = logging.getLogger("mcpd.http")

INDEX = "/"
SESSION = "/page/session"
SOCKET = "/page/socket"
_SCRIPTS = tuple(sorted(each.name for each in Path(__file__).parent.glob("*.js")))
_FILES = {
    INDEX: ("index.html", b"text/html; charset=utf-8"),
    **{f"/page/{name}": (name, b"text/javascript; charset=utf-8") for name in _SCRIPTS},
    "/page/style.css": ("style.css", b"text/css; charset=utf-8"),
    "/page/icon.svg": ("icon.svg", b"image/svg+xml"),
}
_MAX_LOGIN = 1024
"""Bytes of a login's body."""
PATHS = {**dict.fromkeys((*_FILES, SOCKET), 0), SESSION: _MAX_LOGIN}
"""Served without the token: the files are public, the other paths require a dashboard session.

Path → bytes that the body of a request may have.
"""
_KEY_HEADER = b"x-mcpd-page"
"""Forms cannot send this header, and other origins' scripts only after a CORS preflight, which fails."""
_KEY_PROTOCOL = "key."
_MAX_SOCKETS = 16
_MAX_CODE_LENGTH = 512


class Dashboard:
    """The dashboard of one port."""

    def __init__(self, gateway: Gateway, base: str, port: int) -> None:
        """`base`: the URL of the page, without a trailing slash."""
        self._gateway = gateway
        self._base = base
        self._sessions = DashboardSessions(time.monotonic)
        # Browsers share cookies between all ports of a host, so the name includes the port. The `__Host-`
        # prefix requires `Secure`, which some browsers refuse over plain HTTP on loopback, and the path `/`.
        self._cookie_name = f"mcpd-page-{port}"
        for path in _FILES:  # load now: an upgrade may replace the files
            _file(path)

    def create_link(self) -> DashboardLink:
        """Return a one-time address. The code is in the fragment, which browsers do not send."""
        return DashboardLink(url=f"{self._base}{INDEX}#{self._sessions.create_code()}", seconds=CODE_LIFETIME)

    def close(self, reason: str) -> None:
        self._sessions.close(reason)

    def handle(self, head: Head, client: ClientConnection, body: bytes, exchange: HttpExchange) -> None:
        """Handle an admitted request for one of PATHS."""
        if head.path == SOCKET:
            self._open_socket(head, exchange, client)
        elif head.path == SESSION:
            self._handle_session(head, body, exchange)
        elif head.method in ("GET", "HEAD"):
            exchange.respond(200, _file(head.path), _FILES[head.path][1], _security_headers(head))
        else:
            exchange.respond(405, headers=b"Allow: GET, HEAD\r\n")

    def _handle_session(self, head: Head, body: bytes, exchange: HttpExchange) -> None:
        key = head.get(_KEY_HEADER)
        if head.method not in ("GET", "POST", "DELETE"):
            exchange.respond(405, headers=b"Allow: GET, POST, DELETE\r\n")
        elif not key or (head.method != "GET" and b"origin" not in head.headers):
            exchange.respond(403, b"only the dashboard's own script may use this address\n", TEXT)
        elif head.method == "POST":
            self._log_in(head, body, exchange)
        elif (session := self._sessions.find(self._cookie_of(head), key)) is None:
            exchange.respond(401, b"run mcpctl ui to open the dashboard\n", TEXT)
        elif head.method == "DELETE":
            self._sessions.end(session)
            exchange.respond(204, headers=self._set_cookie("", b"; Max-Age=0"))
        else:
            exchange.respond(204)

    def _log_in(self, head: Head, body: bytes, exchange: HttpExchange) -> None:
        if head.headers.get(b"content-type", b"").split(b";")[0].strip().lower() != JSON:
            exchange.respond(415, b"Content-Type must be application/json\n", TEXT)
            return
        try:
            code = msgspec.json.decode(body[:_MAX_CODE_LENGTH], type=dict[str, str])["code"]
            session = self._sessions.redeem(code)
        except (msgspec.MsgspecError, KeyError, RecursionError):
            exchange.respond(400, b"the code is missing\n", TEXT)
        except CodeReused:
            log.warning(
                "the dashboard's address was used twice: its session was ended. If one of them was not you, "
                "another user of this machine reads command lines: run `mcpctl ui --print` and paste the "
                "address"
            )
            exchange.respond(403, b"this address was already used and is no longer valid\n", TEXT)
        else:
            if session is None:
                exchange.respond(403, b"this address has expired, or mcpd was restarted\n", TEXT)
            else:
                log.info("a browser logged in to the dashboard")
                answer = msgspec.json.encode({"key": session.key})
                exchange.respond(200, answer, JSON, self._set_cookie(session.cookie))

    def _set_cookie(self, value: str, more: bytes = b"") -> bytes:
        # Sent below /page only, never to /mcp.
        head = f"Set-Cookie: {self._cookie_name}={value}; Path=/page; HttpOnly; SameSite=Strict".encode()
        return head + more + b"\r\n"

    def _cookie_of(self, head: Head) -> str:
        for each in (head.get(b"cookie") or "").split(";"):
            name, _, value = each.strip().partition("=")
            if name == self._cookie_name:
                return value
        return ""

    def _open_socket(self, head: Head, exchange: HttpExchange, client: ClientConnection) -> None:
        protocols = offered_protocols(head)
        keys = [each.removeprefix(_KEY_PROTOCOL) for each in protocols if each.startswith(_KEY_PROTOCOL)]
        if PAGE.protocol not in protocols:
            exchange.respond(426, b"this address requires a WebSocket\n", TEXT, b"Upgrade: websocket\r\n")
        elif b"origin" not in head.headers or len(keys) != 1:
            exchange.respond(403, b"only the dashboard's own script may use this address\n", TEXT)
        elif (session := self._sessions.find(self._cookie_of(head), keys[0])) is None:
            exchange.respond(401, b"run mcpctl ui to open the dashboard\n", TEXT)
        elif self._sessions.socket_count >= _MAX_SOCKETS:
            exchange.respond(503, b"the dashboard is open in too many tabs\n", TEXT)
        else:
            self._start_socket(session, exchange, client)

    def _start_socket(
        self, session: DashboardSession, exchange: HttpExchange, client: ClientConnection
    ) -> None:
        socket = ControlSocket(self._gateway, client, PAGE)

        def on_closed(_: str) -> None:
            del session.sockets[socket]
            session.used_at = time.monotonic()

        client.set_identity("the page", None)
        client.via = "page"
        session.sockets[socket] = socket.close
        exchange.on_hang_up = on_closed
        exchange.upgrade(functools.partial(socket.run, exchange.head))


@functools.cache
def _file(path: str) -> bytes:
    """Return a static file, which is read once."""
    return (Path(__file__).parent / _FILES[path][0]).read_bytes()


def _security_headers(head: Head) -> bytes:
    """Return headers that restrict the page to its own files and connections, whatever servers send."""
    host = head.headers[b"host"]  # checked by the guard
    policy = (
        b"default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' blob:; media-src blob:; "
        b"connect-src 'self' ws://%b; base-uri 'none'; form-action 'none'; frame-ancestors 'none'; "
        b"require-trusted-types-for 'script'; trusted-types 'none'" % host
    )
    return (
        b"Content-Security-Policy: %b\r\nReferrer-Policy: no-referrer\r\nX-Frame-Options: DENY\r\n"
        b"Cross-Origin-Opener-Policy: same-origin\r\nCross-Origin-Resource-Policy: same-origin\r\n" % policy
    )

"""The connection to mcpd over a network: a WebSocket at `/rpc` of a port for other machines."""

from __future__ import annotations

import errno
import socket
import ssl
import time
from pathlib import Path
from typing import NamedTuple
from urllib.parse import urlsplit

from wsproto import ConnectionType, WSConnection
from wsproto.events import (
    AcceptConnection,
    CloseConnection,
    Ping,
    RejectConnection,
    RejectData,
    Request,
    TextMessage,
)
from wsproto.utilities import ProtocolError

from ctl.cli.errors import CtlError, DaemonUnreachable, UsageError
from ctl.daemon.client import DaemonClient, with_effect
from mcpd.model.text import shorten

PATH = "/rpc"
PROTOCOL = "mcpd.control"
"""The subprotocol of the WebSocket."""
MAX_MESSAGE = 4 * 1024 * 1024
"""Bytes of a request that mcpd accepts over a network."""
CONNECT_TIMEOUT = 10.0
_SILENCE = 40.0
"""Seconds without any data after which the connection is given up: mcpd sends a ping every 15 s."""
_LOOPBACK = ("127.0.0.1", "::1", "localhost")


class Origin(NamedTuple):
    """Where mcpd is: `https://HOST[:PORT]`."""

    is_tls: bool
    host: str
    port: int
    authority: str

    def __str__(self) -> str:
        return f"{'https' if self.is_tls else 'http'}://{self.authority}"


def checked_origin(url: str) -> Origin:
    """Return where a URL leads. Raises UsageError."""
    refusal = UsageError(f"{shorten(url, 100)!r} is not the URL of an mcpd", hint="write https://HOST[:PORT]")
    try:
        parts = urlsplit(url)
        host, port = parts.hostname, parts.port
    except ValueError:
        raise refusal from None
    rest = parts._replace(scheme="", netloc="").geturl()
    if not host or parts.scheme not in ("https", "http") or "@" in parts.netloc or rest not in ("", "/"):
        raise refusal
    if parts.scheme == "http" and host not in _LOOPBACK:
        raise UsageError("the token would be readable on the network", hint=f"write https://{parts.netloc}")
    is_tls = parts.scheme == "https"
    return Origin(is_tls, host, port or (443 if is_tls else 80), parts.netloc)


def _read_token(path: str) -> str:
    if not path:
        raise UsageError("--url needs a token", hint="--token-file FILE, or MCPD_TOKEN_FILE")
    try:
        token = Path(path).read_text("ascii").strip()
    except (OSError, UnicodeDecodeError) as error:
        reason = error.strerror if isinstance(error, OSError) else "it is not a token"
        raise UsageError(f"cannot read the token in {path}: {reason}") from None
    if not token.isprintable() or " " in token or not token:
        raise UsageError(f"{path} contains no token")
    return token


class WebSocketLines:
    """A WebSocket, with the methods of a socket that `DaemonClient` uses: each message is a line."""

    def __init__(self, origin: Origin, token: str) -> None:
        """Connect. Raises OSError, and DaemonUnreachable if mcpd refuses."""
        self._deadline: float | None = time.monotonic() + CONNECT_TIMEOUT
        self._socket = socket.create_connection((origin.host, origin.port), CONNECT_TIMEOUT)
        self.reason = ""
        """Why mcpd has closed the connection."""
        self._partial: list[str] = []
        """The parts of the message that is being received."""
        try:
            if origin.is_tls:
                context = ssl.create_default_context()
                self._socket = context.wrap_socket(self._socket, server_hostname=origin.host)
            self._protocol = WSConnection(ConnectionType.CLIENT)
            headers = [(b"authorization", f"Bearer {token}".encode())]
            request = Request(origin.authority, PATH, subprotocols=[PROTOCOL], extra_headers=headers)
            self._socket.sendall(self._protocol.send(request))
            self._shake_hands(origin)
        except BaseException:
            self._socket.close()
            raise

    def _shake_hands(self, origin: Origin) -> None:
        status, said, is_over = 0, b"", False
        while not is_over and self._receive():
            for event in self._protocol.events():
                if isinstance(event, AcceptConnection):
                    return
                if isinstance(event, RejectConnection):
                    status, is_over = event.status_code, not event.has_body
                elif isinstance(event, RejectData):
                    said += bytes(event.data)
                    is_over = event.body_finished or len(said) > 10_000
        text = shorten(said.decode(errors="replace").strip(), 200)
        reason = f"HTTP {status}, {text}" if status else "it closed the connection"
        valid = "--token-file FILE, with mcpd's own token or a valid access token"
        hint = {401: valid, 404: "update mcpd there"}.get(status, "")
        raise DaemonUnreachable(f"{origin} refused the connection ({reason})", hint=hint)

    def settimeout(self, seconds: float | None) -> None:
        self._deadline = None if seconds is None else time.monotonic() + seconds

    def sendall(self, line: bytes) -> None:
        if len(line) > MAX_MESSAGE:
            text = f"the request takes {len(line)} bytes as JSON, and --url allows {MAX_MESSAGE}"
            raise UsageError(text, may_have_run=False)
        self._set_timeout()
        try:
            data = self._protocol.send(TextMessage(line.rstrip(b"\n").decode()))
        except ProtocolError:
            raise OSError(errno.EPIPE, self.reason or "it has ended") from None
        self._socket.sendall(data)

    def recv(self, _: int) -> bytes:
        """Return complete lines, or nothing if the connection has ended."""
        lines: list[str] = []
        while not lines and self._receive():
            for event in self._protocol.events():
                if isinstance(event, TextMessage):
                    self._partial.append(event.data)
                    if event.message_finished:
                        lines += [*self._partial, "\n"]
                        self._partial.clear()
                elif isinstance(event, Ping):
                    self._socket.sendall(self._protocol.send(event.response()))
                elif isinstance(event, CloseConnection):
                    self.reason = shorten(event.reason or "", 200)
        return "".join(lines).encode()

    def _receive(self) -> bool:
        """Wait for data. Returns False at the end."""
        self._set_timeout()
        try:
            data = self._socket.recv(1 << 18)
        except TimeoutError:
            if self._deadline is None or self._deadline > time.monotonic():
                raise OSError(errno.ECONNABORTED, f"nothing came for {_SILENCE:.0f} s") from None
            raise
        try:
            self._protocol.receive_data(data or None)
        except ProtocolError as error:
            raise OSError(errno.EPROTO, f"it does not speak WebSocket ({error})") from None
        return bool(data)

    def _set_timeout(self) -> None:
        left = _SILENCE if self._deadline is None else self._deadline - time.monotonic()
        self._socket.settimeout(max(0.001, min(left, _SILENCE)))

    def close(self) -> None:
        self._socket.close()


class NetworkClient(DaemonClient):
    """A client of the mcpd at a URL. Raises DaemonUnreachable."""

    def __init__(self, origin: Origin, token_file: str) -> None:
        self._origin = origin
        token = _read_token(token_file)
        try:
            self._lines = WebSocketLines(origin, token)
        except ssl.SSLCertVerificationError as error:
            text = f"the certificate of {origin} is not trusted: {error.verify_message}"
            raise DaemonUnreachable(text, hint="set SSL_CERT_FILE to the certificate of your CA") from None
        except OSError as error:
            reason = error.strerror or str(error) or type(error).__name__
            raise DaemonUnreachable(f"cannot connect to {origin}: {shorten(reason, 200)}") from None
        super().__init__(str(origin), self._lines)

    def _closed(self, error: OSError | None, method: str, *, sent: bool) -> CtlError:
        reason = (error.strerror or str(error)) if error is not None else self._lines.reason
        text = f"the connection to {self._origin} was closed" + (f": {reason}" if reason else "")
        return with_effect(DaemonUnreachable(text), method, sent=sent)

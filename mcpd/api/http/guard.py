"""Which HTTP requests are admitted. Every local program and every web page can reach a loopback port.

Browsers let any page send requests to 127.0.0.1, and a page whose own name resolves to 127.0.0.1 (DNS
rebinding) counts as same-origin. So the guard checks Host, Origin and Sec-Fetch-Site, and requires a token
that no page can know. On the Unix socket the kernel verifies the user.
"""

from __future__ import annotations

import hmac
import logging
import os
import secrets
import stat
import time
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING

from mcpd.api.http.parser import MAX_BODY, Admission, BadRequest, Head
from mcpd.files.atomic import write_atomically
from mcpd.files.paths import UnusablePath
from mcpd.model.text import shorten

if TYPE_CHECKING:
    from mcpd.api.http.access_tokens import Person

log = logging.getLogger("mcpd.http")

_TOKEN_BYTES = 32
_MIN_TOKEN_LENGTH = 32
_OTHERS_ACCESS = stat.S_IRWXG | stat.S_IRWXO
_WARN_INTERVAL = 60.0
_CHALLENGE = b'WWW-Authenticate: Bearer realm="mcpd"\r\n'
"""Without `resource_metadata`, because there is no OAuth flow."""
_AUTHENTICATED = Admission(MAX_BODY, True)


class RequestGuard:
    """Decides which requests are admitted, and logs the refused ones."""

    def __init__(self) -> None:
        self._warned_at: dict[str, float] = {}

    def admit(self, head: Head) -> Admission:
        """Return what a request may do. Its body has not been read yet.

        Raises BadRequest for a request that must not be served.
        """
        raise NotImplementedError

    def person(self, head: Head) -> Person | None:
        """Return whose access token an admitted request carries. None: the person who runs mcpd.

        Raises BadRequest if it is not valid any more.
        """
        return None

    def _forbidden(self, reason: str, head: Head, header: bytes) -> BadRequest:
        """Return a 403, and log a warning at most once a minute for each reason."""
        value = shorten(head.headers.get(header, b""), 100) or "missing"
        sentence = f"{reason} ({header.decode()}: {value})"
        self._warn(reason, head, sentence)
        return BadRequest(403, sentence)

    def _warn(self, reason: str, head: Head, sentence: str) -> None:
        """Log a refusal. `reason` is one of a few: it is remembered when each was last logged."""
        now = time.monotonic()
        is_due = now - self._warned_at.get(reason, -_WARN_INTERVAL) >= _WARN_INTERVAL
        if is_due:
            self._warned_at[reason] = now
        level = logging.WARNING if is_due else logging.DEBUG
        log.log(level, "refused %s %s: %s", head.method, shorten(head.path, 60), sentence)


class TcpGuard(RequestGuard):
    """Guards a loopback port. `token` None: every program on this machine is admitted."""

    def __init__(self, port: int, token: str | None, open_paths: Mapping[str, int] | None = None) -> None:
        """`open_paths` are served without a token: path → bytes that the body of a request may have."""
        super().__init__()
        names = [f"{name}:{port}" for name in ("127.0.0.1", "localhost", "[::1]")]
        if port == 80:  # browsers omit the scheme's default port
            names += [name.removesuffix(":80") for name in names]
        self._hosts = frozenset(name.encode() for name in names)
        self._origins = frozenset(f"http://{name}".encode() for name in names)
        self._token = None if token is None else token.encode()
        self._open_paths = open_paths or {}

    def admit(self, head: Head) -> Admission:
        headers = head.headers
        host = headers.get(b"host", b"").lower()
        if host not in self._hosts:
            raise self._forbidden("the Host header must be the address mcpd listens on", head, b"host")
        origin = headers.get(b"origin")
        if origin is not None and origin.lower() not in self._origins:
            raise self._forbidden("requests of web pages are refused", head, b"origin")
        if headers.get(b"sec-fetch-site", b"none") not in (b"none", b"same-origin"):  # Fetch Metadata
            raise self._forbidden("requests of other sites' web pages are refused", head, b"sec-fetch-site")
        # Below /.well-known, a 401 would make clients look for an OAuth server; a 404 says there is none.
        if head.path in self._open_paths or head.path.startswith("/.well-known/"):
            return Admission(self._open_paths.get(head.path, 0), False)
        if self._token is not None:
            scheme, _, given = headers.get(b"authorization", b"").partition(b" ")
            if scheme.lower() != b"bearer" or not hmac.compare_digest(given.strip(), self._token):
                message = "send `Authorization: Bearer TOKEN`; `mcpctl status` shows the token's file"
                raise BadRequest(401, message, _CHALLENGE)
        return _AUTHENTICATED


class UnixGuard(RequestGuard):
    """Guards the Unix socket, where the kernel verifies the user. Web pages come only through a proxy, which
    is not for them: browsers send their origin.
    """

    def admit(self, head: Head) -> Admission:
        if b"origin" in head.headers:
            raise self._forbidden("requests of web pages are refused", head, b"origin")
        return _AUTHENTICATED


def load_token(file: Path) -> str:
    """Return the token in `file`, creating it on first use. Raises UnusablePath.

    A file that other users could read is refused rather than repaired: they may know the token already.
    """
    try:
        status = file.lstat()
    except FileNotFoundError:
        token = secrets.token_urlsafe(_TOKEN_BYTES)
        try:
            write_atomically(file, token.encode() + b"\n", 0o600)
        except OSError as error:
            raise UnusablePath(
                f"cannot write the token for HTTP clients to {file}: {error.strerror}"
            ) from None
        return token
    except OSError as error:
        raise UnusablePath(f"cannot read {file}: {error.strerror}") from None
    if (
        not stat.S_ISREG(status.st_mode)
        or status.st_uid != os.getuid()
        or stat.S_IMODE(status.st_mode) & _OTHERS_ACCESS
    ):
        raise UnusablePath(f"other users could read {file}; remove it, and mcpd creates a new token")
    try:
        token = file.read_text("ascii").strip()
    except (OSError, UnicodeDecodeError):
        token = ""
    if len(token) < _MIN_TOKEN_LENGTH or not token.isprintable():
        raise UnusablePath(
            f"{file} contains no token of at least {_MIN_TOKEN_LENGTH} characters; remove it to create one"
        )
    return token

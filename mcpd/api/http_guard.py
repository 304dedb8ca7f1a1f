"""Who may come in over HTTP. A port of this machine is reached by every program here, and by every web page.

A page may send requests to 127.0.0.1 without being asked, and under a name of its own that it has rebound to
127.0.0.1 it looks to the browser like our own page (both seen with a real browser). So the host's name, the
origin and the browser's own word are looked at, and a token is asked for, which no page can know. On the
Unix socket the kernel has said already who it is.
"""

from __future__ import annotations

import hmac
import logging
import os
import re
import secrets
import stat
import time
from pathlib import Path
from typing import Protocol

from mcpd.api.http_server.parser import BadRequest, Head
from mcpd.model.text import shorten
from mcpd.support.atomic_files import write_atomically
from mcpd.support.paths import UnusablePath

log = logging.getLogger("mcpd.http")

_TOKEN_BYTES = 32
_MIN_TOKEN_LENGTH = 32
_OTHERS_ACCESS = stat.S_IRWXG | stat.S_IRWXO
_WARN_INTERVAL = 60.0
_CHALLENGE = b'WWW-Authenticate: Bearer realm="mcpd"\r\n'
"""Without `resource_metadata`: there is no OAuth to begin."""
_LOCAL_HOST = re.compile(r"(localhost|127\.0\.0\.1|\[::1\]|[a-z0-9_-]*)(:[0-9]{1,5})?")


class RequestGuard(Protocol):
    def admit(self, head: Head) -> None:
        """Raises BadRequest for whom is not let in. Only the head has been looked at."""


def reject_cross_site(head: Head) -> None:
    """What a browser says when another site's page is behind the request."""
    if head.headers.get(b"sec-fetch-site", b"none") not in (b"none", b"same-origin"):
        raise forbidden("a web page of another site is not let in", head)


class TcpGuard:
    """Of a port on the loopback interface. `token` None: whoever is on this machine may come in."""

    def __init__(self, port: int, token: str | None, open_paths: frozenset[str] = frozenset()) -> None:
        """`open_paths`: what is answered without a token."""
        names = [f"{name}:{port}" for name in ("127.0.0.1", "localhost", "[::1]")]
        if port == 80:  # browsers leave out the scheme's own
            names += [name.removesuffix(":80") for name in names]
        self._hosts = frozenset(name.encode() for name in names)
        self._origins = frozenset(f"http://{name}".encode() for name in names)
        self._token = None if token is None else token.encode()
        self._open_paths = open_paths

    def admit(self, head: Head) -> None:
        headers = head.headers
        host = headers.get(b"host", b"").lower()
        if host not in self._hosts:
            raise forbidden("the host's name must be the address we listen on", head, b"host")
        origin = headers.get(b"origin")
        if origin is not None and origin.lower() not in self._origins:
            raise forbidden("a web page is not let in", head, b"origin")
        reject_cross_site(head)
        # Below /.well-known a 401 would make clients look for an OAuth server; 404 says there is none.
        is_open = head.path in self._open_paths or head.path.startswith("/.well-known/")
        if self._token is not None and not is_open:
            scheme, _, given = headers.get(b"authorization", b"").partition(b" ")
            if scheme.lower() != b"bearer" or not hmac.compare_digest(given.strip(), self._token):
                words = "send the token: `Authorization: Bearer …`; `mcpctl status` names the file it is in"
                raise BadRequest(401, words, _CHALLENGE)


class UnixGuard:
    """Of the socket: the kernel has told the user. No page gets there, but a careless proxy might let one."""

    def admit(self, head: Head) -> None:
        host = head.headers.get(b"host", b"").decode("latin-1").lower()
        if not _LOCAL_HOST.fullmatch(host):
            raise forbidden("on this socket the host is `localhost`", head, b"host")
        origin = head.headers.get(b"origin")
        if origin is not None:
            scheme, _, name = origin.decode("latin-1").lower().partition("://")
            if scheme != "http" or not _LOCAL_HOST.fullmatch(name):
                raise forbidden("a web page is not let in", head, b"origin")
        reject_cross_site(head)


_said: dict[str, float] = {}


def forbidden(reason: str, head: Head, header: bytes = b"sec-fetch-site") -> BadRequest:
    """403, and a line in the log once a minute for each kind."""
    value = shorten(head.headers.get(header, b""), 100) or "missing"
    sentence = f"{reason} ({header.decode()}: {value})"
    now = time.monotonic()
    is_due = now - _said.get(reason, -_WARN_INTERVAL) >= _WARN_INTERVAL
    if is_due:
        _said[reason] = now
    log.log(
        logging.WARNING if is_due else logging.DEBUG,
        "refused %s %s: %s",
        head.method,
        shorten(head.path, 60),
        sentence,
    )
    return BadRequest(403, sentence)


def load_token(file: Path) -> str:
    """The token, made on first use; whoever can read the file may come in. Raises UnusablePath.

    A file that others could read is not trusted any more than they are: it is refused, not mended, since
    the token may be known by now.
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
        raise UnusablePath(f"cannot look at {file}: {error.strerror}") from None
    if (
        not stat.S_ISREG(status.st_mode)
        or status.st_uid != os.getuid()
        or stat.S_IMODE(status.st_mode) & _OTHERS_ACCESS
    ):
        raise UnusablePath(f"{file} could be read by others; remove it, and a new token is made")
    try:
        token = file.read_text("ascii").strip()
    except (OSError, UnicodeDecodeError):
        token = ""
    if len(token) < _MIN_TOKEN_LENGTH or not token.isprintable():
        raise UnusablePath(
            f"{file} holds no token of at least {_MIN_TOKEN_LENGTH} characters; remove it, and one is made"
        )
    return token

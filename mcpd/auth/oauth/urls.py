"""URLs of servers, and where their metadata is. A stranger may have named them.

RFC 8414, 3.1, RFC 8707 (`resource`) and RFC 9728, 3.1.
"""

from __future__ import annotations

from functools import lru_cache
from urllib.parse import SplitResult, unquote, urlsplit, urlunsplit

from mcpd.wire.url import is_loopback

_MAX_URL = 8192
_DEFAULT_PORTS = {"http": 80, "https": 443}
_PROTECTED_RESOURCE = "/.well-known/oauth-protected-resource"
_AUTHORIZATION_SERVER = "/.well-known/oauth-authorization-server"
_OPENID = "/.well-known/openid-configuration"


def is_usable(url: str) -> bool:
    """Return whether mcpd may use a URL that a stranger named.

    It must be https, or http to this machine, without user, password and fragment, and not too long.
    """
    try:
        parts = urlsplit(url)
        host, _ = parts.hostname or "", parts.port
    except ValueError:
        return False
    return (
        bool(host)
        and (parts.scheme == "https" or (parts.scheme == "http" and is_loopback(host)))
        and "@" not in parts.netloc
        and "#" not in url
        and "\\" not in url
        and " " not in url
        and len(url) <= _MAX_URL
        and url.isascii()
        and url.isprintable()
    )


def http_url(url: str) -> str:
    """Return the URL of a server with the scheme of HTTP, also for a WebSocket server."""
    scheme, colon, rest = url.partition(":")
    return {"ws": "http", "wss": "https"}.get(scheme.lower(), scheme) + colon + rest


def origin(url: str) -> str:
    """Return scheme, host and port in lower case, without the default port."""
    parts = urlsplit(http_url(url))
    return urlunsplit((parts.scheme.lower(), _authority(parts), "", "", ""))


def canonical(url: str) -> str:
    """Return the `resource` of a server without metadata: no user, query and fragment, and no slash added.

    The query of a server's URL is left out because it may be a key (RFC 8707, 2 advises against it, too).
    """
    parts = urlsplit(http_url(url))
    path = "" if parts.path == "/" else parts.path
    return urlunsplit((parts.scheme.lower(), _authority(parts), path, "", ""))


@lru_cache(maxsize=256)
def covers(resource: str, url: str) -> bool:
    """Return whether a token for `resource` may be sent to `url`, and so whether `resource` is its server.

    Both have the same origin, and the path of `resource` is that of `url` or a parent of it, by whole
    segments: `/mcp` covers `/mcp/x`, and not `/mcpx`.
    """
    try:
        outer, inner = urlsplit(http_url(resource)), urlsplit(http_url(url))
        if origin(resource) != origin(url) or outer.scheme not in _DEFAULT_PORTS or not outer.hostname:
            return False
    except ValueError:
        return False
    if outer.fragment or "@" in outer.netloc or (outer.query and outer.query != inner.query):
        return False
    if _has_dots(outer.path) or _has_dots(inner.path):
        return False
    return (inner.path.rstrip("/") + "/").startswith(outer.path.rstrip("/") + "/")


def protected_resource_urls(server_url: str) -> tuple[str, ...]:
    """Return where the metadata of a server may be, the first to be asked first (RFC 9728, 3.1)."""
    parts = urlsplit(http_url(server_url))
    root = urlunsplit((parts.scheme.lower(), _authority(parts), _PROTECTED_RESOURCE, "", ""))
    if parts.path in ("", "/") and not parts.query:
        return (root,)
    path = "" if parts.path == "/" else parts.path
    inserted = (parts.scheme.lower(), _authority(parts), _PROTECTED_RESOURCE + path, parts.query, "")
    return (urlunsplit(inserted), root)


def authorization_server_urls(issuer: str) -> tuple[str, ...]:
    """Return where the metadata of an issuer may be, in order (RFC 8414, 3.1; MCP 2025-11-25).

    Some servers have it only at the root, although their issuer has a path.
    """
    parts = urlsplit(issuer)
    path = parts.path.rstrip("/")
    places = [_AUTHORIZATION_SERVER, _OPENID]
    if path:
        places = [_AUTHORIZATION_SERVER + path, _OPENID + path, path + _OPENID, *places]
    return tuple(urlunsplit((parts.scheme, parts.netloc, place, "", "")) for place in places)


def _authority(parts: SplitResult) -> str:
    host = (parts.hostname or "").lower()
    host = f"[{host}]" if ":" in host else host
    port = parts.port
    return host if port is None or port == _DEFAULT_PORTS.get(parts.scheme.lower()) else f"{host}:{port}"


def _has_dots(path: str) -> bool:
    """Return whether a path has segments that a server may resolve to another path."""
    decoded = unquote(path).replace("\\", "/")
    return any(segment in (".", "..") for segment in decoded.split("/"))

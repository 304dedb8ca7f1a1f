"""What a URL says about whom we talk to, and what of it may be shown."""

from __future__ import annotations

from urllib.parse import urljoin, urlsplit

_DEFAULT_PORTS = {"http": 80, "ws": 80, "https": 443, "wss": 443}
_MAX_LENGTH = 1 << 14


def origin(url: str) -> tuple[str, str, int]:
    """Scheme, host and port: whom what was meant for `url` may reach. Raises ValueError for a bad port."""
    parts = urlsplit(url)
    return parts.scheme, (parts.hostname or "").lower(), parts.port or _DEFAULT_PORTS.get(parts.scheme, 0)


def resolve_same_origin(base: str, reference: str) -> str | None:
    """The URL that somebody else names, perhaps relative to `base`, if that is one of the same origin."""
    try:
        url = urljoin(base, reference)
        same = origin(url) == origin(base)
    except ValueError:  # it is no URL
        return None
    return url if same and len(url) <= _MAX_LENGTH and url.isprintable() else None


def redact_url(url: str, base: str = "") -> str:
    """Without the parts that may hold a secret: user and password, query, fragment. Never raises.

    `base`: what it may be relative to.
    """
    try:
        parts = urlsplit(urljoin(base, url))
        host = parts.hostname or ""
        port = f":{parts.port}" if parts.port else ""
    except ValueError:
        return "an unreadable URL"
    return f"{parts.scheme}://{f'[{host}]' if ':' in host else host}{port}{parts.path}"

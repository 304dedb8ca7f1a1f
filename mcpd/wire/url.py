"""URLs: their origin, and a form without secrets."""

from __future__ import annotations

import ipaddress
from urllib.parse import urljoin, urlsplit

_DEFAULT_PORTS = {"http": 80, "ws": 80, "https": 443, "wss": 443}
_MAX_LENGTH = 1 << 14


def origin(url: str) -> tuple[str, str, int]:
    """Return scheme, host and port. Raises ValueError for an invalid port."""
    parts = urlsplit(url)
    return parts.scheme, (parts.hostname or "").lower(), parts.port or _DEFAULT_PORTS.get(parts.scheme, 0)


def is_loopback(host: str) -> bool:
    """Return whether a host is this machine by its name (RFC 8252, 7.3 and 8.3). Nothing is looked up."""
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host.lower() == "localhost"


def resolve_same_origin(base: str, reference: str) -> str | None:
    """Resolve a reference against `base`. Return None if it is invalid or has another origin."""
    try:
        url = urljoin(base, reference)
        same = origin(url) == origin(base)
    except ValueError:  # not a URL
        return None
    return url if same and len(url) <= _MAX_LENGTH and url.isprintable() else None


def redact_url(url: str, base: str = "") -> str:
    """Return a URL, perhaps relative to `base`, without user, password, query and fragment. Never raises."""
    try:
        parts = urlsplit(urljoin(base, url))
        host = parts.hostname or ""
        port = f":{parts.port}" if parts.port else ""
    except ValueError:
        return "an unreadable URL"
    return f"{parts.scheme}://{f'[{host}]' if ':' in host else host}{port}{parts.path}"

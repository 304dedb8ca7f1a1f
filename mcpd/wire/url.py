"""What a URL says about whom we talk to, and what of it may be shown."""

from __future__ import annotations

from urllib.parse import urlsplit

_PORTS = {"http": 80, "ws": 80, "https": 443, "wss": 443}


def origin(url: str) -> tuple[str, str, int]:
    """Scheme, host and port: whom what was meant for `url` may reach. Raises ValueError for a bad port."""
    parts = urlsplit(url)
    return parts.scheme, (parts.hostname or "").lower(), parts.port or _PORTS.get(parts.scheme, 0)


def bare(url: str) -> str:
    """Without the parts that may hold a secret: user and password, query, fragment. Never raises."""
    try:
        parts = urlsplit(url)
        host = parts.hostname or ""
        port = f":{parts.port}" if parts.port else ""
    except ValueError:
        return "an unreadable URL"
    return f"{parts.scheme}://{f'[{host}]' if ':' in host else host}{port}{parts.path}"

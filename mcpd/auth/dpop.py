"""Tokens that are bound to a key: proofs of possession for each request (RFC 9449).

The key belongs to one login. `joserfc` is the extra `[keys]` and is imported on use.
"""

from __future__ import annotations

import base64
import hashlib
import secrets
import time
from collections.abc import Callable
from urllib.parse import urlsplit, urlunsplit

from mcpd.auth.signed_jwt import KeyUnusable, load_key, sign

_MAX_NONCES = 32
_MAX_NONCE = 1024


class DpopKey:
    """An ES256 key, and the nonces that servers have asked for. The key is never shown."""

    def __init__(self, pem: str, now: Callable[[], float] = time.time) -> None:
        """Raises KeyUnusable."""
        self.pem = pem
        self._now = now
        self._key = load_key(pem)
        self._nonces: dict[str, str] = {}
        """Origin → the nonce for the next proof there (RFC 9449, 8 and 9)."""
        self._header = {"typ": "dpop+jwt", "alg": "ES256", "jwk": self._key.as_dict(private=False)}

    @classmethod
    def generate(cls, now: Callable[[], float] = time.time) -> DpopKey:
        """Return a new key. Raises KeyUnusable without the library."""
        return cls(new_key(), now)

    def proof(self, method: str, url: str, access_token: str | None = None) -> str:
        """Return the value of the header `DPoP` for one request, which must not be sent twice."""
        claims: dict[str, object] = {
            "jti": secrets.token_urlsafe(16),
            "htm": method,
            "htu": _without_query(url),
            "iat": int(self._now()),
        }
        if access_token is not None:
            digest = hashlib.sha256(access_token.encode()).digest()
            claims["ath"] = base64.urlsafe_b64encode(digest).rstrip(b"=").decode()
        if nonce := self._nonces.get(_origin(url)):
            claims["nonce"] = nonce
        return sign(claims, self._key, self._header)

    def take_nonce(self, url: str, nonce: str | None) -> bool:
        """Remember a nonce for the origin of `url`; return whether it is another than before."""
        if not nonce or len(nonce) > _MAX_NONCE or not nonce.isascii() or not nonce.isprintable():
            return False
        origin = _origin(url)
        is_new = self._nonces.get(origin) != nonce
        if origin not in self._nonces and len(self._nonces) >= _MAX_NONCES:
            self._nonces.clear()
        self._nonces[origin] = nonce
        return is_new


def load_dpop_key(pem: str | None) -> DpopKey | None:
    """Return the key of a login; None if it has none, or if it is no longer usable."""
    try:
        return None if pem is None else DpopKey(pem)
    except KeyUnusable:
        return None  # the server refuses the token, and a person logs in again


def new_key() -> str:
    """Return a new P-256 key as PEM. Raises KeyUnusable without the library."""
    try:
        from joserfc.jwk import ECKey
    except ImportError:
        raise KeyUnusable(
            "the server binds tokens to a key, which needs the package `joserfc`: install mcpd with "
            "the extra `keys`"
        ) from None
    pem: bytes = ECKey.generate_key("P-256", private=True).as_pem(private=True)
    return pem.decode()


def _without_query(url: str) -> str:
    parts = urlsplit(url)
    return urlunsplit((parts.scheme, parts.netloc, parts.path, "", ""))


def _origin(url: str) -> str:
    parts = urlsplit(url)
    return f"{parts.scheme}://{parts.netloc}".lower()

"""Keys that sign: JWTs of clients, and proofs that mcpd possesses the key of a token (DPoP).

`joserfc` is the extra `[keys]`. It is imported on use, because hardly any server needs it. Nothing here
verifies a signature.
"""

from __future__ import annotations

import base64
import hashlib
import secrets
import time
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit, urlunsplit

import msgspec

from mcpd.auth.oauth.urls import origin

if TYPE_CHECKING:
    from joserfc.jwk import ECKey, RSAKey

# ── signing ───────────────────────────────────────────────────────────────────────────────────────────


class KeyUnusable(Exception):
    """The key cannot sign. The message does not quote it."""


def sign_jwt(claims: Mapping[str, object], pem: str) -> str:
    """Return a compact JWS, with ES256 for a P-256 key and RS256 for an RSA key. Raises KeyUnusable."""
    key = load_key(pem)
    return sign(claims, key, {"typ": "JWT", "alg": "ES256" if key.key_type == "EC" else "RS256"})


def sign(claims: Mapping[str, object], key: ECKey | RSAKey, header: Mapping[str, Any]) -> str:
    """Return a compact JWS with this header. Raises KeyUnusable if the key does not fit its `alg`."""
    from joserfc import jws
    from joserfc.errors import JoseError

    try:
        token: str = jws.serialize_compact(dict(header), msgspec.json.encode(claims), key, [header["alg"]])
    except JoseError:
        raise KeyUnusable(f"the private key does not fit the algorithm {header['alg']}") from None
    return token


def _key_types() -> tuple[type[ECKey], type[RSAKey]]:
    try:
        from joserfc.jwk import ECKey, RSAKey
    except ImportError:
        raise KeyUnusable("keys need the package `joserfc`: install mcpd with the extra `keys`") from None
    return ECKey, RSAKey


def load_key(pem: str) -> ECKey | RSAKey:
    """Return the private key in a PEM text. Raises KeyUnusable."""
    kinds = _key_types()
    from joserfc.errors import JoseError

    for kind in kinds:
        try:
            key = kind.import_key(pem)
        except (JoseError, ValueError, TypeError):
            continue
        if key.is_private:
            return key
        raise KeyUnusable("the key is a public one, which cannot sign")
    raise KeyUnusable("the private key is neither a P-256 nor an RSA key in unencrypted PEM")


# ── proofs of possession (RFC 9449) ───────────────────────────────────────────────────────────────────


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
        if nonce := self._nonces.get(origin(url)):
            claims["nonce"] = nonce
        return sign(claims, self._key, self._header)

    def take_nonce(self, url: str, nonce: str | None) -> bool:
        """Remember a nonce for the origin of `url`; return whether it is another than before."""
        if not nonce or len(nonce) > _MAX_NONCE or not nonce.isascii() or not nonce.isprintable():
            return False
        before = self._nonces.get(origin(url))
        self._nonces[origin(url)] = nonce
        return before != nonce


def load_dpop_key(pem: str | None) -> DpopKey | None:
    """Return the key of a login; None if it has none, or if it is no longer usable."""
    try:
        return None if pem is None else DpopKey(pem)
    except KeyUnusable:
        return None  # the server refuses the token, and a person logs in again


def new_key() -> str:
    """Return a new P-256 key as PEM. Raises KeyUnusable without the library."""
    ECKey, _ = _key_types()
    pem: bytes = ECKey.generate_key("P-256", private=True).as_pem(private=True)
    return pem.decode()


def _without_query(url: str) -> str:
    parts = urlsplit(url)
    return urlunsplit((parts.scheme, parts.netloc, parts.path, "", ""))

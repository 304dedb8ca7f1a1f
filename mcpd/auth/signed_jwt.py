"""Signing JSON Web Tokens (RFC 7519) with a private key, by joserfc. Nothing here verifies any.

`joserfc` is the extra `[keys]` and is imported on use, because hardly any server needs it.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import msgspec

if TYPE_CHECKING:
    from joserfc.jwk import ECKey, RSAKey


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


def load_key(pem: str) -> ECKey | RSAKey:
    """Return the private key in a PEM text. Raises KeyUnusable."""
    try:
        from joserfc.errors import JoseError
        from joserfc.jwk import ECKey, RSAKey
    except ImportError:
        raise KeyUnusable("signing needs the package `joserfc`: install mcpd with the extra `keys`") from None
    for kind in (ECKey, RSAKey):
        try:
            key = kind.import_key(pem)
        except (JoseError, ValueError, TypeError):
            continue
        if key.is_private:
            return key
        raise KeyUnusable("the key is a public one, which cannot sign")
    raise KeyUnusable("the private key is neither a P-256 nor an RSA key in unencrypted PEM")

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


def sign_jwt(claims: Mapping[str, object], key: str, algorithm: str) -> str:
    """Return a compact JWS. `key` is PEM; `algorithm` is ES256 or RS256. Raises KeyUnusable."""
    return sign(claims, load_key(key, algorithm), {"typ": "JWT", "alg": algorithm})


def sign(claims: Mapping[str, object], key: ECKey | RSAKey, header: Mapping[str, Any]) -> str:
    """Return a compact JWS with this header. Raises KeyUnusable if the key does not fit its `alg`."""
    from joserfc import jws
    from joserfc.errors import JoseError

    algorithm = header["alg"]
    try:
        token: str = jws.serialize_compact(dict(header), msgspec.json.encode(claims), key, [algorithm])
    except JoseError:
        raise KeyUnusable(f"the private key does not fit the algorithm {algorithm}") from None
    return token


def load_key(pem: str, algorithm: str) -> ECKey | RSAKey:
    """Return the private key in a PEM text. Raises KeyUnusable."""
    try:
        from joserfc.errors import JoseError
        from joserfc.jwk import ECKey, RSAKey
    except ImportError:
        raise KeyUnusable("signing needs the package `joserfc`: install mcpd with the extra `keys`") from None
    kind = ECKey if algorithm == "ES256" else RSAKey
    try:
        key = kind.import_key(pem)
    except JoseError:
        raise KeyUnusable(f"the private key does not fit the algorithm {algorithm}") from None
    except (ValueError, TypeError):
        raise KeyUnusable("the private key is not an unencrypted PEM key") from None
    if not key.is_private:
        raise KeyUnusable("the key is a public one, which cannot sign")
    return key

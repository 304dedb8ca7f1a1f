"""Signing JSON Web Tokens (RFC 7515) with a person's or a company's key. Nothing here verifies any.

`cryptography` is the extra `[keys]` and is imported on use, because hardly any server needs it.
"""

from __future__ import annotations

import base64
from collections.abc import Mapping
from typing import Any

import msgspec


class KeyUnusable(Exception):
    """The key of the definition cannot sign. The message does not quote it."""


def sign_jwt(claims: Mapping[str, object], key: str, algorithm: str, header: Mapping[str, object]) -> str:
    """Return a compact JWS. `key` is PEM; `algorithm` is ES256 or RS256. Raises KeyUnusable."""
    head = encode(msgspec.json.encode({"typ": "JWT", **header, "alg": algorithm}))
    signed = f"{head}.{encode(msgspec.json.encode(claims))}"
    return f"{signed}.{encode(_signature(signed.encode(), load_key(key), algorithm))}"


def load_key(key: str) -> Any:  # noqa: ANN401 - a class of the optional library
    """Return the private key in a PEM text. Raises KeyUnusable."""
    try:
        from cryptography.hazmat.primitives.serialization import load_pem_private_key
    except ImportError:
        raise KeyUnusable(
            "signing needs the package `cryptography`: install mcpd with the extra `keys`"
        ) from None
    try:
        return load_pem_private_key(key.encode(), password=None)
    except (ValueError, TypeError):
        raise KeyUnusable("the private key is not an unencrypted PEM key") from None


def _signature(data: bytes, key: Any, algorithm: str) -> bytes:  # noqa: ANN401
    from cryptography.hazmat.primitives import hashes
    from cryptography.hazmat.primitives.asymmetric import ec, padding, rsa

    if algorithm == "ES256" and isinstance(key, ec.EllipticCurvePrivateKey) and key.curve.name == "secp256r1":
        return sign_es256(key, data)
    if algorithm == "RS256" and isinstance(key, rsa.RSAPrivateKey):
        return key.sign(data, padding.PKCS1v15(), hashes.SHA256())
    raise KeyUnusable(f"the private key does not fit the algorithm {algorithm}")


def sign_es256(key: Any, data: bytes) -> bytes:  # noqa: ANN401
    """Return the signature of a P-256 key as two numbers of 32 bytes (RFC 7518, 3.4)."""
    from cryptography.hazmat.primitives import hashes
    from cryptography.hazmat.primitives.asymmetric import ec, utils

    r, s = utils.decode_dss_signature(key.sign(data, ec.ECDSA(hashes.SHA256())))
    return r.to_bytes(32) + s.to_bytes(32)


def encode(data: bytes) -> str:
    """Return base64url without padding (RFC 7515, 2)."""
    return base64.urlsafe_b64encode(data).rstrip(b"=").decode()

"""Signing JSON Web Tokens, verified by an independent library."""

from __future__ import annotations

import pytest

from mcpd.auth.keys import KeyUnusable, sign_jwt

pytest.importorskip("joserfc")
jwt = pytest.importorskip("jwt")

from cryptography.hazmat.primitives import serialization  # noqa: E402 - optional
from cryptography.hazmat.primitives.asymmetric import ec, rsa  # noqa: E402 - optional

CLAIMS = {"iss": "c", "sub": "c", "aud": "https://as.example", "iat": 1_000_000, "exp": 9_999_999_999}
EC = ec.generate_private_key(ec.SECP256R1())
RSA = rsa.generate_private_key(65_537, 2048)


def pem(key: ec.EllipticCurvePrivateKey | rsa.RSAPrivateKey) -> str:
    encoding, kind = serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8
    return key.private_bytes(encoding, kind, serialization.NoEncryption()).decode()


@pytest.mark.parametrize(("key", "algorithm"), [(EC, "ES256"), (RSA, "RS256")])
def test_others_accept_the_signature(
    key: ec.EllipticCurvePrivateKey | rsa.RSAPrivateKey, algorithm: str
) -> None:
    token = sign_jwt(CLAIMS, pem(key))
    found = jwt.decode(token, key.public_key(), algorithms=[algorithm], audience="https://as.example")
    assert found == CLAIMS
    assert jwt.get_unverified_header(token) == {"typ": "JWT", "alg": algorithm}


def test_a_key_that_cannot_sign_is_not_quoted() -> None:
    kind = serialization.PublicFormat.SubjectPublicKeyInfo
    public = EC.public_key().public_bytes(serialization.Encoding.PEM, kind).decode()
    other_curve = pem(ec.generate_private_key(ec.SECP384R1()))
    for key in ("no key", public, other_curve):
        with pytest.raises(KeyUnusable) as caught:
            sign_jwt(CLAIMS, key)
        assert key not in str(caught.value) or key == "no key"

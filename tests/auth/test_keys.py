"""Proofs of possession and signed JSON Web Tokens, verified by an independent library."""

from __future__ import annotations

import base64
import hashlib

import pytest

from mcpd.auth.keys import DpopKey, KeyUnusable, sign_jwt

pytest.importorskip("joserfc")
jwt = pytest.importorskip("jwt")

from cryptography.hazmat.primitives import serialization  # noqa: E402 - optional
from cryptography.hazmat.primitives.asymmetric import ec, rsa  # noqa: E402 - optional

# ── proofs of possession ─────────────────────────────────────────────────────────────────────────────────

URL = "https://mcp.example/mcp?key=1#x"
NOW = 1_800_000_000.0


def dpop_key() -> DpopKey:
    return DpopKey.generate(lambda: NOW)


def read(proof: str) -> dict[str, object]:
    """Verify a proof with the key in its own header, and return its claims."""
    header = jwt.get_unverified_header(proof)
    assert (header["typ"], header["alg"]) == ("dpop+jwt", "ES256")
    assert set(header["jwk"]) == {"kty", "crv", "x", "y"}  # no private part (RFC 9449, 4.2)
    public = jwt.PyJWK(header["jwk"]).key
    found: dict[str, object] = jwt.decode(proof, public, algorithms=["ES256"], options={"verify_iat": False})
    return found


def test_a_proof_is_for_one_request() -> None:
    """RFC 9449, 4.2."""
    mine = dpop_key()
    one, other = read(mine.proof("POST", URL)), read(mine.proof("POST", URL))
    assert one["htm"] == "POST"
    assert one["htu"] == "https://mcp.example/mcp"
    assert one["iat"] == NOW
    assert one["jti"] != other["jti"]
    assert "ath" not in one


def test_a_proof_names_the_token_that_it_goes_with() -> None:
    """The example of RFC 9449, 7.1."""
    token = "Kz~8mXK1EalYznwH-LC-1fBAo.4Ljp~zsPE_NeO.gxU"
    assert read(dpop_key().proof("GET", URL, token))["ath"] == "fUHyO2r2Z3DZ53EsNrWBb0xWXoaNy59IiKCAqksmQEo"
    digest = base64.urlsafe_b64encode(hashlib.sha256(token.encode()).digest()).rstrip(b"=").decode()
    assert digest == "fUHyO2r2Z3DZ53EsNrWBb0xWXoaNy59IiKCAqksmQEo"


def test_a_nonce_is_used_at_its_origin_until_there_is_another() -> None:
    mine = dpop_key()
    assert mine.take_nonce(URL, "n1")
    assert not mine.take_nonce(URL, "n1")
    assert read(mine.proof("POST", "https://mcp.example/other"))["nonce"] == "n1"
    assert "nonce" not in read(mine.proof("POST", "https://as.example/token"))
    assert mine.take_nonce(URL, "n2")
    assert read(mine.proof("POST", URL))["nonce"] == "n2"


@pytest.mark.parametrize("nonce", [None, "", "a\nb", "ü", "x" * 2000])
def test_an_unusable_nonce_is_ignored(nonce: str | None) -> None:
    assert not dpop_key().take_nonce(URL, nonce)


# ── signed tokens ────────────────────────────────────────────────────────────────────────────────────────

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

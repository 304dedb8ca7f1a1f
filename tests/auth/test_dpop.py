"""Proofs of possession, verified by an independent library."""

from __future__ import annotations

import base64
import hashlib

import pytest

pytest.importorskip("joserfc")
jwt = pytest.importorskip("jwt")

from mcpd.auth.keys import (  # noqa: E402 - needs the optional library
    DpopKey,
)

URL = "https://mcp.example/mcp?key=1#x"
NOW = 1_800_000_000.0


def key() -> DpopKey:
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
    mine = key()
    one, other = read(mine.proof("POST", URL)), read(mine.proof("POST", URL))
    assert one["htm"] == "POST"
    assert one["htu"] == "https://mcp.example/mcp"
    assert one["iat"] == NOW
    assert one["jti"] != other["jti"]
    assert "ath" not in one


def test_a_proof_names_the_token_that_it_goes_with() -> None:
    """The example of RFC 9449, 7.1."""
    token = "Kz~8mXK1EalYznwH-LC-1fBAo.4Ljp~zsPE_NeO.gxU"
    assert read(key().proof("GET", URL, token))["ath"] == "fUHyO2r2Z3DZ53EsNrWBb0xWXoaNy59IiKCAqksmQEo"
    digest = base64.urlsafe_b64encode(hashlib.sha256(token.encode()).digest()).rstrip(b"=").decode()
    assert digest == "fUHyO2r2Z3DZ53EsNrWBb0xWXoaNy59IiKCAqksmQEo"


def test_a_nonce_is_used_at_its_origin_until_there_is_another() -> None:
    mine = key()
    assert mine.take_nonce(URL, "n1")
    assert not mine.take_nonce(URL, "n1")
    assert read(mine.proof("POST", "https://mcp.example/other"))["nonce"] == "n1"
    assert "nonce" not in read(mine.proof("POST", "https://as.example/token"))
    assert mine.take_nonce(URL, "n2")
    assert read(mine.proof("POST", URL))["nonce"] == "n2"


@pytest.mark.parametrize("nonce", [None, "", "a\nb", "ü", "x" * 2000])
def test_an_unusable_nonce_is_ignored(nonce: str | None) -> None:
    assert not key().take_nonce(URL, nonce)

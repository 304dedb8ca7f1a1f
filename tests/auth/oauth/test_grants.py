"""Grants without a browser, and quirks of issuers."""

from __future__ import annotations

from mcpd.auth.oauth import tokens as grants


def test_id_jag() -> None:
    kind, fields = grants.id_jag_exchange(
        "idt", grants.ID_TOKEN, audience="https://as.example", resource="https://mcp.example", scopes=None
    )
    assert kind == "urn:ietf:params:oauth:grant-type:token-exchange"
    assert fields == {
        "requested_token_type": "urn:ietf:params:oauth:token-type:id-jag",
        "audience": "https://as.example",
        "subject_token": "idt",
        "subject_token_type": "urn:ietf:params:oauth:token-type:id_token",
        "resource": "https://mcp.example",
    }
    assert grants.jwt_bearer("jag", resource=None, scopes=("a",)) == (
        "urn:ietf:params:oauth:grant-type:jwt-bearer",
        {"assertion": "jag", "scope": "a"},
    )


def test_claims_of_a_client_assertion() -> None:
    claims = grants.assertion_claims("c", audience="https://as.example", now=1000.7, unique_id="u")
    assert claims == {
        "iss": "c",
        "sub": "c",
        "aud": "https://as.example",
        "iat": 1000,
        "exp": 1300,
        "jti": "u",
    }

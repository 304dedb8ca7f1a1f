"""Token requests, every kind of answer, and grants without a browser."""

from __future__ import annotations

import json
from urllib.parse import parse_qs

import pytest

from mcpd.auth.oauth import tokens as grants
from mcpd.auth.oauth.registration import ClientAuthentication
from mcpd.auth.oauth.tokens import (
    TokenError,
    TokenErrorKind,
    TokenSet,
    code_request,
    parse_token_answer,
    refresh_request,
    revocation_request,
)

ENDPOINT = ("https://as.example/token", ClientAuthentication("client"))
NOW = 1_800_000_000.0
K = TokenErrorKind


def parsed(answer: object, status: int = 200, **options: object) -> TokenSet:
    body = answer if isinstance(answer, bytes) else json.dumps(answer).encode()
    return parse_token_answer(status, body, sent_at=NOW, **options)  # type: ignore[arg-type]


def refused(answer: object, status: int = 400, **options: object) -> TokenError:
    with pytest.raises(TokenError) as caught:
        parsed(answer, status, **options)
    return caught.value


# ── requests ────────────────────────────────────────────────────────────────────────────────────────────


def test_refresh_request_names_scopes_only_when_asked_to() -> None:
    plain = refresh_request(*ENDPOINT, "r", resource="https://mcp.example")
    assert parse_qs(plain.body.decode()) == {
        "grant_type": ["refresh_token"],
        "refresh_token": ["r"],
        "resource": ["https://mcp.example"],
        "client_id": ["client"],
    }
    scoped = parse_qs(refresh_request(*ENDPOINT, "r", scopes=("a", "b")).body.decode())
    assert (scoped["scope"], "resource" in scoped) == (["a b"], False)
    assert b"scope" not in refresh_request(*ENDPOINT, "r", scopes=()).body


def test_requests_do_not_show_their_secrets() -> None:
    endpoint = ("https://as.example/t", ClientAuthentication("id", "client_secret_basic", "hush"))
    for request in (
        refresh_request(*endpoint, "hush"),
        code_request(*endpoint, "hush", redirect_uri="", verifier="hush", resource=None),
        revocation_request("https://as.example/r", endpoint[1], "hush", "refresh_token"),
    ):
        assert "hush" not in repr(request)
        assert "hush" not in repr(endpoint)
    assert "hush" not in repr(TokenSet(access_token="hush", refresh_token="hush"))


# ── answers with tokens ─────────────────────────────────────────────────────────────────────────────────


def test_the_answer_of_rfc_6749() -> None:
    """RFC 6749, 5.1."""
    tokens = parsed(
        {
            "access_token": "2YotnFZFEjr1zCsicMWpAA",
            "token_type": "example",
            "expires_in": 3600,
            "refresh_token": "tGzv3JOkF0XG5Qx2TlKWIA",
        }
        | {"token_type": "bearer"}
    )
    assert tokens == TokenSet(
        access_token="2YotnFZFEjr1zCsicMWpAA",
        refresh_token="tGzv3JOkF0XG5Qx2TlKWIA",
        obtained_at=NOW,
        expires_at=NOW + 3600,
    )
    assert tokens.lifetime == 3600


@pytest.mark.parametrize(
    ("value", "lifetime"),
    [
        (3600, 3600.0),
        ("3600", 3600.0),
        (" 3600 ", 3600.0),
        (59.5, 59.5),
        (0, None),
        (1e-9, None),
        (None, None),
        ("soon", None),
        (True, None),
        (-1, None),
        ([], None),
        (1e300, 100 * 365 * 86_400.0),
    ],
)
def test_a_lifetime_that_cannot_be_read_loses_no_token(value: object, lifetime: float | None) -> None:
    body = json.dumps({"access_token": "a", "expires_in": value}).encode()
    assert parsed(body).lifetime == lifetime


@pytest.mark.parametrize(
    ("value", "kind"), [("Bearer", "Bearer"), ("bEARER", "Bearer"), (None, "Bearer"), ("dpop", "DPoP")]
)
def test_token_types(value: str | None, kind: str) -> None:
    assert parsed({"access_token": "a", "token_type": value}).token_type == kind


@pytest.mark.parametrize("value", ["mac", 7, "N_A"])
def test_an_unknown_token_type_is_unusable(value: object) -> None:
    assert refused({"access_token": "a", "token_type": value}, 200).kind is K.UNUSABLE


def test_the_old_refresh_token_stays_if_the_answer_has_none() -> None:
    assert parsed({"access_token": "a"}, refresh_token="old").refresh_token == "old"
    assert parsed({"access_token": "a", "refresh_token": "new"}, refresh_token="old").refresh_token == "new"
    assert parsed({"access_token": "a"}).refresh_token is None


def test_granted_scopes_are_those_of_the_answer_or_else_of_the_request() -> None:
    assert parsed({"access_token": "a", "scope": "x  y x"}, requested=("z",)).scopes == ("x", "y")
    assert parsed({"access_token": "a"}, requested=("z",)).scopes == ("z",)
    assert parsed({"access_token": "a"}).scopes is None
    assert parsed({"access_token": "a", "scope": ""}, requested=("z",)).scopes == ()


def test_a_form_is_read_as_well() -> None:
    """GitHub answers so unless it is asked for JSON; some proxies drop `Accept`."""
    form = b"access_token=gho_1&scope=repo&token_type=bearer"
    tokens = parsed(form, content_type="application/x-www-form-urlencoded; charset=utf-8")
    assert (tokens.access_token, tokens.scopes) == ("gho_1", ("repo",))


@pytest.mark.parametrize("token", ["", "a b", "a\r\nX: y", "ü", "a" * 20_000, 7, None])
def test_a_token_that_does_not_fit_into_a_header_is_unusable(token: object) -> None:
    assert refused({"access_token": token}, 200).kind is K.UNUSABLE


# ── errors ──────────────────────────────────────────────────────────────────────────────────────────────

REFUSALS = [
    (400, {"error": "invalid_grant"}, K.INVALID_GRANT),
    (401, {"error": "invalid_grant"}, K.INVALID_GRANT),
    (401, {"error": "invalid_client"}, K.INVALID_CLIENT),
    (400, {"error": "unauthorized_client"}, K.INVALID_CLIENT),
    (400, {"error": "invalid_target"}, K.REFUSED),
    (400, {"error": "temporarily_unavailable"}, K.UNAVAILABLE),
    (400, {"error": "never_heard_of"}, K.REFUSED),
    (400, {"error": 7}, K.REFUSED),
    (400, {}, K.REFUSED),
    (404, b"<html>", K.REFUSED),
    (302, b"", K.REFUSED),
    (200, {"error": "bad_refresh_token"}, K.INVALID_GRANT),
    (200, {"error": "incorrect_client_credentials"}, K.INVALID_CLIENT),
    (200, {"error": "invalid_grant", "access_token": "a"}, K.INVALID_GRANT),
    # Nothing of this says anything about the login.
    (500, {"error": "invalid_grant"}, K.UNAVAILABLE),
    (503, b"", K.UNAVAILABLE),
    (429, {"error": "invalid_grant"}, K.UNAVAILABLE),
    (408, b"", K.UNAVAILABLE),
    (200, b"<html>login</html>", K.UNUSABLE),
    (200, b"[]", K.UNUSABLE),
    (200, b"null", K.UNUSABLE),
    (200, b"", K.UNUSABLE),
    (200, b"[" * 5000, K.UNUSABLE),
    (200, b'{"access_token":"a","x":"' + b"x" * (2 << 20) + b'"}', K.UNUSABLE),
    (204, b"", K.UNUSABLE),
    (201, {"access_token": "a"}, K.UNUSABLE),
]


@pytest.mark.parametrize(("status", "answer", "kind"), REFUSALS)
def test_refusals(status: int, answer: object, kind: TokenErrorKind) -> None:
    error = refused(answer, status)
    assert (error.kind, error.status) == (kind, status)
    assert error.message


# ── grants without a browser ────────────────────────────────────────────────────────────────────────────


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

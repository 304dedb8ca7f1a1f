"""Grants without a browser, device codes, and quirks of issuers."""

from __future__ import annotations

import json
from urllib.parse import parse_qs

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mcpd.auth.oauth import grants
from mcpd.auth.oauth.client_authentication import ClientAuthentication
from mcpd.auth.oauth.device_code import DeviceCode, device_request, parse_device_answer, poll_parameters
from mcpd.auth.oauth.issuer_quirks import quirks_of
from mcpd.auth.oauth.token_requests import TokenError, TokenErrorKind
from tests.auth.oauth.test_token_requests import JSON


def test_client_credentials() -> None:
    assert grants.client_credentials(resource="https://mcp.example", scopes=("a", "b")) == (
        "client_credentials",
        {"resource": "https://mcp.example", "scope": "a b"},
    )
    assert grants.client_credentials(resource=None, scopes=None) == ("client_credentials", {})


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


# ── device code ─────────────────────────────────────────────────────────────────────────────────────────

RFC_8628 = {
    "device_code": "GmRhmhcxhwAzkoEqiMEg_DnyEysNkuNhszIySk9eS",
    "user_code": "WDJB-MJHT",
    "verification_uri": "https://example.com/device",
    "verification_uri_complete": "https://example.com/device?user_code=WDJB-MJHT",
    "expires_in": 1800,
    "interval": 5,
}


def parsed(document: object, status: int = 200) -> DeviceCode:
    return parse_device_answer(status, json.dumps(document).encode())


def test_the_answer_of_rfc_8628() -> None:
    """RFC 8628, 3.2."""
    code = parsed(RFC_8628)
    assert code.user_code == "WDJB-MJHT"
    assert (code.lifetime, code.interval) == (1800.0, 5.0)
    assert "GmRh" not in repr(code)
    assert poll_parameters(code, "https://mcp.example") == (
        "urn:ietf:params:oauth:grant-type:device_code",
        {"device_code": RFC_8628["device_code"], "resource": "https://mcp.example"},
    )


def test_the_request_names_the_client_also_if_it_authenticates_with_basic() -> None:
    client = ClientAuthentication("c", "client_secret_basic", "s")
    request = device_request(
        "https://as.example/device", client, resource="https://mcp.example", scopes=("a",)
    )
    assert parse_qs(request.body.decode()) == {
        "client_id": ["c"],
        "scope": ["a"],
        "resource": ["https://mcp.example"],
    }
    assert "Authorization" in request.headers


def test_hostile_values_of_a_device_answer() -> None:
    code = parsed(
        RFC_8628
        | {
            "user_code": "A" * 500,
            "verification_uri_complete": "javascript:1",
            "interval": 1e8,
            "expires_in": -1,
        }
    )
    assert (len(code.user_code), code.verification_uri_complete) == (40, None)
    assert (code.interval, code.lifetime) == (60.0, 1800.0)
    with pytest.raises(TokenError):
        parsed(RFC_8628 | {"verification_uri": "javascript:alert(1)"})


@pytest.mark.parametrize(
    ("status", "document", "kind"),
    [
        (400, {"error": "invalid_client"}, TokenErrorKind.INVALID_CLIENT),
        (200, {"error": "invalid_scope"}, TokenErrorKind.INVALID_SCOPE),
        (200, {"error": 7, "access_token": "a"}, TokenErrorKind.UNUSABLE),
        (503, {}, TokenErrorKind.UNAVAILABLE),
        (200, [], TokenErrorKind.UNUSABLE),
        (200, {}, TokenErrorKind.UNUSABLE),
    ],
)
def test_refusals_of_a_device_request(status: int, document: object, kind: TokenErrorKind) -> None:
    with pytest.raises(TokenError) as caught:
        parsed(document, status)
    assert caught.value.kind is kind


@given(st.dictionaries(st.sampled_from(list(RFC_8628)), JSON) | JSON)
def test_every_json_gives_a_device_code_or_a_token_error(document: object) -> None:
    try:
        code = parsed(document)
    except TokenError as error:
        text = error.message
    else:
        text = code.user_code
    assert text.isprintable()


# ── quirks ──────────────────────────────────────────────────────────────────────────────────────────────


def test_google_issues_refresh_tokens_only_for_extra_parameters() -> None:
    expected = {"access_type": "offline", "prompt": "consent"}
    assert dict(quirks_of("https://accounts.google.com").extra_params) == expected


@pytest.mark.parametrize(
    "issuer", ["https://login.microsoftonline.com/tenant/v2.0", "https://t.ciamlogin.com/tenant/v2.0"]
)
def test_entra_wants_scopes_in_a_refresh_and_no_resource(issuer: str) -> None:
    quirks = quirks_of(issuer)
    assert (quirks.scope_on_refresh, quirks.omit_resource) == (True, True)


@pytest.mark.parametrize(
    ("issuer", "text"),
    [
        ("https://github.com/login/oauth", "personal access token"),
        ("https://slack.com", "callbackPort"),
        ("https://mcp.slack.com", "callbackPort"),
        ("https://api.figma.com", "registers only programs that it knows"),
        ("https://accounts.google.com/", "Desktop app"),
    ],
)
def test_advice_for_issuers_without_registration(issuer: str, text: str) -> None:
    quirks = quirks_of(issuer)
    assert text in quirks.advice
    assert quirks.source.startswith("https://")


@pytest.mark.parametrize(
    "issuer",
    ["https://as.example", "https://evilslack.com", "https://github.com.evil.example", "https://[x", ""],
)
def test_other_issuers_have_none(issuer: str) -> None:
    assert quirks_of(issuer) == quirks_of("https://nobody.example")

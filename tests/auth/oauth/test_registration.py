"""Client registrations, the answers of registration endpoints, and client authentication."""

from __future__ import annotations

import json

import pytest

from mcpd.auth.oauth.registration import (
    ClientAuthentication,
    ClientRegistration,
    NoCommonMethod,
    RegistrationRefused,
    choose_method,
    is_metadata_document_url,
    parse_registration_answer,
    registration_body,
)

ISSUER = "https://as.example"
REDIRECT = "http://127.0.0.1:32180/callback"


def parsed(answer: object, status: int = 201, methods: list[str] | None = None) -> ClientRegistration:
    body = answer if isinstance(answer, bytes) else json.dumps(answer).encode()
    return parse_registration_answer(status, body, issuer=ISSUER, methods=methods)


def refused(answer: object, status: int = 400) -> RegistrationRefused:
    with pytest.raises(RegistrationRefused) as caught:
        parsed(answer, status)
    return caught.value


def test_the_request_declares_a_native_client_that_can_refresh() -> None:
    assert json.loads(
        registration_body(REDIRECT, scopes=("a", "b"), methods=["client_secret_post", "none"])
    ) == {
        "client_name": "mcpd",
        "redirect_uris": [REDIRECT],
        "grant_types": ["authorization_code", "refresh_token"],
        "response_types": ["code"],
        "token_endpoint_auth_method": "none",
        "application_type": "native",
        "scope": "a b",
    }


def test_what_the_server_assigns_is_taken_over() -> None:
    """The example of RFC 7591, 3.2.1."""
    client = parsed(
        {
            "client_id": "s6BhdRkqt3",
            "client_secret": "cf136dc3c1fc93f31185e5885805d",
            "client_id_issued_at": 2893256800,
            "client_secret_expires_at": 2893276800,
            "redirect_uris": ["https://client.example.org/callback"],
            "token_endpoint_auth_method": "client_secret_basic",
        }
    )
    assert client.client_id == "s6BhdRkqt3"
    assert client.method == "client_secret_basic"
    assert client.authentication().headers()["Authorization"].startswith("Basic ")
    assert "cf136" not in repr(client)


@pytest.mark.parametrize(
    ("answer", "methods", "method"),
    [
        ({}, None, "none"),
        ({"client_secret": "s"}, None, "client_secret_basic"),
        ({"client_secret": "s"}, ["client_secret_post"], "client_secret_post"),
        ({"client_secret": "s", "token_endpoint_auth_method": "none"}, None, "none"),  # Figma
        (
            {"client_secret": "s", "token_endpoint_auth_method": "client_secret_post"},
            None,
            "client_secret_post",
        ),
        ({"token_endpoint_auth_method": "none", "client_secret_expires_at": 0}, ["none"], "none"),
    ],
)
def test_the_assigned_authentication_method(
    answer: dict[str, object], methods: list[str] | None, method: str
) -> None:
    assert parsed({"client_id": "c", **answer}, methods=methods).method == method


@pytest.mark.parametrize(
    ("status", "answer", "text"),
    [
        (
            400,
            {"error": "invalid_redirect_uri", "error_description": "no"},
            "HTTP 400: invalid_redirect_uri: no",
        ),
        (403, b"<html>", "HTTP 403"),
        (200, {"error": "invalid_client_metadata"}, "invalid_client_metadata"),
        (201, {}, "no `client_id`"),
        (201, {"client_id": ""}, "no `client_id`"),
        (201, {"client_id": "a\nb"}, "no `client_id`"),
        (201, {"client_id": "c", "token_endpoint_auth_method": "tls"}, "method tls"),
        (
            201,
            {"client_id": "c", "token_endpoint_auth_method": "client_secret_post"},
            "method client_secret_post",
        ),
        (201, {"client_id": "c", "token_endpoint_auth_method": "private_key_jwt"}, "private_key_jwt"),
    ],
)
def test_refusals(status: int, answer: object, text: str) -> None:
    assert text in refused(answer, status).message


@pytest.mark.parametrize(
    ("url", "is_one"),
    [
        ("https://mcpd.example/client.json", True),
        ("https://mcpd.example", False),
        ("https://mcpd.example/", False),
        ("http://mcpd.example/client.json", False),
        ("https://user@mcpd.example/client.json", False),
        ("https://mcpd.example/client.json#x", False),
        ("https:///client.json", False),
        ("https://[x/client.json", False),
        ("abc", False),
    ],
)
def test_urls_of_metadata_documents(url: str, is_one: bool) -> None:
    assert is_metadata_document_url(url) is is_one


# ── client authentication at the token endpoint ─────────────────────────────────────────────────────────

BASIC, POST, NONE, JWT = "client_secret_basic", "client_secret_post", "none", "private_key_jwt"


def test_basic_is_the_example_of_rfc_6749() -> None:
    """RFC 6749, 2.3.1."""
    client = ClientAuthentication("s6BhdRkqt3", "client_secret_basic", "7Fjfp0ZBr1KtDRbnfVdmIw")
    assert client.headers() == {"Authorization": "Basic czZCaGRSa3F0Mzo3RmpmcDBaQnIxS3REUmJuZlZkbUl3"}
    assert client.parameters() == {}


def test_a_secret_is_not_shown() -> None:
    assert "hush" not in repr(ClientAuthentication("id", "client_secret_post", "hush"))


@pytest.mark.parametrize(
    ("supported", "secret", "key", "method"),
    [
        (None, False, False, NONE),
        (None, True, False, BASIC),
        ([], True, False, BASIC),
        ([BASIC, POST], True, False, BASIC),
        ([POST, BASIC], True, False, BASIC),
        ([POST], True, False, POST),
        ([NONE], True, False, NONE),
        ([NONE, POST], True, False, POST),
        ([BASIC], False, False, NONE),
        ([NONE, BASIC], False, False, NONE),
        ([JWT, BASIC], True, True, JWT),
        (None, False, True, JWT),
    ],
)
def test_the_method_follows_what_the_server_supports(
    supported: list[str] | None, secret: bool, key: bool, method: str
) -> None:
    assert choose_method(supported, has_secret=secret, has_key=key) == method


def test_no_common_method_is_an_error_that_names_those_of_the_server() -> None:
    with pytest.raises(NoCommonMethod, match="it wants tls_client_auth"):
        choose_method(["tls_client_auth"], has_secret=True)
    with pytest.raises(NoCommonMethod):
        choose_method([BASIC], has_key=True)

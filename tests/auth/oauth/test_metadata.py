"""Metadata documents: which are used, and which are refused."""

from __future__ import annotations

import json

import pytest

from mcpd.auth.oauth.metadata import (
    AuthorizationServer,
    MetadataError,
    ProtectedResource,
    assumed_authorization_server,
    check_for_code_grant,
    is_same_issuer,
    parse_authorization_server,
    parse_protected_resource,
)

SERVER = "https://mcp.example/mcp"
ISSUER = "https://as.example"
PRM = {"resource": SERVER, "authorization_servers": [ISSUER]}
METADATA = {
    "issuer": ISSUER,
    "authorization_endpoint": f"{ISSUER}/authorize",
    "token_endpoint": f"{ISSUER}/token",
    "code_challenge_methods_supported": ["S256"],
}


def resource(document: object, url: str = SERVER) -> ProtectedResource:
    body = document if isinstance(document, bytes) else json.dumps(document).encode()
    return parse_protected_resource(body, url)


def server(document: object, expected: str = ISSUER, **options: object) -> AuthorizationServer:
    body = document if isinstance(document, bytes) else json.dumps(document).encode()
    return parse_authorization_server(body, expected, **options)  # type: ignore[arg-type]


def test_resource_metadata() -> None:
    found = resource(PRM | {"scopes_supported": ["a", "b"], "dpop_bound_access_tokens_required": True})
    assert found == ProtectedResource(SERVER, (ISSUER,), ("a", "b"), requires_dpop=True)
    assert resource(PRM).scopes is None


@pytest.mark.parametrize(
    ("document", "text"),
    [
        (b"<html>", "not a JSON object"),
        ([], "not a JSON object"),
        ({"authorization_servers": [ISSUER]}, "no `resource`"),
        (
            PRM | {"resource": "https://other.example/mcp"},
            "https://other.example/mcp, which does not include",
        ),
        (PRM | {"resource": "https://mcp.example/mc"}, "does not include"),
        (PRM | {"authorization_servers": []}, "no `authorization_servers`"),
        (PRM | {"authorization_servers": ISSUER}, "no `authorization_servers`"),
        (PRM | {"authorization_servers": ["http://as.example", "javascript:1", 7]}, "no usable URL"),
    ],
)
def test_resource_metadata_that_is_refused(document: object, text: str) -> None:
    with pytest.raises(MetadataError, match=text):
        resource(document)


def test_only_usable_authorization_servers_are_considered() -> None:
    many = ["http://as.example", *(f"https://as{number}.example" for number in range(1000))]
    assert resource(PRM | {"authorization_servers": many}).authorization_servers[0] == "https://as0.example"
    assert len(resource(PRM | {"authorization_servers": many}).authorization_servers) == 16


def test_authorization_server_metadata() -> None:
    found = server(
        METADATA
        | {
            "registration_endpoint": f"{ISSUER}/register",
            "scopes_supported": ["a"],
            "token_endpoint_auth_methods_supported": ["none"],
            "client_id_metadata_document_supported": True,
            "authorization_response_iss_parameter_supported": True,
        }
    )
    assert found.registration_endpoint == f"{ISSUER}/register"
    assert found.auth_methods == ("none",)
    assert found.accepts_client_metadata
    assert found.sends_iss
    check_for_code_grant(found)
    plain = server(METADATA)
    assert (plain.auth_methods, plain.sends_iss, plain.accepts_client_metadata) == (None, False, False)


@pytest.mark.parametrize(
    ("document", "text"),
    [
        (b"null", "not a JSON object"),
        ({}, "no `issuer`"),
        (METADATA | {"issuer": "https://evil.example"}, "https://evil.example, but https://as.example was"),
        (METADATA | {"authorization_endpoint": "javascript:alert(1)"}, "`authorization_endpoint` is not"),
        (METADATA | {"token_endpoint": "http://as.example/token"}, "`token_endpoint` is not an https URL"),
        (METADATA | {"registration_endpoint": 7}, "`registration_endpoint` is not"),
    ],
)
def test_authorization_server_metadata_that_is_refused(document: object, text: str) -> None:
    with pytest.raises(MetadataError, match=text):
        server(document)


@pytest.mark.parametrize(
    ("stated", "expected", "same"),
    [
        (ISSUER, ISSUER, True),
        ("https://accounts.google.com", "https://accounts.google.com/", True),
        (f"{ISSUER}/", ISSUER, True),
        (f"{ISSUER}//", ISSUER, False),
        (f"{ISSUER}/t/", f"{ISSUER}/t", False),
        (f"{ISSUER}/t", f"{ISSUER}/t/", False),
        ("https://AS.example", ISSUER, False),
        (f"{ISSUER}:443", ISSUER, False),
        (f"{ISSUER}?x/", f"{ISSUER}?x", False),
        ("http://as.example", ISSUER, False),
        ("https://[x/", "https://[x", False),
    ],
)
def test_issuers_are_compared_by_character(stated: str, expected: str, same: bool) -> None:
    assert is_same_issuer(stated, expected) is same


def test_the_definition_may_name_another_issuer() -> None:
    """Slack's server names mcp.slack.com, whose metadata is that of slack.com."""
    document = METADATA | {"issuer": "https://slack.com"}
    assert (
        server(document, "https://mcp.slack.com", override="https://slack.com").issuer == "https://slack.com"
    )
    with pytest.raises(MetadataError):
        server(METADATA, ISSUER, override="https://slack.com")


def test_default_endpoints_of_a_server_without_metadata() -> None:
    found = assumed_authorization_server("https://MCP.example:443/v1/mcp")
    assert found.issuer == "https://mcp.example"
    assert found.authorization_endpoint == "https://mcp.example/authorize"
    assert found.token_endpoint == "https://mcp.example/token"
    assert found.registration_endpoint == "https://mcp.example/register"
    check_for_code_grant(found)


def test_a_person_logs_in_only_with_pkce() -> None:
    with pytest.raises(MetadataError, match="S256"):
        check_for_code_grant(server(METADATA | {"code_challenge_methods_supported": ["plain"]}))
    with pytest.raises(MetadataError, match="no `authorization_endpoint`"):
        check_for_code_grant(AuthorizationServer(ISSUER, token_endpoint=f"{ISSUER}/token"))

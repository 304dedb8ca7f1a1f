"""Metadata documents: where they are, what challenges say, which are used, and which are refused."""

from __future__ import annotations

import json

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from mcpd.auth.oauth.challenges import Challenge, parse_challenges, read_challenge
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
from mcpd.auth.oauth.urls import (
    authorization_server_urls,
    canonical,
    covers,
    is_usable,
    origin,
    protected_resource_urls,
)
from tests.sampling import scaled

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
    ],
)
def test_issuers_are_compared_by_character(stated: str, expected: str, same: bool) -> None:
    assert is_same_issuer(stated, expected) is same


@pytest.mark.parametrize("asked", [f"{ISSUER}/tenant", ISSUER])
def test_the_path_of_an_issuer_may_differ_if_nothing_leaves_its_origin(asked: str) -> None:
    stated = METADATA | {"issuer": f"{ISSUER}/other"}
    assert server(stated, asked).issuer == f"{ISSUER}/other"
    for name in ("authorization_endpoint", "token_endpoint", "registration_endpoint"):
        with pytest.raises(MetadataError, match="was asked"):
            server(stated | {name: "https://evil.example/x"}, asked)


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


# ── the header `WWW-Authenticate` ───────────────────────────────────────────────────────────────────────

PRM_URL = "https://mcp.example/.well-known/oauth-protected-resource"

FIELDS: list[tuple[list[str], list[tuple[str, dict[str, str]]]]] = [
    (["Bearer"], [("bearer", {})]),
    (['Bearer realm="x"'], [("bearer", {"realm": "x"})]),
    (["BEARER Realm=x , Scope = y"], [("bearer", {"realm": "x", "scope": "y"})]),
    ([r'Bearer realm="a \"b\", c"'], [("bearer", {"realm": 'a "b", c'})]),
    # RFC 9110, 11.6.1: several challenges in one field.
    (
        ['Basic realm="simple", Newauth realm="apps", type=1, title="Login to \\"apps\\""'],
        [
            ("basic", {"realm": "simple"}),
            ("newauth", {"realm": "apps", "type": "1", "title": 'Login to "apps"'}),
        ],
    ),
    (["Negotiate, Bearer scope=a"], [("negotiate", {}), ("bearer", {"scope": "a"})]),
    (["Negotiate abc==, Bearer"], [("negotiate", {}), ("bearer", {})]),
    (["Bearer a=1", 'DPoP algs="ES256"'], [("bearer", {"a": "1"}), ("dpop", {"algs": "ES256"})]),
    (["Bearer a=1, a=2"], [("bearer", {"a": "1"})]),
    ([""], []),
    ([", ,"], []),
    (['="x"'], []),
    (['Bearer realm="never closed'], [("bearer", {})]),
    (['Bearer error="x" scope="y"'], [("bearer", {"error": "x", "scope": "y"})]),  # without the comma
    (["Bearer {}, realm=x"], [("bearer", {"realm": "x"})]),
]


@pytest.mark.parametrize(("fields", "challenges"), FIELDS)
def test_syntax(fields: list[str], challenges: list[tuple[str, dict[str, str]]]) -> None:
    assert [each for field in fields for each in parse_challenges(field)] == challenges


def test_what_an_mcp_server_says() -> None:
    assert read_challenge(
        [f'Bearer resource_metadata="{PRM_URL}", scope="a b", error="insufficient_scope"']
    ) == (Challenge("bearer", PRM_URL, ("a", "b"), "insufficient_scope"))


def test_bearer_is_preferred_to_dpop_and_other_schemes_are_not_ours() -> None:
    both = read_challenge([f'DPoP algs="ES256", resource_metadata="{PRM_URL}"', "Bearer scope=a"])
    assert both == Challenge("bearer", PRM_URL, ("a",))
    assert read_challenge(["DPoP"]) == Challenge("dpop")
    assert read_challenge(['Basic realm="x"']) is None
    assert read_challenge([]) is None


# ── URLs of metadata, and URLs that a token may be sent to ──────────────────────────────────────────────

PRM_PATH = "/.well-known/oauth-protected-resource"
AS_PATH = "/.well-known/oauth-authorization-server"
OIDC_PATH = "/.well-known/openid-configuration"


@pytest.mark.parametrize(
    ("url", "places"),
    [
        ("https://h.example", [f"https://h.example{PRM_PATH}"]),
        ("https://h.example/", [f"https://h.example{PRM_PATH}"]),
        ("https://h.example/mcp", [f"https://h.example{PRM_PATH}/mcp", f"https://h.example{PRM_PATH}"]),
        ("https://H.example:443/a/b", [f"https://h.example{PRM_PATH}/a/b", f"https://h.example{PRM_PATH}"]),
        (
            "https://h.example:8443/mcp/",
            [f"https://h.example:8443{PRM_PATH}/mcp/", f"https://h.example:8443{PRM_PATH}"],
        ),
        ("http://[::1]:80/mcp?a=b", [f"http://[::1]{PRM_PATH}/mcp?a=b", f"http://[::1]{PRM_PATH}"]),
        ("wss://h.example/mcp", [f"https://h.example{PRM_PATH}/mcp", f"https://h.example{PRM_PATH}"]),
        (
            "https://user:pass@h.example/mcp",
            [f"https://h.example{PRM_PATH}/mcp", f"https://h.example{PRM_PATH}"],
        ),
    ],
)
def test_places_of_the_resource_metadata(url: str, places: list[str]) -> None:
    """RFC 9728, 3.1: between host and path, then at the root."""
    assert list(protected_resource_urls(url)) == places


@pytest.mark.parametrize(
    ("issuer", "places"),
    [
        ("https://as.example", [f"https://as.example{AS_PATH}", f"https://as.example{OIDC_PATH}"]),
        ("https://as.example/", [f"https://as.example{AS_PATH}", f"https://as.example{OIDC_PATH}"]),
        (  # the example of RFC 8414, 3.1
            "https://example.com/issuer1",
            [
                f"https://example.com{AS_PATH}/issuer1",
                f"https://example.com{OIDC_PATH}/issuer1",
                f"https://example.com/issuer1{OIDC_PATH}",
                f"https://example.com{AS_PATH}",
                f"https://example.com{OIDC_PATH}",
            ],
        ),
    ],
)
def test_places_of_the_issuer_metadata(issuer: str, places: list[str]) -> None:
    assert list(authorization_server_urls(issuer)) == places


@pytest.mark.parametrize(
    ("resource", "url", "is_covered"),
    [
        ("https://h.example", "https://h.example/mcp", True),
        ("https://h.example/", "https://h.example/mcp", True),
        ("https://h.example/mcp", "https://h.example/mcp", True),
        ("https://h.example/mcp", "https://h.example/mcp/x", True),
        ("https://h.example/mcp/", "https://h.example/mcp", True),
        ("https://h.example/mcp", "https://h.example/mcp?key=1", True),
        ("https://H.example:443/mcp", "https://h.example/mcp", True),
        ("https://h.example/mcp", "wss://h.example/mcp", True),
        ("https://h.example/mcp", "https://h.example/mcpx", False),
        ("https://h.example/mcp/x", "https://h.example/mcp", False),
        ("https://h.example/MCP", "https://h.example/mcp", False),
        ("http://h.example/mcp", "https://h.example/mcp", False),
        ("https://h.example:8443/mcp", "https://h.example/mcp", False),
        ("https://example/mcp", "https://h.example/mcp", False),
        ("https://h.example.evil.example/mcp", "https://h.example/mcp", False),
        ("https://evil@h.example/mcp", "https://h.example/mcp", False),
        ("https://h.example/mcp#x", "https://h.example/mcp", False),
        ("https://h.example/mcp?tenant=1", "https://h.example/mcp", False),
        ("https://h.example/mcp?tenant=1", "https://h.example/mcp?tenant=1", True),
        ("https://h.example/mcp", "https://h.example/mcp/../admin", False),
        ("https://h.example/mcp", "https://h.example/mcp/%2e%2e/admin", False),
        ("https://h.example/mcp", "https://h.example/mcp/..%2Fadmin", False),
        ("https://h.example/mcp", "https://h.example/mcp/..\\admin", False),
        ("urn:x", "urn:x", False),
        ("", "https://h.example", False),
        ("https://[x", "https://h.example", False),
        ("https://h.example:99999", "https://h.example", False),
    ],
)
def test_a_resource_covers_its_own_path_and_what_is_below(resource: str, url: str, is_covered: bool) -> None:
    assert covers(resource, url) is is_covered


PART = st.sampled_from(
    ["", "/", "mcp", "x", "..", "%2e", "?", "#", "@", ":", "443", "h.example", "evil", "//", "\\"]
)
URL = st.tuples(st.sampled_from(["https://", "http://", "https:", "ws://", ""]), st.lists(PART)).map(
    lambda both: both[0] + "".join(both[1])
)


@settings(max_examples=scaled(1000))
@given(URL, URL)
def test_what_is_covered_has_the_same_origin(resource: str, url: str) -> None:
    if covers(resource, url):
        assert origin(resource) == origin(url)
        assert origin(url).partition("://")[2]


@pytest.mark.parametrize(
    ("url", "resource"),
    [
        ("HTTPS://H.Example:443/MCP", "https://h.example/MCP"),
        ("https://h.example/", "https://h.example"),
        ("https://h.example/mcp/", "https://h.example/mcp/"),
        ("https://user@h.example/mcp?key=1#x", "https://h.example/mcp"),
        ("http://localhost:8080/mcp", "http://localhost:8080/mcp"),
    ],
)
def test_the_resource_of_a_server_without_metadata(url: str, resource: str) -> None:
    assert canonical(url) == resource


@pytest.mark.parametrize(
    ("url", "usable"),
    [
        ("https://as.example/authorize?tenant=1", True),
        ("http://127.0.0.1:9/x", True),
        ("http://localhost:9/x", True),
        ("http://[::1]:9/x", True),
        ("http://as.example/authorize", False),
        ("http://127.0.0.1.evil.example/", False),
        ("http://2130706433/", False),
        ("javascript:alert(1)", False),
        ("file:///etc/passwd", False),
        ("https://user@as.example/", False),
        ("https://as.example/#x", False),
        ("https://as.example/#", False),
        ("https://as.example/a b", False),
        ("https://as.example/\n", False),
        ("https://as.example\\@evil.example/", False),
        ("https://as.example:99999/", False),
        ("https:///x", False),
        ("//as.example/x", False),
        ("https://äs.example/", False),
        ("https://as.example/" + "x" * 9000, False),
        ("https://[x/", False),
        ("", False),
    ],
)
def test_usable_urls(url: str, usable: bool) -> None:
    assert is_usable(url) is usable

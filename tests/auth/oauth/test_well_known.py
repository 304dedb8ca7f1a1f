"""URLs of metadata, and the URLs that a token may be sent to."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from mcpd.auth.oauth.metadata import (
    authorization_server_urls,
    canonical,
    covers,
    is_usable,
    origin,
    protected_resource_urls,
)
from tests.sampling import scaled

PRM = "/.well-known/oauth-protected-resource"
AS = "/.well-known/oauth-authorization-server"
OIDC = "/.well-known/openid-configuration"


@pytest.mark.parametrize(
    ("url", "places"),
    [
        ("https://h.example", [f"https://h.example{PRM}"]),
        ("https://h.example/", [f"https://h.example{PRM}"]),
        ("https://h.example/mcp", [f"https://h.example{PRM}/mcp", f"https://h.example{PRM}"]),
        ("https://H.example:443/a/b", [f"https://h.example{PRM}/a/b", f"https://h.example{PRM}"]),
        (
            "https://h.example:8443/mcp/",
            [f"https://h.example:8443{PRM}/mcp/", f"https://h.example:8443{PRM}"],
        ),
        ("http://[::1]:80/mcp?a=b", [f"http://[::1]{PRM}/mcp?a=b", f"http://[::1]{PRM}"]),
        ("wss://h.example/mcp", [f"https://h.example{PRM}/mcp", f"https://h.example{PRM}"]),
        ("https://user:pass@h.example/mcp", [f"https://h.example{PRM}/mcp", f"https://h.example{PRM}"]),
    ],
)
def test_places_of_the_resource_metadata(url: str, places: list[str]) -> None:
    """RFC 9728, 3.1: between host and path, then at the root."""
    assert list(protected_resource_urls(url)) == places


@pytest.mark.parametrize(
    ("issuer", "places"),
    [
        ("https://as.example", [f"https://as.example{AS}", f"https://as.example{OIDC}"]),
        ("https://as.example/", [f"https://as.example{AS}", f"https://as.example{OIDC}"]),
        (  # the example of RFC 8414, 3.1
            "https://example.com/issuer1",
            [
                f"https://example.com{AS}/issuer1",
                f"https://example.com{OIDC}/issuer1",
                f"https://example.com/issuer1{OIDC}",
            ],
        ),
        (
            "https://example.com/a/b/",
            [
                f"https://example.com{AS}/a/b",
                f"https://example.com{OIDC}/a/b",
                f"https://example.com/a/b{OIDC}",
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


@settings(max_examples=scaled(5000))
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

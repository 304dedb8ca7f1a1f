"""The header `WWW-Authenticate`."""

from __future__ import annotations

import pytest

from mcpd.auth.oauth.metadata import Challenge, parse_challenges, read_challenge

PRM = "https://mcp.example/.well-known/oauth-protected-resource"

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
    assert parse_challenges(fields) == challenges


def test_what_an_mcp_server_says() -> None:
    assert read_challenge([f'Bearer resource_metadata="{PRM}", scope="a b", error="insufficient_scope"']) == (
        Challenge("bearer", PRM, ("a", "b"), "insufficient_scope")
    )


def test_bearer_is_preferred_to_dpop_and_other_schemes_are_not_ours() -> None:
    both = read_challenge([f'DPoP algs="ES256", resource_metadata="{PRM}"', "Bearer scope=a"])
    assert both == Challenge("bearer", PRM, ("a",))
    assert read_challenge(["DPoP"]) == Challenge("dpop")
    assert read_challenge(['Basic realm="x"']) is None
    assert read_challenge([]) is None

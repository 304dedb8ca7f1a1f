"""The member `oauth` of a definition."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from mcpd.config.server_specs import parse_servers
from mcpd.config.settings import Settings
from mcpd.model.errors import BadSpec
from mcpd.model.server_spec import IdentityProvider, OAuthSettings, RemoteSpec, account_problem

URL = "https://mcp.example/mcp"


def parsed(oauth: object, **fields: Any) -> tuple[RemoteSpec, tuple[str, ...]]:
    definition = {"url": URL, "oauth": oauth, **fields}
    found = parse_servers(
        {"a": definition}, environ={}, settings=Settings(), base_dir=Path("/base"), path="$.mcpServers"
    )
    spec = found.specs["a"]
    assert isinstance(spec, RemoteSpec)
    return spec, found.warnings


def settings(oauth: object) -> OAuthSettings:
    return parsed(oauth)[0].oauth


def problems(oauth: object) -> list[str]:
    with pytest.raises(BadSpec) as caught:
        parsed(oauth)
    return [str(problem) for problem in caught.value.problems]


def test_all_members() -> None:
    assert settings(
        {
            "account": "work",
            "clientId": "c",
            "clientSecret": "hush-hush",
            "scopes": ["a", "b"],
            "issuer": "https://as.example",
            "resource": "https://mcp.example",
            "redirectUri": "http://localhost:3118/callback",
            "clientMetadataUrl": "https://c.example/c.json",
            "extraParams": {"prompt": "consent"},
        }
    ) == OAuthSettings(
        account="work",
        client_id="c",
        client_secret="hush-hush",
        scopes=("a", "b"),
        issuer="https://as.example",
        resource="https://mcp.example",
        redirect_uri="http://localhost:3118/callback",
        client_metadata_url="https://c.example/c.json",
        extra_params={"prompt": "consent"},
    )


@pytest.mark.parametrize(
    ("oauth", "scopes"),
    [
        ({"scope": "a b"}, ("a", "b")),
        ({"scopes": "a b"}, ("a", "b")),
        ({"scope": ""}, ()),
        ({"scopes": []}, ()),
        ({"client_id": "c"}, None),
    ],
)
def test_scopes_as_other_products_write_them(
    oauth: dict[str, object], scopes: tuple[str, ...] | None
) -> None:
    assert settings(oauth).scopes == scopes


def test_a_definition_may_forbid_a_login() -> None:
    assert not settings(False).enabled
    assert not settings({"enabled": False}).enabled
    assert not parsed(False)[0].may_log_in
    assert parsed(None)[0].may_log_in
    assert not parsed(None, headers={"authorization": "Bearer x"})[0].may_log_in
    assert not parsed(None, url="https://user:password@mcp.example/mcp")[0].may_log_in


def test_other_grants() -> None:
    found = settings({"grant": "client_credentials", "clientId": "c", "privateKey": "PEM"})
    assert (found.grant, found.private_key) == ("client_credentials", "PEM")
    provider = {"tokenEndpoint": "https://idp.example/token", "clientId": "c", "idToken": "id-token"}
    found = settings({"grant": "enterprise", "identityProvider": provider})
    assert found.identity_provider == IdentityProvider(
        token_endpoint="https://idp.example/token", client_id="c", id_token="id-token"
    )


def test_what_other_products_add_is_a_warning() -> None:
    spec, warnings = parsed({"authorizationUrl": "https://x", "clientId": "c"})
    assert spec.oauth.client_id == "c"
    assert "oauth.authorizationUrl" in warnings[0]


@pytest.mark.parametrize(
    ("oauth", "text"),
    [
        ("yes", "must be an object"),
        ({"redirectUri": "https://example.com/callback"}, "an http URL of this machine"),
        ({"redirectUri": "http://localhost:1/c", "callbackPort": 1}, "mean the same"),
        ({"callbackPort": 70_000}, "from 1 to 65535"),
        ({"issuer": "as.example"}, "is not a URL"),
        ({"identityProvider": {"clientId": "c"}}, "'tokenEndpoint' is missing"),
        ({"account": "a\tb"}, "must not contain control characters"),
    ],
)
def test_problems(oauth: object, text: str) -> None:
    assert any(text in problem for problem in problems(oauth)), problems(oauth)


def test_secrets_are_not_shown() -> None:
    assert "hush" not in repr(settings({"clientSecret": "hush-hush", "privateKey": "hush"}))


def test_another_account_or_client_is_another_connection() -> None:
    plain = parsed(None)[0].identity
    assert parsed({"account": "work"})[0].identity != plain
    assert parsed({"clientSecret": "hush-hush"})[0].identity == plain


@pytest.mark.parametrize("name", ["", "a\nb", " a", "a" * 65])
def test_an_account_has_a_printable_name(name: str) -> None:
    assert account_problem(name)
    assert not account_problem("Ada Lovelace <ada@example.com>")

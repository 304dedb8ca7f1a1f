"""What definitions mean for people on other machines."""

from __future__ import annotations

from pathlib import Path

import attrs
import pytest

from mcpd.config.http import HttpSettings, JwtSettings, parse_address
from mcpd.config.server_specs import parse_servers
from mcpd.config.settings import Settings
from mcpd.config.structuring import Url
from mcpd.model.server_spec import RemoteSpec, SecretReference, ServerSpec

JWT = JwtSettings(issuer=Url("https://login.example"), audience="https://mcp.example/mcp")
HTTP = HttpSettings(listen=parse_address("127.0.0.1:1"), jwt=JWT)
URL = "https://up.example/mcp"


def parse(definition: dict[str, object], http: HttpSettings | None = HTTP) -> ServerSpec:
    found = parse_servers(
        {"it": definition}, environ={}, settings=Settings(http=http), base_dir=Path("/"), path="$"
    )
    return found.specs["it"]


@pytest.mark.parametrize(
    ("definition", "share"),
    [
        ({"url": URL}, "person"),
        ({"url": URL, "oauth": {"clientId": "a"}}, "person"),
        ({"url": URL, "share": "all"}, "all"),
        ({"url": URL, "oauth": False}, "all"),
        ({"url": URL, "headers": {"authorization": "Bearer a"}}, "all"),
        ({"url": URL, "oauth": {"grant": "client_credentials", "clientId": "a"}}, "all"),
        ({"command": "a"}, "all"),
    ],
)
def test_nobody_uses_the_login_of_another(definition: dict[str, object], share: str) -> None:
    """Without people, all clients share a connection."""
    assert parse(definition).share == share
    assert parse(definition, attrs.evolve(HTTP, jwt=None)).share == "all"


def test_secrets_are_the_persons_if_the_definition_says_so() -> None:
    """Except those of mcpd's own client."""
    definition: dict[str, object] = {
        "share": "person",
        "url": f"{URL}?${{secret:A}}",
        "headers": {"X": "${secret:B:-${secret:C}}", "Y": "${file:/f}"},
        "oauth": {"clientId": "a", "clientSecret": "${secret:D}"},
    }
    unresolved = parse(definition).unresolved
    assert unresolved is not None
    found = unresolved.for_person("ada").resolve({})
    assert set(found.unresolved) == {
        SecretReference("secret", ("A@ada",)),
        SecretReference("secret", ("B@ada",)),
        SecretReference("secret", ("C@ada",)),
        SecretReference("file", ("/f",)),
        SecretReference("secret", ("D",)),
    }
    values = {each: each.arguments[0] for each in found.unresolved}
    spec = unresolved.for_person("ada").resolve(values).spec
    assert isinstance(spec, RemoteSpec)
    assert (spec.url, spec.oauth.client_secret) == (f"{URL}?A@ada", "D")
    del definition["share"]  # then only the login is hers
    unresolved = parse(definition).unresolved
    assert unresolved is not None
    found = unresolved.for_person("ada").resolve({})
    assert SecretReference("secret", ("A",)) in found.unresolved


@pytest.mark.parametrize(
    ("changes", "origin"),
    [
        ({}, "https://mcp.example"),
        ({"jwt": attrs.evolve(JWT, audience="api://a")}, "http://127.0.0.1:1"),
        ({"jwt": attrs.evolve(JWT, audience="api://a"), "hosts": ("a.example",)}, "http://a.example:1"),
        (
            {"jwt": attrs.evolve(JWT, audience="a"), "hosts": ("a.example",), "tls": "balancer"},
            "https://a.example",
        ),
    ],
)
def test_people_reach_it_at_the_origin_of_the_audience(changes: dict[str, object], origin: str) -> None:
    assert attrs.evolve(HTTP, **changes).origin == origin  # type: ignore[arg-type]

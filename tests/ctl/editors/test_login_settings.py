"""The login settings of editors' entries."""

from __future__ import annotations

from pathlib import Path

import pytest

from ctl.editors.config_files import BY_NAME
from ctl.editors.convert_entry import MappedEntry, RawEntry, map_entry
from ctl.editors.secrets import extract_secrets, masked_definition
from mcpd.config.server_specs import parse_servers
from mcpd.config.settings import Settings
from mcpd.model.server_spec import RemoteSpec
from tests.ctl.editors.test_variables import translator

URL = "https://mcp.example.com/mcp"


def mapped(editor: str, **fields: object) -> MappedEntry:
    path = Path("/config")
    entry = RawEntry("it", {"url": URL, **fields}, BY_NAME[editor], path, ("mcpServers", "it"), "user")
    return map_entry(entry, translator(editor))


@pytest.mark.parametrize(
    ("editor", "fields", "oauth"),
    [
        (
            "claude-code",
            {"oauth": {"clientId": "abc", "callbackPort": 3118, "scopes": "read write"}},
            {"clientId": "abc", "callbackPort": 3118, "scopes": ["read", "write"]},
        ),
        ("vscode", {"oauth": {"clientId": "abc"}}, {"clientId": "abc"}),
        (
            "cursor",
            {"auth": {"CLIENT_ID": "abc", "CLIENT_SECRET": "${env:SECRET}", "scopes": ["read"]}},
            {"clientId": "abc", "clientSecret": "${SECRET}", "scopes": ["read"]},
        ),
        (
            "opencode",
            {"oauth": {"clientId": "abc", "clientSecret": "{env:SECRET}", "scope": "read"}},
            {"clientId": "abc", "clientSecret": "${SECRET}", "scopes": ["read"]},
        ),
        ("opencode", {"oauth": False}, False),
        ("opencode", {"oauth": {}}, None),
        ("gemini", {"oauth": {"enabled": True}}, None),
        (
            "gemini",
            {
                "oauth": {
                    "clientId": "abc",
                    "redirectUri": "http://localhost:7777/oauth/callback",
                    "tokenUrl": "https://as.example.com/token",
                }
            },
            {"clientId": "abc"},
        ),
        (
            "codex",
            {"oauth_resource": "https://mcp.example.com", "scopes": ["read"]},
            {"resource": "https://mcp.example.com", "scopes": ["read"]},
        ),
        ("claude-code", {"oauth": {"clientId": 7, "callbackPort": "x", "scopes": [1]}}, None),
        ("claude-code", {"oauth": "yes"}, None),
    ],
)
def test_the_login_of_each_editor(editor: str, fields: dict[str, object], oauth: object) -> None:
    """mcpd accepts what is written."""
    definition = mapped(editor, **fields).definition
    assert definition.get("oauth") == oauth
    assert ("oauth" in definition) is (oauth is not None)
    environ = {"SECRET": "hush-hush"}
    found = parse_servers(
        {"it": definition}, environ=environ, settings=Settings(), base_dir=Path("/base"), path="$"
    )
    assert isinstance(found.specs["it"], RemoteSpec)
    assert not any("oauth" in warning for warning in found.warnings)


def test_the_secret_of_a_client_goes_to_the_secret_store() -> None:
    definition = mapped("cursor", auth={"CLIENT_ID": "abc", "CLIENT_SECRET": "hush-hush"}).definition
    taken: dict[str, str] = {}
    lifted = extract_secrets("issues", definition, taken)
    assert lifted.definition["oauth"] == {
        "clientId": "abc",
        "clientSecret": "${secret:ISSUES_CLIENT_SECRET}",
    }
    assert taken == {"ISSUES_CLIENT_SECRET": "hush-hush"}
    assert "hush-hush" not in str(masked_definition(lifted))

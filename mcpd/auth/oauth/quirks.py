"""What to do differently at known authorization servers."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from urllib.parse import urlsplit

import attrs


@attrs.frozen
class Quirks:
    """What to do differently at one issuer."""

    extra_params: Mapping[str, str] = MappingProxyType({})
    """Added to the authorization request."""
    scope_on_refresh: bool = False
    """Whether a refresh must repeat the granted scopes."""
    omit_resource: bool = False
    """Whether the server refuses `resource` together with its own scopes."""
    advice: str = ""
    """What to do if mcpd cannot register itself there."""


_NONE = Quirks()

_BY_HOST: Mapping[str, Quirks] = MappingProxyType(
    {
        # A refresh token is issued only for these parameters:
        # https://developers.google.com/identity/protocols/oauth2/web-server#offline
        "accounts.google.com": Quirks(
            extra_params=MappingProxyType({"access_type": "offline", "prompt": "consent"}),
            advice="create an OAuth client of the type Desktop app in the Google Cloud console, and write "
            "its `clientId` and `clientSecret` into `oauth`",
        ),
        # AADSTS90009 without scopes in a refresh; AADSTS9010010 with `resource`:
        # https://github.com/modelcontextprotocol/csharp-sdk/issues/1587
        "login.microsoftonline.com": Quirks(
            scope_on_refresh=True,
            omit_resource=True,
            advice="register a public client in Entra, and write its `clientId` and `scopes` into `oauth`",
        ),
        "github.com": Quirks(
            advice="create an OAuth app at https://github.com/settings/developers and write its `clientId` "
            "and `clientSecret` into `oauth`, or put a personal access token into the `Authorization` header",
        ),
        "slack.com": Quirks(
            advice='write `"oauth": {"clientId": "…", "callbackPort": 3118}` with the client ID of your '
            "Slack app",
        ),
        "api.figma.com": Quirks(
            advice="Figma registers only programs that it knows; use its local server, or ask Figma for a "
            "client ID",
        ),
    }
)
_BY_SUFFIX: Mapping[str, Quirks] = MappingProxyType(
    {".ciamlogin.com": _BY_HOST["login.microsoftonline.com"], ".slack.com": _BY_HOST["slack.com"]}
)


def quirks_of(issuer: str) -> Quirks:
    """Return the quirks of a validated issuer, by its host."""
    host = (urlsplit(issuer).hostname or "").lower()
    if found := _BY_HOST.get(host):
        return found
    return next((quirks for suffix, quirks in _BY_SUFFIX.items() if host.endswith(suffix)), _NONE)

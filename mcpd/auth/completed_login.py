"""What a login yields, and what an earlier one left: the only values that logins and storage share."""

from __future__ import annotations

from collections.abc import Collection
from typing import Protocol

import attrs

from mcpd.auth.oauth.registration import ClientRegistration
from mcpd.auth.oauth.token_requests import TokenSet


@attrs.frozen(kw_only=True)
class CompletedLogin:
    """Everything that using and renewing a login needs. Secrets are not part of `repr`."""

    server_url: str
    account: str
    issuer: str
    resource: str
    """The tokens may be sent to this URL and to paths below it (`well_known.covers`)."""
    sent_resource: str | None
    """The parameter `resource` of every token request (RFC 8707); None if it is not sent."""
    client: ClientRegistration
    token_endpoint: str
    revocation_endpoint: str | None
    requested: tuple[str, ...] | None
    """The requested scopes; None if there was no such parameter."""
    tokens: TokenSet
    dpop_key: str | None = attrs.field(default=None, repr=False)
    """The PEM key that the tokens are bound to."""


class KnownClients(Protocol):
    """What earlier logins left."""

    async def known_issuers(self) -> Collection[str]:
        """Return the issuers for which there is a login or a registration."""

    async def registration(self, issuer: str, redirect_uri: str | None) -> ClientRegistration | None:
        """Return the dynamic registration at an issuer, for the host of a demanded redirect URI."""

    async def bound_issuer(self, client_id: str) -> str | None:
        """Return the issuer at which a client of a definition was used before."""

    async def forget_registration(self, client: ClientRegistration) -> None:
        """Forget a dynamic registration that the issuer no longer knows."""

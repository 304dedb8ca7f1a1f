"""The OAuth clients of earlier logins in the store, for use by a new login."""

from __future__ import annotations

from collections.abc import Collection
from contextlib import suppress

from mcpd.auth.oauth.registration import ClientRegistration
from mcpd.auth.stored_login import RedirectKind
from mcpd.auth.token_manager import TokenManager
from mcpd.auth.token_store import StoreError


class StoredClients:
    """The `KnownClients` of the token manager."""

    def __init__(self, manager: TokenManager) -> None:
        self._manager = manager

    async def known_issuers(self) -> Collection[str]:
        return {each.issuer for each in await self._manager.statuses()}

    async def registration(self, issuer: str, redirect_uri: str | None) -> ClientRegistration | None:
        return await self._manager.client(issuer, redirect_kind(redirect_uri))

    async def bound_issuer(self, client_id: str) -> str | None:
        return await self._manager.issuer_of_client(client_id)

    async def forget_registration(self, client: ClientRegistration) -> None:
        for uri in client.redirect_uris[:1]:
            with suppress(StoreError):  # it is in the status
                await self._manager.set_client(client.issuer, redirect_kind(uri), None)


def redirect_kind(uri: str | None) -> RedirectKind:
    """Return what a registration depends on: the host of the redirect URI."""
    if uri is None or uri.startswith("http://127.0.0.1"):
        return "127.0.0.1"
    return "localhost" if uri.startswith("http://localhost") else "other"

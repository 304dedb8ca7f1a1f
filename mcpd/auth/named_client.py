"""The client that a person specifies for a login, instead of in the definition: `mcpctl login --client-id`.

It is stored with the login, together with the name of its secret. The secret stays in the secret store.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable

import attrs

from mcpd.auth.discovery import LoginError
from mcpd.auth.stored_login import StoredLogin
from mcpd.model.login import LoginParams
from mcpd.model.oauth_settings import OAuthSettings

FetchSecret = Callable[[str], Awaitable[str]]
"""Returns a secret of the store. Raises LoginError."""


async def with_client_named_now(
    settings: OAuthSettings, params: LoginParams, fetch_secret: FetchSecret
) -> OAuthSettings:
    """Return the settings with the client that the person specifies for this login. Raises LoginError."""
    if params.callback_port is not None:
        if not 0 < params.callback_port <= 65_535:
            raise LoginError("client", f"{params.callback_port} is not a valid port; use 1 to 65535")
        redirect_uri = f"http://localhost:{params.callback_port}/callback"
        settings = attrs.evolve(settings, redirect_uri=redirect_uri)
    if params.client_id is None:
        if params.client_secret_name is not None:
            raise LoginError("client", "a client secret requires a client ID")
        return settings
    return await _with_client(settings, params.client_id, params.client_secret_name, fetch_secret)


async def with_client_of_login(
    settings: OAuthSettings, stored: StoredLogin | None, fetch_secret: FetchSecret
) -> OAuthSettings:
    """Return the settings with the client that a person specified for an earlier login. Raises LoginError.

    A client in the definition takes precedence.
    """
    if stored is None or settings.client_id is not None:
        return settings
    client = stored.client
    if client.origin != "pre-registered" or (client.secret_name is None and client.method != "none"):
        return settings
    if settings.redirect_uri is None and client.redirect_uris:
        settings = attrs.evolve(settings, redirect_uri=client.redirect_uris[0])
    return await _with_client(settings, client.client_id, client.secret_name, fetch_secret)


async def _with_client(
    settings: OAuthSettings, client_id: str, secret_name: str | None, fetch_secret: FetchSecret
) -> OAuthSettings:
    secret = None if secret_name is None else await fetch_secret(secret_name)
    return attrs.evolve(
        settings,
        client_id=client_id,
        client_secret=secret,
        client_secret_name=secret_name,
        private_key=None,
    )

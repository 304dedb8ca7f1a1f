"""The client that a person specifies for a login, instead of in the definition: `mcpctl login --client-id`.

It is stored with the login, together with the name of its secret. The secret stays in the secret store.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable

import attrs

from mcpd.auth.discovery import LoginError
from mcpd.auth.oauth.registration import ClientRegistration
from mcpd.auth.stored_login import StoredLogin
from mcpd.model.login import LoginParams
from mcpd.model.oauth_settings import OAuthSettings

FetchSecret = Callable[[str], Awaitable[str]]
"""Returns a secret of the store. Raises LoginError."""


async def with_named_client(
    settings: OAuthSettings, params: LoginParams, stored: StoredLogin | None, fetch_secret: FetchSecret
) -> tuple[OAuthSettings, str | None]:
    """Return the settings with the client that a person specifies now, and the name of its secret.

    Without one, it is the client that was specified for the earlier login `stored`, unless the definition has
    a client. Raises LoginError.
    """
    if params.callback_port is not None:
        if not 0 < params.callback_port <= 65_535:
            raise LoginError("client", f"{params.callback_port} is not a valid port; use 1 to 65535")
        redirect_uri = f"http://localhost:{params.callback_port}/callback"
        settings = attrs.evolve(settings, redirect_uri=redirect_uri)
    client_id, secret_name = params.client_id, params.client_secret_name
    if client_id is None:
        if secret_name is not None:
            raise LoginError("client", "a client secret requires a client ID")
        if stored is None or settings.client_id is not None or not _was_named(stored.client):
            return settings, None
        client_id, secret_name = stored.client.client_id, stored.client.secret_name
        if settings.redirect_uri is None and stored.client.redirect_uris:
            settings = attrs.evolve(settings, redirect_uri=stored.client.redirect_uris[0])
    secret = None if secret_name is None else await fetch_secret(secret_name)
    settings = attrs.evolve(settings, client_id=client_id, client_secret=secret, private_key=None)
    return settings, secret_name


def _was_named(client: ClientRegistration) -> bool:
    return client.origin == "pre-registered" and (client.secret_name is not None or client.method == "none")

"""Revoking the tokens of a login (RFC 7009)."""

from __future__ import annotations

from mcpd.auth.discovery import LoginError
from mcpd.auth.oauth.token_requests import TokenError, TokenRequest, revocation_request
from mcpd.auth.stored_login import StoredLogin
from mcpd.auth.token_manager import TokenManager


def request_to_revoke(stored: StoredLogin, manager: TokenManager) -> TokenRequest | None:
    """Return the request that revokes the refresh token, or the access token without one.

    None if the server offers none, or if the client cannot authenticate. Call it before the login is removed.
    """
    tokens = stored.tokens
    if stored.revocation_endpoint is None:
        return None
    try:
        return revocation_request(
            stored.revocation_endpoint,
            manager.authentication(stored),
            tokens.refresh_token or tokens.access_token,
            "refresh_token" if tokens.refresh_token else "access_token",
        )
    except (TokenError, LoginError):
        return None

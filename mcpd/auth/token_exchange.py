"""Sending a token request, as the right client."""

from __future__ import annotations

import secrets
import time
from collections.abc import Callable, Iterable
from functools import partial

from mcpd.auth.discovery import LoginError
from mcpd.auth.guarded_fetch import GuardedFetch
from mcpd.auth.oauth.client_authentication import ClientAuthentication
from mcpd.auth.oauth.grants import assertion_claims
from mcpd.auth.oauth.registration import ClientRegistration
from mcpd.auth.oauth.token_requests import TokenRequest, TokenSet, parse_token_answer
from mcpd.auth.signed_jwt import KeyUnusable, sign_jwt
from mcpd.model.oauth_settings import OAuthSettings

Now = Callable[[], float]


async def request_tokens(
    fetch: GuardedFetch, request: TokenRequest, *, requested: Iterable[str] | None, now: Now = time.time
) -> TokenSet:
    """Send a token request and return the tokens. Raises FetchError without an answer, and TokenError."""
    sent_at = now()
    answer = await fetch.post(request)
    return parse_token_answer(
        answer.status, answer.body, sent_at=sent_at, content_type=answer.content_type, requested=requested
    )


def client_authentication(
    client: ClientRegistration, settings: OAuthSettings, now: Now = time.time
) -> ClientAuthentication:
    """Return how a client authenticates, with the key of the definition if it has one. Raises LoginError."""
    if client.method != "private_key_jwt":
        return client.authentication()
    if settings.private_key is None:
        raise LoginError("client", "the client signs its requests, but the definition has no `privateKey`")
    return client.authentication(partial(_sign_assertion, client, settings.private_key, settings, now))


def _sign_assertion(client: ClientRegistration, key: str, settings: OAuthSettings, now: Now) -> str:
    claims = assertion_claims(
        client.client_id, audience=client.issuer, now=now(), unique_id=secrets.token_urlsafe(16)
    )
    try:
        return sign_jwt(claims, key, settings.algorithm, {})
    except KeyUnusable as error:
        raise LoginError("client", str(error)) from None

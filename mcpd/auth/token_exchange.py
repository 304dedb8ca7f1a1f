"""Sending a token request, as the right client."""

from __future__ import annotations

import secrets
import time
from collections.abc import Callable, Iterable
from functools import partial

import attrs

from mcpd.auth.discovery import Discovery, LoginError
from mcpd.auth.dpop import DpopKey
from mcpd.auth.guarded_fetch import Answer, GuardedFetch
from mcpd.auth.oauth.client_authentication import ClientAuthentication
from mcpd.auth.oauth.grants import assertion_claims
from mcpd.auth.oauth.registration import ClientRegistration
from mcpd.auth.oauth.token_requests import TokenRequest, TokenSet, parse_token_answer
from mcpd.auth.signed_jwt import KeyUnusable, sign_jwt
from mcpd.model.oauth_settings import OAuthSettings

Now = Callable[[], float]


async def request_tokens(
    fetch: GuardedFetch,
    request: TokenRequest,
    *,
    requested: Iterable[str] | None,
    key: DpopKey | None = None,
    now: Now = time.time,
) -> TokenSet:
    """Send a token request and return the tokens. Raises FetchError without an answer, and TokenError.

    With `key`, the tokens are bound to it.
    """
    sent_at = now()
    answer = await post_with_proof(fetch, request, key)
    return parse_token_answer(
        answer.status, answer.body, sent_at=sent_at, content_type=answer.content_type, requested=requested
    )


async def post_with_proof(fetch: GuardedFetch, request: TokenRequest, key: DpopKey | None) -> Answer:
    """Send a token request, with a proof of `key` if there is one (RFC 9449, 5). Raises FetchError.

    A server that wants a nonce in the proof has done nothing yet, so the request is sent once more (8).
    """
    if key is None:
        return await fetch.post(request)
    answer = await fetch.post(_with_proof(request, key))
    is_new = key.take_nonce(request.url, answer.headers.get("dpop-nonce"))
    if is_new and answer.status in (400, 401) and b"use_dpop_nonce" in answer.body:
        answer = await fetch.post(_with_proof(request, key))
    return answer


def _with_proof(request: TokenRequest, key: DpopKey) -> TokenRequest:
    return attrs.evolve(request, headers={**request.headers, "DPoP": key.proof("POST", request.url)})


def generate_key(found: Discovery) -> DpopKey | None:
    """Return a new key if the server wants tokens that are bound to one (RFC 9449). Raises LoginError."""
    challenged = found.challenge is not None and found.challenge.scheme == "dpop"
    required = found.metadata is not None and found.metadata.requires_dpop
    if not (challenged or required):
        return None
    if found.server.dpop_algorithms and "ES256" not in found.server.dpop_algorithms:
        message = f"{found.server.issuer} binds tokens to keys, but not with the algorithm ES256"
        raise LoginError("token", message)
    try:
        return DpopKey.generate()
    except KeyUnusable as error:
        raise LoginError("token", str(error)) from None


def client_authentication(
    client: ClientRegistration, settings: OAuthSettings, now: Now = time.time
) -> ClientAuthentication:
    """Return how a client authenticates, with the key of the definition if it has one. Raises LoginError."""
    if client.method != "private_key_jwt":
        return client.authentication()
    if settings.private_key is None:
        raise LoginError("client", "the client signs its requests, but the definition has no `privateKey`")
    return client.authentication(partial(_sign_assertion, client, settings.private_key, now))


def _sign_assertion(client: ClientRegistration, key: str, now: Now) -> str:
    claims = assertion_claims(
        client.client_id, audience=client.issuer, now=now(), unique_id=secrets.token_urlsafe(16)
    )
    try:
        return sign_jwt(claims, key)
    except KeyUnusable as error:
        raise LoginError("client", str(error)) from None

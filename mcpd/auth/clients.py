"""Which client mcpd is at an authorization server, and how it proves that: registered already, described by a
document, or registered now.
"""

from __future__ import annotations

import secrets
import time
from collections.abc import Awaitable, Callable, Collection, Iterable
from functools import partial

import attrs

from mcpd.auth.discovery import Discovery, LoginError, step_failed
from mcpd.auth.guarded_fetch import FetchError, GuardedFetch
from mcpd.auth.keys import KeyUnusable, sign_jwt
from mcpd.auth.oauth.metadata import AuthorizationServer
from mcpd.auth.oauth.registration import (
    CLIENT_NAME,
    ClientAuthentication,
    ClientRegistration,
    NoCommonMethod,
    RegistrationRefused,
    choose_method,
    is_metadata_document_url,
    parse_registration_answer,
    registration_body,
)
from mcpd.auth.oauth.tokens import TokenRequest, assertion_claims
from mcpd.auth.token_store import StoredLogin
from mcpd.model.login import LoginParams
from mcpd.model.server_spec import OAuthSettings

STEP = "client"


async def choose_client(
    fetch: GuardedFetch,
    found: Discovery,
    settings: OAuthSettings,
    *,
    redirect_uri: str,
    scopes: Collection[str] | None,
    known: Iterable[StoredLogin],
) -> ClientRegistration:
    """Return the client, in the order of MCP 2025-11-25: pre-registered, by metadata document, dynamic.

    `known`: the earlier logins. If one of them used the client of the definition at another issuer, that is
    an error. A dynamic client is registered for each login, because servers forget those that nobody uses.
    Raises LoginError.
    """
    client = _client_without_registration(found, settings, known)
    if client is not None:
        return client
    if found.server.registration_endpoint is None:
        advice = found.quirks.advice or (
            "register a client there, and write its ID into `oauth.clientId` in the definition, or add "
            "`--client-id` to `mcpctl login`"
        )
        raise LoginError(STEP, f"{found.server.issuer} does not register clients by itself: {advice}")
    return await _register(fetch, found, redirect_uri, scopes, found.server.registration_endpoint)


def describe_client(found: Discovery, settings: OAuthSettings) -> str:
    """Return in words which client `choose_client` would choose, without registering any."""
    client = _client_without_registration(found, settings, ())
    if client is not None:
        what = "the client of the definition" if settings.client_id is not None else "described by"
        return f"{what} {client.client_id}"
    if found.server.registration_endpoint is not None:
        return f"registered by itself as {CLIENT_NAME}"
    return "none: the authorization server registers no clients; set `oauth.clientId`"


def _client_without_registration(
    found: Discovery, settings: OAuthSettings, known: Iterable[StoredLogin]
) -> ClientRegistration | None:
    if settings.client_id is not None:
        return _of_definition(found, settings, settings.client_id, known)
    url = settings.client_metadata_url
    if url is not None and found.server.accepts_client_metadata and is_metadata_document_url(url):
        return ClientRegistration(found.server.issuer, url, "metadata-document")
    return None


def _of_definition(
    found: Discovery, settings: OAuthSettings, client_id: str, known: Iterable[StoredLogin]
) -> ClientRegistration:
    server = found.server
    if is_metadata_document_url(client_id) and settings.client_secret is None and not settings.private_key:
        return ClientRegistration(server.issuer, client_id, "metadata-document")
    bound = [
        each.issuer
        for each in known
        if (each.client.client_id, each.client.origin) == (client_id, "pre-registered")
    ]
    if bound and server.issuer not in bound:
        raise LoginError(
            STEP,
            f"`oauth.clientId` belongs to {bound[0]}, and the server now names {server.issuer}. If that "
            "is right, run `mcpctl logout` for it first, and register a client there",
        )
    client = pre_registered_client(server, settings, client_id)
    demanded = () if settings.redirect_uri is None else (settings.redirect_uri,)
    return attrs.evolve(client, redirect_uris=demanded)


def pre_registered_client(
    server: AuthorizationServer, settings: OAuthSettings, client_id: str
) -> ClientRegistration:
    """Return the client of the definition as the server accepts it. Raises LoginError."""
    has_secret, has_key = bool(settings.client_secret), settings.private_key is not None
    try:
        method = choose_method(server.auth_methods, has_secret=has_secret, has_key=has_key)
    except NoCommonMethod as error:
        raise LoginError(STEP, str(error)) from None
    return ClientRegistration(server.issuer, client_id, "pre-registered", method, settings.client_secret)


async def _register(
    fetch: GuardedFetch,
    found: Discovery,
    redirect_uri: str,
    scopes: Collection[str] | None,
    endpoint: str,
) -> ClientRegistration:
    """Register a client; without the scopes if the server rejects them (RFC 7591, 3.2.2)."""
    server = found.server
    body = registration_body(redirect_uri, scopes=scopes, methods=server.auth_methods)
    try:
        answer = await fetch.post(TokenRequest(endpoint, {"Content-Type": "application/json"}, body))
    except FetchError as error:
        raise step_failed(STEP, error) from None
    try:
        return parse_registration_answer(
            answer.status,
            answer.body,
            issuer=server.issuer,
            methods=server.auth_methods,
        )
    except RegistrationRefused as refusal:
        if scopes and refusal.status in (400, 422):
            return await _register(fetch, found, redirect_uri, None, endpoint)
        raise _registration_error(found, refusal) from None


def _registration_error(found: Discovery, refusal: RegistrationRefused) -> LoginError:
    server = found.server
    if server.is_assumed and refusal.status in (404, 405):
        message = (
            f"{server.issuer} has no metadata for a login and registers no clients. It may want a key "
            "instead: add an `Authorization` header to `headers` in its definition"
        )
        return LoginError(STEP, message)
    advice = f". {found.quirks.advice}" if found.quirks.advice else ""
    message = f"{server.issuer} did not register mcpd: {refusal.message}{advice}"
    return LoginError(STEP, message, try_later=refusal.status >= 500 or refusal.status == 429)


def client_authentication(
    client: ClientRegistration, settings: OAuthSettings, now: Callable[[], float] = time.time
) -> ClientAuthentication:
    """Return how a client authenticates, with the key of the definition if it has one. Raises LoginError."""
    if client.method != "private_key_jwt":
        return client.authentication()
    if settings.private_key is None:
        raise LoginError("client", "the client signs its requests, but the definition has no `privateKey`")
    return client.authentication(partial(_sign_assertion, client, settings.private_key, now))


def _sign_assertion(client: ClientRegistration, key: str, now: Callable[[], float]) -> str:
    claims = assertion_claims(
        client.client_id, audience=client.issuer, now=now(), unique_id=secrets.token_urlsafe(16)
    )
    try:
        return sign_jwt(claims, key)
    except KeyUnusable as error:
        raise LoginError("client", str(error)) from None


# ── a client that a person specifies ──────────────────────────────────────────────────────────────────


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

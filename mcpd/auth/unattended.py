"""Access without a person: client credentials, enterprise-managed authorization, and workload identity.

When the server refuses the current token, mcpd obtains a new one. Nothing is stored. No other grant is tried.
"""

from __future__ import annotations

import time
from collections.abc import Awaitable, Callable, Iterable, Mapping

import trio

from mcpd.auth.clients import client_authentication, pre_registered_client
from mcpd.auth.discovery import Discovery, LoginError, discover, step_failed
from mcpd.auth.guarded_fetch import FetchError, GuardedFetch, request_tokens
from mcpd.auth.oauth.challenges import Challenge, read_challenge
from mcpd.auth.oauth.registration import (
    ClientAuthentication,
    choose_method,
)
from mcpd.auth.oauth.tokens import (
    ID_TOKEN,
    Grant,
    TokenError,
    TokenSet,
    client_credentials,
    id_jag_exchange,
    jwt_bearer,
    token_request,
)
from mcpd.auth.oauth.urls import covers
from mcpd.model.errors import LinkLost, LoginFailed
from mcpd.model.server_spec import OAuthSettings
from mcpd.transports.credentials import UNSIGNED, Refusal, Signature

YOUNG = 60.0
"""Seconds: a token that the server refuses so soon after it was issued is not replaced."""
_EARLY = 10.0
"""Seconds before its end at which a token is replaced."""

Mask = Callable[[Iterable[str]], None]


class UnattendedCredentials:
    """The `Credentials` of a server whose definition names such a grant."""

    def __init__(
        self,
        name: str,
        url: str,
        settings: OAuthSettings,
        environ: Mapping[str, str],
        mask: Mask,
        ca_file: str | None = None,
        now: Callable[[], float] = time.time,
        renew_settings: Callable[[], Awaitable[OAuthSettings]] | None = None,
    ) -> None:
        """`renew_settings` returns the settings with the secrets of now, and raises LoginFailed."""
        self.name = name
        self._url = url
        self._settings = settings
        self._environ = environ
        self._mask = mask
        self._ca_file = ca_file
        self._now = now
        self._renew_settings = renew_settings
        self._is_first = True
        self._lock = trio.Lock()
        self._found: Discovery | None = None
        self._tokens: TokenSet | None = None
        self._signature = UNSIGNED
        self._failure = ""

    # ── Credentials ─────────────────────────────────────────────────────────────────────────────

    def sign(self, method: str, url: str) -> Signature | None:
        tokens, found = self._tokens, self._found
        if tokens is None or found is None or not covers(found.audience, url):
            return UNSIGNED
        if tokens.expires_at is not None and self._now() > tokens.expires_at - min(
            _EARLY, (tokens.lifetime or 0) / 2
        ):
            return None
        return self._signature

    async def sign_when_ready(self, method: str, url: str) -> Signature:
        await self._obtain(self._signature.generation, None)
        return self.sign(method, url) or UNSIGNED

    async def refused(self, refusal: Refusal) -> bool:
        """Obtain a token, or another one if this one has become old. The scopes come from the challenge."""
        if refusal.status not in (401, 403) or (refusal.status == 403 and not refusal.needs_scopes):
            return False
        used = refusal.signature.generation
        if used < self._signature.generation:
            return True
        is_young = self._tokens is not None and self._now() - self._tokens.obtained_at < YOUNG
        if is_young and not refusal.needs_scopes:
            self._failure = "the server refuses the token that was just issued for it"
            return False
        if refusal.repeats > 1:
            return False
        challenge = read_challenge(refusal.headers.get_list("www-authenticate"))
        await self._obtain(used, challenge)
        return self._signature.generation > used

    def advice(self) -> str:
        return self._failure or "the server refused access"

    # ── obtaining ───────────────────────────────────────────────────────────────────────────────

    async def _obtain(self, used: int, challenge: Challenge | None) -> None:
        """Replace the token of generation `used`, once for all who wait. Raises LinkLost."""
        async with self._lock:
            if self._signature.generation > used:
                return
            try:
                tokens = await self._request(challenge)
            except LoginError as error:
                self._failure = str(error)
                if error.try_later:
                    message = f"{self.name}: cannot obtain a token: {error}"
                    raise LinkLost(message, server=self.name, may_have_run=False) from None
                return
            self._mask([tokens.access_token])
            self._failure = ""
            self._tokens = tokens
            self._signature = Signature("Bearer", tokens.access_token, used + 1)

    async def _request(self, challenge: Challenge | None) -> TokenSet:
        """Raises LoginError. Each request after the first looks up the secrets again: assertions expire."""
        if self._renew_settings is not None and not self._is_first:
            try:
                self._settings = await self._renew_settings()
            except LoginFailed as error:
                raise LoginError("definition", error.message) from None
        self._is_first = False
        fetch = GuardedFetch(self._url, self._environ, self._ca_file)
        if self._found is None or challenge is not None:
            self._found = await discover(fetch, self._settings, challenge)
        found = self._found
        if found.server.token_endpoint is None:
            raise LoginError("authorization server", "the metadata has no `token_endpoint`")
        scopes = found.scopes(self._settings)
        grant, parameters = await self._grant(found, scopes)
        request = token_request(found.server.token_endpoint, self._client(found), grant, parameters)
        try:
            return await request_tokens(fetch, request, requested=scopes, now=self._now)
        except (FetchError, TokenError) as error:
            raise step_failed("token", error) from None

    async def _grant(self, found: Discovery, scopes: tuple[str, ...] | None) -> Grant:
        match self._settings.grant:
            case "workload":
                if self._settings.assertion is None:
                    raise LoginError("definition", "`oauth.assertion` is missing")
                return jwt_bearer(self._settings.assertion, resource=found.resource, scopes=scopes)
            case "enterprise":
                assertion = await self._exchange(found, scopes)
                return jwt_bearer(assertion, resource=found.resource, scopes=scopes)
        return client_credentials(resource=found.resource, scopes=scopes)

    def _client(self, found: Discovery) -> ClientAuthentication:
        settings = self._settings
        if settings.client_id is None:
            if settings.grant == "workload":
                return ClientAuthentication("")
            raise LoginError("definition", "`oauth.clientId` is missing")
        client = pre_registered_client(found.server, settings, settings.client_id)
        return client_authentication(client, settings, self._now)

    async def _exchange(self, found: Discovery, scopes: tuple[str, ...] | None) -> str:
        """Exchange the person's ID token for an assertion for the authorization server (RFC 8693)."""
        provider = self._settings.identity_provider
        if provider is None:
            raise LoginError("definition", "`oauth.identityProvider` is missing")
        method = choose_method(None, has_secret=provider.client_secret is not None)
        client = ClientAuthentication(provider.client_id, method, provider.client_secret)
        grant, parameters = id_jag_exchange(
            provider.id_token,
            ID_TOKEN,
            audience=found.server.issuer,
            resource=found.resource,
            scopes=scopes,
        )
        # The definition names this URL, so it may be in a company's own network.
        fetch = GuardedFetch(provider.token_endpoint, self._environ)
        request = token_request(provider.token_endpoint, client, grant, parameters)
        try:
            tokens = await request_tokens(fetch, request, requested=None, is_exchange=True, now=self._now)
        except (FetchError, TokenError) as error:
            raise step_failed("identity provider", error) from None
        self._mask([tokens.access_token])
        return tokens.access_token

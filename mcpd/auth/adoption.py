"""Taking over a login that another program holds.

Its tokens are not trusted: mcpd discovers itself where to send them, and renews them immediately, which
proves that they work. If the authorization server replaces refresh tokens with each renewal, this ends the
login of the other program. That is intended, because two programs must never hold the same refresh token.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from functools import partial
from typing import cast

import attrs
import trio

from mcpd.auth.client_choice import STEP
from mcpd.auth.discovery import Discovery, LoginError, discover, probe
from mcpd.auth.foreign_logins import TOOLS, ForeignLogin, find_foreign_logins, remove_foreign_login
from mcpd.auth.guarded_fetch import FetchError, GuardedFetch
from mcpd.auth.oauth.client_authentication import METHODS, Method, NoCommonMethod, choose_method
from mcpd.auth.oauth.registration import ClientRegistration
from mcpd.auth.oauth.token_requests import TokenSet
from mcpd.auth.stored_login import StoredLogin
from mcpd.auth.token_manager import TokenManager
from mcpd.auth.token_store import StoreError
from mcpd.model.login import AdoptedLogin, AdoptParams, AdoptResult
from mcpd.model.oauth_settings import OAuthSettings
from mcpd.model.server_spec import RemoteSpec


class Adoption:
    """Takes over the logins that other programs hold for some servers."""

    def __init__(self, manager: TokenManager, environ: Mapping[str, str], now: Callable[[], float]) -> None:
        self._manager = manager
        self._environ = environ
        self._now = now

    async def run(
        self, specs: Collection[RemoteSpec], params: AdoptParams, adopted: Callable[[RemoteSpec], None]
    ) -> AdoptResult:
        """Look into the files and, unless it is a dry run, take over one login for each server without one.

        `adopted` is called for each server that has a login then. Raises LoginError for an unknown program.
        """
        if params.tool is not None and params.tool not in TOOLS:
            known = ", ".join(TOOLS)
            raise LoginError("adoption", f"mcpd cannot read the logins of {params.tool}, only of {known}")
        tools = tuple(TOOLS) if params.tool is None else (params.tool,)
        urls = {spec.url for spec in specs}
        # Another program may have made its directory a slow or broken mount.
        search = partial(find_foreign_logins, urls, self._environ, tools)
        found = await trio.to_thread.run_sync(search, abandon_on_cancel=True)
        results: list[AdoptedLogin] = []
        for spec in specs:
            for foreign in found.logins[spec.url]:
                result = AdoptedLogin(
                    server=spec.name, tool=foreign.tool, path=str(foreign.path), outcome="found"
                )
                reason = self._why_not(spec, foreign)
                if reason:
                    result = attrs.evolve(result, outcome="skipped", reason=reason)
                elif not params.dry_run:
                    result = await self._adopt(spec, foreign, result, remove=params.remove)
                    if result.outcome == "adopted":
                        adopted(spec)
                results.append(result)
        return AdoptResult(found=tuple(results), problems=found.problems)

    def _why_not(self, spec: RemoteSpec, foreign: ForeignLogin) -> str:
        login = self._manager.login_of(spec.url, spec.oauth.account)
        if login is not None and login.stored.ended is None:
            return "mcpd is logged in already"
        if foreign.refresh_token is None:
            return "it cannot be renewed"
        return ""

    async def _adopt(
        self, spec: RemoteSpec, foreign: ForeignLogin, result: AdoptedLogin, *, remove: bool
    ) -> AdoptedLogin:
        try:
            replaced = await adopt_login(self._manager, spec, foreign, self._environ, self._now())
        except LoginError as error:
            return attrs.evolve(result, outcome="failed", reason=str(error))
        result = attrs.evolve(result, outcome="adopted", replaced=replaced)
        if not remove:
            return result
        try:
            await trio.to_thread.run_sync(remove_foreign_login, foreign)
        except OSError as error:
            text = f"cannot delete it from the file: {error.strerror or error}"
            return attrs.evolve(result, reason=text)
        return attrs.evolve(result, removed=True)


async def adopt_login(
    manager: TokenManager, spec: RemoteSpec, foreign: ForeignLogin, environ: Mapping[str, str], now: float
) -> bool:
    """Store a login of another program as the login to a server, and renew it.

    Returns whether the refresh token was replaced. Raises LoginError. The login is then forgotten, unless the
    answer to the renewal was lost, since the other program's token may be used up.
    """
    if foreign.refresh_token is None:
        raise LoginError("token", f"{foreign.tool} holds no refresh token; log in instead")
    fetch = GuardedFetch(spec.url, environ, spec.ca_file)
    try:
        found = await discover(fetch, spec.oauth, await probe(fetch))
    except FetchError as error:
        raise LoginError("server", error.message) from None
    if found.server.token_endpoint is None:
        raise LoginError("authorization server", "the metadata has no `token_endpoint`")
    try:
        stored = StoredLogin(
            resource=found.audience,
            issuer=found.server.issuer,
            account=spec.oauth.account,
            client=_client(found, spec.oauth, foreign),
            token_endpoint=found.server.token_endpoint,
            tokens=TokenSet(
                foreign.access_token,
                foreign.refresh_token,
                obtained_at=now,
                expires_at=foreign.expires_at,
                scopes=foreign.scopes,
            ),
            sent_resource=found.resource,
            revocation_endpoint=found.server.revocation_endpoint,
            requested_scopes=foreign.scopes,
            logged_in_at=now,
        )
    except ValueError as error:
        raise LoginError("token", f"the login held by {foreign.tool} is damaged: {error}") from None
    warning = await manager.add_login(stored, spec.url)
    if warning:
        await _give_up(manager, stored)
        raise LoginError("storage", warning)
    before = manager.login_of(spec.url, spec.oauth.account)
    generation = 0 if before is None else before.stored.generation
    status = await manager.renew(stored.id)
    login = manager.login_of(spec.url, spec.oauth.account)
    if status is None or login is None or status.generation == generation:
        reason = "" if status is None else status.reason
        if login is not None and login.stored.is_uncertain:
            raise LoginError("renewal", f"{reason}; the answer may be lost, so mcpd tries again")
        await _give_up(manager, stored)
        raise LoginError("renewal", reason or "the authorization server did not renew it")
    return login.stored.tokens.refresh_token != foreign.refresh_token


def _client(found: Discovery, settings: OAuthSettings, foreign: ForeignLogin) -> ClientRegistration:
    """Return the client of the other program, for renewals only: its redirect URIs are not ours."""
    method: Method
    if foreign.method in METHODS and foreign.method != "private_key_jwt":
        method = cast("Method", foreign.method)
    else:
        try:
            method = choose_method(found.server.auth_methods, has_secret=foreign.client_secret is not None)
        except NoCommonMethod as error:
            raise LoginError(STEP, str(error)) from None
    client = ClientRegistration(
        found.server.issuer, foreign.client_id, "dynamic", method, foreign.client_secret
    )
    is_ours = settings.client_id == foreign.client_id
    return attrs.evolve(client, origin="pre-registered") if is_ours else client


async def _give_up(manager: TokenManager, stored: StoredLogin) -> None:
    """Delete a login that does not work. The other program keeps it."""
    try:
        await manager.remove_login(stored.id)
    except StoreError as error:
        raise LoginError("storage", str(error)) from None

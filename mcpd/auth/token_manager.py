"""All logins of the daemon: which server uses which, and when the next one is renewed.

It starts before the servers and ends after them, since ending a session may need a token. One task sleeps
until the next renewal is due; nothing wakes up in between.
"""

from __future__ import annotations

import math
import random
from collections.abc import AsyncIterator, Awaitable, Callable, Collection
from contextlib import asynccontextmanager, suppress

import attrs
import trio

from mcpd.auth.clients import client_authentication
from mcpd.auth.discovery import LoginError
from mcpd.auth.login_file import LoginFile
from mcpd.auth.oauth.challenges import read_challenge
from mcpd.auth.oauth.registration import ClientAuthentication
from mcpd.auth.oauth.tokens import TokenError, TokenErrorKind, TokenRequest, revocation_request
from mcpd.auth.oauth.urls import covers
from mcpd.auth.renewal import LoginContext, LoginEvent, ManagedLogin, SendTokenRequest
from mcpd.auth.renewal_schedule import Clocks
from mcpd.auth.token_store import StoredLogin, StoreError, TokenStore, server_key
from mcpd.model import advice
from mcpd.model.errors import LinkLost
from mcpd.model.server_spec import NO_SETTINGS, OAuthSettings
from mcpd.model.text import shorten
from mcpd.privacy.redact import Redactor
from mcpd.transports.credentials import UNSIGNED, Refusal, Signature

STOP_TIMEOUT = 10.0
"""Seconds that a renewal has to end when the daemon stops: a lost answer may end the login."""

_UNLOCK_INTERVAL = 10.0
"""Seconds between attempts to read logins whose key is unavailable."""

OnLoginEvent = Callable[[LoginEvent, StoredLogin], None]


class ServerCredentials:
    """The `Credentials` of one server. The login may come, go, and be shared with other servers."""

    def __init__(self, manager: TokenManager, name: str, url: str, account: str) -> None:
        self.name = name
        self.url = url
        self.account = account
        self.ca_file: str | None = None
        self.challenge: tuple[str, ...] = ()
        """The fields `WWW-Authenticate` of the last refusal that remained; untrusted."""
        self._manager = manager

    @property
    def login(self) -> ManagedLogin | None:
        return self._manager.login_of(self.url, self.account)

    def sign(self, method: str, url: str) -> Signature | None:
        login = self.login
        if login is None or not covers(login.stored.resource, url):
            return UNSIGNED
        signature = login.sign()
        return None if signature is None else _bind(login, signature, method, url)

    async def sign_when_ready(self, method: str, url: str) -> Signature:
        login = self.login
        if login is None or not covers(login.stored.resource, url):
            return UNSIGNED
        try:
            return _bind(login, await login.sign_when_ready(), method, url)
        except LinkLost as error:
            raise self._named(error) from None

    async def refused(self, refusal: Refusal) -> bool:
        login = self.login
        self.challenge = tuple(refusal.headers.get_list("www-authenticate"))
        if login is None or refusal.status != 401:
            return False
        if login.dpop is not None and login.dpop.take_nonce(self.url, refusal.headers.get("dpop-nonce")):
            return refusal.repeats == 0  # the token is good, and the proof needs the nonce
        if not refusal.signature.scheme:  # it was sent before somebody logged in, or to another URL
            return refusal.repeats == 0 and login.is_usable
        try:
            return await login.refused(refusal)
        except LinkLost as error:
            raise self._named(error) from None

    def advice(self) -> str:
        login = self.login
        if login is None:
            return advice.to_log_in(self.name)
        challenge = read_challenge(self.challenge)
        if challenge is not None and challenge.needs_more_scopes:
            return _scope_advice(self.name, challenge.scopes or (), login.stored.tokens.scopes or ())
        return advice.to_log_in_again(self.name, login.why_refused())

    def _named(self, error: LinkLost) -> LinkLost:
        return LinkLost(f"{self.name}: {error.message}", server=self.name, may_have_run=False)


def _bind(login: ManagedLogin, signature: Signature, method: str, url: str) -> Signature:
    """Return the signature with a proof for one request, if the token is bound to a key (RFC 9449)."""
    if login.dpop is None or not signature.scheme:
        return signature
    return attrs.evolve(signature, proof=login.dpop.proof(method, url, signature.access_token))


def _scope_advice(name: str, needed: Collection[str], granted: Collection[str]) -> str:
    """Return what helps if a server refuses a good token because of its scopes."""
    scopes = shorten(" ".join(needed), 200) or "more scopes"
    if needed and set(needed) <= set(granted):
        return f"it requires {scopes}, which the login already has; ask the server's operator for help"
    return advice.to_log_in_again(name, f"it requires {scopes}", "to log in with more scopes")


class TokenManager:
    """Enter `running` once. Everything else may be called inside that block only, except where stated."""

    def __init__(
        self,
        store: TokenStore,
        send: SendTokenRequest,
        redactor: Redactor,
        *,
        on_event: OnLoginEvent = lambda event, login: None,
        on_unlocked: Callable[[], None] = lambda: None,
        clocks: Clocks | None = None,
        draw: Callable[[], float] = random.random,
    ) -> None:
        """`on_unlocked` is called when logins can be read whose key was unavailable before."""
        self._clocks = clocks or Clocks()
        self._file = LoginFile(store)
        self._store = store
        self._redactor = redactor
        self._on_event, self._on_unlocked = on_event, on_unlocked
        self._logins: dict[str, ManagedLogin] = {}
        self._servers: dict[str, str] = {}
        """`server_key` → the id of its login; servers without a login are missing."""
        self._settings: dict[str, OAuthSettings] = {}
        """`server_key` and a client ID → the settings that contain what proves this client."""
        self._nursery: trio.Nursery | None = None
        self._timer = trio.CancelScope()
        self._unlocking: trio.CancelScope | None = None
        """The pause before the next attempt to read logins whose key is unavailable."""
        self._context = LoginContext(
            file=self._file,
            send=send,
            clocks=self._clocks,
            random=draw,
            start=self._start,
            mask=self._mask,
            authenticate=self.authentication,
            changed=self._changed,
        )

    @asynccontextmanager
    async def running(self) -> AsyncIterator[None]:
        """Renew tokens inside the block. Leaving it waits up to `STOP_TIMEOUT` for renewals under way."""
        try:
            async with trio.open_nursery() as nursery:
                self._nursery = nursery
                nursery.start_soon(self._watch)
                await self._resume_interrupted()
                try:
                    yield
                finally:
                    self._nursery = None  # no renewal begins from now on
                    nursery.cancel_scope.cancel(reason="the daemon stops")
                    with trio.move_on_after(STOP_TIMEOUT, shield=True):
                        for login in self._logins.values():
                            login.hurry(STOP_TIMEOUT)
                        for login in self._logins.values():
                            await login.wait_renewed()
                            await login.saver.save_unsaved()
        finally:
            self._nursery = None
            self._store.close()

    async def _resume_interrupted(self) -> None:
        """Repeat at once the renewals that a daemon did not finish: some servers accept that for a while."""
        if self._store.exists():
            for login in (await self._file.read()).logins.values():
                if login.attempt_at is not None and login.ended is None:
                    self._manage(login)
            self._timer.cancel()

    # ── servers ─────────────────────────────────────────────────────────────────────────────────

    async def credentials_for(
        self, name: str, url: str, settings: OAuthSettings = NO_SETTINGS
    ) -> ServerCredentials:
        """Return the credentials of a server, whose login is read if there is one."""
        account = settings.account
        key = server_key(url, account)
        if settings.client_id is not None:
            self._settings[f"{key}\n{settings.client_id}"] = settings
            self._redactor.add(filter(None, (settings.client_secret, settings.private_key)))
        if key not in self._servers and self._store.exists():
            found = (await self._file.read()).login_of(url, account)
            if found is not None:
                self._servers[key] = self._manage(found).id
            elif self._store.is_locked and self._unlocking is None and self._start(self._wait_unlocked):
                self._unlocking = trio.CancelScope()
        return ServerCredentials(self, name, url, account)

    def login_of(self, url: str, account: str) -> ManagedLogin | None:
        """Return the login that a server uses, if it was read."""
        return self._logins.get(self._servers.get(server_key(url, account), ""))

    async def _wait_unlocked(self) -> None:
        """Try to read the logins until their key is there: nothing reports that a keyring was unlocked."""
        while self._store.is_locked:
            with trio.move_on_after(_UNLOCK_INTERVAL) as self._unlocking:
                await trio.sleep_forever()
            await self._file.read()
        self._unlocking = None
        self._on_unlocked()

    def _manage(self, stored: StoredLogin) -> ManagedLogin:
        login = self._logins.get(stored.id)
        if login is None:
            login = ManagedLogin(stored, self._context)
            self._logins[login.id] = login
            if self._sleep_until(login.due_at) < self._timer.deadline:
                self._timer.cancel()
        return login

    # ── logging in and out ──────────────────────────────────────────────────────────────────────

    async def add_login(self, login: StoredLogin, url: str) -> None:
        """Store and use what the server at `url` is accessed with from now on. Replaces an earlier login.

        If it cannot be stored, `problem` says so, and it is lost when the daemon stops.
        """
        known = await self.stored(login.id)
        # A renewal under way may still produce the next generation.
        generation = 1 if known is None else known.generation + 2
        login = attrs.evolve(login, generation=generation)
        with suppress(StoreError):
            await self._file.change(lambda found: found.with_login(login, url))
        self._servers[server_key(url, login.account)] = login.id
        self._manage(login).replace(login)
        self._changed(login, "login_done")

    async def stored(self, id: str) -> StoredLogin | None:
        """Return a login as it was last issued."""
        managed = self._logins.get(id)
        return managed.stored if managed is not None else (await self._file.read()).logins.get(id)

    async def remove_login(self, id: str) -> StoredLogin | None:
        """Forget a login, and return it, so that its tokens can be revoked. Raises StoreError."""
        managed, found = self._logins.get(id), await self.stored(id)
        if found is not None:
            await self._file.change(lambda contents: contents.without_login(id))
            self._redactor.forget_tokens(id)
        if managed is not None:
            managed.is_removed = True
            managed.saver.discard()
            del self._logins[id]
            self._servers = {key: named for key, named in self._servers.items() if named != id}
        return found

    async def renew(self, id: str) -> ManagedLogin | None:
        """Renew a login now, because a person asks for it; None if there is no such login."""
        found = await self.stored(id)
        if found is None:
            return None
        managed = self._manage(found)
        managed.renew()
        await managed.wait_renewed()
        return managed

    async def stored_logins(self) -> Collection[StoredLogin]:
        """Return the logins in the file."""
        return (await self._file.read()).logins.values()

    async def logins(self) -> list[tuple[ManagedLogin, tuple[str, ...]]]:
        """Return all logins, also those that no server uses, each with the URLs of its servers."""
        contents = await self._file.read()
        if self._unlocking is not None and not self._store.is_locked:
            self._unlocking.cancel()
        users: dict[str, list[str]] = {}
        for key, id in {**contents.servers, **self._servers}.items():
            users.setdefault(id, []).append(key.partition("\n")[0])
        unused = {
            id: ManagedLogin(stored, self._context)
            for id, stored in contents.logins.items()
            if id not in self._logins
        }
        return [(login, tuple(users.get(id, ()))) for id, login in {**unused, **self._logins}.items()]

    @property
    def problem(self) -> str:
        """Why logins cannot be read, stored or renewed; empty if they can. May be called at any time."""
        if self._store.other_daemon:
            return f"{self._store.other_daemon} keeps the logins; this one only uses them"
        return self._store.problem

    async def check(self) -> str:
        """Return `problem`, or why the key of the logins is unavailable. May take seconds."""
        return self.problem or await self._file.check_key()

    # ── for the logins ──────────────────────────────────────────────────────────────────────────

    def on_resume(self) -> None:
        """Look at the clocks, because the machine was suspended, which delays the timer."""
        self._timer.cancel()

    def _start(self, function: Callable[[], Awaitable[None]]) -> bool:
        if self._nursery is not None:
            self._nursery.start_soon(function)
        return self._nursery is not None

    def _changed(self, stored: StoredLogin, event: LoginEvent | None) -> None:
        self._timer.cancel()
        if event is not None:
            self._on_event(event, stored)

    def _mask(self, stored: StoredLogin, id: str) -> None:
        self._redactor.add_tokens(stored.secrets(), of=id)

    def authentication(self, stored: StoredLogin) -> ClientAuthentication:
        """Return how the client of a login authenticates. Raises TokenError.

        What proves a client of the definition is only there: its secret, or the key that signs each request.
        """
        client, settings = stored.client, NO_SETTINGS
        if client.origin == "pre-registered":
            keys = (f"{key}\n{client.client_id}" for key, id in self._servers.items() if id == stored.id)
            settings = next((self._settings[key] for key in keys if key in self._settings), NO_SETTINGS)
            client = attrs.evolve(client, client_secret=settings.client_secret)
        try:
            return client_authentication(client, settings, self._clocks.wall)
        except LoginError as error:
            raise TokenError(TokenErrorKind.REFUSED, error.message) from None
        except ValueError as error:
            name = client.secret_name
            message = (
                f"{error}, which its definition no longer contains"
                if name is None
                else f"{error}: run `mcpctl secret set {name}`"
            )
            raise TokenError(TokenErrorKind.REFUSED, message) from None

    async def _watch(self) -> None:
        """Renew each login when it is due."""
        while True:
            due = min((login.due_at for login in self._logins.values()), default=math.inf)
            with trio.CancelScope(deadline=self._sleep_until(due)) as self._timer:
                await trio.sleep_forever()
            for login in tuple(self._logins.values()):
                login.on_due()

    def _sleep_until(self, due: float) -> float:
        """Return a time in seconds since boot as `trio.current_time()`."""
        return trio.current_time() + max(0.0, due - self._clocks.boot())


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

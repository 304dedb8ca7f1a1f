"""Logging in and out of remote servers, and the credentials that their connections use.

Created with the first remote server that may need a login, because most daemons have none.
"""

from __future__ import annotations

import time
from collections.abc import Awaitable, Callable, Collection, Mapping, Sequence
from contextlib import suppress
from functools import partial
from pathlib import Path

import attrs
import trio

from mcpd.auth.clients import with_named_client
from mcpd.auth.discovery import LoginError
from mcpd.auth.guarded_fetch import FetchedAnswer, FetchError, GuardedFetch, post_with_proof
from mcpd.auth.keys import load_dpop_key
from mcpd.auth.login import LoginAttempt, LoginRequest, Logins, explain_login, login_failed
from mcpd.auth.login_encryption import login_key
from mcpd.auth.login_users import LoginServers, LoginUsers
from mcpd.auth.oauth.authorization import more_scopes
from mcpd.auth.oauth.challenges import Challenge, read_challenge
from mcpd.auth.oauth.tokens import TokenRequest
from mcpd.auth.person_login import LoginPages
from mcpd.auth.renewal import LoginEvent
from mcpd.auth.token_manager import ServerCredentials, TokenManager, request_to_revoke
from mcpd.auth.token_store import StoredLogin, StoreError, TokenStore
from mcpd.auth.unattended import UnattendedCredentials
from mcpd.io.broadcast import CallbackList
from mcpd.model.errors import InvalidArguments, LoginFailed, Problem, Unsupported
from mcpd.model.events import Event, EventKind
from mcpd.model.login import (
    AuthExplanation,
    AuthStatus,
    ForgottenLogin,
    LoginAnswerParams,
    LoginOffer,
    LoginParams,
    LoginStatus,
    LogoutParams,
    LogoutResult,
    person_id,
)
from mcpd.model.server_spec import (
    LoginStorage,
    OAuthSettings,
    RemoteSpec,
    SecretReference,
    UnavailableSecret,
)
from mcpd.model.status import ServerState, rfc3339
from mcpd.model.text import shorten
from mcpd.privacy.redact import Redactor
from mcpd.process.desktop_notification import LimitedNotifications
from mcpd.transports.credentials import Credentials

Announce = Callable[[Event], None]

NOTIFICATION_INTERVAL = 3600.0
"""Seconds between two notifications about the same server."""
_MAX_REASON = 200


def notify_login_needed(notifications: LimitedNotifications, servers: Collection[str], reason: str) -> None:
    """Notify the user that these servers need a login again. `reason` contains no secrets."""
    names = sorted(servers)
    if names:
        title = f"{shorten(', '.join(names), 80)}: login needed"
        text = f"{shorten(reason, _MAX_REASON)}\nRun: mcpctl login {names[0]}".lstrip()
        notifications.show(title, text, servers)


MAX_STEP_UPS = 10
"""How often a person is asked for more scopes between two ordinary logins to a server."""

ResolveSecrets = Callable[[RemoteSpec], Awaitable[RemoteSpec]]
"""Returns a definition with its secrets. Raises LoginFailed."""
ReadSecret = Callable[[SecretReference], Awaitable[str | UnavailableSecret]]


class LoginService:
    """`run` once. Everything else may be called while it runs."""

    def __init__(
        self,
        servers: LoginServers,
        state_dir: Path,
        *,
        environ: Mapping[str, str],
        redactor: Redactor,
        announce: Announce,
        on_resume: CallbackList[float],
        resolve: ResolveSecrets,
        read_secret: ReadSecret,
        may_notify: Callable[[], bool],
        storage: LoginStorage = "file",
        store: TokenStore | None = None,
    ) -> None:
        """`may_notify`: whether the user wants desktop notifications. `store`: what keeps the logins, if that
        is not the file."""
        self._servers = servers
        self._users = LoginUsers(servers)
        self._environ, self._redactor, self._on_resume = environ, redactor, on_resume
        self._resolve_secrets, self._read_secret = resolve, read_secret
        self._announce = announce
        self._storage = storage
        self._manager = TokenManager(
            store or TokenStore(state_dir, key=login_key(storage, environ)),
            self._send,
            redactor,
            on_event=self._on_login_event,
            on_unlocked=lambda: self._users.reconnect(self._users.credentials),
        )
        self._logins = Logins(self._manager.stored_logins, self._save, environ, self._report)
        self._notifications = LimitedNotifications(
            environ, may_notify, self._logins.start, NOTIFICATION_INTERVAL
        )
        self._step_ups: dict[tuple[str, str], set[frozenset[str]]] = {}
        """By URL and account: the scopes that a person was asked for since the last ordinary login."""

    async def run(self, task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED) -> None:
        """Renew tokens and run logins until cancelled."""
        end = self._on_resume.add(lambda slept: self._manager.on_resume())
        try:
            async with self._manager.running():
                await self._logins.run(task_status)
        finally:
            end()

    async def credentials_for(self, spec: RemoteSpec) -> Credentials | None:
        """Return what the connection to a server is signed with; None if it has credentials of its own."""
        if not spec.may_log_in:
            return None
        if spec.oauth.grant != "code":
            return UnattendedCredentials(
                spec.name,
                spec.url,
                spec.oauth,
                self._environ,
                partial(self._redactor.add_tokens, of=f"server {spec.name}"),
                spec.ca_file,
                renew_settings=partial(self._renew_settings, spec),
            )
        found = self._users.credentials[spec.name] = await self._credentials_of(spec)
        return found

    async def _renew_settings(self, spec: RemoteSpec) -> OAuthSettings:
        """Return the settings of a server with the secrets of now. Raises LoginFailed."""
        servers = self._users.servers([spec.name])
        definition = servers[0].spec if servers else spec
        assert isinstance(definition, RemoteSpec)
        return (await self._resolve_secrets(definition)).oauth

    def known_credentials(self, name: str) -> Credentials | None:
        """Return the credentials of a server if they have been loaded."""
        return self._users.credentials.get(name)

    # ── logging in ──────────────────────────────────────────────────────────────────────────────

    async def begin(self, params: LoginParams) -> LoginOffer:
        """Begin a login, and return what a person needs. Raises UnknownServer, Unsupported, LoginFailed."""
        challenge = self._users.challenge(params.server)
        return await self._begin(await self._request(params, challenge)).wait_offer()

    async def link(
        self, name: str, challenge_fields: Sequence[str], pages: LoginPages | None = None
    ) -> LoginAttempt | None:
        """Begin a login, or join one, for an MCP client whose call was refused with this challenge.
        Returns as soon as it has an offer; None if another replica has stored a login, which is used now.
        `pages`: where people on other machines log in.

        Raises McpdError if no login is possible, and if a person was asked for the same scopes before, or for
        more scopes MAX_STEP_UPS times.
        """
        challenge = read_challenge(challenge_fields) or self._users.challenge(name)
        used = self._users.credentials.get(name)
        had_none = used is not None and used.login is None
        request = await self._request(LoginParams(server=name), challenge, pages)
        if had_none and used is not None and used.login is not None:
            self._servers.get_any(name).reconnect()
            return None
        attempt = self._logins.find(request)
        if attempt is None:
            if challenge is not None and challenge.needs_more_scopes:
                key, scopes = (request.url, request.settings.account), frozenset(challenge.scopes or ())
                asked = self._step_ups.setdefault(key, set())
                if scopes in asked or len(asked) >= MAX_STEP_UPS:
                    message = f"{name}: a person was already asked for these scopes, without success"
                    raise LoginFailed(message, server=name, step="scopes")
                asked.add(scopes)
            attempt = self._begin(request)
        await attempt.wait_offer()
        return attempt

    def _begin(self, request: LoginRequest) -> LoginAttempt:
        """Begin a login. After an ordinary one, a person may be asked for the same scopes again."""
        if request.challenge is None or not request.challenge.needs_more_scopes:
            self._step_ups.pop((request.url, request.settings.account), None)
        return self._logins.begin(request)

    async def _request(
        self, params: LoginParams, challenge: Challenge | None, pages: LoginPages | None = None
    ) -> LoginRequest:
        """Return what to log in to. A login for more scopes keeps the earlier ones (MCP 2026-07-28).

        Raises UnknownServer, Unsupported, LoginFailed.
        """
        spec = await self._resolve(params.server)
        if bool(spec.person) is not (pages is not None):
            raise Unsupported(
                f"{spec.name}: only {spec.person or 'who runs mcpd'} can log in", server=spec.name
            )
        credentials = await self._credentials_of(spec)
        stored = None if credentials.login is None else credentials.login.stored
        try:
            settings, secret_name = await with_named_client(spec.oauth, params, stored, self._fetch_secret)
        except LoginError as error:
            raise login_failed(error, spec.name) from None
        if pages is not None:
            settings = attrs.evolve(settings, redirect_uri=None)
        await self._manager.credentials_for(spec.name, spec.url, settings)
        needed = challenge.scopes or () if challenge is not None and challenge.needs_more_scopes else None
        earlier: tuple[str, ...] = ()
        if params.scopes or needed is not None:
            before = () if stored is None else more_scopes(stored.requested_scopes, stored.tokens.scopes)
            earlier = more_scopes(before, params.scopes, needed)
        return LoginRequest(
            server=spec.name.partition("~")[0],
            url=spec.url,
            settings=settings,
            client_secret_name=secret_name,
            ca_file=spec.ca_file,
            challenge=challenge,
            earlier_scopes=earlier,
            person=spec.person,
            pages=pages,
        )

    def answer(self, params: LoginAnswerParams) -> None:
        """Take the address at which the browser ended. Raises LoginFailed."""
        self._logins.get(params.attempt).answer(params.url)

    async def wait(self, id: str) -> LoginStatus:
        """Return the login when the person has finished. Raises LoginFailed."""
        attempt = self._logins.get(id)
        login = await attempt.wait()
        statuses = await self._statuses(attempt.request.url, login.account)
        found = next(each for each in statuses if each.issuer == login.issuer)
        return attrs.evolve(found, warnings=(self.problem,) if self.problem else ())

    def cancel(self, id: str) -> None:
        """End an attempt. Callers that wait for it get an error."""
        self._logins.get(id).cancel()

    async def _save(self, login: StoredLogin, url: str) -> None:
        """Store a login to the server at `url`, and connect its servers.

        A login for more scopes keeps their sessions, in which other calls may be running.
        """
        known = self._manager.login_of(url, login.account)
        earlier = None if known is None else known.stored
        await self._manager.add_login(login, url)
        has_more = earlier is not None and {*(earlier.requested_scopes or ())} < {
            *(login.requested_scopes or ())
        }
        is_other = earlier is not None and not has_more
        self._users.reconnect(self._users.names(url, login.account), is_other_login=is_other)

    async def _resolve(self, name: str) -> RemoteSpec:
        """Return a server's definition with its secrets. Raises UnknownServer, Unsupported, LoginFailed."""
        spec = self._servers.get_any(name).spec
        if not isinstance(spec, RemoteSpec):
            raise Unsupported(
                f"{name} is a program on this machine, so mcpd cannot log in to it: see its documentation",
                server=name,
            )
        spec = await self._resolve_secrets(spec)
        if spec.oauth.grant != "code":
            raise Unsupported(
                f"{name} needs no person: mcpd obtains its tokens with the grant {spec.oauth.grant}",
                server=name,
            )
        if not spec.may_log_in:
            raise Unsupported(
                f"{name} does not use a login: its definition has credentials, or `oauth` is false",
                server=name,
            )
        return spec

    # ── existing logins ─────────────────────────────────────────────────────────────────────────

    async def logout(self, params: LogoutParams) -> LogoutResult:
        """Forget a server's login, or all, and revoke the tokens if the authorization server offers that.

        Raises UnknownServer, Unsupported, LoginFailed.
        """
        if (params.server is None and params.person is None) is not params.all:
            message = "state a server or a person, or that all logins are meant"
            raise InvalidArguments(message, [Problem("$.server", message)])
        ids = [login.id for login, _ in await self._manager.logins()] if params.all else []
        spec = None if params.server is None else await self._resolve(params.server)
        if params.person is not None:
            begin = person_id(params.person, "http")
            ids = [
                login.id
                for login, urls in await self._manager.logins()
                if login.stored.account.startswith(begin) and (spec is None or spec.url in urls)
            ]
        elif spec is not None:
            login = (await self._credentials_of(spec)).login
            ids = [] if login is None else [login.stored.id]
        forgotten = [each for id in ids if (each := await self._forget(id, params.server)) is not None]
        offered = [each.revoked for each in forgotten if each.revoked is not None]
        return LogoutResult(
            was_logged_in=bool(forgotten),
            servers=tuple(dict.fromkeys(name for each in forgotten for name in each.servers)),
            revoked=all(offered) if offered else None,
            logins=tuple(forgotten),
        )

    async def _forget(self, id: str, name: str | None) -> ForgottenLogin | None:
        """Forget one login; None if somebody else just did. `name`: the server that was stated."""
        stored = await self._manager.stored(id)
        if stored is None:
            return None
        users, ca_file = self._users.servers(self._users.of_login(stored)), self._users.ca_file_of(stored)
        request = request_to_revoke(stored, self._manager)
        try:
            await self._manager.remove_login(id)
        except StoreError as error:
            prefix = f"{name}: " if name else ""
            raise LoginFailed(f"{prefix}{error}", server=name, step="storage") from None
        revoked = False
        if request is not None:
            fetch = GuardedFetch(stored.resource, self._environ, ca_file)
            with suppress(FetchError):
                revoked = (await fetch.post(request)).status == 200
        for server in users:
            server.reconnect()
        return ForgottenLogin(
            url=stored.resource,
            issuer=stored.issuer,
            account=stored.account,
            servers=tuple(server.spec.name for server in users),
            revoked=None if stored.revocation_endpoint is None else revoked,
        )

    async def refresh(self, name: str) -> LoginStatus:
        """Renew a login now. Raises UnknownServer, Unsupported, LoginFailed."""
        spec = await self._resolve(name)
        login = (await self._credentials_of(spec)).login
        if login is None:
            message = f"{name}: nobody is logged in. Run `mcpctl login {name}`"
            raise LoginFailed(message, server=name, step="renewal")
        before = login.stored.generation
        renewed = await self._manager.renew(login.id)
        if renewed is None or renewed.stored.generation == before:
            text = "" if renewed is None else renewed.reason
            over = renewed is None or renewed.state == "over"
            advice = f". Run `mcpctl login {name}`" if over else ""
            text = text or "the authorization server issued no refresh token"
            raise LoginFailed(f"{name}: it was not renewed: {text}{advice}", server=name, step="renewal")
        return (await self._statuses(spec.url, spec.oauth.account))[0]

    @property
    def problem(self) -> str:
        """Why logins cannot be stored or renewed; empty if they can."""
        return self._manager.problem

    async def status(self, name: str | None, *, check: bool = False) -> AuthStatus:
        """Return all logins, or that of one server. Raises UnknownServer. `check`: see `AuthStatusParams`."""
        servers = self._servers.servers() if name is None else [self._servers.get(name)]
        url = account = None
        if name is not None and isinstance(spec := servers[0].spec, RemoteSpec):
            used = self._users.credentials.get(name)
            url, account = spec.url if used is None else used.url, spec.oauth.account
        found = await self._statuses(url, account) if name is None or url is not None else []
        return AuthStatus(
            logins=tuple(found),
            needed=tuple(each.spec.name for each in servers if each.state is ServerState.NEEDS_AUTH),
            problem=await self._manager.check() if check else self._manager.problem,
            storage=self._storage,
        )

    async def _statuses(self, url: str | None = None, account: str | None = None) -> list[LoginStatus]:
        """Return the logins, of the server at `url` and with this account if they are stated."""
        return [
            LoginStatus(
                servers=tuple(
                    sorted(name for each in urls for name in self._users.names(each, login.stored.account))
                ),
                url=login.stored.resource,
                issuer=login.stored.issuer,
                account=login.stored.account,
                state=login.state,
                renews=not login.why_not_renewable(),
                logged_in_at=_time(login.stored.logged_in_at or None),
                renewed_at=_time(login.stored.renewed_at),
                expires_at=_time(login.stored.tokens.expires_at),
                scopes=login.stored.tokens.scopes or (),
                reason=self._redactor.mask(login.reason),
                renewals=login.renewals,
                failed_renewals=login.failed_renewals,
            )
            for login, urls in await self._manager.logins()
            if (url is None or url in urls) and account in (None, login.stored.account)
        ]

    async def _credentials_of(self, spec: RemoteSpec) -> ServerCredentials:
        """Return the credentials of a server, and what proves the client that its login was made with."""
        found = await self._manager.credentials_for(spec.name, spec.url, spec.oauth)
        if found.login is not None and spec.oauth.client_id is None:
            with suppress(LoginError):  # a renewal says what is missing
                asked, stored = LoginParams(server=spec.name), found.login.stored
                settings, _ = await with_named_client(spec.oauth, asked, stored, self._fetch_secret)
                found = await self._manager.credentials_for(spec.name, spec.url, settings)
        used = self._users.credentials.setdefault(spec.name, found)
        found.ca_file = used.ca_file = spec.ca_file
        return found

    async def _fetch_secret(self, name: str) -> str:
        """Return a secret of the store, which is masked from now on. Raises LoginError."""
        reference = SecretReference("secret", (name,))
        found = await self._read_secret(reference)
        if isinstance(found, UnavailableSecret):
            raise LoginError("client", f"{found.message}: {found.fix}")
        self._redactor.add([found])
        return found

    # ── explaining ──────────────────────────────────────────────────────────────────────────────

    async def explain(self, name: str) -> AuthExplanation:
        """Return every step up to the choice of the client. Registers and stores nothing."""
        return await explain_login(await self._resolve(name), self._environ)

    # ── renewals ────────────────────────────────────────────────────────────────────────────────

    def _on_login_event(self, event: LoginEvent, stored: StoredLogin) -> None:
        users = self._users.of_login(stored)
        reason = next((login.why_refused() for login in users.values()), "")
        why = f": {reason}" if reason else ""
        message = {
            "login_done": f"logged in at {stored.issuer}",
            "login_refreshed": f"renewed at {stored.issuer}",
            "renewal_failed": f"not renewed{why}",
            "login_needed": f"needed again{why}",
        }[event]
        for name in users:
            self._report(name, message)
        if event == "login_refreshed":
            self._users.reconnect(users)
        if event == "login_needed":
            own = [name for name in users if "~" not in name]  # a person on another machine gets a link
            notify_login_needed(self._notifications, own, self._redactor.mask(reason))

    def _report(self, server: str, message: str) -> None:
        """Announce what happened to a server's login. The message contains no secret of a login."""
        masked = self._redactor.mask(message)
        self._announce(Event(kind=EventKind.LOGIN, at=rfc3339(time.time()), server=server, message=masked))

    async def _send(self, login: StoredLogin, request: TokenRequest) -> FetchedAnswer:
        """Send the token request of a renewal. Raises FetchError."""
        managed = next(iter(self._users.of_login(login).values()), None)
        key = managed.dpop if managed is not None else load_dpop_key(login.dpop_key)
        fetch = GuardedFetch(login.resource, self._environ, self._users.ca_file_of(login))
        return await post_with_proof(fetch, request, key)


def _time(seconds: float | None) -> str | None:
    return None if seconds is None else rfc3339(seconds)

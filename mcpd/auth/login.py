"""Logins by a person: the attempts in progress, what the browser shows, and how a login would proceed.

    begin ──> discovery, client ──> offer (a link) ──> answer ──> token request ──> outcome

The answer arrives at a loopback listener, or is pasted. An attempt never opens a browser, and never outlives
its deadline. Its error names the step that failed.
"""

from __future__ import annotations

import logging
import secrets
import time
from collections.abc import Awaitable, Callable, Collection, Mapping
from contextlib import AbstractAsyncContextManager, nullcontext
from urllib.parse import urlsplit

import attrs
import trio

from mcpd.auth.clients import choose_client, client_authentication, describe_client
from mcpd.auth.discovery import Discovery, LoginError, discover, probe, require_code_grant, step_failed
from mcpd.auth.guarded_fetch import FetchError, GuardedFetch, request_tokens
from mcpd.auth.keys import DpopKey, KeyUnusable
from mcpd.auth.oauth.authorization import (
    AnswerError,
    AuthorizationRequest,
    UnrelatedAnswer,
    build_request,
    check_pasted,
    more_scopes,
    read_answer,
)
from mcpd.auth.oauth.challenges import Challenge
from mcpd.auth.oauth.registration import ClientRegistration
from mcpd.auth.oauth.tokens import (
    TokenError,
    code_request,
)
from mcpd.auth.person_login import LoginPages, PersonListener
from mcpd.auth.redirect_listener import Page, PortTaken, RedirectListener, open_listener
from mcpd.auth.token_store import StoredLogin
from mcpd.model.errors import LoginFailed
from mcpd.model.login import AuthExplanation, AuthStep, LoginOffer
from mcpd.model.server_spec import DEFAULT_ACCOUNT, OAuthSettings, RemoteSpec
from mcpd.model.status import rfc3339

log = logging.getLogger("mcpd.auth")

StoredLoginsNow = Callable[[], Awaitable[Collection[StoredLogin]]]
"""Returns what earlier logins left."""


# ── pages ─────────────────────────────────────────────────────────────────────────────────────────────


def start_page(offer: LoginOffer, account: str, person: str = "") -> Page:
    """Return the page that names the server and the scopes, and links to the authorization server."""
    users = f"all programs on this machine that use {offer.server} through mcpd share it"
    if person:
        users, account = f"it is used only for you, {person}", DEFAULT_ACCOUNT
    which = "" if account == DEFAULT_ACCOUNT else f" (account {account})"
    requested = f" It requests the scopes {' '.join(offer.scopes)}." if offer.scopes else ""
    text = (
        f"The MCP server {offer.server}{which} requires a login at {offer.issuer}. mcpd keeps the login, and "
        f"{users}.{requested}"
    )
    return Page(
        200, f"Log in to {offer.server}", text, offer.url, f"Continue to {urlsplit(offer.url).netloc}"
    )


# ── one attempt ───────────────────────────────────────────────────────────────────────────────────────


LIFETIME = 600.0
"""Seconds that a person has to finish."""


@attrs.frozen(kw_only=True)
class LoginRequest:
    """What to log in to."""

    server: str = attrs.field(eq=False)
    """Its name, for messages."""
    url: str
    settings: OAuthSettings
    client_secret_name: str | None = attrs.field(default=None, eq=False)
    """The name of the client's secret in the secret store, if a person named the client."""
    ca_file: str | None = attrs.field(default=None, eq=False)
    challenge: Challenge | None = None
    """How the server refused a request; without it, the server is asked."""
    earlier_scopes: tuple[str, ...] = ()
    """Those requested and granted before, which a login for more scopes keeps."""

    person: str = attrs.field(default="", eq=False)
    """For whom it is, if not for the person who runs mcpd."""
    pages: LoginPages | None = attrs.field(default=None, eq=False)
    """Where that person's browser goes to."""

    def is_same_login(self, other: LoginRequest) -> bool:
        """Return whether the other one leads to the same login, perhaps with other scopes."""
        return (self.url, self.settings) == (other.url, other.settings)


Save = Callable[[StoredLogin, str], Awaitable[None]]
"""Stores a login to the server at a URL, and begins to use it. The attempt succeeds when it returns."""


class LoginAttempt:
    """Created by `Logins`, which runs it in its nursery. At most one exists for each login."""

    def __init__(
        self,
        request: LoginRequest,
        known: StoredLoginsNow,
        save: Save,
        environ: Mapping[str, str],
        now: Callable[[], float] = time.time,
    ) -> None:
        self.id = secrets.token_urlsafe(16)
        self.request = request
        self.expires_at = now() + LIFETIME
        self.offer: LoginOffer | None = None
        self.page = ""
        """The URL of a page that leads to the offered URL."""
        self.outcome: StoredLogin | LoginError | None = None
        self._known = known
        self._save = save
        self._now = now
        self._fetch = GuardedFetch(request.url, environ, request.ca_file)
        self._authorization: AuthorizationRequest | None = None
        self._answered = trio.Event()
        self._code = ""
        self._rejection: AnswerError | None = None
        self._key: DpopKey | None = None
        self._offered = trio.Event()
        self._ended = trio.Event()
        self._scope = trio.CancelScope()

    # ── for those who wait ──────────────────────────────────────────────────────────────────────

    @property
    def is_done(self) -> bool:
        """Whether somebody has logged in."""
        return isinstance(self.outcome, StoredLogin)

    async def wait_offer(self) -> LoginOffer:
        """Return the offer as soon as there is one. Raises LoginFailed if the attempt ended before."""
        await self._offered.wait()
        if self.offer is None:
            await self.wait()
        assert self.offer is not None
        return self.offer

    async def wait(self) -> StoredLogin:
        """Return the login when somebody has logged in. Raises LoginFailed."""
        await self._ended.wait()
        if isinstance(self.outcome, StoredLogin):
            return self.outcome
        assert self.outcome is not None
        raise login_failed(self.outcome, self.request.server)

    def answer(self, text: str) -> None:
        """Take the address that the browser ended at. Raises LoginFailed if it is not for this login."""
        try:
            if self._authorization is None:
                raise UnrelatedAnswer("this login does not wait for an address")
            self._take_answer(check_pasted(text))
        except UnrelatedAnswer as error:
            raise LoginFailed(f"answer: {error}", server=self.request.server, step="answer") from None
        except AnswerError:
            return  # it is the outcome of the attempt

    def supersede(self, login: StoredLogin) -> None:
        """End the attempt with the login that another attempt has completed, if it is as good."""
        if self.offer is not None and set(self.offer.scopes) <= set(login.tokens.scopes or ()):
            self._end(login)
            self._scope.cancel(reason="another login was completed")

    def cancel(self) -> None:
        """End the attempt. Those who wait get LoginFailed."""
        self._scope.cancel(reason="the login was cancelled")

    # ── running ─────────────────────────────────────────────────────────────────────────────────

    async def run(self) -> None:
        """Run to the outcome. Expected errors are the outcome and are not raised."""
        try:
            with self._scope, trio.move_on_after(LIFETIME) as limit:
                self._end(await self._log_in())
            if limit.cancelled_caught:
                self._end(LoginError("login", f"nobody finished it within {LIFETIME / 60:g} minutes"))
        except LoginError as error:
            self._end(error)
        except FetchError as error:
            self._end(step_failed("login", error))
        except Exception as error:  # a bug must not end other logins, and the daemon with them
            log.exception("an error in mcpd itself while logging in")
            self._end(LoginError("login", f"internal error ({type(error).__name__})"))
        finally:
            self._end(LoginError("login", "it was cancelled"))

    def _end(self, outcome: StoredLogin | LoginError) -> None:
        """Wake those who wait. Only the first outcome counts."""
        if self.outcome is None:
            self.outcome = outcome
            self._offered.set()
            self._ended.set()

    async def _log_in(self) -> StoredLogin | LoginError:
        request, settings = self.request, self.request.settings
        challenge = request.challenge or await probe(self._fetch)
        known = await self._known()
        issuers = {each.issuer for each in known}
        found = await discover(self._fetch, settings, challenge, known_issuers=issuers)
        require_code_grant(found.server)
        try:
            async with self._open_listener(found.server.issuer) as listener:
                scopes = found.scopes(settings)
                if request.earlier_scopes:
                    scopes = more_scopes(request.earlier_scopes, scopes)
                client = await choose_client(
                    self._fetch,
                    found,
                    settings,
                    redirect_uri=listener.uri,
                    scopes=scopes,
                    known=known,
                )
                if settings.client_id is not None:
                    client = attrs.evolve(client, secret_name=request.client_secret_name)
                return await self._with_browser(found, scopes, client, listener)
        except PortTaken as error:
            raise LoginError("redirect", str(error)) from None
        except OSError as error:
            raise LoginError("redirect", f"no loopback port: {error.strerror or error}") from None

    def _open_listener(self, issuer: str) -> AbstractAsyncContextManager[RedirectListener | PersonListener]:
        request = self.request
        if request.pages is not None:
            return nullcontext(request.pages.listener(request.server, request.person))
        return open_listener(issuer, demanded=request.settings.redirect_uri)

    async def _with_browser(
        self,
        found: Discovery,
        scopes: tuple[str, ...] | None,
        client: ClientRegistration,
        listener: RedirectListener | PersonListener,
    ) -> StoredLogin | LoginError:
        authorization = self._authorization = self._authorize(found, scopes, client, listener.uri)
        outcome: StoredLogin | LoginError
        page = f"/login/{secrets.token_urlsafe(16)}"
        async with trio.open_nursery() as nursery:
            nursery.start_soon(listener.serve, self._take_from_browser, {page: self._show_offer})
            self.page = listener.url(page)
            self.offer = LoginOffer(
                attempt=self.id,
                server=self.request.server,
                url=authorization.url,
                issuer=found.server.issuer,
                expires_at=rfc3339(self.expires_at),
                redirect_uri=listener.uri,
                scopes=scopes or (),
            )
            self._offered.set()
            await self._answered.wait()
            try:
                outcome = await self._exchange(found, scopes, client, authorization)
            except LoginError as error:
                outcome = error
            self._end(outcome)
            nursery.cancel_scope.cancel(reason="the login has ended")
        return outcome

    def _authorize(
        self, found: Discovery, scopes: tuple[str, ...] | None, client: ClientRegistration, uri: str
    ) -> AuthorizationRequest:
        try:
            return build_request(
                found.server,
                client_id=client.client_id,
                redirect_uri=uri,
                resource=found.resource,
                scopes=scopes,
                state=None if self.request.pages is None else self.request.pages.new_state(),
                extra={**found.quirks.extra_params, **self.request.settings.extra_params},
            )
        except ValueError as error:
            raise LoginError("authorization", str(error)) from None

    async def _show_offer(self, query: str) -> Page:
        assert self.offer is not None
        return start_page(self.offer, self.request.settings.account, self.request.person)

    async def _take_from_browser(self, query: str) -> Page:
        try:
            self._take_answer(query)
        except UnrelatedAnswer:
            return Page(400, "Not for this login", "This answer belongs to no login that is waiting.")
        except AnswerError as error:
            return Page(400, "Not logged in", str(error))
        await self._ended.wait()
        if isinstance(self.outcome, LoginError):
            return Page(400, "Not logged in", str(self.outcome))
        text = f"mcpd is logged in to {self.request.server}. You can close this page."
        return Page(200, "Logged in", text)

    def _take_answer(self, answer: str) -> None:
        """Take the first answer to this login. Raises AnswerError if it is none, or has no code."""
        assert self._authorization is not None
        if self._answered.is_set():
            raise UnrelatedAnswer("this login has been answered already")
        try:
            self._code = read_answer(self._authorization, answer)
        except UnrelatedAnswer:
            raise
        except AnswerError as error:
            self._rejection = error
            self._answered.set()
            raise
        self._answered.set()

    async def _exchange(
        self,
        found: Discovery,
        scopes: tuple[str, ...] | None,
        client: ClientRegistration,
        authorization: AuthorizationRequest,
    ) -> StoredLogin:
        if self._rejection is not None:
            raise LoginError("answer", str(self._rejection))
        assert found.server.token_endpoint is not None
        request = code_request(
            found.server.token_endpoint,
            client_authentication(client, self.request.settings, self._now),
            self._code,
            redirect_uri=authorization.redirect_uri,
            verifier=authorization.verifier,
            resource=found.resource,
        )
        try:
            self._key = _generate_key(found)
            tokens = await request_tokens(
                self._fetch, request, requested=scopes, key=self._key, now=self._now
            )
        except (FetchError, TokenError) as error:
            raise step_failed("token", error) from None
        login = StoredLogin(
            account=self.request.settings.account,
            issuer=found.server.issuer,
            resource=found.audience,
            sent_resource=found.resource,
            client=client,
            token_endpoint=request.url,
            revocation_endpoint=found.server.revocation_endpoint,
            requested_scopes=scopes,
            tokens=tokens,
            dpop_key=self._key.pem if self._key is not None and tokens.is_bound else None,
            logged_in_at=self._now(),
        )
        await self._save(login, self.request.url)
        return login


def _generate_key(found: Discovery) -> DpopKey | None:
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


# ── all attempts ──────────────────────────────────────────────────────────────────────────────────────


_MAX_ENDED = 32
"""Attempts whose outcome can still be asked for."""


class Logins:
    """Runs attempts in a nursery of its own, so that no client's disconnection ends one."""

    def __init__(
        self,
        known: StoredLoginsNow,
        save: Save,
        environ: Mapping[str, str],
        report: Callable[[str, str], None],
    ) -> None:
        """`report` takes the name of a server, and what happened to its login."""
        self._known = known
        self._save = save
        self._report = report
        self._environ = environ
        self._attempts: dict[str, LoginAttempt] = {}
        self._nursery: trio.Nursery | None = None

    async def run(self, task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED) -> None:
        """Run attempts until cancelled."""
        async with trio.open_nursery() as self._nursery:
            task_status.started()
            await trio.sleep_forever()

    def start(self, work: Callable[[], Awaitable[None]]) -> None:
        """Run a task beside the attempts."""
        assert self._nursery is not None
        self._nursery.start_soon(work)

    def begin(self, request: LoginRequest) -> LoginAttempt:
        """Begin to log in, or join the attempt in progress for the same server and account."""
        assert self._nursery is not None
        found = self.find(request)
        if found is not None:
            return found
        for ended in [key for key, each in self._attempts.items() if each.outcome is not None][:-_MAX_ENDED]:
            del self._attempts[ended]
        attempt = LoginAttempt(request, self._known, self._save, self._environ)
        self._attempts[attempt.id] = attempt
        self._report(request.server, "began; waiting for a person to finish it in a browser")
        self._nursery.start_soon(self._run, attempt)
        return attempt

    async def _run(self, attempt: LoginAttempt) -> None:
        await attempt.run()
        if isinstance(attempt.outcome, LoginError):
            self._report(attempt.request.server, f"failed: {attempt.outcome}")
        elif attempt.outcome is not None:
            for other in self._attempts.values():
                if other.outcome is None and other.request.is_same_login(attempt.request):
                    other.supersede(attempt.outcome)

    def find(self, request: LoginRequest) -> LoginAttempt | None:
        """Return the attempt in progress for the same server and account."""
        attempts = self._attempts.values()
        return next((each for each in attempts if each.outcome is None and each.request == request), None)

    def get(self, id: str) -> LoginAttempt:
        """Raises LoginFailed if there is no such attempt."""
        attempt = self._attempts.get(id)
        if attempt is None:
            raise LoginFailed("login: this attempt has ended; begin a new login", server=None, step="login")
        return attempt


# ── errors and explanations ───────────────────────────────────────────────────────────────────────────


def login_failed(error: LoginError, server: str) -> LoginFailed:
    """Return the error for those who requested the login."""
    later = "; try again later" if error.try_later else ""
    return LoginFailed(f"{server}: {error}{later}", server=server, step=error.step)


# ── explaining ────────────────────────────────────────────────────────────────────────────────────────


async def explain_login(spec: RemoteSpec, environ: Mapping[str, str]) -> AuthExplanation:
    """Return every step up to the choice of the client. An error is part of the result."""
    steps: list[AuthStep] = []

    def note(method: str, url: str, outcome: str, seconds: float) -> None:
        steps.append(AuthStep(step=f"{method} {url}", outcome=outcome, ms=round(seconds * 1000, 1)))

    fetch = GuardedFetch(spec.url, environ, spec.ca_file, note)
    try:
        challenge = await probe(fetch)
        said = "sent no challenge" if challenge is None else f"asked for {challenge.scheme.capitalize()}"
        steps.append(AuthStep(step="server", outcome=said))
        found = await discover(fetch, spec.oauth, challenge)
    except LoginError as error:
        return AuthExplanation(server=spec.name, steps=tuple(steps), error=str(error))
    return AuthExplanation(
        server=spec.name,
        steps=tuple(steps),
        issuer=found.server.issuer,
        resource=found.resource,
        scopes=found.scopes(spec.oauth) or (),
        client=describe_client(found, spec.oauth),
    )

"""One login while the daemon runs: its current token, and the renewal that all requests share.

A failure names the generation of the token that it is about, and never affects a newer one. Only the refusal
of the newest refresh token (`invalid_grant`) ends a login; after every other failure the login is kept and
renewed later. The order of a renewal makes it safe to kill the daemon at any point: the attempt is stored,
then the request is sent, then the new tokens are stored, and only then are they used.
"""

from __future__ import annotations

import logging
import math
import time
from collections.abc import Awaitable, Callable
from typing import Literal

import attrs
import trio

from mcpd.auth.discovery import LoginError
from mcpd.auth.guarded_fetch import FetchedAnswer, FetchError
from mcpd.auth.keys import DpopKey, load_dpop_key
from mcpd.auth.login_file import LoginFile, LoginSaver
from mcpd.auth.oauth.quirks import quirks_of
from mcpd.auth.oauth.registration import ClientAuthentication
from mcpd.auth.oauth.tokens import (
    TokenError,
    TokenErrorKind,
    TokenRequest,
    TokenSet,
    parse_token_answer,
    refresh_request,
)
from mcpd.auth.renewal_schedule import YOUNG, Clocks, RefusalLimit, TokenTimes, backoff
from mcpd.auth.token_store import StoredLogin
from mcpd.model.errors import LinkLost
from mcpd.transports.credentials import UNSIGNED, Refusal, Signature

log = logging.getLogger("mcpd.auth")

ACTIVE = 86_400.0
"""Logins that nobody has used for so long are renewed only when they are used."""
_HURRY_AFTER = 2.0
"""Seconds after a failed renewal before a request may cause the next one, whatever the delay."""
REJECTED_FOR = 60.0
"""Seconds for which an authorization server must reject all renewals, and three at least, before a person has
to log in again: some do so once, while they are restarted."""


@attrs.frozen
class RenewalFailure:
    """A renewal that failed, and may succeed later. Times are seconds since boot."""

    message: str
    retry_at: float
    request_at: float
    """When a request may cause an earlier attempt."""
    needs_person: bool = False
    """Whether it will probably fail until a person logs in again."""


RENEWAL_TIMEOUT = 30.0
"""Seconds for a token endpoint to answer. No deadline of a caller ends a renewal."""

LoginEvent = Literal["login_done", "login_refreshed", "renewal_failed", "login_needed"]


SendTokenRequest = Callable[[StoredLogin, TokenRequest], Awaitable[FetchedAnswer]]
"""Sends a request once, without following redirects. Raises FetchError, and nothing else."""


@attrs.frozen(kw_only=True)
class LoginContext:
    """What all logins share."""

    file: LoginFile
    send: SendTokenRequest
    clocks: Clocks
    random: Callable[[], float]
    start: Callable[[Callable[[], Awaitable[None]]], bool]
    """Runs a function in a task that no caller can cancel; False if mcpd is stopping."""
    mask: Callable[[StoredLogin, str], None]
    """Takes a login and its id. Keeps the tokens out of everything that mcpd shows, before they are used."""
    authenticate: Callable[[StoredLogin], ClientAuthentication]
    """Returns how the client of a login authenticates; the definition may contain its secret."""
    changed: Callable[[StoredLogin, LoginEvent | None], None]
    """Called after every change; with None if only the schedule has changed."""


async def request_renewal(login: StoredLogin, context: LoginContext) -> TokenSet:
    """Send one request with the refresh token, and return the new tokens.

    Raises TokenError for an answer without tokens, and FetchError without an answer.
    """
    tokens, quirks = login.tokens, quirks_of(login.issuer)
    assert tokens.refresh_token is not None
    try:
        request = refresh_request(
            login.token_endpoint,
            context.authenticate(login),
            tokens.refresh_token,
            resource=login.sent_resource,
            scopes=tokens.scopes if quirks.scope_on_refresh else None,
        )
    except LoginError as error:  # the key of the definition cannot sign
        raise TokenError(TokenErrorKind.REFUSED, error.message) from None
    sent_at = context.clocks.wall()
    with trio.move_on_after(RENEWAL_TIMEOUT):
        answer = await context.send(login, request)
        return parse_token_answer(
            answer.status,
            answer.body,
            sent_at=sent_at,
            content_type=answer.content_type,
            retry_after=answer.retry_after,
            requested=tokens.scopes,
            refresh_token=tokens.refresh_token,
        )
    raise FetchError(f"no answer within {RENEWAL_TIMEOUT:g} s", may_have_arrived=True)


def may_be_lost(error: FetchError | TokenError) -> bool:
    """Return whether the server may have issued tokens that did not arrive here."""
    if isinstance(error, FetchError):
        return error.may_have_arrived
    return error.kind is TokenErrorKind.UNUSABLE and 200 <= error.status < 300


READY_TIMEOUT = 5.0
"""Seconds that a new request waits for a renewal before it is sent with the old token."""


class ManagedLogin:
    """See the module. `stored` is what was last issued, whether it could be written or not."""

    def __init__(self, stored: StoredLogin, context: LoginContext) -> None:
        self.stored = stored
        self.id = stored.id
        """Never changes."""
        self.failure: RenewalFailure | None = None
        self.used_at = -math.inf
        """When a request was last signed, in seconds since boot."""
        self.is_removed = False
        self.dpop: DpopKey | None = None
        """The key that the tokens are bound to."""
        self.renewals = 0
        """How often it was renewed since mcpd started."""
        self.failed_renewals = 0
        """How often a renewal failed since then."""
        self._context = context
        self._boot = context.clocks.boot
        self._failures = 0
        """In a row."""
        self._renewal: trio.Event | None = None
        self._critical: trio.CancelScope | None = None
        self._refusals = RefusalLimit()
        self.saver = LoginSaver(context.file, context.start)
        self._reported = 0
        """The generation of which it was reported that a person has to log in."""
        self._use(stored, issued_now=False)

    def __repr__(self) -> str:
        """Contains no secret."""
        stored = self.stored
        return f"<ManagedLogin {stored.issuer} ({stored.account}) {self.state}, token {stored.generation}>"

    def _use(self, stored: StoredLogin, *, issued_now: bool) -> None:
        """Sign with these tokens from now on."""
        self._context.mask(stored, self.id)
        self.stored = stored
        tokens = stored.tokens
        self.signature = Signature(tokens.token_type, tokens.access_token, stored.generation)
        if self.dpop is None or self.dpop.pem != stored.dpop_key:
            self.dpop = load_dpop_key(stored.dpop_key)
        self.failure = None
        self._rejected_since = math.inf
        """Since when the authorization server has rejected all renewals with an error code."""
        self._refused = False
        self._times = TokenTimes(tokens, self._context.clocks, self._context.random, issued_now=issued_now)
        self._fresh_until = self._times.expires_at

    # ── signing ─────────────────────────────────────────────────────────────────────────────────

    def sign(self) -> Signature | None:
        """As `Credentials.sign`, for a URL that the token is for."""
        now = self.used_at = self._boot()
        return self.signature if now < self._fresh_until else self._sign_stale(now)

    def _sign_stale(self, now: float) -> Signature | None:
        if self.why_not_renewable() or self.is_removed:
            return UNSIGNED if self._refused or self.stored.ended is not None else self.signature
        if self._renewal is None and self.failure is not None and now < self.failure.request_at:
            return None if self._refused and not self.failure.needs_person else self.signature
        return None if self.renew() else self.signature

    async def sign_when_ready(self) -> Signature:
        """As `Credentials.sign_when_ready`."""
        renewal = self._renewal
        if renewal is not None:
            with trio.move_on_after(READY_TIMEOUT):
                await renewal.wait()
        if self._refused:
            await self._wait_second_attempt()
        signature = self.sign()
        if signature is None and self._renewal is None and self.failure is not None:
            self._report_failure()
        return signature or self.signature

    async def refused(self, refusal: Refusal) -> bool:
        """As `Credentials.refused`, for HTTP 401."""
        if refusal.repeats >= 2 or self.is_removed:
            return False
        current = self.stored.generation
        # Compared as objects: the login before this one had generations of its own.
        is_current = refusal.signature.token is self.signature.token
        if not is_current and self.is_usable:
            return True  # somebody else was quicker
        if is_current and not self._refused:
            was_accepted = self.signature.token.was_accepted
            if self._renewal is None and not self._refusals.permits(
                self._boot(), self._times, was_accepted=was_accepted
            ):
                return False
            self._refused, self._fresh_until = True, -math.inf
        if self.why_not_renewable():
            self._report_needed()
            return False
        if self._renewal is None:
            if self.failure is not None and self._boot() < self.failure.request_at:
                await self._wait_second_attempt()
                return self.stored.generation > current or self._report_failure()
            self.renew()
        if self._renewal is None:
            return False  # mcpd is stopping
        await self._renewal.wait()
        await self._wait_second_attempt()
        return self.stored.generation > current or self._report_failure()

    async def _wait_second_attempt(self) -> None:
        """Wait for the next attempt if only one has failed and it is soon: that may have been an accident."""
        if self.failure is None or self._failures != 1:
            return
        seconds = self.failure.retry_at - self._boot()
        if seconds <= _HURRY_AFTER:
            await trio.sleep(max(0.0, seconds))
            if self._failures == 1:
                self.renew()
            await self.wait_renewed()

    def _report_needed(self) -> None:
        """Report that a person has to log in, once for each token."""
        if self._reported != self.stored.generation:
            self._reported = self.stored.generation
            self._context.changed(self.stored, "login_needed")

    def _report_failure(self) -> bool:
        """Return False if only a person can help; otherwise raise LinkLost."""
        failure = self.failure
        if failure is None or failure.needs_person or self.stored.ended is not None:
            self._report_needed()
            return False
        seconds = max(1.0, failure.retry_at - self._boot())
        raise LinkLost(
            f"the login cannot be renewed: {failure.message}; tried again in {seconds:.0f} s",
            may_have_run=False,
        )

    # ── what is known about it ──────────────────────────────────────────────────────────────────

    @property
    def state(self) -> str:
        """`valid`, `renewing`, `failing` (tried again), or `over` (a person has to log in)."""
        if self.why_not_renewable() and (self.stored.ended is not None or not self.is_usable):
            return "over"
        if self._renewal is not None:
            return "renewing"
        return "valid" if self.failure is None else "failing"

    @property
    def reason(self) -> str:
        """Why it is failing or over; empty if it is neither."""
        if self.failure is not None:
            return self.failure.message
        return self.why_not_renewable() if self.state == "over" else ""

    @property
    def is_usable(self) -> bool:
        """Whether the access token has neither expired nor been refused."""
        return self._boot() < self._fresh_until

    def why_not_renewable(self) -> str:
        """Return why mcpd cannot renew it without a person; empty if it can."""
        stored = self.stored
        if stored.ended is not None:
            return stored.ended
        if stored.tokens.refresh_token is None:
            return "the authorization server issued no refresh token"
        return ""

    def why_refused(self) -> str:
        """Return why the server refuses the current token although there is one; empty if unknown."""
        if reason := self.why_not_renewable():
            return reason
        if self.failure is not None:
            return self.failure.message
        age = self._boot() - self._times.issued_at
        return f"the server refuses a token that was issued {age:.0f} s ago" if age < YOUNG else ""

    @property
    def due_at(self) -> float:
        """When to renew it without a request, in seconds since boot; infinite if nothing is planned."""
        if self._renewal is not None or self.is_removed or self.why_not_renewable():
            return math.inf
        if self.failure is not None:
            return self.failure.retry_at
        # The past, not now: `on_due` reads the clock a moment earlier than this.
        return self._times.renew_at if self.stored.attempt_at is None else -math.inf

    def on_due(self) -> None:
        """Renew the token, unless nobody has used it for a day."""
        now = self._boot()
        if now < self.due_at:
            return
        is_interrupted = self.stored.attempt_at is not None and self.failure is None
        if is_interrupted or now - self.used_at < ACTIVE:
            self.renew()
        else:
            self._times.renew_at, self.failure = math.inf, None

    # ── renewing ────────────────────────────────────────────────────────────────────────────────

    def renew(self) -> bool:
        """Begin a renewal unless one runs. Return False if it cannot be renewed, or mcpd is stopping."""
        can_begin = self._renewal is None and not self.why_not_renewable()
        if can_begin and self._context.start(self._run_renewal):
            self._renewal, self._critical = trio.Event(), trio.CancelScope(shield=True)
        return self._renewal is not None

    async def wait_renewed(self) -> None:
        """Wait until no renewal runs."""
        while self._renewal is not None:
            await self._renewal.wait()

    def replace(self, stored: StoredLogin) -> None:
        """Use the tokens of a new login; a renewal under way does not affect them."""
        self._failures = 0
        self._use(stored, issued_now=True)

    def hurry(self, seconds: float) -> None:
        """Give a renewal under way so long to end, because the daemon stops."""
        if self._critical is not None:
            self._critical.deadline = min(self._critical.deadline, trio.current_time() + seconds)

    async def _run_renewal(self) -> None:
        event: LoginEvent | None = None
        generation = self.stored.generation
        assert self._critical is not None
        try:
            with self._critical:
                event = await self._renew()
        except TokenError as error:
            event = self._fail(error, generation)
        except FetchError as error:
            event = self._fail(TokenError(TokenErrorKind.UNAVAILABLE, error.message), generation)
        except Exception as error:  # a bug must not leave everybody waiting
            log.exception("an error in mcpd itself while renewing a login")
            event = self._fail(
                TokenError(TokenErrorKind.UNAVAILABLE, f"internal error ({type(error).__name__})"), generation
            )
        finally:
            self._critical = None
            done, self._renewal = self._renewal, None
            assert done is not None
            done.set()
            self._context.changed(self.stored, event)

    async def _renew(self) -> LoginEvent | None:
        """Renew the token. Raises TokenError and FetchError if that may succeed later."""
        await self._times.wait_after_suspend()
        file = self._context.file
        is_keeper = self.stored.tokens.refresh_token is None or await file.keeps_logins()
        newer = (await file.read()).logins.get(self.id)  # of another daemon
        if newer is not None and newer.generation > self.stored.generation and self.saver.is_done:
            self._use(newer, issued_now=False)
            return None
        before = self.stored
        if before.tokens.refresh_token is None:
            return None
        if not is_keeper:
            raise TokenError(TokenErrorKind.UNAVAILABLE, f"{file.store.other_daemon} renews it")
        if self._replaced_since(before):
            return None
        lost_at = before.attempt_at
        if lost_at is None:
            before = self.stored = attrs.evolve(before, attempt_at=self._context.clocks.wall())
            await self.saver.save(before)
        tokens: TokenSet | None = None
        while tokens is None:
            try:
                tokens = await request_renewal(before, self._context)
            except (FetchError, TokenError) as error:
                if lost_at is not None or not may_be_lost(error):
                    return await self._conclude(before, error, lost_at)
                log.info("the answer of %s was lost; repeating the request", before.token_endpoint)
                lost_at = before.attempt_at  # the server may accept the same token for a while
                if self._replaced_since(before):
                    return None
        if self._replaced_since(before):
            return None  # a person logged in meanwhile
        renewed = attrs.evolve(
            before, tokens=tokens, generation=before.generation + 1, attempt_at=None, ended=None
        )
        self._context.mask(renewed, self.id)
        await self.saver.save(renewed)  # before anybody uses it
        if self._replaced_since(before):
            return None
        self._failures = 0
        self._use(renewed, issued_now=True)
        self.renewals += 1
        return "login_refreshed"

    async def _conclude(
        self, used: StoredLogin, error: FetchError | TokenError, lost_at: float | None
    ) -> LoginEvent | None:
        """End the login if its newest refresh token is not accepted; raise everything else."""
        if self._replaced_since(used):
            return None
        if lost_at is None:
            self.stored = attrs.evolve(used, attempt_at=None)  # nothing was issued
        if not isinstance(error, TokenError) or error.kind is not TokenErrorKind.INVALID_GRANT:
            raise error
        message = f"the authorization server does not accept its refresh token ({error.message})"
        if lost_at is not None:
            when = time.strftime("%H:%M:%S", time.localtime(lost_at))
            message = f"the answer to the renewal of {when} was lost, and {message}"
        self.stored = attrs.evolve(used, attempt_at=None, ended=message)
        log.warning("the login at %s (account %s) is over: %s", used.issuer, used.account, message)
        self.failed_renewals += 1
        self._report_needed()  # requests fail from now on
        await self.saver.save(self.stored)
        return None

    def _replaced_since(self, used: StoredLogin) -> bool:
        """Return whether a newer login or token has replaced this one."""
        return self.is_removed or self.stored.tokens is not used.tokens

    def _fail(self, error: TokenError, generation: int) -> LoginEvent | None:
        """Plan the next attempt. The login is kept. Only the first failure in a row is an event."""
        if self.stored.generation != generation or self.is_removed:
            return None
        self.failed_renewals += 1
        self._failures += 1
        now = self._boot()
        retry_at = now + backoff(self._failures, error.retry_after, self._context.random)
        must_wait = error.retry_after is not None or error.status == 429
        if error.kind not in _TEMPORARY and not self._refused and self._times.expires_at > retry_at:
            retry_at = self._times.expires_at  # it may object to an early renewal
        message, needs_person = error.message, False
        if error.kind is TokenErrorKind.INVALID_CLIENT:
            message = f"the authorization server does not accept mcpd's registration ({message})"
        if error.kind not in _TEMPORARY and error.error:
            self._rejected_since = min(self._rejected_since, now)
            needs_person = self._failures > 2 and now - self._rejected_since >= REJECTED_FOR
        else:
            self._rejected_since = math.inf
        request_at = retry_at if must_wait else min(retry_at, now + _HURRY_AFTER)
        self.failure = RenewalFailure(message, retry_at, request_at, needs_person)
        log.log(
            logging.WARNING if self._failures == 1 else logging.DEBUG,
            "cannot renew the login at %s: %s; tried again in %.0f s",
            self.stored.issuer,
            message,
            retry_at - now,
        )
        return "renewal_failed" if self._failures == 1 else None


_TEMPORARY = (TokenErrorKind.UNAVAILABLE, TokenErrorKind.UNUSABLE)

"""The token request that renews a login, and what all logins share."""

from __future__ import annotations

import time
from collections.abc import Awaitable, Callable
from typing import Literal

import attrs
import trio

from mcpd.auth.discovery import LoginError
from mcpd.auth.login_file import LoginFile
from mcpd.auth.oauth.client_authentication import ClientAuthentication
from mcpd.auth.oauth.issuer_quirks import quirks_of
from mcpd.auth.oauth.token_requests import (
    TokenEndpoint,
    TokenError,
    TokenErrorKind,
    TokenRequest,
    TokenSet,
    parse_token_answer,
    refresh_request,
)
from mcpd.auth.stored_login import StoredLogin
from mcpd.support.suspend_detection import boottime

RENEWAL_TIMEOUT = 30.0
"""Seconds for a token endpoint to answer. No deadline of a caller ends a renewal."""

LoginEvent = Literal["login_done", "login_refreshed", "renewal_failed", "login_needed"]


@attrs.frozen
class Clocks:
    """Seconds of three clocks."""

    wall: Callable[[], float] = time.time
    boot: Callable[[], float] = boottime
    """Includes suspended time, and never jumps."""
    awake: Callable[[], float] = time.monotonic


@attrs.frozen
class TokenAnswer:
    """The whole response of a token endpoint."""

    status: int
    body: bytes = attrs.field(repr=False)
    content_type: str = "application/json"
    retry_after: float | None = None


class RequestFailed(Exception):
    """A token request has no answer. The message is safe to show."""

    def __init__(self, message: str, *, may_have_arrived: bool) -> None:
        super().__init__(message)
        self.message = message
        self.may_have_arrived = may_have_arrived


SendTokenRequest = Callable[[StoredLogin, TokenRequest], Awaitable[TokenAnswer]]
"""Sends a request once, without following redirects. Raises RequestFailed, and nothing else."""


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

    Raises TokenError for an answer without tokens, and RequestFailed without an answer.
    """
    tokens, quirks = login.tokens, quirks_of(login.issuer)
    assert tokens.refresh_token is not None
    try:
        request = refresh_request(
            TokenEndpoint(login.token_endpoint, context.authenticate(login)),
            tokens.refresh_token,
            resource=login.sent_resource,
            scopes=tokens.scopes if quirks.scope_on_refresh else None,
            extra=login.extra_parameters,
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
    raise RequestFailed(f"no answer within {RENEWAL_TIMEOUT:g} s", may_have_arrived=True)


def may_be_lost(error: RequestFailed | TokenError) -> bool:
    """Return whether the server may have issued tokens that did not arrive here."""
    if isinstance(error, RequestFailed):
        return error.may_have_arrived
    return error.kind is TokenErrorKind.UNUSABLE and 200 <= error.status < 300

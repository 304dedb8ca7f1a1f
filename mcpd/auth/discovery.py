"""From a server to its authorization server.

The order and the rules of the discovery are those of MCP 2026-07-28. For a server without any metadata they
are those of 2025-03-26: its own origin is the authorization server.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable
from typing import TypeVar

import attrs

from mcpd.auth.guarded_fetch import FetchError, GuardedFetch
from mcpd.auth.oauth.authorization import first_request
from mcpd.auth.oauth.challenges import Challenge, read_challenge
from mcpd.auth.oauth.metadata import (
    AuthorizationServer,
    MetadataError,
    NotMetadata,
    ProtectedResource,
    assumed_authorization_server,
    check_for_code_grant,
    choose_issuer,
    parse_authorization_server,
    parse_protected_resource,
)
from mcpd.auth.oauth.quirks import Quirks, quirks_of
from mcpd.auth.oauth.tokens import TokenError, TokenErrorKind
from mcpd.auth.oauth.urls import (
    authorization_server_urls,
    canonical,
    is_usable,
    origin,
    protected_resource_urls,
)
from mcpd.model.server_spec import OAuthSettings
from mcpd.model.text import shorten

T = TypeVar("T")

_HEADERS = {"MCP-Protocol-Version": "2025-11-25"}
"""MCP 2025-03-26 wants it on requests for metadata."""


class LoginError(Exception):
    """A step of a login failed. `str` names the step and the reason, and is safe to show."""

    def __init__(self, step: str, message: str, *, try_later: bool = False) -> None:
        super().__init__(f"{step}: {message}")
        self.step = step
        self.message = message
        self.try_later = try_later
        """Whether the same may succeed later without any change."""


def step_failed(step: str, error: FetchError | TokenError) -> LoginError:
    """Return the error of a step whose request failed."""
    if isinstance(error, FetchError):
        return LoginError(step, error.message, try_later=not error.is_forbidden)
    later = error.kind in (TokenErrorKind.UNAVAILABLE, TokenErrorKind.UNUSABLE)
    return LoginError(step, error.message, try_later=later)


@attrs.frozen
class Discovery:
    """Where and how to log in to one server."""

    server: AuthorizationServer
    audience: str
    """The URL that tokens are for: the server's, or a parent of it."""
    resource: str | None
    """What to send as `resource`; None to leave it out."""
    metadata: ProtectedResource | None
    challenge: Challenge | None
    quirks: Quirks

    def scopes(self, settings: OAuthSettings) -> tuple[str, ...] | None:
        """Return the scopes of a first request; None to leave the parameter out."""
        return first_request(
            configured=settings.scopes,
            challenge=None if self.challenge is None else self.challenge.scopes,
            resource=None if self.metadata is None else self.metadata.scopes,
            server=self.server.scopes if settings.grant == "code" else (),
        )


async def probe(fetch: GuardedFetch) -> Challenge | None:
    """Return the challenge with which a server refuses a request without a token; None if it does not.

    Some servers refuse only the first call of a tool, and some answer a GET only when they have an event, so
    a missing challenge proves nothing.
    """
    try:
        answer = await fetch.probe({"Accept": "text/event-stream"})
    except FetchError as error:
        if error.may_have_arrived:
            return None
        raise LoginError("server", error.message, try_later=True) from None
    if answer.status not in (401, 403):
        return None
    return read_challenge(answer.headers.get_list("www-authenticate"))


async def discover(
    fetch: GuardedFetch,
    settings: OAuthSettings,
    challenge: Challenge | None,
    *,
    known_issuers: Collection[str] = (),
) -> Discovery:
    """Return where to log in. `known_issuers`: those for which there are credentials. Raises LoginError."""
    metadata = await _find_resource_metadata(fetch, challenge)
    if metadata is not None:
        issuer = choose_issuer(metadata.authorization_servers, known_issuers, settings.issuer)
    else:
        issuer = settings.issuer or origin(fetch.server_url)
    server = await find_authorization_server(fetch, settings, issuer)
    if server is None and metadata is None and settings.issuer is None:
        server = assumed_authorization_server(fetch.server_url)
    if server is None:
        message = f"{shorten(issuer)} has no metadata at its well-known URLs"
        raise LoginError("authorization server", message)
    quirks = quirks_of(server.issuer)
    audience = canonical(fetch.server_url) if metadata is None else metadata.resource
    resource = settings.resource or None
    if settings.resource is None and not quirks.omit_resource:
        resource = audience
    return Discovery(server, audience, resource, metadata, challenge, quirks)


async def _find_resource_metadata(
    fetch: GuardedFetch, challenge: Challenge | None
) -> ProtectedResource | None:
    named = challenge.resource_metadata if challenge is not None else None
    places = [*([named] if named is not None and is_usable(named) else [])]
    places += [url for url in protected_resource_urls(fetch.server_url) if url not in places]
    return await _first(
        fetch, "resource metadata", places, lambda body: parse_protected_resource(body, fetch.server_url)
    )


async def find_authorization_server(
    fetch: GuardedFetch, settings: OAuthSettings, issuer: str
) -> AuthorizationServer | None:
    """Return the metadata of an issuer; None if it has none. Raises LoginError."""

    def parse(body: bytes) -> AuthorizationServer:
        return parse_authorization_server(body, issuer, override=settings.issuer)

    return await _first(fetch, "authorization server", authorization_server_urls(issuer), parse)


def require_code_grant(server: AuthorizationServer) -> None:
    """Raise LoginError if a person cannot log in there."""
    try:
        check_for_code_grant(server)
    except MetadataError as error:
        raise LoginError("authorization server", str(error)) from None


async def _first(
    fetch: GuardedFetch, step: str, places: Iterable[str], parse: Callable[[bytes], T]
) -> T | None:
    """Return the first valid document; otherwise raise why a place did not have one.

    A place without a document (HTTP 4xx, a page) says nothing. A server that cannot answer now may have one.
    """
    refused: LoginError | None = None
    unavailable: LoginError | None = None
    unreachable: set[str] = set()
    for url in places:
        if origin(url) in unreachable:
            continue
        try:
            answer = await fetch.get(url, _HEADERS)
        except FetchError as error:
            message = f"{shorten(url)}: {error.message}"
            if error.is_forbidden:
                refused = refused or LoginError(step, message)
            else:
                unavailable = unavailable or LoginError(step, message, try_later=True)
                unreachable.add(origin(url))
            continue
        if answer.status >= 500 or answer.status in (408, 425, 429):
            message = f"{shorten(url)}: HTTP {answer.status}"
            unavailable = unavailable or LoginError(step, message, try_later=True)
        if answer.status != 200:
            continue
        try:
            return parse(answer.body)
        except NotMetadata:
            continue
        except MetadataError as error:
            refused = refused or LoginError(step, f"{shorten(url)}: {error}")
    if problem := unavailable or refused:
        raise problem
    return None

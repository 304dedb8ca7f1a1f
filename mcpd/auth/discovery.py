"""From a server to its authorization server: the challenge, then two metadata documents.

The order and the rules are those of MCP 2026-07-28. For a server without any metadata they are those of
2025-03-26: its own origin is the authorization server.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable
from typing import TypeVar

import attrs

from mcpd.auth.guarded_fetch import Answer, FetchError, GuardedFetch
from mcpd.auth.oauth.challenge import Challenge, read_challenge
from mcpd.auth.oauth.issuer_quirks import Quirks, quirks_of
from mcpd.auth.oauth.metadata import (
    AuthorizationServer,
    MetadataError,
    NotMetadata,
    ProtectedResource,
    assumed_authorization_server,
    choose_issuer,
    parse_authorization_server,
    parse_protected_resource,
)
from mcpd.auth.oauth.well_known import (
    authorization_server_urls,
    canonical,
    is_usable,
    origin,
    protected_resource_urls,
)
from mcpd.model.oauth_settings import OAuthSettings
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


async def probe(fetch: GuardedFetch) -> Challenge | None:
    """Return the challenge with which a server refuses a request without a token; None if it does not.

    Some servers refuse only the first call of a tool, so a missing challenge proves nothing.
    """
    try:
        answer = await fetch.probe({"Accept": "text/event-stream"})
    except FetchError as error:
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
    server = await _find_server_metadata(fetch, settings, issuer)
    if server is None and metadata is None and settings.issuer is None:
        server = assumed_authorization_server(fetch.server_url)
    if server is None:
        message = f"{shorten(issuer)} has no metadata at its well-known URLs"
        raise LoginError("authorization server", message)
    quirks = quirks_of(server.issuer)
    audience = canonical(fetch.server_url) if metadata is None else metadata.resource
    return Discovery(server, audience, _resource(settings, audience, quirks), metadata, challenge, quirks)


def _resource(settings: OAuthSettings, audience: str, quirks: Quirks) -> str | None:
    if settings.resource is None:
        return None if quirks.omit_resource else audience
    return settings.resource or None


async def _find_resource_metadata(
    fetch: GuardedFetch, challenge: Challenge | None
) -> ProtectedResource | None:
    named = challenge.resource_metadata if challenge is not None else None
    places = [*([named] if named is not None and is_usable(named) else [])]
    places += [url for url in protected_resource_urls(fetch.server_url) if url not in places]
    return await _first(
        fetch, "resource metadata", places, lambda body: parse_protected_resource(body, fetch.server_url)
    )


async def _find_server_metadata(
    fetch: GuardedFetch, settings: OAuthSettings, issuer: str
) -> AuthorizationServer | None:
    def parse(body: bytes) -> AuthorizationServer:
        return parse_authorization_server(body, issuer, override=settings.issuer)

    return await _first(fetch, "authorization server", authorization_server_urls(issuer), parse)


async def _first(
    fetch: GuardedFetch, step: str, places: Iterable[str], parse: Callable[[bytes], T]
) -> T | None:
    """Return the first valid document. A refused one is an error, unless a later place has a valid one.

    A place without a document (HTTP 4xx, a page) leads to the next one. A server that cannot answer now says
    nothing about what it has: that is an error, too.
    """
    refused: LoginError | None = None
    for url in places:
        try:
            answer = await fetch.get(url, _HEADERS)
        except FetchError as error:
            if not error.is_forbidden:
                raise LoginError(step, f"{shorten(url)}: {error.message}", try_later=True) from None
            refused = refused or LoginError(step, f"{shorten(url)}: {error.message}")
            continue
        _check_available(step, url, answer)
        if answer.status != 200:
            continue
        try:
            return parse(answer.body)
        except NotMetadata:
            continue
        except MetadataError as error:
            refused = refused or LoginError(step, f"{shorten(url)}: {error}")
    if refused is not None:
        raise refused
    return None


def _check_available(step: str, url: str, answer: Answer) -> None:
    if answer.status >= 500 or answer.status in (408, 425, 429):
        raise LoginError(step, f"{shorten(url)}: HTTP {answer.status}", try_later=True)

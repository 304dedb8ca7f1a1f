"""Access to a remote server: signing requests, and deciding whether a refused one is sent once more.

The transports know only this interface. Every request passes it in one place: `HttpEndpoint`, and
`open_websocket` for the upgrade.
"""

from __future__ import annotations

import re
from collections.abc import Awaitable, Callable
from typing import Protocol

import attrs
import httpx

from mcpd.model import advice
from mcpd.model.errors import McpdError, NeedsAuth

UNAUTHORIZED, FORBIDDEN = 401, 403
MAX_REPEATS = 4
"""How often one request may be sent again, whatever `Credentials.refused` says: for a newer token, for one
that replaced it meanwhile, for a DPoP nonce (RFC 9449), and for wider scopes."""

_SAFE = re.compile(r"[ -~]*")
_INSUFFICIENT_SCOPE = re.compile(r"""\berror\s*=\s*"?insufficient_scope\b""", re.IGNORECASE)


@attrs.define(eq=False)
class TokenUse:
    """What is known of a token from its use."""

    was_accepted: bool = False
    """Whether the server has answered a request that was signed with it."""


@attrs.frozen(eq=False)
class Signature:
    """What authorizes a request; nothing, if nothing is known that would.

    The constructor raises ValueError for characters that a header cannot contain. The headers are not stored,
    because tokens are large and their owners keep them, too.
    """

    scheme: str = ""
    """`Bearer` or `DPoP`; empty without a token."""
    access_token: str = attrs.field(default="", repr=False)
    generation: int = 0
    """Which token was used; greater for a newer one, and 0 for none."""
    token: TokenUse = attrs.field(factory=TokenUse, repr=False)
    """The same object in all signatures with the same token."""
    proof: str = attrs.field(default="", repr=False)
    """The header `DPoP`, which is valid for one request; empty for a token that needs none."""

    def __attrs_post_init__(self) -> None:
        if not all(_SAFE.fullmatch(part) for part in (self.scheme, self.access_token, self.proof)):
            raise ValueError("a token contains characters that HTTP does not allow")

    @property
    def headers(self) -> tuple[tuple[str, str], ...]:
        if not self.scheme:
            return ()
        authorization = ("Authorization", f"{self.scheme} {self.access_token}")
        return (authorization, ("DPoP", self.proof)) if self.proof else (authorization,)

    @property
    def lines(self) -> bytes:
        """The same headers as lines of an HTTP/1.1 head."""
        return "".join([f"{name}: {value}\r\n" for name, value in self.headers]).encode("ascii")


UNSIGNED = Signature()


@attrs.frozen(eq=False)
class Refusal:
    """A response with HTTP 401 or 403. The server did not execute the request."""

    status: int
    headers: httpx.Headers
    signature: Signature
    """What the refused request was signed with."""
    repeats: int = 0
    """How often the request has been sent again already."""

    @property
    def needs_scopes(self) -> bool:
        """Whether the token is valid, but not for this operation (RFC 6750, 3.1)."""
        return self.status == FORBIDDEN and names_insufficient_scope(self.headers)


class Credentials(Protocol):
    """What one server is accessed with. The holder ends it; a channel only uses it."""

    def sign(self, method: str, url: str) -> Signature | None:
        """Return what authorizes a request to `url`, which the holder checks. Does not block or raise.

        None means that a newer token is being fetched: use `sign_when_ready`.
        """

    async def sign_when_ready(self, method: str, url: str) -> Signature:
        """Do the same as `sign`, after waiting a few seconds for a newer token.

        Raises McpdError if the current one was refused and there will be no other soon.
        """

    async def refused(self, refusal: Refusal) -> bool:
        """Return whether to send the same request once more, signed again.

        May wait for a newer token. Cancelling the wait does not cancel what others wait for too. Raises
        McpdError if access may be possible again later without a person.
        """

    def advice(self) -> str:
        """Return what a person has to do to gain access, as the end of a sentence."""


async def signature_for(credentials: Credentials | None, method: str, url: str) -> Signature:
    """Return what to sign a request with. Raises McpdError as `Credentials.sign_when_ready` does."""
    if credentials is None:
        return UNSIGNED
    return credentials.sign(method, url) or await credentials.sign_when_ready(method, url)


def names_insufficient_scope(headers: httpx.Headers) -> bool:
    return any(_INSUFFICIENT_SCOPE.search(field) for field in headers.get_list("www-authenticate"))


def access_error(
    name: str,
    refused: str,
    refusal: Refusal,
    credentials: Credentials | None,
    *,
    has_own_header: bool,
    has_secrets: bool = False,
) -> McpdError | None:
    """Return the error if a person can gain access by logging in; None for an ordinary refusal.

    `refused` describes the response. `has_own_header`: the definition contains an `Authorization` header.
    `has_secrets`: a secret in it was sent.
    HTTP 403 concerns the login only if it asks for more scopes, or if nothing was presented at all.
    """
    presented = has_own_header or bool(refusal.signature.scheme)
    if refusal.status not in (UNAUTHORIZED, FORBIDDEN):
        return None
    if refusal.status == FORBIDDEN and presented and not refusal.needs_scopes:
        return None
    if has_own_header:
        advice = "the `Authorization` header in its definition was rejected"
    elif credentials is not None:
        advice = credentials.advice()
        if has_secrets and not refusal.signature.scheme:
            advice = f"it rejects the secrets in its definition, or wants a login: {advice}"
    else:
        advice = "add an `Authorization` header to `headers` in its definition"
    return NeedsAuth(
        f"{name}: {refused}: {advice}",
        server=name,
        status=refusal.status,
        challenge=tuple(refusal.headers.get_list("www-authenticate")),
    )


class DeferredCredentials:
    """The `Credentials` of a server without a login, as long as it refuses nothing.

    `find` returns what has been loaded for the server meanwhile, such as by a login; `load` loads it.
    """

    def __init__(
        self,
        name: str,
        find: Callable[[], Credentials | None],
        load: Callable[[], Awaitable[Credentials | None]],
    ) -> None:
        self._name = name
        self._find = find
        self._load = load
        self._loaded: Credentials | None = None

    def sign(self, method: str, url: str) -> Signature | None:
        loaded = self._loaded or self._look()
        return UNSIGNED if loaded is None else loaded.sign(method, url)

    async def sign_when_ready(self, method: str, url: str) -> Signature:
        loaded = self._loaded or self._look()
        return UNSIGNED if loaded is None else await loaded.sign_when_ready(method, url)

    async def refused(self, refusal: Refusal) -> bool:
        if self._loaded is None and refusal.status in (UNAUTHORIZED, FORBIDDEN):
            self._loaded = await self._load()
        return False if self._loaded is None else await self._loaded.refused(refusal)

    def advice(self) -> str:
        if self._loaded is None:
            return advice.to_log_in(self._name)
        return self._loaded.advice()

    def _look(self) -> Credentials | None:
        self._loaded = self._find()
        return self._loaded

"""Requests to a token endpoint, and its answers (RFC 6749, 4.1.3, 5 and 6; RFC 8707, 2.2).

Times are seconds since the epoch. Nothing here knows the clock or the network: `sent_at` is the time when the
request was sent, from which the expiry is computed, so that a slow answer never makes a token look younger.
"""

from __future__ import annotations

import enum
import math
import re
from base64 import b64decode
from collections.abc import Iterable, Iterator, Mapping
from typing import Literal
from urllib.parse import parse_qsl, urlencode

import attrs

from mcpd.auth.oauth.documents import MAX_BYTES, json_object, parse_scopes, quote
from mcpd.auth.oauth.registration import ClientAuthentication

TokenType = Literal["Bearer", "DPoP"]

MAX_TOKEN = 16_384
"""Characters of a token. It has to fit into a header."""
_MAX_LIFETIME = 100 * 365 * 86_400.0
_TOKEN = re.compile(r"[\x21-\x7e]+")


@attrs.frozen
class TokenSet:
    """What an authorization server issued. The values are secrets and are not part of `repr`."""

    access_token: str = attrs.field(repr=False)
    refresh_token: str | None = attrs.field(default=None, repr=False)
    token_type: TokenType = "Bearer"  # noqa: S105 - a type, no password
    obtained_at: float = 0.0
    """When the request was sent."""
    expires_at: float | None = None
    """When the access token expires; None if the server did not say, so it is used until it is refused."""
    scopes: tuple[str, ...] | None = None
    """The granted scopes; None if neither the request nor the answer named any."""

    @property
    def is_bound(self) -> bool:
        """Whether each request needs a proof of the key that the token is bound to (RFC 9449)."""
        return self.token_type == "DPoP"  # noqa: S105 - a type, no password

    @property
    def lifetime(self) -> float | None:
        """Seconds from the request to the expiry."""
        return None if self.expires_at is None else self.expires_at - self.obtained_at


@attrs.frozen
class TokenRequest:
    """A POST to send as it is. Neither headers nor body may be logged. Redirects must not be followed."""

    url: str
    headers: Mapping[str, str] = attrs.field(repr=False)
    body: bytes = attrs.field(repr=False)

    def secrets(self) -> Iterator[str]:
        """Yield what must not be repeated."""
        yield from (value for name, value in parse_qsl(self.body.decode()) if name in _SECRET_FIELDS)
        scheme, _, encoded = self.headers.get("Authorization", "").partition(" ")
        if scheme == "Basic":
            yield b64decode(encoded).decode().partition(":")[2]


_SECRET_FIELDS = frozenset(
    (
        *("code", "code_verifier", "client_secret", "client_assertion"),
        *("refresh_token", "assertion", "subject_token", "actor_token"),
    )
)


class TokenErrorKind(enum.Enum):
    """What a failed token request means for the caller."""

    INVALID_GRANT = "invalid_grant"
    """The refresh token, code or assertion is not accepted. Only this means that a login is over."""
    INVALID_CLIENT = "invalid_client"
    """The client registration is not accepted (`invalid_client`, `unauthorized_client`)."""
    UNAVAILABLE = "unavailable"
    """The server cannot answer now: HTTP 5xx, 408 or 429, or `temporarily_unavailable`. Try again later."""
    UNUSABLE = "unusable"
    """The answer is not what RFC 6749 describes, so it says nothing about the login. Try again later."""
    REFUSED = "refused"
    """Another error. It says nothing about the login. Try again later."""


class TokenError(Exception):
    """A token request that failed. The message is safe to show: it never contains a secret of ours."""

    def __init__(
        self,
        kind: TokenErrorKind,
        message: str,
        *,
        error: str = "",
        status: int = 0,
        retry_after: float | None = None,
    ) -> None:
        super().__init__(message)
        self.kind = kind
        self.message = message
        self.error = error
        """The error code of the server, cut and printable; empty if there is none."""
        self.status = status
        self.retry_after = retry_after
        """Seconds that the server asked to wait."""


_ERRORS: Mapping[str, TokenErrorKind] = {
    "invalid_grant": TokenErrorKind.INVALID_GRANT,
    "invalid_client": TokenErrorKind.INVALID_CLIENT,
    "unauthorized_client": TokenErrorKind.INVALID_CLIENT,
    "temporarily_unavailable": TokenErrorKind.UNAVAILABLE,
    "server_error": TokenErrorKind.UNAVAILABLE,
    # GitHub's own codes, which it sends with status 200:
    # https://docs.github.com/en/apps/oauth-apps/maintaining-oauth-apps/troubleshooting-oauth-app-access-token-request-errors
    "bad_refresh_token": TokenErrorKind.INVALID_GRANT,
    "bad_verification_code": TokenErrorKind.INVALID_GRANT,
    "incorrect_client_credentials": TokenErrorKind.INVALID_CLIENT,
}
_TRY_LATER = frozenset((408, 425, 429))


# ── requests ────────────────────────────────────────────────────────────────────────────────────────────


def token_request(
    url: str, client: ClientAuthentication, grant_type: str, parameters: Mapping[str, str]
) -> TokenRequest:
    """Return the request of any grant, with the client's authentication."""
    fields = {**parameters, "grant_type": grant_type, **client.parameters()}
    headers = {
        "Content-Type": "application/x-www-form-urlencoded",
        "Accept": "application/json",
        **client.headers(),
    }
    return TokenRequest(url, headers, urlencode(fields).encode())


def code_request(
    url: str,
    client: ClientAuthentication,
    code: str,
    *,
    redirect_uri: str,
    verifier: str,
    resource: str | None,
) -> TokenRequest:
    """Return the request that exchanges an authorization code. `redirect_uri` is the one already sent."""
    fields = {"code": code, "redirect_uri": redirect_uri, "code_verifier": verifier}
    return token_request(url, client, "authorization_code", fields | _optional(resource=resource))


def refresh_request(
    url: str,
    client: ClientAuthentication,
    refresh_token: str,
    *,
    resource: str | None = None,
    scopes: Iterable[str] | None = None,
) -> TokenRequest:
    """Return the request that renews a token.

    `scopes` is what was granted, and only for servers that require it (see `quirks_of`): a server must
    refuse more than was granted (RFC 6749, 6).
    """
    optional = _optional(resource=resource, scope=" ".join(scopes or ()))
    return token_request(url, client, "refresh_token", {"refresh_token": refresh_token, **optional})


def revocation_request(
    url: str, client: ClientAuthentication, token: str, hint: Literal["refresh_token", "access_token"]
) -> TokenRequest:
    """Return the request that revokes a token (RFC 7009, 2.1). Any status of 200 means it is revoked."""
    fields = {"token": token, "token_type_hint": hint, **client.parameters()}
    headers = {"Content-Type": "application/x-www-form-urlencoded", **client.headers()}
    return TokenRequest(url, headers, urlencode(fields).encode())


def _optional(**values: str | None) -> dict[str, str]:
    return {name: value for name, value in values.items() if value}


# ── answers ─────────────────────────────────────────────────────────────────────────────────────────────


def parse_token_answer(
    status: int,
    body: bytes,
    *,
    sent_at: float,
    content_type: str = "application/json",
    retry_after: float | None = None,
    requested: Iterable[str] | None = None,
    refresh_token: str | None = None,
    is_exchange: bool = False,
) -> TokenSet:
    """Return the tokens of an answer. Raises TokenError for everything else, and nothing but TokenError.

    `requested` are the scopes of the request, which were granted if the answer names none (RFC 6749, 5.1).
    `refresh_token` is the one used, which stays valid if the answer has no new one (RFC 6749, 6). With
    `is_exchange`, the token is an assertion for another server, whose type is `N_A` (RFC 8693, 2.2.1).
    """
    fields = _fields(body, content_type)
    error = fields.get("error") if fields is not None else None
    if isinstance(error, str) and error:
        raise _error(status, error, fields or {}, retry_after)
    if status != 200 or fields is None:
        raise _unusable(status, fields is not None, retry_after)
    access = _token(fields.get("access_token"))
    if access is None:
        raise TokenError(TokenErrorKind.UNUSABLE, "its answer has no usable `access_token`", status=status)
    lifetime = _lifetime(fields.get("expires_in"))
    scopes = parse_scopes(fields.get("scope"))
    if scopes is None and requested is not None:
        scopes = tuple(requested)
    return TokenSet(
        access_token=access,
        refresh_token=_token(fields.get("refresh_token")) or refresh_token,
        token_type="Bearer" if is_exchange else _token_type(fields.get("token_type"), status),
        obtained_at=sent_at,
        expires_at=None if lifetime is None else sent_at + lifetime,
        scopes=scopes,
    )


def _fields(body: bytes, content_type: str) -> Mapping[str, object] | None:
    """Return the members of a JSON object, or of a form, which GitHub prefers."""
    if content_type.partition(";")[0].strip().lower() == "application/x-www-form-urlencoded":
        if len(body) > MAX_BYTES:
            return None
        try:
            return dict(parse_qsl(body.decode(), max_num_fields=100))
        except ValueError:
            return None
    return json_object(body)


def _error(status: int, error: str, fields: Mapping[str, object], retry_after: float | None) -> TokenError:
    kind = _ERRORS.get(error, TokenErrorKind.REFUSED)
    if status >= 500 or status in _TRY_LATER:
        kind = TokenErrorKind.UNAVAILABLE  # whatever it says: its own state is in disorder
    description = quote(fields.get("error_description"))
    message = f"{quote(error)}: {description}" if description else quote(error)
    if error == "invalid_target":
        message += " (it refused `resource`: set `oauth.resource` in the definition, or to false)"
    return TokenError(kind, message, error=quote(error), status=status, retry_after=retry_after)


def _unusable(status: int, is_object: bool, retry_after: float | None) -> TokenError:
    if status >= 500 or status in _TRY_LATER:
        return TokenError(
            TokenErrorKind.UNAVAILABLE, f"HTTP {status}", status=status, retry_after=retry_after
        )
    if 200 <= status < 300:
        what = "without a token" if is_object else "that is not a JSON object"
        return TokenError(TokenErrorKind.UNUSABLE, f"HTTP {status} with an answer {what}", status=status)
    return TokenError(
        TokenErrorKind.REFUSED, f"HTTP {status} without an error code", status=status, retry_after=retry_after
    )


def _token(value: object) -> str | None:
    """Return a token that fits into a header, or None."""
    usable = isinstance(value, str) and len(value) <= MAX_TOKEN and _TOKEN.fullmatch(value)
    return value if usable else None  # type: ignore[return-value]


def _token_type(value: object, status: int) -> TokenType:
    """Several servers leave the type out, which RFC 6749 requires; they all mean Bearer."""
    named = value.lower() if isinstance(value, str) else "" if value is None else None
    if named in ("", "bearer"):
        return "Bearer"
    if named == "dpop":
        return "DPoP"
    message = f"it issued a token of the type {quote(value) or 'unknown'}, which mcpd cannot use"
    raise TokenError(TokenErrorKind.UNUSABLE, message, status=status)


def _lifetime(value: object) -> float | None:
    """Return seconds; None if unknown. A number in a string is common, and a wrong one loses no token.

    Servers whose tokens do not expire send 0. Less than a second would need a renewal for each request.
    """
    if isinstance(value, bool) or not isinstance(value, (int, float, str)):
        return None
    try:
        seconds = float(value)  # JSON integers have 64 bits here
    except ValueError:
        return None
    return min(seconds, _MAX_LIFETIME) if math.isfinite(seconds) and seconds >= 1 else None


# ── grants without a person ───────────────────────────────────────────────────────────────────────────


CLIENT_CREDENTIALS = "client_credentials"
JWT_BEARER = "urn:ietf:params:oauth:grant-type:jwt-bearer"
TOKEN_EXCHANGE = "urn:ietf:params:oauth:grant-type:token-exchange"  # noqa: S105 - a name
ID_JAG = "urn:ietf:params:oauth:token-type:id-jag"
ID_TOKEN = "urn:ietf:params:oauth:token-type:id_token"  # noqa: S105 - a name

ASSERTION_LIFETIME = 300
"""Seconds that a signed JWT is valid: an authorization server uses it at once."""

Grant = tuple[str, dict[str, str]]


def client_credentials(*, resource: str | None, scopes: Iterable[str] | None) -> Grant:
    """RFC 6749, 4.4, with RFC 8707."""
    return CLIENT_CREDENTIALS, _optional(resource=resource, scope=" ".join(scopes or ()))


def jwt_bearer(assertion: str, *, resource: str | None, scopes: Iterable[str] | None) -> Grant:
    """RFC 7523, 2.1: an ID-JAG, or the JWT of a workload, instead of a person's login."""
    return JWT_BEARER, {"assertion": assertion, **_optional(resource=resource, scope=" ".join(scopes or ()))}


def id_jag_exchange(
    subject_token: str,
    subject_type: str,
    *,
    audience: str,
    resource: str | None,
    scopes: Iterable[str] | None,
) -> Grant:
    """RFC 8693, 2.1 at the identity provider: an ID token for an ID-JAG.

    `audience` is the issuer of the MCP server's authorization server.
    """
    return TOKEN_EXCHANGE, {
        "requested_token_type": ID_JAG,
        "audience": audience,
        "subject_token": subject_token,
        "subject_token_type": subject_type,
        **_optional(resource=resource, scope=" ".join(scopes or ())),
    }


def assertion_claims(client_id: str, *, audience: str, now: float, unique_id: str) -> dict[str, object]:
    """Return the claims of the JWT with which a client authenticates (RFC 7523, 3).

    `audience` is the issuer of the authorization server (MCP extension oauth-client-credentials).
    """
    issued = int(now)
    return {
        "iss": client_id,
        "sub": client_id,
        "aud": audience,
        "iat": issued,
        "exp": issued + ASSERTION_LIFETIME,
        "jti": unique_id,
    }

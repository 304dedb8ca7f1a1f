"""Grants without a person at the browser: client credentials, signed JWTs, ID-JAG and workload identity.

Each function returns the type of the grant and its parameters for `token_requests.token_request`.
"""

from __future__ import annotations

from collections.abc import Iterable

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
    return CLIENT_CREDENTIALS, _common(resource, scopes)


def jwt_bearer(assertion: str, *, resource: str | None, scopes: Iterable[str] | None) -> Grant:
    """RFC 7523, 2.1: an ID-JAG, or the JWT of a workload, instead of a person's login."""
    return JWT_BEARER, {"assertion": assertion, **_common(resource, scopes)}


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
        **_common(resource, scopes),
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


def _common(resource: str | None, scopes: Iterable[str] | None) -> dict[str, str]:
    scope = " ".join(scopes or ())
    found = {"resource": resource or "", "scope": scope}
    return {name: value for name, value in found.items() if value}

"""What servers and authorization servers say about themselves in metadata documents.

RFC 9728 (protected resources), RFC 8414 and OpenID discovery (authorization servers). All of it may be
hostile.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from itertools import islice

import attrs

from mcpd.auth.oauth.documents import json_object, quote, string, strings
from mcpd.auth.oauth.urls import covers, is_usable, origin

MAX_SERVERS = 16
"""Authorization servers of one resource that are considered."""
_MAX_LISTED = 100
"""How many are looked at to find them."""
MAX_SCOPES = 200
"""More scopes are not requested by default: they would not fit into the authorization URL."""


class MetadataError(Exception):
    """A document must not be used. The message says which rule it breaks, and is safe to show."""


class NotMetadata(MetadataError):
    """What was found is no metadata document at all, as with servers that answer everything with a page."""


@attrs.frozen
class ProtectedResource:
    """What a server says about itself."""

    resource: str
    """Sent to the authorization server as it is, without normalization (RFC 8707)."""
    authorization_servers: tuple[str, ...]
    scopes: tuple[str, ...] | None = None
    """`scopes_supported`; None if it is missing."""
    requires_dpop: bool = False


@attrs.frozen
class AuthorizationServer:
    """The validated metadata of one issuer."""

    issuer: str
    authorization_endpoint: str | None = None
    token_endpoint: str | None = None
    registration_endpoint: str | None = None
    revocation_endpoint: str | None = None
    scopes: tuple[str, ...] = ()
    auth_methods: tuple[str, ...] | None = None
    """`token_endpoint_auth_methods_supported`; None if it is missing."""
    challenge_methods: tuple[str, ...] | None = None
    """`code_challenge_methods_supported`; None if it is missing."""
    dpop_algorithms: tuple[str, ...] = ()
    accepts_client_metadata: bool = False
    sends_iss: bool = False
    """`authorization_response_iss_parameter_supported` (RFC 9207)."""
    is_assumed: bool = False
    """There is no metadata; these are the default endpoints of MCP 2025-03-26."""


def parse_protected_resource(body: bytes, server_url: str) -> ProtectedResource:
    """Return the metadata of the server at `server_url`. Raises MetadataError, and nothing else.

    A document for another server is refused: the token would be sent to a server that it is not for.
    """
    document = json_object(body)
    if document is None:
        raise NotMetadata("the document is not a JSON object")
    resource = string(document, "resource")
    if resource is None:
        raise MetadataError("the document has no `resource`")
    if not covers(resource, server_url):
        raise MetadataError(
            f"the document is for the resource {quote(resource)}, which does not include the server's URL"
        )
    listed = strings(document, "authorization_servers")
    usable = (each for each in (listed or ())[:_MAX_LISTED] if is_usable(each))
    servers = tuple(dict.fromkeys(islice(usable, MAX_SERVERS)))
    if not servers:
        what = "no usable URL in" if listed else "no"
        raise MetadataError(f"the document has {what} `authorization_servers`")
    return ProtectedResource(
        resource=resource,
        authorization_servers=servers,
        scopes=strings(document, "scopes_supported"),
        requires_dpop=document.get("dpop_bound_access_tokens_required") is True,
    )


def parse_authorization_server(
    body: bytes, expected_issuer: str, *, override: str | None = None
) -> AuthorizationServer:
    """Return the metadata that was found for `expected_issuer`. Raises MetadataError, and nothing else.

    `override` is the issuer of the definition, which replaces the expected one.
    """
    document = json_object(body)
    if document is None:
        raise NotMetadata("the document is not a JSON object")
    issuer = string(document, "issuer")
    if issuer is None:
        raise MetadataError("the document has no `issuer`")
    server = AuthorizationServer(
        issuer=issuer,
        authorization_endpoint=_endpoint(document, "authorization_endpoint"),
        token_endpoint=_endpoint(document, "token_endpoint"),
        registration_endpoint=_endpoint(document, "registration_endpoint"),
        revocation_endpoint=_endpoint(document, "revocation_endpoint"),
        scopes=strings(document, "scopes_supported") or (),
        auth_methods=strings(document, "token_endpoint_auth_methods_supported"),
        challenge_methods=strings(document, "code_challenge_methods_supported"),
        dpop_algorithms=strings(document, "dpop_signing_alg_values_supported") or (),
        accepts_client_metadata=document.get("client_id_metadata_document_supported") is True,
        sends_iss=document.get("authorization_response_iss_parameter_supported") is True,
    )
    expected = override or expected_issuer
    if not (is_same_issuer(issuer, expected) or _is_of_origin(server, expected)):
        raise MetadataError(
            f"the document is of the issuer {quote(issuer)}, but {quote(expected)} was "
            f'asked. If you trust the former, write `"oauth": {{"issuer": "…"}}` in the definition'
        )
    return server


def is_same_issuer(stated: str, expected: str) -> bool:
    """Compare the issuer of a document with the one that was asked, character by character (RFC 8414, 3.3).

    One tolerance: a slash after an empty path. Both spellings have the same well-known URL,
    so the document cannot be that of somebody else; the metadata of Google and of many Auth0 tenants needs
    it. Everything else compares with the issuer that the document states.
    """
    bare = stated.removesuffix("/")
    has_path = bare.count("/") > 2 or "?" in bare
    return stated == expected or (bare == expected.removesuffix("/") and not has_path)


def _is_of_origin(server: AuthorizationServer, expected: str) -> bool:
    """Return whether an issuer with another path, and all its endpoints, have the origin that was asked.

    Several servers state an issuer with a wrong path. All of an origin is controlled by one party, so no code
    or token reaches another one.
    """
    endpoints = (
        server.authorization_endpoint,
        server.token_endpoint,
        server.registration_endpoint,
        server.revocation_endpoint,
    )
    return is_usable(server.issuer) and all(
        origin(url) == origin(expected) for url in (server.issuer, *endpoints) if url is not None
    )


def assumed_authorization_server(server_url: str) -> AuthorizationServer:
    """Return the default endpoints of a server without any metadata (MCP 2025-03-26, authorization)."""
    base = origin(server_url)
    return AuthorizationServer(
        issuer=base,
        authorization_endpoint=f"{base}/authorize",
        token_endpoint=f"{base}/token",
        registration_endpoint=f"{base}/register",
        is_assumed=True,
    )


def check_for_code_grant(server: AuthorizationServer) -> None:
    """Raise MetadataError if a person cannot log in there.

    mcpd always sends a challenge with S256. Entra ID and Cognito check it and do not list it in their
    metadata, so only a list without S256 is a refusal.
    """
    for name in ("authorization_endpoint", "token_endpoint"):
        if getattr(server, name) is None:
            raise MetadataError(f"the metadata has no `{name}`")
    if server.challenge_methods is not None and "S256" not in server.challenge_methods:
        raise MetadataError("`code_challenge_methods_supported` does not contain S256, which MCP requires")


def choose_issuer(listed: Collection[str], known: Collection[str], preferred: str | None) -> str:
    """Return the authorization server to use (RFC 9728, 7.6 leaves it to the client).

    The one of the definition, else one that there are credentials for, else the first.
    """
    if preferred is not None and preferred in listed:
        return preferred
    return next((each for each in listed if each in known), next(iter(listed)))


def _endpoint(document: Mapping[str, object], name: str) -> str | None:
    if document.get(name) is None:
        return None
    url = string(document, name)
    if url is None or not is_usable(url):
        raise MetadataError(f"`{name}` is not an https URL: {quote(document.get(name))}")
    return url

"""Registering a client (RFC 7591), and how a client proves its identity (RFC 6749, 2.3; RFC 7523, 2.2).

A registration belongs to the issuer that it was made for and is never used at another one.
"""

from __future__ import annotations

import base64
from collections.abc import Callable, Collection, Mapping
from typing import Literal, cast
from urllib.parse import quote_plus, urlsplit

import attrs
import msgspec

from mcpd.auth.oauth.documents import json_object, quote, string

# ── authentication ────────────────────────────────────────────────────────────────────────────────────


Method = Literal["none", "client_secret_basic", "client_secret_post", "private_key_jwt"]

ASSERTION_TYPE = "urn:ietf:params:oauth:client-assertion-type:jwt-bearer"


class NoCommonMethod(ValueError):
    """The authorization server accepts no method of client authentication that this client can use."""


@attrs.frozen
class ClientAuthentication:
    """A client ID and what proves it. `method` decides which of the other members is used."""

    client_id: str
    """Empty for a grant that identifies the client itself."""
    method: Method = "none"
    client_secret: str | None = attrs.field(default=None, repr=False)
    sign_assertion: Callable[[], str] | None = attrs.field(default=None, repr=False, eq=False)
    """Returns a new signed JWT for each request; for `private_key_jwt`."""

    def __attrs_post_init__(self) -> None:
        if self.method in ("client_secret_basic", "client_secret_post") and not self.client_secret:
            raise ValueError(f"{self.method} needs a client secret")
        if self.method == "private_key_jwt" and self.sign_assertion is None:
            raise ValueError("private_key_jwt needs a key")

    def headers(self) -> dict[str, str]:
        """Return the headers of a token request. ID and secret are form-encoded first (RFC 6749, 2.3.1)."""
        if self.method != "client_secret_basic":
            return {}
        assert self.client_secret is not None
        pair = f"{quote_plus(self.client_id)}:{quote_plus(self.client_secret)}"
        return {"Authorization": f"Basic {base64.b64encode(pair.encode()).decode()}"}

    def parameters(self) -> dict[str, str]:
        """Return the parameters in the body of a token request."""
        match self.method:
            case "client_secret_basic":
                return {}
            case "client_secret_post":
                assert self.client_secret is not None
                return {"client_id": self.client_id, "client_secret": self.client_secret}
            case "private_key_jwt":
                assert self.sign_assertion is not None
                return {
                    "client_id": self.client_id,
                    "client_assertion_type": ASSERTION_TYPE,
                    "client_assertion": self.sign_assertion(),
                }
            case "none":
                return {"client_id": self.client_id} if self.client_id else {}


def choose_method(
    supported: Collection[str] | None, *, has_secret: bool = False, has_key: bool = False
) -> Method:
    """Return the method to use, given `token_endpoint_auth_methods_supported` (None: not stated).

    With a key `private_key_jwt`; with a secret `client_secret_basic` before `client_secret_post`; otherwise
    `none`. If the list is missing, `client_secret_basic` applies to clients with a secret (RFC 8414, 2).
    Raises NoCommonMethod.
    """
    if has_key:
        usable: tuple[Method, ...] = ("private_key_jwt",)
    elif has_secret:
        usable = ("client_secret_basic", "client_secret_post", "none")
    else:
        usable = ("none",)
    if not supported or (usable == ("none",)):
        return usable[0]  # a public client has no other choice, and many servers do not list `none`
    for method in usable:
        if method in supported:
            return method
    raise NoCommonMethod(
        "the authorization server accepts none of the client's authentication methods: it wants "
        + ", ".join(sorted(each[:40] for each in supported)[:8])
    )


# ── registration ──────────────────────────────────────────────────────────────────────────────────────


Origin = Literal["pre-registered", "metadata-document", "dynamic"]

CLIENT_NAME = "mcpd"


class RegistrationRefused(Exception):
    """The authorization server did not register the client. The message is safe to show."""

    def __init__(self, message: str, *, error: str = "", status: int = 0) -> None:
        super().__init__(message)
        self.message = message
        self.error = error
        self.status = status


@attrs.frozen
class ClientRegistration:
    """A client at one authorization server. The secret is not part of `repr`."""

    issuer: str
    """The `issuer` of the validated metadata; compared character by character."""
    client_id: str
    origin: Origin = "dynamic"
    method: Method = "none"
    """How the client authenticates at the token endpoint."""
    client_secret: str | None = attrs.field(default=None, repr=False)
    redirect_uris: tuple[str, ...] = ()
    secret_name: str | None = None
    """The name of `client_secret` in the secret store, if a person named this client at a login."""

    def authentication(self, sign_assertion: Callable[[], str] | None = None) -> ClientAuthentication:
        """Return what a token request needs. `sign_assertion` is needed for `private_key_jwt`."""
        return ClientAuthentication(self.client_id, self.method, self.client_secret, sign_assertion)


def is_metadata_document_url(url: str) -> bool:
    """Return whether a client ID is the URL of a document: https, with a path, without fragment or user."""
    try:
        parts = urlsplit(url)
        usable = bool(parts.hostname) and parts.username is None
    except ValueError:
        return False
    return parts.scheme == "https" and usable and parts.path not in ("", "/") and not parts.fragment


def registration_body(
    redirect_uri: str, *, scopes: Collection[str] | None = None, methods: Collection[str] | None = None
) -> bytes:
    """Return the JSON of a registration request.

    `methods` is `token_endpoint_auth_methods_supported`: `none` if it is allowed, since a client on a
    person's machine cannot keep a secret (RFC 8252, 8.4), otherwise the first that mcpd can use.
    """
    body: dict[str, object] = {
        "client_name": CLIENT_NAME,
        "redirect_uris": [redirect_uri],
        "grant_types": ["authorization_code", "refresh_token"],
        "response_types": ["code"],
        "token_endpoint_auth_method": _method_to_request(methods),
        "application_type": "native",
    }
    if scopes:
        body["scope"] = " ".join(scopes)
    return msgspec.json.encode(body)


def parse_registration_answer(
    status: int,
    body: bytes,
    *,
    issuer: str,
    methods: Collection[str] | None,
) -> ClientRegistration:
    """Return the client that the server registered, which may differ from the request (RFC 7591, 3.2.1).

    Raises RegistrationRefused, and nothing else.
    """
    document = json_object(body)
    if status not in (200, 201) or document is None or "error" in document:
        raise _refusal(status, document)
    client_id = string(document, "client_id")
    if client_id is None:
        raise RegistrationRefused("its answer has no `client_id`", status=status)
    secret = string(document, "client_secret")
    return ClientRegistration(
        issuer=issuer,
        client_id=client_id,
        method=_assigned_method(status, string(document, "token_endpoint_auth_method"), secret, methods),
        client_secret=secret,
    )


def _assigned_method(
    status: int, assigned: str | None, secret: str | None, methods: Collection[str] | None
) -> Method:
    usable = ("none",) if secret is None else ("none", "client_secret_basic", "client_secret_post")
    if assigned is not None:
        if assigned not in usable:
            message = f"it assigned the authentication method {quote(assigned)} without what it requires"
            raise RegistrationRefused(message, status=status)
        return cast("Method", assigned)
    try:
        return choose_method(methods, has_secret=secret is not None)
    except NoCommonMethod as error:
        raise RegistrationRefused(str(error), status=status) from None


def _method_to_request(methods: Collection[str] | None) -> str:
    if not methods or "none" in methods:
        return "none"
    # The authorization server of the Python SDK (mcp 2.3.0) offers both, but requires the client ID in the
    # body, where `client_secret_basic` does not send it.
    return next((each for each in ("client_secret_post", "client_secret_basic") if each in methods), "none")


def _refusal(status: int, document: Mapping[str, object] | None) -> RegistrationRefused:
    error = quote((document or {}).get("error"))
    parts = (f"HTTP {status}", error, quote((document or {}).get("error_description")))
    return RegistrationRefused(": ".join(part for part in parts if part), error=error, status=status)

"""How a client proves its identity at the token endpoint (RFC 6749, 2.3; RFC 7523, 2.2)."""

from __future__ import annotations

import base64
from collections.abc import Callable, Collection
from typing import Literal, get_args
from urllib.parse import quote_plus

import attrs

Method = Literal["none", "client_secret_basic", "client_secret_post", "private_key_jwt"]

METHODS: tuple[str, ...] = get_args(Method)

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

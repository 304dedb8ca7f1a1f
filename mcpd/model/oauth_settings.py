"""The member `oauth` of a definition: how mcpd logs in to a remote server."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Literal

import attrs

from mcpd.model.record import Record

DEFAULT_ACCOUNT = "default"
_MAX_ACCOUNT = 64

LoginStorage = Literal["file", "keyring", "credential"]
"""Stored logins are not encrypted, or with a key in the session's keyring, or with a systemd credential."""
OAuthGrant = Literal["code", "client_credentials", "enterprise", "workload"]


@attrs.frozen(kw_only=True, eq=False, repr=False)
class IdentityProvider(Record):
    """A company's identity provider, for enterprise-managed authorization."""

    token_endpoint: str
    client_id: str
    client_secret: str | None = attrs.field(default=None, repr=False)
    id_token: str = attrs.field(repr=False)
    """The person's ID token, which is exchanged for an assertion for each server."""


@attrs.frozen(kw_only=True, eq=False, repr=False)
class OAuthSettings(Record):
    """Every member is optional. Secrets are not part of `repr`."""

    enabled: bool = True
    """False with `"oauth": false`: mcpd does not log in to this server."""
    account: str = DEFAULT_ACCOUNT
    """Which login to use. Servers with the same URL and account share one."""
    grant: OAuthGrant = "code"
    """`code`: a person logs in. The others need nobody."""
    client_id: str | None = None
    client_secret: str | None = attrs.field(default=None, repr=False)
    private_key: str | None = attrs.field(default=None, repr=False)
    """A PEM key with which the client authenticates (`private_key_jwt`): P-256 or RSA."""
    client_metadata_url: str | None = None
    """The URL of a Client ID Metadata Document."""
    scopes: tuple[str, ...] | None = None
    """Instead of those that the server names."""
    issuer: str | None = None
    """The expected issuer, if the server names another."""
    resource: str | Literal[False] | None = None
    """What to send as `resource` instead of the server's; False to send none."""
    redirect_uri: str | None = None
    """A loopback URL at which mcpd waits for the answer."""
    extra_params: Mapping[str, str] = attrs.field(factory=dict)
    """Added to the authorization request."""
    assertion: str | None = attrs.field(default=None, repr=False)
    """The JWT of a workload, for the grant `workload`."""
    identity_provider: IdentityProvider | None = None
    """For the grant `enterprise`."""

    @property
    def identity(self) -> tuple[object, ...]:
        """What decides which login is used; no secrets."""
        return (
            self.enabled,
            self.account,
            self.grant,
            self.client_id,
            self.issuer,
            self.resource,
            self.scopes,
        )


def account_problem(name: str) -> str:
    """Return why a text cannot name an account; empty if it can."""
    if not name or len(name) > _MAX_ACCOUNT:
        return f"the name of an account must have 1 to {_MAX_ACCOUNT} characters"
    if not name.isprintable() or name != name.strip():
        return "the name of an account must not contain control characters, or begin or end with a space"
    return ""


NO_SETTINGS = OAuthSettings()

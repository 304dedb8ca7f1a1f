"""The parameters and results of the methods for logins. No member ever contains a token."""

from __future__ import annotations

from urllib.parse import quote

import attrs

from mcpd.model.record import Record

LOGIN_PATH = "/login/"
"""All pages on which people on other machines log in to servers are below it."""


def person_id(name: str, issuer: str) -> str:
    """Return what identifies a person among those of all issuers. It contains the name without spaces."""
    return f"{quote(name, safe='@|:')} at {issuer}"


@attrs.frozen(kw_only=True, eq=False, repr=False)
class LoginParams(Record):
    """The parameters of `mcpd/login/begin`."""

    server: str
    scopes: tuple[str, ...] = ()
    """Scopes to request in addition to those of the current login."""
    client_id: str | None = None
    """The ID of a registered client to use instead of the one in the definition. mcpd stores it with the
    login."""
    client_secret_name: str | None = None
    """The name under which the secret of that client is stored (`mcpctl secret set`)."""
    callback_port: int | None = None
    """The port of the redirect URI on localhost that is registered for that client."""


@attrs.frozen(kw_only=True, eq=False, repr=False)
class LogoutParams(Record):
    """The parameters of `mcpd/logout`: `server`, `person`, or both; or `all`."""

    server: str | None = None
    person: str | None = None
    """Whose logins to forget: a person on another machine. This is null for who runs mcpd."""
    all: bool = False
    """Whether to forget all logins, including those that no server uses."""


@attrs.frozen(kw_only=True, eq=False, repr=False)
class AuthStatusParams(Record):
    """The parameters of `mcpd/auth/status`."""

    server: str | None = None
    """If this is null, the request applies to all servers."""
    check: bool = False
    """Whether to ask the keyring, even if no login needs it now. This may take seconds."""


@attrs.frozen(kw_only=True, eq=False, repr=False)
class LoginOffer(Record):
    """What a person needs to log in."""

    attempt: str
    """Identifies the attempt in the other methods."""
    server: str
    url: str = attrs.field(repr=False)
    """The URL to open in a browser. mcpd never opens it."""
    issuer: str
    """The authorization server."""
    expires_at: str
    redirect_uri: str
    """The loopback URL to which the browser returns."""
    scopes: tuple[str, ...] = ()


@attrs.frozen(kw_only=True, eq=False, repr=False)
class LoginAnswerParams(Record):
    """The parameters of `mcpd/login/answer`."""

    attempt: str
    url: str
    """The whole URL at which the browser ended, with `code` and `state`."""


@attrs.frozen(kw_only=True, eq=False, repr=False)
class LoginAttemptParam(Record):
    attempt: str


@attrs.frozen(kw_only=True, eq=False, repr=False)
class LoginStatus(Record):
    """One login, which several servers may share."""

    servers: tuple[str, ...]
    """The configured servers that use it."""
    url: str
    """The URL that its tokens are valid for."""
    issuer: str
    account: str
    state: str
    """`valid`, `renewing`, `failing` (mcpd tries to renew it again), or `over` (a person must log in
    again)."""
    renews: bool
    """Whether mcpd can renew it without a person."""
    logged_in_at: str | None = None
    renewed_at: str | None = None
    expires_at: str | None = None
    """When the current access token expires. This is null if the authorization server did not say."""
    scopes: tuple[str, ...] = ()
    reason: str = ""
    """Why it is failing or over."""
    renewals: int = 0
    """The number of times that it was renewed since mcpd started."""
    failed_renewals: int = 0
    """The number of renewals that have failed since mcpd started."""
    warnings: tuple[str, ...] = ()
    """In the result of `mcpd/login/wait`: why the login could not be saved. It is used until mcpd stops."""


@attrs.frozen(kw_only=True, eq=False, repr=False)
class ForgottenLogin(Record):
    """A login that mcpd has forgotten."""

    url: str
    """The URL that its tokens were valid for."""
    issuer: str
    account: str
    servers: tuple[str, ...] = ()
    """The servers that used it."""
    revoked: bool | None = None
    """Whether the authorization server confirmed that the tokens are revoked. This is null if it offers no
    revocation."""


@attrs.frozen(kw_only=True, eq=False, repr=False)
class LogoutResult(Record):
    """The result of `mcpd/logout`."""

    was_logged_in: bool
    servers: tuple[str, ...] = ()
    """The servers that used the login, or one of the logins."""
    revoked: bool | None = None
    """Whether the authorization server confirmed that the tokens are revoked; with several logins, whether
    all did that offer it. This is null if none offers revocation."""
    logins: tuple[ForgottenLogin, ...] = ()


@attrs.frozen(kw_only=True, eq=False, repr=False)
class AuthStatus(Record):
    """The result of `mcpd/auth/status`."""

    logins: tuple[LoginStatus, ...] = ()
    needed: tuple[str, ...] = ()
    """The servers that need a login."""
    problem: str = ""
    """Why logins cannot be stored or renewed. Empty if there is no problem."""
    storage: str = "file"
    """`keyring` or `credential` if the logins are encrypted with such a key; otherwise `file`. As the setting
    `loginStorage` was when mcpd started."""


@attrs.frozen(kw_only=True, eq=False, repr=False)
class AuthStep(Record):
    """One step of the discovery: one request, or one decision."""

    step: str
    outcome: str
    ms: float = 0.0


@attrs.frozen(kw_only=True, eq=False, repr=False)
class AuthExplanation(Record):
    """The result of `mcpd/auth/explain`: how a login would proceed. Nothing is registered or stored."""

    server: str
    steps: tuple[AuthStep, ...]
    error: str = ""
    """The step that fails, and why. Empty if a login is possible."""
    issuer: str = ""
    resource: str | None = None
    scopes: tuple[str, ...] = ()
    client: str = ""
    """Which client mcpd would be."""

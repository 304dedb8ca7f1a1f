"""What is stored of one login to a remote server, and its representation in the file."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Mapping

import attrs

from mcpd.auth.oauth.registration import ClientRegistration
from mcpd.auth.oauth.token_requests import MAX_TOKEN, TokenSet
from mcpd.model import codec

_LATEST = 253402300800.0
"""Unix seconds. The year 10000, which cannot be formatted."""
_TOKEN = re.compile(r"[\x21-\x7e]+")
_WORDS = {each: each for each in ("Bearer", "DPoP", "default", "none", "dynamic", "metadata-document", "")}
"""Texts of most logins."""


def _check_times(*moments: float | None) -> None:
    """Raises ValueError for what is no time, as in a damaged file."""
    if not all(0 <= moment < _LATEST for moment in moments if moment is not None):
        raise ValueError("impossible time")


@attrs.frozen(kw_only=True)
class RenewalAttempt:
    """A renewal that has started and whose response is not stored yet. Written before the request is sent."""

    generation: int
    """Of the tokens that it renews."""
    at: float
    token_hash: str
    """Of the refresh token; see `hash_token`."""

    def __attrs_post_init__(self) -> None:
        _check_times(self.at)


@attrs.frozen(kw_only=True)
class Evidence:
    """Why a login is over. Nothing in it is secret."""

    at: float
    message: str
    error: str = ""
    """The error code of the authorization server."""
    status: int = 0
    generation: int = 0

    def __attrs_post_init__(self) -> None:
        _check_times(self.at)


@attrs.frozen(kw_only=True)
class StoredLogin:
    """One login: the tokens, where they are valid, and how they are renewed.

    Two servers with the same `resource`, `issuer` and `account` share it. Times are seconds since the epoch.
    """

    resource: str
    """The tokens may be sent to this URL and to paths below it (`well_known.covers`)."""
    issuer: str
    """From the validated metadata."""
    account: str
    client: ClientRegistration
    """The client that the tokens were issued to. The secret of a pre-registered client is not stored."""
    token_endpoint: str
    tokens: TokenSet
    sent_resource: str | None = None
    """The parameter `resource` of every token request (RFC 8707); None if it is not sent."""
    revocation_endpoint: str | None = None
    requested_scopes: tuple[str, ...] | None = None
    extra_parameters: Mapping[str, str] = attrs.field(factory=dict)
    """Further parameters of every renewal."""
    dpop_key: str | None = attrs.field(default=None, repr=False)
    """The PEM key that the tokens are bound to; None for tokens that anybody can use."""
    subject: str | None = None
    """Who is logged in, for people."""
    machine: str = ""
    """The machine that holds the login. A copy on another one must not renew it: see `TokenStore`."""
    generation: int = 1
    """Incremented with every new access token."""
    logged_in_at: float = 0.0
    renewed_at: float | None = None
    attempt: RenewalAttempt | None = None
    """Set while the answer to a renewal may be lost: the stored refresh token may be used up."""
    ended: Evidence | None = None
    """Set when the authorization server no longer accepts the refresh token."""

    def __attrs_post_init__(self) -> None:
        """Raises ValueError for values that cannot be used, as in a damaged file."""
        tokens = self.tokens
        _check_times(self.logged_in_at, self.renewed_at, tokens.obtained_at, tokens.expires_at)
        for token in (tokens.access_token, tokens.refresh_token):
            if token is not None and (len(token) > MAX_TOKEN or not _TOKEN.fullmatch(token)):
                raise ValueError("a token has characters that a header cannot contain, or too many")
        if self.generation < 1:
            raise ValueError("the generation must be positive")

    @property
    def id(self) -> str:
        return login_id(self.resource, self.issuer, self.account)

    @property
    def is_uncertain(self) -> bool:
        """Whether a renewal of exactly these tokens has started and its outcome was not stored."""
        refresh, attempt = self.tokens.refresh_token, self.attempt
        return (
            attempt is not None
            and attempt.generation == self.generation
            and refresh is not None
            and attempt.token_hash == hash_token(refresh)
        )

    def sharing(self, other: StoredLogin) -> StoredLogin:
        """Return the same login, with the objects of another one for what is equal in both."""
        same: dict[str, object] = {}
        for name in ("issuer", "client", "token_endpoint", "revocation_endpoint", "machine"):
            if (value := getattr(other, name)) == getattr(self, name):
                same[name] = value
        if self.tokens.scopes == other.tokens.scopes:
            same["tokens"] = attrs.evolve(self.tokens, scopes=other.tokens.scopes)
        return attrs.evolve(self, **same)  # type: ignore[arg-type]  # fields of the same class

    def secrets(self) -> tuple[str, ...]:
        """Return everything in it that must not be shown."""
        tokens = self.tokens
        found = (tokens.access_token, tokens.refresh_token, self.client.client_secret, self.dpop_key)
        return tuple(each for each in found if each)


def login_id(resource: str, issuer: str, account: str) -> str:
    return hashlib.sha256("\n".join((resource, issuer, account)).encode()).hexdigest()[:24]


def hash_token(token: str) -> str:
    """Return what identifies a token without revealing it."""
    return hashlib.sha256(token.encode()).hexdigest()[:32]


@attrs.frozen(kw_only=True)
class StoredLogins:
    """The contents of the file."""

    logins: Mapping[str, StoredLogin] = attrs.field(factory=dict)
    """By `StoredLogin.id`."""
    servers: Mapping[str, str] = attrs.field(factory=dict)
    """`server_key` → the id of its login, so that the first request after a start is signed already."""
    clients: Mapping[str, ClientRegistration] = attrs.field(factory=dict)
    """`client_key` → the registration to use for further logins."""
    unreadable: Mapping[str, Mapping[str, object]] = attrs.field(factory=dict)
    """Section → entries that are not understood. They are kept as they are."""

    def login_of(self, url: str, account: str) -> StoredLogin | None:
        """Return the login of the server at `url`."""
        return self.logins.get(self.servers.get(server_key(url, account), ""))

    def with_login(self, login: StoredLogin, url: str | None = None) -> StoredLogins:
        """Return a copy with this login, which the server at `url` uses from now on."""
        servers = dict(self.servers)
        if url is not None:
            servers[server_key(url, login.account)] = login.id
        return attrs.evolve(self, logins={**self.logins, login.id: login}, servers=servers)

    def without_login(self, id: str) -> StoredLogins:
        return attrs.evolve(
            self,
            logins={key: login for key, login in self.logins.items() if key != id},
            servers={key: named for key, named in self.servers.items() if named != id},
        )

    def with_client(self, key: str, client: ClientRegistration | None) -> StoredLogins:
        """Return a copy with this registration, or without it."""
        clients = {name: each for name, each in self.clients.items() if name != key}
        return attrs.evolve(self, clients=clients if client is None else {**clients, key: client})


def server_key(url: str, account: str) -> str:
    return f"{url}\n{account}"


def client_key(issuer: str, redirect_uri: str | None) -> str:
    """Return what a registration is stored under. Servers compare the hosts of redirect URIs exactly."""
    if redirect_uri is None or redirect_uri.startswith("http://127.0.0.1"):
        return f"{issuer}\n127.0.0.1"
    return f"{issuer}\nlocalhost" if redirect_uri.startswith("http://localhost") else f"{issuer}\nother"


def to_json(logins: StoredLogins) -> dict[str, object]:
    """Return plain JSON values, with the entries that were not understood."""
    sections: dict[str, dict[str, object]] = {
        "servers": dict(logins.servers),
        "clients": {
            key: codec.unstructure(_without_own_secret(each)) for key, each in logins.clients.items()
        },
        "logins": {key: codec.unstructure(_storable(each)) for key, each in logins.logins.items()},
    }
    return {name: {**logins.unreadable.get(name, {}), **entries} for name, entries in sections.items()}


def from_json(document: Mapping[str, object], *, only: Mapping[str, str] | None = None) -> StoredLogins:
    """Return the contents; what is not understood is in `unreadable`. Raises ValueError for no object.

    With `only`, the logins are left out, except for that of `id` or of `server` (a `server_key`).
    """
    unreadable: dict[str, dict[str, object]] = {}

    def section(name: str, kind: type) -> dict[str, object]:
        entries = document.get(name, {})
        if not isinstance(entries, dict):
            raise ValueError(f"`{name}` is not an object")
        found: dict[str, object] = {}
        for key, value in entries.items():
            try:
                found[key] = codec.structure(_share(value, dict(_WORDS)), kind)
            except ValueError:
                unreadable.setdefault(name, {})[key] = value
        return found

    servers, clients = section("servers", str), section("clients", ClientRegistration)
    if only is not None:
        id = only.get("id") or str(servers.get(only.get("server", ""), ""))
        document = {"logins": _entry(document.get("logins"), id)}
    logins = section("logins", StoredLogin)
    return StoredLogins(servers=servers, clients=clients, logins=logins, unreadable=unreadable)  # type: ignore[arg-type]  # checked by `structure`


def _share(value: object, known: dict[str, str]) -> object:
    """Return the value with one object for equal texts, because there may be hundreds of logins."""
    if isinstance(value, dict):
        return {key: _share(inner, known) for key, inner in value.items()}
    if isinstance(value, list):
        return [_share(inner, known) for inner in value]
    return known.setdefault(value, value) if isinstance(value, str) else value


def _entry(entries: object, key: str) -> object:
    """Return a section with this entry alone; anything else as it is."""
    if not isinstance(entries, dict):
        return {} if entries is None else entries
    return {key: entries[key]} if key in entries else {}


def _storable(login: StoredLogin) -> StoredLogin:
    return attrs.evolve(login, client=_without_own_secret(login.client))


def _without_own_secret(client: ClientRegistration) -> ClientRegistration:
    """The secret of a pre-registered client is in the definition, which may refer to a secret store."""
    return attrs.evolve(client, client_secret=None) if client.origin == "pre-registered" else client

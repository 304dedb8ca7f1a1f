"""The member `oauth` of a definition: how mcpd logs in to a remote server."""

from __future__ import annotations

from collections.abc import Mapping
from typing import NewType
from urllib.parse import urlsplit

import attrs

from mcpd.config.structuring import Url, field, object_schema, read, register, set_members, spellings, text
from mcpd.model.codec import Invalid, converter, wrong_type
from mcpd.model.errors import Problem
from mcpd.model.json_path import join_path
from mcpd.model.record import Record
from mcpd.model.server_spec import (
    NO_SETTINGS,
    IdentityProvider,
    OAuthGrant,
    OAuthSettings,
    account_problem,
)
from mcpd.model.text import shorten

_LOOPBACK = ("127.0.0.1", "localhost", "::1")

Account = NewType("Account", str)
Resource = NewType("Resource", object)
"""A string, or False to send none."""
Scopes = NewType("Scopes", tuple[str, ...])
RedirectUri = NewType("RedirectUri", str)


def _account(value: object) -> str:
    name = text(value)
    if problem := account_problem(name):
        raise Invalid(f"is invalid: {problem}", "choose another name")
    return name


def _resource(value: object) -> str | bool | None:
    return (None if value else False) if isinstance(value, bool) else text(value)


def _scopes(value: object) -> tuple[str, ...]:
    """A string with spaces is what OAuth itself and several products use."""
    return tuple(value.split()) if isinstance(value, str) else converter.structure(value, tuple[str, ...])


def _redirect_uri(value: object) -> str:
    is_port = isinstance(value, int) and not isinstance(value, bool)
    uri = f"http://localhost:{value}/callback" if is_port else text(value)
    try:
        parts = urlsplit(uri)
        usable = parts.scheme == "http" and parts.hostname in _LOOPBACK and parts.port != 0
    except ValueError:
        usable = False
    if not usable or "#" in uri or "?" in uri:
        fix = "write http://127.0.0.1:PORT/PATH, with a port from 1 to 65535, as it is registered"
        raise Invalid("must be an http URL of this machine", fix)
    return uri


register(Account, _account, {"type": "string"})
register(Resource, _resource, {"type": ["string", "boolean"]})
register(Scopes, _scopes, {"anyOf": [{"type": "array", "items": {"type": "string"}}, {"type": "string"}]})
register(RedirectUri, _redirect_uri, {"type": ["string", "integer"]})


@attrs.frozen(kw_only=True, eq=False, repr=False)
class WrittenProvider(Record):
    token_endpoint: Url | None = field("The URL of its token endpoint.")
    client_id: str | None = field("The ID of the client.")
    client_secret: str | None = field("The secret of that client.")
    id_token: str | None = field("The person's ID token.")


@attrs.frozen(kw_only=True, eq=False, repr=False)
class WrittenOAuth(Record):
    enabled: bool | None = field("Whether mcpd logs in to the server.")
    account: Account | None = field("The account, to log in to the same server more than once.")
    grant: OAuthGrant | None = field("How to obtain a token.")
    client_id: str | None = field("The ID of a client that is registered already.", aliases=("client_id",))
    client_secret: str | None = field("The secret of that client.", aliases=("client_secret",))
    private_key: str | None = field("A PEM key with which that client authenticates instead.")
    client_metadata_url: Url | None = field("The URL of a Client ID Metadata Document.")
    scopes: Scopes | None = field(
        "The scopes to request: a list, or one string with spaces.", aliases=("scope",), may_be_empty=True
    )
    issuer: Url | None = field("The issuer to accept, if the server names another.")
    resource: Resource | None = field("The `resource` to request, or false for none.")
    redirect_uri: RedirectUri | None = field(
        "The loopback URL to which the login returns, or a port on localhost.",
        aliases=("redirect_uri", "callbackPort"),
    )
    extra_params: Mapping[str, str] | None = field("More parameters for the authorization request.")
    assertion: str | None = field("The JWT of a workload, for the grant `workload`.")
    identity_provider: WrittenProvider | None = field("The identity provider, for the grant `enterprise`.")


OAUTH_SHAPE = {"anyOf": [{"type": "boolean"}, object_schema(WrittenOAuth, closed=False)]}


def read_oauth(value: object, path: str, problems: list[Problem], warnings: list[str]) -> OAuthSettings:
    """Return the settings in the member at `path`.

    Members of other products that mcpd does not use are warnings, because definitions are copied.
    """
    if value is None or isinstance(value, bool):
        return OAuthSettings(enabled=value is not False)
    if not isinstance(value, Mapping):
        problems.append(Problem(path, str(error := wrong_type("an object", value)), error.fix))
        return NO_SETTINGS
    known = spellings(WrittenOAuth)
    for key in value:
        if key not in known:
            place = join_path(path, str(key))
            warnings.append(f"{place}: '{shorten(str(key), 64)}' is not used by mcpd and was ignored")
    used = {key: member for key, member in value.items() if key in known}
    return _settings(read(used, WrittenOAuth, path, problems), path, problems)


def _settings(written: WrittenOAuth, path: str, problems: list[Problem]) -> OAuthSettings:
    members = set_members(written)
    if (provider := members.pop("identity_provider", None)) is not None:
        members["identity_provider"] = _provider(provider, join_path(path, "identityProvider"), problems)
    return OAuthSettings(**members)


def _provider(written: WrittenProvider, path: str, problems: list[Problem]) -> IdentityProvider | None:
    found = set_members(written)
    required = {"token_endpoint": "tokenEndpoint", "client_id": "clientId", "id_token": "idToken"}
    missing = [name for key, name in required.items() if key not in found]
    problems += [Problem(path, f"'{name}' is missing", f"add '{name}'") for name in missing]
    return None if missing else IdentityProvider(**found)

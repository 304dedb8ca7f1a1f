"""Parses the member `oauth` of a definition, also as other products write it."""

from __future__ import annotations

from urllib.parse import urlsplit

from mcpd.config.json_path import join_path
from mcpd.config.oauth_names import GRANTS, OAUTH_NAMES
from mcpd.config.section_reader import Section
from mcpd.model.oauth_settings import NO_SETTINGS, IdentityProvider, OAuthSettings, account_problem
from mcpd.model.text import shorten

_PROVIDER = ("tokenEndpoint", "clientId", "clientSecret", "idToken")
_LOOPBACK = ("127.0.0.1", "localhost", "::1")


def parse_oauth(section: Section, warnings: list[str]) -> OAuthSettings:
    """Return the settings in the member `oauth` of a definition; problems are added to the section.

    Members of other products that mcpd does not use are warnings, because definitions are copied.
    """
    value = section.values.get("oauth")
    if value is None or isinstance(value, bool):
        return OAuthSettings(enabled=value is not False)
    found = section.child("oauth")
    if found is None:
        return NO_SETTINGS
    fields: dict[str, object] = {}
    for key, member in found.values.items():
        if key in OAUTH_NAMES:
            fields[OAUTH_NAMES[key]] = member
        else:
            path = join_path(found.path, key)
            warnings.append(f"{path}: '{shorten(key, 64)}' is not used by mcpd and was ignored")
    return _parse_members(Section(fields, found.path, section.problems, section.unresolved), warnings)


def _parse_members(oauth: Section, warnings: list[str]) -> OAuthSettings:
    enabled = oauth.boolean("enabled")
    resource = oauth.values.get("resource")
    return OAuthSettings(
        enabled=enabled is not False,
        account=_account(oauth),
        grant=oauth.choice("grant", GRANTS) or NO_SETTINGS.grant,
        client_id=oauth.string("clientId"),
        client_secret=oauth.string("clientSecret"),
        private_key=oauth.string("privateKey"),
        client_metadata_url=_url(oauth, "clientMetadataUrl"),
        scopes=_scopes(oauth),
        issuer=_url(oauth, "issuer"),
        resource=False if resource is False else None if resource is True else oauth.string("resource"),
        redirect_uri=_redirect_uri(oauth),
        extra_params=oauth.string_map("extraParams") or {},
        assertion=oauth.string("assertion"),
        identity_provider=_identity_provider(oauth),
    )


def _account(oauth: Section) -> str:
    name = oauth.string("account")
    if name is None:
        return NO_SETTINGS.account
    if problem := account_problem(name):
        oauth.add_problem("account", f"'account' is invalid: {problem}", "choose another name")
        return NO_SETTINGS.account
    return name


def _scopes(oauth: Section) -> tuple[str, ...] | None:
    """`scopes` is a list; a string with spaces is what OAuth itself and several products use."""
    value = oauth.values.get("scopes")
    if isinstance(value, str):
        return tuple(value.split())
    listed = oauth.strings("scopes")
    text = oauth.string("scope") if oauth.values.get("scope") != "" else ""
    if listed is not None and text is not None:
        oauth.add_problem("scope", "'scopes' and 'scope' mean the same", "keep one")
    return listed if listed is not None else None if text is None else tuple(text.split())


def _redirect_uri(oauth: Section) -> str | None:
    port = oauth.integer("callbackPort", minimum=1)
    uri = oauth.string("redirectUri")
    if port is not None and port > 65_535:
        oauth.add_problem("callbackPort", f"'callbackPort' must be 65535 or less, not {port}", "write a port")
        return None
    if uri is None:
        return None if port is None else f"http://localhost:{port}/callback"
    if port is not None:
        oauth.add_problem("callbackPort", "'redirectUri' and 'callbackPort' mean the same", "keep one")
    try:
        parts = urlsplit(uri)
        usable = parts.scheme == "http" and parts.hostname in _LOOPBACK and parts.port != 0
    except ValueError:
        usable = False
    if not usable or "#" in uri or "?" in uri:
        fix = "write http://127.0.0.1:PORT/PATH, as it is registered for your client"
        oauth.add_problem("redirectUri", "'redirectUri' must be an http URL of this machine", fix)
        return None
    return uri


def _url(oauth: Section, key: str) -> str | None:
    text = oauth.string(key)
    if text is not None and not text.startswith(("https://", "http://")):
        oauth.add_problem(key, f"'{key}' is not a URL", "write https://…")
        return None
    return text


def _identity_provider(oauth: Section) -> IdentityProvider | None:
    provider = oauth.child("identityProvider")
    if provider is None:
        return None
    provider.refuse_unknown(_PROVIDER)
    endpoint, client = _url(provider, "tokenEndpoint"), provider.string("clientId")
    token, secret = provider.string("idToken"), provider.string("clientSecret")
    for key in ("tokenEndpoint", "clientId", "idToken"):
        if not provider.has(key):
            provider.add_problem(None, f"'{key}' is missing", f"add '{key}'")
    if endpoint is None or client is None or token is None:
        return None
    return IdentityProvider(token_endpoint=endpoint, client_id=client, client_secret=secret, id_token=token)

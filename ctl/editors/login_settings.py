"""Maps an editor's settings for logging in to a remote server to the member `oauth` of a definition."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from urllib.parse import urlsplit

from ctl.editors.read_entries import Fields
from ctl.editors.variables import VariableTranslator

_TEXTS = {
    "clientId": ("clientId", "client_id", "CLIENT_ID"),
    "clientSecret": ("clientSecret", "client_secret", "CLIENT_SECRET"),
    "redirectUri": ("redirectUri", "redirect_uri"),
    "resource": ("resource", "oauth_resource"),
}
"""Our members → their names in editors. Cursor uses capitals. Codex has some of them next to `url`."""
_SCOPES = ("scopes", "scope")
_FOUND_BY_MCPD = ("authServerMetadataUrl", "authorizationUrl", "tokenUrl", "registrationUrl", "issuer")
"""Where to log in. mcpd asks the server, because it never trusts such a URL."""
_LOOPBACK = ("127.0.0.1", "localhost", "::1")


def map_login(fields: Fields, translator: VariableTranslator, notes: list[str]) -> object:
    """Return the member `oauth` for an entry: an object, or False. None if the entry needs none.

    What cannot be imported is added to `notes`.
    """
    if fields.get("oauth") is False:
        return False
    groups = [group for group in (fields.get("oauth"), fields.get("auth")) if isinstance(group, Mapping)]
    if "oauth_resource" in fields:  # Codex, which has its scopes there, too
        beside = {name: fields[name] for name in ("oauth_resource", *_SCOPES) if name in fields}
        groups.append(beside)
    settings: dict[str, object] = {}
    for group in groups:
        for name, value in _map_group(group, translator):
            settings.setdefault(name, value)
        if ignored := [key for key in _FOUND_BY_MCPD if group.get(key)]:
            notes.append(f"mcpd asks the server where to log in, so {_listed(ignored)} was not imported")
    _check_redirect(settings, notes)
    named = fields.get("authProviderType")
    if isinstance(named, str) and named not in ("", "none", "dynamic_discovery"):
        notes.append(f"mcpd does not support its 'authProviderType' {named}")
    return settings or None


def has_own_login(definition: Mapping[str, object]) -> bool:
    """Return whether a definition logs in with a header, so that mcpd would not log in anyway."""
    headers = definition.get("headers")
    return isinstance(headers, Mapping) and any(name.lower() == "authorization" for name in headers)


def _map_group(group: Mapping[str, object], translator: VariableTranslator) -> Iterator[tuple[str, object]]:
    for ours, spellings in _TEXTS.items():
        found = next((group[key] for key in spellings if isinstance(group.get(key), str)), None)
        if found:
            yield ours, translator.translate(str(found))
    for key in _SCOPES:
        scopes = group.get(key)
        words = scopes.split() if isinstance(scopes, str) else scopes if isinstance(scopes, list) else []
        if words and all(isinstance(word, str) for word in words):
            yield "scopes", [translator.translate(word) for word in words]
    port = group.get("callbackPort")
    if isinstance(port, int) and not isinstance(port, bool) and 0 < port < 65_536:
        yield "callbackPort", port


def _check_redirect(settings: dict[str, object], notes: list[str]) -> None:
    """Keep an address to return to only if mcpd can listen there, and say what a client needs."""
    uri = settings.get("redirectUri")
    if uri is not None and ("callbackPort" in settings or not _is_loopback(str(uri))):
        del settings["redirectUri"]
    if "clientId" in settings and not {"redirectUri", "callbackPort"} & settings.keys():
        notes.append(
            "its login uses a client of your own: register an address on this machine for that client, and "
            "set `oauth.callbackPort`"
        )


def _is_loopback(uri: str) -> bool:
    try:
        parts = urlsplit(uri)
        return parts.scheme == "http" and parts.hostname in _LOOPBACK and parts.port not in (None, 0)
    except ValueError:
        return False


def _listed(names: list[str]) -> str:
    return " and ".join(f"'{name}'" for name in names)

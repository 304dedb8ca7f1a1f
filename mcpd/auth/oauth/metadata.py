"""What servers and authorization servers say about themselves: challenges and metadata documents.

RFC 9110, 11.6.1 (`WWW-Authenticate`), RFC 9728 (protected resources), RFC 8414 and OpenID discovery
(authorization servers). All of it may be hostile.
"""

from __future__ import annotations

import ipaddress
import re
from collections.abc import Collection, Iterable, Iterator, Mapping
from functools import lru_cache
from itertools import islice
from types import MappingProxyType
from urllib.parse import SplitResult, unquote, urlsplit, urlunsplit

import attrs
import msgspec

from mcpd.model import json_text
from mcpd.model.text import shorten

# ── documents ─────────────────────────────────────────────────────────────────────────────────────────


MAX_BYTES = 1 << 20
"""Bytes of a metadata document, a registration answer or a token answer."""
MAX_VALUES = 20_000
"""JSON values in such a document."""
MAX_STRING = 8192
"""Characters of a URL or another string that mcpd uses."""
_MAX_SCOPES = 1000
_SCOPE = re.compile(r"[\x21\x23-\x5b\x5d-\x7e]+")
"""A scope token (RFC 6749, 3.3)."""


def json_object(body: bytes) -> Mapping[str, object] | None:
    """Return the JSON object in `body`, or None if it is something else or exceeds a limit. Never raises."""
    try:
        json_text.check_size(body, MAX_VALUES, MAX_BYTES)
        value = msgspec.json.decode(body)
    except (json_text.JsonTooLarge, msgspec.MsgspecError, RecursionError, UnicodeDecodeError):
        return None
    return value if isinstance(value, dict) else None


def string(document: Mapping[str, object], key: str) -> str | None:
    """Return a non-empty string of printable characters, or None."""
    value = document.get(key)
    usable = isinstance(value, str) and 0 < len(value) <= MAX_STRING and value.isprintable()
    return value if usable else None  # type: ignore[return-value]


def strings(document: Mapping[str, object], key: str) -> tuple[str, ...] | None:
    """Return an array of strings without its unusable items; None if the member is not an array."""
    value = document.get(key)
    if not isinstance(value, list):
        return None
    return tuple(each for each in value if isinstance(each, str) and each and each.isprintable())


def quote(text: object) -> str:
    """Return text of a server for a message: printable and at most 200 characters."""
    return shorten(text, 200) if isinstance(text, str) else ""


def parse_scopes(value: object) -> tuple[str, ...] | None:
    """Return the scopes of a `scope` parameter, each once; None if there is no such parameter."""
    if not isinstance(value, str):
        return None
    found = dict.fromkeys(each for each in value[:65_536].split() if _SCOPE.fullmatch(each))
    return tuple(found)[:_MAX_SCOPES]


# ── URLs ──────────────────────────────────────────────────────────────────────────────────────────────


_MAX_URL = 8192
_DEFAULT_PORTS = {"http": 80, "https": 443}
_PROTECTED_RESOURCE = "/.well-known/oauth-protected-resource"
_AUTHORIZATION_SERVER = "/.well-known/oauth-authorization-server"
_OPENID = "/.well-known/openid-configuration"


def is_loopback_host(host: str) -> bool:
    """Return whether a host is this machine by its name (RFC 8252, 7.3 and 8.3); nothing is looked up."""
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host.lower() == "localhost"


def is_usable(url: str) -> bool:
    """Return whether mcpd may use a URL that a stranger named.

    It must be https, or http to this machine, without user, password and fragment, and not too long.
    """
    try:
        parts = urlsplit(url)
        host, _ = parts.hostname or "", parts.port
    except ValueError:
        return False
    return (
        bool(host)
        and (parts.scheme == "https" or (parts.scheme == "http" and is_loopback_host(host)))
        and "@" not in parts.netloc
        and "#" not in url
        and "\\" not in url
        and " " not in url
        and len(url) <= _MAX_URL
        and url.isascii()
        and url.isprintable()
    )


def http_url(url: str) -> str:
    """Return the URL of a server with the scheme of HTTP, also for a WebSocket server."""
    scheme, colon, rest = url.partition(":")
    return {"ws": "http", "wss": "https"}.get(scheme.lower(), scheme) + colon + rest


def origin(url: str) -> str:
    """Return scheme, host and port in lower case, without the default port."""
    parts = urlsplit(http_url(url))
    return urlunsplit((parts.scheme.lower(), _authority(parts), "", "", ""))


def canonical(url: str) -> str:
    """Return the `resource` of a server without metadata: no user, query and fragment, and no slash added.

    The query of a server's URL is left out because it may be a key (RFC 8707, 2 advises against it, too).
    """
    parts = urlsplit(http_url(url))
    path = "" if parts.path == "/" else parts.path
    return urlunsplit((parts.scheme.lower(), _authority(parts), path, "", ""))


@lru_cache(maxsize=256)
def covers(resource: str, url: str) -> bool:
    """Return whether a token for `resource` may be sent to `url`, and so whether `resource` is its server.

    Both have the same origin, and the path of `resource` is that of `url` or a parent of it, by whole
    segments: `/mcp` covers `/mcp/x`, and not `/mcpx`.
    """
    try:
        outer, inner = urlsplit(http_url(resource)), urlsplit(http_url(url))
        if origin(resource) != origin(url) or outer.scheme not in _DEFAULT_PORTS or not outer.hostname:
            return False
    except ValueError:
        return False
    if outer.fragment or "@" in outer.netloc or (outer.query and outer.query != inner.query):
        return False
    if _has_dots(outer.path) or _has_dots(inner.path):
        return False
    return (inner.path.rstrip("/") + "/").startswith(outer.path.rstrip("/") + "/")


def protected_resource_urls(server_url: str) -> tuple[str, ...]:
    """Return where the metadata of a server may be, the first to be asked first (RFC 9728, 3.1)."""
    parts = urlsplit(http_url(server_url))
    root = urlunsplit((parts.scheme.lower(), _authority(parts), _PROTECTED_RESOURCE, "", ""))
    if parts.path in ("", "/") and not parts.query:
        return (root,)
    path = "" if parts.path == "/" else parts.path
    inserted = (parts.scheme.lower(), _authority(parts), _PROTECTED_RESOURCE + path, parts.query, "")
    return (urlunsplit(inserted), root)


def authorization_server_urls(issuer: str) -> tuple[str, ...]:
    """Return where the metadata of an issuer may be, in order (RFC 8414, 3.1; MCP 2025-11-25).

    Some servers have it only at the root, although their issuer has a path.
    """
    parts = urlsplit(issuer)
    path = parts.path.rstrip("/")
    places = [_AUTHORIZATION_SERVER, _OPENID]
    if path:
        places = [_AUTHORIZATION_SERVER + path, _OPENID + path, path + _OPENID, *places]
    return tuple(urlunsplit((parts.scheme, parts.netloc, place, "", "")) for place in places)


def _authority(parts: SplitResult) -> str:
    host = (parts.hostname or "").lower()
    host = f"[{host}]" if ":" in host else host
    port = parts.port
    return host if port is None or port == _DEFAULT_PORTS.get(parts.scheme.lower()) else f"{host}:{port}"


def _has_dots(path: str) -> bool:
    """Return whether a path has segments that a server may resolve to another path."""
    decoded = unquote(path).replace("\\", "/")
    return any(segment in (".", "..") for segment in decoded.split("/"))


# ── challenges ────────────────────────────────────────────────────────────────────────────────────────


_MAX_FIELDS = 16_384
"""Characters of all fields together."""
_MAX_CHALLENGES = 32
_TOKEN = r"[!#$%&'*+.^_`|~0-9A-Za-z-]+"  # noqa: S105 - a regular expression
_PARAMETER = re.compile(
    rf'({_TOKEN})[ \t]*=[ \t]*(?:({_TOKEN})(?=[ \t]*(?:,|$))|"((?:[^"\\]|\\.)*)")', re.DOTALL
)
_SCHEME = re.compile(rf"({_TOKEN})(?=[ \t]|,|$)")
_TOKEN68 = re.compile(r"[ \t]+[0-9A-Za-z._~+/-]+=*(?=[ \t]*(?:,|$))")
_SEPARATOR = re.compile(r"[ \t,]*")


@attrs.frozen
class Challenge:
    """A challenge of the scheme Bearer or DPoP. Everything in it was chosen by the server."""

    scheme: str = "bearer"
    resource_metadata: str | None = None
    """The URL of the metadata of the protected resource (RFC 9728, 5.1); not checked yet."""
    scopes: tuple[str, ...] | None = None
    """The scopes that this request needs."""
    error: str = ""
    description: str = ""
    """Cut and printable."""

    @property
    def needs_more_scopes(self) -> bool:
        """Whether a new authorization with more scopes helps (RFC 6750, 3.1)."""
        return self.error == "insufficient_scope"


def read_challenge(fields: Iterable[str]) -> Challenge | None:
    """Return the first Bearer challenge of all header fields, else the first DPoP challenge. Never raises.

    `resource_metadata` is taken from any of them, since servers put it into either.
    """
    found = list(islice(_challenges_of(fields), _MAX_CHALLENGES))
    ours = [each for each in found if each[0] in ("bearer", "dpop")]
    if not ours:
        return None
    scheme, parameters = min(ours, key=lambda each: each[0] != "bearer")
    metadata = next((each["resource_metadata"] for _, each in ours if each.get("resource_metadata")), None)
    return Challenge(
        scheme="dpop" if all(name == "dpop" for name, _ in ours) else scheme,
        resource_metadata=metadata,
        scopes=parse_scopes(parameters.get("scope")) or None,
        error=quote(parameters.get("error")),
        description=quote(parameters.get("error_description")),
    )


def _challenges_of(fields: Iterable[str]) -> Iterator[tuple[str, Mapping[str, str]]]:
    left = _MAX_FIELDS
    for field in fields:
        yield from parse_challenges(field[:left])
        left = max(0, left - len(field))


def parse_challenges(field: str) -> Iterator[tuple[str, Mapping[str, str]]]:
    """Return scheme and parameters of each challenge, with lower-case names.

    A field may have several challenges. What has no valid syntax is skipped; nothing raises.
    """
    scheme, parameters = "", dict[str, str]()
    here = 0
    while True:
        separator = _SEPARATOR.match(field, here)
        here = separator.end() if separator else here
        if here >= len(field):
            break
        if scheme and (found := _PARAMETER.match(field, here)):
            value = found[2] if found[2] is not None else re.sub(r"\\(.)", r"\1", found[3], flags=re.DOTALL)
            parameters.setdefault(found[1].lower(), value)
        elif found := _SCHEME.match(field, here):
            if scheme:
                yield scheme, parameters
            scheme, parameters = found[1].lower(), {}
            if token := _TOKEN68.match(field, found.end()):
                found = token
        else:  # skip what is broken
            comma = field.find(",", here)
            here = len(field) if comma < 0 else comma + 1
            continue
        here = found.end()
    if scheme:
        yield scheme, parameters


# ── quirks of known issuers ───────────────────────────────────────────────────────────────────────────


@attrs.frozen
class Quirks:
    """What to do differently at one issuer."""

    extra_params: Mapping[str, str] = MappingProxyType({})
    """Added to the authorization request."""
    scope_on_refresh: bool = False
    """Whether a refresh must repeat the granted scopes."""
    omit_resource: bool = False
    """Whether the server refuses `resource` together with its own scopes."""
    advice: str = ""
    """What to do if mcpd cannot register itself there."""


_NONE = Quirks()

_BY_HOST: Mapping[str, Quirks] = MappingProxyType(
    {
        # A refresh token is issued only for these parameters:
        # https://developers.google.com/identity/protocols/oauth2/web-server#offline
        "accounts.google.com": Quirks(
            extra_params=MappingProxyType({"access_type": "offline", "prompt": "consent"}),
            advice="create an OAuth client of the type Desktop app in the Google Cloud console, and write "
            "its `clientId` and `clientSecret` into `oauth`",
        ),
        # AADSTS90009 without scopes in a refresh; AADSTS9010010 with `resource`:
        # https://github.com/modelcontextprotocol/csharp-sdk/issues/1587
        "login.microsoftonline.com": Quirks(
            scope_on_refresh=True,
            omit_resource=True,
            advice="register a public client in Entra, and write its `clientId` and `scopes` into `oauth`",
        ),
        "github.com": Quirks(
            advice="create an OAuth app at https://github.com/settings/developers and write its `clientId` "
            "and `clientSecret` into `oauth`, or put a personal access token into the `Authorization` header",
        ),
        "slack.com": Quirks(
            advice='write `"oauth": {"clientId": "…", "callbackPort": 3118}` with the client ID of your '
            "Slack app",
        ),
        "api.figma.com": Quirks(
            advice="Figma registers only programs that it knows; use its local server, or ask Figma for a "
            "client ID",
        ),
    }
)
_BY_SUFFIX: Mapping[str, Quirks] = MappingProxyType(
    {".ciamlogin.com": _BY_HOST["login.microsoftonline.com"], ".slack.com": _BY_HOST["slack.com"]}
)


def quirks_of(issuer: str) -> Quirks:
    """Return the quirks of a validated issuer, by its host."""
    host = (urlsplit(issuer).hostname or "").lower()
    if found := _BY_HOST.get(host):
        return found
    return next((quirks for suffix, quirks in _BY_SUFFIX.items() if host.endswith(suffix)), _NONE)


# ── metadata ──────────────────────────────────────────────────────────────────────────────────────────


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

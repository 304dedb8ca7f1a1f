"""`settings.http`: where mcpd serves HTTP, and who may use it from other machines."""

from __future__ import annotations

import ipaddress
import re
from collections.abc import Mapping
from contextlib import suppress
from importlib.util import find_spec
from typing import NewType
from urllib.parse import urlsplit

import attrs
import msgspec

from mcpd.config.oauth import WrittenOAuth
from mcpd.config.structuring import Url, field, object_schema, register, set_members, text
from mcpd.model.codec import Invalid, converter
from mcpd.model.record import Record


class Address(msgspec.Struct, frozen=True):
    """An address to listen on. Port 0: any free port."""

    host: str
    """An IP address, or a name that resolves to one of this machine."""
    port: int

    def __str__(self) -> str:
        return f"[{self.host}]:{self.port}" if ":" in self.host else f"{self.host}:{self.port}"

    @property
    def is_loopback(self) -> bool:
        """Whether only programs of this machine can connect."""
        with suppress(ValueError):
            return ipaddress.ip_address(self.host).is_loopback
        return False


def parse_address(written: str) -> Address:
    """Parse `HOST:PORT`; `localhost` is 127.0.0.1. Raises ValueError with a message for the user."""
    host = port = None
    with suppress(ValueError):  # the port is no number, or out of range
        parts = urlsplit(f"//{written}")
        if parts.netloc == written and "@" not in written:
            host, port = parts.hostname, parts.port
    if host is None or port is None:
        raise ValueError('it must be HOST:PORT, for example "127.0.0.1:8931" or "[::1]:8931"')
    host = "127.0.0.1" if host == "localhost" else host
    with suppress(ValueError):
        host = str(ipaddress.ip_address(host))
    return Address(host, port)


def _address(value: object) -> Address:
    written = text(value)
    try:
        return parse_address(written)
    except ValueError as error:
        raise Invalid(f"cannot be used: {error}", 'write "127.0.0.1:8931"') from None


@attrs.frozen(kw_only=True)
class TlsFiles(Record):
    """The files of a TLS certificate."""

    certificate: str = field("PEM file of the certificate, followed by its chain.", "")
    key: str = field("PEM file of its private key.", "")


Tls = NewType("Tls", object)
"""`TlsFiles`, or BALANCER."""
BALANCER = "balancer"
"""A balancer in front of mcpd terminates TLS, and only it can connect to mcpd."""
_TLS_FIX = f'write {{"certificate": FILE, "key": FILE}}, or "{BALANCER}" if one in front terminates TLS'


def _tls(value: object) -> TlsFiles | str:
    if value == BALANCER:
        return BALANCER
    if isinstance(value, str):
        raise Invalid("is neither an object nor known", _TLS_FIX)
    files = converter.structure(value, TlsFiles)
    if not (files.certificate and files.key):
        raise Invalid("needs both files", _TLS_FIX)
    return files


@attrs.frozen(kw_only=True)
class JwtSettings(Record):
    """Which access tokens of an authorization server are accepted (RFC 9068)."""

    issuer: Url | None = field("The URL of the authorization server, as in the claim `iss`.")
    audience: str = field("What the claim `aud` must contain.", "")
    jwks: Url | None = field("The URL of its keys. Default: the one in the issuer's metadata.")
    person: str = field("The claim that identifies a person.", "sub")
    groups: str = field("The claim with the groups of a person.", "groups")
    login: WrittenOAuth | None = field("The client as which mcpd finds out whose browser it is.")

    def __repr__(self) -> str:
        return f"JwtSettings(issuer={self.issuer!r})"


def _jwt(value: object) -> JwtSettings:
    found = converter.structure(value, JwtSettings)
    if not found.issuer or not found.audience:
        raise Invalid("needs an issuer and an audience", 'write {"issuer": "https://…", "audience": "…"}')
    if find_spec("joserfc") is None:
        raise Invalid("needs the package `joserfc`", "install mcpd with the extra `keys`")
    return found


@attrs.frozen(kw_only=True)
class ClusterSettings(Record):
    """How replicas behind a balancer find each other."""

    key: str = field("A secret of at least 32 characters that all replicas share.", "")
    address: str = field("The URL at which the other replicas reach this one.", "")
    redis: str = field("The URL of the Redis server that keeps what all replicas share.", "")

    def __repr__(self) -> str:
        return f"ClusterSettings(address={self.address!r})"


def _cluster(value: object) -> ClusterSettings:
    found = converter.structure(value, ClusterSettings)
    if len(found.key) < _MIN_KEY:
        fix = "write ${MCPD_CLUSTER_KEY}, and set that to the output of `openssl rand -hex 32`"
        raise Invalid(f"needs a `key` of at least {_MIN_KEY} characters", fix)
    if not re.fullmatch(r"http://[^\s/@?#]+", found.address):
        raise Invalid("needs the `address` of this replica", "write http://HOST:PORT, without a path")
    if found.redis and not _REDIS.fullmatch(found.redis):
        fix = "write redis://:PASSWORD@HOST:6379/0, with %2F for a slash in the password"
        raise Invalid("has an invalid URL in `redis`", fix)
    for package, extra in (("cryptography", "keys"), ("redis", "redis" if found.redis else "")):
        if extra and find_spec(package) is None:
            raise Invalid(f"needs the package `{package}`", f"install mcpd with the extra `{extra}`")
    return found


_MIN_KEY = 32
_REDIS = re.compile(
    r"rediss?://([^\s/@?#]*@)?([\w.-]+|\[[0-9a-f:]+\])(:[0-9]{1,5})?(/[0-9]{1,4})?|unix:///[^\s?#]+"
)
Cluster = NewType("Cluster", ClusterSettings)
register(Cluster, _cluster, object_schema(ClusterSettings))
Jwt = NewType("Jwt", JwtSettings)
register(Address, _address, {"type": "string"})
register(Tls, _tls, {"anyOf": [object_schema(TlsFiles), {"const": BALANCER}]})
register(Jwt, _jwt, object_schema(JwtSettings))


@attrs.frozen(kw_only=True)
class WrittenHttp(Record):
    listen: Address | None = field("HOST:PORT to listen on.")
    hosts: tuple[str, ...] = field("The names under which clients reach it, without ports.", ())
    tls: Tls | None = field("The certificate; or `balancer`.")
    jwt: Jwt | None = field("The access tokens that are accepted besides mcpd's own token.")
    profiles: Mapping[str, str] = field(
        "Group → the profile that its members use. `*`: everybody else. Without it, all may use all.", {}
    )
    cluster: Cluster | None = field("The other replicas behind the same balancer.")


@attrs.frozen(kw_only=True)
class HttpSettings:
    """Where and for whom mcpd serves HTTP. The default is for this machine only."""

    listen: Address
    hosts: tuple[str, ...] = ()
    """DNS names in lower case that a `Host` header may contain, besides those of this machine."""
    tls: TlsFiles | str | None = None
    """BALANCER, the files of the certificate, or None: plain HTTP."""
    jwt: JwtSettings | None = None
    """None: only mcpd's own token is accepted."""
    profiles: Mapping[str, str] = attrs.field(factory=dict)
    """Group → profile, in the order in which they are tried. `*` is everybody. Empty: all may use all."""
    cluster: ClusterSettings | None = None
    """None: there is one daemon."""

    @property
    def problem(self) -> str:
        """Return why mcpd must not listen like this; empty if it may."""
        if not self.listen.is_loopback and self.tls is None:
            return (
                f"{self.listen} can be reached from other machines, so it needs `settings.http.tls`; "
                "to serve this machine only, use 127.0.0.1"
            )
        return ""

    @property
    def origin(self) -> str:
        """The origin at which people reach it: that of the audience, or its first name if that is no URL."""
        parts = urlsplit("" if self.jwt is None else self.jwt.audience)
        if parts.scheme in ("http", "https"):
            return f"{parts.scheme}://{parts.netloc}"
        name = self.hosts[0] if self.hosts else self.listen.host
        return f"{self.scheme}://{name if self.tls == BALANCER else Address(name, self.listen.port)}"

    @property
    def scheme(self) -> str:
        """The scheme of the URLs that clients use."""
        return "http" if self.tls is None else "https"


def _http(value: object) -> HttpSettings:
    if isinstance(value, str):
        written = WrittenHttp(listen=_address(value))
    else:
        written = converter.structure(value, WrittenHttp)
    if written.listen is None:
        raise Invalid("lacks `listen`", 'write {"listen": "0.0.0.0:8931"}')
    members = set_members(written)
    members["hosts"] = tuple(host.lower() for host in written.hosts)
    found = HttpSettings(**members)
    if found.problem:
        raise Invalid(f"cannot be used: {found.problem}", f"for `tls`, {_TLS_FIX}")
    if found.profiles and found.jwt is None:
        raise Invalid("has `profiles`, but no person is known", "set `jwt`")
    return found


HTTP_SHAPE = {"anyOf": [{"type": "string"}, {**object_schema(WrittenHttp), "required": ["listen"]}]}
register(HttpSettings, _http, HTTP_SHAPE)

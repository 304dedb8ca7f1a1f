"""The access tokens of people on other machines: JWTs of one authorization server (RFC 9068).

`joserfc` is the extra `[keys]`, and is imported when the settings name an authorization server.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Mapping

import msgspec
import trio
from joserfc import jwt
from joserfc.errors import InvalidKeyIdError, JoseError
from joserfc.jwk import Key, KeySet, import_key

from mcpd.auth.guarded_fetch import FetchError, GuardedFetch
from mcpd.config.http import JwtSettings
from mcpd.model.login import person_id
from mcpd.model.text import shorten
from mcpd.privacy.logs import FROM_OUTSIDE

log = logging.getLogger("mcpd.http")

_ALGORITHMS = ["RS256", "RS384", "RS512", "PS256", "PS384", "PS512", "ES256", "ES384", "ES512", "Ed25519"]
"""Signatures with a key pair only: a public key must never serve as a shared secret."""
_LEEWAY = 60
"""Seconds that the clocks may differ."""
_REFRESH_INTERVAL = 300.0
_RETRY_INTERVAL = 5.0
"""Seconds between two requests for the keys while they are not known, or a token names an unknown one."""
_MAX_KEPT = 1000
_MAX_TOKEN = 16 * 1024
_MAX_KEYS = 100
_MAX_GROUPS = 200


class TokenRefused(ValueError):
    """The token gives no access. The message does not quote it."""


class KeysUnknown(ValueError):
    """The keys of the authorization server are not known yet."""


class Person(msgspec.Struct, frozen=True):
    """Whom a verified token is about."""

    name: str
    """The value of the claim that identifies a person (`settings.http.jwt.person`)."""
    id: str
    """See `person_id`."""
    groups: tuple[str, ...]
    """The groups, and the scopes of the token."""
    expires: float
    """Unix time."""


class AccessTokens:
    """Verifies tokens without waiting. `run` keeps the keys up to date."""

    def __init__(
        self, settings: JwtSettings, environ: Mapping[str, str], now: Callable[[], float] = time.time
    ) -> None:
        self._settings = settings
        self._environ = environ
        self._now = now
        self._keys: KeySet | None = None
        self._kept: dict[bytes, Person] = {}
        self._wanted = trio.Event()

    @property
    def is_ready(self) -> bool:
        """Whether the keys are known."""
        return self._keys is not None

    def verify(self, token: bytes) -> Person:
        """Return whom the token is about. Raises TokenRefused, KeysUnknown."""
        person = self._kept.get(token)
        if person is None:
            person = self._verify(token)
            if len(self._kept) >= _MAX_KEPT:
                self._kept.clear()
            self._kept[token] = person
        elif person.expires + _LEEWAY <= self._now():
            raise TokenRefused("the token has expired")
        return person

    def identify(self, token: str) -> str:
        """Return the person's `Person.id`. Raises ValueError."""
        return self.verify(token.encode()).id

    def _verify(self, token: bytes) -> Person:
        if self._keys is None:
            raise KeysUnknown("the keys of the issuer are not known yet")
        if len(token) > _MAX_TOKEN:
            raise TokenRefused(f"the token has more than {_MAX_TOKEN} bytes")
        settings = self._settings
        try:
            claims = jwt.decode(token.decode("ascii"), self._keys, algorithms=_ALGORITHMS).claims
            jwt.JWTClaimsRegistry(
                now=lambda: int(self._now()),
                leeway=_LEEWAY,
                iss={"essential": True, "value": str(settings.issuer)},
                aud={"essential": True, "value": settings.audience},
                exp={"essential": True},
            ).validate(claims)
        except InvalidKeyIdError:
            self._wanted.set()
            raise TokenRefused("the token is signed with an unknown key") from None
        except JoseError as error:
            raise TokenRefused(f"the token is not valid: {shorten(str(error), 100)}") from None
        except (ValueError, TypeError, KeyError, RecursionError):
            raise TokenRefused("the token is not a signed JWT") from None
        name = claims.get(settings.person)
        if not isinstance(name, str) or not name or len(name) > 200 or not name.isprintable():
            raise TokenRefused(f"the token has no claim `{settings.person}` that names a person")
        groups, scopes = claims.get(settings.groups), claims.get("scope")
        groups = [groups] if isinstance(groups, str) else groups
        known = [each for each in groups if isinstance(each, str)] if isinstance(groups, list) else []
        known += scopes.split() if isinstance(scopes, str) else ()
        if len(known) > _MAX_GROUPS:  # a rule may deny something to any of them
            raise TokenRefused(f"the token has more than {_MAX_GROUPS} groups and scopes")
        id = person_id(name, str(settings.issuer))
        return Person(name, id, tuple(known), float(claims["exp"]))

    async def run(self) -> None:
        """Fetch the keys again and again, until cancelled."""
        problem = ""
        while True:
            try:
                self._use(await self._fetch_keys())
                problem, pause = "", _REFRESH_INTERVAL
            except (FetchError, ValueError, msgspec.MsgspecError, RecursionError) as error:
                if str(error) != problem:
                    problem = str(error)
                    text = "no keys of %s, so tokens may be refused: %s"
                    log.warning(text, self._settings.issuer, problem, extra=FROM_OUTSIDE)
                pause = _RETRY_INTERVAL
            self._wanted = trio.Event()
            await trio.sleep(_RETRY_INTERVAL)
            with trio.move_on_after(pause - _RETRY_INTERVAL):
                await self._wanted.wait()

    def _use(self, keys: list[Key]) -> None:
        known = None if self._keys is None else [key.as_dict() for key in self._keys.keys]
        if known != [key.as_dict() for key in keys]:
            self._keys = KeySet(keys)
            self._kept.clear()

    async def _fetch_keys(self) -> list[Key]:
        """Return the usable keys. Raises FetchError, ValueError."""
        issuer = self._settings.issuer
        assert issuer is not None
        fetch = GuardedFetch(issuer, self._environ)
        url: object = self._settings.jwks
        if url is None:
            metadata = await _fetch_object(fetch, f"{issuer.rstrip('/')}/.well-known/openid-configuration")
            url = metadata.get("jwks_uri")
            if not isinstance(url, str) or metadata.get("issuer") != issuer:
                raise ValueError(f"the metadata of {issuer} is not about it, or names no `jwks_uri`")
        found = (await _fetch_object(fetch, str(url))).get("keys")
        keys = []
        for each in found[:_MAX_KEYS] if isinstance(found, list) else ():
            try:
                if each["kty"] != "oct" and each.get("use", "sig") == "sig":
                    keys.append(import_key(each))
            except (JoseError, ValueError, TypeError, KeyError, AttributeError):
                continue  # a kind of key that is not supported
        if not keys:
            raise ValueError("there is no usable key")
        return keys


async def _fetch_object(fetch: GuardedFetch, url: str) -> Mapping[str, object]:
    answer = await fetch.get(url)
    if answer.status != 200:
        raise ValueError(f"HTTP {answer.status}")
    found = msgspec.json.decode(answer.body)
    if not isinstance(found, dict):
        raise ValueError("not a JSON object")
    return found

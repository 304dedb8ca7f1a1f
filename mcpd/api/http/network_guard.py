"""Guards a port that other machines can reach: every request names a person, by an access token, or carries
mcpd's own token, as the person who runs mcpd does.
"""

from __future__ import annotations

import hmac
import ipaddress
import re
from collections.abc import Mapping

import msgspec

from mcpd.api.http.access_tokens import AccessTokens, KeysUnknown, Person, TokenRefused
from mcpd.api.http.guard import RequestGuard
from mcpd.api.http.parser import MAX_BODY, Admission, BadRequest, Head
from mcpd.config.http import HttpSettings
from mcpd.model.login import LOGIN_PATH
from mcpd.model.policy import ALL_SERVERS

WELL_KNOWN = "/.well-known/oauth-protected-resource"
_HOST = re.compile(r"([a-z0-9_.-]{1,255}|\[[0-9a-f:.]{2,45}\])(?::[0-9]{1,5})?")
_AUTHENTICATED = Admission(MAX_BODY, True)


class NetworkGuard(RequestGuard):
    """`token` is mcpd's own. `tokens`: how access tokens are verified; None: they are not accepted."""

    def __init__(
        self,
        settings: HttpSettings,
        token: str,
        tokens: AccessTokens | None,
        open_paths: Mapping[str, int],
    ) -> None:
        super().__init__()
        self._settings = settings
        self._token = token.encode()
        self._tokens = tokens
        self._open_paths = open_paths

    @property
    def problem(self) -> str:
        """Why nobody can be authenticated now; empty if that is possible."""
        is_ready = self._tokens is None or self._tokens.is_ready
        return "" if is_ready else "the keys of the authorization server are not known yet"

    def admit(self, head: Head) -> Admission:
        origin = f"{self._settings.scheme}://{self._host(head)}"
        if (head.get(b"origin") or origin).lower() != origin:
            raise self._forbidden("requests of web pages are refused", head, b"origin")
        if head.path in self._open_paths or head.path.startswith(("/.well-known/", LOGIN_PATH)):
            return Admission(self._open_paths.get(head.path, 0), False)
        self.person(head)
        return _AUTHENTICATED

    def person(self, head: Head) -> Person | None:
        scheme, _, given = head.headers.get(b"authorization", b"").partition(b" ")
        given = given.strip()
        if scheme.lower() == b"bearer" and hmac.compare_digest(given, self._token):
            return None
        if self._tokens is None:
            text = "send `Authorization: Bearer TOKEN`, with the token of the person who runs mcpd"
            raise BadRequest(401, text, b'WWW-Authenticate: Bearer realm="mcpd"\r\n')
        if scheme.lower() != b"bearer" or not given:
            raise self._unauthorized(head, "send `Authorization: Bearer TOKEN`, with an access token")
        try:
            return self._tokens.verify(given)
        except TokenRefused as error:
            self._warn("an access token was refused", head, str(error))
            raise self._unauthorized(head, str(error), b', error="invalid_token"') from None
        except KeysUnknown:
            raise BadRequest(503, f"{self.problem}; try again", b"Retry-After: 1\r\n") from None

    def profiles_of(self, person: Person) -> list[str]:
        """Return the profiles that a person may use, the default first."""
        known = self._settings.profiles or {"*": ALL_SERVERS}
        return [profile for group, profile in known.items() if group == "*" or group in person.groups]

    def metadata(self, head: Head) -> bytes | None:
        """Return the metadata of the resource that the path names (RFC 9728); None if there is none."""
        settings = self._settings
        if settings.jwt is None or not head.path.startswith(WELL_KNOWN):
            return None
        origin = f"{settings.scheme}://{self._host(head)}"
        resource = origin + head.path.removeprefix(WELL_KNOWN)
        if resource.startswith(settings.jwt.audience) and settings.jwt.audience.startswith(origin):
            resource = settings.jwt.audience
        return msgspec.json.encode(
            {
                "resource": resource,
                "authorization_servers": [settings.jwt.issuer],
                "bearer_methods_supported": ["header"],
                "resource_name": "mcpd",
            }
        )

    def _unauthorized(self, head: Head, message: str, more: bytes = b"") -> BadRequest:
        url = f"{self._settings.scheme}://{self._host(head)}{WELL_KNOWN}{head.path}"
        challenge = b'WWW-Authenticate: Bearer resource_metadata="%b"%b\r\n' % (url.encode("latin-1"), more)
        return BadRequest(401, message, challenge)

    def _host(self, head: Head) -> str:
        """Return the host that the client uses. Raises BadRequest.

        A web page can make its own name resolve to this machine, but not an address.
        """
        host = (head.get(b"host") or "").lower()
        found = _HOST.fullmatch(host)
        if found is None or not (found[1] in self._settings.hosts or _is_own(found[1])):
            raise self._forbidden("the Host header must be in `settings.http.hosts`", head, b"host")
        return host


def _is_own(name: str) -> bool:
    try:
        ipaddress.ip_address(name.strip("[]"))
    except ValueError:
        return name == "localhost"
    return True

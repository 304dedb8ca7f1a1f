"""Which cookies of a server are kept."""

from __future__ import annotations

import urllib.request
from http.cookiejar import Cookie, CookieJar, DefaultCookiePolicy

MAX_COOKIES = 50
"""Cookies of one server, as many as a browser keeps for a site at least (RFC 6265, 6.1)."""
MAX_SIZE = 4096
"""Characters of a cookie's name and value together."""


class _Policy(DefaultCookiePolicy):
    """Refuses cookies that could not be sent back, and those beyond the limits."""

    jar: CookieJar

    def set_ok(self, cookie: Cookie, request: urllib.request.Request) -> bool:
        text = f"{cookie.name}={cookie.value or ''}"
        if not (text.isascii() and text.isprintable() and len(text) <= MAX_SIZE):
            return False
        is_known = any(each.name == cookie.name and each.path == cookie.path for each in self.jar)
        return (is_known or len(self.jar) < MAX_COOKIES) and super().set_ok(cookie, request)


def make_cookie_jar() -> CookieJar:
    """Return the jar for one server."""
    policy = _Policy()
    policy.jar = CookieJar(policy)
    return policy.jar

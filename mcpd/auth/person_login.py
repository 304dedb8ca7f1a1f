"""Logins of people on other machines, each in a browser of their own, at pages of mcpd's network port.

    GET /login/ID ─> the issuer of access tokens ─> /login/callback ─> a page that names person, server and
    scopes ─> the authorization server of the MCP server ─> /login/SERVER/callback

What must not happen is that one person's account serves another. Mallory could begin a login and send Alice
its link (her account would serve him), or let her browser finish one that he began (his account would get her
data; "login CSRF"). So a link works only in a browser that proves to be its person's: it logs in at the same
issuer, for the same audience, as the person's editor does, and what the access token says decides. The proof
is bound to this browser by a cookie that other origins cannot set or read, and that both callbacks require.
Without the cookie, a link, the address of an authorization server, or an answer is useless to others. An
access token is used for this only if mcpd requested it itself: one that an MCP client brings proves nothing
about a browser.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Mapping
from urllib.parse import urlsplit

import attrs
import trio

from mcpd.auth.clients import choose_client, client_authentication
from mcpd.auth.discovery import (
    Discovery,
    LoginError,
    find_authorization_server,
    require_code_grant,
    step_failed,
)
from mcpd.auth.guarded_fetch import FetchError, GuardedFetch, request_tokens
from mcpd.auth.oauth.authorization import (
    AnswerError,
    AuthorizationRequest,
    UnrelatedAnswer,
    build_request,
    new_secret,
    read_answer,
)
from mcpd.auth.oauth.quirks import quirks_of
from mcpd.auth.oauth.registration import ClientRegistration
from mcpd.auth.oauth.tokens import TokenError, code_request
from mcpd.auth.redirect_listener import Page, ShowPage
from mcpd.config.http import JwtSettings
from mcpd.config.oauth import WrittenOAuth
from mcpd.config.structuring import set_members
from mcpd.model.login import LOGIN_PATH
from mcpd.model.server_spec import OAuthSettings

_PROOF = "/login/callback"
_MAX_BROWSERS = 8
"""Browsers that may have opened a link and not finished."""
_NOT_HERE = Page(400, "Not for this browser", "Open the link of your editor again, in this browser.")


@attrs.define(eq=False)
class PersonListener:
    """Waits for the browser of one person, as `RedirectListener` does for one on this machine."""

    uri: str
    """The redirect URI."""
    person: str
    _pages: LoginPages
    take: ShowPage | None = None
    show: ShowPage | None = None

    def url(self, path: str) -> str:
        return self._pages.origin + self._pages.owned(path)

    async def serve(self, take: ShowPage, pages: Mapping[str, ShowPage]) -> None:
        """See `RedirectListener.serve`; there is one page."""
        ((path, self.show),) = pages.items()
        self.take, waiting, browsers = take, self._pages.waiting, self._pages.browsers
        waiting[self._pages.owned(path)] = self
        try:
            await trio.sleep_forever()
        finally:
            del waiting[self._pages.owned(path)]
            for value in [value for value, each in browsers.items() if each.listener is self]:
                del browsers[value]


@attrs.define(eq=False)
class _Browser:
    """One that has opened a link. It is found by its cookie."""

    listener: PersonListener
    found: Discovery
    client: ClientRegistration
    proof: AuthorizationRequest | None
    """Not answered yet."""
    is_proven: bool = False
    """Whether it is that of the person."""


class LoginPages:
    """The pages below LOGIN_PATH at `origin`. `identify` returns whom an access token is about, and raises
    ValueError. `owner`: see `Replica`."""

    def __init__(
        self,
        origin: str,
        jwt: JwtSettings,
        identify: Callable[[str], str],
        environ: Mapping[str, str],
        owner: str,
    ) -> None:
        self.origin, self._owner = origin, owner
        self._issuer, self._audience = str(jwt.issuer), jwt.audience
        self._settings = OAuthSettings(**set_members(jwt.login or WrittenOAuth()))
        self._scopes = self._settings.scopes or ("openid",)
        self._identify, self._environ = identify, environ
        self.waiting: dict[str, PersonListener] = {}
        """By the path of the link."""
        self.browsers: dict[str, _Browser] = {}
        """By the value of the cookie."""
        is_secure = origin.startswith("https:")
        self._cookie_name = "__Host-mcpd-login-" if is_secure else "mcpd-login-"
        self._cookie_end = f"Path=/; Max-Age=600; HttpOnly; SameSite=Lax{'; Secure' * is_secure}"

    def listener(self, server: str, person: str) -> PersonListener:
        """Return where the browser of a person returns to after a login to a server."""
        # The path names the server, so that an answer of one is never taken for that of another.
        return PersonListener(f"{self.origin}{LOGIN_PATH}{server}/callback", person, self)

    def owned(self, path: str) -> str:
        """Return a path that leads to this replica."""
        return f"{LOGIN_PATH}{self._owner}{path.removeprefix(LOGIN_PATH)}"

    def new_state(self) -> str:
        """Return a state with which a browser comes back to this replica."""
        return self._owner + new_secret()

    async def show(self, path: str, query: str, cookies: str) -> Page:
        """Answer a GET. `cookies`: the value of its header."""
        listener = self.waiting.get(path)
        try:
            if listener is not None:
                return await self._begin(listener)
            return await self._continue(path, query, self._known(cookies))
        except LoginError as error:
            return Page(400, "Not logged in", f"mcpd cannot find out at {self._issuer} who you are: {error}")

    def _known(self, cookies: str) -> list[_Browser]:
        """Return the logins that this browser has started."""
        named = (each.strip().partition("=") for each in cookies.split(";"))
        values = [value for name, _, value in named if name.startswith(self._cookie_name)]
        return [self.browsers[value] for value in values if value in self.browsers]

    async def _begin(self, listener: PersonListener) -> Page:
        """Send the browser to the issuer, to prove whose it is."""
        fetch = GuardedFetch(self._issuer, self._environ)
        found = await self._discover(fetch)
        redirect_uri = self.origin + _PROOF
        client = await choose_client(
            fetch, found, self._settings, redirect_uri=redirect_uri, scopes=self._scopes, known=()
        )
        proof = build_request(
            found.server,
            client_id=client.client_id,
            redirect_uri=redirect_uri,
            resource=found.resource,
            scopes=self._scopes,
            state=self.new_state(),
            extra=self._settings.extra_params,
        )
        others = [value for value, each in self.browsers.items() if each.listener is listener]
        for value in others[: 1 - _MAX_BROWSERS]:
            del self.browsers[value]
        value = new_secret()
        self.browsers[value] = _Browser(listener, found, client, proof)
        name = self._cookie_name + hashlib.sha256(value.encode()).hexdigest()[:8]
        headers = f"Location: {proof.url}\r\nSet-Cookie: {name}={value}; {self._cookie_end}\r\n"
        return Page(303, "Log in", "", proof.url, self._issuer, headers)

    async def _discover(self, fetch: GuardedFetch) -> Discovery:
        """Raises LoginError."""
        server = await find_authorization_server(fetch, self._settings, self._issuer)
        if server is None:
            raise LoginError("authorization server", "it has no metadata at its well-known URLs")
        require_code_grant(server)
        quirks, resource = quirks_of(server.issuer), self._settings.resource
        if resource is None and "://" in self._audience and not quirks.omit_resource:
            resource = self._audience
        return Discovery(server, self._audience, resource or None, None, None, quirks)

    async def _continue(self, path: str, query: str, browsers: list[_Browser]) -> Page:
        page = _NOT_HERE
        for browser in browsers:
            proof, listener = browser.proof, browser.listener
            if path == _PROOF and proof is not None:
                try:
                    code = read_answer(proof, query)
                except UnrelatedAnswer:
                    continue
                except AnswerError as error:
                    raise LoginError("answer", str(error)) from None
                browser.proof = None
                return await self._prove(browser, proof, code)
            if browser.is_proven and path == urlsplit(listener.uri).path:
                assert listener.take is not None
                page = await listener.take(query)
                if page.status == 200:
                    break
        return page

    async def _prove(self, browser: _Browser, proof: AuthorizationRequest, code: str) -> Page:
        """Show the page that leads on, if the browser is that of the person."""
        found, listener = browser.found, browser.listener
        assert found.server.token_endpoint is not None
        assert listener.show is not None
        request = code_request(
            found.server.token_endpoint,
            client_authentication(browser.client, self._settings),
            code,
            redirect_uri=proof.redirect_uri,
            verifier=proof.verifier,
            resource=found.resource,
        )
        fetch = GuardedFetch(self._issuer, self._environ)
        try:
            tokens = await request_tokens(fetch, request, requested=self._scopes)
            person = self._identify(tokens.access_token)
        except (FetchError, TokenError) as error:
            raise step_failed("token", error) from None
        except ValueError as error:
            raise LoginError("token", str(error)) from None
        if person != listener.person:
            text = f"You are {person}, and this link is for somebody else. Do not use links of other people."
            return Page(403, "Not for you", text)
        browser.is_proven = True
        return await listener.show("")

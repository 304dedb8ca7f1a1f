"""Renewal, the HTTP transports and real connections together (T1, T14, T15)."""

from __future__ import annotations

import json
import time
from collections import Counter
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from urllib.parse import parse_qs

import attrs
import pytest

from mcpd.auth.discovery import FetchError, GuardedFetch
from mcpd.auth.oauth.registration import ClientRegistration
from mcpd.auth.oauth.tokens import TokenRequest, TokenSet
from mcpd.auth.renewal import Clocks, RequestFailed, TokenAnswer
from mcpd.auth.token_manager import ServerCredentials, TokenManager
from mcpd.auth.token_store import StoredLogin, TokenStore
from mcpd.model.errors import McpdError
from mcpd.privacy.redact import Redactor
from mcpd.transports.http_client import client_factory
from tests.fakes.http import FakeHttp, LegacyScript, Request, Script, fake_http
from tests.transports.remote import outcome, talking

"""Of fifty calls each; the full run has 200."""


@pytest.fixture(params=["loopback", "network"])
def engine(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    """Run a test twice: on mcpd's own connections, and as if the server on loopback were on a network."""
    if request.param == "network":
        monkeypatch.setattr(client_factory, "is_loopback", lambda host: False)
    return str(request.param)


@attrs.define(eq=False)
class Tokens:
    """An authorization server that rotates refresh tokens and ends old access tokens, over HTTP."""

    valid: str = ""
    refresh: str = ""
    number: int = 0
    requests: int = 0
    status: int = 200
    reuse: int = 0

    def issue(self) -> tuple[str, str]:
        self.number += 1
        self.valid, self.refresh = f"access-canary-{self.number}", f"refresh-canary-{self.number}"
        return self.valid, self.refresh

    async def __call__(self, request: Request) -> None:
        self.requests += 1
        fields = parse_qs(request.body.decode())
        if self.status != 200:
            await request.reply(self.status, b'{"error":"server_error"}')
        elif fields["refresh_token"] != [self.refresh]:
            self.reuse += 1
            await request.reply(400, b'{"error":"invalid_grant"}')
        else:
            access, refresh = self.issue()
            body = {
                "access_token": access,
                "refresh_token": refresh,
                "expires_in": 3600,
                "token_type": "Bearer",
            }
            await request.reply(200, json.dumps(body).encode())


@attrs.define(eq=False)
class Guard:
    """A server that accepts only the newest token, and counts what it executes."""

    tokens: Tokens
    script: Script
    executed: Counter[str] = attrs.field(factory=Counter)
    seen: set[str] = attrs.field(factory=set)

    async def __call__(self, request: Request) -> None:
        sent = request.headers.get("authorization", "")
        self.seen.add(sent)
        if sent != f"Bearer {self.tokens.valid}":
            await request.reply(401, b"{}", WWW_Authenticate='Bearer error="invalid_token"')
            return
        if request.rpc == "tools/call":
            self.executed[json.dumps(request.message["params"]["arguments"])] += 1
        if request.body and "id" not in request.message:
            await request.reply(202)
        else:
            await self.script(request)


@attrs.define(eq=False)
class Place:
    server: FakeHttp
    guard: Guard
    tokens: Tokens
    credentials: ServerCredentials
    manager: TokenManager
    redactor: Redactor
    clock: Clock


@attrs.define(eq=False)
class Clock:
    """All clocks together, which a test can advance."""

    ahead: float = 0.0

    def clocks(self) -> Clocks:
        return Clocks(
            wall=lambda: time.time() + self.ahead,
            boot=lambda: time.monotonic() + self.ahead,
            awake=lambda: time.monotonic() + self.ahead,
        )


@asynccontextmanager
async def logged_in(home: Path, script: Script) -> AsyncIterator[Place]:
    tokens, redactor, clock = Tokens(), Redactor(), Clock()
    guard = Guard(tokens, script)

    async def send(login: StoredLogin, request: TokenRequest) -> TokenAnswer:
        try:
            found = await GuardedFetch(login.resource, {}).post(request)
        except FetchError as error:
            raise RequestFailed(error.message, may_have_arrived=error.may_have_arrived) from None
        return TokenAnswer(found.status, found.body, found.content_type)

    manager = TokenManager(TokenStore(home, "m"), send, redactor, clocks=clock.clocks())
    async with fake_http(guard) as server, fake_http(tokens) as authorization, manager.running():
        issuer = authorization.url.removesuffix("/mcp")
        credentials = await manager.credentials_for("it", server.url)
        access, refresh = tokens.issue()
        login = StoredLogin(
            resource=server.url,
            issuer=issuer,
            account="default",
            client=ClientRegistration(issuer, "client-1"),
            token_endpoint=f"{issuer}/token",
            tokens=TokenSet(access, refresh),
        )
        await manager.add_login(login, server.url)
        yield Place(server, guard, tokens, credentials, manager, redactor, clock)


async def test_t14_a_redirect_does_not_take_the_token_to_another_place(tmp_path: Path, engine: str) -> None:
    """Neither to another path of the same server, which the token is not for, nor to another server."""
    seen: list[str | None] = []

    async def elsewhere(request: Request) -> None:
        seen.append(request.headers.get("authorization"))
        await request.reply(401)

    async with fake_http(elsewhere) as other, logged_in(tmp_path, LegacyScript()) as place:
        guard = place.guard

        async def lure(request: Request) -> None:
            if request.path == "/other":
                await elsewhere(request)
            elif request.rpc == "tools/call" and request.message["params"]["arguments"] == {"n": 1}:
                await request.reply(307, Location="/other")
            elif request.rpc == "tools/call":
                await request.reply(307, Location=other.url)
            else:
                await guard(request)

        place.server.script = lure
        for n in (1, 2):
            async with talking(place.server.url, credentials=place.credentials) as talk:
                assert isinstance(await outcome(talk.call(n=n)), McpdError)
    assert seen
    assert set(seen) == {None}
    assert other.requests == []

"""A scripted authorization server and a server that accepts its tokens, in memory, with every fault."""

from __future__ import annotations

import itertools
import json
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from contextlib import asynccontextmanager
from pathlib import Path
from typing import TypeVar, TypeVarTuple
from urllib.parse import parse_qs

import attrs
import httpx
import trio

from mcpd.auth.guarded_fetch import FetchedAnswer, FetchError
from mcpd.auth.oauth.registration import ClientRegistration
from mcpd.auth.oauth.tokens import TokenRequest, TokenSet
from mcpd.auth.renewal_schedule import Clocks
from mcpd.auth.token_manager import ServerCredentials, TokenManager
from mcpd.auth.token_store import StoredLogin, TokenStore
from mcpd.privacy.redact import Redactor
from mcpd.transports.credentials import Refusal, signature_for

T = TypeVar("T")
Ts = TypeVarTuple("Ts")

ISSUER, URL = "https://as.example", "https://mcp.example/mcp"
START = 1_790_000_000.0
"""The wall clock when a test begins."""

Fault = Callable[["AuthorizationServer", TokenRequest], Awaitable[FetchedAnswer]]


@attrs.define(eq=False)
class AuthorizationServer:
    """Issues rotating tokens. Reuse of a refresh token revokes the whole family, as certified servers do."""

    lifetime: float | None = 3600.0
    grace: bool = False
    """Whether the previous refresh token is accepted once more, with the same answer."""
    ends_old_tokens: bool = True
    """Whether a renewal ends the access tokens before it at once."""
    takes: float = 0.05
    requests: list[dict[str, str]] = attrs.field(factory=list)
    faults: list[Fault | None] = attrs.field(factory=list)
    """What happens to the next requests; None answers."""
    access: set[str] = attrs.field(factory=set)
    refresh: str = ""
    revoked: bool = False
    _previous: tuple[str, dict[str, object]] | None = None
    _numbers: itertools.count[int] = attrs.field(factory=lambda: itertools.count(1))

    def issue(self) -> dict[str, object]:
        """Return the answer with new tokens."""
        number = next(self._numbers)
        if self.ends_old_tokens:
            self.access.clear()
        self.access.add(f"access-canary-{number}")
        answer: dict[str, object] = {
            "access_token": f"access-canary-{number}",
            "token_type": "bearer",
            "refresh_token": f"refresh-canary-{number}",
        }
        if self.lifetime is not None:
            answer["expires_in"] = self.lifetime
        self.refresh = f"refresh-canary-{number}"
        return answer

    def handle(self, request: TokenRequest) -> FetchedAnswer:
        """Answer without a fault."""
        fields = {name: values[0] for name, values in parse_qs(request.body.decode()).items()}
        used = fields["refresh_token"]
        if not self.revoked and used == self.refresh:
            answer = self.issue()
            self._previous = (used, answer)
            return FetchedAnswer(200, json.dumps(answer).encode())
        if not self.revoked and self.grace and self._previous is not None and used == self._previous[0]:
            return FetchedAnswer(200, json.dumps(self._previous[1]).encode())
        self.revoked = True
        self.access.clear()
        return refuse("invalid_grant")

    async def send(self, login: StoredLogin, request: TokenRequest) -> FetchedAnswer:
        assert request.url == login.token_endpoint
        self.requests.append({name: values[0] for name, values in parse_qs(request.body.decode()).items()})
        await trio.sleep(self.takes)
        fault = self.faults.pop(0) if self.faults else None
        return self.handle(request) if fault is None else await fault(self, request)


def refuse(error: str, status: int = 400) -> FetchedAnswer:
    return FetchedAnswer(status, json.dumps({"error": error}).encode())


def answering(
    status: int, body: bytes = b"", retry_after: float | None = None, kind: str = "text/html"
) -> Fault:
    async def fault(server: AuthorizationServer, request: TokenRequest) -> FetchedAnswer:
        headers = {"Content-Type": kind} | (
            {} if retry_after is None else {"Retry-After": f"{retry_after:.0f}"}
        )
        return FetchedAnswer(status, body, httpx.Headers(headers))

    return fault


async def unsent(server: AuthorizationServer, request: TokenRequest) -> FetchedAnswer:
    raise FetchError("it cannot be reached: Connection refused", may_have_arrived=False)


async def lose_answer(server: AuthorizationServer, request: TokenRequest) -> FetchedAnswer:
    """The server rotates, and the answer does not arrive."""
    server.handle(request)
    raise FetchError("the connection broke: Connection reset by peer", may_have_arrived=True)


async def cut_answer(server: AuthorizationServer, request: TokenRequest) -> FetchedAnswer:
    """The server rotates, and half of the answer arrives."""
    return attrs.evolve(server.handle(request), body=b'{"access_token":"acc')


async def hang(server: AuthorizationServer, request: TokenRequest) -> FetchedAnswer:
    await trio.sleep_forever()
    raise AssertionError


@attrs.define(eq=False)
class FakeClocks:
    """Clocks that follow trio's, and can be set and suspended. They move between two readings."""

    wall_offset: float = 0.0
    suspended: float = 0.0
    origin: float = attrs.field(factory=trio.current_time)
    _readings: int = 0

    def clocks(self) -> Clocks:
        return Clocks(
            wall=lambda: START + self.boot() + self.wall_offset, boot=self.boot, awake=lambda: self.awake()
        )

    def awake(self) -> float:
        return trio.current_time() - self.origin

    def boot(self) -> float:
        self._readings += 1
        return self.awake() + self.suspended + self._readings * 1e-6


@attrs.define(eq=False)
class World:
    """A daemon's logins, an authorization server, and an MCP server that checks each token."""

    manager: TokenManager
    authorization: AuthorizationServer
    time: FakeClocks
    redactor: Redactor
    credentials: ServerCredentials
    events: list[str]
    store: TokenStore
    executed: int = 0
    refused: int = 0
    latency: float = 0.01

    async def call(self, url: str = URL) -> str:
        """Send one request as the transports do; return the outcome, `ok` or `401`. Raises McpdError."""
        for repeats in itertools.count():
            signature = await signature_for(self.credentials, "POST", url)
            value = dict(signature.headers).get("Authorization", "")
            await trio.sleep(self.latency)
            if value.removeprefix("Bearer ") in self.authorization.access:
                self.executed += 1
                signature.token.was_accepted = True
                return "ok"
            self.refused += 1
            challenge = httpx.Headers({"WWW-Authenticate": "Bearer"})
            if not await self.credentials.refused(Refusal(401, challenge, signature, repeats)):
                return "401"
        raise AssertionError

    async def calls(self, count: int) -> list[str]:
        """Send so many requests at the same time."""
        outcomes: list[str] = []

        async def one() -> None:
            outcomes.append(await self.call())

        async with trio.open_nursery() as nursery:
            for _ in range(count):
                nursery.start_soon(one)
        return outcomes

    def stored(self) -> StoredLogin:
        (login,) = self.store.read().logins.values()
        return login


def a_login(answer: Mapping[str, object], now: float, **more: object) -> StoredLogin:
    """Return what a person's login leaves behind."""
    lifetime = answer.get("expires_in")
    tokens = TokenSet(
        str(answer["access_token"]),
        str(answer["refresh_token"]) if "refresh_token" in answer else None,
        "Bearer",
        now,
        None if lifetime is None else now + float(str(lifetime)),
        ("read",),
    )
    fields: dict[str, object] = {
        "resource": URL,
        "issuer": ISSUER,
        "account": "default",
        "client": ClientRegistration(ISSUER, "client-1"),
        "token_endpoint": f"{ISSUER}/token",
        "tokens": tokens,
        "sent_resource": URL,
        "logged_in_at": now,
        **more,
    }
    return StoredLogin(**fields)  # type: ignore[arg-type]


async def run_inline(function: Callable[[*Ts], T], *arguments: *Ts) -> T:
    await trio.lowlevel.checkpoint()
    return function(*arguments)


@asynccontextmanager
async def logged_in(
    home: Path, authorization: AuthorizationServer | None = None, *, login: bool = True, **more: object
) -> AsyncIterator[World]:
    """Run a manager whose person has logged in."""
    server = authorization or AuthorizationServer()
    time = FakeClocks()
    redactor, events = Redactor(), list[str]()
    store = TokenStore(home)
    manager = TokenManager(
        store,
        server.send,
        redactor,
        on_event=lambda event, stored: events.append(event),
        clocks=time.clocks(),
        draw=lambda: 0.5,
    )
    manager._file._run = run_inline  # type: ignore[method-assign]  # threads do not know the mock clock
    async with manager.running():
        credentials = await manager.credentials_for("it", URL)
        if login:
            await manager.add_login(a_login(server.issue(), time.clocks().wall(), **more), URL)
        world = World(manager, server, time, redactor, credentials, events, store)
        if login:  # the server has accepted the token
            assert await world.call() == "ok"
            world.executed = 0
        yield world

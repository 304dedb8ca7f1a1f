"""Credentials that are loaded when a server asks for a login."""

from __future__ import annotations

import httpx

from mcpd.transports.credentials import UNSIGNED, Credentials, DeferredCredentials, Refusal, Signature

SIGNATURE = Signature("Bearer", "t", 1)
URL = "https://mcp.example/mcp"


class Loaded:
    """Credentials that sign everything."""

    def sign(self, method: str, url: str) -> Signature | None:
        return SIGNATURE

    async def sign_when_ready(self, method: str, url: str) -> Signature:
        return SIGNATURE

    async def refused(self, refusal: Refusal) -> bool:
        return True

    def advice(self) -> str:
        return "do it"


class World:
    def __init__(self) -> None:
        self.known: Credentials | None = None
        self.loads = 0
        self.credentials = DeferredCredentials("it", lambda: self.known, self.load)

    async def load(self) -> Credentials:
        self.loads += 1
        return Loaded()

    async def refused(self, status: int = 401) -> bool:
        return await self.credentials.refused(Refusal(status, httpx.Headers(), UNSIGNED))


async def test_nothing_is_loaded_for_a_server_that_refuses_nothing() -> None:
    world = World()
    assert world.credentials.sign("POST", URL) is UNSIGNED
    assert await world.credentials.sign_when_ready("POST", URL) is UNSIGNED
    assert "mcpctl login it" in world.credentials.advice()
    assert world.loads == 0


async def test_the_first_refusal_loads_them_once() -> None:
    world = World()
    assert await world.refused()
    assert await world.refused()
    assert world.loads == 1
    assert world.credentials.sign("POST", URL) is SIGNATURE
    assert world.credentials.advice() == "do it"


async def test_a_login_meanwhile_is_used_by_the_next_request() -> None:
    world = World()
    world.known = Loaded()
    assert world.credentials.sign("POST", URL) is SIGNATURE
    assert world.loads == 0

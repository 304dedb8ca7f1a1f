"""Access without a person."""

from __future__ import annotations

import json
from collections.abc import Awaitable, Callable

import attrs
import httpx
import pytest
import trio

from mcpd.auth.unattended import UnattendedCredentials
from mcpd.model.errors import LinkLost
from mcpd.model.server_spec import IdentityProvider, OAuthSettings
from mcpd.transports.credentials import UNSIGNED, Refusal, Signature
from tests.fakes.authorization_server import AuthorizationServer, authorization_server

SECRET = OAuthSettings(grant="client_credentials", client_id="c", client_secret="s", scopes=("a",))


class World:
    """Credentials for the fake server, with a clock of the test."""

    def __init__(
        self,
        server: AuthorizationServer,
        settings: OAuthSettings = SECRET,
        renew: Callable[[], Awaitable[OAuthSettings]] | None = None,
    ) -> None:
        self.server = server
        self.now = 1_800_000_000.0
        self.masked: list[str] = []
        self.credentials = UnattendedCredentials(
            "it",
            server.url,
            settings,
            {},
            self.masked.extend,
            now=lambda: self.now,
            renew_settings=renew,
        )

    async def refuse(self, signature: Signature = UNSIGNED, repeats: int = 0, status: int = 401) -> bool:
        headers = httpx.Headers({"WWW-Authenticate": self.server.challenge or ""})
        with trio.fail_after(30):
            return await self.credentials.refused(Refusal(status, headers, signature, repeats))

    def sign(self) -> Signature | None:
        return self.credentials.sign("POST", self.server.url)


async def test_the_first_refusal_obtains_a_token() -> None:
    async with authorization_server() as server:
        world = World(server)
        assert world.sign() is UNSIGNED
        assert await world.refuse()
        signature = world.sign()
        assert signature is not None
        assert signature.headers[0][1].removeprefix("Bearer ") in server.access_tokens
        (form,) = server.token_requests
        assert form == {"grant_type": "client_credentials", "resource": server.url, "scope": "a"}
        assert server.asked("/token")[0].headers["authorization"] == "Basic Yzpz"
        assert set(world.masked) == server.access_tokens


async def test_fifty_refused_requests_obtain_one_token() -> None:
    async with authorization_server() as server:
        world = World(server)
        answers: list[bool] = []

        async def one() -> None:
            answers.append(await world.refuse())

        async with trio.open_nursery() as nursery:
            for _ in range(50):
                nursery.start_soon(one)
        assert answers == [True] * 50
        assert len(server.token_requests) == 1


async def test_an_expired_token_is_replaced_before_it_is_used() -> None:
    async with authorization_server() as server:
        world = World(server)
        await world.refuse()
        world.now += 3595
        assert world.sign() is None
        signature = await world.credentials.sign_when_ready("POST", server.url)
        assert signature.generation == 2
        assert len(server.token_requests) == 2


async def test_a_new_token_that_the_server_refuses_is_not_replaced() -> None:
    async with authorization_server() as server:
        world = World(server)
        await world.refuse()
        signature = world.sign()
        assert signature is not None
        assert not await world.refuse(signature, 1)
        assert "refuses the token" in world.credentials.advice()
        world.now += 61
        assert await world.refuse(signature)
        assert len(server.token_requests) == 2


async def test_a_refused_client_is_not_tried_with_another_grant() -> None:
    async with authorization_server() as server:
        world = World(server)
        server.answers["/token"] = (401, b'{"error":"invalid_client"}')
        assert not await world.refuse()
        assert "invalid_client" in world.credentials.advice()
        assert len(server.asked("/token")) == 1
        assert server.asked("/register") == server.asked("/authorize") == []


async def test_a_server_that_is_down_is_no_refusal() -> None:
    async with authorization_server() as server:
        server.answers["/token"] = (503, b"")
        with pytest.raises(LinkLost):
            await World(server).refuse()


async def test_the_assertion_of_a_workload_identifies_the_client() -> None:
    """It is looked up again for the next token, because a platform writes a new one every hour."""
    settings = OAuthSettings(grant="workload", assertion="jwt")

    async def renew() -> OAuthSettings:
        return attrs.evolve(settings, assertion="newer")

    async with authorization_server() as server:
        tokens = {"access_token": "t-secret", "token_type": "Bearer", "expires_in": 3600}
        server.answers["/token"] = (200, json.dumps(tokens).encode())
        world = World(server, settings, renew)
        assert await world.refuse()
        world.now += 3600
        await world.credentials.sign_when_ready("POST", server.url)
        body, newer = (each.body.decode() for each in server.asked("/token"))
        assert "jwt-bearer" in body
        assert "assertion=jwt" in body
        assert "client_id" not in body
        assert "assertion=newer" in newer


async def test_an_id_token_is_exchanged_for_an_assertion() -> None:
    async with authorization_server() as server:
        provider = IdentityProvider(
            token_endpoint=f"{server.origin}/idp", client_id="mcpd", id_token="person-secret"
        )
        jag = {"access_token": "jag-secret", "token_type": "N_A", "issued_token_type": "…id-jag"}
        server.answers["/idp"] = (200, json.dumps(jag).encode())
        server.answers["/token"] = (200, b'{"access_token":"t-secret","token_type":"Bearer"}')
        settings = OAuthSettings(
            grant="enterprise", client_id="c", client_secret="s", identity_provider=provider
        )
        assert await World(server, settings).refuse()
        exchange, request = server.asked("/idp")[0].body.decode(), server.asked("/token")[0].body.decode()
        assert "subject_token=person-secret" in exchange
        assert "audience=http" in exchange
        assert "assertion=jag-secret" in request
        assert "person-secret" not in request


@pytest.mark.parametrize(
    ("settings", "text"),
    [
        (OAuthSettings(grant="workload"), "`oauth.assertion` is missing"),
        (OAuthSettings(grant="client_credentials"), "`oauth.clientId` is missing"),
        (OAuthSettings(grant="enterprise", client_id="c"), "`oauth.identityProvider` is missing"),
    ],
)
async def test_what_is_missing_in_the_definition_is_named(settings: OAuthSettings, text: str) -> None:
    async with authorization_server() as server:
        world = World(server, settings)
        assert not await world.refuse()
        assert text in world.credentials.advice()

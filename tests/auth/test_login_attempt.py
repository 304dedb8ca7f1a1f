"""One login by a person, against a scripted authorization server."""

from __future__ import annotations

import json
from typing import Any
from urllib.parse import parse_qs, parse_qsl, urlsplit

import attrs
import pytest
import trio

from mcpd.auth.oauth.registration import ClientRegistration
from mcpd.model.errors import LoginFailed
from tests.auth.attempts import Memory, attempting
from tests.auth.test_token_store import LOGIN
from tests.fakes.authorization_server import METADATA, PRM, AuthorizationServer, authorization_server
from tests.fakes.http import Request
from tests.interop.peers import free_port


async def logged_in(server: AuthorizationServer, memory: Memory | None = None, **options: Any) -> Memory:
    """Log in with a browser on the same machine."""
    memory = memory or Memory()
    async with attempting(server.url, memory, **options) as attempt:
        offer = await attempt.wait_offer()
        page = await server.return_to(await server.visit(offer.url))
        await attempt.wait()
    assert page.status_code == 200
    return memory


async def failure(server: AuthorizationServer, memory: Memory | None = None, **options: Any) -> LoginFailed:
    """Return why a login failed, before or after the browser."""
    async with attempting(server.url, memory, **options) as attempt:
        try:
            offer = await attempt.wait_offer()
            await server.return_to(await server.visit(offer.url))
            await attempt.wait()
        except LoginFailed as error:
            assert "secret" not in str(error)  # noqa: PT017 - it is returned
            return error
    raise AssertionError("the login succeeded")


async def test_a_login_with_a_browser() -> None:
    async with authorization_server() as server:
        memory = await logged_in(server)
        login = memory.saved[0]
        assert (login.issuer, login.resource, login.sent_resource) == (server.origin, server.url, server.url)
        assert login.tokens.access_token in server.access_tokens
        assert login.tokens.lifetime == 3600
        assert login.client.origin == "dynamic"
        query = dict(parse_qsl(urlsplit(server.asked("/authorize")[0].path).query))
        form = server.token_requests[0]
        assert query["resource"] == form["resource"] == server.url
        assert query["redirect_uri"] == form["redirect_uri"]
        assert server.clients[query["client_id"]]["application_type"] == "native"
        assert "Authorization" not in server.http.requests[0].headers


async def test_the_page_in_the_browser_says_so_and_holds_no_secret() -> None:
    async with authorization_server() as server, attempting(server.url) as attempt:
        offer = await attempt.wait_offer()
        page = await server.return_to(await server.visit(offer.url))
        assert "You can close this page" in page.text
        assert "<script" not in page.text
        assert "secret" not in page.text
        assert page.headers["cache-control"] == "no-store"
        assert page.headers["referrer-policy"] == "no-referrer"


async def test_a_server_that_does_not_answer_a_get_can_be_logged_in_to() -> None:
    async with authorization_server() as server:
        server.breaks.add("/mcp")
        assert (await logged_in(server)).saved


async def test_a_server_of_2025_03_26_without_any_metadata() -> None:
    async with authorization_server() as server:
        server.prm = server.metadata = None
        server.challenge = "Bearer"
        login = (await logged_in(server)).saved[0]
        assert (login.issuer, login.token_endpoint) == (server.origin, f"{server.origin}/token")


# ── refusals before a browser opens ─────────────────────────────────────────────────────────────────────


async def test_metadata_that_omits_the_challenge_methods_allows_a_login_with_s256() -> None:
    """As with Entra ID and Cognito."""
    async with authorization_server() as server:
        assert server.metadata is not None
        del server.metadata["code_challenge_methods_supported"]
        await logged_in(server)
        assert "code_challenge_method=S256" in server.asked("/authorize")[0].path


@pytest.mark.parametrize("path", [PRM, METADATA])
@pytest.mark.parametrize("status", [500, 503, 429])
async def test_a_server_that_cannot_answer_now_is_not_one_without_metadata(path: str, status: int) -> None:
    async with authorization_server() as server:
        server.answers[path] = (status, b"")
        error = await failure(server)
        assert "try again later" in error.message
        assert server.asked("/register") == []


@pytest.mark.parametrize("first", [404, 500])
@pytest.mark.parametrize("path", ["", "/tenant"])
async def test_a_place_without_metadata_does_not_hide_the_next(path: str, first: int) -> None:
    """Several servers have their metadata only at the root, or with another path in the issuer."""
    async with authorization_server() as server:
        assert server.prm is not None
        assert server.metadata is not None
        server.answers[PRM] = (first, b"")
        named = {**server.prm, "authorization_servers": [server.origin + path]}
        server.answers[PRM.removesuffix("/mcp")] = (200, json.dumps(named).encode())
        server.answers[METADATA + path] = (first, b"")
        openid = "/.well-known/openid-configuration"
        server.answers[openid] = (200, json.dumps(server.metadata).encode())
        memory = await logged_in(server)
        assert memory.saved[0].issuer == server.origin


async def test_scopes_that_a_registration_may_not_name_are_left_out() -> None:
    async with authorization_server() as server:
        assert server.prm is not None
        server.prm["scopes_supported"] = ["read"]
        server.rejects_scope = True
        await logged_in(server)
        assert len(server.asked("/register")) == 2


async def test_a_server_without_registration_says_what_to_do() -> None:
    async with authorization_server() as server:
        assert server.metadata is not None
        del server.metadata["registration_endpoint"]
        assert "`oauth.clientId`" in (await failure(server)).message


# ── clients ─────────────────────────────────────────────────────────────────────────────────────────────


def registered(server: AuthorizationServer, uri: str, client_id: str = "mine") -> None:
    server.clients[client_id] = {"redirect_uris": [uri]}


async def test_an_error_that_repeats_the_request_shows_no_secret(monkeypatch: pytest.MonkeyPatch) -> None:
    """Neither the code, the verifier, nor the secret of the client, in the error and on the page."""

    async def repeat(server: AuthorizationServer, request: Request) -> None:
        sent.update(parse_qs(request.body.decode()), basic=[request.headers["authorization"].split()[1]])
        words = f"{sent['code'][0]} {sent['code_verifier'][0]} my-client-secret {sent['basic'][0]}"
        await request.reply(400, json.dumps({"error": "invalid_grant", "error_description": words}).encode())

    sent: dict[str, list[str]] = {}
    monkeypatch.setattr(AuthorizationServer, "_token", repeat)
    async with authorization_server() as server:
        secret = "my-client-secret"
        async with attempting(server.url, client_id="mine", client_secret=secret) as attempt:
            offer = await attempt.wait_offer()
            registered(server, offer.redirect_uri)
            page = await server.return_to(await server.visit(offer.url))
            with pytest.raises(LoginFailed) as error:
                await attempt.wait()
    assert "invalid_grant: ***" in error.value.message
    for secret in (*sent["code"], *sent["code_verifier"], *sent["basic"], "my-client-secret"):
        assert secret not in error.value.message + page.text


async def test_the_client_of_the_definition_is_not_offered_to_another_issuer() -> None:
    async with authorization_server() as server:
        client = ClientRegistration("https://earlier.example", "mine", "pre-registered")
        memory = Memory(earlier=[attrs.evolve(LOGIN, issuer="https://earlier.example", client=client)])
        error = await failure(server, memory, client_id="mine", client_secret="my-secret")
        assert "https://earlier.example" in error.message
        assert server.asked("/authorize") == server.asked("/token") == []


async def test_a_client_metadata_document_is_preferred_to_a_registration() -> None:
    document = "https://mcpd.example/client.json"
    async with authorization_server() as server:
        assert server.metadata is not None
        server.metadata["client_id_metadata_document_supported"] = True
        uri = free_uri()
        registered(server, uri, document)
        memory = await logged_in(server, client_metadata_url=document, redirect_uri=uri)
        assert memory.saved[0].client.client_id == document
        assert server.asked("/register") == []


async def test_t17_a_registration_that_the_server_has_forgotten_is_replaced() -> None:
    async with authorization_server() as server:
        memory = await logged_in(server)
        server.clients.clear()
        await logged_in(server, memory)
        assert len(server.asked("/register")) == 2


def free_uri() -> str:
    return f"http://127.0.0.1:{free_port()}/callback"


async def test_a_port_that_the_definition_demands_and_that_is_taken_is_named() -> None:
    async with authorization_server() as server:
        (listener,) = await trio.open_tcp_listeners(0, host="127.0.0.1")
        port = listener.socket.getsockname()[1]
        async with listener:
            error = await failure(server, redirect_uri=f"http://127.0.0.1:{port}/callback")
        assert f"port {port}" in error.message
        assert server.asked("/register") == []


# ── answers ─────────────────────────────────────────────────────────────────────────────────────────────


async def test_a_cancelled_login_closes_its_port() -> None:
    async with authorization_server() as server:
        async with attempting(server.url) as attempt:
            offer = await attempt.wait_offer()
        with pytest.raises(LoginFailed, match="cancelled"):
            await attempt.wait()
        port = urlsplit(offer.redirect_uri or "").port
        with pytest.raises(OSError, match="connect"):
            await trio.open_tcp_stream("127.0.0.1", port or 0)


async def test_tokens_are_bound_to_a_key_if_the_server_asks_for_that() -> None:
    pytest.importorskip("joserfc")
    async with authorization_server() as server:
        server.challenge = f'DPoP algs="ES256", resource_metadata="{server.origin}{PRM}"'
        server.token_type = "DPoP"
        server.nonce = "n-1"
        login = (await logged_in(server)).saved[0]
        assert login.tokens.is_bound
        assert login.dpop_key is not None
        assert login.dpop_key not in repr(login)
        assert len(server.asked("/token")) == 2  # the first proof had no nonce
        assert len(server.token_requests) == 1


async def test_a_server_whose_keys_have_another_algorithm_is_refused() -> None:
    async with authorization_server() as server:
        assert server.metadata is not None
        server.metadata["dpop_signing_alg_values_supported"] = ["EdDSA"]
        server.challenge = "DPoP"
        assert "ES256" in (await failure(server)).message

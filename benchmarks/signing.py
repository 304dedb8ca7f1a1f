"""Measure what a login adds to a call to a remote server: finding the token and adding its header."""

from __future__ import annotations

import tempfile
import time
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Any

import trio

from benchmarks.figures import Row, micro, pair
from mcpd.auth.guarded_fetch import FetchedAnswer, FetchError
from mcpd.auth.oauth.registration import ClientRegistration
from mcpd.auth.oauth.tokens import TokenRequest, TokenSet
from mcpd.auth.token_manager import TokenManager
from mcpd.auth.token_store import StoredLogin, TokenStore
from mcpd.privacy.redact import Redactor
from mcpd.transports.credentials import Credentials
from mcpd.transports.http_client.client_factory import open_client

URL = "http://127.0.0.1:9/mcp"
TOKEN_SIZE = 1500
"""Bytes, as of a large JWT."""
CALLS = 5000
LIMIT = 20.0


def sign(rounds: int) -> list[Row]:
    """Measure requests until they are handed to a connection, with and without a login, in turns."""
    bare, signed = trio.run(_measure, rounds)
    added = (min(signed) - min(bare)) * 1e6
    return [Row("remote server: a login with each call", pair(bare, signed, micro), added, LIMIT, unit="µs")]


async def _measure(rounds: int) -> tuple[list[float], list[float]]:
    bare: list[float] = []
    signed: list[float] = []
    async with AsyncExitStack() as held:
        home = held.enter_context(tempfile.TemporaryDirectory())
        manager = TokenManager(TokenStore(Path(home)), _no_renewal, Redactor())
        await held.enter_async_context(manager.running())
        credentials = await manager.credentials_for("stub", URL)
        tokens = TokenSet("x" * TOKEN_SIZE, "refresh", "Bearer", time.time(), time.time() + 3600)
        login = StoredLogin(
            resource=URL,
            issuer="http://127.0.0.1:9",
            account="default",
            client=ClientRegistration("http://127.0.0.1:9", "client"),
            token_endpoint="http://127.0.0.1:9/token",
            tokens=tokens,
        )
        await manager.add_login(login, URL)
        for _ in range(rounds):
            bare.append(await _cost(None))
            signed.append(await _cost(credentials))
    return bare, signed


async def _cost(credentials: Credentials | None) -> float:
    """Return the seconds of one request, which is not sent."""
    async with open_client(URL, {}, {}, credentials=credentials) as client:
        pool: Any = client._loopback
        pool.send_with_callback = lambda *request: None
        began = time.perf_counter()
        for _ in range(CALLS):
            client.send_with_callback("POST", URL, {"Accept": "x"}, b"{}", lambda response: None)
        return (time.perf_counter() - began) / CALLS


async def _no_renewal(login: StoredLogin, request: TokenRequest) -> FetchedAnswer:
    raise FetchError("nothing is renewed here", may_have_arrived=False)

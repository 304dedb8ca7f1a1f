"""A scripted MCP server with its authorization server, on one loopback port, for every step of a login."""

from __future__ import annotations

import base64
import hashlib
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any
from urllib.parse import parse_qs, parse_qsl, urlencode, urlsplit

import attrs
import httpx
import trio

from tests.fakes.http import FakeHttp, Request, fake_http

Json = dict[str, Any]
BOUND = 60.0
"""Seconds. The default of httpx is only five."""
PRM = "/.well-known/oauth-protected-resource/mcp"
METADATA = "/.well-known/oauth-authorization-server"


@attrs.define(eq=False)
class AuthorizationServer:
    """Follows the specifications. Change `prm`, `metadata` and `answers` to make it misbehave."""

    http: FakeHttp
    prm: Json | None = None
    metadata: Json | None = None
    challenge: str | None = None
    """`WWW-Authenticate` of a refused request; None to refuse none."""
    answers: dict[str, tuple[int, bytes]] = attrs.field(factory=dict)
    """Path → status and body, instead of the usual answer."""
    breaks: set[str] = attrs.field(factory=set)
    """Paths that get no answer."""
    clients: dict[str, Json] = attrs.field(factory=dict)
    codes: dict[str, dict[str, str]] = attrs.field(factory=dict)
    refresh_tokens: dict[str, str] = attrs.field(factory=dict)
    """Valid refresh token → client ID. Each is valid once."""
    token_requests: list[dict[str, str]] = attrs.field(factory=list)
    access_tokens: set[str] = attrs.field(factory=set)
    expires_in: object = 3600
    token_type: str = "Bearer"
    nonce: str | None = None
    """The nonce that proofs at the token endpoint must contain."""
    rejects_scope: bool = False
    """Whether no registration may name scopes."""
    iss: str | None = None
    """Sent with answers, if it is not None."""
    tool: Json = attrs.field(factory=dict)
    """More members of its tool."""
    call_scopes: frozenset[str] = frozenset()
    """What a `tools/call` requires."""
    withheld_scopes: frozenset[str] = frozenset()
    """What no token gets, whatever is requested."""
    granted: dict[str, frozenset[str]] = attrs.field(factory=dict)
    """Token → its scopes."""
    _granting: frozenset[str] = frozenset()
    _count: int = 0

    @property
    def origin(self) -> str:
        return f"http://127.0.0.1:{self.http.port}"

    @property
    def url(self) -> str:
        return f"{self.origin}/mcp"

    def asked(self, path: str) -> list[Request]:
        return [request for request in self.http.requests if urlsplit(request.path).path == path]

    def calls(self) -> int:
        """Return how many calls of its tool it has answered."""
        return sum(b'"tools/call"' in request.body for request in self.http.requests)

    def reset(self) -> None:
        """Describe itself as a server of 2026-07-28 does."""
        self.prm = {"resource": self.url, "authorization_servers": [self.origin]}
        self.metadata = {
            "issuer": self.origin,
            "authorization_endpoint": f"{self.origin}/authorize",
            "token_endpoint": f"{self.origin}/token",
            "registration_endpoint": f"{self.origin}/register",
            "revocation_endpoint": f"{self.origin}/revoke",
            "code_challenge_methods_supported": ["S256"],
            "token_endpoint_auth_methods_supported": ["none", "client_secret_basic"],
        }
        self.challenge = f'Bearer resource_metadata="{self.origin}{PRM}"'

    # ── the person's browser ────────────────────────────────────────────────────────────────────

    async def visit(self, url: str) -> str:
        """Log in as a person would, and return the address that the browser is sent to."""
        async with httpx.AsyncClient(trust_env=False, timeout=BOUND) as browser:
            answer = await browser.get(url)
        assert answer.status_code == 302, answer.text
        return str(answer.headers["location"])

    @staticmethod
    async def return_to(address: str) -> httpx.Response:
        """Follow the redirect to mcpd."""
        async with httpx.AsyncClient(trust_env=False, timeout=BOUND) as browser:
            return await browser.get(address)

    # ── answering ───────────────────────────────────────────────────────────────────────────────

    async def serve(self, request: Request) -> None:
        path = urlsplit(request.path).path
        if path in self.breaks:
            request.reset()
            return
        if path in self.answers:
            status, body = self.answers[path]
            await request.reply(status, body)
            return
        if path == "/mcp":
            await self._serve_mcp(request)
        elif path == PRM and self.prm is not None:
            await request.reply(200, json.dumps(self.prm).encode())
        elif path == METADATA and self.metadata is not None:
            await request.reply(200, json.dumps(self.metadata).encode())
        elif path == "/register":
            await self._register(request)
        elif path == "/authorize":
            await self._authorize(request)
        elif path == "/token":
            await self._token(request)
        elif path == "/revoke":
            await request.reply(200)
        else:
            await request.reply(404, b"no", kind="text/plain")

    async def _serve_mcp(self, request: Request) -> None:
        query = dict(parse_qsl(urlsplit(request.path).query))
        token = request.headers.get("authorization", query.get("key", "")).removeprefix("Bearer ")
        if self.challenge is not None and token not in self.access_tokens:
            await request.reply(401, WWW_Authenticate=self.challenge)
            return
        if not request.body:
            await request.reply(405)
            return
        if request.rpc == "initialize":
            capabilities = {"protocolVersion": "2025-11-25", "capabilities": {"tools": {}}}
            await request.result({**capabilities, "serverInfo": {"name": "fake", "version": "1"}})
        elif request.rpc == "tools/list":
            await request.result(
                {"tools": [{"name": "echo", "inputSchema": {"type": "object"}, **self.tool}]}
            )
        elif request.rpc == "tools/call" and not self.call_scopes <= self.granted.get(token, frozenset()):
            needed = " ".join(sorted(self.call_scopes))
            challenge = f'Bearer error="insufficient_scope", scope="{needed}"'
            await request.reply(403, WWW_Authenticate=challenge)
        elif request.rpc == "tools/call":
            await request.result({"content": [{"type": "text", "text": "done"}]})
        elif "id" in request.message:
            await request.error(-32601)
        else:
            await request.reply(202)

    async def _register(self, request: Request) -> None:
        asked = request.message
        if self.rejects_scope and "scope" in asked:
            await request.reply(400, b'{"error":"invalid_client_metadata"}')
            return
        self._count += 1
        client = {**asked, "client_id": f"client-{self._count}"}
        self.clients[client["client_id"]] = client
        await request.reply(201, json.dumps(client).encode())

    async def _authorize(self, request: Request) -> None:
        query = dict(parse_qsl(urlsplit(request.path).query))
        client = self.clients.get(query["client_id"])
        if client is None or query["redirect_uri"] not in client["redirect_uris"]:
            await request.reply(400, b"unknown client", kind="text/plain")
            return
        self._count += 1
        code = f"code-{self._count}-secret"
        self.codes[code] = query
        answer = {
            "code": code,
            "state": query["state"],
            **({"iss": self.iss} if self.iss is not None else {}),
        }
        await request.reply(302, location=f"{query['redirect_uri']}?{urlencode(answer)}")

    async def _token(self, request: Request) -> None:
        form = {name: values[0] for name, values in parse_qs(request.body.decode()).items()}
        if self.nonce is not None and nonce_of(request) != self.nonce:
            await request.reply(400, b'{"error":"use_dpop_nonce"}', DPoP_Nonce=self.nonce)
            return
        self.token_requests.append(form)
        error = getattr(self, "_check_" + form["grant_type"].rpartition(":")[2])(form)
        if error is not None:
            await request.reply(400, json.dumps({"error": error}).encode())
            return
        self._count += 1
        access, refresh = f"access-{self._count}-secret", f"refresh-{self._count}-secret"
        self.access_tokens.add(access)
        self.refresh_tokens[refresh] = form.get("client_id", "")
        self.granted[access] = self.granted[refresh] = self._granting - self.withheld_scopes
        tokens = {"access_token": access, "refresh_token": refresh, "token_type": self.token_type}
        await request.reply(200, json.dumps({**tokens, "expires_in": self.expires_in}).encode())

    def _check_authorization_code(self, form: dict[str, str]) -> str | None:
        query = self.codes.pop(form["code"], None)
        if query is None or query["redirect_uri"] != form["redirect_uri"]:
            return "invalid_grant"
        self._granting = frozenset(query.get("scope", "").split())
        digest = hashlib.sha256(form["code_verifier"].encode()).digest()
        challenge = base64.urlsafe_b64encode(digest).rstrip(b"=").decode()
        return None if challenge == query["code_challenge"] else "invalid_grant"

    def _check_refresh_token(self, form: dict[str, str]) -> str | None:
        self._granting = self.granted.get(form["refresh_token"], frozenset())
        return None if self.refresh_tokens.pop(form["refresh_token"], None) is not None else "invalid_grant"

    def _check_client_credentials(self, form: dict[str, str]) -> str | None:
        return None


def nonce_of(request: Request) -> object:
    """Return the nonce in the proof of a request."""
    payload = request.headers.get("dpop", "..").split(".")[1]
    return json.loads(base64.urlsafe_b64decode(payload + "==") or b"{}").get("nonce")


@asynccontextmanager
async def authorization_server(
    bound: trio.socket.SocketType | None = None,
) -> AsyncIterator[AuthorizationServer]:
    """Serve until the block is left."""
    made: list[AuthorizationServer] = []

    async def script(request: Request) -> None:
        await made[0].serve(request)

    async with fake_http(script, bound) as http:
        server = AuthorizationServer(http)
        server.reset()
        made.append(server)
        yield server

"""People whose editors use mcpd on another machine: each call uses the login of the person who made it.

All parts are others': the official SDK logs in to mcpd with its own OAuth provider and shows mcpd's links,
oidc-provider is the authorization server of everything, and FastMCP runs one of the servers behind mcpd.
"""

from __future__ import annotations

import re
import shutil
import subprocess
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from functools import partial
from html import unescape
from pathlib import Path
from typing import Any
from urllib.error import HTTPError
from urllib.parse import parse_qs, urlsplit

import anyio
import attrs
import httpx
import httpx2
import pytest
from mcp import Client, MCPError, types
from mcp.client.auth import AuthorizationCodeResult, OAuthClientProvider
from mcp.client.streamable_http import streamable_http_client
from mcp.shared.auth import OAuthClientInformationFull, OAuthClientMetadata, OAuthToken
from pydantic import AnyUrl

from tests.e2e.harness import BOUND, Daemon, Json, running, wait_until
from tests.e2e.web import BOTH
from tests.e2e.web import ask as web_ask
from tests.interop.clients.drivers import modules
from tests.interop.peers import free_port, listening, made
from tests.interop.test_authorization_servers import Browser, ask, provider

pytestmark = pytest.mark.skipif(
    not modules("oidc-provider").exists(), reason="oidc-provider is not installed: run `make interop`"
)
CALLBACK = "http://127.0.0.1:1/callback"
CALLS = 20
FASTMCP = """
import sys
from fastmcp import FastMCP
from fastmcp.server.auth import RemoteAuthProvider
from fastmcp.server.auth.providers.jwt import JWTVerifier
from fastmcp.server.dependencies import get_access_token

port, issuer = int(sys.argv[1]), sys.argv[2]
base = f"http://localhost:{port}"
tokens = JWTVerifier(jwks_uri=f"{issuer}/jwks", issuer=issuer, audience=f"{base}/mcp")
server = FastMCP("it", auth=RemoteAuthProvider(tokens, [issuer], base, ["mcp"]))

@server.tool()
def whoami() -> str:
    return get_access_token().claims["sub"]

server.run(transport="http", host="localhost", port=port, path="/mcp", show_banner=False)
"""


@attrs.define
class Editor:
    """The official SDK on a person's machine, with a browser. It keeps its tokens in memory."""

    person: str
    url: str
    mode: Any
    tokens: OAuthToken | None = None
    registration: OAuthClientInformationFull | None = None
    links: list[str] = attrs.field(factory=list)
    """The links that it has shown."""
    answer: str = ""
    browser: Browser = attrs.field(init=False)

    def __attrs_post_init__(self) -> None:
        self.browser = Browser(self.person)

    async def get_tokens(self) -> OAuthToken | None:
        return self.tokens

    async def set_tokens(self, tokens: OAuthToken) -> None:
        self.tokens = tokens

    async def get_client_info(self) -> OAuthClientInformationFull | None:
        return self.registration

    async def set_client_info(self, client_info: OAuthClientInformationFull) -> None:
        self.registration = client_info

    async def _log_in_to_mcpd(self, url: str) -> None:
        visit = partial(self.browser.visit, url, CALLBACK)
        self.answer = await anyio.to_thread.run_sync(visit)

    async def _callback(self) -> AuthorizationCodeResult:
        fields = parse_qs(urlsplit(self.answer).query)
        return AuthorizationCodeResult(
            code=fields["code"][0], state=fields["state"][0], iss=fields.get("iss", [None])[0]
        )

    async def _show_link(self, context: Any, params: Any) -> types.ElicitResult:
        self.links.append(params.url)
        page = await anyio.to_thread.run_sync(log_in, self.browser, params.url)
        assert "Logged in" in page, page
        return types.ElicitResult(action="accept")

    @asynccontextmanager
    async def connected(self, *, shows_links: bool = True) -> AsyncIterator[Client]:
        metadata = OAuthClientMetadata(redirect_uris=[AnyUrl(CALLBACK)], client_name=self.person)
        auth = OAuthClientProvider(self.url, metadata, self, self._log_in_to_mcpd, self._callback)
        async with (
            httpx2.AsyncClient(auth=auth, timeout=BOUND) as http,
            Client(
                streamable_http_client(self.url, http_client=http),
                mode=self.mode,
                elicitation_callback=self._show_link if shows_links else None,
            ) as client,
        ):
            yield client

    async def call(self, tool: str) -> str:
        """Return what the tool says, or the error of a client that cannot show links."""
        async with self.connected(shows_links=False) as client:
            try:
                return text(await client.call_tool(tool, {}))
            except MCPError as error:
                return error.message

    def link(self) -> str:
        """Return the link in the error of a call."""
        (found,) = re.findall(r"http://\S+/login/\S+", anyio.run(self.call, "up__echo"))
        return str(found)


async def lists(client: Client, *tools: str) -> None:
    """Wait until these tools are listed: a list waits only some seconds for servers that start."""
    with anyio.fail_after(BOUND):
        while {each.name for each in (await client.list_tools(cache_mode="refresh")).tools} != {*tools}:  # noqa: ASYNC110
            await anyio.sleep(0.1)


def text(result: Any) -> str:
    return str(result.content[0].text)


def log_in(browser: Browser, link: str) -> str:
    """Open mcpd's link, press what its page shows, and return the last page."""
    page = browser.visit(link)
    (found,) = re.findall(r'href="([^"]+)"', page)
    return browser.visit(unescape(found))


@attrs.frozen
class World:
    home: Path
    issuer: str
    url: str
    fast: str

    def daemon(self, redis: Path | None = None, audience: str = "", login: Json | None = None) -> Any:
        listen = urlsplit(self.url).netloc.replace("localhost", "127.0.0.1")
        http: Json = {
            "listen": listen,
            "hosts": ["localhost"],
            "jwt": {"issuer": self.issuer, "audience": audience or self.url, "login": login},
        }
        if redis is not None:
            http["cluster"] = {"key": "k" * 32, "address": f"http://{listen}", "redis": f"unix://{redis}"}
        servers = {"up": {"url": f"{self.issuer}/mcp"}, "fast": {"url": self.fast}}
        return running(self.home, servers, settings={"http": http})

    def editor(self, person: str, mode: str = "auto") -> Editor:
        return Editor(person, self.url, mode)


@pytest.fixture
def world(tmp_path: Path) -> Iterator[World]:
    port = free_port()
    url, fast = f"http://localhost:{free_port()}/mcp", f"http://localhost:{port}/mcp"
    with (
        provider("--jwt", url, "--jwt", fast) as issuer,
        listening([made(".venv-fastmcp"), "-c", FASTMCP, str(port), issuer], port),
    ):
        yield World(tmp_path, issuer, url, fast)


def ready(daemon: Daemon, world: World) -> None:
    def is_ready() -> bool:
        try:
            return bool(ask(world.url.replace("/mcp", "/readyz")))
        except HTTPError:
            return False

    wait_until(is_ready, lambda: daemon.log)


def test_each_call_uses_the_login_of_its_person(world: World) -> None:
    """Of two at the same time, in both eras, after renewals, a restart, and the logout of one."""
    editors = [world.editor("ada"), world.editor("bob", "legacy")]

    async def first_use(editor: Editor) -> None:
        """The person logs in to mcpd, then to each server, by links."""
        async with editor.connected() as client:
            await lists(client, "up__mcpd_log_in", "fast__mcpd_log_in")
            assert "connected" in text(await client.call_tool("up__mcpd_log_in", {}))
            assert text(await client.call_tool("fast__whoami", {})) == editor.person
            assert len(editor.links) == 2
            await lists(client, "up__echo", "fast__whoami")

    async def use(editor: Editor) -> None:
        async def call(client: Client, tool: str) -> None:
            assert text(await client.call_tool(tool, {})) == editor.person

        async with editor.connected() as client, anyio.create_task_group() as group:
            for number in range(CALLS):
                group.start_soon(call, client, ("up__echo", "fast__whoami")[number % 2])

    async def all_at_once(work: Any) -> None:
        async with anyio.create_task_group() as group:
            for editor in editors:
                group.start_soon(work, editor)

    with world.daemon() as daemon:
        ready(daemon, world)
        anyio.run(all_at_once, first_use)
        anyio.run(all_at_once, use)
        ask(f"{world.issuer}/test/expire")
        anyio.run(all_at_once, use)
        stats = ask(f"{world.issuer}/test/stats")
        assert (stats["refreshed"], stats["failed"]) == (2, 0)
    with world.daemon() as daemon:
        ready(daemon, world)
        anyio.run(all_at_once, use)
        with daemon.client() as control:
            ended = control.request("mcpd/logout", person="ada", server="up")
        assert [login["url"] for login in ended["logins"]] == [f"{world.issuer}/mcp"]
        assert "not logged in" in anyio.run(editors[0].call, "up__echo")
        assert anyio.run(editors[0].call, "fast__whoami") == "ada"
        anyio.run(use, editors[1])
        assert [len(editor.links) for editor in editors] == [2, 2]


def test_link_works_only_for_the_person_who_got_it(world: World) -> None:
    """Whatever of his login mallory gives to ada, her account does not serve him, nor his account her."""
    ada, mallory = world.editor("ada"), world.editor("mallory", "legacy")
    with world.daemon() as daemon:
        ready(daemon, world)
        links = {editor.person: editor.link() for editor in (ada, mallory)}
        assert links["ada"] != links["mallory"]

        def goes_on(browser: Browser, url: str, elsewhere: str = "http://127.0.0.1") -> str:
            """Return the last page, also if it is an error, or where the browser is sent to."""
            try:
                return browser.visit(url, elsewhere)
            except AssertionError as error:
                return str(error)

        # His link.
        assert "You are ada" in goes_on(ada.browser, links["mallory"])
        # The proof of his browser, while hers is under way.
        proof = mallory.browser.visit(links["mallory"], f"{world.url.removesuffix('mcp')}login/callback")
        ada.browser.visit(links["ada"], f"{world.url.removesuffix('mcp')}login/callback")
        assert "Not for this browser" in goes_on(ada.browser, proof)
        # The address of the authorization server, after he has proved who he is.
        page = mallory.browser.visit(proof)
        (address,) = map(unescape, re.findall(r'href="([^"]+)"', page))
        end = f"{world.url.removesuffix('mcp')}login/up/callback"
        hers = ada.browser.visit(address, end)
        assert "Not for this browser" in goes_on(ada.browser, hers)
        # His own answer, which would log her in to his account.
        his = mallory.browser.visit(address, end)
        assert "Not for this browser" in goes_on(ada.browser, his)
        for editor in (ada, mallory):
            assert "not logged in" in anyio.run(editor.call, "up__echo")
        # Only his browser can finish it, and only hers can log her in.
        assert "Logged in" in mallory.browser.visit(his)
        assert anyio.run(mallory.call, "up__echo") == "mallory"
        assert "not logged in" in anyio.run(ada.call, "up__echo")
        assert "Logged in" in log_in(ada.browser, ada.link())
        assert [anyio.run(editor.call, "up__echo") for editor in (ada, mallory)] == ["ada", "mallory"]
        assert "login/up" not in daemon.log


@pytest.mark.skipif(shutil.which("redis-server") is None, reason="redis-server is not installed")
def test_login_at_one_replica_is_used_by_all(world: World, tmp_path: Path) -> None:
    """The link leads to the replica that has made it, whichever one the browser comes to. Both are the client
    that is registered for the pages."""
    redis = tmp_path / "redis.sock"
    command = [
        "redis-server",
        "--port",
        "0",
        "--unixsocket",
        str(redis),
        "--save",
        "",
        "--dir",
        str(tmp_path),
    ]
    process = subprocess.Popen(command, stdout=subprocess.DEVNULL)
    try:
        wait_until(redis.exists, lambda: "Redis did not start")
        other = World(tmp_path / "other", world.issuer, f"http://localhost:{free_port()}/mcp", world.fast)
        other.home.mkdir()
        registered = httpx.post(
            f"{world.issuer}/reg",
            json={"redirect_uris": [world.url.replace("/mcp", "/login/callback")]},
            timeout=BOUND,
        ).json()
        login = {"clientId": registered["client_id"], "clientSecret": registered["client_secret"]}
        with (
            world.daemon(redis, world.url, login) as one,
            other.daemon(redis, world.url, login) as two,
        ):
            ready(one, world)
            ready(two, other)
            editor = world.editor("ada")
            assert "not logged in" in anyio.run(editor.call, "up__echo")
            assert editor.tokens is not None
            bearer = {"Authorization": f"Bearer {editor.tokens.access_token}", "Accept": BOTH}
            with httpx.Client(headers=bearer, timeout=BOUND) as http:
                refusal = web_ask(http, other.url, "tools/call", name="up__echo", arguments={}).json()
                (link,) = re.findall(r"http://\S+/login/\S+", refusal["error"]["message"])
                assert link.startswith(world.url.removesuffix("mcp"))
                assert "Logged in" in log_in(editor.browser, link)
                for url in (other.url, world.url):
                    answer = web_ask(http, url, "tools/call", name="up__echo", arguments={}).json()
                    assert answer["result"]["content"][0]["text"] == "ada"
    finally:
        process.kill()
        process.wait(BOUND)

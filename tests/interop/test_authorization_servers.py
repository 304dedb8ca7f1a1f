"""Logins at authorization servers that others have written.

The certified one is strict: it rotates refresh tokens, and a second use of an old one ends the login. That of
FastMCP is built with the Python SDK, and forgets all clients and tokens when it ends.
"""

from __future__ import annotations

import json
import re
import subprocess
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from html import unescape
from http.cookiejar import CookieJar
from typing import Any
from urllib.error import HTTPError
from urllib.parse import urlencode, urljoin

import pytest

from tests.e2e.conftest import Start
from tests.e2e.harness import BOUND, Daemon, Json
from tests.interop.clients.drivers import HERE, modules, node
from tests.interop.peers import free_port, listening, made

CALLS = 50
ROUNDS = 5


class _NoRedirect(urllib.request.HTTPRedirectHandler):
    def redirect_request(self, *_: Any, **__: Any) -> None:
        return None


class Browser:
    """A person who fills in every form that the authorization server shows."""

    def __init__(self, person: str = "ada") -> None:
        self._person = person
        cookies = urllib.request.HTTPCookieProcessor(CookieJar())
        self._opener = urllib.request.build_opener(_NoRedirect, cookies, urllib.request.ProxyHandler({}))

    def visit(self, url: str, elsewhere: str = "http://127.0.0.1") -> str:
        """Return the address of the first redirect that begins with `elsewhere`, or else the last page."""
        form: dict[str, str] | None = None
        for _ in range(20):
            data = None if form is None else urlencode(form).encode()
            status, page, location = self._open(url, data)
            form = None
            if location:
                if location.startswith(elsewhere):
                    return location
                url = urljoin(url, location)
            elif (action := re.search(r'<form[^>]*\baction="([^"]*)"', page)) is not None:
                url, form = urljoin(url, unescape(action[1])), self._fill_in(page)
            else:
                assert status == 200, page
                return page
        raise AssertionError(f"the authorization server shows forms for ever, now at {url}")

    def _fill_in(self, page: str) -> dict[str, str]:
        form = {"login": self._person, "password": "any"} if 'name="login"' in page else {}
        for found in re.findall(r"<input[^>]*>", page):
            attributes = dict(re.findall(r'(\w+)="([^"]*)"', found))
            if attributes.get("type") == "hidden":
                form[attributes["name"]] = unescape(attributes.get("value", ""))
        return form

    def _open(self, url: str, data: bytes | None) -> tuple[int, str, str]:
        try:
            with self._opener.open(url, data, timeout=BOUND) as answer:
                return answer.status, answer.read().decode(), ""
        except HTTPError as error:
            with error:
                return error.code, error.read().decode(), error.headers.get("Location", "")


@contextmanager
def provider(*flags: str) -> Iterator[str]:
    """Run the server, and return its origin."""
    port = free_port()
    process = subprocess.Popen(
        [node(), str(HERE / "oidc_server.mjs"), str(port), *flags],
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
        cwd=HERE,
    )
    try:
        assert process.stdout is not None
        assert process.stdout.readline() == "ready\n"
        yield f"http://localhost:{port}"
    finally:
        process.kill()
        process.communicate()


def ask(url: str) -> Json:
    opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))
    with opener.open(url, timeout=BOUND) as answer:
        return dict(json.load(answer))


def log_in(daemon: Daemon) -> None:
    with daemon.client() as client:
        offer = client.request("mcpd/login/begin", server="remote")
        waiting = client.send("mcpd/login/wait", attempt=offer["attempt"])
        end = Browser().visit(offer["url"])
        client.request("mcpd/login/answer", attempt=offer["attempt"], url=end)
        login = client.answer(waiting)
    assert login["renews"]
    daemon.wait_connected("remote")


@pytest.mark.skipif(
    not modules("oidc-provider").exists(), reason="oidc-provider is not installed: run `make interop`"
)
@pytest.mark.parametrize("flags", [(), ("--dpop",)], ids=["bearer", "dpop"])
def test_fifty_calls_on_an_expired_token_renew_it_once(start: Start, flags: tuple[str, ...]) -> None:
    """A second renewal with the same refresh token would end the login."""
    with provider(*flags) as origin:
        daemon = start({"remote": {"url": f"{origin}/mcp", "maxInFlight": 100}})
        daemon.wait_status("remote", lambda status: status["status"] == "needs-auth")
        log_in(daemon)
        with daemon.client() as client:
            for number in range(ROUNDS):
                ask(f"{origin}/test/expire")
                calls = [
                    client.send("mcpd/call", server="remote", tool="echo", arguments={}) for _ in range(CALLS)
                ]
                assert all(client.answer(call)["success"] for call in calls)
                stats = ask(f"{origin}/test/stats")
                assert (stats["refreshed"], stats["failed"]) == (number + 1, 0)
                assert stats["calls"] == (number + 1) * CALLS


FASTMCP = """
import sys
from fastmcp import FastMCP
from fastmcp.server.auth.auth import ClientRegistrationOptions, RevocationOptions
from fastmcp.server.auth.providers.in_memory import InMemoryOAuthProvider
from fastmcp.server.dependencies import get_access_token

port = int(sys.argv[1])
server = FastMCP("it", auth=InMemoryOAuthProvider(
    base_url=f"http://127.0.0.1:{port}",
    client_registration_options=ClientRegistrationOptions(enabled=True),
    revocation_options=RevocationOptions(enabled=True),
))

@server.tool(annotations={"readOnlyHint": True})
def whoami() -> str:
    return get_access_token().client_id

server.run(transport="http", host="127.0.0.1", port=port, path="/mcp", show_banner=False)
"""


def whoami(daemon: Daemon) -> str:
    with daemon.client() as client:
        return str(client.call("remote", "whoami")["output"])


def test_an_authorization_server_that_forgets_everything(start: Start) -> None:
    """Each login is that of a new client, and nothing of the one before is used with it."""
    port = free_port()
    argv = [made(".venv-fastmcp"), "-c", FASTMCP, str(port)]
    with listening(argv, port):
        url = f"http://127.0.0.1:{port}/mcp"
        daemon = start({"remote": {"url": url, "cache": {"whoami": "1h"}}})
        daemon.wait_status("remote", lambda status: status["status"] == "needs-auth")
        log_in(daemon)
        first = whoami(daemon)
        with daemon.client() as client:
            client.request("mcpd/auth/refresh", server="remote")
        assert whoami(daemon) == first
        log_in(daemon)
        second = whoami(daemon)
        assert second != first
    with listening(argv, port):
        log_in(daemon)
        assert whoami(daemon) not in (first, second)

"""A person with a browser, and an authorization server in a thread, for tests with a real daemon."""

from __future__ import annotations

import html
import re
import threading
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any
from urllib.error import HTTPError

import pytest
import trio

from tests.e2e.conftest import Start
from tests.e2e.harness import BOUND, Daemon
from tests.fakes.authorization_server import AuthorizationServer, authorization_server


class _NoRedirect(urllib.request.HTTPRedirectHandler):
    def redirect_request(self, *_: Any, **__: Any) -> None:
        return None


_browser = urllib.request.build_opener(_NoRedirect, urllib.request.ProxyHandler({}))


@contextmanager
def served() -> Iterator[AuthorizationServer]:
    """Run the authorization server in a thread, since the test blocks."""
    ready, found = threading.Event(), []

    async def main() -> None:
        async with authorization_server() as server:
            found.append((server, trio.lowlevel.current_trio_token(), trio.CancelScope()))
            ready.set()
            with found[0][2]:
                await trio.sleep_forever()

    thread = threading.Thread(target=trio.run, args=(main,))
    thread.start()
    assert ready.wait(BOUND)
    server, token, scope = found[0]
    try:
        yield server
    finally:
        token.run_sync_soon(scope.cancel)
        thread.join(BOUND)


def visit(url: str) -> str:
    """Return the address to which the authorization server redirects."""
    with pytest.raises(HTTPError) as caught:
        _browser.open(url, timeout=BOUND)
    with caught.value as answer:
        assert answer.code == 302
        return str(answer.headers["Location"])


def open_page(url: str) -> str:
    with _browser.open(url, timeout=BOUND) as page:
        return page.read().decode()  # type: ignore[no-any-return]


def follow(page_url: str) -> str:
    """Open mcpd's page, press its link, log in, and return the last page."""
    page = open_page(page_url)
    (link,) = re.findall(r'href="([^"]+)"', page)
    return open_page(visit(html.unescape(link)))


def needs_login(daemon: Daemon) -> None:
    daemon.wait_status("remote", lambda status: status["status"] == "needs-auth")


def logged_in(daemon: Daemon) -> None:
    """Log in through the control API, as a person with a browser on this machine."""
    with daemon.client() as client:
        offer = client.request("mcpd/login/begin", server="remote")
        waiting = client.send("mcpd/login/wait", attempt=offer["attempt"])
        open_page(visit(offer["url"]))
        client.answer(waiting)
    daemon.wait_connected("remote")


@contextmanager
def remote(start: Start, *flags: str) -> Iterator[tuple[AuthorizationServer, Daemon]]:
    """Run a daemon with one server, `remote`, which needs a login."""
    with served() as server:
        daemon = start({"remote": {"url": server.url}}, *flags)
        needs_login(daemon)
        yield server, daemon


@contextmanager
def logged_in_remote(start: Start, *flags: str) -> Iterator[tuple[AuthorizationServer, Daemon]]:
    """The same, after a login."""
    with remote(start, *flags) as (server, daemon):
        logged_in(daemon)
        yield server, daemon

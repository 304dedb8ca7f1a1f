"""A login with mcpctl at the authorization server of the official Python SDK, which many servers use.

It offers no public clients, and requires the client ID and the secret in the body of each request.
"""

from __future__ import annotations

import importlib.util
import json
import sys
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from urllib.error import HTTPError
from urllib.parse import urlencode

import pytest

from tests.e2e.conftest import Start
from tests.e2e.harness import BOUND, Daemon, Json
from tests.e2e.login_people import needs_login, open_page, visit
from tests.e2e.test_login import mcpctl, start_mcpctl
from tests.interop.clients.drivers import HERE
from tests.interop.peers import free_port, listening

pytestmark = pytest.mark.skipif(
    importlib.util.find_spec("mcp") is None, reason="the Python SDK is not installed: `pip install mcp`"
)


@contextmanager
def sdk_server() -> Iterator[str]:
    """Run the server, and return its origin."""
    port = free_port()
    with listening([sys.executable, str(HERE / "sdk_login_server.py"), str(port)], port):
        yield f"http://127.0.0.1:{port}"


def ask(url: str, form: dict[str, Any] | None = None, **headers: str) -> tuple[int, Json]:
    """Send GET, or POST with a form. Returns the status and the JSON of the answer."""
    opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))
    data = None if form is None else urlencode(form).encode()
    try:
        with opener.open(urllib.request.Request(url, data, headers), timeout=BOUND) as answer:
            return answer.status, json.load(answer)
    except HTTPError as error:
        with error:
            return error.code, json.load(error)


def stats(origin: str) -> Json:
    return ask(f"{origin}/test/stats")[1]


def log_in(daemon: Daemon) -> None:
    needs_login(daemon)
    login = start_mcpctl(daemon, "login", "remote", "--no-browser")
    assert login.stdout is not None
    open_page(visit(login.stdout.readline().strip()))
    out, err = login.communicate(timeout=BOUND)
    assert login.returncode == 0, err
    assert "renews itself" in out
    assert "connected (1 tool)" in out


def test_a_login_at_the_python_sdk_lives_until_the_logout_revokes_it(start: Start, tmp_path: Path) -> None:
    """One registration, one renewal when the token has expired, and nothing is accepted afterwards."""
    with sdk_server() as origin:
        daemon = start({"remote": {"url": f"{origin}/mcp"}})
        log_in(daemon)
        with daemon.client() as client:
            assert client.call("remote", "echo", {"message": "first"})["success"]
            assert stats(origin) == {"clients": 1, "renewals": 0, "revocations": 0, "calls": 1}
            ask(f"{origin}/test/expire", {})
            assert client.call("remote", "echo", {"message": "second"})["success"]
        assert stats(origin) == {"clients": 1, "renewals": 1, "revocations": 0, "calls": 2}

        stored = json.loads((tmp_path / "state" / "mcpd" / "login" / "logins.json").read_text())
        ((_, login),) = stored["logins"].items()
        code, text = mcpctl(daemon, "logout", "remote")
        assert (code, "has revoked the tokens" in text) == (0, True), text
        assert stats(origin)["revocations"] == 1
        needs_login(daemon)

        client_of_login, tokens = login["client"], login["tokens"]
        form = {
            "grant_type": "refresh_token",
            "refresh_token": tokens["refresh_token"],
            "client_id": client_of_login["client_id"],
            "client_secret": client_of_login["client_secret"],
        }
        status, answer = ask(f"{origin}/token", form)
        assert (status, answer["error"]) == (400, "invalid_grant")
        bearer = {"Authorization": f"Bearer {tokens['access_token']}"}
        assert ask(f"{origin}/mcp", {}, **bearer)[0] == 401

"""Faults of a login with a real daemon and clients of all kinds (T3, T5), and how long a login takes."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.e2e.conftest import Start
from tests.e2e.harness import Refused, wait_until
from tests.e2e.login_people import logged_in, needs_login, open_page, served, visit
from tests.e2e.test_login import start_mcpctl
from tests.gateway.mcp_client import LEGACY, MODERN, McpClient
from tests.stopwatch import stopwatch, within


def expire_stored_token(home: Path) -> None:
    """Change the file of logins as if the token had expired long ago."""
    file = home / "state" / "mcpd" / "login" / "logins.json"
    document = json.loads(file.read_text())
    (login,) = document["logins"].values()
    login["tokens"]["expires_at"] = login["tokens"]["obtained_at"] + 0.001
    file.write_text(json.dumps(document))


def test_t3_ten_clients_and_mcpctl_after_a_restart_need_one_token_request(
    start: Start, tmp_path: Path
) -> None:
    """The stored token has expired, and the server is started by whoever comes first."""
    with served() as server:
        daemon = start({"remote": {"url": server.url}})
        needs_login(daemon)
        logged_in(daemon)
        daemon.stop()
        expire_stored_token(tmp_path)
        server.access_tokens.clear()
        server.http.requests.clear()
        before = len(server.token_requests)
        daemon = start({"remote": {"url": server.url, "lazy": True}})
        shell = start_mcpctl(daemon, "call", "remote", "echo")
        clients = [McpClient(daemon, each) for each in (MODERN, LEGACY[0]) for _ in range(5)]
        calls = [each.send("tools/call", name="remote__echo", arguments={}) for each in clients]
        for client, call in zip(clients, calls, strict=True):
            assert client.wait(call)["content"][0]["text"] == "done"
        out, err = shell.communicate(timeout=60)
        assert shell.returncode == 0, err
        assert "done" in out
        assert [form["grant_type"] for form in server.token_requests[before:]] == ["refresh_token"]
        signed = [request.headers.get("authorization", "") for request in server.asked("/mcp")]
        assert all(each.removeprefix("Bearer ") in server.access_tokens for each in signed)


@pytest.mark.parametrize(
    "answer",
    [(500, b"oops"), (429, b"slow down"), (200, b"<html>log in here</html>"), (200, b"[]"), (404, b"")],
    ids=["500", "429", "html", "list", "404"],
)
def test_t5_an_authorization_server_in_trouble_never_means_a_needed_login(
    start: Start, answer: tuple[int, bytes]
) -> None:
    """Calls fail, say when it is tried again, and work again without a person."""
    with served() as server:
        daemon = start({"remote": {"url": server.url}})
        needs_login(daemon)
        logged_in(daemon)
        with daemon.client() as client:
            before = client.request("mcpd/history", server="remote")["entries"]
            server.answers["/token"] = answer
            server.access_tokens.clear()
            with pytest.raises(Refused, match=r"the login cannot be renewed: .* tried again in") as caught:
                client.call("remote", "echo")
            assert caught.value.code != "needs_auth"
            assert caught.value.body["data"]["may_have_run"] is False
            del server.answers["/token"]

            codes = []

            def works() -> bool:
                try:
                    return bool(client.call("remote", "echo")["success"])
                except Refused as error:
                    codes.append(error.code)
                    return False

            wait_until(works, lambda: f"it does not recover: {daemon.status('remote')}")
            assert "needs_auth" not in codes
            after = client.request("mcpd/history", server="remote")["entries"]
        assert "needs-auth" not in json.dumps(after[len(before) :])


def test_a_login_ends_soon_after_the_redirect(start: Start) -> None:
    """Within 0.3 s, the tokens are stored, the browser says so, and mcpctl hears of it."""
    with served() as server:
        daemon = start({"remote": {"url": server.url}})
        needs_login(daemon)
        with daemon.client() as client:
            offer = client.request("mcpd/login/begin", server="remote")
            waiting = client.send("mcpd/login/wait", attempt=offer["attempt"])
            redirect = visit(offer["url"])
            with stopwatch() as watch:
                assert "Logged in" in open_page(redirect)
                client.answer(waiting)
                assert within(watch.seconds, 0.3)

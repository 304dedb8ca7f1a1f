"""Access that a server refuses, and that comes back without a person."""

from __future__ import annotations

import json
from contextlib import suppress
from pathlib import Path

import pytest

from mcpd.config.secret_store import change_secrets
from tests.e2e.conftest import Start
from tests.e2e.harness import Daemon, Json, Refused, wait_until
from tests.e2e.login_people import served

CALLS = 20


@pytest.mark.parametrize(
    "definition",
    [
        {"url": "URL", "headers": {"Authorization": "Bearer ${file:PATH}"}},
        {"url": "URL", "headers": {"Authorization": "Bearer ${cmd:cat PATH}"}},
        {"url": "URL", "headers": {"Authorization": "Bearer ${secret:TOKEN}"}},
        {"url": "URL?key=${file:PATH}"},
    ],
    ids=["file", "command", "store", "url"],
)
def test_a_rotated_token_is_used_when_the_old_one_is_refused(
    start: Start, tmp_path: Path, definition: Json
) -> None:
    """The calls are sent again with it, and the session continues. After a token that nobody has replaced in
    time, the next call looks for another one.
    """
    path = tmp_path / "token"

    def rotate(token: str) -> None:
        path.write_text(token)
        change_secrets({**environ}, {"TOKEN": token})

    with served() as server:
        environ = {"HOME": str(tmp_path), "XDG_CONFIG_HOME": str(tmp_path / "config")}
        rotate("first")
        server.access_tokens = {"first"}
        text = json.dumps({"remote": definition}).replace("PATH", str(path)).replace("URL", server.url)
        daemon = start(json.loads(text), settings={"allowCommands": True})
        daemon.wait_connected("remote")
        sessions = sum(b'"initialize"' in each.body for each in server.http.requests)

        rotate("second")
        server.access_tokens = {"second"}
        with daemon.client() as client:
            sent = [
                client.send("mcpd/call", server="remote", tool="echo", arguments={}) for _ in range(CALLS)
            ]
            assert all(client.answer(each)["success"] for each in sent)
        assert sum(b'"initialize"' in each.body for each in server.http.requests) == sessions
        assert daemon.status("remote")["status"] == "connected"

        server.access_tokens = {"third"}
        with daemon.client() as client, pytest.raises(Refused, match="reject"):
            client.call("remote", "echo")
        daemon.wait_status("remote", lambda status: status["status"] == "needs-auth")
        rotate("third")
        wait_until(lambda: works(daemon), lambda: daemon.log)


def works(daemon: Daemon) -> bool:
    with daemon.client() as client, suppress(Refused):
        return bool(client.call("remote", "echo"))
    return False


def test_a_grant_without_a_person_is_tried_again_with_a_call(start: Start) -> None:
    """The authorization server did not know the client while it was restarted."""
    with served() as server:
        server.answers["/token"] = (401, b'{"error":"invalid_client"}')
        oauth = {"grant": "client_credentials", "clientId": "c", "clientSecret": "s"}
        daemon = start({"remote": {"url": server.url, "oauth": oauth}})
        daemon.wait_status("remote", lambda status: status["status"] == "needs-auth")
        del server.answers["/token"]
        wait_until(lambda: works(daemon), lambda: daemon.log)

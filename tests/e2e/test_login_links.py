"""A link to log in inside the editor: the call continues when a person has logged in (T16, T20)."""

from __future__ import annotations

import time
from typing import Any
from urllib.parse import urlsplit

import pytest

from tests.e2e.conftest import Start
from tests.e2e.harness import Daemon, Json, Refused
from tests.e2e.login_people import follow, logged_in, logged_in_remote, needs_login, open_page, remote, served
from tests.gateway.mcp_client import MODERN, McpClient
from tests.stopwatch import stopwatch, within

LEGACY = "2025-11-25"
VERSIONS = (LEGACY, MODERN)
ACCEPT, DECLINE = {"action": "accept"}, {"action": "decline"}


def client_of(daemon: Daemon, version: str, *answers: Json, **more: Any) -> McpClient:
    """Return a client that gives these answers to links, and to all further ones the last of them."""
    left = list(answers or (ACCEPT,))

    def answer(method: str, params: Json) -> Json:
        if method == "roots/list":
            return {"roots": []}
        return left.pop(0) if len(left) > 1 else left[0]

    return McpClient(daemon, version, answer=answer, **{"server": "remote", **more})


def links(client: McpClient) -> list[Json]:
    return [params for method, params in client.asked if method == "elicitation/create"]


def start_call(client: McpClient, tool: str = "echo") -> int:
    return client.send("tools/call", name=tool, arguments={})


def wait_asked(client: McpClient, key: int, tool: str = "echo") -> tuple[Json, int]:
    """Read until the client has answered its first link. Returns the link, and the request that waits now."""
    if not client.modern:
        while not links(client):
            client._read()
        return links(client)[0], key
    result = client.wait(key)
    assert result["resultType"] == "input_required"
    ((name, asked),) = result["inputRequests"].items()
    answer = client._answered(asked["method"], asked["params"])
    more = {"inputResponses": {name: answer}, "requestState": result["requestState"]}
    return asked["params"], client.send("tools/call", name=tool, arguments={}, **more)


@pytest.mark.parametrize("version", VERSIONS)
def test_t20_a_call_continues_when_a_person_has_logged_in(start: Start, version: str) -> None:
    """Its answer arrives within a second of the redirect, and nothing was executed before."""
    with remote(start) as (server, daemon):
        client = client_of(daemon, version)
        link, waiting = wait_asked(client, start_call(client))
        assert link["mode"] == "url"
        assert urlsplit(link["url"]).hostname == "127.0.0.1"
        assert "remote requires a login at " + server.origin in link["message"]
        page = open_page(link["url"])
        assert server.origin in page
        assert "<script" not in page
        assert "Logged in" in follow(link["url"])
        with stopwatch() as watch:
            assert client.wait(waiting)["content"][0]["text"] == "done"
        assert within(watch.seconds, 1.0)
        calls = [request for request in server.asked("/mcp") if b"tools/call" in request.body]
        assert len(calls) == 1
        if version == LEGACY:
            done = client.wait_heard("notifications/elicitation/complete")
            assert done["params"] == {"elicitationId": link["elicitationId"]}
        assert client.call("echo") == "done"
        assert len(links(client)) == 1


@pytest.mark.parametrize("version", VERSIONS)
def test_t20_a_connected_server_that_ends_the_login_is_handled_alike(start: Start, version: str) -> None:
    """All calls of a client wait for one link, and each is executed once."""
    with logged_in_remote(start) as (server, daemon):
        server.access_tokens.clear()
        server.refresh_tokens.clear()
        client = client_of(daemon, version)
        first = start_call(client)
        link, waiting = wait_asked(client, first)
        others = [start_call(client) for _ in range(9)]
        follow(link["url"])
        for key in (waiting, *others):
            assert client.wait(key)["content"][0]["text"] == "done"
        assert len(links(client)) == 1
        calls = [request for request in server.asked("/mcp") if b"tools/call" in request.body]
        accepted = [
            each
            for each in calls
            if each.headers.get("authorization", "").removeprefix("Bearer ") in server.access_tokens
        ]
        assert len(accepted) == 10


@pytest.mark.parametrize("version", VERSIONS)
def test_a_declined_link_is_not_shown_again(start: Start, version: str) -> None:
    """The call fails as it would without the link, and so do later ones."""
    with remote(start) as (server, daemon):
        client = client_of(daemon, version, DECLINE)
        for _ in range(3):
            with pytest.raises(Refused, match="mcpctl login remote"):
                client.call("echo")
        assert len(links(client)) == 1
        assert server.token_requests == []


@pytest.mark.parametrize(
    ("version", "capabilities"),
    [
        (LEGACY, {}),
        (LEGACY, {"elicitation": {}}),
        (LEGACY, {"elicitation": {"form": {}}}),
        (MODERN, {}),
        (MODERN, {"elicitation": {"form": {}}}),
        ("2025-06-18", {"elicitation": {"url": {}}}),
    ],
    ids=str,
)
def test_t20_other_clients_get_an_error_with_the_command(
    start: Start, version: str, capabilities: Json
) -> None:
    """And no login starts for them."""
    with remote(start) as (server, daemon):
        client = client_of(daemon, version, capabilities=capabilities)
        with pytest.raises(Refused, match="mcpctl login remote"):
            client.call("echo")
        assert server.asked("/register") == []


def test_a_client_that_waits_too_long_gets_an_error_with_the_link(start: Start) -> None:
    """Error -32042 (2025-11-25) names the same link, and its end is reported."""
    with served() as server:
        daemon = start({"remote": {"url": server.url, "timeout": 1000}})
        needs_login(daemon)
        client = client_of(daemon, LEGACY)
        link, waiting = wait_asked(client, start_call(client))
        with pytest.raises(Refused, match="nobody has finished the login") as caught:
            client.wait(waiting)
        assert caught.value.body["code"] == -32042
        assert caught.value.body["data"]["elicitations"] == [link]
        follow(link["url"])
        done = client.wait_heard("notifications/elicitation/complete")
        assert done["params"] == {"elicitationId": link["elicitationId"]}
        assert client.call("echo") == "done"


@pytest.mark.parametrize("version", VERSIONS)
def test_a_failed_login_fails_the_call_with_its_reason(start: Start, version: str) -> None:
    with remote(start) as (server, daemon):
        server.answers["/token"] = (400, b'{"error":"invalid_grant"}')
        client = client_of(daemon, version)
        link, waiting = wait_asked(client, start_call(client))
        with pytest.raises(Exception, match="400"):
            follow(link["url"])
        with pytest.raises(Refused, match="invalid_grant"):
            client.wait(waiting)


@pytest.mark.parametrize("version", VERSIONS)
def test_t16_more_scopes_are_asked_for_once(start: Start, version: str) -> None:
    """The second login asks for the union, and helps. No further call asks for anything."""
    with served() as server:
        server.challenge = server.challenge and server.challenge + ', scope="read"'
        server.call_scopes = frozenset({"write"})
        daemon = start({"remote": {"url": server.url}})
        needs_login(daemon)
        logged_in(daemon)
        client = client_of(daemon, version)
        link, waiting = wait_asked(client, start_call(client))
        assert "more access (read write)" in link["message"]
        follow(link["url"])
        assert client.wait(waiting)["content"][0]["text"] == "done"
        assert client.call("echo") == "done"
        assert len(links(client)) == 1


@pytest.mark.parametrize("version", VERSIONS)
def test_t16_a_server_that_asks_for_ever_asks_a_person_once(start: Start, version: str) -> None:
    """There are two authorization requests: one for the login, and one for more scopes."""
    with served() as server:
        server.call_scopes = server.withheld_scopes = frozenset({"write"})
        daemon = start({"remote": {"url": server.url}})
        needs_login(daemon)
        logged_in(daemon)
        client = client_of(daemon, version)
        link, waiting = wait_asked(client, start_call(client))
        follow(link["url"])
        with pytest.raises(Refused, match="requires write"):
            client.wait(waiting)
        for _ in range(3):
            with pytest.raises(Refused, match="requires write"):
                client.call("echo")
        other = client_of(daemon, version)
        with pytest.raises(Refused, match="requires write"):
            other.call("echo")
        assert links(other) == []
        assert len(links(client)) == 1
        assert len(server.asked("/authorize")) == 2
        assert daemon.status("remote")["status"] == "connected"


def test_a_client_that_leaves_lets_another_call_show_the_link(start: Start) -> None:
    """Cancelling the call that shows the link cancels neither the login nor the calls that wait with it."""
    with remote(start) as (server, daemon):
        client = client_of(daemon, LEGACY)
        first = start_call(client)
        link, _ = wait_asked(client, first)
        second = start_call(client)
        client.line.notify("notifications/cancelled", requestId=first)
        deadline = time.monotonic() + 60
        while len(links(client)) < 2:
            assert time.monotonic() < deadline
            client._read()
        assert links(client)[1]["url"] == link["url"]
        follow(link["url"])
        assert client.wait(second)["content"][0]["text"] == "done"
        assert len(server.asked("/authorize")) == 1

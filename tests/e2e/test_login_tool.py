"""The first login to a server in an MCP client: its only tool so far shows the link."""

from __future__ import annotations

import pytest

from tests.e2e.conftest import Start
from tests.e2e.harness import Json, Refused
from tests.e2e.login_people import follow, logged_in_remote, needs_login, remote, served
from tests.e2e.test_login_links import LEGACY, VERSIONS, client_of, links, start_call, wait_asked
from tests.fakes.authorization_server import AuthorizationServer
from tests.gateway.mcp_client import MODERN, McpClient

VIEWS = [("remote", "mcpd_log_in", "echo"), (None, "remote__mcpd_log_in", "remote__echo")]
"""The server that a client is attached to, and the names of tools there."""


def tools(client: McpClient) -> list[str]:
    return [str(tool["name"]) for tool in client.request("tools/list")["tools"]]


def executed(server: AuthorizationServer) -> int:
    return sum(b"tools/call" in request.body for request in server.asked("/mcp"))


def heard_changed_tools(client: McpClient) -> None:
    client.wait_heard("notifications/tools/list_changed")


@pytest.mark.parametrize("version", VERSIONS)
@pytest.mark.parametrize(("view", "login", "echo"), VIEWS)
def test_the_only_tool_shows_the_link_and_gives_way_to_the_others(
    start: Start, version: str, view: str | None, login: str, echo: str
) -> None:
    with remote(start) as (server, daemon):
        client = client_of(daemon, version, server=view)
        assert tools(client) == [login]
        assert client.request("prompts/list")["prompts"] == []
        link, waiting = wait_asked(client, start_call(client, login), login)
        follow(link["url"])
        assert "remote is connected" in client.wait(waiting)["content"][0]["text"]
        if version == LEGACY:
            heard_changed_tools(client)
        assert tools(client) == [echo]
        assert executed(server) == 0
        assert client.call(echo) == "done"
        assert len(links(client)) == 1


@pytest.mark.parametrize(("view", "login", "echo"), VIEWS)
def test_a_client_may_return_when_the_tool_is_gone(
    start: Start, view: str | None, login: str, echo: str
) -> None:
    """A modern client answers the question after the login, or calls the tool of an old list."""
    with remote(start) as (server, daemon):
        client = client_of(daemon, MODERN, server=view)
        result = client.wait(start_call(client, login))
        ((name, asked),) = result["inputRequests"].items()
        follow(asked["params"]["url"])
        daemon.wait_connected("remote")
        assert tools(client) == [echo]
        answers: Json = {"inputResponses": {name: {"action": "accept"}}}
        answers["requestState"] = result["requestState"]
        again = client.send("tools/call", name=login, arguments={}, **answers)
        assert "remote is connected" in client.wait(again)["content"][0]["text"]
        assert "remote is connected" in client.call(login)
        assert executed(server) == 0


def test_a_known_server_that_needs_a_login_again_keeps_its_own_tools(start: Start) -> None:
    with logged_in_remote(start) as (server, daemon):
        server.access_tokens.clear()
        server.refresh_tokens.clear()
        with daemon.client() as control, pytest.raises(Refused):
            control.call("remote", "echo")
        needs_login(daemon)
        assert tools(client_of(daemon, LEGACY)) == ["echo"]


def test_clients_hear_of_the_tool_when_the_server_begins_to_require_a_login(start: Start) -> None:
    with served() as server:
        server.answers["/mcp"] = (404, b"")
        daemon = start({"remote": {"url": server.url}})
        client = client_of(daemon, LEGACY, server=None)
        assert tools(client) == []
        del server.answers["/mcp"]
        with daemon.client() as control:
            control.request("mcpd/reconnect", server="remote")
        heard_changed_tools(client)
        while not (found := tools(client)):  # that notification had another reason
            heard_changed_tools(client)
        assert found == ["remote__mcpd_log_in"]

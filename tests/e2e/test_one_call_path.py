"""A tool call has the same limits and errors, however it reaches the daemon."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest

from tests.e2e.harness import Client, Daemon, Json, Refused, fake, running
from tests.e2e.test_bridge import editor
from tests.e2e.web import PORT, Session, ask, http_endpoint, meta

LATEST_LEGACY = "2025-11-25"
MAX_TIMEOUT = 1.0
LIMITS: Json = {"maxTimeout": MAX_TIMEOUT * 1000, "toolTimeouts": {"drop": 20_000}}
SERVERS = {
    "old": fake("--era", "legacy", **LIMITS),
    "new": fake("--era", "modern", **LIMITS),
}


@pytest.fixture(scope="module")
def daemon(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Daemon]:
    """Run one daemon for all tests that do not change it."""
    with running(tmp_path_factory.mktemp("daemon"), SERVERS, *PORT) as daemon:
        daemon.wait_connected(*SERVERS)
        yield daemon


# ── ways to call a tool; each returns the JSON-RPC response ─────────────────────────────────────

Call = Callable[[Daemon, str, str, Json], Json]


def respond(client: Client, method: str, **params: Any) -> Json:
    """Return the response to a request, whether it is a result or an error."""
    try:
        return {"result": client.request(method, **params)}
    except Refused as refused:
        return {"error": refused.body}


def over_socket(
    daemon: Daemon,
    server: str,
    tool: str,
    arguments: Json,
    *,
    version: str = LATEST_LEGACY,
    profile: str | None = None,
) -> Json:
    selected = {} if profile is None else {"profile": profile}
    with Client(daemon.socket) as client:
        client.request("mcpd/attach", client={"name": "test"}, **selected)
        client.initialize(version)
        return respond(client, "tools/call", name=f"{server}__{tool}", arguments=arguments)


def over_socket_attached(daemon: Daemon, server: str, tool: str, arguments: Json) -> Json:
    with Client(daemon.socket) as client:
        client.request("mcpd/attach", server=server, client={"name": "test"})
        client.initialize(LATEST_LEGACY)
        return respond(client, "tools/call", name=tool, arguments=arguments)


def over_socket_modern(daemon: Daemon, server: str, tool: str, arguments: Json) -> Json:
    with Client(daemon.socket) as client:
        client.request("mcpd/attach", server=server, client={"name": "test"})
        return respond(client, "tools/call", name=tool, arguments=arguments, _meta=meta())


def over_http_legacy(daemon: Daemon, server: str, tool: str, arguments: Json) -> Json:
    with http_endpoint(daemon).client() as http:
        session = Session(http)
        response: Json = session.call(f"{server}__{tool}", **arguments).json()
        return response


def over_http_modern(daemon: Daemon, server: str, tool: str, arguments: Json) -> Json:
    with http_endpoint(daemon).client() as http:
        response: Json = ask(
            http, f"/servers/{server}/mcp", "tools/call", name=tool, arguments=arguments
        ).json()
        return response


def through_bridge(daemon: Daemon, server: str, tool: str, arguments: Json) -> Json:
    with editor(daemon.environ, daemon.home, "--no-start", "--server", server) as bridge:
        bridge.begin()
        return bridge.ask("call", "tools/call", name=tool, arguments=arguments)


def over_control_api(daemon: Daemon, server: str, tool: str, arguments: Json) -> Json:
    with Client(daemon.socket) as client:
        return respond(client, "mcpd/call", server=server, tool=tool, arguments=arguments)


MCP_CLIENTS: list[Call] = [
    over_socket,
    over_socket_attached,
    over_socket_modern,
    over_http_legacy,
    over_http_modern,
    through_bridge,
]
MODERN_CLIENTS: list[Call] = [over_socket_modern, over_http_modern]
EVERY_WAY: list[Call] = [*MCP_CLIENTS, over_control_api]


def name_of(way: Call) -> str:
    return way.__name__


# ── timeouts ────────────────────────────────────────────────────────────────────────────────────


def time_limit_message(server: str) -> str:
    return (
        f"{server}: tool 'drop' took {MAX_TIMEOUT:g} s in all, the most one call may take; "
        "mcpd asked the server to cancel it (`maxTimeout` in its definition sets the limit)"
    )


@pytest.mark.parametrize("call", EVERY_WAY, ids=name_of)
def test_max_timeout_limits_tool_timeouts_on_every_way_in(daemon: Daemon, call: Call) -> None:
    """The error is the same object everywhere. It names the tool and the setting that ended the call.

    Only its numeric code is -32603 since 2026-07-28, which does not allow -32000 any more.
    """
    server = "old" if call in MODERN_CLIENTS else "new"
    error = call(daemon, server, "drop", {})["error"]
    assert error["message"] == time_limit_message(server)
    assert error["code"] == (-32603 if call in MODERN_CLIENTS else -32000)
    assert error["data"] == {
        "code": "timeout",
        "exit": 7,
        "server": server,
        "may_have_run": True,
        "after": MAX_TIMEOUT,
    }


# ── the call log ────────────────────────────────────────────────────────────────────────────────


def test_calls_of_every_way_in_are_logged(daemon: Daemon) -> None:
    """Also while somebody follows the log."""
    with Client(daemon.socket) as follower, Client(daemon.socket) as client:
        before = len(client.request("mcpd/calls", limit=10_000)["calls"])
        number = follower.send("mcpd/calls", limit=0, follow=True)
        assert follower.answer(number)["calls"] == []
        for call in EVERY_WAY:
            call(daemon, "old", "echo", {"text": call.__name__})
        daemon.mcpctl("call", "echo@old", "text=mcpctl")
        records = client.request("mcpd/calls", limit=10_000)["calls"][before:]
        ways = ["bridge", "bridge", "bridge", "http", "http", "bridge", "control", "control"]
        assert [record["via"] for record in records] == ways
        for record in records:
            assert (record["server"], record["name"], record["outcome"]) == ("old", "echo", "ok")
            assert record["duration_ms"] > 0
            assert record["response_bytes"] > 0
        assert len({record["digest"] for record in records}) == len(records)
        followed = [follower.next_notification()["params"]["call"] for _ in records]
        assert followed == records

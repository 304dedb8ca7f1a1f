"""The real daemon with third-party servers over HTTP: detect the era, list, call, and reconnect."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager
from typing import Any

import attrs
import pytest

from tests.e2e.conftest import Start
from tests.e2e.harness import Client, Daemon, Json, Refused, wait_until
from tests.interop import peers

Peer = Callable[[int], AbstractContextManager[int]]
LEGACY, MODERN = "2025-11-25", "2026-07-28"


@attrs.frozen
class Server:
    """A third-party server: how to run it, and what its detection must find."""

    name: str
    peer: Peer
    path: str
    version: str
    transport: str = "http"
    argument: str = "message"
    """Of its tool `echo`."""
    progress: tuple[str, Json] = ("count", {"steps": 3})
    """A tool that reports its progress."""

    @property
    def url(self) -> str:
        return "http://localhost:{}" + self.path


EVERYTHING = ("trigger-long-running-operation", {"duration": 0.3, "steps": 3})
SERVERS = [
    Server(
        "bundled",
        lambda port: peers.bundled(port),
        "/mcp",
        MODERN,
        argument="text",
        progress=("slow", {"seconds": 0.3}),
    ),
    Server(
        "everything",
        lambda port: peers.everything("streamableHttp", port),
        "/mcp",
        LEGACY,
        progress=EVERYTHING,
    ),
    Server(
        "everything-sse",
        lambda port: peers.everything("sse", port),
        "/sse",
        LEGACY,
        "sse",
        progress=EVERYTHING,
    ),
    Server("sdk-2", lambda port: peers.sdk("streamable-http", port), "/mcp", MODERN),
    Server("sdk-1", lambda port: peers.sdk1("streamable-http", port), "/mcp", LEGACY),
    Server("sdk-1-sse", lambda port: peers.sdk1("sse", port), "/sse", LEGACY, "sse"),
    Server("fastmcp", lambda port: peers.fastmcp("http", port), "/mcp", MODERN),
]


def steps(daemon: Any) -> list[tuple[str, str]]:
    with daemon.client() as client:
        detail = client.request("mcpd/server", server="far")
        return [(step["step"], step["outcome"]) for step in detail["negotiation"]]


def wait_found_again(daemon: Daemon, client: Client, argument: str) -> None:
    """Retry the call: one may be refused before the daemon has reconnected."""

    def answers() -> bool:
        try:
            return bool(client.call("far", "echo", {argument: "again"})["success"])
        except Refused:
            return False

    wait_until(answers, lambda: f"not found again: {daemon.status('far')}")


@pytest.mark.parametrize("server", SERVERS, ids=lambda server: server.name)
def test_url_alone_is_enough_to_connect(start: Start, server: Server) -> None:
    """Neither era nor transport is configured, and mcpd detects both. Tools can be listed and called, report
    their progress, and work again after the server was killed and restarted.
    """
    port = peers.free_port()
    with server.peer(port):
        daemon = start({"far": {"url": server.url.format(port)}})
        daemon.wait_connected("far")
        status = daemon.status("far")
        assert (status["transport"], status["protocol_version"]) == (server.transport, server.version)
        assert status["session"] == (None if server.transport == "sse" else server.version == LEGACY)
        assert server.version in steps(daemon)[-1][1]
        with daemon.client() as client:
            names = [tool["name"] for tool in client.request("mcpd/tools", server="far")["tools"]]
            assert {"echo", server.progress[0]} <= set(names)
            for number in range(10):
                text = f"caf\N{LATIN SMALL LETTER E WITH ACUTE} {number}"
                assert text in str(client.call("far", "echo", {server.argument: text}))
            tool, arguments = server.progress
            assert client.call("far", tool, arguments, _meta={"progressToken": "p"})["success"]
            received = [note["params"] for note in client.notifications]
            assert len(received) >= 2
            assert {params["progressToken"] for params in received} == {"p"}
            assert [params["progress"] for params in received] == sorted(
                params["progress"] for params in received
            )
    with daemon.client() as client:
        with pytest.raises(Refused):
            client.call("far", "echo", {server.argument: "x"})
        with server.peer(port):
            wait_found_again(daemon, client, server.argument)
            assert daemon.status("far")["restarts"] == 1
    assert daemon.stop() == 0


@pytest.mark.parametrize("era", ["modern", "legacy"])
@pytest.mark.parametrize("server", [SERVERS[0], SERVERS[-1]], ids=lambda server: server.name)
def test_configured_era_is_used_with_a_server_of_both_eras(start: Start, server: Server, era: str) -> None:
    """`era` in the definition overrides the detection."""
    port = peers.free_port()
    with server.peer(port):
        daemon = start({"far": {"type": "http", "url": server.url.format(port), "era": era}})
        daemon.wait_connected("far")
        assert daemon.status("far")["era"] == era

"""The real daemon and servers of others over HTTP: found without help, listed, called, given up again."""

from __future__ import annotations

import sys
from collections.abc import Callable
from contextlib import AbstractContextManager
from typing import Any

import pytest

from tests.e2e.conftest import Start
from tests.e2e.harness import Refused
from tests.interop import peers

Peer = Callable[[], AbstractContextManager[int]]
LEGACY, MODERN = "2025-11-25", "2026-07-28"


def steps(daemon: Any) -> list[tuple[str, str]]:
    with daemon.client() as client:
        detail = client.request("mcpd/server", server="far")
        return [(step["step"], step["outcome"]) for step in detail["negotiation"]]


@pytest.mark.parametrize(
    ("peer", "path", "era", "transport"),
    [
        (lambda: peers.bundled(), "/mcp", MODERN, "http"),
        (lambda: peers.everything("streamableHttp"), "/mcp", LEGACY, "http"),
        (lambda: peers.everything("sse"), "/sse", LEGACY, "sse"),
        (lambda: peers.sdk("streamable-http"), "/mcp", None, "http"),
        (lambda: peers.sdk("sse"), "/sse", LEGACY, "sse"),
    ],
    ids=["bundled", "everything-http", "everything-sse", "sdk-http", "sdk-sse"],
)
def test_a_url_is_all_that_has_to_be_known(
    start: Start, peer: Peer, path: str, era: str | None, transport: str
) -> None:
    """Neither era nor transport is configured: the ladder finds both, and a tool can be called."""
    with peer() as port:
        daemon = start({"far": {"url": f"http://localhost:{port}{path}"}})
        daemon.wait_connected("far")
        status = daemon.status("far")
        assert status["transport"] == transport
        assert era in (status["protocol_version"], None)
        assert status["tools"] >= 1
        argument = "text" if status["server_info"]["name"] == "mcpd-testserver" else "message"
        with daemon.client() as client:
            for number in range(10):
                text = f"caf\N{LATIN SMALL LETTER E WITH ACUTE} {number}"
                answer = client.call("far", "echo", {argument: text})
                assert text in str(answer)
        assert steps(daemon)[-1][1]
        assert daemon.stop() == 0


@pytest.mark.parametrize("era", ["modern", "legacy"])
@pytest.mark.parametrize("peer", [lambda: peers.bundled(), lambda: peers.sdk("streamable-http")])
def test_a_server_of_both_eras_is_spoken_to_as_it_is_told(start: Start, peer: Peer, era: str) -> None:
    """`era` in the definition has the last word."""
    with peer() as port:
        daemon = start({"far": {"type": "http", "url": f"http://localhost:{port}/mcp", "era": era}})
        status = daemon.wait_status("far", lambda status: status["status"] in ("connected", "failed"))
        if status["status"] == "failed" and era == "modern":
            pytest.skip("this version of the SDK knows no modern era")
        assert status["era"] == era


def test_a_server_that_restarts_is_found_again(start: Start) -> None:
    """RELIABILITY H3 with a real server: the session is forgotten, and made anew."""
    port = peers.free_port()
    argv = [sys.executable, "-m", "mcpd.testserver", "--http", f"127.0.0.1:{port}"]
    definition = {"url": f"http://127.0.0.1:{port}/mcp", "era": "legacy"}
    with peers.listening(argv, port):
        daemon = start({"far": definition})
        daemon.wait_connected("far")
    with peers.listening(argv, port), daemon.client() as client:
        for _ in range(3):
            try:
                client.call("far", "echo", {"text": "x"})
            except Refused:
                daemon.wait_connected("far")
        assert client.call("far", "echo", {"text": "again"})["success"]
        assert daemon.status("far")["restarts"] >= 1

"""Prompts and resources: errors for missing ones and for incomplete results."""

from __future__ import annotations

import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

import pytest

from tests.e2e.conftest import Start
from tests.e2e.harness import BOUND, Json, Refused, fake
from tests.example_server import TEST_SERVER

TEST = {"command": sys.executable, "args": [TEST_SERVER]}


@pytest.mark.parametrize(
    ("era", "method", "params", "code", "words"),
    [
        ("auto", "mcpd/prompt", {"prompt": "gret"}, "unknown_prompt", "did you mean greet?"),
        ("auto", "mcpd/prompt", {"prompt": "greet"}, "invalid_arguments", '"name" is a required argument'),
        (
            "modern",
            "mcpd/read",
            {"uri": "test://greetin"},
            "unknown_resource",
            "did you mean test://greeting",
        ),
        (
            "legacy",
            "mcpd/read",
            {"uri": "test://greetin"},
            "unknown_resource",
            "did you mean test://greeting",
        ),
        ("auto", "mcpd/read", {"uri": "zzz://9"}, "unknown_resource", "`mcpctl resources test` lists"),
    ],
)
def test_missing_name_has_its_own_error_with_similar_names(
    start: Start, era: str, method: str, params: dict[str, Any], code: str, words: str
) -> None:
    """Exit code 5 means no such server, tool, resource or prompt, whichever error the server returns."""
    daemon = start({"test": {**TEST, "era": era}})
    daemon.wait_connected("test")
    with pytest.raises(Refused) as refused:
        daemon.client().request(method, server="test", **params)
    assert refused.value.code == code
    assert refused.value.body["data"]["exit"] == (2 if code == "invalid_arguments" else 5)
    assert words in str(refused.value)


def test_a_server_without_prompts_says_so(start: Start) -> None:
    """The error says that the server has no prompts at all, which is more useful than a missing name."""
    daemon = start({"one": fake("--capabilities", "tools")})
    daemon.wait_connected("one")
    with pytest.raises(Refused, match="one does not support prompts"):
        daemon.client().request("mcpd/prompt", server="one", prompt="x")


def test_timeout_error_names_the_setting_that_applies(start: Start) -> None:
    """There are four such settings, and raising another one has no effect."""
    daemon = start(
        {
            "silent": fake(timeout=300),
            "tool": fake(toolTimeouts={"drop": 300}),
            "all": fake(timeout=400, maxTimeout=300),
        }
    )
    daemon.wait_connected("silent", "tool", "all")
    client = daemon.client()
    tries: tuple[tuple[str, Json, str], ...] = (
        ("silent", {}, r"\(`timeout` in its definition sets the limit\)"),
        ("tool", {}, r"\(`toolTimeouts` in its definition sets the limit\)"),
        ("all", {}, r"\(`maxTimeout` in its definition sets the limit\)"),
        ("tool", {"timeout": 0.2}, r"\(the caller set the limit\)"),
    )
    for server, more, words in tries:
        with pytest.raises(Refused, match=words) as refused:
            client.call(server, "drop", {}, **more)
        assert refused.value.code == "timeout"
    attached = daemon.client()
    attached.request("mcpd/attach", server="tool")
    with pytest.raises(Refused, match="toolTimeouts"):
        attached.request("tools/call", name="drop", arguments={})


class _Unauthorized(BaseHTTPRequestHandler):
    def do_POST(self) -> None:
        self.rfile.read(int(self.headers.get("Content-Length", 0)))
        self.send_error(401)

    do_GET = do_POST

    def log_message(self, *_: object) -> None:
        """Log nothing."""


@contextmanager
def refusing() -> Iterator[int]:
    """Run a server that refuses every request, and return its port."""
    with ThreadingHTTPServer(("127.0.0.1", 0), _Unauthorized) as server:
        thread = threading.Thread(target=server.serve_forever, daemon=True)
        thread.start()
        try:
            yield server.server_address[1]
        finally:
            server.shutdown()
            thread.join(BOUND)


def test_call_to_a_server_that_requires_login_exits_with_4(start: Start) -> None:
    """Exit code 4, as for `mcpctl status` and `mcpctl wait`. Code 6 would mean that waiting may help."""
    with refusing() as port:
        daemon = start({"locked": {"url": f"http://127.0.0.1:{port}/mcp"}})
        daemon.wait_status("locked", lambda status: status["status"] == "needs-auth")
        with pytest.raises(Refused) as refused:
            daemon.client().call("locked", "echo")
    assert (refused.value.code, refused.value.body["data"]["exit"]) == ("not_ready", 4)

"""Debugging a server: each way to enable it logs the messages, without secrets."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest

from tests.e2e.conftest import Start
from tests.e2e.harness import Daemon, fake
from tests.interop import peers

SECRET = "hunter2-hunter2"


def logged(daemon: Daemon) -> list[str]:
    """Return the messages in the daemon's log after it has ended, so that none is missing."""
    daemon.stop()
    return [json.loads(line)["message"] for line in daemon.log.splitlines() if line.startswith("{")]


@pytest.mark.parametrize(
    ("definition", "flags", "options"),
    [
        pytest.param({"debug": True}, (), {}, id="server definition"),
        pytest.param({}, (), {"settings": {"debug": True}}, id="settings"),
        pytest.param({}, ("--debug",), {}, id="flag"),
        pytest.param({}, (), {"environ": {"MCPD_DEBUG": "1"}}, id="environment"),
        pytest.param({}, (), {"environ": {"MCPD_DEBUG": "true"}}, id="true in the environment"),
    ],
)
def test_each_way_to_enable_debugging_logs_the_messages(
    start: Start, definition: dict[str, Any], flags: tuple[str, ...], options: dict[str, Any]
) -> None:
    """Shows messages in both directions; responses have their method and duration."""
    daemon = start({"one": fake(**definition)}, *flags, **options)
    daemon.wait_connected("one")
    daemon.client().call("one", "echo", {"text": "marked"})
    lines = logged(daemon)
    assert any(re.match(r'one → .*"tools/call".*marked', line) for line in lines)
    assert any(re.match(r"one ← tools/call \(\d+\.\d ms\) .*marked", line) for line in lines)


def test_debugging_begins_and_ends_while_the_server_runs(start: Start) -> None:
    """A change of `debug` keeps the process, because the user wants to see its current behavior."""
    daemon = start({"one": fake()}, settings={"watch": False})
    daemon.wait_connected("one")
    before = daemon.status("one")["pid"]
    with daemon.client() as client:
        for text, on in (("before", True), ("meanwhile", False), ("after", False)):
            client.call("one", "echo", {"text": text})
            content = {"mcpServers": {"one": fake(debug=on)}, "settings": {"watch": False}}
            daemon.config.write_text(json.dumps(content))
            client.request("mcpd/reload")
    assert daemon.status("one")["pid"] == before
    text = "\n".join(logged(daemon))
    assert "meanwhile" in text
    assert "before" not in text
    assert "after" not in text


def test_headers_of_both_sides_are_logged_without_secrets(start: Start, tmp_path: Path) -> None:
    """HTTP headers are shown, since they explain most of what a proxy or server does."""
    with peers.bundled() as port:
        definition = {
            "url": f"http://127.0.0.1:{port}/mcp?token={SECRET}",
            "headers": {"Authorization": f"Bearer {SECRET}", "X-Team": "blue"},
            "type": "http",
            "era": "legacy",
            "debug": True,
        }
        daemon = start({"far": definition})
        daemon.wait_connected("far")
        daemon.client().call("far", "echo", {"text": f"my {SECRET}"})
        lines = logged(daemon)
    shown = [line for line in lines if line.startswith("far: POST http://")]
    assert shown
    assert all(re.search(r": HTTP 20[02] \(\d+\.\d ms\); sent: ", line) for line in shown)
    asked = shown[-1].lower()
    assert "authorization: bearer ***" in asked
    assert "x-team: blue" in asked
    assert "content-type: application/json" in asked.partition("received: ")[2]
    session = re.search(r"session-id: (\S+?)…", asked)
    assert session
    assert len(session[1]) == 8
    assert SECRET not in (tmp_path / "daemon.log").read_text()

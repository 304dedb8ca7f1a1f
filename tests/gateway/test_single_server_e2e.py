"""One server through the daemon, unrenamed, with the real daemon: filters, timeouts, tasks."""

from __future__ import annotations

import json
from typing import Any

import pytest

from tests.e2e.conftest import start
from tests.e2e.harness import Client, Daemon, Json, Refused, fake
from tests.gateway.mcp_client import McpClient
from tests.stopwatch import stopwatch, within

__all__ = ["start"]

LEGACY = ("2025-11-25", "2025-06-18", "2025-03-26", "2024-11-05")
MODERN = "2026-07-28"
P = "io.modelcontextprotocol/"
META = {
    f"{P}protocolVersion": MODERN,
    f"{P}clientCapabilities": {},
    f"{P}clientInfo": {"name": "t", "version": "1"},
}
Start = Any


def attached(daemon: Daemon, server: str = "fake") -> Client:
    client = daemon.client()
    client.request("mcpd/attach", server=server)
    return client


def refusal(client: Client, method: str, **params: Any) -> Json:
    with pytest.raises(Refused) as refused:
        client.request(method, **params)
    return refused.value.body


FILTERS: list[tuple[Json, set[str], set[str]]] = [
    ({"includeTools": ["echo", "p*d"]}, {"echo", "pid"}, {"env", "fail"}),
    ({"includeTools": ["e*"], "excludeTools": ["env"]}, {"echo", "error"}, {"env", "pid"}),
    ({"includeTools": []}, set(), {"echo"}),
]


@pytest.mark.parametrize("flags", [(), ("--refuse", "tools/list=-32000")], ids=["listed", "unlisted"])
def test_excluded_tools_are_neither_listed_nor_callable(start: Start, flags: tuple[str, ...]) -> None:
    """Even if no tool is left, or the list could not be fetched."""
    servers = {f"f{n}": fake("--era", "legacy", *flags, **each[0]) for n, each in enumerate(FILTERS)}
    daemon = start(servers)
    daemon.wait_connected(*servers)
    for server, (_, in_, out) in zip(servers, FILTERS, strict=True):
        client, calling = attached(daemon, server), daemon.client()
        listed = {tool["name"] for tool in client.request("tools/list")["tools"]}
        if not flags:
            assert in_ <= listed
            assert listed.isdisjoint(out)
        assert client.request("tools/list", _meta=META)["resultType"] == "complete"
        for name in out:
            assert refusal(client, "tools/call", name=name)["data"]["code"] == "unknown_tool"
            with pytest.raises(Refused, match="exclud"):
                calling.call(server, name)
        spelled = json.dumps({"jsonrpc": "2.0", "id": "e", "method": "tools/call", "params": {"name": "?"}})
        client.send_raw(spelled.replace("?", "".join(f"\\u{ord(c):04x}" for c in min(out))).encode())
        assert json.loads(client.read_line())["error"]["data"]["code"] == "unknown_tool"
        for name in in_ - {"drop", "error"}:
            assert client.request("tools/call", name=name)["content"]


def test_timeouts_follow_the_definition_and_progress_extends_them(start: Start) -> None:
    """`timeout` (ms of silence), `toolTimeouts` for single tools; a timeout in the call wins."""
    daemon = start({"fake": fake(timeout=400, toolTimeouts={"late": 60_000, "echo": 60_000})})
    daemon.wait_connected("fake")
    client = attached(daemon)
    control = daemon.client()
    control.call("fake", "echo")

    assert refusal(client, "tools/call", name="drop")["data"]["code"] == "timeout"
    assert client.request("tools/call", name="late", arguments={"seconds": 0.8})["content"]
    assert any(
        in_steps(client, total=1, every=0.1) for _ in range(10)
    )  # on a busy machine a step may take 0.4 s
    with stopwatch() as watch, pytest.raises(Refused, match=r"took 0\.2 s"):
        control.call("fake", "late", {"seconds": 5}, timeout=0.2)
    assert within(watch.seconds, 0.7)


def in_steps(client: Client, **arguments: float) -> bool:
    """Whether a call that reports progress all the while was given the time it takes."""
    try:
        return bool(client.request("tools/call", name="progress", arguments=arguments)["content"])
    except Refused:
        return False


def test_tasks_pass_through_between_equal_revisions(start: Start) -> None:
    """And the capability is declared."""
    daemon = start(
        {"fake": fake("--era", "legacy", "--versions", LEGACY[0], "--capabilities", "tools,tasks")}
    )
    daemon.wait_connected("fake")
    client = McpClient(daemon, LEGACY[0], server="fake")
    assert "tasks" in client.hello["capabilities"]
    created = client.wait(client.line.send("tools/call", name="job", arguments={}, task={"ttl": 10000}))
    received = client.line.request("tasks/get", taskId=created["task"]["taskId"])
    assert received["status"] in ("working", "completed")
    older = McpClient(daemon, LEGACY[1], server="fake")
    assert "tasks" not in older.hello["capabilities"]

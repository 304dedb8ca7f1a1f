"""One server through the daemon, unrenamed, with the real daemon: filters, timeouts, tasks."""

from __future__ import annotations

import json
from typing import Any

import pytest

from tests.e2e.conftest import start
from tests.e2e.harness import Client, Daemon, Json, Refused, fake

__all__ = ["start"]

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

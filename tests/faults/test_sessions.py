"""MCP clients that disconnect, do not read, or cannot answer requests: for one server and for all."""

from __future__ import annotations

import json
from typing import Any

from tests.e2e.conftest import start
from tests.e2e.harness import Daemon, Json, fake
from tests.faults.bystander import undisturbed
from tests.gateway.mcp_client import MODERN, McpClient
from tests.stopwatch import stopwatch, within

__all__ = ["start"]

Start = Any


def test_server_request_without_capable_client_fails_immediately(start: Start) -> None:
    """Server-initiated requests never hang: without clients, with incapable ones, and with many."""
    daemon: Daemon = start({"busy": fake("--era", "legacy"), "calm": fake()})
    daemon.wait_connected("busy", "calm")
    shell = daemon.client()
    form: Json = {"message": "?", "requestedSchema": {"type": "object", "properties": {}}}
    asked: list[tuple[Json, Json | None]] = [
        ({"method": "elicitation/create", "params": form}, {"action": "decline"}),
        ({"method": "sampling/createMessage", "params": {"messages": [], "maxTokens": 1}}, None),
        ({"method": "roots/list"}, {"roots": []}),
        ({"method": "no/such"}, None),
    ]
    with undisturbed(daemon, "calm"):
        for many in (0, 1, 8):
            clients = [McpClient(daemon, MODERN, server="busy", capabilities={}) for _ in range(many)]
            for question, expected in asked:
                callers = [client.send("tools/call", name="ask", arguments=question) for client in clients]
                with stopwatch() as watch:
                    received = json.loads(shell.call("busy", "ask", question)["output"])
                    assert within(watch.seconds, 0.1 + 0.1 * many)
                answers = [received]
                for client, key in zip(clients, callers, strict=True):
                    answers.append(json.loads(client.wait(key)["content"][0]["text"]))
                for answer in answers:
                    assert ("error" in answer) if expected is None else answer["result"] == expected
            for client in clients:
                client.line.close()

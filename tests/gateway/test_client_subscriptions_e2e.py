"""Notifications of servers reach the clients that want them, and no others."""

from __future__ import annotations

import json
from typing import Any

import pytest

from tests.e2e.conftest import start
from tests.e2e.harness import Daemon, Json, fake, wait_until
from tests.gateway.mcp_client import MODERN, McpClient

__all__ = ["start"]

Start = Any
NEW = "2025-11-25"
EVERYTHING = ("--capabilities", "tools,resources,prompts,logging,completions", "--subscribable")


def seen(daemon: Daemon, server: str = "fake") -> Json:
    counts: Json = json.loads(daemon.client().call(server, "counts")["output"])["seen"]
    return counts


def update(daemon: Daemon, uri: str = "fake://one", server: str = "fake") -> None:
    """Have the server say that a resource has changed."""
    received = {"method": "notifications/resources/updated", "params": {"uri": uri}}
    daemon.client().call(server, "notify", received)


def follow(client: McpClient, uri: str = "fake://one") -> int:
    """By whatever means the client's revision has; the id of the subscription, if it has one."""
    if not client.modern:
        client.request("resources/subscribe", uri=uri)
        return 0
    key = client.send("subscriptions/listen", notifications={"resourceSubscriptions": [uri]})
    received = client.wait_heard("notifications/subscriptions/acknowledged")
    assert received["params"]["notifications"] == {"resourceSubscriptions": [uri]}
    return key


@pytest.mark.parametrize("version", [MODERN, NEW, "2024-11-05"])
def test_resource_is_subscribed_once_for_all_clients(start: Start, version: str) -> None:
    """And unsubscribed when the last client unsubscribes."""
    daemon = start({"fake": fake("--era", "legacy", *EVERYTHING)})
    daemon.wait_connected("fake")
    one, two, deaf = (McpClient(daemon, version, server="fake") for _ in range(3))
    follow(one)
    follow(two)
    wait_until(lambda: seen(daemon).get("resources/subscribe") == 1, lambda: str(seen(daemon)))
    update(daemon)
    for client in (one, two):
        assert client.wait_heard("notifications/resources/updated")["params"]["uri"] == "fake://one"
    one.line.close()
    two.line.close()
    wait_until(lambda: seen(daemon).get("resources/unsubscribe") == 1, lambda: str(seen(daemon)))
    deaf.call("echo")
    assert deaf.heard == []


def test_undeclared_subscriptions_work(start: Start) -> None:
    """As with every server on the Python SDK 1.x, which declares `subscribe: false` and answers it."""
    capabilities = ("--capabilities", "tools,resources", "--subscribable", "--deny-subscribable")
    daemon = start({"fake": fake("--era", "legacy", *capabilities)})
    daemon.wait_connected("fake")
    client = McpClient(daemon, MODERN, server="fake")
    follow(client)
    update(daemon)
    assert client.wait_heard("notifications/resources/updated")["params"]["uri"] == "fake://one"


def test_listen_streams_are_notified_under_their_own_ids(start: Start) -> None:
    """After one ends, the other continues."""
    daemon = start({"fake": fake("--era", "legacy", *EVERYTHING)})
    daemon.wait_connected("fake")
    client = McpClient(daemon, MODERN, server="fake")
    first, second = follow(client), follow(client)
    wait_until(lambda: seen(daemon).get("resources/subscribe") == 1, lambda: str(seen(daemon)))
    update(daemon)
    name = "io.modelcontextprotocol/subscriptionId"
    received = {
        client.wait_heard("notifications/resources/updated")["params"]["_meta"][name] for _ in range(2)
    }
    assert received == {first, second}
    client.line.notify("notifications/cancelled", requestId=first)
    client.call("echo")
    update(daemon)
    assert client.wait_heard("notifications/resources/updated")["params"]["_meta"][name] == second


def test_reconnected_server_is_subscribed_again(start: Start) -> None:
    """Changes that may have been missed are reported."""
    daemon = start({"fake": fake("--era", "legacy", *EVERYTHING, restart={"base": 0.05})})
    daemon.wait_connected("fake")
    client = McpClient(daemon, NEW, server="fake")
    follow(client)
    daemon.client().request("mcpd/reconnect", server="fake")
    client.wait_heard("notifications/resources/updated")
    wait_until(lambda: seen(daemon).get("resources/subscribe") == 1, lambda: str(seen(daemon)))
    update(daemon)
    client.wait_heard("notifications/resources/updated")

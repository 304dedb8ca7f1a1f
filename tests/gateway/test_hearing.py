"""What servers say beside their answers reaches the clients that want it, and no others."""

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
ONE = {"uri": "fake://one"}


def seen(daemon: Daemon, server: str = "fake") -> Json:
    counts: Json = json.loads(daemon.client().call(server, "counts")["output"])["seen"]
    return counts


def update(daemon: Daemon, uri: str = "fake://one", server: str = "fake") -> None:
    """Have the server say that a resource has changed."""
    told = {"method": "notifications/resources/updated", "params": {"uri": uri}}
    daemon.client().call(server, "notify", told)


def follow(client: McpClient, uri: str = "fake://one") -> int:
    """By whatever means the client's revision has; the id of the subscription, if it has one."""
    if not client.modern:
        client.request("resources/subscribe", uri=uri)
        return 0
    key = client.send("subscriptions/listen", notifications={"resourceSubscriptions": [uri]})
    told = client.wait_heard("notifications/subscriptions/acknowledged")
    assert told["params"]["notifications"] == {"resourceSubscriptions": [uri]}
    return key


@pytest.mark.parametrize("version", [MODERN, NEW, "2024-11-05"])
def test_a_resource_is_followed_once_for_all_who_follow_it(start: Start, version: str) -> None:
    """Digest 4.2: counted; the server is told to forget it when nobody follows it any more."""
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


def test_each_subscription_of_a_modern_client_is_told_by_its_id(start: Start) -> None:
    """And one that ends is told no more; the other goes on."""
    daemon = start({"fake": fake("--era", "legacy", *EVERYTHING)})
    daemon.wait_connected("fake")
    client = McpClient(daemon, MODERN, server="fake")
    first, second = follow(client), follow(client)
    wait_until(lambda: seen(daemon).get("resources/subscribe") == 1, lambda: str(seen(daemon)))
    update(daemon)
    name = "io.modelcontextprotocol/subscriptionId"
    told = {client.wait_heard("notifications/resources/updated")["params"]["_meta"][name] for _ in range(2)}
    assert told == {first, second}
    client.line.notify("notifications/cancelled", requestId=first)
    client.call("echo")
    update(daemon)
    assert client.wait_heard("notifications/resources/updated")["params"]["_meta"][name] == second


def test_a_part_of_what_is_followed_is_told_by_its_own_name(start: Start) -> None:
    """The server may name a part of it (2026-07-28, resources/updated); in an aggregate under the alias."""
    daemon = start({"one": fake("--era", "legacy", *EVERYTHING), "two": fake("--era", "legacy", *EVERYTHING)})
    daemon.wait_connected("one", "two")
    client = McpClient(daemon, NEW)
    follow(client, "mcpd://two/fake://one")
    wait_until(lambda: seen(daemon, "two").get("resources/subscribe") == 1, lambda: str(seen(daemon, "two")))
    update(daemon, "fake://one", "one")
    update(daemon, "fake://one/part", "two")
    told = client.wait_heard("notifications/resources/updated")
    assert told["params"]["uri"] == "mcpd://two/fake://one/part"


def test_log_messages_reach_the_client_in_whose_call_they_come(start: Start) -> None:
    """Digest 4.2: from the level on that it wants; nobody else gets them."""
    daemon = start({"fake": fake("--era", "legacy", *EVERYTHING)})
    daemon.wait_connected("fake")
    legacy, modern = McpClient(daemon, NEW, server="fake"), McpClient(daemon, MODERN, server="fake")
    legacy.request("logging/setLevel", level="warning")
    wait_until(lambda: seen(daemon).get("logging/setLevel") == 1, lambda: str(seen(daemon)))

    def message(level: str) -> Json:
        return {"method": "notifications/message", "params": {"level": level, "data": level}}

    for level in ("info", "error"):
        legacy.call("notify", message(level))
    told = [each["params"]["level"] for each in legacy.heard if each["method"] == "notifications/message"]
    assert told == ["error"]
    modern.call("notify", message("error"))
    assert modern.heard == []
    wished: Json = {"_meta": {"io.modelcontextprotocol/logLevel": "info"}}
    modern.request("tools/call", name="notify", arguments=message("info"), **wished)
    assert modern.wait_heard("notifications/message")["params"]["data"] == "info"
    assert [each for each in legacy.heard if each["method"] == "notifications/message"][1:] == []


def test_the_daemon_s_end_ends_subscriptions_in_order(start: Start) -> None:
    """2026-07-28, subscriptions: the result says that it was no accident."""
    daemon = start({"fake": fake()})
    daemon.wait_connected("fake")
    client = McpClient(daemon, MODERN)
    key = client.send("subscriptions/listen", notifications={"toolsListChanged": True})
    client.wait_heard("notifications/subscriptions/acknowledged")
    daemon.process.terminate()
    assert client.wait(key)["resultType"] == "complete"


def test_a_server_that_comes_back_is_told_again_what_is_followed(start: Start) -> None:
    """A wish outlives a connection; what may have been missed is told."""
    daemon = start({"fake": fake("--era", "legacy", *EVERYTHING, restart={"base": 0.05, "floor": 0.01})})
    daemon.wait_connected("fake")
    client = McpClient(daemon, NEW, server="fake")
    follow(client)
    daemon.client().request("mcpd/reconnect", server="fake")
    client.wait_heard("notifications/resources/updated")
    wait_until(lambda: seen(daemon).get("resources/subscribe") == 1, lambda: str(seen(daemon)))
    update(daemon)
    client.wait_heard("notifications/resources/updated")


def test_a_log_message_that_nobody_can_read_is_nobodys_error(start: Start) -> None:
    """Everything from a server is untrusted: no traceback in the daemon's log, however many it sends."""
    daemon = start({"fake": fake("--era", "legacy", *EVERYTHING)})
    daemon.wait_connected("fake")
    client = McpClient(daemon, NEW, server="fake")
    unreadable: tuple[Any, ...] = (None, [], "text")
    for params in unreadable:
        client.call("notify", {"method": "notifications/message", "params": params, "count": 3})
    assert client.call("echo") == "{}"
    assert "an error in mcpd itself" not in daemon.log

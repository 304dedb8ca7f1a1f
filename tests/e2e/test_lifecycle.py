"""Connect, disconnect, reconnect, lazy servers; lists, resources, prompts; events and logs."""

from __future__ import annotations

import sys

import pytest

from tests.e2e.conftest import Start
from tests.e2e.harness import BOUND, Refused, fake
from tests.example_server import TEST_SERVER

BUNDLED = {"command": "python", "args": [TEST_SERVER]}


def test_a_disconnected_server_waits_for_connect(start: Start) -> None:
    """A disabled server's process has ended, and only enabling starts it again."""
    daemon = start({"fake": fake()})
    daemon.wait_connected("fake")
    client = daemon.client()
    stopped = client.request("mcpd/disconnect", server="fake", wait=BOUND)["server"]

    assert (stopped["status"], stopped["pid"]) == ("disabled", None)
    assert "disconnected" in stopped["reason"]
    with pytest.raises(Refused, match="connect"):
        client.call("fake", "echo")

    back = client.request("mcpd/connect", server="fake", wait=BOUND)["server"]
    assert back["status"] == "connected"
    again = client.request("mcpd/connect", server="fake", wait=BOUND)["server"]
    assert again["pid"] == back["pid"], "connect is idempotent"


def test_a_lazy_server_starts_on_first_use_and_is_remembered(start: Start) -> None:
    """A lazy server is idle, listed from the cache, and started by a call."""
    daemon = start({"lazy": fake(lazy=True)})
    client = daemon.client()
    daemon.wait_status("lazy", lambda status: status["status"] == "idle")
    assert client.request("mcpd/tools")["tools"] == [], "never started: nothing is known yet"

    assert client.call("lazy", "echo")["success"]
    assert daemon.status("lazy")["status"] == "connected"
    daemon.stop()

    again = start({"lazy": fake(lazy=True)})
    tools = again.client().request("mcpd/tools")["tools"]
    assert "echo@lazy" in [tool["qualified_name"] for tool in tools]
    status = again.wait_status("lazy", lambda status: status["status"] != "pending")
    assert (status["status"], status["pid"]) == ("idle", None), "a list does not start it"


def test_resources_prompts_and_completions_are_reached(start: Start) -> None:
    """Everything that a server offers is available through the control API."""
    daemon = start({"test": {**BUNDLED, "command": sys.executable}})
    daemon.wait_connected("test")
    client = daemon.client()
    resources = client.request("mcpd/resources", server="test")
    prompts = client.request("mcpd/prompts", server="test")["prompts"]

    assert len(resources["resources"]) == 2
    assert len(resources["resource_templates"]) == 1
    uri = resources["resources"][0]["uri"]
    assert client.request("mcpd/read", server="test", uri=uri)["contents"][0]["uri"] == uri

    prompt = prompts[0]
    argument = prompt["arguments"][0]["name"]
    values = client.request(
        "mcpd/complete",
        server="test",
        ref={"type": "ref/prompt", "name": prompt["name"]},
        argument={"name": argument, "value": ""},
    )["completion"]["values"]
    filled = client.request(
        "mcpd/prompt", server="test", prompt=prompt["name"], arguments={argument: values[0]}
    )
    assert values[0] in str(filled["messages"])


def test_a_server_without_a_capability_is_not_asked_for_it(start: Start) -> None:
    """Only declared capabilities are used."""
    daemon = start({"fake": fake("--capabilities", "tools")})
    daemon.wait_connected("fake")
    with pytest.raises(Refused) as refused:
        daemon.client().request("mcpd/read", server="fake", uri="file:///x")

    assert refused.value.code == "unsupported"
    assert daemon.client().call("fake", "counts")["success"]


def test_events_begin_with_a_snapshot_and_end_with_their_request(start: Start) -> None:
    """The stream is an ordinary request: cancelling it ends it."""
    daemon = start({"a": fake(), "b": fake()})
    daemon.wait_connected("a", "b")
    client = daemon.client()
    key = client.send("mcpd/events")
    first = [client.next_notification()["params"]["event"] for _ in range(2)]
    assert [(event["kind"], event["server"]) for event in first] == [("snapshot", "a"), ("snapshot", "b")]

    client.notify("notifications/cancelled", requestId=key)
    client.request("mcpd/version")  # requests are handled in order, so the cancellation has been read
    daemon.client().request("mcpd/disconnect", server="a", wait=BOUND)
    assert client.request("mcpd/version")["api"] == 1
    assert client.notifications == [], "nothing came after the cancellation"


def test_the_log_of_a_server_outlives_the_server_and_the_daemon(start: Start) -> None:
    """The log is bounded, kept per server, and can be followed."""
    daemon = start({"fake": fake()})
    daemon.wait_connected("fake")
    client = daemon.client()
    assert client.request("mcpd/logs", server="fake", lines=0, follow=True) == {"lines": []}
    daemon.client().call("fake", "stderr", {"text": "first words"})
    assert "first words" in client.next_notification()["params"]["line"]
    daemon.stop()

    again = start({"fake": fake()})
    lines = again.client().request("mcpd/logs", server="fake")["lines"]
    assert any("first words" in line for line in lines)


@pytest.mark.parametrize(
    ("style", "name"), [("suffix", "echo@fake"), ("prefix", "mcp_fake_echo"), ("namespace", "fake::echo")]
)
def test_tools_are_named_in_the_style_that_the_settings_say(start: Start, style: str, name: str) -> None:
    """Tools have qualified names, and mcpctl accepts each of them."""
    daemon = start({"fake": fake()}, settings={"toolNames": style})
    daemon.wait_connected("fake")
    tools = daemon.client().request("mcpd/tools")["tools"]
    assert name in [tool["qualified_name"] for tool in tools]

    ran = daemon.mcpctl("call", name, "text=hi")
    assert (ran.returncode, ran.stdout.strip()) == (0, '{"text": "hi"}')

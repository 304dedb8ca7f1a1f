"""Servers ask and clients answer: every pair of eras, with the real daemon and real processes."""

from __future__ import annotations

import itertools
import json
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest

from tests.e2e.conftest import start
from tests.e2e.harness import Json, Refused, fake
from tests.gateway.mcp_client import LEGACY, MODERN, McpClient

__all__ = ["start"]

Start = Any
FORM: Json = {
    "message": "Your name?",
    "requestedSchema": {"type": "object", "properties": {"name": {"type": "string"}}},
}
SAMPLE: Json = {
    "messages": [{"role": "user", "content": {"type": "text", "text": "hi"}}],
    "maxTokens": 10,
}


def answer(method: str, params: Json) -> Json:
    if method == "elicitation/create":
        return {"action": "accept", "content": {"name": "Ada"}}
    if method == "sampling/createMessage":
        return {"role": "assistant", "content": {"type": "text", "text": "hello"}, "model": "m"}
    return {"roots": [{"uri": "file:///home/ada"}]}


PAIRS = [*itertools.product((MODERN, "2025-11-25", "2025-06-18"), ("modern", "legacy"))]


@pytest.mark.parametrize(("version", "era"), PAIRS)
def test_elicitation_reaches_the_client_and_its_answer_the_server(
    start: Start, version: str, era: str
) -> None:
    """Suspended, asked in rounds or passed on, depending on both revisions."""
    daemon = start({"fake": fake("--era", era)})
    client = McpClient(daemon, version, server="fake", answer=answer)
    received = json.loads(client.call("ask", {"method": "elicitation/create", "params": FORM}))
    assert received["result"] == {"action": "accept", "content": {"name": "Ada"}}
    method, params = next(asked for asked in client.asked if asked[0] != "roots/list")
    assert method == "elicitation/create"
    assert params["message"] == "Your name?"
    assert params["requestedSchema"] == FORM["requestedSchema"]


@pytest.mark.parametrize(
    ("version", "era"), [(v, e) for v in (MODERN, *LEGACY) for e in ("modern", "legacy")]
)
def test_sampling_reaches_clients_of_every_revision(start: Start, version: str, era: str) -> None:
    daemon = start({"fake": fake("--era", era)})
    client = McpClient(daemon, version, server="fake", answer=answer)
    received = json.loads(client.call("ask", {"method": "sampling/createMessage", "params": SAMPLE}))
    assert received["result"]["model"] == "m"


def test_client_without_the_capability_is_not_asked(start: Start) -> None:
    """Elicitation is declined and sampling refused immediately; the call continues."""
    daemon = start({"fake": fake("--era", "legacy")})
    for version in (MODERN, "2025-11-25", "2025-03-26"):
        client = McpClient(daemon, version, server="fake", capabilities={})
        declined = json.loads(client.call("ask", {"method": "elicitation/create", "params": FORM}))
        assert declined["result"] == {"action": "decline"}
        refused = json.loads(client.call("ask", {"method": "sampling/createMessage", "params": SAMPLE}))
        assert refused["error"]["code"] == -1
        assert client.asked == []


def test_request_state_is_valid_once_and_only_for_its_request(start: Start) -> None:
    """Nothing is executed for a state that was used, altered, or belongs to another request."""
    daemon = start({"legacy": fake("--era", "legacy"), "modern": fake("--era", "modern")})
    for server in ("legacy", "modern"):
        client = McpClient(daemon, MODERN, server=server, answer=answer)
        asked = {"name": "ask", "arguments": {"method": "elicitation/create", "params": FORM}}
        first = client.wait(client.send("tools/call", **asked))
        state = first["requestState"]
        (key,) = first["inputRequests"]
        again = {"inputResponses": {key: answer("elicitation/create", {})}}
        for bad in (
            state[:-1] + ("y" if state.endswith("x") else "x")
            if server == "legacy"
            else state.replace(".", ".0", 2),
            "nonsense",
            "p.x",
        ):
            with pytest.raises(Refused) as refused:
                client.wait(client.send("tools/call", **asked, **again, requestState=bad))
            assert refused.value.body["code"] == -32602, bad
        if server == "legacy":
            other = {"name": "ask", "arguments": {"method": "elicitation/create", "params": {}}}
            with pytest.raises(Refused):
                client.wait(client.send("tools/call", **other, **again, requestState=state))
        done = client.wait(client.send("tools/call", **asked, **again, requestState=state))
        assert json.loads(done["content"][0]["text"])["result"]["action"] == "accept"
        if server == "legacy":
            with pytest.raises(Refused):
                client.wait(client.send("tools/call", **asked, **again, requestState=state))


def test_client_may_resume_a_call_over_another_connection(start: Start) -> None:
    """The modern revision has no sessions: suspended calls belong to the daemon."""
    daemon = start({"fake": fake("--era", "legacy")})
    first = McpClient(daemon, MODERN, server="fake")
    asked = {"name": "ask", "arguments": {"method": "elicitation/create", "params": FORM}}
    needed = first.wait(first.send("tools/call", **asked))
    first.line.close()
    second = McpClient(daemon, MODERN, server="fake")
    (key,) = needed["inputRequests"]
    responses = {key: {"action": "decline"}}
    done = second.wait(
        second.send("tools/call", **asked, inputResponses=responses, requestState=needed["requestState"])
    )
    assert json.loads(done["content"][0]["text"])["result"] == {"action": "decline"}


def test_shared_server_gets_the_roots_of_the_calling_client(start: Start) -> None:

    def rooted(uri: str) -> Any:
        return lambda method, params: {"roots": [{"uri": uri}]}

    daemon = start({"fake": fake("--era", "legacy")})
    one = McpClient(daemon, "2025-11-25", server="fake", answer=rooted("file:///one"))
    two = McpClient(daemon, "2025-06-18", server="fake", answer=rooted("file:///two"))
    for client in (one, two):
        client.call("echo")  # its answer about roots comes before this one's, on the same line
    one.call("ask", {"method": "roots/list"})  # taken for the request that follows a change of the roots
    for client, uri in ((one, "file:///one"), (two, "file:///two")):
        roots = json.loads(client.call("ask", {"method": "roots/list"}))["result"]["roots"]
        assert roots == [{"uri": uri}]


def test_concurrent_elicitations_reach_the_right_clients(start: Start) -> None:
    """With eight clients on one legacy process, which cannot say whom it asks, nothing is misrouted."""
    daemon = start({"fake": fake("--era", "legacy")})
    daemon.wait_connected("fake")
    versions = (MODERN, "2025-11-25", "2025-06-18")

    def use(number: int) -> list[str]:
        """Three calls at once, each asking; what the server was told by its clients."""
        mine = {"action": "accept", "content": {"name": f"client {number}"}}
        client = McpClient(
            daemon,
            versions[number % 3],
            server="fake",
            answer=lambda method, params: mine,
            capabilities={"elicitation": {}},
        )
        asked = {"name": "ask", "arguments": {"method": "elicitation/create", "params": FORM}}
        results = client.request_all("tools/call", [asked] * 3)
        return [json.loads(each["content"][0]["text"])["result"]["content"]["name"] for each in results]

    with ThreadPoolExecutor(8) as pool:
        for number, received in enumerate(pool.map(use, range(8))):
            assert received == [f"client {number}"] * 3


def test_malformed_server_request_fails_alone(start: Start) -> None:
    """Servers are untrusted: the call and the connection continue."""
    daemon = start({"fake": fake("--era", "legacy")})
    daemon.wait_connected("fake")
    pid = daemon.status("fake")["pid"]
    client = McpClient(daemon, "2025-06-18", server="fake", answer=answer)
    for odd in (
        {"method": "elicitation/create", "params": []},
        {"method": "elicitation/create", "params": {"message": 5, "requestedSchema": [1]}},
        {"method": "elicitation/create", "params": {"mode": {"a": 1}, "requestedSchema": {"properties": 3}}},
        {"method": "sampling/createMessage", "params": {"messages": {}}},
        {"method": "elicitation/create"},
    ):
        client.check = False  # what is odd stays odd on the way to the client
        client.call("ask", odd)
    assert daemon.status("fake")["pid"] == pid
    assert client.call("echo") == "{}"

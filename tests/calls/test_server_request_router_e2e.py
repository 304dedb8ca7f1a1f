"""Servers ask and clients answer: every pair of eras, with the real daemon and real processes."""

from __future__ import annotations

import json
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest

from tests.e2e.conftest import start
from tests.e2e.harness import Json, fake, in_flight
from tests.gateway.mcp_client import MODERN, McpClient
from tests.processes import wait_until

__all__ = ["start"]

Start = Any
FORM: Json = {
    "message": "Your name?",
    "requestedSchema": {"type": "object", "properties": {"name": {"type": "string"}}},
}


def answer(method: str, params: Json) -> Json:
    if method == "elicitation/create":
        return {"action": "accept", "content": {"name": "Ada"}}
    if method == "sampling/createMessage":
        return {"role": "assistant", "content": {"type": "text", "text": "hello"}, "model": "m"}
    return {"roots": [{"uri": "file:///home/ada"}]}


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


@pytest.mark.parametrize("version", [MODERN, "2025-11-25"])
def test_question_of_a_task_reaches_the_client_of_the_task(start: Start, version: str) -> None:
    """Although the only call in flight is that of another client, and whoever waits for the result."""
    daemon = start({"fake": fake("--era", "legacy", "--capabilities", "tools,tasks")})
    daemon.wait_connected("fake")
    other = McpClient(daemon, "2025-11-25", server="fake", capabilities={"elicitation": {}})
    other.send("tools/call", name="drop", arguments={})
    in_flight(daemon, "fake", 1)
    client = McpClient(daemon, version, server="fake", answer=answer, capabilities={"elicitation": {}})
    job: Json = {"name": "job", "arguments": {"ends": "input_required", "seconds": 0}}
    results = client.request_all("tools/call", [job])
    if version != MODERN:
        client.check = False  # it expects no task
        created = client.wait(client.send("tools/call", **job, task={}))
        results += client.request_all("tasks/result", [{"taskId": created["task"]["taskId"]}])
    for done in results:
        assert json.loads(done["content"][0]["text"])["result"] == answer("elicitation/create", {})


def test_client_does_not_wait_for_the_person_of_another(start: Start) -> None:
    """While somebody answers a question of one process, the others get a process of their own."""
    daemon = start({"fake": fake("--era", "legacy")})
    daemon.wait_connected("fake")
    asked = {"name": "ask", "arguments": {"method": "elicitation/create", "params": FORM}}
    is_answered = threading.Event()

    def slowly(method: str, params: Json) -> Json:
        assert is_answered.wait(60)
        return answer(method, params)

    def client(answer: Callable[[str, Json], Json]) -> McpClient:
        return McpClient(daemon, "2025-11-25", server="fake", answer=answer, capabilities={"elicitation": {}})

    slow = client(slowly)
    with ThreadPoolExecutor(1) as pool:
        first = pool.submit(slow.request, "tools/call", **asked)
        wait_until(lambda: daemon.status("fake")["questions"])
        quick = client(answer)
        quick.request("tools/call", **asked)
        assert not first.done()
        is_answered.set()
        first.result(60)
    names = [each["name"] for each in daemon.client().request("mcpd/status")["servers"]]
    assert names == ["fake", "fake~1"]

"""Calls whose first response is not the result: tasks, and servers that need input from the user."""

from __future__ import annotations

import json
from typing import Any

import pytest

from tests.e2e.conftest import Start
from tests.e2e.harness import Client, Refused, fake, wait_until

ERAS = ("legacy", "modern")


def server(era: str) -> dict[str, Any]:
    return fake("--era", era, "--capabilities", "tools,tasks,resources,prompts")


def counts(client: Client) -> dict[str, int]:
    seen: dict[str, int] = json.loads(client.call("it", "counts")["output"])["seen"]
    return seen


@pytest.mark.parametrize("era", ERAS)
def test_a_tool_that_is_always_a_task_is_called_like_any_other(start: Start, era: str) -> None:
    """The server requires or chooses a task; the caller gets its result or its error."""
    daemon = start({"it": server(era)})
    daemon.wait_connected("it")
    client = daemon.client()
    assert client.call("it", "job")["output"] == "the job is done"
    assert client.call("it", "job", raw=True)["content"][0]["text"] == "the job is done"
    client.call("it", "job", {"words": "half way"}, _meta={"progressToken": "p"})
    received = client.next_notification()
    assert received["params"] == {"progressToken": "p", "progress": 1, "message": "half way"}
    with pytest.raises(Refused, match="the job failed") as refused:
        client.call("it", "job", {"ends": "failed"})
    assert refused.value.code == "upstream_error"
    assert "tasks/cancel" not in counts(client)


@pytest.mark.parametrize("era", ERAS)
def test_a_task_ends_with_the_caller(start: Start, era: str) -> None:
    """A caller that cancels or disconnects leaves no task behind."""
    daemon = start({"it": server(era)})
    daemon.wait_connected("it")
    client = daemon.client()

    def is_polled(times: int) -> None:
        wait_until(lambda: counts(client).get("tasks/get", 0) > times, lambda: "it is not polled")

    key = client.send("mcpd/call", server="it", tool="job", arguments={"seconds": 600})
    is_polled(0)
    client.notify("notifications/cancelled", requestId=key)
    wait_until(lambda: counts(client).get("tasks cancelled") == 1, lambda: "it was not cancelled")

    other = daemon.client()
    other.send("mcpd/call", server="it", tool="job", arguments={"seconds": 600})
    is_polled(counts(client)["tasks/get"])
    other.close()
    wait_until(lambda: counts(client).get("tasks cancelled") == 2, lambda: "it was not cancelled")


def test_unanswerable_server_request_is_an_error_that_names_it(start: Start) -> None:
    """The error is immediate and replaces an empty result, also for a task that asks."""
    daemon = start({"it": server("modern")})
    daemon.wait_connected("it")
    client = daemon.client()
    for raw in (False, True):
        with pytest.raises(Refused, match=r"it: tool 'wants' .*elicitation/create: which\?") as refused:
            client.call("it", "wants", raw=raw)
        assert refused.value.code == "input_required"
        assert refused.value.body["data"]["asked"] == "elicitation/create: which?"
    with pytest.raises(Refused, match=r"how\?") as refused:
        client.call("it", "job", {"ends": "input_required", "seconds": 0})
    assert refused.value.code == "input_required"
    wait_until(lambda: counts(client).get("tasks cancelled") == 1, lambda: "it was not cancelled")


def test_request_of_a_legacy_server_is_refused_immediately(start: Start) -> None:
    """Otherwise the server and the call would wait forever."""
    daemon = start({"it": server("legacy")})
    daemon.wait_connected("it")
    client = daemon.client()
    for method in ("elicitation/create", "sampling/createMessage"):
        answer = json.loads(client.call("it", "ask", {"method": method})["output"])
        assert answer.get("result") == {"action": "decline"} or "error" in answer
    assert json.loads(client.call("it", "ask", {"method": "ping"})["output"])["result"] == {}


@pytest.mark.parametrize("era", ERAS)
def test_tasks_of_a_client_with_task_support_are_passed_through(start: Start, era: str) -> None:
    """mcpd does not resolve tasks of attached clients: the task belongs to the client."""
    daemon = start({"it": server(era)})
    daemon.wait_connected("it")
    client = daemon.client()
    client.request("mcpd/attach", server="it")
    reserved = "io.modelcontextprotocol/"
    extra: dict[str, Any] = {}
    call: dict[str, Any] = {"name": "job", "arguments": {"seconds": 0}}
    if era == "modern":
        declared: dict[str, Any] = {"extensions": {f"{reserved}tasks": {}}}
        extra["_meta"] = {
            f"{reserved}protocolVersion": "2026-07-28",
            f"{reserved}clientCapabilities": declared,
        }
        created = client.request("tools/call", **call, **extra)
        assert created["resultType"] == "task"
        done = client.request("tasks/get", taskId=created["taskId"], **extra)["result"]
    else:
        client.initialize()
        created = client.request("tools/call", **call, task={})["task"]
        assert client.request("tasks/get", taskId=created["taskId"])["status"] == "completed"
        done = client.request("tasks/result", taskId=created["taskId"])
    assert done["content"][0]["text"] == "the job is done"


@pytest.mark.parametrize(("era", "how"), [("modern", "call"), ("legacy", "call"), ("legacy", "session")])
def test_task_of_a_dead_process_may_have_run(start: Start, era: str, how: str) -> None:
    """A new process does not know the task, and mcpd does not repeat the call, so the error says that it may
    have run.
    """
    daemon = start({"it": server(era)})
    daemon.wait_connected("it")
    pid = daemon.status("it")["pid"]
    caller, other = daemon.client(), daemon.client()
    arguments = {"seconds": 600}
    if how == "call":
        key = caller.send("mcpd/call", server="it", tool="job", arguments=arguments)
    else:
        caller.request("mcpd/attach", server="it")
        caller.initialize()
        key = caller.send("tools/call", name="job", arguments=arguments)
    wait_until(lambda: counts(other).get("tasks/get", 0) > 0, lambda: "the task is not polled")
    with pytest.raises(Refused):
        other.call("it", "die")
    with pytest.raises(Refused, match="became a task whose outcome is unknown") as refused:
        caller.answer(key)
    assert refused.value.body["data"]["may_have_run"] is True
    daemon.wait_status("it", lambda status: status["status"] == "connected" and status["pid"] != pid)
    assert counts(other)["tools/call"] == 1  # the failure of the count itself

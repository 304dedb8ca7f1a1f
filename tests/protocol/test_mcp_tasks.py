"""Calls that became tasks: polled until they are done, in both variants, and cancelled when nobody waits."""

from __future__ import annotations

import functools
import json
from collections.abc import Mapping
from typing import Any

import jsonschema  # type: ignore[import-untyped]  # it has no types
import pytest
import trio
from msgspec import Raw
from trio.testing import MockClock

from mcpd.model.errors import (
    CallTimeout,
    InputNeeded,
    LinkLost,
    UpstreamRefused,
)
from mcpd.protocol import mcp_tasks
from mcpd.protocol.negotiate import negotiate
from mcpd.protocol.upstream_session import Hooks, Upstream
from tests.protocol.test_frames import SCHEMAS, complaints
from tests.transports.peer import PATIENCE, Json, Peer, connected

EXTENSION = "io.modelcontextprotocol/tasks"
ERAS = ("legacy", "modern")
DONE = {"content": [{"type": "text", "text": "done"}]}
AT = "2026-01-01T00:00:00Z"
DECLARED: dict[str, Json] = {
    "legacy": {"tasks": {"cancel": {}, "requests": {"tools": {"call": {}}}}},
    "modern": {"tools": {}, "extensions": {EXTENSION: {}}},
}


async def ready(peer: Peer, era: str, capabilities: Json | None = None) -> Upstream:
    declared = DECLARED[era] if capabilities is None else capabilities
    no = {"error": {"code": -32601, "message": "no"}}
    if era == "modern":
        found = {"supportedVersions": ["2026-07-28"], "capabilities": declared}
        peer.script["server/discover"] = {"result": found}
    else:
        agreed = {"protocolVersion": "2025-11-25", "capabilities": declared, "serverInfo": {"name": "p"}}
        peer.script |= {"server/discover": no, "initialize": {"result": agreed}}
    hooks = Hooks(lambda _: None, lambda _: None, capabilities={"sampling": {}})
    return await negotiate(peer.link, hooks, "auto", 5, lambda *_: None)


def task(status: str = "working", **more: Any) -> Json:
    return {"taskId": "t", "status": status, "createdAt": AT, "lastUpdatedAt": AT, **more}


def created(era: str, **more: Any) -> Raw:
    body: Json = {"task": task(**more)} if era == "legacy" else {"resultType": "task", **task(**more)}
    return Raw(json.dumps(body).encode())


def course(peer: Peer, *states: Json) -> list[float]:
    """What `tasks/get` says, one state after the other, the last for ever; and when it was asked."""
    left, asked_at = list(states), []

    def answer(request: Json) -> Json:
        asked_at.append(trio.current_time())
        return {"result": left.pop(0) if len(left) > 1 else left[0]}

    peer.script["tasks/get"] = answer
    peer.script["tasks/result"] = {"result": DONE}
    peer.script["tasks/cancel"] = {"result": task("cancelled")}
    return asked_at


async def _nobody(method: str, params: Raw) -> Any:
    raise InputNeeded(f"peer: tool 'x' requires input ({method})", server="peer", asked=method)


async def seen_through(upstream: Upstream, first: Raw, answer: Any = None, **limits: Any) -> Json:
    asking = answer or _nobody
    result: Json = json.loads(
        bytes(await mcp_tasks.await_task(upstream, first, asking, what="tool 'x'", **limits))
    )
    return result


@functools.cache
def extension() -> Json:
    loaded: Json = json.loads((SCHEMAS / "schema-ext-tasks-draft.json").read_text())
    return loaded


def wrong(era: str, message: Json) -> list[str]:
    """What the schema of the era says against a request of ours."""
    method = message.get("method", "")
    if era == "legacy" or not method.startswith("tasks/"):
        return complaints("2025-11-25" if era == "legacy" else "2026-07-28", message)
    kind = {"tasks/get": "GetTask", "tasks/update": "UpdateTask", "tasks/cancel": "CancelTask"}[method]
    whole = extension()
    validator = jsonschema.Draft202012Validator({**whole, "$ref": f"#/$defs/{kind}Request"})
    return [error.message for error in validator.iter_errors(message)]


def all_valid(peer: Peer, era: str) -> None:
    for message in peer.heard:
        if message.get("method") not in ("server/discover", "initialize"):
            assert wrong(era, message) == [], message


@pytest.mark.parametrize("era", ERAS)
async def test_task_is_polled_at_its_own_interval_until_done(autojump_clock: MockClock, era: str) -> None:
    """The result is the call's own; the interval may change, within bounds."""
    name = "pollInterval" if era == "legacy" else "pollIntervalMs"
    over = task("completed", **({"result": DONE} if era == "modern" else {}))
    async with connected() as peer:
        upstream = await ready(peer, era)
        asked_at = course(peer, {**task(), name: 60_000_000}, {**task(), name: 0}, over)
        began = trio.current_time()
        assert await seen_through(upstream, created(era, **{name: 5000})) == DONE
        pauses = [at - began for at in asked_at]
        assert pauses == pytest.approx(
            [
                5,
                5 + mcp_tasks.MAX_POLL_INTERVAL,
                5 + mcp_tasks.MAX_POLL_INTERVAL + mcp_tasks.MIN_POLL_INTERVAL,
            ],
            abs=0.01,
        )
        all_valid(peer, era)
        upstream.link.notify("notifications/last")
        await peer.hear("notifications/last")
        assert peer.methods.count("tasks/cancel") == 0
        assert peer.methods.count("tasks/result") == (era == "legacy")


@pytest.mark.parametrize("era", ERAS)
@pytest.mark.parametrize("end", ["failed", "cancelled"])
async def test_failed_task_is_an_error_with_the_servers_message(era: str, end: str) -> None:
    """Just like a failed call."""
    refused = {"code": -32050, "message": "out of ink"}
    over = task(end, statusMessage="out of ink", **({"error": refused} if end == "failed" else {}))
    async with connected() as peer:
        upstream = await ready(peer, era)
        course(peer, over)
        if end == "failed":
            peer.script["tasks/result"] = {"error": refused}
        with pytest.raises(UpstreamRefused, match="out of ink") as caught, trio.fail_after(PATIENCE):
            await seen_through(upstream, created(era, pollInterval=1, pollIntervalMs=1))
        assert caught.value.upstream_code == (-32050 if end == "failed" else 0)
        assert peer.methods.count("tasks/cancel") == 0


@pytest.mark.parametrize("era", ERAS)
async def test_task_is_cancelled_when_the_caller_leaves(autojump_clock: MockClock, era: str) -> None:
    """And when it takes longer than a call may."""
    async with connected() as peer:
        upstream = await ready(peer, era)
        course(peer, task())
        with trio.move_on_after(10):
            await seen_through(upstream, created(era))
        received = await peer.hear("tasks/cancel")
        assert received["params"]["taskId"] == "t"
        with pytest.raises(CallTimeout, match="a task for 20 s"):
            await seen_through(upstream, created(era), limit=20)
        await peer.hear("tasks/cancel", 2)
        all_valid(peer, era)


async def test_questions_inside_a_task_are_answered_once(autojump_clock: MockClock) -> None:
    """They are repeated until the server has seen the answer; new ones have new keys."""
    question = {"method": "elicitation/create", "params": {"message": "Which?"}}
    asked: list[str] = []

    async def answer(method: str, params: Raw) -> Mapping[str, object]:
        asked.append(json.loads(bytes(params))["message"])
        return {"action": "accept", "content": {"n": len(asked)}}

    async with connected() as peer:
        upstream = await ready(peer, "modern")
        course(
            peer,
            task("input_required", inputRequests={"a": question}),
            task("input_required", inputRequests={"a": question}),
            task("working"),
            task("input_required", inputRequests={"b": question}),
            task("completed", result=DONE),
        )
        peer.script["tasks/update"] = {"result": {"resultType": "complete"}}
        assert await seen_through(upstream, created("modern"), answer) == DONE
        updates = [m["params"]["inputResponses"] for m in peer.heard if m.get("method") == "tasks/update"]
        assert updates == [
            {"a": {"action": "accept", "content": {"n": 1}}},
            {"b": {"action": "accept", "content": {"n": 2}}},
        ]
        all_valid(peer, "modern")


async def test_legacy_task_asks_while_its_result_is_awaited() -> None:
    """`tasks/result` waits; the server sends requests of its own meanwhile."""
    async with connected() as peer:
        upstream = await ready(peer, "legacy")
        course(peer, task("input_required"))

        async def ask_first(request: Json) -> None:
            await peer.say({"jsonrpc": "2.0", "id": "q", "method": "elicitation/create", "params": {}})
            await peer.hear("")
            await peer.say({"jsonrpc": "2.0", "id": request["id"], "result": DONE})

        async with trio.open_nursery() as nursery:
            peer.script["tasks/result"] = lambda request: nursery.start_soon(ask_first, request)
            with trio.fail_after(PATIENCE):
                assert await seen_through(upstream, created("legacy", pollInterval=1)) == DONE
        upstream.link.notify("notifications/last")
        await peer.hear("notifications/last")
        assert "tasks/cancel" not in peer.methods
        refused = next(message for message in peer.heard if message.get("id") == "q")
        assert refused["error"]["code"] == -32601


async def test_unanswered_polls_are_tolerated_up_to_a_limit(autojump_clock: MockClock) -> None:
    """The task does not depend on polls, but a server that never responds is given up."""
    silent = {"left": mcp_tasks.MAX_FAILED_POLLS - 1}

    def answer(request: Json) -> Json | None:
        silent["left"] -= 1
        return None if silent["left"] >= 0 else {"result": task("completed", result=DONE)}

    async with connected() as peer:
        upstream = await ready(peer, "modern")
        peer.script["tasks/get"] = answer
        assert await seen_through(upstream, created("modern"), timeout=3) == DONE
        silent["left"] = 1000
        with pytest.raises(CallTimeout):
            await seen_through(upstream, created("modern"), timeout=3)
        assert 1000 - silent["left"] == mcp_tasks.MAX_FAILED_POLLS
        await peer.close()
        with pytest.raises(LinkLost):
            await seen_through(upstream, created("modern"), timeout=3)


async def test_task_with_unknown_outcome_may_have_run(autojump_clock: MockClock) -> None:
    """The last poll was never sent, but the call was."""
    async with connected() as peer:
        upstream = await ready(peer, "modern")
        course(peer, task())
        await peer.close()
        await trio.sleep(1)
        with pytest.raises(LinkLost, match="became a task") as lost:
            await seen_through(upstream, created("modern"))
        assert lost.value.may_have_run

"""The timeout of a caller covers what a call waits for before it is sent."""

from __future__ import annotations

import re
from typing import Any

import pytest
import trio
import trio.testing

from tests.calls.test_policies import apply, rule
from tests.gateway.model import Json, Script, World, world

Clock = trio.testing.MockClock


def prepare(w: World, why: str) -> None:
    """Make the next call wait."""
    if why == "server":
        w.lose()
    elif why == "approval":
        apply(w, rule("ask", tools=("t",)))
    elif why == "turn":
        Script(w).call(arguments={"tag": "first"})


async def end_wait(w: World, why: str) -> None:
    if why == "server":
        w.connect()
    elif why == "approval":
        (waiting,) = w.gateway.approvals.list(str)
        await w.gateway.approvals.answer(waiting.id, "session")
    elif why == "turn":
        w.hear()
        w.end(next(each for each in w.work.values() if each.tag == "first"))


def left(w: World) -> object:
    deadlines = w.gateway.calls._send_deadlines
    return deadlines._calls, deadlines._timer


WAITS = {
    "server": "because srv is not connected yet: connecting",
    "approval": r"because nobody has approved it \(mcpctl approvals\)",
    "turn": r"because it waited for other calls, .* \(tool 't' of ",
}


@pytest.mark.parametrize("why", WAITS)
async def test_call_that_waits_fails_at_its_deadline(autojump_clock: Clock, why: str) -> None:
    """The tool has not run, and does not later."""
    async with world(concurrency="serial") as w:
        prepare(w, why)
        script = Script(w)
        key = script.call(arguments={"tag": "late"}, timeout=5)
        longer = Script(w)
        longer.call(arguments={"tag": "longer"}, timeout=7)
        await trio.sleep(4.9)
        assert script.answers == {}
        await trio.sleep(0.2)
        error: Json = script.error(key)
        assert error["data"]["code"] == "timeout"
        assert error["data"]["may_have_run"] is False
        assert re.search(WAITS[why], error["message"])
        assert "the caller set the limit" in error["message"]
        await end_wait(w, why)
        await trio.sleep(1)
        w.hear()
        assert "late" not in [each.tag for each in w.work.values()]
        if why != "approval":
            assert "longer" in [each.tag for each in w.work.values()]
            assert left(w) == ({}, None)


@pytest.mark.parametrize("why", ["", *WAITS])
async def test_deadline_continues_when_the_call_is_sent(autojump_clock: Clock, why: str) -> None:
    """It includes the wait. Progress restarts it, as the documentation of `timeout` says."""
    async with world(concurrency="serial") as w:
        prepare(w, why)
        script = Script(w)
        key = script.call(arguments={"tag": "sent"}, timeout=10)
        await trio.sleep(6)
        await end_wait(w, why)
        await trio.sleep(1)
        w.hear()
        (working,) = (each for each in w.work.values() if each.tag == "sent")
        assert left(w) == ({}, None)
        await trio.sleep(2.9)
        assert script.answers == {}
        await trio.sleep(0.2)
        assert script.error(key)["data"]["may_have_run"] is True
        again = script.call(arguments={"tag": "again"}, timeout=10)
        await trio.sleep(8)
        w.hear()
        working = next(each for each in w.work.values() if each.tag == "again")
        w.progress(working)
        await trio.sleep(8)
        assert again not in script.answers
        w.end(working)
        assert again in script.answers
        assert w.empty() == []


async def test_call_that_ends_while_it_waits_is_forgotten(autojump_clock: Clock) -> None:
    async with world(concurrency="serial") as w:
        w.lose()
        script = Script(w)
        cancelled = script.call(timeout=5)
        other: Any = script.call(timeout=50)
        script.cancel(cancelled)
        await trio.sleep(40)
        assert script.error(other)["data"]["code"] == "not_ready"
        await trio.testing.wait_all_tasks_blocked()
        assert left(w) == ({}, None)

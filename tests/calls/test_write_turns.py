"""Calls of different clients that may write take turns, and nobody waits long."""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Any

import pytest
import trio
import trio.testing

from mcpd.calls.routes import DIRECT, resolve_route
from mcpd.calls.write_turns import DECLARED, UNDECLARED, WAIT_LIMIT
from mcpd.config.settings import Settings
from mcpd.model.server_spec import RemoteSpec
from tests.calls.test_concurrency import at_server, finish
from tests.gateway.model import Json, User, World, make_catalog, make_server, world

Clock = trio.testing.MockClock


def tool(**hints: bool) -> Json:
    return {"name": "converse", "annotations": hints}


@pytest.fixture
async def w() -> AsyncIterator[World]:
    """A server with tools that say that they write, and which can never ask a client that is not meant."""
    async with world(concurrency="auto", version="2026-07-28") as made:
        made.server.catalog = make_catalog(tools=[tool(readOnlyHint=False)])
        yield made


def users(w: World, count: int) -> list[User]:
    return [w.user("legacy" if number % 2 else "modern") for number in range(count)]


async def test_calls_of_different_clients_take_turns(autojump_clock: Clock, w: World) -> None:
    a, b, c = users(w, 3)
    for user in (a, b, c, a):
        user.call()
    assert at_server(w) == [a.tag]
    for user in (a, b, c):
        assert at_server(w) == [user.tag]
        finish(w, user)
    assert at_server(w) == [a.tag]
    finish(w, a)
    assert w.empty() == []


async def test_calls_of_one_client_overlap(autojump_clock: Clock, w: World) -> None:
    """Also those that wait for another client together."""
    a, b = users(w, 2)
    for user in (a, a, b, b):
        user.call()
    assert at_server(w) == [a.tag, a.tag]
    finish(w, a)
    assert at_server(w) == [b.tag, b.tag]


@pytest.mark.parametrize(("hints", "turn"), [({"readOnlyHint": False}, DECLARED), ({}, UNDECLARED)])
async def test_long_call_keeps_others_waiting_for_a_limited_time(
    autojump_clock: Clock, w: World, hints: Json, turn: float
) -> None:
    """And not at all after that."""
    w.server.catalog = make_catalog(tools=[tool(**hints)])
    a, b, c = users(w, 3)
    a.call()
    await trio.sleep(turn / 2)
    b.call()
    await trio.sleep(turn / 2 - 0.01)
    assert at_server(w) == [a.tag]
    await trio.sleep(0.02)
    assert at_server(w) == [a.tag, b.tag]
    await trio.sleep(turn)
    c.call()
    assert at_server(w) == [a.tag, b.tag, c.tag]


async def test_nobody_waits_longer_than_the_limit(autojump_clock: Clock, w: World) -> None:
    """However many clients make calls that take nearly as long as a turn."""
    waiting = users(w, 6)
    for user in waiting:
        user.call()
    began = trio.current_time()
    while len(at_server(w)) < 6:
        await trio.sleep(0.01)
        assert trio.current_time() <= began + WAIT_LIMIT + 0.05


async def test_turn_ends_at_the_time_for_which_the_clock_is_set(mock_clock: Clock, w: World) -> None:
    """Although the difference of the times is less than the turn. Otherwise the watching task would not sleep
    until the clock shows another time."""
    w.server.catalog = make_catalog(tools=[tool()])
    a, b = users(w, 2)
    mock_clock.jump(0.7)
    a.call()
    b.call()
    await trio.testing.wait_all_tasks_blocked()
    sent = trio.current_time()
    mock_clock.jump(UNDECLARED)
    assert trio.current_time() - sent < UNDECLARED, "rounded down"
    for _ in range(100):
        await trio.lowlevel.checkpoint()
    assert at_server(w) == [a.tag, b.tag]


async def test_waiting_call_can_be_cancelled(autojump_clock: Clock, w: World) -> None:
    a, b, c = users(w, 3)
    a.call()
    asked = b.call()
    c.call()
    b.say({"method": "notifications/cancelled", "params": {"requestId": asked.key}})
    finish(w, a)
    assert at_server(w) == [c.tag]
    finish(w, c)
    assert w.empty() == []


async def test_waiting_call_survives_a_restart_of_the_server(autojump_clock: Clock, w: World) -> None:
    a, b = users(w, 2)
    a.call()
    asked = b.call()
    w.lose()
    w.connect()
    await trio.testing.wait_all_tasks_blocked()
    assert at_server(w) == [b.tag]
    finish(w, b)
    assert asked.done is not None
    assert "result" in asked.done


async def test_call_is_not_refused_because_many_wait(
    autojump_clock: Clock, w: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    import attrs

    w.server.spec = attrs.evolve(w.server.spec, max_queued=1)
    a, b, c = users(w, 3)
    for user in (a, b, c):
        user.call()
    assert at_server(w) == [a.tag, c.tag]


async def test_questions_and_turns_exclude_each_other_only_once(autojump_clock: Clock) -> None:
    """A server that may ask the wrong client: calls of clients that can be asked wait as without turns, and
    others no longer than for a turn.
    """
    async with world(concurrency="auto") as w:
        asked, other = w.user("legacy"), w.user("legacy", {})
        asked.call()
        other.call()
        assert at_server(w) == [asked.tag]
        await trio.sleep(UNDECLARED + 0.01)
        assert at_server(w) == [asked.tag, other.tag]
        finish(w, asked)
        finish(w, other)
        assert w.empty() == []


@pytest.mark.parametrize(
    ("hints", "definition", "turn"),
    [
        (None, {}, UNDECLARED),
        ({}, {}, UNDECLARED),
        ({"destructiveHint": True}, {}, UNDECLARED),
        ({"readOnlyHint": False}, {}, DECLARED),
        ({"readOnlyHint": False, "openWorldHint": False}, {}, DECLARED),
        ({"readOnlyHint": False, "openWorldHint": True}, {}, 0.0),
        ({"readOnlyHint": True}, {}, 0.0),
        ({"readOnlyHint": False}, {"share": "client"}, 0.0),
        ({"readOnlyHint": False}, {"concurrency": "free"}, 0.0),
        ({"readOnlyHint": False}, {"concurrency": "writes"}, 0.0),
    ],
)
def test_which_tools_take_turns(hints: Json | None, definition: Json, turn: float) -> None:
    tools = [] if hints is None else [tool(**hints)]
    server = make_server(catalog=make_catalog(tools=tools), **definition)
    route = resolve_route(DIRECT, server, "tools/call", "converse", Settings(), ())
    assert route.write_turn == turn
    assert route.may_wait is (turn > 0 or route.is_exclusive)
    assert resolve_route(DIRECT, server, "prompts/get", "converse", Settings(), ()).write_turn == 0.0


def test_remote_servers_take_no_turns() -> None:
    """They have other users anyway."""
    server: Any = make_server()
    server.spec = RemoteSpec(name="srv", kind="http", url="http://h/")
    assert resolve_route(DIRECT, server, "tools/call", "t", Settings(), ()).write_turn == 0.0

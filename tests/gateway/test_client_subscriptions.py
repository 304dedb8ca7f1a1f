"""Who is notified of which resource, and what each server is asked to report."""

from __future__ import annotations

import time
from collections.abc import AsyncIterator
from typing import Any

import pytest
import trio
import trio.testing

from mcpd.gateway.subscriptions import UPDATE_INTERVAL, ClientSubscriptions
from tests.gateway.model import Stub, make_server

Clock = trio.testing.MockClock


class Subscriber(Stub):
    def __init__(self) -> None:
        super().__init__()
        self.heard: list[tuple[bytes, str]] = []

    def may_use_resource(self, server: object, uri: str) -> bool:
        return True

    def notify_resource_updated(self, stream: bytes, uri: str) -> None:
        self.heard.append((stream, uri))


@pytest.fixture
async def made() -> AsyncIterator[ClientSubscriptions]:
    async with trio.open_nursery() as nursery:
        yield ClientSubscriptions(nursery.start_soon)
        nursery.cancel_scope.cancel()


async def test_subscriptions_are_kept_by_stream_and_uri(made: ClientSubscriptions) -> None:
    one: Any = Subscriber()
    server = make_server()
    assert made.count(one) == 0
    assert not made.add(one, b"", "p:1", server, "a:1")
    assert made.add(one, b"", "p:1", server, "a:1")
    assert not made.add(one, b"5", "p:1", server, "a:1")
    assert not made.add(one, b"5", "p:2", server, "a:2")
    assert made.count(one) == 3
    assert server.interests.resources == {"a:1", "a:2"}
    made.on_stream_closed(one, b"5")
    assert server.interests.resources == {"a:1"}
    made.drop(one, b"5", "p:1")
    made.drop(one, b"", "p:1")
    assert server.interests.resources == frozenset()


@pytest.mark.parametrize(
    ("own", "updated", "reported"),
    [
        ("a:1", "a:1", "p:1"),
        ("a:1", "a:1/x", "p:1/x"),
        ("a:1/", "a:1/x", "p:1x"),
        ("a:1", "a:12", None),
        ("a:1", "a:", None),
    ],
)
async def test_parts_of_a_resource_are_reported_too(
    made: ClientSubscriptions, own: str, updated: str, reported: str | None
) -> None:
    one: Any = Subscriber()
    server, other = make_server(), make_server()
    made.add(one, b"5", "p:1", server, own)
    made.on_resource_updated(other, updated)
    assert one.heard == []
    made.on_resource_updated(server, updated)
    assert one.heard == ([] if reported is None else [(b"5", reported)])


async def test_repeated_updates_are_reported_after_the_interval(
    autojump_clock: Clock, made: ClientSubscriptions
) -> None:
    one: Any = Subscriber()
    server = make_server()
    made.on_resource_updated(server, "a:1")
    assert not made._recent_updates, "nobody is subscribed"
    for own in ("a:1", "a:2"):
        made.add(one, b"", own, server, own)
        made.on_resource_updated(server, own)
    made.on_resource_updated(server, "a:1")
    assert len(one.heard) == 2
    await trio.sleep(UPDATE_INTERVAL * 1.5)
    assert [uri for _, uri in one.heard[2:]] == ["a:1"]
    assert list(made._recent_updates) == [(server, "a:1")]
    await trio.sleep(UPDATE_INTERVAL * 2)
    assert len(one.heard) == 3, "repeated once"
    assert not made._recent_updates
    made.on_resource_updated(server, "a:1")
    assert len(one.heard) == 4
    made.on_resource_updated(server, "a:1")
    made.drop(one, b"", "a:1")
    await trio.sleep(UPDATE_INTERVAL * 2)
    assert len(one.heard) == 4
    assert not made._recent_updates


@pytest.mark.parametrize(
    ("is_closed", "name", "moved"), [(True, "srv", True), (False, "srv", False), (True, "x", False)]
)
async def test_subscriptions_move_to_the_server_that_replaces_theirs(
    made: ClientSubscriptions, is_closed: bool, name: str, moved: bool
) -> None:
    one: Any = Subscriber()
    old, new = make_server(name), make_server("srv")
    old.is_closed = is_closed
    made.add(one, b"", "a:1", old, "a:1")
    made.on_server_replaced(new)
    assert (new.interests.resources == {"a:1"}) is moved
    made.on_resource_updated(new, "a:1")
    assert (len(one.heard) == 1) is moved


async def test_many_updates_do_not_delay_others(made: ClientSubscriptions) -> None:
    """Their repetitions, which are due at the same time, are not reported in one round of the scheduler."""
    server = make_server()
    heard = longest = 0

    class Slow(Subscriber):
        def notify_resource_updated(self, stream: bytes, uri: str) -> None:
            nonlocal heard
            heard += 1
            time.sleep(0.001)

    one: Any = Slow()
    for number in range(100):
        made.add(one, b"", f"p:{number}", server, f"a:{number}")
    for number in [*range(100), *range(100)]:
        made.on_resource_updated(server, f"a:{number}")
    while heard < 200:
        before = heard
        await trio.sleep(0.001)
        longest = max(longest, heard - before)
    assert longest < 50

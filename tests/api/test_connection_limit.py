"""New connections always get in, and connections in use are not closed for them, except the provisional."""

from __future__ import annotations

from contextlib import ExitStack

import attrs
import pytest

from mcpd.api.listeners import MAX_ESTABLISHED, MAX_PER_PROCESS, MAX_PROVISIONAL, ConnectionLimit, Slot


@attrs.define(eq=False)
class Connection:
    """A connection that is in use unless `idle_since` is set."""

    slot: Slot
    idle_since: float | None = None
    reason: str = ""

    def evict(self, reason: str) -> None:
        self.reason = reason


class World:
    def __init__(self, family: str) -> None:
        self.limit = ConnectionLimit(family)
        self.held = ExitStack()

    def open(self, pid: int = 0, idle_since: float | None = None) -> Connection:
        slot = self.limit.open(pid)
        assert isinstance(slot, Slot), slot
        connection = Connection(slot, idle_since)
        self.held.enter_context(slot.held_by(connection))
        return connection


@pytest.fixture
def tcp() -> World:
    return World("tcp")


@pytest.fixture
def unix() -> World:
    return World("unix")


def test_newest_connection_without_authentication_takes_the_place_of_the_oldest(tcp: World) -> None:
    """Ten times as many as there are places, none of which is idle."""
    authenticated = [tcp.open() for _ in range(5)]
    assert all(each.slot.authenticate() for each in authenticated)
    count = 10 * MAX_PROVISIONAL["tcp"]
    others = [tcp.open() for _ in range(count)]
    closed = [bool(each.reason) for each in others]
    assert closed == [True] * (count - MAX_PROVISIONAL["tcp"]) + [False] * MAX_PROVISIONAL["tcp"]
    assert str(MAX_PROVISIONAL["tcp"]) in others[0].reason
    assert not any(each.reason for each in authenticated)
    assert len(tcp.limit) == 5 + MAX_PROVISIONAL["tcp"]
    assert not others[0].slot.authenticate()  # too late
    assert others[-1].slot.authenticate()


def test_authenticated_connections_are_closed_only_while_they_are_idle(tcp: World) -> None:
    for _ in range(MAX_ESTABLISHED - 2):
        assert tcp.open().slot.authenticate()
    idle = [tcp.open(idle_since=since) for since in (2.0, 1.0)]
    assert all(each.slot.authenticate() for each in idle)
    assert tcp.open().slot.authenticate()
    assert [bool(each.reason) for each in idle] == [False, True]
    assert tcp.open().slot.authenticate()
    assert idle[0].reason
    late = tcp.open()
    assert not late.slot.authenticate()
    assert not late.reason  # the client gets an error
    assert len(tcp.limit) == MAX_ESTABLISHED + 1


def test_process_cannot_take_the_places_of_all_others(unix: World) -> None:
    for _ in range(MAX_PER_PROCESS - 1):
        unix.open(pid=7)
    idle = unix.open(pid=7, idle_since=1.0)
    unix.open(pid=7)
    assert idle.reason
    refusals = {str(unix.limit.open(7)) for _ in range(10 * MAX_ESTABLISHED)}
    assert refusals == {f"a process may have {MAX_PER_PROCESS} connections that are in use; close one"}
    others = [unix.open(pid=pid) for pid in range(100, 100 + MAX_ESTABLISHED - MAX_PER_PROCESS)]
    assert all(each.slot.is_established for each in others)
    assert len(unix.limit) == MAX_ESTABLISHED


def test_short_request_is_served_while_all_places_are_in_use(unix: World) -> None:
    """However many programs hold connections. A place that becomes free goes to the oldest that waits."""
    held = [unix.open(pid=pid) for pid in range(MAX_ESTABLISHED)]
    late = [unix.open(pid=1000 + n) for n in range(10 * MAX_PROVISIONAL["unix"])]
    status = unix.open(pid=5000)
    assert status.slot.authenticate()
    assert not status.slot.is_established
    assert not status.reason
    assert not any(each.reason for each in held)
    assert sum(not each.reason for each in late) == MAX_PROVISIONAL["unix"] - 1
    unix.limit.close(held[0].slot)
    assert [each.slot.is_established for each in late if not each.reason][:2] == [True, False]
    assert len(unix.limit) == MAX_ESTABLISHED + MAX_PROVISIONAL["unix"] - 1

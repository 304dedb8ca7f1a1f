"""A server disabled until a given wall-clock time, and enabled again automatically."""

from __future__ import annotations

import time
from collections.abc import Iterator
from pathlib import Path

import attrs
import pytest
import trio
from trio.testing import MockClock

from mcpd.files.atomic import write_atomically
from mcpd.model import codec
from mcpd.model.errors import NotReady
from mcpd.model.status import ServerState, rfc3339
from mcpd.state.history import EventHistory
from mcpd.supervision.catalog import Catalog
from mcpd.supervision.managed_server import ManagedServer
from tests.supervision.peer import living

HOUR = 3600.0
SIX = 1795370400.0  # 2026-11-22 18:00 UTC


@attrs.define
class Wall:
    """A wall clock that is `ahead` of the clock of the timers."""

    timers: MockClock
    ahead: float

    def __call__(self) -> float:
        return self.timers.current_time() + self.ahead


@pytest.fixture
def wall(monkeypatch: pytest.MonkeyPatch, autojump_clock: MockClock) -> Iterator[Wall]:
    """A wall clock that starts at 16:00."""
    clock = Wall(autojump_clock, SIX - 2 * HOUR - autojump_clock.current_time())
    monkeypatch.setattr(time, "time", clock)
    yield clock
    monkeypatch.undo()


def save_state(server: ManagedServer) -> None:
    """Write the state as a shutdown does, without its thread: the mock clock would jump ahead meanwhile."""
    store = server._context.store
    write_atomically(store._path, codec.encode(store.state), 0o600)


def stands(server: ManagedServer) -> tuple[str, str, str | None]:
    status = server.status()
    return status.status.value, status.reason, status.off_until


async def test_timed_disable_ends_automatically(
    autojump_clock: MockClock, wall: Wall, tmp_path: Path
) -> None:
    """The status has the end time, a call's error has the remedy, and the history has the reason for the
    restart."""
    async with living(tmp_path, era="legacy") as world:
        await world.wait_connected()
        world.server.set_enabled(False, SIX)
        await trio.sleep(1)
        reason = "switched off until 2026-11-22 18:00:00 UTC"
        assert stands(world.server) == ("disabled", reason, "2026-11-22T18:00:00.000Z")
        with pytest.raises(NotReady, match=f"it is disabled: {reason}.*; run `mcpctl enable it`"):
            await world.server.wait_ready()
        await trio.sleep(SIX - wall() - 1)
        assert len(world.starts) == 1
        await trio.sleep(2)
        assert stands(world.server) == ("connected", "", None)
    history = EventHistory(tmp_path / "history.jsonl", str)
    for _, event in world.events:
        history.record(event)
    assert [(e.state, e.message) for e in history.history("it", 9).entries][1:] == [
        (ServerState.DISABLED, f"it was {reason}"),
        (ServerState.PENDING, "its timed disable ended"),
        (ServerState.CONNECTED, ""),
    ]


async def test_end_of_a_timed_disable_does_not_connect_a_disconnected_server(
    autojump_clock: MockClock, wall: Wall, tmp_path: Path
) -> None:
    """A disconnected server stays disconnected until a user connects it."""
    async with living(tmp_path, era="legacy") as world:
        world.server.set_enabled(False, SIX)
        world.server.disconnect()
        await trio.sleep(3 * HOUR)
        assert stands(world.server) == ("disabled", "disconnected by hand", None)


@pytest.mark.parametrize(("later", "state"), [(HOUR, "disabled"), (3 * HOUR, "connected")])
async def test_timed_disable_survives_a_daemon_restart(
    autojump_clock: MockClock, wall: Wall, tmp_path: Path, later: float, state: str
) -> None:
    """It still applies at the next start, or has ended if its time passed in between."""
    async with living(tmp_path, era="legacy") as world:
        world.server.set_enabled(False, SIX)
    save_state(world.server)
    wall.ahead += later
    async with living(tmp_path, era="legacy") as world:
        await trio.sleep(5)
        assert world.server.state.value == state
        world.server.set_enabled(state == "connected", None if state == "connected" else SIX)
        await trio.sleep(5)
        assert len(world.starts) == (state == "connected")
        await trio.sleep(HOUR)
        assert stands(world.server)[0] == "connected"


async def test_end_of_a_timed_disable_returns_to_the_definition(
    autojump_clock: MockClock, wall: Wall, tmp_path: Path
) -> None:
    """It does not enable a server that is disabled in its definition by then."""
    async with living(tmp_path, era="legacy", enabled=False) as world:
        await trio.sleep(1)
        assert stands(world.server) == ("disabled", "switched off in its definition", None)
        world.server.set_enabled(False, SIX)
        world.server.update_spec(attrs.evolve(world.server.spec, enabled=True))
        await trio.sleep(HOUR)
        assert stands(world.server)[2] == rfc3339(SIX)
        world.server.update_spec(attrs.evolve(world.server.spec, enabled=False))
        await trio.sleep(HOUR + 1)
        assert stands(world.server) == ("disabled", "switched off in its definition", None)
        assert world.starts == []
        world.server.update_spec(attrs.evolve(world.server.spec, enabled=True))
        await world.wait_connected()


async def test_disabled_server_lists_nothing(autojump_clock: MockClock, wall: Wall, tmp_path: Path) -> None:
    """Its tools are back as soon as it is enabled, before it is connected."""
    async with living(tmp_path, era="legacy") as world:
        await world.wait_connected()
        world.server.set_enabled(False)
        assert world.server.catalog == Catalog()
        assert world.server.status().tools == 0
        world.server.set_enabled(True)
        assert world.server.catalog is not None
        assert [tool.name for tool in world.server.catalog.tools] == ["echo"]
        assert world.server.status().tools == 1

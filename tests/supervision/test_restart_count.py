"""How often the status says that a server was started again, in virtual time."""

from __future__ import annotations

from pathlib import Path

from trio.testing import MockClock

from mcpd.model.status import ServerState
from tests.supervision.peer import Life, living

DYING = Life(lasts=0)


async def test_a_server_that_has_never_connected_is_counted(
    autojump_clock: MockClock, tmp_path: Path
) -> None:
    """The status table must show a crash loop. Five failed attempts are one start and four restarts."""
    async with living(tmp_path, DYING, era="legacy") as world:
        status = await world.wait(lambda status: status.attempts == 5)
        assert status.restarts == 4
        assert not status.degraded


async def test_failed_attempts_between_two_connections_are_counted_once(
    autojump_clock: MockClock, tmp_path: Path
) -> None:
    """Each start of the process counts, whether it connects or not; the first one does not."""
    async with living(tmp_path, DYING, Life(lasts=9), DYING, DYING, Life(), era="legacy") as world:
        await world.wait_connected()
        assert world.server.status().restarts == 1
        status = await world.wait(lambda status: status.restarts == 4)
        assert status.status is ServerState.CONNECTED


async def test_a_start_that_a_user_requested_is_not_counted(
    autojump_clock: MockClock, tmp_path: Path
) -> None:
    async with living(tmp_path, DYING, DYING, Life(), era="legacy") as world:
        await world.wait(lambda status: status.attempts == 2)
        world.server.reconnect()
        await world.wait_connected()
        assert world.server.status().restarts == 1

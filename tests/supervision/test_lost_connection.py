"""A connection that is lost: the state says so before anybody could notice it in another way."""

from __future__ import annotations

from pathlib import Path

import pytest
import trio
from trio.testing import MockClock

from mcpd.model.errors import McpdError
from mcpd.model.status import CONNECTION_LOST, ServerState
from mcpd.transports.outgoing_request import AwaitedExchange
from tests.supervision import peer
from tests.supervision.peer import Life, living

_DRAIN = 5.0
"""Virtual seconds until the last output has been read."""


@pytest.fixture
def _slow_stderr(monkeypatch: pytest.MonkeyPatch) -> None:
    """A descendant of the server keeps its stderr open."""

    async def wait_stderr_drained(_: object) -> None:
        await trio.sleep(_DRAIN)

    monkeypatch.setattr(peer.FakeChild, "wait_stderr_drained", wait_stderr_drained)


@pytest.mark.usefixtures("_slow_stderr")
async def test_loss_is_announced_before_calls_fail_and_the_cause_follows(
    autojump_clock: MockClock, tmp_path: Path
) -> None:
    """Neither the last output nor the exit status is waited for."""
    seen: list[ServerState] = []

    class Observed(AwaitedExchange):
        def failed(self, error: McpdError) -> None:
            seen.append(world.server.state)

    async with living(tmp_path, Life(lasts=30, drops=("tools/call",)), Life(), era="legacy") as world:
        await world.wait_connected()
        assert world.server.upstream is not None
        world.server.upstream.link.submit(Observed(total_timeout=1000, idle_timeout=1000), "tools/call")
        lost = await world.wait(lambda status: status.status is not ServerState.CONNECTED)
        assert seen == [ServerState.PENDING]
        assert (lost.status, lost.reason, lost.pid) == (ServerState.PENDING, CONNECTION_LOST, None)
        lost_at = trio.current_time()
        failed = await world.wait(lambda status: status.status is ServerState.FAILED)
        assert trio.current_time() - lost_at == pytest.approx(_DRAIN, abs=0.2)
        assert failed.last_error is not None
        assert failed.last_error.message == "exited with status 1"
        await world.wait_connected()
    assert world.states()[-5:] == ["connected", "pending", "failed", "pending", "connected"]

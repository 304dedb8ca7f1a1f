"""Remote servers over HTTP with a real daemon process: their cost, and no fault affects other servers."""

from __future__ import annotations

import os
import signal
import time
import zlib
from collections.abc import Callable
from typing import TypeVar

import pytest
import trio

from benchmarks.churn import IN_FLIGHT, churn
from tests.e2e.conftest import Start
from tests.e2e.harness import Daemon, Refused, fake, wait_until
from tests.fakes.http import LegacyScript, ModernScript, Request, fake_http
from tests.faults.measure import peak_memory
from tests.stopwatch import stopwatch, within

BOUND = 60.0
MIB = 1 << 20
T = TypeVar("T")


async def aside(work: Callable[[], T]) -> T:
    """Run blocking work in a thread, because the fake server runs in this event loop."""
    with trio.fail_after(4 * BOUND):
        return await trio.to_thread.run_sync(work)


@pytest.mark.parametrize("era", ["modern", "legacy"])
def test_many_cancellations_lose_no_call(era: str) -> None:
    """Cancel many calls for a few seconds (`python -m benchmarks.churn` runs for sixty). No call is lost and
    no connection slot leaks; speed is not checked here."""
    tally = next(  # a busy machine may take longer for as many calls
        tally for tally in (churn(era, seconds) for seconds in (3, 15, 75)) if tally.calls > 4 * IN_FLIGHT
    )
    assert tally.cancelled > tally.calls / 4
    assert (tally.unanswered, tally.refused) == (0, 0)
    assert tally.many > tally.few / 4


async def test_decompression_bomb_is_refused_before_it_expands(start: Start) -> None:
    """Memory grows by less than 64 MB, the error arrives within five seconds, and the server stays up."""
    press = zlib.compressobj(9, zlib.DEFLATED, 31)
    begins = press.compress(b'{"a":"') + press.flush(zlib.Z_FULL_FLUSH)
    portion = press.compress(b"x" * MIB) + press.flush(zlib.Z_FULL_FLUSH)
    bomb = begins + portion * 10_240

    async def explode(request: Request) -> None:
        await request.reply(200, bomb, Content_Encoding="gzip")

    async with fake_http(ModernScript(on={"tools/call": explode})) as server:

        def work() -> tuple[float, int, str]:
            daemon = start({"far": {"url": server.url}})
            daemon.wait_connected("far")
            with daemon.client() as client, peak_memory(daemon.process.pid) as peak:
                before = peak.bytes
                with stopwatch() as watch:
                    with pytest.raises(Refused) as refused:
                        client.call("far", "echo", {})
                    taken = watch.seconds
                assert daemon.status("far")["status"] == "connected"
            return taken, peak.bytes - before, str(refused.value)

        taken, grown, words = await aside(work)
        assert "maxFrame" in words
        assert within(taken, 5)
        assert grown < 64 * MIB


@pytest.mark.slow
async def test_after_suspend_only_remote_servers_are_checked(
    start: Start,
) -> None:
    """After a suspend (SIGSTOP), the server is pinged within five seconds and not restarted."""
    async with fake_http(LegacyScript()) as server:

        def stop_and_go() -> tuple[Daemon, int]:
            daemon = start({"far": {"url": server.url}, "near": fake()})
            daemon.wait_connected("far", "near")
            pid = daemon.status("near")["pid"]
            os.kill(daemon.process.pid, signal.SIGSTOP)
            time.sleep(8)  # the suspension that mcpd must detect
            assert not server.of("ping")
            os.kill(daemon.process.pid, signal.SIGCONT)
            return daemon, pid

        daemon, pid = await aside(stop_and_go)
        taken = await aside(lambda: wait_until(lambda: bool(server.of("ping")), lambda: "not asked", BOUND))
        assert within(taken, 5 + 1)  # and one second for a busy machine

        def unharmed() -> None:
            assert daemon.status("near")["pid"] == pid
            for name in ("near", "far"):
                status = daemon.status(name)
                assert (status["status"], status["restarts"]) == ("connected", 0)

        await aside(unharmed)

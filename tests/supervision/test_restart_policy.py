"""When a server is restarted, in virtual time."""

from __future__ import annotations

from functools import partial
from itertools import pairwise
from pathlib import Path

import pytest
import trio
import trio.testing
from trio.testing import MockClock

from mcpd.model.errors import LinkLost, NoCommonVersion, NotReady
from mcpd.model.server_spec import RestartPolicy, StdioSpec
from mcpd.model.status import Failure, FailureKind, ServerState
from mcpd.supervision.state_tracker import StateTracker
from mcpd.supervision.supervisor import Supervisor
from mcpd.transports.child_process import CannotStart
from tests.supervision.peer import Life, Script, living, scripted, surroundings

DYING = Life(lasts=0)
HOUR = 3600.0
LOOP = RestartPolicy().intensity
"""Failed starts until a crash loop."""


@pytest.mark.parametrize("chance", [0.0, 0.5, 1.0])
async def test_server_without_its_database_for_ten_seconds_is_back_within_seconds(
    autojump_clock: MockClock, tmp_path: Path, chance: float
) -> None:
    """Nobody calls it: the delays alone are short enough."""
    async with living(tmp_path, Life(able_from=12), chance=chance, era="legacy") as world:
        await world.wait_connected()
        assert 12 <= trio.current_time() <= 12 + 8
        failures = [e.status for _, e in world.events if e.status and e.status.status is ServerState.FAILED]
        assert len(failures) > 3
        assert len({status.since for status in failures}) == 1


async def test_call_starts_a_server_in_a_crash_loop(autojump_clock: MockClock, tmp_path: Path) -> None:
    """A call waits for the attempt that it triggers, and succeeds if the server can run again."""
    async with living(tmp_path, *[DYING] * LOOP, Life(), era="legacy") as world:
        await world.wait(lambda status: status.attempts == LOOP)
        await trio.sleep(6)
        began = trio.current_time()
        await world.server.wait_ready()
        assert trio.current_time() - began < 1
        assert len(world.starts) == LOOP + 1


async def test_calls_start_a_crashing_server_every_five_seconds_at_most(
    autojump_clock: MockClock, tmp_path: Path
) -> None:
    """However many calls there are; each of them fails at once."""
    async with living(tmp_path, DYING, era="legacy") as world:
        await world.wait(lambda status: status.attempts == LOOP)
        began = trio.current_time()
        for _ in range(120):
            with pytest.raises(NotReady, match=r"exited with status 1.*next attempt in"):
                await world.server.wait_ready()
            await trio.sleep(0.5)
        assert trio.current_time() - began < 62
        assert min(later - one for one, later in pairwise(world.starts[LOOP:])) >= 5
        assert 10 <= len(world.starts) - LOOP <= 12


async def test_calls_respect_retry_after(autojump_clock: MockClock) -> None:
    """A server that asks for a minute is not asked again before, however many calls want it."""
    tracker = StateTracker()
    failure = Failure(kind=FailureKind.HTTP, message="HTTP 503", at="")
    tracker.record_failure(failure, pause=100, requested_delay=60)
    tracker.set_state(ServerState.FAILED, "retrying")
    await trio.sleep(59)
    assert not tracker.may_retry_early(may_regain_access=False)
    await trio.sleep(1)
    assert tracker.may_retry_early(may_regain_access=False)


async def test_error_of_a_call_names_the_cause_from_stderr() -> None:
    """A client that calls a server that exited sees the reason in the error."""
    tracker = StateTracker()
    for stderr, why in (
        (("MY_KEY is required",), "exited (1): MY_KEY is required"),
        ((), "gone; see its log"),
    ):
        failure = Failure(
            kind=FailureKind.EXITED, message="gone; see its log", at="", exit_code=1, stderr=stderr
        )
        tracker.record_failure(failure, pause=None, requested_delay=0)
        tracker.set_state(ServerState.FAILED, "retrying")
        assert str(tracker.not_ready("db")).startswith(f"db has failed: {why}. Nothing was sent; ")


async def test_crash_loop_ends_after_a_stable_connection(autojump_clock: MockClock, tmp_path: Path) -> None:
    """After a stable minute, the next failure counts as the first."""
    async with living(tmp_path, *[DYING] * LOOP, Life(lasts=61), Life(), era="legacy") as world:
        await world.wait(lambda status: status.restarts == LOOP + 1)
    assert world.pauses[LOOP - 1 :] == pytest.approx([300, 61 + 0.375], abs=0.01)


@pytest.mark.parametrize(("after", "attempts"), [(9.5, 4), (10.5, 1)])
async def test_successful_call_after_ten_seconds_resets_the_backoff(
    autojump_clock: MockClock, tmp_path: Path, after: float, attempts: int
) -> None:
    """A success before ten seconds does not."""
    async with living(tmp_path, *[DYING] * 3, Life(lasts=20), Life(mute=True), era="legacy") as world:
        await world.wait_connected()
        await trio.sleep(after)
        assert world.server.upstream is not None
        await world.server.upstream.request("tools/call", {"name": "echo"})
        await world.wait(lambda status: len(world.starts) == 5)
        assert world.server.status().attempts == attempts


@pytest.mark.parametrize(
    ("cause", "kind"),
    [
        (CannotStart("there is no file /x; correct `command`"), FailureKind.SPAWN),
        (NoCommonVersion("it: speaks 1999", server="it"), FailureKind.VERSION),
    ],
)
async def test_permanent_failure_is_not_retried_until_a_user_acts(
    autojump_clock: MockClock, tmp_path: Path, cause: Exception, kind: FailureKind
) -> None:
    """There is one start in a day; a call and `reconnect` try once more, immediately."""
    async with living(tmp_path, cause) as world:
        await trio.sleep(24 * HOUR)
        assert len(world.starts) == 1
        status = world.server.status()
        assert status.last_error is not None
        assert (status.status, status.last_error.kind, status.retry_at) == (ServerState.FAILED, kind, None)
        for _ in range(3):
            with pytest.raises(NotReady, match="mcpctl reconnect it"):
                await world.server.wait_ready()
        assert len(world.starts) == 2
        world.server.reconnect()
        await trio.sleep(24 * HOUR)
        assert len(world.starts) == 3


async def test_reconnect_ends_the_delay_and_resets_the_backoff(
    autojump_clock: MockClock, tmp_path: Path
) -> None:
    """Even in a crash loop, the server starts immediately and the next delay is the first again."""
    async with living(tmp_path, DYING, era="legacy") as world:
        await world.wait(lambda status: status.attempts == LOOP)
        await trio.sleep(10)
        before = trio.current_time()
        world.server.reconnect()
        assert world.server.status().retry_at is None
        await world.wait(lambda status: status.attempts == 2)
        assert world.starts[LOOP] - before < 0.01
        assert world.pauses[LOOP] == pytest.approx(0.375, abs=0.01)


async def test_a_server_that_keeps_restarting_is_degraded_until_a_user_acts(
    autojump_clock: MockClock, tmp_path: Path
) -> None:
    """Also while it is connected. Two restarts within ten minutes are not worth a warning."""
    ends = [Life(lasts=1), Life(lasts=4), Life(lasts=4), Life()]
    async with living(tmp_path, *ends, era="legacy") as world:
        await world.wait(lambda status: status.restarts == 2)
        assert world.server.status().degraded == ""
        status = await world.wait(lambda status: status.restarts == 3)
        assert status.status is ServerState.CONNECTED
        assert status.degraded == "it restarted 3 times in the last minute"
        await trio.sleep(300)
        assert world.server.status().degraded == "it restarted 3 times in the last 6 minutes"
        await trio.sleep(301)
        assert world.server.status().degraded == ""
    async with living(tmp_path, *ends, era="legacy") as world:
        await world.wait(lambda status: bool(status.degraded))
        world.server.reconnect()
        await world.wait_connected()
        assert world.server.status().degraded == ""


async def test_an_unanswered_health_check_is_shown_until_the_server_sends_something(
    autojump_clock: MockClock, tmp_path: Path
) -> None:
    life = Life(deaf_after=1, deaf_until=45, stopped=True)
    async with living(tmp_path, life, era="legacy") as world:
        await world.wait_connected()
        await trio.sleep(2)
        assert world.server.status().degraded == ""
        world.server.note_silence(2)
        assert world.server.status().degraded == "its process is stopped (SIGSTOP)"
        await world.wait(lambda status: not status.degraded)
        assert world.server.status().status is ServerState.CONNECTED


async def test_requested_disconnect_is_not_a_failure(autojump_clock: MockClock, tmp_path: Path) -> None:
    """A server disabled while its lists are fetched shows no error, pid or next attempt."""
    async with living(tmp_path, Life(list_takes=5), era="legacy") as world:
        await trio.sleep(1)
        world.server.disconnect()
        await trio.sleep(1)
        status = world.server.status()
        assert status.status is ServerState.DISABLED
        assert (status.pid, status.last_error, status.retry_at, status.attempts) == (None, None, None, 0)
        assert "failed" not in world.states()
        await trio.sleep(HOUR)
        assert len(world.starts) == 1


async def test_handshake_times_out_after_thirty_seconds(autojump_clock: MockClock, tmp_path: Path) -> None:
    """30 s by default, counted from the spawn."""
    async with living(tmp_path, Life(mute=True), era="legacy") as world:
        await world.wait(lambda status: status.status is ServerState.FAILED)
        assert trio.current_time() - world.starts[0] == pytest.approx(30, abs=0.2)


# ── health checks ───────────────────────────────────────────────────────────────────────────────────


async def test_unresponsive_server_is_detected_within_fifty_seconds(
    autojump_clock: MockClock, tmp_path: Path
) -> None:
    """After 30 s of silence, two health checks of 10 s each fail."""
    async with living(tmp_path, Life(deaf_after=5), era="legacy") as world:
        await world.wait_connected()
        connected = trio.current_time()
        status = await world.wait(lambda status: status.status is ServerState.FAILED)
        assert trio.current_time() - connected == pytest.approx(50, abs=0.3)
        assert status.last_error is not None
        assert status.last_error.kind is FailureKind.WEDGED


@pytest.mark.parametrize(("stopped", "ends"), [(False, False), (True, True)])
async def test_server_busy_with_a_call_is_not_wedged(
    autojump_clock: MockClock, tmp_path: Path, stopped: bool, ends: bool
) -> None:
    """A server whose process is stopped does not count as busy. Its calls fail with the same cause."""
    async with living(tmp_path, Life(deaf_after=5, stopped=stopped), era="legacy") as world:
        await world.wait_connected()
        upstream = world.server.upstream
        assert upstream is not None
        async with trio.open_nursery() as nursery:

            async def call() -> None:
                why = r"it: it did not answer 2 health checks.*\(its process is stopped\) before"
                with pytest.raises(LinkLost, match=why):
                    await upstream.request("never", {}, timeout=200)

            nursery.start_soon(call)
            await trio.sleep(150)
            assert (world.server.upstream is not upstream) is ends
            nursery.cancel_scope.cancel()


BUSY = Life(deaf_after=5, deaf_until=100, lists=lambda: ["echo", "more"])
"""Reads and answers nothing for 95 s, as servers that handle one request at a time do."""


async def test_lists_that_changed_wait_until_a_busy_server_is_free(
    autojump_clock: MockClock, tmp_path: Path
) -> None:
    """A refresh times out after 15 s and is repeated; calls in flight continue."""
    async with living(tmp_path, BUSY, era="legacy") as world:
        await world.wait_connected()
        await trio.sleep_until(world.starts[0] + 5)
        world.server._catalog_sync.mark_stale("tools")
        assert world.server.upstream is not None
        await world.server.upstream.request("tools/call", {"name": "echo"}, timeout=200)
        await trio.sleep(20)
        assert world.script.asked.count("tools/list") >= 3
        assert (len(world.starts), world.server.status().restarts) == (1, 0)


async def test_server_that_does_not_read_a_long_call_keeps_the_others(
    autojump_clock: MockClock, tmp_path: Path
) -> None:
    """Only unsent requests fail, after 8 s; health checks cannot be sent either."""
    async with living(tmp_path, BUSY, era="legacy") as world:
        await world.wait_connected()
        await trio.sleep_until(world.starts[0] + 5)
        upstream = world.server.upstream
        assert upstream is not None
        async with trio.open_nursery() as nursery:
            nursery.start_soon(partial(upstream.request, "tools/call", {"name": "echo"}, timeout=200))
            await trio.testing.wait_all_tasks_blocked()
            began = trio.current_time()
            with pytest.raises(LinkLost, match="it has not read its input for 8 s"):
                await upstream.request("tools/call", {"name": "x" * (1 << 20)}, timeout=200)
            assert trio.current_time() - began == pytest.approx(8, abs=0.5)
        assert world.server.upstream is upstream
        assert (await upstream.request("ping", {}, timeout=5)) is not None


async def test_idle_healthy_server_passes_its_health_checks(
    autojump_clock: MockClock, tmp_path: Path
) -> None:
    """There is one request every 30 s, and no restart."""
    async with living(tmp_path, Life(), era="legacy") as world:
        await world.wait_connected()
        await trio.sleep(HOUR)
        assert len(world.starts) == 1
        assert 110 <= world.script.asked.count("ping") <= 120


# ── shared connections and lazy servers ─────────────────────────────────────────────────────────────


async def test_a_hundred_callers_of_a_lazy_server_cause_one_start(
    autojump_clock: MockClock, tmp_path: Path
) -> None:
    """The server does not start before the first call."""
    async with living(tmp_path, Life(), lazy=True, era="legacy") as world:
        await trio.sleep(HOUR)
        assert world.starts == []
        assert world.server.state is ServerState.IDLE
        async with trio.open_nursery() as nursery:
            for _ in range(100):
                nursery.start_soon(world.server.wait_ready)
    assert len(world.starts) == 1


# ── era detection ───────────────────────────────────────────────────────────────────────────────────


async def test_server_that_exits_on_the_probe_is_restarted_as_legacy(
    autojump_clock: MockClock, tmp_path: Path
) -> None:
    """The exit is not a failure, has only the minimum delay, and is remembered."""
    async with living(tmp_path, Life(legacy_dies=True)) as world:
        await world.wait_connected()
        assert world.pauses == pytest.approx([0.25], abs=0.01)
        assert "failed" not in world.states()
        world.server.reconnect()
        await world.wait(lambda status: len(world.starts) == 3 and status.status is ServerState.CONNECTED)
        assert world.script.asked.count("server/discover") == 1


async def test_modern_server_that_crashed_on_the_probe_is_probed_again(
    autojump_clock: MockClock, tmp_path: Path
) -> None:
    """The server was assumed to be legacy and refuses `initialize`, so the assumption is dropped."""
    async with living(tmp_path, DYING, Life(modern=True)) as world:
        await world.wait_connected()
        assert world.server.status().era == "modern"
        assert len(world.starts) == 3


# ── many servers ────────────────────────────────────────────────────────────────────────────────────


async def test_hanging_starts_block_other_starts_for_two_seconds_at_most(
    autojump_clock: MockClock, tmp_path: Path
) -> None:
    """Eight servers may start concurrently; a server that hangs gives up its slot."""
    supervisor = Supervisor(surroundings(tmp_path, lambda event: None))
    scripts = {f"mute-{n}": Script([Life(mute=True)]) for n in range(16)} | {"well": Script([Life()])}
    specs = {name: StdioSpec(name=name, command="/bin/sh", era="legacy") for name in scripts}
    with scripted(scripts):
        async with trio.open_nursery() as nursery:
            nursery.start_soon(supervisor.run)
            supervisor.set_desired({name: spec for name, spec in specs.items() if name != "well"})
            await trio.sleep(0.1)
            supervisor.set_desired(specs)
            await trio.sleep(1)
            assert supervisor.get("well").state is ServerState.PENDING
            await trio.sleep(3.5)  # two batches of eight start before it
            assert supervisor.get("well").state is ServerState.CONNECTED
            nursery.cancel_scope.cancel()


async def test_server_that_is_no_longer_modern_is_detected(autojump_clock: MockClock, tmp_path: Path) -> None:
    """A slow server has a longer probe timeout. Without an answer, it is treated as legacy."""
    lives = (Life(dual=True, discover_takes=8), Life(drops=("server/discover",)))
    async with living(tmp_path, *lives) as world:
        await world.wait_connected()
        for _ in range(2):
            world.server.reconnect()
            await world.wait_connected()
            assert world.server.status().era == "legacy"
        assert world.server._strategy._probe_timeout(world.server.spec.timeouts) == 5


@pytest.mark.parametrize(
    ("life", "era"),
    [
        (Life(dual=True), "legacy"),
        (Life(), "legacy"),
        (Life(modern=True), "modern"),
        (Life(modern=True, names_versions=True), "modern"),
    ],
    ids=["both", "legacy only", "modern only", "modern only, names versions"],
)
async def test_legacy_era_may_be_preferred(
    autojump_clock: MockClock, tmp_path: Path, life: Life, era: str
) -> None:
    """A server that has only the other one is connected in the same attempt."""
    async with living(tmp_path, life, era="legacy-first") as world:
        await world.wait_connected()
        assert world.server.status().era == era
        assert len(world.starts) == 1


async def test_program_that_writes_something_else_is_named_as_the_cause(
    autojump_clock: MockClock, tmp_path: Path
) -> None:
    """Its status shows the output during the handshake, too. Not of a slow server that logs to stdout."""
    usage = b"Usage: it FILE\nno file\n"
    async with living(tmp_path, Life(mute=True, prints=usage), era="legacy") as world:
        status = await world.wait(lambda status: bool(status.warnings))
        assert status.status is ServerState.PENDING
        assert status.warnings == ("2 lines on its stdout were not JSON-RPC; the first: Usage: it FILE",)
        failure = (await world.wait(lambda status: status.last_error is not None)).last_error
        assert failure is not None
        assert failure.kind is FailureKind.PROTOCOL
        assert failure.summary.startswith(
            "it does not speak MCP on stdout: its first line is 'Usage: it FILE'"
        )
    talking = usage + b'{"jsonrpc":"2.0","method":"notifications/message","params":{}}\n'
    async with living(tmp_path, Life(mute=True, prints=talking, wakes_after=1), era="legacy") as world:
        failure = (await world.wait(lambda status: status.last_error is not None)).last_error
        assert failure is not None
        assert failure.kind is FailureKind.TIMEOUT

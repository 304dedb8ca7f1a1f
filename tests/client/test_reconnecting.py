"""The client connects again after the daemon has restarted, and sends no call twice that may have run."""

from __future__ import annotations

import tempfile
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import anyio
import pytest

from mcpd.client import (
    CallTimedOut,
    ConnectionClosed,
    InvalidCall,
    Mcp,
    NotRunning,
    Unknown,
    connect,
)
from mcpd.client import connection as module
from mcpd.client.sync import connect as connect_sync
from mcpd.model.message_limit import MAX_MESSAGE
from tests.client.test_names_and_lists import DONE
from tests.ctl.fake_daemon import Caller, FakeDaemon, Fault, Silence

REFUSED = Fault("mcpd is stopping", code="not_ready", may_have_run=False, stopping=True)
STATUS: dict[str, object] = {"servers": []}


class Daemons:
    """A daemon that can be stopped and started again."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.requests: list[str] = []
        """The methods that all daemons have received."""
        self.start()

    def start(self) -> None:
        new = self.path.with_suffix(".new")
        self.fake = FakeDaemon(new)
        self.fake.answers |= {"mcpd/status": STATUS, "mcpd/call": DONE}
        new.rename(self.path)  # so that no request comes before the answers

    def stop(self) -> None:
        self.fake.close()
        self.requests += [method for method, _ in self.fake.requests]
        self.fake.requests = []


@pytest.fixture
def daemons() -> Iterator[Daemons]:
    with tempfile.TemporaryDirectory(prefix="t-", dir="/tmp") as directory:
        made = Daemons(Path(directory) / "d.sock")
        yield made
        made.stop()


@pytest.fixture(params=["trio", "asyncio"])
def run(
    request: pytest.FixtureRequest, daemons: Daemons
) -> Callable[[Callable[[Mcp], Awaitable[None]]], None]:
    """Run a function with a client, within a time limit."""

    def run_connected(work: Callable[[Mcp], Awaitable[None]]) -> None:
        async def main() -> None:
            with anyio.fail_after(60):
                async with connect(str(daemons.path), start=False) as mcp:
                    await work(mcp)

        anyio.run(main, backend=request.param)

    return run_connected


@asynccontextmanager
async def restarting(daemons: Daemons) -> AsyncIterator[None]:
    """Stop the daemon, and start it again while the block runs."""

    async def start() -> None:
        await anyio.sleep(0.2)
        await anyio.to_thread.run_sync(daemons.start)

    await anyio.to_thread.run_sync(daemons.stop)
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(start)
        yield


def hang_up_once(then: object) -> Callable[[Caller, Any], object]:
    """Close the connection when the request has come, and answer the next one."""
    left = [1]

    def answer(caller: Caller, _: Any) -> object:
        if left:
            left.pop()
            caller.hang_up()
            return Silence()
        return then

    return answer


def test_client_connects_again(daemons: Daemons, run: Any) -> None:
    """Calls that were not sent yet wait for the daemon, however many there are."""

    async def work(mcp: Mcp) -> None:
        assert await mcp.status() == STATUS
        async with restarting(daemons), anyio.create_task_group() as tasks:
            for _ in range(5):
                tasks.start_soon(mcp.call, "fs", "echo")
        assert await mcp.status() == STATUS

    run(work)
    daemons.stop()
    daemons.start()
    assert daemons.requests == ["mcpd/status", *["mcpd/call"] * 5, "mcpd/status"]


def test_call_that_may_have_run_is_not_repeated(daemons: Daemons, run: Any) -> None:
    """A request that only reads is."""
    daemons.fake.answers["mcpd/call"] = hang_up_once(DONE)
    daemons.fake.answers["mcpd/prompt"] = hang_up_once({"messages": []})
    daemons.fake.answers["mcpd/status"] = hang_up_once(STATUS)

    async def work(mcp: Mcp) -> None:
        with pytest.raises(ConnectionClosed, match="mcpd/call was in progress") as lost:
            await mcp.call("fs", "write")
        assert lost.value.may_have_run
        with pytest.raises(ConnectionClosed) as lost:
            await mcp.prompt("fs", "p")
        assert await mcp.status() == STATUS

    run(work)
    assert [method for method, _ in daemons.fake.requests] == [
        "mcpd/call",
        "mcpd/prompt",
        *["mcpd/status"] * 2,
    ]


def test_call_that_a_stopping_daemon_refused_is_repeated(daemons: Daemons, run: Any) -> None:
    """The error says that nothing was sent, and the next daemon gets the call."""
    left = [1]

    def refuse_once(caller: Caller, _: Any) -> object:
        if not left:
            return DONE
        left.pop()
        caller.line({"jsonrpc": "2.0", "id": caller.request, "error": REFUSED.error})
        caller.hang_up()
        return Silence()

    daemons.fake.answers["mcpd/call"] = refuse_once

    async def work(mcp: Mcp) -> None:
        assert (await mcp.call("fs", "write", timeout=30)).output == "done"

    run(work)
    assert [method for method, _ in daemons.fake.requests] == ["mcpd/call"] * 2


def test_oversized_call_is_refused_and_others_continue(daemons: Daemons, run: Any) -> None:
    """It is not sent, so that the daemon need not skip it."""
    waiting: list[Caller] = []

    def answer_later(caller: Caller, _: Any) -> Silence:
        waiting.append(caller)
        return Silence()

    daemons.fake.answers["mcpd/call"] = answer_later

    async def work(mcp: Mcp) -> None:
        outputs: list[str] = []

        async def wait() -> None:
            outputs.append((await mcp.call("fs", "slow")).output)

        async with anyio.create_task_group() as tasks:
            tasks.start_soon(wait)
            await anyio.to_thread.run_sync(daemons.fake.wait_for, "mcpd/call")
            with pytest.raises(InvalidCall, match="mcpd accepts at most 33554432") as refused:
                await mcp.call("fs", "echo", {"text": "z" * MAX_MESSAGE})
            assert not refused.value.may_have_run
            caller = waiting.pop()
            caller.line({"jsonrpc": "2.0", "id": caller.request, "result": DONE})
        assert outputs == ["done"]

    run(work)
    assert [method for method, _ in daemons.fake.requests] == ["mcpd/call"]


def test_daemon_that_does_not_come_back(daemons: Daemons, run: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """All requests that wait for it fail together. Later ones work when it is back."""
    monkeypatch.setattr(module, "_RESTART_TIME", 0.3)

    async def fail(mcp: Mcp) -> None:
        with pytest.raises(ConnectionClosed, match=r"was not back within 0\.3 s") as lost:
            await mcp.call("fs", "write")
        assert not lost.value.may_have_run

    async def work(mcp: Mcp) -> None:
        await anyio.to_thread.run_sync(daemons.stop)
        async with anyio.create_task_group() as tasks:
            for _ in range(3):
                tasks.start_soon(fail, mcp)
        monkeypatch.setattr(module, "_RESTART_TIME", 60.0)
        with pytest.raises(CallTimedOut) as late:
            await mcp.call("fs", "write", timeout=0.01)
        assert not late.value.may_have_run
        await anyio.to_thread.run_sync(daemons.start)
        assert await mcp.status() == STATUS
        await mcp.close()
        with pytest.raises(ConnectionClosed, match="this connection has been closed"):
            await mcp.status()

    run(work)


def test_daemon_that_does_not_come_back_is_started(daemons: Daemons, monkeypatch: pytest.MonkeyPatch) -> None:
    """If that fails, the request fails with the reason, and the next one tries it again."""
    monkeypatch.setattr(module, "_SUCCESSOR_TIME", 0.05)
    monkeypatch.setattr(module, "_RESTART_TIME", 60.0)
    starts: list[str | None] = []

    async def start_daemon(path: str | None) -> None:
        starts.append(path)
        if len(starts) == 1:
            raise NotRunning("mcpd could not be started: no reason")
        await anyio.to_thread.run_sync(daemons.start)

    monkeypatch.setattr("mcpd.client.connecting._start_daemon", start_daemon)

    async def main() -> None:
        with anyio.fail_after(60):
            async with connect(str(daemons.path), start=True) as mcp:
                await anyio.to_thread.run_sync(daemons.stop)
                with pytest.raises(
                    ConnectionClosed, match="and mcpd could not be started: no reason"
                ) as lost:
                    await mcp.call("fs", "write")
                assert not lost.value.may_have_run
                assert await mcp.status() == STATUS

    anyio.run(main)
    assert starts == [str(daemons.path)] * 2


def test_request_that_ends_the_daemon_is_repeated_a_few_times(
    daemons: Daemons, run: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "_POLL", 0.001)
    daemons.fake.answers["mcpd/status"] = lambda caller, _: caller.hang_up() or Silence()

    async def work(mcp: Mcp) -> None:
        with pytest.raises(ConnectionClosed, match="mcpd/status was in progress"):
            await mcp.status()

    run(work)
    assert len(daemons.fake.requests) == 1 + module._MAX_REPEATS


def test_timeout_covers_a_daemon_that_hangs(
    daemons: Daemons, run: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The call is cancelled, for the case that the daemon continues."""
    monkeypatch.setattr(module, "_GRACE", 0.1)
    monkeypatch.setattr(module, "_PATIENCE", 0.5)
    daemons.fake.answers |= {"mcpd/call": Silence(), "mcpd/version": Silence()}

    async def work(mcp: Mcp) -> None:
        with pytest.raises(CallTimedOut, match="the daemon hangs") as late:
            await mcp.call("fs", "slow", timeout=1)
        assert late.value.may_have_run

    run(work)
    daemons.fake.wait_for("notifications/cancelled")
    assert daemons.fake.params_of("mcpd/call")["timeout"] == 1  # as errors show it


def test_daemon_that_responds_decides_how_long_a_call_takes(
    daemons: Daemons, run: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Progress restarts the timeout there, but not all progress reaches the client."""
    monkeypatch.setattr(module, "_GRACE", 0.01)
    monkeypatch.setattr(module, "_PATIENCE", 60.0)
    waiting: list[Caller] = []

    def answer_later(caller: Caller, _: Any) -> Silence:
        waiting.append(caller)
        return Silence()

    def answer(_: Caller, __: Any) -> object:
        if waiting:
            waiting.pop().line({"jsonrpc": "2.0", "id": 1, "result": DONE})
        return {}

    daemons.fake.answers |= {"mcpd/call": answer_later, "mcpd/version": answer}

    async def work(mcp: Mcp) -> None:
        assert (await mcp.call("fs", "slow", timeout=0.01)).output == "done"

    run(work)


def test_new_daemon_learns_name_and_profile_first(daemons: Daemons) -> None:
    """A call without the profile could use what the profile excludes."""
    daemons.fake.answers["mcpd/identify"] = {"client": "nightly", "profile": "work"}
    daemons.fake.answers["mcpd/status"] = hang_up_once(STATUS)
    with connect_sync(str(daemons.path), start=False, client="nightly", profile="work") as mcp:
        assert mcp.status() == STATUS
        assert daemons.fake.params_of("mcpd/identify") == {"client": "nightly", "profile": "work"}
        daemons.fake.answers["mcpd/status"] = hang_up_once(STATUS)
        daemons.fake.answers["mcpd/identify"] = Fault("no profile named 'work'", code="unknown_profile")
        with pytest.raises(Unknown, match="no profile"):
            mcp.status()
    assert [method for method, _ in daemons.fake.requests] == [
        *["mcpd/identify", "mcpd/status"] * 2,
        "mcpd/status",
        "mcpd/identify",
    ]

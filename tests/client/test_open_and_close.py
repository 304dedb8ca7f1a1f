"""Programs whose set-up and teardown run in different tasks, as in fixtures; and wrong uses of `connect`."""

from __future__ import annotations

import asyncio
import os
import re
import subprocess
import sys
import tempfile
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import anyio
import pytest
import trio

from mcpd.client import ConnectionClosed, Mcp, connect
from mcpd.client.sync import connect as connect_sync
from tests.client.test_client import run
from tests.e2e.conftest import start
from tests.e2e.harness import BOUND, fake, wait_until
from tests.interop.peers import ROOT

__all__ = ["run", "start"]

Start = Any
UNITTEST = """
import sys, unittest, warnings
from mcpd.client import connect
warnings.simplefilter("error")
SOCKET = sys.argv.pop()

class Opened(unittest.IsolatedAsyncioTestCase):
    async def asyncSetUp(self):
        self.mcp = await connect(SOCKET, client="tests").open()
        self.addAsyncCleanup(self.mcp.close)
    async def test_call(self):
        self.assertEqual((await self.mcp.call("fs", "echo", {"a": 1}, timeout=20)).output, '{"a": 1}')

class Entered(Opened):
    async def asyncSetUp(self):
        self.mcp = await self.enterAsyncContext(connect(SOCKET, client="tests"))

unittest.main()
"""


PYTEST = f"""
import sys
from mcpd.client.sync import connect

SERVERS = {{"test": {{"command": sys.executable, "args": ["{ROOT}/examples/testserver"]}}}}

@pytest.mark.parametrize("number", [1, 2])
def test_daemon(daemon, tmp_path, number):
    with connect() as mcp:
        status = mcp.status()
        assert mcp.call("test", "add", {{"a": 1, "b": number}}).output == str(1 + number)
        (tmp_path.parent.parent / str(status["daemon"]["pid"])).touch()
        assert [each["name"] for each in status["servers"]] == ["test"]
        assert status["daemon"]["warnings"] == []
"""


@pytest.fixture
def daemon(start: Start) -> Any:
    started = start({"fs": fake()})
    started.wait_connected("fs")
    return started


def clients(daemon: Any) -> int:
    with daemon.client() as client:
        return sum(each["name"] == "tests" for each in client.request("mcpd/clients")["clients"])


def wait_left(daemon: Any) -> None:
    wait_until(lambda: clients(daemon) == 0, lambda: f"{clients(daemon)} connections")


def test_fixtures_of_unittest(daemon: Any) -> None:
    """Set-up, test and teardown each run in a task of their own."""
    argv = [sys.executable, "-X", "dev", "-c", UNITTEST, daemon.socket]
    done = subprocess.run(argv, capture_output=True, text=True, timeout=BOUND, check=False)
    assert done.returncode == 0, done.stderr
    assert "Ran 2 tests" in done.stderr
    assert "Warning" not in done.stderr
    wait_left(daemon)


def test_fixture_of_the_manual_gives_each_test_a_daemon(tmp_path: Path) -> None:
    """With its own servers and state, also for tests that run at the same time. It ends with the test."""
    text = (ROOT / "docs/how-to/python-client.md").read_text()
    (fixture,) = [
        each for each in re.findall("```python\n(.*?)```", text, re.DOTALL) if "def daemon(" in each
    ]
    (tmp_path / "test_it.py").write_text(fixture.replace('"60"', f'"{3 * BOUND:g}"') + PYTEST)
    search_path = f"{Path(sys.executable).parent}:{os.environ['PATH']}"
    with tempfile.TemporaryDirectory(dir="/tmp") as base:  # the path of a socket must be short
        argv = [sys.executable, "-m", "pytest", "-q", "-n", "2", f"--basetemp={base}/t", "test_it.py"]
        environ = {**os.environ, "PATH": search_path, "HOME": str(tmp_path)}
        done = subprocess.run(
            argv, cwd=tmp_path, env=environ, capture_output=True, text=True, timeout=4 * BOUND, check=False
        )
        assert done.returncode == 0, done.stdout + done.stderr
        pids = [file.name for file in Path(base, "t").iterdir() if file.name.isdigit()]
    assert len(pids) == 2
    wait_until(lambda: not any(Path("/proc", pid).exists() for pid in pids), lambda: "a daemon still runs")


@pytest.mark.parametrize("entered", [True, False])
def test_fixture_that_is_set_up_and_ends_in_different_tasks(daemon: Any, entered: bool) -> None:
    """As pytest-asyncio runs the two halves of a fixture: each with `Runner.run`, which makes a task."""

    async def fixture() -> Any:
        if entered:
            async with connect(daemon.socket, client="tests") as mcp:
                yield mcp
        else:
            mcp = await connect(daemon.socket, client="tests").open()
            yield mcp
            await mcp.close()
            await mcp.close()

    async def test(mcp: Mcp) -> str:
        return (await mcp.call("fs", "echo", {"a": 1}, timeout=BOUND)).output

    async def after() -> int:
        return len(asyncio.all_tasks())

    with asyncio.Runner() as runner:
        halves = fixture()
        mcp = runner.run(anext(halves))
        assert runner.run(test(mcp)) == '{"a": 1}'
        with pytest.raises(StopAsyncIteration):
            runner.run(anext(halves))
        assert runner.run(after()) == 1
        with pytest.raises(ConnectionClosed, match="connect again"):
            runner.run(test(mcp))
    wait_left(daemon)


def test_open_and_close_in_different_tasks_of_trio(daemon: Any) -> None:
    """Also if the task that has opened it was cancelled, and if it is never closed."""

    async def main() -> None:
        opened: list[Mcp] = []

        async def set_up() -> None:
            opened.append(await connect(daemon.socket, client="tests").open())
            opened.append(await connect(daemon.socket, client="tests").__aenter__())
            nursery.cancel_scope.cancel()
            await trio.sleep_forever()

        async with trio.open_nursery() as nursery:
            nursery.start_soon(set_up)
        for mcp in opened:
            assert (await mcp.call("fs", "echo", {}, timeout=BOUND)).output == "{}"
        async with trio.open_nursery() as nursery:
            nursery.start_soon(opened[0].close)

    trio.run(main)
    wait_left(daemon)


def test_lost_event_loop_leaves_nothing_open(daemon: Any) -> None:
    """The connection ends with its event loop, and can be closed in another one, or if all tasks are
    cancelled."""

    async def opened() -> Mcp:
        return await connect(daemon.socket, client="tests").open()

    async def cancelled() -> None:
        mcp = await opened()
        pending = asyncio.create_task(mcp.call("fs", "drop"))
        await mcp.call("fs", "echo")
        for task in asyncio.all_tasks() - {asyncio.current_task(), pending}:
            task.cancel()
        with pytest.raises(ConnectionClosed):
            await pending
        await mcp.close()

    with warnings.catch_warnings():
        warnings.simplefilter("error")
        asyncio.run((mcp := asyncio.run(opened())).close())
        trio.run(mcp.close)
        asyncio.run(cancelled())
        wait_left(daemon)
    stopped = asyncio.new_event_loop()
    try:
        mcp = stopped.run_until_complete(opened())
        assert clients(daemon) == 1
        asyncio.run(mcp.close())  # while its own loop does not run
        wait_left(daemon)
        stopped.run_until_complete(mcp.close())
    finally:
        stopped.close()


def test_close_does_not_wait_for_what_does_not_end(daemon: Any, run: Callable[..., None]) -> None:
    """It is bounded, also in a scope that is cancelled; a call in progress fails."""

    async def work() -> None:
        mcp = await connect(daemon.socket, client="tests").open()
        failed: list[BaseException] = []

        async def call() -> None:
            try:
                await mcp.call("fs", "drop")
            except ConnectionClosed as error:
                failed.append(error)

        async with anyio.create_task_group() as tasks:
            tasks.start_soon(call)
            await mcp.call("fs", "echo")
            with anyio.CancelScope() as scope:
                scope.cancel()
                await mcp.close()
        assert len(failed) == 1

    run(work)
    wait_left(daemon)


async def test_connect_without_a_block_says_what_to_do() -> None:
    use: Any = connect()
    with pytest.raises(AttributeError, match=r"no 'call'.*async with connect\(\) as mcp.*connect\(\)\.open"):
        use.call()
    with pytest.raises(TypeError, match=r"async with connect\(\)"):
        await use
    with pytest.raises(TypeError, match=r"async with connect\(\)"), use:
        pass
    blocking: Any = connect_sync()
    with pytest.raises(AttributeError, match=r"no 'list_tools'.*with connect\(\) as mcp"):
        blocking.list_tools()
    with pytest.raises(TypeError, match=r"`async with` with connect of mcpd.client"):
        async with blocking:
            pass

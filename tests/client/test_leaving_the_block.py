"""How a program leaves the block of `connect`: with an exception, by Ctrl-C, or without having entered it."""

from __future__ import annotations

import asyncio
import signal
import socket
import subprocess
import sys
import tempfile
from collections.abc import Awaitable, Callable, Iterator
from typing import Any

import anyio
import pytest

from mcpd.client import ConnectionClosed, connect
from mcpd.client.sync import connect as connect_sync
from tests.client.test_client import run
from tests.e2e.conftest import start
from tests.e2e.harness import BOUND, fake, in_flight

__all__ = ["run", "start"]

Start = Any
Run = Callable[[Callable[[], Awaitable[None]]], None]
ERRORS = (
    SystemExit(5),
    KeyboardInterrupt(),
    GeneratorExit(),
    ValueError(),
    ExceptionGroup("", [ValueError()]),
)


@pytest.fixture
def listening() -> Iterator[str]:
    """The path of a socket that accepts connections, and never answers."""
    # Not in tmp_path, which may be too deep for the path of a socket.
    with tempfile.TemporaryDirectory(prefix="t-", dir="/tmp") as directory:
        path = f"{directory}/s"
        with socket.socket(socket.AF_UNIX) as listener:
            listener.bind(path)
            listener.listen(32)
            yield path


def test_exceptions_leave_the_block_unchanged(listening: str, run: Run) -> None:
    """Without an exception group around them; and a cancellation reaches its scope."""

    async def work() -> None:
        for error in ERRORS:
            with pytest.raises(type(error)) as raised:
                async with connect(listening):
                    raise error
            assert raised.value is error
        with anyio.CancelScope() as scope:
            async with connect(listening):
                scope.cancel()
                await anyio.sleep_forever()
        assert scope.cancelled_caught

    run(work)


def test_exceptions_leave_the_block_of_the_synchronous_client_unchanged(listening: str) -> None:
    """Also those that cancel in asyncio and trio. Later calls say that the connection is closed."""
    for error in (*ERRORS, asyncio.CancelledError()):
        with pytest.raises(type(error)) as raised, connect_sync(listening):
            raise error
        assert raised.value is error
    with connect_sync(listening) as mcp:
        pass
    with pytest.raises(ConnectionClosed, match="connect again") as closed:
        mcp.status()
    assert not closed.value.may_have_run
    mcp.close()


def test_failed_asyncio_task_group_in_the_block_does_not_cancel_the_program(listening: str) -> None:
    """In Python 3.11 and 3.12, it leaves a request to cancel the task that has run it."""

    async def fail() -> None:
        raise ValueError

    async def main() -> str:
        async with connect(listening):
            with pytest.raises(ExceptionGroup):
                async with asyncio.TaskGroup() as tasks:
                    tasks.create_task(fail())
        with pytest.raises(ExceptionGroup) as raised:
            async with connect(listening), asyncio.TaskGroup() as tasks:
                tasks.create_task(fail())
        assert isinstance(raised.value.exceptions[0], ValueError)
        await asyncio.sleep(0)
        return "after the block"

    assert asyncio.run(main()) == "after the block"


def test_ctrl_c_cancels_a_call_of_the_synchronous_client(start: Start) -> None:
    """Inside the block, which can still be used, and outside. `sys.exit` sets the exit code."""
    daemon = start({"fs": fake()})
    daemon.wait_connected("fs")
    program = (
        "import sys\nfrom mcpd.client.sync import connect\n"
        "def interrupted_call(mcp):\n"
        "    print('calling', flush=True)\n"
        "    mcp.call('fs', 'drop')\n"
        "try:\n"
        "    with connect(sys.argv[1]) as mcp:\n"
        "        try:\n"
        "            interrupted_call(mcp)\n"
        "        except KeyboardInterrupt:\n"
        "            print('inside', mcp.call('fs', 'echo', {'a': 1}).output, flush=True)\n"
        "        sys.stdin.readline()\n"
        "        interrupted_call(mcp)\n"
        "except KeyboardInterrupt:\n"
        "    print('outside', flush=True)\n"
        "with connect(sys.argv[1]):\n"
        "    sys.exit(5)\n"
    )
    argv = [sys.executable, "-c", program, daemon.socket]
    pipe = subprocess.PIPE
    with subprocess.Popen(argv, stdin=pipe, stdout=pipe, stderr=pipe, text=True) as running:
        try:
            assert running.stdin is not None
            assert running.stdout is not None
            assert running.stdout.readline() == "calling\n"
            in_flight(daemon, "fs", 1)
            running.send_signal(signal.SIGINT)
            assert running.stdout.readline() == 'inside {"a": 1}\n'
            in_flight(daemon, "fs", 0)  # canceled, although the connection is still open
            running.stdin.write("\n")
            running.stdin.flush()
            assert running.stdout.readline() == "calling\n"
            in_flight(daemon, "fs", 1)
            running.send_signal(signal.SIGINT)
            output, errors = running.communicate(timeout=BOUND)
        finally:
            running.kill()
    assert (output, errors, running.returncode) == ("outside\n", "", 5)
    in_flight(daemon, "fs", 0)

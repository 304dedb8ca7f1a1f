"""No child process outlives the daemon, however the daemon dies. Uses real processes."""

from __future__ import annotations

import json
import os
import shlex
import signal
import subprocess
import sys
import uuid
from collections.abc import Iterator
from pathlib import Path

import pytest
import trio

from mcpd.process import guardian, labels
from mcpd.process.guardian import Guardian
from tests.processes import gone, state, wait_until
from tests.stopwatch import stopwatch, within

BOUND = 30.0
POLITE = "exec sleep 999"
TERM_PROOF = "trap '' TERM HUP INT; sleep 999 & wait; sleep 999"
RUNAWAY = "setsid sh -c 'trap \"\" TERM; sleep 999; :' & wait"
FAMILIES = {
    POLITE: 1,
    TERM_PROOF: 2,
    "sh -c 'sleep 999; :' & wait": 3,  # a wrapper
    RUNAWAY: 3,
    "setsid sh -c 'trap \"\" TERM; sleep 999; :' >/dev/null & exit 0": 2,  # whose parent is gone
    "env -i setsid sh -c 'trap \"\" TERM; sleep 999; :' >/dev/null & exit 0": 2,  # and its environment
}
"""Shell scripts, and the number of processes that each one starts."""

DAEMON = """
import json, os, subprocess, sys, trio
from mcpd.process.guardian import Guardian
from mcpd.process.labels import labels_of, start_process
instance, families = sys.argv[1], json.loads(sys.argv[2])
async def main():
    guardian = Guardian(instance)
    async with trio.open_nursery() as nursery:
        await nursery.start(guardian.run)
        for number, script in enumerate(families):
            child = await start_process(
                ["sh", "-c", script], labels_of(f"{instance}.{number}"),
                stdout=subprocess.DEVNULL, start_new_session=True,
                env={"PATH": os.environ["PATH"], "MCPD_INSTANCE": f"{instance}.{number}"})
            guardian.guard(child.pid)
        print(guardian.pid, flush=True)
        await trio.sleep_forever()
trio.run(main)
"""

CHAIN = """
import os, signal, sys, time
for number in (signal.SIGTERM, signal.SIGHUP, signal.SIGINT): signal.signal(number, signal.SIG_IGN)
end, output = time.monotonic() + 20, os.open(sys.argv[1], os.O_WRONLY)
os.write(output, b"began")
while time.monotonic() < end:
    if os.fork(): os._exit(0)
    os.setsid()
    time.sleep(0.001)
os.write(output, b", ended by itself")
"""
"""One process at a time: each lives for about a millisecond, in a session of its own. The last one ends after
20 seconds."""


@pytest.fixture
def patient(monkeypatch: pytest.MonkeyPatch) -> None:
    """Give the guardian enough time to end the processes. On a busy machine, a second is short."""
    monkeypatch.setattr(guardian, "_STOP_TIMEOUT", BOUND)


@pytest.fixture
def instance() -> Iterator[str]:
    """A unique mark for each test. The fixture fails if a process with the mark outlives the test."""
    mark = f"test-{uuid.uuid4().hex}"
    yield mark
    left = [*labels.find_marked(mark), *labels.find_marked("another-" + mark)]
    for each in (mark, "another-" + mark):
        labels.kill_marked(each)
    assert left == []


def start_daemon(instance: str, families: list[str]) -> tuple[subprocess.Popen[bytes], int]:
    """Start a process that guards some process families; return it, and its guardian's pid, once all of them
    run."""
    daemon = subprocess.Popen(
        [sys.executable, "-c", DAEMON, instance, json.dumps(families)],
        stdout=subprocess.PIPE,
        start_new_session=True,
    )
    assert daemon.stdout is not None
    guardian = int(daemon.stdout.readline())
    wait_until(lambda: len(labels.find_marked(instance)) == sum(FAMILIES[script] for script in families))
    return daemon, guardian


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGSEGV])
def test_all_processes_end_within_two_seconds_of_the_daemon(instance: str, number: signal.Signals) -> None:
    """Twenty servers include wrappers, processes that left their group, and some that ignore SIGTERM."""
    daemon, guardian = start_daemon(instance, list(FAMILIES) * 4)
    with daemon:
        daemon.send_signal(number)
        daemon.wait(BOUND)
        with stopwatch() as watch:
            wait_until(lambda: not labels.find_marked(instance) and gone(guardian))
            assert within(watch.seconds, 2.0)


def test_process_that_forks_and_exits_all_the_time_ends_with_the_daemon(
    instance: str, tmp_path: Path
) -> None:
    fifo, script = tmp_path / "fifo", tmp_path / "chain.py"
    os.mkfifo(fifo)
    script.write_text(CHAIN)
    families = [shlex.join(["env", "-i", sys.executable, "-I", "-S", str(script), str(fifo)])]
    command = [sys.executable, "-c", DAEMON, instance, json.dumps(families)]
    with (
        subprocess.Popen(command, stdout=subprocess.DEVNULL, start_new_session=True) as daemon,
        open(fifo, "rb", buffering=0) as output,
    ):
        assert output.read(100) == b"began"
        daemon.kill()
        assert output.read(100) == b""  # the end of the file: no process of the chain is left
    wait_until(lambda: not labels.find_marked(instance))  # a process closes its files before it ends


def test_signals_to_the_daemons_group_do_not_reach_the_guardian(instance: str) -> None:
    """Ctrl-C, a closed terminal and `kill -TERM -pgid` end the daemon but not its guardian."""
    daemon, guardian = start_daemon(instance, [TERM_PROOF])
    wait_until(
        lambda: ignores(guardian, signal.SIGTERM)
    )  # the guardian ignores signals in the order of their numbers
    with daemon:
        for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGQUIT, signal.SIGPIPE):
            os.kill(guardian, number)  # not even if sent to it directly
        os.killpg(daemon.pid, signal.SIGTERM)
        daemon.wait(BOUND)
        wait_until(lambda: not labels.find_marked(instance) and gone(guardian))


def ignores(pid: int, number: signal.Signals) -> bool:
    ignored = Path(f"/proc/{pid}/status").read_text().partition("SigIgn:")[2].split()[0]
    return bool(int(ignored, 16) >> (number - 1) & 1)


@pytest.mark.usefixtures("patient")
async def test_registered_groups_are_killed_after_an_orderly_stop(instance: str) -> None:
    """A bug that skips the stop of a server must not leave an orphan."""
    guardian = Guardian(instance)
    async with trio.open_nursery() as nursery:
        await nursery.start(guardian.run)
        child = await family(instance, RUNAWAY)
        guardian.guard(child.pid)
        nursery.cancel_scope.cancel()
    assert labels.find_marked(instance) == []
    await child.wait()


@pytest.mark.usefixtures("patient")
async def test_released_group_is_not_killed(instance: str) -> None:
    """Another process group may have the same number by then."""
    guardian = Guardian(instance)
    async with trio.open_nursery() as nursery:
        await nursery.start(guardian.run)
        released = await family("another-" + instance, POLITE)
        guarded = await family(instance, POLITE)
        for child in (released, guarded):
            guardian.guard(child.pid)
        guardian.release(released.pid)
        nursery.cancel_scope.cancel()
    assert await guarded.wait() == -signal.SIGTERM
    assert released.poll() is None
    released.kill()
    await released.wait()


@pytest.mark.usefixtures("patient")
async def test_killed_guardian_is_replaced_and_gets_all_groups(instance: str) -> None:
    """The second guardian kills all groups at the end."""
    guardian = Guardian(instance)
    child = await family("another-" + instance, POLITE)  # found only by its group, not by its mark
    guardian.guard(child.pid)  # even before the guardian starts
    async with trio.open_nursery() as nursery:
        await nursery.start(guardian.run)
        for _ in range(3):
            first = guardian.pid
            assert first is not None
            os.kill(first, signal.SIGKILL)
            await until_replaced(guardian, first)
        nursery.cancel_scope.cancel()
    with trio.fail_after(BOUND):
        assert await child.wait() == -signal.SIGTERM


@pytest.mark.usefixtures("patient")
async def test_guardian_that_stops_reading_is_replaced_without_blocking(instance: str) -> None:
    """After SIGSTOP, with a full pipe, registering stays instant and no registered group is lost."""
    guardian = Guardian(instance)
    async with trio.open_nursery() as nursery:
        await nursery.start(guardian.run)
        child = await family("another-" + instance, POLITE)
        stopped = guardian.pid
        assert stopped is not None
        os.kill(stopped, signal.SIGSTOP)
        with stopwatch() as watch:
            guardian.guard(child.pid)
            for _ in range(20_000):
                guardian.release(999_999_999)
            assert within(watch.seconds, 1.0)
        await until_replaced(guardian, stopped)
        nursery.cancel_scope.cancel()
    with trio.fail_after(BOUND):
        assert await child.wait() == -signal.SIGTERM


async def test_guardian_uses_little_memory_and_inherits_nothing(instance: str, tmp_path: Path) -> None:
    """It uses at most 1 MB besides the interpreter's shared pages, and inherits no descriptor, secret or
    directory."""
    ours = os.open(tmp_path, os.O_RDONLY)
    os.set_inheritable(ours, True)
    guardian = Guardian(instance)
    async with trio.open_nursery() as nursery:
        await nursery.start(guardian.run)
        await trio.to_thread.run_sync(check_resources, guardian.pid or 0)
        nursery.cancel_scope.cancel()
    os.close(ours)


def check_resources(pid: int) -> None:
    process = Path(f"/proc/{pid}")
    wait_until(lambda: b"mcpd-guardian" in (process / "cmdline").read_bytes() and state(pid) == "S")
    assert len((process / "cmdline").read_bytes()) < 300  # `ps` shows it
    rollup = (process / "smaps_rollup").read_text()
    own = {line.split(":")[0]: int(line.split()[1]) for line in rollup.splitlines()[1:]}
    assert own["Private_Dirty"] <= 1024, rollup
    wait_until(lambda: {entry.name for entry in (process / "fd").iterdir()} == {"0", "1", "2"})
    assert os.readlink(process / "cwd") == "/"
    assert b"HOME=" not in (process / "environ").read_bytes()
    assert os.getsid(pid) == pid


async def until_replaced(guardian: Guardian, pid: int) -> None:
    """Wait for the new guardian for at most a second. Polls because no event reports it."""
    with trio.fail_after(BOUND), stopwatch() as watch:
        while guardian.pid in (pid, None):  # noqa: ASYNC110
            await trio.sleep(0.01)
        assert within(watch.seconds, 1.0)


async def family(mark: str, script: str) -> trio.Process:
    """Start one of `FAMILIES` and wait for all of its processes."""
    child = await labels.start_process(
        ["sh", "-c", script],
        labels.labels_of(mark),
        env={"PATH": os.environ["PATH"], labels.INSTANCE_VARIABLE: mark},
        start_new_session=True,
    )
    await trio.to_thread.run_sync(wait_until, lambda: len(labels.find_marked(mark)) == FAMILIES[script])
    return child

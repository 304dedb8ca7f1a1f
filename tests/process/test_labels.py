"""Processes started at the same time get their own labels, and no others."""

from __future__ import annotations

import resource
import subprocess
import sys
import uuid
from collections.abc import Sequence

import pytest
import trio
from trio.testing import MockClock

from mcpd.process.guardian_process import RLIMIT_LOCKS
from mcpd.process.labels import (
    carrying,
    find_marked,
    guardian_label,
    labels_of,
    start_process,
)


@pytest.fixture
def mark() -> str:
    """A mark of this test alone: other tests run at the same time."""
    return f"test-{uuid.uuid4().hex}"


def label(pid: int = 0) -> int:
    return resource.prlimit(pid, RLIMIT_LOCKS)[0]


async def test_processes_started_at_the_same_time_have_their_own_labels(mark: str) -> None:
    """One without a label gets none, although it is started at the same time."""
    ours, found = label(), {}

    async def start(number: int) -> None:
        labels = labels_of(f"{mark}.{number}") if number else None
        process = await start_process(["sleep", "999"], labels)
        found[number] = label(process.pid)
        process.kill()
        await process.wait()

    async with trio.open_nursery() as nursery:
        for number in range(20):
            nursery.start_soon(start, number)
    assert found == {0: ours} | {number: labels_of(f"{mark}.{number}").start for number in range(1, 20)}
    assert label() == ours


async def test_program_on_a_disk_that_does_not_answer_delays_others_by_a_second(
    monkeypatch: pytest.MonkeyPatch, autojump_clock: MockClock
) -> None:
    """It has forked by then, so that the others cannot get its label."""
    before, seen = label(), {}

    async def open_process(command: Sequence[str], **options: object) -> None:
        seen[command[0]] = (label(), trio.current_time())
        if command[0].startswith("hung"):
            await trio.sleep_forever()

    monkeypatch.setattr(trio.lowlevel, "open_process", open_process)
    began, names = trio.current_time(), ("hung", "fast", "hung too", "fast too")
    async with trio.open_nursery() as nursery:
        for number, name in enumerate(names):
            nursery.start_soon(start_process, [name], labels_of(f"test.{number}"))
            await trio.testing.wait_all_tasks_blocked()
        await trio.sleep(10)
        assert [seen[name][0] for name in names] == [labels_of(f"test.{n}").start for n in range(4)]
        assert all(at - began <= 2.1 for _, at in seen.values())
        nursery.cancel_scope.cancel()
    assert label() == before


def test_labels_of_an_instance_contain_those_of_its_children_only() -> None:
    """The guardian must not be killed with them."""
    whole = labels_of("abc")
    assert all(labels_of(f"abc.{number}.name").start in whole for number in (0, 1, 10, 2**40))
    assert labels_of("abc.1.a").start != labels_of("abc.10.a").start
    assert labels_of("abd.1").start not in whole
    assert guardian_label("abc").start not in whole
    assert guardian_label("abc").start not in labels_of("abd")
    assert whole.stop < 1 << 62


def test_dropped_label(mark: str) -> None:
    """A daemon that mcpctl starts from within a server is not a part of that server."""
    code = "from mcpd.process import labels as labels; {}print('up', flush=True); input()"
    for drops in (True, False):
        with carrying(labels_of(mark).start):
            drop = "labels.drop_own_label(); " if drops else ""
            daemon = subprocess.Popen(
                [sys.executable, "-c", code.format(drop)], stdin=subprocess.PIPE, stdout=subprocess.PIPE
            )
        assert daemon.stdout is not None
        daemon.stdout.readline()
        assert find_marked(mark) == ([] if drops else [daemon.pid])
        daemon.communicate(b"\n", timeout=60)

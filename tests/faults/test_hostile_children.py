"""Processes that do everything to outlive their server: they leave the group, the session, their parent, and
the environment that marks them. None is left two seconds after their server was stopped.
"""

from __future__ import annotations

import os
import signal
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.e2e.conftest import Start
from tests.e2e.harness import BOUND, Daemon, fake, running
from tests.faults.hostile import Hostile


@pytest.fixture
def hostile() -> object:
    made = Hostile()
    yield made
    made.clean_up()


@pytest.fixture
def another() -> object:
    made = Hostile()
    yield made
    made.clean_up()


def killed(daemon: Daemon) -> None:
    daemon.process.kill()
    daemon.process.wait(BOUND)


WAYS: dict[str, Callable[[Daemon], object]] = {
    "disconnect": lambda daemon: daemon.client().request("mcpd/disconnect", server="it", wait=30.0),
    "disable": lambda daemon: daemon.client().request("mcpd/disable", server="it", wait=30.0),
    "remove": lambda daemon: daemon.client().request("mcpd/remove", server="it", save=False),
    "its process is killed": lambda daemon: os.kill(daemon.status("it")["pid"], signal.SIGKILL),
    "the daemon stops": lambda daemon: daemon.stop(),
    "the daemon is killed": killed,
}


@pytest.mark.parametrize("way", WAYS)
def test_no_descendant_outlives_its_server(start: Start, hostile: Hostile, way: str) -> None:
    daemon = start({"it": {**hostile.definition, "restart": {"base": 3600, "cap": 3600}}})
    daemon.wait_connected("it")
    hostile.wait_started()
    WAYS[way](daemon)
    hostile.assert_gone()


def test_descendants_of_other_servers_are_left_alone(
    start: Start, hostile: Hostile, another: Hostile
) -> None:
    """Only the label tells whose they are: all of them are children of the daemon and have no environment."""
    daemon = start({"it": hostile.definition, "that": another.definition})
    daemon.wait_connected("it", "that")
    hostile.wait_started()
    another.wait_started()
    before = sorted(another.processes())
    daemon.client().request("mcpd/disconnect", server="it", wait=30.0)
    hostile.assert_gone()
    assert sorted(another.processes()) == before


def test_descendants_of_a_daemon_that_was_killed_with_its_guardian_end_at_the_next_start(
    tmp_path: Path, hostile: Hostile
) -> None:
    with running(tmp_path, {"it": hostile.definition}) as daemon:
        daemon.wait_connected("it")
        hostile.wait_started()
        guardian = daemon.guardian()
        os.kill(guardian, signal.SIGSTOP)  # the daemon would replace one that is killed first
        killed(daemon)
        os.kill(guardian, signal.SIGKILL)
        assert len(hostile.processes()) == hostile.count
        with running(tmp_path, {"calm": fake()}) as second:
            second.wait_connected("calm")
            hostile.assert_gone()
            assert "that it left behind" in second.log

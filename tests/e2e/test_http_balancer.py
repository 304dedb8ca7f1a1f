"""Replicas behind HAProxy, configured as in `examples/team`."""

from __future__ import annotations

import os
import subprocess
import sys
import threading
from collections.abc import Iterator

import httpx
import pytest

from tests.e2e.harness import BOUND, fake, wait_until
from tests.e2e.web import ask
from tests.team import replicas


@pytest.fixture(scope="module")
def team(tmp_path_factory: pytest.TempPathFactory) -> Iterator[replicas.Team]:
    with replicas.running(tmp_path_factory.mktemp("team"), {"one": fake()}) as team:
        yield team


def test_mcpctl_controls_a_replica(team: replicas.Team) -> None:
    file = next(team.replicas[0].daemon.home.rglob("http-token"))
    url = team.url("").replace("127.0.0.1", "localhost")
    done = subprocess.run(
        [sys.executable, "-m", "ctl", "--url", url, "--token-file", file, "call", "echo@one", "text=x"],
        env={**os.environ, "MCPD_SOCKET": "/nowhere"},
        capture_output=True,
        text=True,
        timeout=BOUND,
    )
    assert (done.returncode, done.stderr) == (0, "")


def test_call_of_a_replica_that_ends_may_have_run(team: replicas.Team) -> None:
    """Also if it is not the first request of the client's connection."""
    answers: list[httpx.Response] = []
    with httpx.Client(base_url=team.url(""), timeout=BOUND) as client:

        def call(name: str) -> httpx.Response:
            return ask(client, "/servers/one/mcp", "tools/call", name=name, arguments={})

        assert call("echo").status_code == 200
        waiting = threading.Thread(target=lambda: answers.append(call("drop")))
        waiting.start()
        busy: list[replicas.Replica] = []

        def is_busy() -> bool:
            busy[:] = [each for each in team.replicas if each.daemon.status("one")["in_flight"]]
            return bool(busy)

        wait_until(is_busy, lambda: "no replica got the call")
        busy[0].kill()
        waiting.join(BOUND)
        assert answers[0].json()["error"]["data"]["may_have_run"] is True
        wait_until(
            lambda: all(call("echo").status_code == 200 for _ in team.replicas),
            lambda: "the other replicas do not answer",
        )

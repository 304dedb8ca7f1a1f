"""Clients of both eras use the replicas of the example through its HAProxy. `make team` kills some, too."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.interop import everything
from tests.team import replicas, work

pytestmark = pytest.mark.e2e


def test_every_job_is_right_at_any_replica(tmp_path: Path) -> None:
    with (
        everything.everything("stdio") as server,
        replicas.running(tmp_path / "team", {work.SERVER: server}) as team,
    ):
        outcome = work.run(team, tmp_path, seconds=0, every=1, clients=len(work.LIBRARIES))
    assert outcome.faults() + outcome.without_success() == []
    assert {request.replica for request in outcome.passed} == set(replicas.NAMES)

"""Results about many servers are created in several turns, and are the same."""

from __future__ import annotations

import json
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import msgspec
import pytest
import trio
import trio.testing

from mcpd.api import large_results
from mcpd.daemon_operations import Operations
from mcpd.model import api, codec, config_api
from mcpd.model.server_spec import StdioSpec
from mcpd.model.usage_stats import StatsParams
from mcpd.supervision.supervisor import Supervisor
from mcpd.support import turns
from tests.supervision.peer import surroundings

STATUS = config_api.ConfigStatus(source="none", path="", generation=1, loaded_at="2026-11-21T06:30:00.000Z")


def operations_of(supervisor: Supervisor) -> Operations:
    config: Any = SimpleNamespace(
        earlier_definitions=lambda: ("s1",),
        definition_warnings=lambda name, earlier: ("old",) if name in earlier else (),
        status=lambda: STATUS,
    )
    unused: Any = None
    return Operations(supervisor, config, unused, unused, "i", "/socket", unused, unused)


async def decoded(operations: Operations, result: object) -> Any:
    found = result(operations, api.NoParams()) if callable(result) else result
    found = await found if hasattr(found, "__await__") else found
    found = found() if callable(found) else found
    data = bytes(found) if isinstance(found, msgspec.Raw) else codec.encode(found)
    return json.loads(data)


@pytest.mark.parametrize("kind", ["status", "stats", "metrics"])
async def test_result_about_many_servers_is_created_in_several_turns(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, kind: str
) -> None:
    """The status of 1,700 servers took 0.06 s in one turn, the statistics 0.15 s, and the metrics 0.4 s."""
    monkeypatch.setattr(turns, "MAX_TURN", 0.0)
    monkeypatch.setattr("time.time", lambda: 1_800_000_000.0)
    supervisor = Supervisor(surroundings(tmp_path, lambda event: None))
    operations = operations_of(supervisor)
    create: Any = {
        "status": large_results.status,
        "stats": lambda operations, _: large_results.stats(operations, StatsParams()),
        "metrics": large_results.collect_metrics,
    }[kind]
    rounds = 0

    async def count_rounds() -> None:
        nonlocal rounds
        while True:
            await trio.lowlevel.checkpoint()
            rounds += 1

    async with trio.open_nursery() as nursery:
        nursery.start_soon(supervisor.run)
        specs = [StdioSpec(name=f"s{number}", command="/bin/sh", enabled=False) for number in range(30)]
        generation, _ = supervisor.set_desired({spec.name: spec for spec in specs})
        await supervisor.wait_applied(generation)
        at_once = await decoded(operations, create)
        monkeypatch.setattr(large_results, "FEW", 29)
        nursery.start_soon(count_rounds)
        in_turns = await decoded(operations, create)
        nursery.cancel_scope.cancel()
    for result in (at_once, in_turns):
        lines = result.get("text", "").splitlines()  # with the memory and processor time of this process
        result["text"] = [line for line in lines if not line.startswith(("mcpd_memory", "mcpd_cpu"))]
    assert in_turns == at_once
    assert rounds >= 20

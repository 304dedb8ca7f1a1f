"""The metrics are valid for the parser of Prometheus."""

from __future__ import annotations

import re
import time
from pathlib import Path

import trio
import trio.testing
from prometheus_client.parser import text_string_to_metric_families
from ruamel.yaml import YAML

from mcpd.api.control.stats import _HELP, _measure_lag, render
from mcpd.model.api import (
    CallCounts,
    DaemonInfo,
    DaemonStatus,
    LatencyBucket,
    ProcessCost,
    ServerStats,
    Stats,
    ToolStats,
)
from mcpd.model.config_api import ConfigStatus
from mcpd.model.login import LoginStatus
from mcpd.model.status import ServerState, ServerStatus

NOW = "2026-11-21T06:30:00.000Z"
HOSTILE = [
    'quo"te',
    "back\\slash",
    "new\nline",
    "\\n",
    "re\rturn",
    "über→",
    'x",outcome="ok"} 99\nmcpd_up 1',
    "",
]


def test_names_with_special_characters_are_escaped() -> None:
    """Tool names come from servers and must not forge other samples."""
    counts = CallCounts(calls=4, errors=1, lost=1, cancelled=1)
    server = ServerStats(
        server="it",
        status=ServerState.CONNECTED,
        counts=counts,
        seconds=0.5,
        in_flight=0,
        restarts=3,
        buckets=(LatencyBucket(seconds=0.25, calls=1), LatencyBucket(seconds=0.5, calls=2)),
        tools=tuple(ToolStats(tool=name, counts=counts) for name in HOSTILE),
        cost=ProcessCost(processes=1, memory=4096, cpu_seconds=0.5),
        cpu_seconds=7.25,
    )
    status = DaemonStatus(
        servers=(),
        config=ConfigStatus(source="none", path="", generation=1, loaded_at=NOW),
        daemon=DaemonInfo(version='0"1', pid=1, started_at=NOW, socket="/s", instance="i", clients=0),
    )
    received = render(status, Stats(since=NOW, at=NOW, servers=(server,), clients=0, daemon=None))
    families = {family.name: family for family in text_string_to_metric_families(received)}
    tools = [sample.labels["tool"] for sample in families["mcpd_tool_calls"].samples]
    assert sorted(set(tools)) == sorted(HOSTILE)
    assert len(tools) == 4 * len(HOSTILE)
    assert "mcpd_up" not in families
    assert families["mcpd_build_info"].samples[0].labels == {"version": '0"1'}
    (cpu,) = families["mcpd_server_cpu_seconds"].samples
    assert cpu.value == 7.25
    histogram = families["mcpd_server_call_duration_seconds"]
    assert [(s.labels.get("le"), s.value) for s in histogram.samples] == [
        ("0.25", 1.0),
        ("0.5", 2.0),
        ("+Inf", 2.0),
        (None, 0.5),
        (None, 2.0),
    ]


def test_alert_rules_use_metrics_that_exist() -> None:
    """A metric that does not exist never fires."""
    root = Path(__file__).parents[2]
    page = (root / "docs/reference/metrics.md").read_text()
    groups = YAML(typ="safe").load(root / "examples/prometheus/mcpd-alerts.yml")["groups"]
    found = {name for rule in groups[0]["rules"] for name in re.findall(r"mcpd_\w+", rule["expr"])}
    assert len(found) >= 9
    assert [name for name in found if f"| `{name}` |" not in page] == []
    assert [name for name in _HELP if f"| `mcpd_{name}` |" not in page] == []


async def test_delay_of_the_event_loop_between_two_pages_is_counted_once() -> None:
    await _measure_lag()
    await trio.sleep(0.15)  # the next timer is set
    time.sleep(0.5)  # noqa: ASYNC251  # it stops the event loop
    await trio.testing.wait_all_tasks_blocked()
    assert await _measure_lag() > 0.3
    assert await _measure_lag() == 0.0


def test_logins_are_counted_for_each_server_that_uses_them() -> None:
    login = LoginStatus(
        servers=("one", "two"),
        url="https://mcp.example",
        issuer="https://as.example",
        account="default",
        state="over",
        renews=False,
        logged_in_at=NOW,
        renewals=7,
        failed_renewals=2,
    )
    unused = LoginStatus(
        servers=(), url="u", issuer="i", account="default", state="over", renews=False, expires_at=NOW
    )
    waiting = ServerStatus(name="new", status=ServerState.NEEDS_AUTH, since=NOW, transport="http")
    status = DaemonStatus(
        servers=(waiting,),
        config=ConfigStatus(source="none", path="", generation=1, loaded_at=NOW),
        daemon=DaemonInfo(version="1", pid=1, started_at=NOW, socket="/s", instance="i", clients=0),
    )
    text = render(status, Stats(since=NOW, at=NOW, servers=(), clients=0, daemon=None), (login, unused))
    families = {family.name: family.samples for family in text_string_to_metric_families(text)}
    assert {(s.labels["server"], s.value) for s in families["mcpd_login_needed"]} == {
        ("one", 1.0),
        ("two", 1.0),
        ("new", 1.0),
    }
    renewals = {(s.labels["server"], s.labels["outcome"], s.value) for s in families["mcpd_login_renewals"]}
    assert renewals == {(n, o, v) for n in ("one", "two") for o, v in (("ok", 7.0), ("failed", 2.0))}
    assert {s.labels["server"] for s in families["mcpd_login_time_seconds"]} == {"one", "two"}
    assert "mcpd_login_token_expiry_time_seconds" not in families

"""Diagnosis of a real daemon: history, statistics, message tap and logs."""

from __future__ import annotations

import itertools
import json
import os
import signal
import sys
import time
from pathlib import Path

import pytest
from prometheus_client.parser import text_string_to_metric_families

from tests.e2e.conftest import Start
from tests.e2e.harness import BOUND, FAKE, Client, Json, Refused, fake, in_flight, running, wait_until

SECRET = "correct-horse-battery"


def stats_of(client: Client, server: str, **more: object) -> Json:
    (found,) = client.request("mcpd/stats", server=server, **more)["servers"]
    return dict(found)


def wait_begun(watcher: Client) -> None:
    """Wait until the stream that was requested before has started.

    It starts in a task that is created with the request. This task has run after a second round trip.
    """
    for _ in range(2):
        watcher.request("mcpd/version")


def causes(client: Client, server: str | None = None) -> list[str]:
    entries = client.request("mcpd/history", server=server)["entries"]
    return [f"{entry['state'] or entry['what']}: {entry['message']}" for entry in entries]


def test_history_says_that_the_previous_daemon_died(tmp_path: Path) -> None:
    journal = tmp_path / "state/mcpd/history.jsonl"
    with running(tmp_path, {}) as daemon:
        wait_until(journal.exists, lambda: "nothing was written")
        os.kill(daemon.pid, signal.SIGKILL)
        daemon.process.wait(BOUND)
    with running(tmp_path, {}) as daemon:
        assert any("the previous mcpd ended without stopping" in each for each in causes(daemon.client()))
    assert journal.stat().st_mode & 0o777 == 0o600


def test_failure_of_a_program_that_is_no_server_shows_its_output(start: Start) -> None:
    """Output on stdout is shown although no log contains it, without color codes and with secrets masked."""
    say = f"echo 'Usage: it --token {SECRET}'; echo; echo; printf '\\033[31mno\\033[0m config\\n' >&2; exit 2"
    definition = {"command": "sh", "args": ["-c", say], "env": {"IT_TOKEN": SECRET}}
    daemon = start({"it": definition})
    error = daemon.wait_status("it", lambda status: status["status"] == "failed")["last_error"]
    assert error["noise"] == "1 line on its stdout was not JSON-RPC: Usage: it --token ***"
    assert error["stderr"] == ["no config"]


def test_calls_are_counted_by_outcome_over_all_connections(start: Start) -> None:
    """For `mcpd/call` and for MCP on an attached connection; a reconnect does not reset the counters."""
    daemon = start({"fake": fake()})
    daemon.wait_connected("fake")
    client, attached = daemon.client(), daemon.client()
    client.call("fake", "echo")
    client.call("fake", "fail")
    with pytest.raises(Refused):
        client.call("fake", "error")
    with pytest.raises(Refused):
        client.call("fake", "drop", timeout=0.5)
    client.request("mcpd/reconnect", server="fake", wait=BOUND)
    attached.request("mcpd/attach", server="fake")
    attached.request("tools/call", name="echo", arguments={})
    with pytest.raises(Refused):
        attached.request("tools/call", name="error", arguments={})
    left = daemon.client()
    left.send("mcpd/call", server="fake", tool="drop", arguments={})
    in_flight(daemon, "fake", 1)
    left.close()
    in_flight(daemon, "fake", 0)
    server = stats_of(client, "fake")
    counts = {key: server["counts"][key] for key in ("calls", "errors", "lost", "cancelled")}
    assert counts == {"calls": 7, "errors": 3, "lost": 1, "cancelled": 1}
    assert {tool["tool"]: tool["counts"]["calls"] for tool in server["tools"]} == {
        "echo": 2,
        "error": 2,
        "drop": 2,
        "fail": 1,
    }
    assert server["counts"]["p50_ms"] > 0
    assert server["buckets"][-1]["calls"] == 5
    assert server["cost"] is None


def test_a_process_that_left_its_tree_is_counted_with_who_started_it(start: Start) -> None:
    """Its parent is dead and its session its own; the mark in its environment names the server."""
    script = f"(setsid sleep 60 </dev/null >/dev/null 2>&1 &); exec {sys.executable} -I -S {FAKE}"
    daemon = start({"fake": {"command": "/bin/sh", "args": ["-c", script]}, "other": fake()})
    daemon.wait_connected("fake", "other")
    client = daemon.client()
    wait_until(
        lambda: stats_of(client, "fake", processes=True)["cost"]["processes"] == 2,
        lambda: "the stray is not counted",
    )
    assert stats_of(client, "other", processes=True)["cost"]["processes"] == 1


def test_tap_shows_messages_without_secrets_across_a_reconnect(start: Start) -> None:
    """The tap shows only the requested messages."""
    daemon = start({"fake": fake(env={"API_TOKEN": SECRET})})
    daemon.wait_connected("fake")
    watcher, client = daemon.client(), daemon.client()
    watcher.send("mcpd/tap", server="fake", methods=["tools/call", "server/discover"])
    wait_begun(watcher)
    client.call("fake", "echo", {"said": f"it is {SECRET}!"})
    client.request("mcpd/reconnect", server="fake", wait=BOUND)
    frames: list[Json] = []
    while not (frames and frames[-1]["method"] == "server/discover"):
        frames.append(watcher.next_notification()["params"]["frame"])
    shown = json.dumps(frames)
    assert SECRET not in shown
    assert "it is ***!" in shown
    assert [frame["method"] or frame["text"] for frame in frames] == [
        "tools/call",
        "tools/call",
        "connection closed",
        "opening a connection",
        "server/discover",
    ]


def test_log_follower_gets_every_line_of_a_burst(start: Start) -> None:
    """A burst may exceed any buffer of notifications: the lines wait in the log."""
    daemon = start({"fake": fake()})
    daemon.wait_connected("fake")
    client, other = daemon.client(), daemon.client()
    client.request("mcpd/logs", server="fake", lines=0, follow=True)
    other.call("fake", "stderr", {"lines": 5000})
    for _ in range(5000):
        assert "line" in client.next_notification()["params"]


def test_no_counter_decreases_when_a_server_restarts(start: Start) -> None:
    """Prometheus takes a lower value for a restart at zero, and would count everything again."""
    daemon = start({"fake": fake()})
    daemon.wait_connected("fake")
    client = daemon.client()

    def counters() -> dict[tuple[str, str], float]:
        families = text_string_to_metric_families(client.request("mcpd/metrics")["text"])
        kinds = ("counter", "histogram")
        return {
            (sample.name, str(sorted(sample.labels.items()))): sample.value
            for family in families
            if family.type in kinds
            for sample in family.samples
        }

    client.call("fake", "echo")
    looks = [counters()]
    client.request("mcpd/reconnect", server="fake", wait=BOUND)
    client.call("fake", "fail")
    looks.append(counters())
    client.request("mcpd/disconnect", server="fake", wait=BOUND)
    looks.append(counters())
    client.request("mcpd/connect", server="fake", wait=BOUND)
    looks.append(counters())
    assert any(name == "mcpd_server_cpu_seconds_total" and value > 0 for (name, _), value in looks[2].items())
    for earlier, later in itertools.pairwise(looks):
        assert {key: later.get(key, -1) for key in earlier if later.get(key, -1) < earlier[key]} == {}


def test_a_ping_is_a_real_round_trip(start: Start) -> None:
    """A ping contacts a connected server and never starts one."""
    daemon = start({"fake": fake(), "lazy": fake(lazy=True)})
    daemon.wait_connected("fake")
    client = daemon.client()
    assert client.request("mcpd/ping", server="fake")["ms"] > 0
    with pytest.raises(Refused) as refused:
        client.request("mcpd/ping", server="lazy")
    assert refused.value.code == "not_ready"
    assert daemon.status("lazy")["status"] == "idle"
    began = time.monotonic()
    pid = daemon.status("fake")["pid"]
    os.kill(pid, signal.SIGSTOP)
    try:
        with pytest.raises(Refused) as refused:
            client.request("mcpd/ping", server="fake", timeout=0.2)
        assert refused.value.code == "timeout"
        message = refused.value.body["message"]
        assert message == "fake: no answer to server/discover within 0.2 s"  # no setting limits that
        with pytest.raises(Refused, match="is stopped") as refused:
            client.call("fake", "echo", timeout=5.0)
        assert refused.value.code == "timeout"
        assert f"; run `kill -CONT -{pid}` or `mcpctl reconnect fake`" in refused.value.body["message"]
    finally:
        os.kill(pid, signal.SIGCONT)
    assert time.monotonic() - began < BOUND

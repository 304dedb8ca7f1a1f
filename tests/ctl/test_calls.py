"""`mcpctl calls` and `mcpctl cache`."""

from __future__ import annotations

from typing import Any

from tests.ctl.conftest import Mcpctl
from tests.ctl.fake_daemon import FakeDaemon


def record(**members: object) -> dict[str, Any]:
    return {
        "at": "2026-11-22T10:00:00.000Z",
        "outcome": "ok",
        "client": "zed",
        "pid": 7,
        "via": "bridge",
        "server": "time",
        "method": "tools/call",
        "name": "now",
        "duration_ms": 12.4,
        "response_bytes": 222,
        **members,
    }


def test_calls_are_shown_as_a_table(daemon: FakeDaemon, mcpctl: Mcpctl) -> None:
    """A call of another method is shown with the method, and what could not be written is counted."""
    failed = record(outcome="failed", message="time: no response", client="", pid=None)
    read = record(method="resources/read", name="file:///x", cached=True)
    many = {"at": "2026-11-22T10:00:01.000Z", "outcome": "omitted", "count": 31}
    daemon.answers["mcpd/calls"] = {"calls": [record(), failed, read, many], "dropped": 1}
    ran = mcpctl("calls", "--utc", "-n", "9", "--server", "time", "--failed")
    heading, *rows = ran.out.splitlines()
    assert heading.split() == [
        "WHEN",
        "(UTC)",
        "CLIENT",
        "SERVER",
        "CALL",
        "OUTCOME",
        "TIME",
        "BYTES",
        "MESSAGE",
    ]
    assert rows[0].split() == ["11-22", "10:00:00", "zed", "(7)", "time", "now", "ok", "12", "ms", "222"]
    assert rows[1].endswith("time: no response")
    assert "resources/read file:///x  ok (cached)" in rows[2]
    assert rows[3].endswith("31 more calls in one second")
    assert "1 call could not be written" in ran.err
    params = daemon.params_of("mcpd/calls")
    assert params == {
        "limit": 9,
        "since": "",
        "client": "",
        "server": "time",
        "name": "",
        "failed": True,
        "follow": False,
    }


def test_time_is_relative(daemon: FakeDaemon, mcpctl: Mcpctl) -> None:
    daemon.answers["mcpd/calls"] = {"calls": [], "dropped": 0}
    assert "no calls yet" in mcpctl("calls").err
    assert "no calls match" in mcpctl("calls", "time").err
    assert daemon.params_of("mcpd/calls")["server"] == "time"
    assert mcpctl("calls", "time", "--server", "git").code == 2
    assert "no calls match" in mcpctl("calls", "--since", "1h").err
    assert daemon.params_of("mcpd/calls")["since"].endswith("Z")
    assert mcpctl("calls", "--since", "yesterday").code == 2


def test_cache_is_cleared(daemon: FakeDaemon, mcpctl: Mcpctl) -> None:
    daemon.answers["mcpd/cache/clear"] = {"results": 12}
    assert mcpctl("cache", "clear", "time").out == "dropped 12 results\n"
    assert daemon.params_of("mcpd/cache/clear") == {"server": "time"}

"""`--tag`: the tools with a tag, in lists and figures."""

from __future__ import annotations

from typing import Any

import pytest

from tests.ctl.conftest import Mcpctl
from tests.ctl.fake_daemon import FakeDaemon

TOOLS: list[dict[str, Any]] = [
    {"name": "read", "server": "git", "tags": ["work", "safe"], "description": "Reads."},
    {"name": "push", "server": "git", "tags": ["work"], "description": "Pushes."},
    {"name": "now", "server": "time", "description": "Tells the time."},
]


@pytest.fixture
def tagged(daemon: FakeDaemon) -> FakeDaemon:
    daemon.answers["mcpd/tools"] = {"tools": TOOLS, "dropped": 0}
    counts = {"calls": 3, "errors": 1, "lost": 0, "p50_ms": 1.0, "p95_ms": 2.0, "p99_ms": 3.0}
    git = {
        "server": "git",
        "counts": counts,
        "tools": [
            {"tool": "read", "tags": ["work", "safe"], "counts": counts},
            {"tool": "push", "tags": ["work"], "counts": counts},
        ],
    }
    time = {"server": "time", "counts": counts, "tools": [{"tool": "now", "counts": counts}]}
    daemon.answers["mcpd/stats"] = {"servers": [git, time]}
    return daemon


def test_list_tools_with_a_tag(tagged: FakeDaemon, mcpctl: Mcpctl) -> None:
    out = mcpctl("list-tools", "--tag", "work").out
    assert "read@git" in out
    assert "push@git" in out
    assert "now@time" not in out
    assert [tool["name"] for tool in mcpctl("list-tools", "--tag", "safe", "--json").json()["tools"]] == [
        "read"
    ]
    ran = mcpctl("list-tools", "--tag", "saf")
    assert (ran.code, ran.out) == (0, "")
    assert "no tool has the tag 'saf'" in ran.err


def test_list_tools_with_a_tag_and_a_text(tagged: FakeDaemon, mcpctl: Mcpctl) -> None:
    """Both apply, and so does the server."""
    found = mcpctl("list-tools", "git", "--tag", "work", "--grep", "push", "--json").json()["tools"]
    assert [tool["name"] for tool in found] == ["push"]
    assert tagged.params_of("mcpd/tools") == {"server": "git"}


def test_stats_of_the_tools_with_a_tag(tagged: FakeDaemon, mcpctl: Mcpctl) -> None:
    ran = mcpctl("stats", "--tag", "work")
    header, *rows = ran.out.splitlines()
    assert header.split() == ["TOOL", "CALLS", "ERRORS", "LOST", "P50", "P95", "P99"]
    assert [row.split()[:4] for row in rows] == [["read@git", "3", "1", "0"], ["push@git", "3", "1", "0"]]
    (tool,) = mcpctl("stats", "git", "--tag", "safe", "--json").json()["tools"]
    assert (tool["server"], tool["tool"]) == ("git", "read")
    assert tagged.params_of("mcpd/stats")["server"] == "git"
    ran = mcpctl("stats", "--tag", "never")
    assert (ran.code, ran.out) == (0, "")
    assert "no tool with the tag 'never' has been called" in ran.err

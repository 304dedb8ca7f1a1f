"""SetServers and the configuration file: changes are atomic, and an invalid file keeps the last valid set."""

from __future__ import annotations

import json
import time
from pathlib import Path

import pytest

from mcpd.model.status import rfc3339
from tests.e2e import harness
from tests.e2e.conftest import Start
from tests.e2e.harness import Daemon, Refused, fake, in_flight


def pids(daemon: Daemon) -> dict[str, int | None]:
    return {status["name"]: status["pid"] for status in daemon.client().request("mcpd/status")["servers"]}


def test_calls_wait_for_a_server_whose_definition_has_changed(start: Start) -> None:
    """They go to its replacement, also while the old process takes time to stop."""
    daemon = start({"fake": fake("--ignore-eof")})
    daemon.wait_connected("fake")
    client, other, before = daemon.client(), daemon.client(), pids(daemon)
    other.request("mcpd/attach", server="fake")
    lost = client.send("mcpd/call", server="fake", tool="drop", arguments={})
    in_flight(daemon, "fake", 1)
    change = client.send("mcpd/servers/set", servers={"fake": fake("--tools", "2")})
    with pytest.raises(Refused):
        client.answer(lost)  # the connection is closed now
    for _ in range(20):
        assert client.call("fake", "echo", {"text": "a"})["success"]
        assert "content" in other.request("tools/call", name="echo", arguments={"text": "a"})
    client.answer(change)
    assert pids(daemon) != before


def test_a_set_from_the_api_outlives_the_daemon_until_the_file_changes(tmp_path: Path) -> None:
    """A crash must not restore the replaced set, but a newer file replaces the set."""
    with harness.running(tmp_path, {"file": fake()}) as daemon:
        daemon.client().request("mcpd/servers/set", servers={"api": fake()})
        daemon.wait_connected("api")
    with harness.running(tmp_path, {"file": fake()}) as daemon:
        assert list(pids(daemon)) == ["api"]
    with harness.running(tmp_path, {"file": fake("--tools", "1")}) as daemon:
        assert list(pids(daemon)) == ["file"]


def test_added_servers_are_written_to_the_file_and_removed_ones_taken_out(start: Start) -> None:
    """`mcpctl add` and `remove` are permanent, and comments in the file stay."""
    daemon = start({"fake": fake()})
    daemon.config.write_text("// mine\n" + daemon.config.read_text())
    client = daemon.client()
    applied = client.request("mcpd/add", server="new", definition=fake())
    daemon.wait_connected("new")
    assert applied["added"] == ["new"]
    assert applied["saved"] == str(daemon.config)
    assert '"new"' in daemon.config.read_text()
    with pytest.raises(Refused, match="already"):
        client.request("mcpd/add", server="new", definition=fake())

    removed = client.request("mcpd/remove", server="new")
    assert removed["removed"] == ["new"]
    assert '"new"' not in daemon.config.read_text()
    assert daemon.config.read_text().startswith("// mine")


def test_end_of_a_timed_disable_must_be_in_the_future(start: Start) -> None:
    """It is a timestamp with a zone."""
    daemon = start({"fake": fake()})
    daemon.wait_connected("fake")
    for wrong in "tomorrow", "2026-11-21T18:00:00", rfc3339(time.time() - 1):
        with pytest.raises(Refused, match=r"(is not a timestamp with a zone|is in the past)"):
            daemon.client().request("mcpd/disable", server="fake", until=wrong)
    assert daemon.status("fake")["status"] == "connected"


def test_saved_removal_is_written_even_if_another_set_is_in_force(start: Start) -> None:
    """Otherwise the server would be back after the next start."""
    daemon = start({"stays": fake(), "goes": fake()})
    client = daemon.client()
    client.request("mcpd/add", server="for-now", definition=fake(), save=False)
    removed = client.request("mcpd/remove", server="goes", save=True)
    assert removed["saved"] == str(daemon.config)
    assert list(json.loads(daemon.config.read_text())["mcpServers"]) == ["stays"]
    assert pids(daemon).keys() == {"stays", "for-now"}
    client.request("mcpd/reload")
    assert pids(daemon).keys() == {"stays"}

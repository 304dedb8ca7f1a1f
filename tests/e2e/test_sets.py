"""SetServers and the configuration file: changes are atomic, and an invalid file keeps the last valid set."""

from __future__ import annotations

import json
import math
import os
import signal
import time
from pathlib import Path
from typing import Any

import pytest

from mcpd.model.status import rfc3339
from tests.e2e import harness
from tests.e2e.conftest import Start
from tests.e2e.harness import Daemon, Refused, fake, in_flight


def pids(daemon: Daemon) -> dict[str, int | None]:
    return {status["name"]: status["pid"] for status in daemon.client().request("mcpd/status")["servers"]}


def write(daemon: Daemon, servers: dict[str, Any]) -> None:
    daemon.config.write_text(json.dumps({"mcpServers": servers, "settings": {"watch": False}}))


def test_unchanged_servers_keep_their_process(start: Start) -> None:
    """The plan lists added, removed and changed servers; the others are not touched."""
    daemon = start({"stays": fake(), "goes": fake(), "turns": fake()})
    daemon.wait_connected("stays", "goes", "turns")
    before = pids(daemon)
    applied = daemon.client().request(
        "mcpd/servers/set", servers={"stays": fake(), "turns": fake("--tools", "2"), "comes": fake()}
    )
    daemon.wait_connected("turns", "comes")
    after = pids(daemon)

    assert (applied["added"], applied["removed"]) == (["comes"], ["goes"])
    assert (applied["changed"], applied["unchanged"]) == (["turns"], ["stays"])
    assert applied["errors"] == []
    assert after["stays"] == before["stays"]
    assert after["turns"] != before["turns"]
    assert "goes" not in after


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


def test_change_that_does_not_affect_the_process_keeps_the_connection(start: Start) -> None:
    """A new timeout or filter does not restart a server."""
    daemon = start({"fake": fake("--tools", "3")})
    daemon.wait_connected("fake")
    before = daemon.status("fake")
    definition = fake("--tools", "3", includeTools=["tool-*"], timeout=5000)
    applied = daemon.client().request("mcpd/servers/set", servers={"fake": definition})
    after = daemon.wait_status("fake", lambda status: status["tools"] == 3)

    assert applied["changed"] == ["fake"]
    assert (after["pid"], after["restarts"]) == (before["pid"], 0)


def test_set_with_one_invalid_definition_changes_nothing(start: Start) -> None:
    """The change is atomic, and every error has its position."""
    daemon = start({"fake": fake()})
    daemon.wait_connected("fake")
    before = pids(daemon)
    applied = daemon.client().request(
        "mcpd/servers/set", servers={"fine": fake(), "bad": {"args": ["x"]}, "worse": {"command": 3}}
    )

    assert {problem["path"].split(".")[2] for problem in applied["errors"]} == {"bad", "worse"}
    assert applied["added"] == applied["removed"] == applied["changed"] == []
    assert pids(daemon) == before


def test_a_dry_run_tells_the_plan_and_does_nothing(start: Start) -> None:
    """As for `mcpctl apply --plan`."""
    daemon = start({"fake": fake()})
    daemon.wait_connected("fake")
    before = pids(daemon)
    applied = daemon.client().request("mcpd/servers/set", servers={"other": fake()}, dry_run=True)

    assert (applied["added"], applied["removed"], applied["dry_run"]) == (["other"], ["fake"], True)
    assert pids(daemon) == before


def test_a_set_made_for_another_generation_is_refused(start: Start) -> None:
    """A lost update becomes a conflict."""
    daemon = start({"fake": fake()})
    client = daemon.client()
    generation = client.request("mcpd/status")["config"]["generation"]
    client.request("mcpd/servers/set", servers={}, if_generation=generation)
    with pytest.raises(Refused) as refused:
        client.request("mcpd/servers/set", servers={"fake": fake()}, if_generation=generation)

    assert refused.value.code == "conflict"
    assert refused.value.body["data"]["generation"] == generation + 1


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


def test_a_daemon_without_configuration_runs_and_says_how_to_add_a_server(tmp_path: Path) -> None:
    """Without a configuration, the daemon runs, and `mcpctl status` explains how to add a server."""
    with harness.running(tmp_path, {}) as daemon:
        daemon.config.unlink()
        daemon.stop()
    environ = {"MCPD_SERVERS": json.dumps([{"name": "one", **fake()}])}
    with harness.running(tmp_path, {"file": fake()}, environ=environ) as daemon:
        daemon.wait_connected("one")
        config = daemon.client().request("mcpd/status")["config"]
        assert config["source"] == "$MCPD_SERVERS"
        assert list(pids(daemon)) == ["one"]
        with pytest.raises(Refused, match="MCPD_SERVERS"):
            daemon.client().request("mcpd/add", server="two", definition=fake())


def test_disabled_server_is_in_no_list(start: Start) -> None:
    """Its tools, resources and prompts are gone until it is enabled or connected again."""
    daemon = start({"one": fake(), "two": fake("--capabilities", "tools,resources,prompts")})
    daemon.wait_connected("one", "two")

    def listed() -> set[str]:
        client = daemon.client()
        tools = client.request("mcpd/tools")["tools"]
        resources = client.request("mcpd/resources")["resources"]
        prompts = client.request("mcpd/prompts")["prompts"]
        return {entry["server"] for entry in (*tools, *resources, *prompts)}

    for off, on in (("disable", "enable"), ("disconnect", "connect")):
        daemon.client().request(f"mcpd/{off}", server="two", wait=harness.BOUND)
        assert listed() == {"one"}
        assert daemon.status("two")["tools"] == 0
        assert daemon.client().request("mcpd/tools", server="two")["tools"] == []
        daemon.client().request(f"mcpd/{on}", server="two", wait=harness.BOUND)
        assert listed() == {"one", "two"}


def test_toggles_survive_a_restart_of_the_daemon(tmp_path: Path) -> None:
    """A disabled server stays disabled after a restart; an enabled one connects."""
    servers = {"off": fake(), "on": fake(), "born-off": fake(enabled=False)}
    with harness.running(tmp_path, servers) as daemon:
        daemon.wait_connected("off", "on")
        for name, method in ("off", "disable"), ("on", "disable"), ("on", "enable"), ("born-off", "enable"):
            status = daemon.client().request(f"mcpd/{method}", server=name, wait=harness.BOUND)["server"][
                "status"
            ]
            assert status == ("disabled" if method == "disable" else "connected")
        saved = daemon.home / "state" / "mcpd" / "state.json"
        toggles = {"off": False, "on": True, "born-off": True}
        harness.wait_until(
            lambda: saved.exists() and json.loads(saved.read_text()).get("toggles") == toggles,
            saved.read_text,
        )
        os.kill(daemon.pid, signal.SIGKILL)
        daemon.process.wait(harness.BOUND)
    with harness.running(tmp_path, servers) as daemon:
        daemon.wait_connected("on", "born-off")
        off = daemon.status("off")
        assert (off["status"], off["pid"]) == ("disabled", None)


@pytest.mark.slow
def test_temporarily_disabled_server_returns_automatically_across_a_restart(tmp_path: Path) -> None:
    """The time is wall-clock time and may pass while no daemon runs; the history names the client."""
    with harness.running(tmp_path, {"fake": fake()}) as daemon:
        daemon.wait_connected("fake")
        for wrong in "tomorrow", "2026-11-21T18:00:00", rfc3339(time.time() - 1):
            with pytest.raises(
                Refused, match=r"mcpd/disable: .*(is not a timestamp with a zone|is in the past)"
            ):
                daemon.client().request("mcpd/disable", server="fake", until=wrong)
        assert daemon.status("fake")["status"] == "connected"
        later = rfc3339(math.ceil(time.time()) + 3600)
        off = daemon.client().request("mcpd/disable", server="fake", until=later, wait=harness.BOUND)[
            "server"
        ]
        assert (off["status"], off["off_until"]) == ("disabled", later)
        daemon.stop()
    with harness.running(tmp_path, {"fake": fake()}) as daemon:
        off = daemon.wait_status("fake", lambda status: status["status"] == "disabled")
        words = f"switched off until {later[:19].replace('T', ' ')} UTC"
        assert (off["off_until"], off["reason"]) == (later, words)
        soon = rfc3339(time.time() + 6)
        daemon.client().request("mcpd/disable", server="fake", until=soon)
        daemon.wait_connected("fake")
        assert rfc3339(time.time()) >= soon
        entries = daemon.client().request("mcpd/history", server="fake")["entries"]
        received = [(entry["state"], entry["message"], bool(entry["by"])) for entry in entries]
        assert ("disabled", f"it was {words}", True) in received
        assert received[-2:] == [
            ("pending", "its timed disable ended", False),
            ("connected", "", False),
        ]
        daemon.client().request("mcpd/disable", server="fake", until=later, wait=harness.BOUND)
        daemon.stop()
    saved = tmp_path / "state/mcpd/state.json"
    state = json.loads(saved.read_bytes())
    assert isinstance(state["toggles"]["fake"], float)
    saved.write_text(json.dumps({**state, "toggles": {"fake": time.time() - 1}}))
    with harness.running(tmp_path, {"fake": fake()}) as daemon:
        daemon.wait_connected("fake")


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

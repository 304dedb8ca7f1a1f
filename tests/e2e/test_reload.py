"""A changed configuration file is loaded automatically by a real daemon, and affects changed servers only."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from tests.e2e.conftest import Start
from tests.e2e.harness import Client, Daemon, Json, fake, wait_until


def whole(servers: dict[str, Json], **settings: Any) -> str:
    return json.dumps({"mcpServers": servers, "settings": settings})


def names(daemon: Daemon) -> list[str]:
    with Client(daemon.socket) as client:
        return [server["name"] for server in client.request("mcpd/status")["servers"]]


def config(daemon: Daemon) -> Json:
    with Client(daemon.socket) as client:
        return dict(client.request("mcpd/status")["config"])


def wait_names(daemon: Daemon, wanted: list[str]) -> None:
    wait_until(lambda: names(daemon) == wanted, lambda: f"{names(daemon)}\n{daemon.log[-2000:]}")


def rename_over(path: Path, text: str) -> None:
    beside = path.with_name(".new")
    beside.write_text(text)
    beside.rename(path)


def test_a_written_file_changes_only_the_servers_that_changed(start: Start) -> None:
    """Servers are added, removed, replaced and changed; an unchanged server keeps its process."""
    daemon = start({"same": fake(), "gone": fake(), "other": fake(), "note": fake()})
    daemon.wait_connected("same", "gone", "other", "note")
    pids = {name: daemon.status(name)["pid"] for name in ("same", "other", "note")}
    servers = {"same": fake(), "other": fake("--tools", "2"), "note": fake(timeout=5000), "new": fake()}
    rename_over(daemon.config, whole(servers))
    wait_names(daemon, ["same", "other", "note", "new"])
    daemon.wait_connected("same", "other", "note", "new")
    assert daemon.status("same")["pid"] == pids["same"]
    assert daemon.status("note")["pid"] == pids["note"]
    assert daemon.status("other")["pid"] != pids["other"]
    history = daemon.client().request("mcpd/history", server="new")["entries"]
    assert history
    received = [e for e in daemon.client().request("mcpd/history")["entries"] if "+new" in e["message"]]
    assert received[0]["by"] == "a change of the file"
    for name, part in (("other", "args"), ("note", "timeout")):
        entries = daemon.client().request("mcpd/history", server=name)["entries"]
        changed = [(entry["message"], entry["by"]) for entry in entries if entry["what"] == "config"]
        assert changed == [(f"definition changed: {part} (generation 2)", "a change of the file")]
    entries = daemon.client().request("mcpd/history", server="same")["entries"]
    assert not [entry for entry in entries if entry["what"] == "config"]


def test_a_set_from_the_api_survives_a_touch_of_the_file_and_not_a_change(start: Start) -> None:
    """The daemon knows changes made by `mcpctl add` already; changes made by the user win."""
    daemon = start({"a": fake()})
    client = daemon.client()
    client.request("mcpd/servers/set", servers={"a": fake(), "api": fake()})
    rename_over(daemon.config, daemon.config.read_text())
    client.request("mcpd/add", server="later", definition=fake(), save=True)
    for _ in range(50):
        assert names(daemon) == ["a", "api", "later"]
    rename_over(daemon.config, whole({"mine": fake()}))
    wait_names(daemon, ["mine"])

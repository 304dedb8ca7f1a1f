"""Dedicated servers (`share`), with the real daemon and real processes."""

from __future__ import annotations

import os
import shutil
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from tests.e2e.conftest import start
from tests.e2e.harness import Refused, fake, wait_until
from tests.gateway.mcp_client import McpClient
from tests.interop.peers import ROOT

__all__ = ["start"]

Start = Any
NEW = "2025-11-25"


def test_share_client_gives_each_client_its_own_process(start: Start) -> None:
    """The process ends with its client."""
    daemon = start({"own": fake(share="client"), "all": fake("--era", "legacy")})
    daemon.wait_connected("own", "all")
    one, two = McpClient(daemon, NEW), McpClient(daemon, NEW, server="own")
    mine, yours = one.call("own__pid"), two.call("pid")
    assert len({mine, yours, str(daemon.status("own")["pid"])}) == 3
    assert one.call("own__pid") == mine
    assert one.call("all__pid") == str(daemon.status("all")["pid"])
    names = {status["name"] for status in daemon.client().request("mcpd/status")["servers"]}
    assert names == {"own", "all", "own~1", "own~2"}
    (stats,) = daemon.client().request("mcpd/stats", server="own", processes=True)["servers"]
    assert (stats["counts"]["calls"], stats["cost"]["processes"]) == (3, 3), "all of them are the server's"
    one.line.close()
    wait_until(lambda: not Path(f"/proc/{mine}").exists(), lambda: "its process is still there")
    assert two.call("pid") == yours


def test_dedicated_server_is_addressed_by_its_own_name(start: Start) -> None:
    """`status` has a row for each and suggests commands with its name; `doctor` checks each one."""
    daemon = start({"own": fake(share="client")})
    daemon.wait_connected("own")
    client, control = McpClient(daemon, NEW), daemon.client()
    mine = client.call("own__pid")
    received = control.request("mcpd/server", server="own~1")
    assert str(received["server"]["pid"]) == mine
    assert received["definition"] == control.request("mcpd/server", server="own")["definition"] != {}
    assert control.request("mcpd/ping", server="own~1")["ms"] > 0
    assert "lines" in control.request("mcpd/logs", server="own~1")
    again = control.request("mcpd/reconnect", server="own~1", wait=30)["server"]
    assert again["status"] == "connected"
    assert client.call("own__pid") == str(again["pid"]) != mine
    assert daemon.status("own")["restarts"] == 0
    for method, params in ("call", {"tool": "pid"}), ("disable", {}), ("enable", {}):
        with pytest.raises(Refused) as refused:
            control.request(f"mcpd/{method}", server="own~1", **params)
        assert refused.value.code == "unknown_server", method


def test_disabling_a_definition_stops_its_dedicated_servers(start: Start) -> None:
    """Their calls fail, none is started, and after enabling it each client gets a new one."""
    daemon = start({"own": fake(share="client")})
    daemon.wait_connected("own")
    here, control = McpClient(daemon, NEW, server="own"), daemon.client()
    mine = here.call("pid")
    under_way = here.send("tools/call", name="drop", arguments={})
    wait_until(lambda: daemon.status("own~1")["in_flight"] == 1, lambda: "the call is not there")
    control.request("mcpd/disable", server="own", wait=30)
    with pytest.raises(Refused, match="it was disabled before tool 'drop' was answered; it may have run"):
        here.wait(under_way)
    wait_until(lambda: not Path(f"/proc/{mine}").exists(), lambda: "its process is still there")
    for client in here, McpClient(daemon, NEW, server="own"):
        with pytest.raises(Refused, match="own is disabled: switched off"):
            client.call("pid")
    wait_until(
        lambda: [status["name"] for status in control.request("mcpd/status")["servers"]] == ["own"],
        lambda: "an instance is still there",
    )
    on = control.request("mcpd/enable", server="own", wait=30)["server"]
    assert on["status"] == "connected"
    assert here.call("pid") not in (mine, str(on["pid"]))


def test_filesystem_server_keeps_the_directories_of_clients_apart(start: Start, tmp_path: Path) -> None:
    """The real server replaces the directories in its command with the roots that it receives."""
    program = shutil.which(
        "mcp-server-filesystem", path=f"{ROOT / '.npm/node_modules/.bin'}:{os.environ['PATH']}"
    )
    if program is None:
        pytest.skip("mcp-server-filesystem is not there: `make npm` installs it")
    files = {name: tmp_path / name / "note.txt" for name in ("configured", "one", "two")}
    for name, file in files.items():
        file.parent.mkdir()
        file.write_text(name)
    daemon = start({"fs": {"command": program, "args": [str(tmp_path / "configured")]}})
    daemon.wait_connected("fs")

    def answering(result: dict[str, Any]) -> Any:
        return lambda method, params: result

    def readable(client: McpClient) -> set[str]:
        results = {
            name: client.request("tools/call", name="read_text_file", arguments={"path": str(file)})
            for name, file in files.items()
        }
        return {name for name, result in results.items() if not result.get("isError")}

    def reads_only(client: McpClient, name: str) -> bool:
        return readable(client) == {name}

    plain = McpClient(daemon, NEW, server="fs", client={"name": "e", "cwd": str(tmp_path)}, capabilities={})
    assert readable(plain) == {"configured"}
    editors = {}
    for name in ("one", "two"):
        root = {"uri": files[name].parent.as_uri()}
        editors[name] = McpClient(daemon, NEW, server="fs", answer=answering({"roots": [root]}))
        wait_until(partial(reads_only, editors[name], name), lambda: "its roots have not arrived")
    assert readable(editors["one"]) == {"one"}
    assert readable(plain) == {"configured"}
    shell = daemon.client().call("fs", "read_text_file", {"path": str(files["one"])})
    assert not shell["success"]
    for editor in editors.values():
        editor.line.close()
    assert readable(plain) == {"configured"}

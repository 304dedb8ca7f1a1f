"""Who shares a process with whom, with the real daemon and real processes."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from tests.e2e.conftest import start
from tests.e2e.harness import Refused, fake, wait_until
from tests.gateway.mcp_client import McpClient

__all__ = ["start"]

Start = Any
NEW = "2025-11-25"


def test_each_client_has_a_process_of_its_own_and_takes_it_along(start: Start) -> None:
    """D6, `share: client`: nothing of one client's is another's; with the client the process ends."""
    daemon = start({"own": fake(share="client"), "all": fake()})
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


def test_an_instance_is_looked_at_and_reconnected_by_its_name(start: Start) -> None:
    """`status` has a row for each and names it in what to type next; `doctor` asks each one that is there."""
    daemon = start({"own": fake(share="client")})
    daemon.wait_connected("own")
    client, control = McpClient(daemon, NEW), daemon.client()
    mine = client.call("own__pid")
    told = control.request("mcpd/server", server="own~1")
    assert str(told["server"]["pid"]) == mine
    assert told["definition"] == control.request("mcpd/server", server="own")["definition"] != {}
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


def test_what_is_switched_off_is_off_for_every_client(start: Start) -> None:
    """Its instances end with their calls, none is started, and a client has a new one when it is on again."""
    daemon = start({"own": fake(share="client")})
    daemon.wait_connected("own")
    here, control = McpClient(daemon, NEW, server="own"), daemon.client()
    mine = here.call("pid")
    under_way = here.send("tools/call", name="drop", arguments={})
    wait_until(lambda: daemon.status("own~1")["in_flight"] == 1, lambda: "the call is not there")
    control.request("mcpd/disable", server="own", wait=30)
    with pytest.raises(Refused, match="it was disabled before tools/call was answered; it may have run"):
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


def test_the_name_of_an_instance_that_has_ended_is_used_again(start: Start) -> None:
    """Each name has a log file: a daemon that runs for months must not fill a directory with them."""
    daemon = start({"own": fake(share="client"), "other": fake(share="client")})
    daemon.wait_connected("own", "other")

    def there() -> set[str]:
        return {status["name"] for status in daemon.client().request("mcpd/status")["servers"]}

    staying = McpClient(daemon, NEW, server="other")
    staying.call("pid")
    for _ in range(3):
        client = McpClient(daemon, NEW, server="own")
        client.call("pid")
        assert there() == {"own", "other", "own~1", "other~1"}
        client.line.close()
        wait_until(lambda: "own~1" not in there(), lambda: "its instance is still there")


def test_clients_that_work_in_one_root_share_a_process(start: Start, tmp_path: Path) -> None:
    """D6, `share: root`: started in that directory, and told of that root only."""
    daemon = start({"here": fake("--era", "legacy", share="root")})
    daemon.wait_connected("here")
    places = [tmp_path / "a", tmp_path / "b"]
    for place in places:
        place.mkdir()
    clients = [
        McpClient(daemon, NEW, server="here", client={"name": "e", "cwd": str(place)}, capabilities={})
        for place in (places[0], places[1], places[0])
    ]
    pids = [client.call("pid") for client in clients]
    assert pids[0] == pids[2] != pids[1]
    assert clients[0].call("cwd") == str(places[0])
    roots = json.loads(clients[0].call("ask", {"method": "roots/list"}))["result"]["roots"]
    assert roots == [{"uri": places[0].as_uri()}]


def seen(client: McpClient, method: str, server: str = "") -> int:
    """How often the server that the client uses was told that."""
    prefix = f"{server}__" if server else ""
    return int(json.loads(client.call(f"{prefix}counts"))["seen"].get(method, 0))


def test_an_instance_hears_what_its_client_wishes_and_where_it_works(start: Start) -> None:
    """The log level from before it started, and every change of the client's roots."""
    daemon = start({"own": fake("--era", "legacy", "--capabilities", "tools,logging", share="client")})
    daemon.wait_connected("own")
    client = McpClient(daemon, NEW)
    client.request("logging/setLevel", level="debug")
    wait_until(lambda: seen(client, "logging/setLevel", "own") == 1, lambda: "its instance was told no level")
    client.request("logging/setLevel", level="error")
    wait_until(
        lambda: seen(client, "logging/setLevel", "own") == 2, lambda: "its instance was told no other level"
    )
    told = seen(client, "notifications/roots/list_changed", "own")
    client._answer = lambda method, params: {"roots": [{"uri": "file:///somewhere/else"}]}
    client.line.notify("notifications/roots/list_changed")
    wait_until(
        lambda: seen(client, "notifications/roots/list_changed", "own") > told,
        lambda: "its instance was not told that the roots changed",
    )


def test_the_end_of_an_instance_is_no_news_to_other_clients(start: Start) -> None:
    """Their lists are those of the definition: nothing of them has changed."""
    daemon = start({"own": fake(share="client"), "all": fake()})
    daemon.wait_connected("own", "all")
    staying, leaving = McpClient(daemon, NEW), McpClient(daemon, NEW)
    pid = leaving.call("own__pid")
    leaving.line.close()
    wait_until(
        lambda: {s["name"] for s in daemon.client().request("mcpd/status")["servers"]} == {"own", "all"},
        lambda: "its process is still there",
    )
    assert not Path(f"/proc/{pid}").exists()
    staying.call("all__echo")
    assert [message["method"] for message in staying.heard] == []


def test_a_server_that_was_switched_off_learns_the_level_when_it_is_back(start: Start) -> None:
    daemon = start({"off": fake("--era", "legacy", "--capabilities", "tools,logging"), "on": fake()})
    daemon.wait_connected("off", "on")
    daemon.client().request("mcpd/disable", server="off")
    client = McpClient(daemon, NEW)
    client.request("logging/setLevel", level="debug")
    daemon.client().request("mcpd/enable", server="off")
    daemon.wait_connected("off")
    wait_until(lambda: seen(client, "logging/setLevel", "off") == 1, lambda: "it was told no level")


def test_a_definition_that_changes_takes_its_instances_along(start: Start) -> None:
    daemon = start({"own": fake(share="client")})
    daemon.wait_connected("own")
    client = McpClient(daemon, NEW, server="own")
    before = client.call("pid")
    changed = {"own": {**fake("--tools", "1", share="client")}}
    daemon.config.write_text(json.dumps({"mcpServers": changed}))
    daemon.client().request("mcpd/reload")
    wait_until(lambda: not Path(f"/proc/{before}").exists(), lambda: "its process is still there")
    assert client.call("tool-00001") == "tool-00001"
    assert client.call("pid") != before


def test_calls_that_change_something_do_not_overlap(start: Start) -> None:
    """`concurrency: writes`: each is sent when the one before has been answered."""
    daemon = start({"slow": fake(concurrency="writes")})
    daemon.wait_connected("slow")
    client = McpClient(daemon, NEW, server="slow", capabilities={})
    keys = [client.send("tools/call", name="late", arguments={"seconds": 0.2}) for _ in range(3)]
    keys.append(client.send("tools/call", name="counts", arguments={}))
    results = [client.wait(key) for key in keys]
    seen = json.loads(results[-1]["content"][0]["text"])["seen"]
    assert seen["tools/call"] == 4
    assert [result["content"][0]["text"] for result in results[:3]] == ["late"] * 3
    both = [daemon.client() for _ in range(2)]
    sent = [one.send("mcpd/call", server="slow", tool="late", arguments={"seconds": 0.2}) for one in both]
    for one, key in zip(both, sent, strict=True):
        assert one.answer(key)["output"] == "late"

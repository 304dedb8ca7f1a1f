"""Policies with the real daemon: every way in, changes of the file, and `mcpctl policy test`."""

from __future__ import annotations

import json
import os
import re
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.e2e.conftest import Start
from tests.e2e.harness import Daemon, Json, Refused, recorded_notifications, wait_until
from tests.e2e.test_bridge import Editor
from tests.e2e.web import PORT, Session, ask, http_endpoint
from tests.example_server import TEST_SERVER
from tests.gateway.mcp_client import MODERN, McpClient

SERVER: Json = {"command": sys.executable, "args": [TEST_SERVER]}
NO_FAIL: Json = {"decision": "deny", "tools": ["fail"], "reason": "it only fails"}


def write(daemon: Daemon, *policies: object) -> None:
    document = json.loads(daemon.config.read_text())
    document["settings"]["policies"] = list(policies)
    daemon.config.write_text(json.dumps(document))


def names(tools: Json) -> set[str]:
    return {tool["name"].rpartition("__")[2] for tool in tools["tools"]}


def test_denied_tool_is_refused_over_every_transport(start: Start) -> None:
    daemon = start({"test": SERVER}, *PORT, settings={"policies": [NO_FAIL]})
    daemon.wait_connected("test")
    for version in (MODERN, "2025-11-25", "2024-11-05"):
        for server, prefix in ((None, "test__"), ("test", "")):
            client = McpClient(daemon, version, server=server)
            assert "fail" not in names(client.request("tools/list"))
            with pytest.raises(Refused, match=r"policies\[0\] denies it \(it only fails\)"):
                client.call(f"{prefix}fail")
            assert client.call(f"{prefix}echo", {"text": "a"})
    with daemon.client() as control:
        assert "fail" not in names(control.request("mcpd/tools"))
        with pytest.raises(Refused) as refused:
            control.call("test", "fail")
        assert refused.value.code == "denied"
        assert control.call("test", "echo", {"text": "a"})["success"]
    web = http_endpoint(daemon)
    with web.client() as http:
        modern = ask(http, "/mcp", "tools/call", name="test__fail", arguments={})
        assert modern.json()["error"]["data"]["rule"] == "$.settings.policies[0]"
        session = Session(http)
        assert session.call("test__fail").json()["error"]["data"]["code"] == "denied"
        batch = Session(http, version="2025-03-26")
        answers = batch.post([batch.calling("test__fail", key) for key in range(3)]).json()
        assert [answer["error"]["data"]["code"] for answer in answers] == ["denied"] * 3
    stats = daemon.client().request("mcpd/stats", server="test")["servers"][0]
    assert stats["counts"]["calls"] == 7, "only the calls of `echo` were sent"
    assert stats["denied"] == 12
    assert 'mcpd_server_denied_total{server="test"} 12' in daemon.client().request("mcpd/metrics")["text"]


def test_changed_rules_apply_at_once_and_clients_are_notified(start: Start) -> None:
    """Invalid rules are refused as a whole, and the valid ones stay in force."""
    daemon = start({"test": SERVER})
    daemon.wait_connected("test")
    client, control = McpClient(daemon, "2025-11-25"), daemon.client()
    assert "fail" in names(client.request("tools/list"))
    write(daemon, NO_FAIL)
    control.request("mcpd/reload")
    client.wait_heard("notifications/tools/list_changed")
    assert "fail" not in names(client.request("tools/list"))
    write(daemon, {"decision": "allow"}, {"decision": "denny"})
    with pytest.raises(Refused) as refused:
        control.request("mcpd/reload")
    (problem,) = refused.value.body["data"]["problems"]
    assert problem["path"] == "$.settings.policies[1].decision"
    assert problem["fix"].startswith("write one of allow, ")
    with pytest.raises(Refused, match="denies it"):
        client.call("test__fail")
    write(daemon)
    control.request("mcpd/reload")
    client.wait_heard("notifications/tools/list_changed")
    assert "fail" in names(client.request("tools/list"))


def test_first_start_with_misplaced_rules_refuses_every_call(start: Start) -> None:
    """The servers run, and every error says that the rules have errors."""
    daemon = start({"test": SERVER}, top_level={"polices": [NO_FAIL]})
    daemon.wait_connected("test")
    client, control = McpClient(daemon, "2025-11-25"), daemon.client()
    assert client.request("tools/list")["tools"] == []
    for refused_call in (lambda: client.call("test__echo"), lambda: control.call("test", "echo")):
        with pytest.raises(Refused, match=r"at \$.settings.policies denies it \(the rules have errors\)"):
            refused_call()
    (problem,) = control.request("mcpd/status")["config"]["problems"]
    assert problem["path"] == "$.polices"
    assert problem["fix"] == "move the rules to 'settings.policies'"


def test_executable_is_what_the_kernel_says(start: Start, tmp_path: Path) -> None:
    """A bridge counts as the program that started it; a name that a client reports is not its executable."""
    me = os.readlink(f"/proc/{os.getpid()}/exe")
    allow = {"decision": "allow", "executables": [me], "transports": ["bridge"], "tools": ["fail"]}
    daemon = start({"test": SERVER}, *PORT, settings={"policies": [allow, NO_FAIL]})
    daemon.wait_connected("test")
    editor = Editor({**daemon.environ, "MCPD_SOCKET": daemon.socket}, tmp_path)
    try:
        hello: Json = {
            "protocolVersion": "2025-11-25",
            "capabilities": {},
            "clientInfo": {"name": "ed", "version": "1"},
        }
        editor.send(id=1, method="initialize", params=hello)
        assert editor.next()["id"] == 1
        editor.send(method="notifications/initialized")
        editor.send(id=2, method="tools/call", params={"name": "test__fail", "arguments": {}})
        while (answer := editor.next()).get("id") != 2:
            pass
        assert "denied" not in json.dumps(answer)
    finally:
        editor.process.kill()
        editor.process.communicate()
    with http_endpoint(daemon).client() as http:
        answer = ask(http, "/mcp", "tools/call", name="test__fail", arguments={}).json()
        assert answer["error"]["data"]["code"] == "denied", "the executable is not known"


def test_policy_test_explains_the_decision(start: Start) -> None:
    daemon = start(
        {"test": {**SERVER, "readOnly": True}, "other": SERVER},
        settings={
            "policies": [{"decision": "allow", "clients": ["zed"]}, NO_FAIL],
            "profiles": {"small": {"servers": ["t*"], "excludeTools": ["echo"]}},
            "profileByDirectory": {"/small": "small"},
        },
    )
    daemon.wait_connected("test", "other")
    control = daemon.client()

    def explain(client: str, server: str, **item: Any) -> tuple[str, str | None]:
        received = control.request("mcpd/policy", client=client, server=server, **item)
        return received["decision"], received["rule"]

    assert explain("zed", "test", tool="fail") == ("deny", "$.mcpServers.test.readOnly")
    assert explain("zed", "other", tool="fail") == ("allow", "$.settings.policies[0]")
    assert explain("codex", "other", tool="fail") == ("deny", "$.settings.policies[1]")
    assert explain("codex", "other", tool="echo") == ("allow", None)
    assert explain("codex", "test", prompt="x") == ("allow", None)
    received = control.request("mcpd/policy", client="codex", server="other", tool="fail")
    assert received["steps"][0] == {
        "rule": "$.settings.policies[0]",
        "decision": "allow",
        "matches": False,
        "mismatch": "the client is codex",
    }
    assert received["client"]["connected"] is False
    assert (received["known"], received["selected"]) == (True, True)
    assert control.request("mcpd/policy", client="codex", server="other", tool="x")["known"] is False
    for server, tool, selected in (("test", "fail", True), ("test", "echo", False), ("other", "fail", False)):
        for chosen in ({"profile": "small"}, {"directory": "/small/project"}):
            received = control.request("mcpd/policy", client="codex", server=server, tool=tool, **chosen)
            assert (received["selected"], received["client"]["profile"]) == (selected, "small")
    with pytest.raises(Refused, match="no profile named 'none'"):
        explain("zed", "test", tool="fail", profile="none")
    with pytest.raises(Refused, match="set one of"):
        explain("zed", "test")
    McpClient(daemon, "2025-11-25", client={"name": "Zed"})
    wait_until(
        lambda: control.request("mcpd/policy", client="zed", server="other", tool="x")["client"]["connected"],
        lambda: "the client is not known",
    )


@pytest.mark.parametrize("wanted", [True, False])
def test_call_that_waits_is_a_notification_unless_it_is_switched_off(
    start: Start, tmp_path: Path, wanted: bool
) -> None:
    """One for many calls, and none for clients that ask the person themselves: no arguments, no secrets."""
    shown, environ = recorded_notifications(tmp_path)
    settings: Json = {"policies": [{"decision": "ask"}]}
    if not wanted:
        settings["approvalNotifications"] = False
    server = {**SERVER, "env": {"API_TOKEN": "kanarie-12345"}}
    daemon = start({"test": server}, environ=environ, settings=settings)
    daemon.wait_connected("test")
    control = daemon.client()
    asking = McpClient(daemon, "2025-11-25", server="test", answer=lambda method, params: {"roots": []})
    with pytest.raises(Refused, match="approval was refused"):
        asking.call("echo", {"text": "x"})
    mute = McpClient(
        daemon, "2025-11-25", server="test", client={"name": "ed kanarie-12345"}, capabilities={}
    )
    for _ in range(3):
        mute.send("tools/call", name="add", arguments={"a": 4711, "b": 1})
    wait_until(lambda: len(control.request("mcpd/approvals")["approvals"]) == 3, lambda: daemon.log)
    if wanted:
        wait_until(lambda: "mcpctl approvals" in shown.read_text(), lambda: daemon.log)
    daemon.stop()
    said = shown.read_text()
    assert said.count("needs your approval") == int(wanted)
    assert "4711" not in said
    assert "kanarie" not in said
    if wanted:
        assert "It wants to use the tool 'add' of test" in said


def test_answer_for_good_is_a_rule_in_the_file(start: Start) -> None:
    """It allows this client this tool, survives a restart, and leaves the rest of the file as it is."""
    daemon = start({"test": SERVER})
    text = json.dumps(json.loads(daemon.config.read_text()) | {"settings": {"policies": []}}, indent=2)
    text = text.replace('"policies": []', '"policies": [\n      {"decision": "ask"}  // everything\n    ]')
    daemon.config.write_text(text)
    control = daemon.client()
    control.request("mcpd/reload")
    daemon.wait_connected("test")
    client = McpClient(daemon, "2025-11-25", server="test", client={"name": "ed"}, capabilities={})

    def approve(tool: str, decision: str, **arguments: object) -> str:
        key = client.send("tools/call", name=tool, arguments=arguments)
        wait_until(lambda: bool(control.request("mcpd/approvals")["approvals"]), lambda: "it does not wait")
        (waiting,) = control.request("mcpd/approvals")["approvals"]
        control.request("mcpd/approve", id=waiting["id"], decision=decision)
        found: str = client.wait(key)["content"][0]["text"]
        return found

    assert approve("add", "always", a=1, b=2) == "3"
    assert client.call("add", {"a": 2, "b": 2}) == "4"
    assert approve("echo", "once", text="other tools still ask") == "other tools still ask"
    new = daemon.config.read_text()
    (line,) = (line.strip() for line in new.splitlines() if '"add"' in line)
    rule = json.loads(line.rstrip(","))
    assert re.fullmatch(r"allowed by \w+ on \d.* UTC for ed.*, in mcpctl or .*", rule.pop("reason"))
    assert rule == {
        "decision": "allow",
        "clients": ["ed"],
        "executables": [os.readlink(f"/proc/{os.getpid()}/exe")],
        "servers": ["test"],
        "tools": ["add"],
    }
    kept = [line for line in new.splitlines() if '"add"' not in line]
    assert kept == text.splitlines()
    other = McpClient(daemon, "2025-11-25", server="test", client={"name": "other"}, capabilities={})
    key = other.send("tools/call", name="add", arguments={"a": 1, "b": 1})
    wait_until(lambda: bool(control.request("mcpd/approvals")["approvals"]), lambda: "it does not wait")
    control.request("mcpd/approve", id=control.request("mcpd/approvals")["approvals"][0]["id"], decision="no")
    with pytest.raises(Refused, match=r"policies\[1\]"):
        other.wait(key)

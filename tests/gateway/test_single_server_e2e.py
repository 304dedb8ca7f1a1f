"""One server through the daemon, unrenamed, with the real daemon: handshakes, lists, calls, progress,
filters."""

from __future__ import annotations

import functools
import itertools
import json
from pathlib import Path
from typing import Any

import jsonschema  # type: ignore[import-untyped]  # it has no types of its own
import pytest

from tests.e2e.conftest import start
from tests.e2e.harness import Client, Daemon, Json, Refused, fake
from tests.gateway.mcp_client import McpClient
from tests.stopwatch import stopwatch, within

__all__ = ["start"]

LEGACY = ("2025-11-25", "2025-06-18", "2025-03-26", "2024-11-05")
MODERN = "2026-07-28"
P = "io.modelcontextprotocol/"
META = {
    f"{P}protocolVersion": MODERN,
    f"{P}clientCapabilities": {},
    f"{P}clientInfo": {"name": "t", "version": "1"},
}
EVERYTHING = ("--capabilities", "tools,resources,prompts,logging,completions", "--instructions", "be kind")
Start = Any


@functools.cache
def schema(version: str, definition: str) -> Any:
    file = Path(__file__).parent.parent / "schema" / f"schema-{version}.json"
    document = json.loads(file.read_text())
    place = "$defs" if "$defs" in document else "definitions"
    return jsonschema.validators.validator_for(document)({**document, "$ref": f"#/{place}/{definition}"})


def attached(daemon: Daemon, server: str = "fake") -> Client:
    client = daemon.client()
    client.request("mcpd/attach", server=server)
    return client


def refusal(client: Client, method: str, **params: Any) -> Json:
    with pytest.raises(Refused) as refused:
        client.request(method, **params)
    return refused.value.body


def both_eras(start: Start) -> Daemon:
    """A daemon with a server of each era, both offering everything."""
    daemon: Daemon = start({era: fake("--era", era, *EVERYTHING) for era in ("modern", "legacy")})
    return daemon


def test_handshake_uses_the_clients_legacy_revision(start: Start) -> None:
    """Whatever the server speaks; only capabilities that reach the client are declared."""
    daemon = both_eras(start)
    for server, version in itertools.product(("modern", "legacy"), LEGACY):
        client = attached(daemon, server)
        me = {"name": "t", "version": "1"}
        hello = client.request("initialize", protocolVersion=version, capabilities={}, clientInfo=me)
        client.notify("notifications/initialized")

        assert [*schema(version, "InitializeResult").iter_errors(hello)] == []
        assert hello["protocolVersion"] == version
        assert hello["instructions"] == "be kind"
        lists = {"listChanged": True}
        assert hello["capabilities"] == {
            "tools": lists,
            "resources": lists,
            "prompts": lists,
            "completions": {},
            "logging": {},
        }
        assert client.request("ping") == {}
        assert (
            client.request("tools/call", name="echo", arguments={"a": 1})["content"][0]["text"] == '{"a": 1}'
        )


def test_modern_client_discovers_the_server(start: Start) -> None:
    daemon = both_eras(start)
    for server in ("modern", "legacy"):
        client = attached(daemon, server)
        found = client.request("server/discover", _meta=META)

        assert [*schema(MODERN, "DiscoverResult").iter_errors(found)] == []
        assert found["supportedVersions"] == [MODERN, *LEGACY]
        assert found["_meta"][f"{P}serverInfo"]["title"] == f"{server} through mcpd"
        assert client.request("tools/call", name="echo", arguments={"a": 1}, _meta=META)["content"]


FILTERS: list[tuple[Json, set[str], set[str]]] = [
    ({"includeTools": ["echo", "p*d"]}, {"echo", "pid"}, {"env", "fail"}),
    ({"excludeTools": ["e*"]}, {"pid", "drop"}, {"echo", "env", "error"}),
    ({"includeTools": ["e*"], "excludeTools": ["env"]}, {"echo", "error"}, {"env", "pid"}),
    ({"includeTools": ["nothing-like-it"]}, set(), {"echo", "env"}),
    ({"includeTools": []}, set(), {"echo"}),
]


@pytest.mark.parametrize("flags", [(), ("--refuse", "tools/list=-32000")], ids=["listed", "unlisted"])
def test_excluded_tools_are_neither_listed_nor_callable(start: Start, flags: tuple[str, ...]) -> None:
    """Even if no tool is left, or the list could not be fetched."""
    servers = {f"f{n}": fake("--era", "legacy", *flags, **each[0]) for n, each in enumerate(FILTERS)}
    daemon = start(servers)
    daemon.wait_connected(*servers)
    for server, (_, in_, out) in zip(servers, FILTERS, strict=True):
        client, calling = attached(daemon, server), daemon.client()
        listed = {tool["name"] for tool in client.request("tools/list")["tools"]}
        if not flags:
            assert in_ <= listed
            assert listed.isdisjoint(out)
        assert client.request("tools/list", _meta=META)["resultType"] == "complete"
        for name in out:
            assert refusal(client, "tools/call", name=name)["data"]["code"] == "unknown_tool"
            with pytest.raises(Refused, match="exclud"):
                calling.call(server, name)
        spelled = json.dumps({"jsonrpc": "2.0", "id": "e", "method": "tools/call", "params": {"name": "?"}})
        client.send_raw(spelled.replace("?", "".join(f"\\u{ord(c):04x}" for c in min(out))).encode())
        assert json.loads(client.read_line())["error"]["data"]["code"] == "unknown_tool"
        for name in in_ - {"drop", "error"}:
            assert client.request("tools/call", name=name)["content"]


def test_timeouts_follow_the_definition_and_progress_extends_them(start: Start) -> None:
    """`timeout` (ms of silence), `toolTimeouts` for single tools; a timeout in the call wins."""
    daemon = start({"fake": fake(timeout=400, toolTimeouts={"late": 60_000, "echo": 60_000})})
    daemon.wait_connected("fake")
    client = attached(daemon)
    control = daemon.client()
    control.call("fake", "echo")

    assert refusal(client, "tools/call", name="drop")["data"]["code"] == "timeout"
    assert client.request("tools/call", name="late", arguments={"seconds": 0.8})["content"]
    assert any(
        in_steps(client, total=1, every=0.1) for _ in range(10)
    )  # on a busy machine a step may take 0.4 s
    with stopwatch() as watch, pytest.raises(Refused, match=r"took 0\.2 s"):
        control.call("fake", "late", {"seconds": 5}, timeout=0.2)
    assert within(watch.seconds, 0.7)
    for wrong in (0, -1, "5"):
        with pytest.raises(Refused) as refused:
            control.call("fake", "echo", timeout=wrong)
        assert refused.value.code == "invalid_arguments"


def in_steps(client: Client, **arguments: float) -> bool:
    """Whether a call that reports progress all the while was given the time it takes."""
    try:
        return bool(client.request("tools/call", name="progress", arguments=arguments)["content"])
    except Refused:
        return False


@pytest.mark.parametrize("version", [MODERN, *LEGACY])
def test_every_frame_sent_to_a_server_is_valid_in_its_revision(
    start: Start, tmp_path: Path, version: str
) -> None:
    """Handshake, lists, calls, reads, cancellations and responses, all checked against the schema."""
    kept = tmp_path / "frames"
    flags = ["--era", "modern"] if version == MODERN else ["--era", "legacy", "--versions", version]
    definition = fake(*flags, *EVERYTHING)
    definition = {
        "command": "sh",
        "args": ["-c", f'tee -a {kept} | "$0" "$@"', definition["command"], *definition["args"]],
    }
    daemon = start({"fake": definition})
    daemon.wait_connected("fake")
    client, control = attached(daemon), daemon.client()
    client.request("tools/call", name="echo", arguments={"a": 1}, _meta={"progressToken": "x", **META})
    client.request("resources/read", uri="fake://one", _meta={"progressToken": 3})
    client.request("tools/list")
    control.request("mcpd/read", server="fake", uri="fake://one")
    control.request("mcpd/prompt", server="fake", prompt="hello", arguments={"a": "b"})
    argument = {"name": "a", "value": "b"}
    control.request(
        "mcpd/complete", server="fake", ref={"type": "ref/prompt", "name": "hello"}, argument=argument
    )
    with pytest.raises(Refused):
        control.call("fake", "drop", timeout=0.1)
    if version != MODERN:
        for method in ("ping", "roots/list", "sampling/createMessage"):
            control.call("fake", "ask", {"method": method})
    control.call("fake", "echo")
    frames = [json.loads(line) for line in kept.read_text().splitlines()]

    assert len(frames) > 10
    for frame in frames:
        if "method" in frame:
            kind = "ClientRequest" if "id" in frame else "ClientNotification"
            if version != MODERN and frame["method"] == "server/discover":
                continue  # the probe, before anybody knows the era
        else:
            assert version != MODERN  # responses are the server's there
            kind = "JSONRPCMessage"
        assert [*schema(version, kind).iter_errors(frame)] == [], frame
        assert [*schema(version, "JSONRPCMessage").iter_errors(frame)] == [], frame


def test_batch_is_answered_with_a_batch(start: Start) -> None:
    """Only 2025-03-26 has batches; in other revisions they are invalid."""
    daemon = start({"fake": fake()})
    me = {"name": "t", "version": "1"}
    for version, known in (("2025-03-26", True), ("2025-11-25", False)):
        client = attached(daemon)
        client.request("initialize", protocolVersion=version, capabilities={}, clientInfo=me)
        asked = [
            {
                "jsonrpc": "2.0",
                "id": f"b{n}",
                "method": "tools/call",
                "params": {"name": "echo", "arguments": {"n": n}},
            }
            for n in range(3)
        ]
        noted = {"jsonrpc": "2.0", "method": "notifications/initialized"}
        client.send_raw(json.dumps([*asked, noted]).encode())
        answer = json.loads(client.read_line())
        if known:
            assert {each["id"] for each in answer} == {"b0", "b1", "b2"}
            assert all("content" in each["result"] for each in answer)
        else:
            assert answer["error"]["code"] == -32700


def test_tasks_pass_through_between_equal_revisions(start: Start) -> None:
    """And the capability is declared."""
    daemon = start(
        {"fake": fake("--era", "legacy", "--versions", LEGACY[0], "--capabilities", "tools,tasks")}
    )
    daemon.wait_connected("fake")
    client = McpClient(daemon, LEGACY[0], server="fake")
    assert "tasks" in client.hello["capabilities"]
    created = client.wait(client.line.send("tools/call", name="job", arguments={}, task={"ttl": 10000}))
    received = client.line.request("tasks/get", taskId=created["task"]["taskId"])
    assert received["status"] in ("working", "completed")
    older = McpClient(daemon, LEGACY[1], server="fake")
    assert "tasks" not in older.hello["capabilities"]

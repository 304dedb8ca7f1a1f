"""Validation of tool calls, however they reach the daemon: when it happens, and what the caller is sent."""

from __future__ import annotations

import json
from collections.abc import Iterator

import attrs
import pytest

from tests.e2e.conftest import Start
from tests.e2e.harness import Client, Daemon, Json, fake, running
from tests.e2e.test_one_call_path import (
    LATEST_LEGACY,
    MCP_CLIENTS,
    Call,
    name_of,
    over_control_api,
    over_socket,
)
from tests.e2e.web import PORT

SERVERS = {"plain": fake(), "on": fake(validate=True), "off": fake(validate=False)}
PROFILES = {"strict": {"validate": True}, "lax": {"validate": False}}
TEXT: Json = {"n": "three"}
"""Violates both schemas of the tool `typed`."""


@pytest.fixture(scope="module")
def daemon(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Daemon]:
    """Run one daemon for all tests that do not change it."""
    settings = {"profiles": PROFILES}
    with running(tmp_path_factory.mktemp("daemon"), SERVERS, *PORT, settings=settings) as daemon:
        daemon.wait_connected(*SERVERS)
        yield daemon


@attrs.frozen
class Counted:
    """The number of tool calls that a server has received."""

    daemon: Daemon
    server: str

    @property
    def calls(self) -> int:
        with Client(self.daemon.socket) as client:
            counts = json.loads(client.call(self.server, "counts")["output"])
        return int(counts["seen"]["tools/call"])


@pytest.mark.parametrize("call", MCP_CLIENTS, ids=name_of)
def test_invalid_arguments_of_an_mcp_client_are_a_tool_error(daemon: Daemon, call: Call) -> None:
    """MCP since 2025-11-25, server/tools, Error Handling: the model can read it and correct the call."""
    counted = Counted(daemon, "on")
    before = counted.calls
    result = call(daemon, "on", "typed", {"n": "three", "answer": {"n": 3}})["result"]
    assert counted.calls == before + 1, "only the request for the number reached the server"
    assert result["isError"]
    (block,) = result["content"]
    assert block["type"] == "text"
    assert "$.arguments.n" in block["text"]
    assert "typed" in block["text"]
    assert "structuredContent" not in result
    missing = call(daemon, "on", "typed", {})["result"]
    assert missing["isError"]
    assert '"n" is a required property @ $.arguments' in missing["content"][0]["text"]


@pytest.mark.parametrize("version", ["2024-11-05", "2025-03-26", "2025-06-18"])
def test_invalid_arguments_are_a_protocol_error_before_2025_11_25(daemon: Daemon, version: str) -> None:
    """Earlier revisions list invalid arguments among the protocol errors (-32602)."""
    error = over_socket(daemon, "on", "typed", TEXT, version=version)["error"]
    assert error["code"] == -32602
    assert error["data"]["code"] == "invalid_arguments"
    assert [problem["path"] for problem in error["data"]["problems"]] == ["$.arguments.n"]


def test_invalid_result_reaches_an_mcp_client_as_a_tool_error(daemon: Daemon) -> None:
    """It names the violation before the original content.

    The invalid `structuredContent` is left out: servers MUST provide one that conforms to the schema, and
    some clients raise if it does not, even in an error.
    """
    result = over_socket(daemon, "on", "typed", {"n": 3, "answer": TEXT})["result"]
    assert result["isError"]
    note, original = result["content"]
    assert "outputSchema" in note["text"]
    assert "$.structuredContent.n" in note["text"]
    assert original == {"type": "text", "text": json.dumps(TEXT)}
    assert "structuredContent" not in result


@pytest.mark.parametrize("server", ["plain", "on"])
def test_control_api_is_checked_by_default(daemon: Daemon, server: str) -> None:
    """Invalid arguments are refused, and a violation in a result is a warning."""
    error = over_control_api(daemon, server, "typed", TEXT)["error"]
    assert error["code"] == -32602
    assert error["data"]["code"] == "invalid_arguments"
    assert [problem["path"] for problem in error["data"]["problems"]] == ["$.arguments.n"]
    result = over_control_api(daemon, server, "typed", {"n": 3, "answer": TEXT})["result"]
    assert result["success"]
    assert result["data"] == TEXT
    assert any("$.structuredContent.n" in warning for warning in result["warnings"])


def is_checked(daemon: Daemon, server: str, profile: str | None = None) -> bool:
    """Whether the arguments of an MCP client are checked."""
    return bool(over_socket(daemon, server, "typed", TEXT, profile=profile)["result"]["isError"])


def test_profile_overrides_the_server(daemon: Daemon) -> None:
    checked = {
        (server, profile): is_checked(daemon, server, profile)
        for server in ("plain", "on", "off")
        for profile in (None, "strict", "lax")
    }
    assert checked == {
        ("plain", None): False,
        ("plain", "strict"): True,
        ("plain", "lax"): False,
        ("on", None): True,
        ("on", "strict"): True,
        ("on", "lax"): False,
        ("off", None): False,
        ("off", "strict"): True,
        ("off", "lax"): False,
    }


def test_changing_validate_takes_effect_without_a_restart(start: Start) -> None:
    """Also for clients that are already connected."""
    daemon = start({"one": fake()})
    daemon.wait_connected("one")
    pid = daemon.status("one")["pid"]
    with Client(daemon.socket) as client:
        client.request("mcpd/attach", server="one", client={"name": "test"})
        client.initialize(LATEST_LEGACY)
        for servers, settings, is_error in (
            ({"one": fake(validate=True)}, {}, True),
            ({"one": fake(validate=False)}, {"validate": True}, False),
            ({"one": fake()}, {"validate": True}, True),
            ({"one": fake()}, {}, False),
        ):
            daemon.config.write_text(json.dumps({"mcpServers": servers, "settings": settings}))
            with Client(daemon.socket) as control:
                control.request("mcpd/reload")
            result = client.request("tools/call", name="typed", arguments=TEXT)
            assert result["isError"] is is_error, servers
    assert daemon.status("one")["pid"] == pid

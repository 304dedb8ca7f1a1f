"""Profiles by directory: the user's rules decide what an editor sees in each directory."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from tests.e2e.harness import Client, Refused, fake, running
from tests.gateway.mcp_client import McpClient


def seen(socket: str, cwd: str | None, **params: Any) -> tuple[str | None, set[str]]:
    """Return the profile in force, and the servers whose tools are listed."""
    with Client(socket) as client:
        attached = client.request("mcpd/attach", client={"name": "ed", "cwd": cwd}, **params)
        client.initialize()
        tools = client.request("tools/list")["tools"]
        return attached["profile"], {tool["name"].partition("__")[0] for tool in tools}


def test_directory_selects_the_profile_if_none_is_named(tmp_path: Path) -> None:
    """The deepest rule wins, symbolic links are resolved, and files in the project have no influence."""
    work = tmp_path / "real" / "work"
    (work / "clone").mkdir(parents=True)
    (tmp_path / "work").symlink_to(tmp_path / "real" / "work")
    everything = {"settings": {"profileByDirectory": {"/": "*"}, "profiles": {"work": {}}}}
    for name in ("config.json", ".mcpd.json", ".mcp.json", "mcpd.json"):
        (work / "clone" / name).write_text(json.dumps(everything))
    settings = {
        "profiles": {"work": {"servers": ["a"]}, "none": {"servers": []}},
        "profileByDirectory": {"~/work": "work", "~/work/secret-*": "none", "~/work/open": "*"},
    }
    with running(tmp_path, {"a": fake(), "b": fake()}, settings=settings) as daemon:
        daemon.wait_connected("a", "b")
        assert seen(daemon.socket, str(work / "clone")) == ("work", {"a"})
        assert seen(daemon.socket, str(tmp_path / "work" / "x")) == ("work", {"a"})
        assert seen(daemon.socket, str(work / "secret-1")) == ("none", set())
        assert seen(daemon.socket, str(work / "open"))[1] == {"a", "b"}
        assert seen(daemon.socket, str(tmp_path))[1] == {"a", "b"}
        assert seen(daemon.socket, None)[1] == {"a", "b"}
        assert seen(daemon.socket, str(work), profile="*")[1] == {"a", "b"}
        assert seen(daemon.socket, str(work), profile="none")[1] == set()


def test_changed_profile_applies_to_clients_that_are_connected(tmp_path: Path) -> None:
    """What a client may no longer use is refused at once. A removed profile selects nothing."""
    settings: dict[str, Any] = {"profiles": {"work": {"servers": ["a", "b"]}}}
    with running(tmp_path, {"a": fake(), "b": fake()}, settings=settings) as daemon:
        daemon.wait_connected("a", "b")
        client = McpClient(daemon, "2026-07-28", profile="work")

        def servers() -> set[str]:
            tools = client.request("tools/list")["tools"]
            return {tool["name"].partition("__")[0] for tool in tools}

        def change(profiles: dict[str, Any]) -> None:
            document = json.loads(daemon.config.read_text())
            document["settings"]["profiles"] = profiles
            daemon.config.write_text(json.dumps(document))
            daemon.client().request("mcpd/reload")

        assert servers() == {"a", "b"}
        client.call("b__echo")
        change({"work": {"servers": ["a"], "excludeTools": ["slow"]}})
        assert servers() == {"a"}
        for name in ("b__echo", "a__slow"):
            with pytest.raises(Refused, match=r"no tool|in the profile 'work' any more"):
                client.call(name)
        change({})
        assert servers() == set()
        change({"work": {}})
        assert servers() == {"a", "b"}
        client.call("a__echo")

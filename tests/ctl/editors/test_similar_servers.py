"""Near-duplicates: found at import, asked about, and then treated as one server."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import attrs
import pytest

from ctl.editors.discovery import EntrySource
from ctl.editors.merging import MergedServer
from ctl.editors.similar_servers import KnownServer, compare, find_similar
from tests.ctl.conftest import Mcpctl
from tests.ctl.editors.terminal import on_terminal
from tests.ctl.fake_daemon import FakeDaemon, server, status

EVERYTHING = ["-y", "@modelcontextprotocol/server-everything"]


def similar(first: dict[str, Any], second: dict[str, Any]) -> tuple[str, ...] | None:
    found = find_similar([MergedServer("a", first, ()), MergedServer("b", second, ())], {}, {"HOME": "/h"})
    return found["b"].differs_in if "b" in found else None


@pytest.mark.parametrize(
    ("first", "second", "parts"),
    [
        (
            {"command": "npx", "args": EVERYTHING},
            {"command": "npx", "args": EVERYTHING, "env": {"A": "1"}},
            ("env.A",),
        ),
        (
            {"command": "npx", "args": EVERYTHING},
            {"command": "npx", "args": [f"{EVERYTHING[1]}@latest"]},
            ("args",),
        ),
        (
            {"command": "uvx", "args": ["git", "/src/x"]},
            {"command": "uvx", "args": ["git==1.2", "/src/../src/x/"]},
            ("args",),
        ),
        (
            {"url": "https://a.example/mcp", "headers": {"X-Key": "1"}},
            {"url": "https://A.example/mcp/?x=1", "type": "http"},
            ("url", "headers.X-Key"),
        ),
        (
            {"command": "fs", "args": ["--zone=Europe/Paris", "--root=/src/x/"]},
            {"command": "fs", "args": ["--zone", "Europe/Paris", "--root", "/src/x"]},
            ("args",),
        ),
        (
            {"command": "npx", "args": EVERYTHING},
            {"command": "bunx", "args": [f"{EVERYTHING[1]}@latest", "stdio"]},
            ("command", "args"),
        ),
        ({"command": "uvx", "args": ["git"]}, {"command": "uvx", "args": ["git", "-v", "-v"]}, ("args",)),
        ({"command": "npx", "args": ["-y", "fs", "/a"]}, {"command": "npx", "args": ["fs", "/b"]}, None),
        (
            {"command": "docker", "args": ["run", "-i", "a"]},
            {"command": "docker", "args": ["run", "-i", "a", "-v"]},
            None,
        ),
        ({"command": "fs"}, {"command": "fs", "args": ["-v"]}, None),
        ({"command": "npx", "args": EVERYTHING}, {"command": "npx", "args": ["other"]}, None),
        ({"command": "fs", "args": ["/a"]}, {"command": "fs", "args": ["/b"]}, None),
        ({"url": "https://a.example/mcp"}, {"url": "https://b.example/mcp"}, None),
        ({"command": "fs"}, {"command": 5}, None),
    ],
)
def test_similar_servers_and_what_differs(
    first: dict[str, Any], second: dict[str, Any], parts: tuple[str, ...] | None
) -> None:
    """In both orders, except that the parts of the later one come first."""
    assert similar(first, second) == parts
    assert set(similar(second, first) or ()) == set(parts or ())


def entry(editor: str, scope: str, name: str) -> EntrySource:
    return EntrySource(editor, editor, Path("/f"), scope, name)


def test_servers_of_a_project_are_compared_with_those_of_the_user() -> None:
    """The project's is read first, but is the exception. mcpd's own come before both."""
    run: dict[str, Any] = {"command": "npx", "args": EVERYTHING}
    project = MergedServer("a", {**run, "env": {"P": "1"}}, (entry("x", "project", "a"),))
    user = MergedServer("a-y", {**run, "env": {"U": "1"}}, (entry("y", "user", "a"),))
    found = find_similar([project, user], {}, {})
    assert {name: one.name for name, one in found.items()} == {"a": "a-y"}
    ours = {"far": {**run, "env": {"A": "1", "B": "2"}}, "near": run}
    found = find_similar([project, user], ours, {})
    assert {name: (one.name, one.is_in_mcpd) for name, one in found.items()} == {
        "a": ("near", True),
        "a-y": ("near", True),
    }


def test_server_of_the_same_name_is_similar() -> None:
    mine: dict[str, Any] = {"command": "npx", "args": ["github-mcp"]}
    theirs = MergedServer("github-y", {"url": "https://a.example/mcp"}, (entry("y", "user", "github"),))
    found = find_similar([theirs], {"github": mine}, {})["github-y"]
    said = "github (in mcpd), which has the same name; different: url, command, args"
    assert found.describe() == said
    first = MergedServer("github", mine, (entry("x", "user", "github"),))
    assert find_similar([first, theirs], {}, {})["github-y"].name == "github"
    capital = attrs.evolve(theirs, sources=(entry("y", "user", "GitHub"),))
    assert find_similar([capital], {"github": mine}, {})["github-y"].name == "github"
    other = MergedServer("other", {"url": "https://a.example/mcp"}, (entry("y", "user", "other"),))
    assert find_similar([first, other], {}, {}) == {}


@pytest.fixture
def editors(home: Path) -> Path:
    """Two editors with the same server, which differs in a secret. Returns the second one's file."""
    second = home / ".gemini/settings.json"
    token = {"GH_TOKEN": "ghp_0123456789abcdefghijABCDEFGHIJ012345"}
    for path, env in ((home / ".cursor/mcp.json", {}), (second, token)):
        path.parent.mkdir()
        entry = {"command": "npx", "args": EVERYTHING, "env": env}
        path.write_text(json.dumps({"mcpServers": {"everything": entry}}))
    return second


def ours(home: Path) -> list[str]:
    return [*json.loads((home / ".config/mcpd/config.json").read_text())["mcpServers"]]


QUESTION = (
    "everything-gemini looks like everything, except for env.GH_TOKEN. Is it the same server? "
    "y: use only everything, n: keep both"
)


def test_import_shows_similar_servers_and_keeps_both_with_yes(
    home: Path, editors: Path, alone: Mcpctl
) -> None:
    """The report never contains the value that differs."""
    answer = alone("import", "--dry-run", "--json").json()["servers"]
    assert [one["similar_to"] for one in answer] == [
        None,
        {"server": "everything", "differs_in": ["env.GH_TOKEN"]},
    ]
    ran = alone("import", "--yes")
    assert "  similar to: everything, except for env.GH_TOKEN\n" in ran.out
    assert "ghp_" not in ran.out
    assert ours(home) == ["everything", "everything-gemini"]


def test_user_can_keep_both(home: Path, editors: Path) -> None:
    code, _ = on_terminal(home, {"c: choose": "y", QUESTION: "", "Move 1 secret": "y"}, "import")
    assert (code, ours(home)) == (0, ["everything", "everything-gemini"])


def test_same_server_is_imported_once_and_taken_over_everywhere(
    home: Path, editors: Path, mcpctl: Mcpctl, daemon: FakeDaemon
) -> None:
    """The answer is remembered until the entry changes."""
    code, seen = on_terminal(home, {"c: choose": "y", QUESTION: "y"}, "import")
    assert (code, ours(home)) == (0, ["everything"])
    assert "everything-gemini: the same as everything" in seen
    config = home / ".config/mcpd/config.json"
    daemon.answers["mcpd/config"] = {"path": str(config), "servers": {"everything": {}}}
    daemon.answers["mcpd/status"] = status(server("everything"))
    daemon.answers["mcpd/tools"] = {"tools": [], "dropped": 0}
    daemon.answers["mcpd/servers/set"] = {"errors": []}
    again = mcpctl("import", "--dry-run", "--json").json()
    assert (again["servers"], [one["server"] for one in again["known"]]) == ([], ["everything"] * 2)
    ran = mcpctl("install", "gemini", "--take-over", "--dry-run")
    assert "everything: would be disabled (provided by mcpd)" in ran.out
    changed = json.loads(editors.read_text())
    changed["mcpServers"]["everything"]["env"] = {"OTHER": "1"}
    editors.write_text(json.dumps(changed))
    assert "would be disabled" not in mcpctl("install", "gemini", "--take-over", "--dry-run").out


@pytest.mark.parametrize(
    ("first", "second", "said"),
    [
        (["-y", "x", "/src"], ["-y", "x", "/home/a b", "-v"], "args (/src instead of '/home/a b' -v)"),
        (["-y", "x"], ["-y", "x", "-v"], "args (without -v)"),
        (["x", "-v"], [], "args (with x -v)"),
        (["x", "--token=abc123def"], ["x", "--token=fed321cba"], "args (another secret)"),
        (["x", "--api-key", "abc123def", "-v"], ["x"], "args (with --api-key '***' -v)"),
    ],
)
def test_arguments_that_differ_are_shown_without_secrets(first: Any, second: Any, said: str) -> None:
    known = KnownServer("b", {"command": "npx", "args": second}, True)
    assert compare({"command": "npx", "args": first}, known, {}).describe_parts() == said


def test_url_that_differs_is_shown_without_secrets() -> None:
    known = KnownServer("b", {"url": "https://a.example/mcp?key=fed321cba"}, True)
    found = compare({"url": "https://a.example/mcp/?key=abc123def", "headers": {"X-A": "1"}}, known, {})
    shown = "'https://a.example/mcp/?key=***' instead of 'https://a.example/mcp?key=***'"
    assert found.describe() == f"b (in mcpd), except for url ({shown}), headers.X-A"


def test_question_about_a_similar_server_shows_the_arguments(home: Path) -> None:
    for path, version in ((home / ".cursor/mcp.json", "1.0.0"), (home / ".gemini/settings.json", "2.0.0")):
        path.parent.mkdir()
        entry = {"command": "npx", "args": ["-y", f"x@{version}"]}
        path.write_text(json.dumps({"mcpServers": {"x": entry}}))
    question = "x-gemini looks like x, except for args (x@2.0.0 instead of x@1.0.0). Is it the same server?"
    assert on_terminal(home, {"c: choose": "y", question: "y"}, "import")[0] == 0
    assert ours(home) == ["x"]


GEMINI: dict[str, Any] = {
    "command": "uvx",
    "args": ["mcp-server-time"],
    "includeTools": ["get_current_time"],
    "timeout": 5000,
}
CODEX = """[mcp_servers.time]
command = "uvx"
args = ["mcp-server-time", "--utc=1"]
"""
KEPT = (
    "note: includeTools of Gemini CLI do not apply to the shared server; "
    "mcpctl install gemini --own keeps them in a profile"
)


@pytest.mark.parametrize(
    ("codex", "timeout"),
    [(CODEX, None), (CODEX + "tool_timeout_sec = 300\n", 300000)],
    ids=["default timeout", "longer timeout"],
)
@pytest.mark.parametrize("is_in_mcpd", [False, True])
def test_settings_of_one_editor_do_not_apply_to_the_others_that_have_the_same_server(
    codex: str, timeout: int | None, is_in_mcpd: bool, home: Path, mcpctl: Mcpctl, daemon: FakeDaemon
) -> None:
    """No list of tools, and the longest timeout. What mcpd has already stays, and is said."""
    config, (gemini, toml) = home / ".config/mcpd/config.json", (home / ".gemini", home / ".codex")
    config.parent.mkdir(parents=True)
    gemini.mkdir()
    (gemini / "settings.json").write_text(json.dumps({"mcpServers": {"time": GEMINI}}))
    if is_in_mcpd:
        config.write_text(json.dumps({"mcpServers": {"time": GEMINI}}))
    toml.mkdir()
    (toml / "config.toml").write_text(codex)
    code, seen = on_terminal(home, {"c: choose": "y", "Is it the same server?": "y"}, "import")
    written = json.loads(config.read_text())["mcpServers"]
    assert (code, list(written)) == (0, ["time"])
    if is_in_mcpd:
        assert written["time"] == GEMINI
        assert "note: includeTools of time in mcpd also apply to Codex" in seen
        return
    assert ("includeTools" in written["time"], written["time"].get("timeout")) == (False, timeout)
    assert KEPT in seen
    daemon.answers["mcpd/config"] = {"path": str(config), "servers": written}
    daemon.answers["mcpd/status"] = status(server("time"))
    daemon.answers["mcpd/tools"] = {"tools": [], "dropped": 0}
    daemon.answers["mcpd/reload"] = {"errors": []}
    assert mcpctl("install", "codex", "gemini", "--own", "--dry-run").code == 0
    for editor in ("codex", "gemini"):
        assert mcpctl("install", editor, "--own").code == 0
    profiles = json.loads(config.read_text())["settings"]["profiles"]
    assert profiles == {
        "codex": {"servers": ["time"]},
        "gemini": {"servers": ["time"], "includeTools": ["get_current_time@time"]},
    }

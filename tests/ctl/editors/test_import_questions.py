"""The questions of `mcpctl import` on a terminal."""

from __future__ import annotations

import json
from pathlib import Path

from tests.ctl.editors.terminal import on_terminal


def write(path: Path, document: object) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(document))


def test_secret_gets_the_name_that_no_other_chosen_server_needs(home: Path) -> None:
    """It was reserved for the question of an entry that turns out to be the same server."""
    literal = {"command": "gh-mcp", "env": {"GITHUB_TOKEN": "ghp_0123456789abcdefghij"}}
    write(home / ".cursor/mcp.json", {"mcpServers": {"github": literal}})
    question = {"id": "t", "type": "promptString", "description": "GitHub token", "password": True}
    asking = {"command": "gh-mcp", "env": {"GITHUB_TOKEN": "${input:github-token}"}}
    inputs = [{**question, "id": "github-token"}]
    write(home / ".config/Code/User/mcp.json", {"servers": {"github": asking}, "inputs": inputs})
    answers = {"c: choose": "y", "Is it the same server?": "y", "Move 1 secret (GITHUB_TOKEN)": "y"}
    code, seen = on_terminal(home, answers, "import")
    assert code == 0, seen
    stored = json.loads((home / ".config/mcpd/secrets.json").read_text())
    assert stored == {"GITHUB_TOKEN": "ghp_0123456789abcdefghij"}


def imported(home: Path) -> list[str]:
    return [*json.loads((home / ".config/mcpd/config.json").read_text())["mcpServers"]]


def test_choice_shows_the_editor_and_can_go_back_and_take_the_rest(home: Path) -> None:
    servers = {name: {"command": f"run-{name}"} for name in "abcd"}
    write(home / ".cursor/mcp.json", {"mcpServers": servers})
    answers = {
        "c: choose": "c",
        "a: run-a? (from Cursor) y: yes, n: no, a: this and all the rest [n]": "n",
        "b: run-b? (from Cursor) y: yes, n: no, a: this and all the rest, b: back [n]": "y",
        "c: run-c? (from Cursor)": "n",
        "d: run-d? (from Cursor)": "a",
    }
    code, seen = on_terminal(home, answers, "import")
    assert (code, imported(home)) == (0, ["b", "d"]), seen


def test_choice_goes_back_to_the_previous_server(home: Path) -> None:
    servers = {name: {"command": f"run-{name}"} for name in "ab"}
    write(home / ".cursor/mcp.json", {"mcpServers": servers})
    asked = "a: run-a? (from Cursor) y: yes, n: no, a: this and all the rest [n]"
    answers = {"c: choose": "c", f"{asked}: ": "n", "b: run-b? (from Cursor)": "b"}
    again = "b: back [n]: b\r\n" + asked
    code, seen = on_terminal(home, {**answers, again: "a"}, "import")
    assert (code, imported(home)) == (0, ["a", "b"]), seen


def test_one_answer_keeps_all_similar_servers(home: Path) -> None:
    """Seven questions of the same kind invite to press Return without reading."""
    for place, token in ((".cursor/mcp.json", "1"), (".gemini/settings.json", "2")):
        servers = {name: {"command": f"run-{name}", "env": {"MODE": token}} for name in "abc"}
        write(home / place, {"mcpServers": servers})
    answers = {"c: choose": "y", "k: keep both, here and in the rest [n]": "k"}
    code, seen = on_terminal(home, answers, "import")
    assert (code, seen.count("Is it the same server?")) == (0, 1), seen
    assert len(imported(home)) == 6

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

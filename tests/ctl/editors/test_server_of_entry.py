"""Which server in mcpd an editor's entry is: by its definition and credentials, and never by a name alone."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import click
import pytest

from tests.ctl.conftest import Mcpctl

NPX: dict[str, Any] = {"command": "npx", "args": ["-y", "@modelcontextprotocol/server-everything"]}
LIVE, MINE = "sk-live-abcdefghij1234567890", "token-that-vs-code-asked-for"
CLAUDE, CODE, CONFIG = ".claude.json", ".config/Code/User/mcp.json", ".config/mcpd/config.json"
INPUT = {"id": "demo-token", "type": "promptString", "description": "Demo token", "password": True}

Servers = dict[str, dict[str, Any]]
Imports = Callable[..., tuple[list[str], dict[str, str]]]


def write(path: Path, value: object) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(value))


def demo(token: str) -> dict[str, Any]:
    return {**NPX, "env": {"DEMO_TOKEN": token}}


def servers(home: Path) -> Servers:
    found: Servers = json.loads((home / CONFIG).read_text())["mcpServers"]
    return found


def tokens(home: Path) -> dict[str, str]:
    """Return the credential with which each server runs."""
    stored = json.loads((home / ".config/mcpd/secrets.json").read_text())
    written = {name: one["env"]["DEMO_TOKEN"] for name, one in servers(home).items()}
    return {name: stored.get(text[len("${secret:") : -1], "") for name, text in written.items()}


@pytest.fixture
def editors(home: Path) -> Path:
    """Claude Code and VS Code, with servers of the same name and different credentials. Returns the home."""
    write(home / CLAUDE, {"mcpServers": {"everything": demo(LIVE)}})
    write(home / CODE, {"inputs": [INPUT], "servers": {"everything": demo("${input:demo-token}")}})
    return home


@pytest.fixture
def imports(home: Path, alone: Mcpctl, monkeypatch: pytest.MonkeyPatch) -> Imports:
    """Run `mcpctl import`, confirm it, and answer questions for values.

    Returns the prompts for values, and the credential of each server.
    """

    def run(*words: str, value: str = MINE) -> tuple[list[str], dict[str, str]]:
        asked: list[str] = []

        def prompt(text: str, **_: object) -> str:
            asked.append(text)
            return value

        monkeypatch.setattr(click, "prompt", prompt)
        monkeypatch.setattr(click, "confirm", lambda *_, **options: True)
        monkeypatch.setattr("sys.stdin.isatty", lambda: True, raising=False)
        assert alone("import", *words).code == 0
        return asked, tokens(home)

    return run


def own(alone: Mcpctl, *words: str) -> list[str]:
    """Return the servers of the profile of `install vscode --own`."""
    ran = alone("install", "vscode", "--own", "--json", *words)
    assert ran.code == 0
    return list(ran.json()["editors"][0]["profile"]["servers"])


def import_both(imports: Imports) -> None:
    imports()
    asked, found = imports("vscode", "--server", "everything")
    assert (len(asked), found) == (1, {"everything": LIVE, "everything-vscode": MINE})


def test_similar_entry_is_left_out_and_can_be_named(editors: Path, alone: Mcpctl, imports: Imports) -> None:
    """Two accounts never become one, and no entry gets the secret of another editor."""
    shown = alone("import", "--dry-run")
    assert (
        "not imported, because there is a similar server\n"
        "  everything: differs from everything in env.DEMO_TOKEN (VS Code, ~/.config/Code/User/mcp.json); "
        "to import it too: mcpctl import -s everything\n"
    ) in shown.out
    assert ", from 2 files, left out because there is a similar server: everything\n" in shown.out
    assert imports() == ([], {"everything": LIVE})
    replace = "; to replace it: mcpctl remove everything && mcpctl import -s everything\n"
    assert replace in alone("import", "vscode", "--dry-run").out
    assert alone("install", "vscode", "--own").code == 5
    assert imports("vscode", "--server", "everything")[1] == {"everything": LIVE, "everything-vscode": MINE}
    assert imports("vscode") == ([], tokens(editors))
    known = alone("import", "--dry-run", "--json").json()["known"]
    assert {one["source"]["editor"]: one["name"] for one in known} == {
        "claude-code": "everything",
        "vscode": "everything-vscode",
    }


THEIRS, OURS = "everything", "everything-vscode"
"""The servers of Claude Code and of VS Code."""
CHANGES: dict[str, tuple[Callable[[dict[str, Any], dict[str, Any]], Servers], str | None]] = {
    "nothing": (lambda theirs, ours: {THEIRS: theirs, OURS: ours}, OURS),
    "names swapped": (lambda theirs, ours: {OURS: theirs, THEIRS: ours}, THEIRS),
    "replaced": (lambda theirs, ours: {OURS: theirs}, None),
    "another token": (lambda theirs, ours: {THEIRS: theirs, OURS: demo("x")}, None),
    "another timeout": (lambda theirs, ours: {THEIRS: theirs, OURS: {**ours, "timeout": 5}}, OURS),
    "disabled": (lambda theirs, ours: {THEIRS: theirs, OURS: {**ours, "enabled": False}}, None),
    "the other disabled": (lambda theirs, ours: {THEIRS: {**theirs, "enabled": False}, OURS: ours}, OURS),
}


@pytest.mark.parametrize("name", CHANGES)
def test_server_of_an_entry_with_an_input(name: str, editors: Path, alone: Mcpctl, imports: Imports) -> None:
    """Whatever happens to the servers in mcpd, VS Code never gets the one with Claude Code's credential."""
    import_both(imports)
    change, expected = CHANGES[name]
    found = servers(editors)
    write(editors / CONFIG, {"mcpServers": change(found[THEIRS], found[OURS])})
    taken = alone("install", "vscode", "--take-over=all", "--dry-run", "--json").json()["editors"][0]
    assert [one["name"] for one in taken["taken_over"]] == (["everything"] if expected else [])
    if expected is None:
        assert alone("install", "vscode", "--own").code == 5
        return
    for _ in range(2):  # also after the entry was taken over
        assert own(alone, "--take-over=all") == [expected]
    assert alone("uninstall", "vscode").code == 0


def test_secret_that_was_renewed_does_not_change_which_server_it_is(
    editors: Path, alone: Mcpctl, imports: Imports
) -> None:
    import_both(imports)
    path = editors / ".config/mcpd/secrets.json"
    stored = json.loads(path.read_text())
    path.write_text(json.dumps({name: f"new-{value}" for name, value in stored.items()}))
    assert own(alone) == ["everything-vscode"]


def test_removed_server_does_not_hand_its_name_or_secret_to_another_editor(
    editors: Path, alone: Mcpctl, imports: Imports
) -> None:
    """Claude Code's server gets the name that VS Code's had. VS Code's secret still answers its input."""
    assert imports("vscode")[1] == {"everything": MINE}
    write(editors / CONFIG, {"mcpServers": {}})
    assert imports("claude-code", value="") == ([], {"everything": LIVE})
    assert alone("install", "vscode", "--own").code == 5
    asked, found = imports("vscode", "--server", "everything", value="")
    assert (asked, found["everything"], found["everything-vscode"]) == ([], LIVE, MINE)


def test_equal_inputs_of_two_files_are_asked_for_separately(editors: Path, imports: Imports) -> None:
    """A project's file may come from anywhere. Within a file, an input has one value."""
    inputs = {
        "inputs": [INPUT],
        "servers": {"b": {"command": "b", "env": {"DEMO_TOKEN": "${input:demo-token}"}}},
    }
    write(editors / "src/.vscode/mcp.json", inputs)
    document = json.loads((editors / CODE).read_text())
    document["servers"]["a"] = {**demo("${input:demo-token}"), "args": ["a"]}
    write(editors / CODE, document)
    asked, _ = imports("vscode")
    assert [text.partition(":")[0] for text in asked] == ["everything", "b"]
    named = {name: one["env"]["DEMO_TOKEN"] for name, one in servers(editors).items()}
    assert named["everything"] == named["a"]

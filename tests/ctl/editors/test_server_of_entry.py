"""Which server in mcpd an editor's entry is: by its import or its definition, and never by a name alone."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import click
import pytest

from tests.ctl.conftest import Mcpctl
from tests.ctl.editors.terminal import on_terminal

NPX: dict[str, Any] = {"command": "npx", "args": ["-y", "@modelcontextprotocol/server-everything"]}
LIVE, MINE = "sk-live-abcdefghij1234567890", "token-that-vs-code-asked-for"
CLAUDE, CODE, CONFIG = ".claude.json", ".config/Code/User/mcp.json", ".config/mcpd/config.json"
INPUT = {"id": "demo-token", "type": "promptString", "description": "Demo token", "password": True}

Servers = dict[str, dict[str, Any]]


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
def imports(
    home: Path, alone: Mcpctl, monkeypatch: pytest.MonkeyPatch
) -> Callable[..., tuple[list[str], dict[str, str]]]:
    """Run `mcpctl import`, confirm everything, and answer questions for values.

    Returns the prompts for values, and the credential of each server.
    """

    def run(*words: str, value: str = MINE) -> tuple[list[str], dict[str, str]]:
        asked: list[str] = []

        def prompt(text: str, **options: Any) -> str:
            if not options.get("hide_input"):
                return "n" if "Is it the same server?" in text else "y"
            asked.append(text)
            return value

        monkeypatch.setattr(click, "prompt", prompt)
        monkeypatch.setattr(click, "confirm", lambda *_, **options: True)
        monkeypatch.setattr("sys.stdin.isatty", lambda: True, raising=False)
        assert alone("import", *words).code == 0
        return asked, tokens(home)

    return run


Imports = Callable[..., tuple[list[str], dict[str, str]]]


def own(alone: Mcpctl, home: Path, *words: str) -> list[str]:
    """Return the servers of the profile of `install vscode --own`."""
    ran = alone("install", "vscode", "--own", "--json", *words)
    assert ran.code == 0
    return list(ran.json()["editors"][0]["profile"]["servers"])


def test_own_profile_holds_the_server_that_was_imported_from_the_editor(editors: Path, alone: Mcpctl) -> None:
    answers = {"c: choose": "y", "keep both": "n", "(press Return": MINE, "Move 1 secret": "y"}
    assert on_terminal(editors, answers, "import")[0] == 0
    assert tokens(editors) == {"everything": LIVE, "everything-vscode": MINE}
    ran = alone("install", "vscode", "--own", "--take-over=all", "--json").json()["editors"][0]
    assert ran["profile"]["servers"] == ["everything-vscode"]
    assert [one["name"] for one in ran["taken_over"]] == ["everything"]


THEIRS, OURS = "everything", "everything-vscode"
"""The servers of Claude Code and of VS Code."""
CHANGES: dict[str, tuple[Callable[[dict[str, Any], dict[str, Any]], Servers], str | None]] = {
    "nothing": (lambda theirs, ours: {THEIRS: theirs, OURS: ours}, OURS),
    "renamed": (lambda theirs, ours: {"a": theirs, "b": ours}, "b"),
    "names swapped": (lambda theirs, ours: {OURS: theirs, THEIRS: ours}, THEIRS),
    "replaced": (lambda theirs, ours: {OURS: theirs}, None),
    "removed": (lambda theirs, ours: {THEIRS: theirs}, None),
    "another token": (lambda theirs, ours: {THEIRS: theirs, OURS: demo("x")}, None),
    "another timeout": (lambda theirs, ours: {THEIRS: theirs, OURS: {**ours, "timeout": 5}}, OURS),
    "disabled": (lambda theirs, ours: {THEIRS: theirs, OURS: {**ours, "enabled": False}}, None),
    "the other disabled": (lambda theirs, ours: {THEIRS: {**theirs, "enabled": False}, OURS: ours}, OURS),
}


@pytest.mark.parametrize("name", CHANGES)
def test_server_of_an_entry_with_an_input(name: str, editors: Path, alone: Mcpctl, imports: Imports) -> None:
    """Whatever happens to the servers in mcpd, VS Code never gets the one with Claude Code's credential."""
    imports()
    change, expected = CHANGES[name]
    found = servers(editors)
    write(editors / CONFIG, {"mcpServers": change(found[THEIRS], found[OURS])})
    taken = alone("install", "vscode", "--take-over=all", "--dry-run", "--json").json()["editors"][0]
    assert [one["name"] for one in taken["taken_over"]] == (["everything"] if expected else [])
    if expected is None:
        assert alone("install", "vscode", "--own").code == 5
        return
    for _ in range(2):  # also from the original file, after the entry was taken over
        assert own(alone, editors, "--take-over=all") == [expected]
    assert alone("uninstall", "vscode").code == 0
    known = {
        one["source"]["editor"]: one["server"]
        for one in alone("import", "--dry-run", "--json").json()["known"]
    }
    assert known["vscode"] == expected


def test_secret_that_was_renewed_does_not_change_which_server_it_is(
    editors: Path, alone: Mcpctl, imports: Imports
) -> None:
    imports()
    path = editors / ".config/mcpd/secrets.json"
    stored = json.loads(path.read_text())
    path.write_text(json.dumps({name: f"new-{value}" for name, value in stored.items()}))
    assert own(alone, editors) == ["everything-vscode"]


def test_history_of_a_former_version_is_enough(editors: Path, alone: Mcpctl, imports: Imports) -> None:
    imports()
    path = editors / ".local/state/mcpd/imports.json"
    history = json.loads(path.read_text())
    del history["secrets"]
    for one in history["entries"]:
        del one["written"]
    path.write_text(json.dumps(history))
    assert own(alone, editors) == ["everything-vscode"]


def test_without_a_history_only_definitions_decide(editors: Path, alone: Mcpctl, imports: Imports) -> None:
    """What VS Code's user would enter is not known, so its entry is none of the servers."""
    imports()
    (editors / ".local/state/mcpd/imports.json").unlink()
    assert alone("install", "vscode", "--own").code == 5
    assert alone("install", "claude-code", "--own", "--json").json()["editors"][0]["profile"]["servers"] == [
        "everything"
    ]


@pytest.mark.parametrize("order", [("claude-code", "vscode"), ("vscode", "claude-code"), ("",)])
def test_no_entry_gets_the_secret_of_another_editor(
    order: tuple[str, ...], editors: Path, imports: Imports
) -> None:
    """Imported one after the other, in both orders, or together, and once more."""
    asked = [prompt for editor in order for prompt in imports(*filter(None, [editor]))[0]]
    assert len(asked) == 1
    assert sorted(tokens(editors).values()) == [LIVE, MINE]
    assert imports() == ([], tokens(editors))
    assert len(servers(editors)) == 2


def test_removed_server_does_not_hand_its_name_or_secret_to_another_editor(
    editors: Path, alone: Mcpctl, imports: Imports
) -> None:
    """Claude Code's server gets the name that VS Code's had. VS Code's secret still answers its input."""
    assert imports("vscode")[1] == {"everything": MINE}
    write(editors / CONFIG, {"mcpServers": {"other": demo("x-other")}})
    assert imports("claude-code", value="")[0] == []
    assert alone("install", "vscode", "--own").code == 5
    asked, found = imports("vscode", value="")
    assert (asked, found["everything"], found["everything-vscode"]) == ([], LIVE, MINE)
    assert own(alone, editors) == ["everything-vscode"]


def test_equal_inputs_of_two_files_are_asked_for_separately(editors: Path, imports: Imports) -> None:
    """A project's file may come from anywhere. Within a file, an input has one value."""
    inputs = {"inputs": [INPUT], "servers": {"b": {**demo("${input:demo-token}"), "args": ["b"]}}}
    write(editors / "src/.vscode/mcp.json", inputs)
    document = json.loads((editors / CODE).read_text())
    document["servers"]["a"] = {**demo("${input:demo-token}"), "args": ["a"]}
    write(editors / CODE, document)
    asked, _ = imports("vscode")
    assert [text.partition(":")[0] for text in asked] == ["b", "everything"]
    named = {name: one["env"]["DEMO_TOKEN"] for name, one in servers(editors).items()}
    assert named["everything"] == named["a"]


def test_equal_inputs_of_two_editors_are_two_servers(editors: Path, imports: Imports) -> None:
    """Whether they have the same value is a question for the user."""
    write(editors / CODE.replace("Code", "VSCodium"), json.loads((editors / CODE).read_text()))
    asked, found = imports("vscode", "vscodium")
    assert [text.partition(":")[0] for text in asked] == [*found] == ["everything", "everything-vscodium"]


def test_entry_that_was_imported_without_its_proxy_is_taken_over(home: Path, alone: Mcpctl) -> None:
    remote = {"command": "npx", "args": ["-y", "mcp-remote", "https://a.example.com/mcp"]}
    write(home / ".cursor/mcp.json", {"mcpServers": {"a": remote}})
    assert alone("import", "--yes", "--unfold").code == 0
    taken = alone("install", "cursor", "--take-over=all", "--json").json()["editors"][0]["taken_over"]
    assert [one["name"] for one in taken] == ["a"]

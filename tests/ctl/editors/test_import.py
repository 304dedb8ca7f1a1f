"""`mcpctl import`: its report, its prompts, the files it writes, and the reload of the daemon."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.ctl.conftest import Mcpctl
from tests.ctl.editors.golden import settle
from tests.ctl.editors.terminal import on_terminal
from tests.ctl.fake_daemon import Caller, FakeDaemon, Fault

CURSOR = {
    "mcpServers": {
        "time": {"command": "uvx", "args": ["mcp-server-time", "--zone=Europe/Paris"]},
        "api": {
            "url": "https://api.example.com/mcp",
            "headers": {"Authorization": "Bearer s3cr3t-t0ken-value"},
        },
        "unset": {"command": "x", "env": {"A": "${env:SURELY_NOT_SET}"}},
        "mcpd": {"command": "mcpctl", "args": ["bridge"]},
    }
}


def secrets(home: Path) -> Any:
    return json.loads((home / ".config/mcpd/secrets.json").read_text())


@pytest.fixture
def cursor(home: Path) -> Path:
    path = home / ".cursor" / "mcp.json"
    path.parent.mkdir()
    path.write_text(json.dumps(CURSOR))
    return path


def ours(home: Path) -> Any:
    return json.loads((home / ".config/mcpd/config.json").read_text())["mcpServers"]


def test_without_a_terminal_yes_is_required(home: Path, cursor: Path, alone: Mcpctl) -> None:
    """Exit code 2, with a hint."""
    ran = alone("import")
    assert ran.code == 2
    assert "importing needs confirmation" in ran.err
    assert not (home / ".config").exists()


def test_only_valid_servers_are_written(home: Path, cursor: Path, alone: Mcpctl) -> None:
    """One invalid server would make the whole configuration invalid. The editor's file does not change."""
    before = cursor.read_bytes()
    ran = alone("import", "--yes")
    assert ran.code == 0
    assert "2 servers saved in" in ran.out
    assert (
        "next: mcpctl wait --any   (starts mcpd and the servers), then: mcpctl install --all --take-over"
        in ran.err
    )
    assert [*ours(home)] == ["time", "api"]
    assert ours(home)["api"]["headers"] == {"Authorization": "Bearer ${secret:API_TOKEN}"}
    assert secrets(home) == {"API_TOKEN": "s3cr3t-t0ken-value"}
    for name in ("config.json", "secrets.json"):
        assert (home / ".config/mcpd" / name).stat().st_mode & 0o777 == 0o600
    assert cursor.read_bytes() == before
    assert alone("config", "validate").code == 0
    again = alone("import", "--yes", "--json").json()
    assert ([one["name"] for one in again["known"]], again["written"]) == (["time", "api"], False)


@pytest.mark.parametrize("scope", ["user", "project"])
def test_entry_that_cannot_be_used_does_not_displace_another(
    scope: str, home: Path, cursor: Path, alone: Mcpctl
) -> None:
    """Also an entry of a project, which comes after those of the user."""
    package = {"command": "npx", "args": ["-y", "@a/b"], "includeTools": ["x", "y"]}
    unset = package | {"env": {"A": "${env:SURELY_NOT_SET}"}}
    cursor.write_text(json.dumps({"mcpServers": {"b": unset}}))
    other = home / ("src/.vscode" if scope == "project" else ".config/Code/User") / "mcp.json"
    other.parent.mkdir(parents=True)
    other.write_text(json.dumps({"servers": {"b": package}}))
    ran = alone("import", "--dry-run")
    assert "  only the tools: x, y\n" in ran.out
    assert "1 server to import" in ran.out
    left_out = ", 1 blocked (b)" if scope == "project" else ", left out because there is a similar server: b"
    assert ran.out.endswith(f"from 2 files{left_out}\n")


def test_broken_file_gives_a_warning_with_its_line(home: Path, cursor: Path, alone: Mcpctl) -> None:
    """Line and column, counted as in editors."""
    (home / ".codex").mkdir()
    (home / ".codex/config.toml").write_text("a = 1\nb = = 2\n")
    ran = alone("import", "--dry-run")
    assert f"warning: {home}/.codex/config.toml:2:5: not valid TOML" in ran.err
    assert "2 servers to import" in ran.out


@pytest.mark.parametrize(
    ("words", "code", "said"),
    [
        (["cursr"], 2, "did you mean cursor"),
        (["./none.json"], 5, "file not found"),
        (["."], 2, "is a directory"),
        (["../notes.json"], 2, "notes.json:1:2: not valid JSON"),
        (["goose"], 5, "no configuration of Goose"),
        (["-s", "zulu"], 5, "no editor has a server named zulu"),
        (["-s", "tmie"], 5, "did you mean time?"),
    ],
)
def test_what_cannot_be_meant_is_an_error(
    words: list[str], code: int, said: str, home: Path, cursor: Path, alone: Mcpctl
) -> None:
    """With a hint."""
    (home / "notes.json").write_text("{1}")
    ran = alone("import", *words)
    assert (ran.code, said in ran.err) == (code, True)


# ---- with a daemon -----------------------------------------------------------------------------------


def scripted(daemon: FakeDaemon, path: Path, refused: Callable[[str], bool] = lambda _: False) -> None:
    def judge(_: Caller, params: dict[str, Any]) -> object:
        names = [name for name in params["servers"] if refused(name)]
        return applied(
            [{"path": "$", "message": f"{name} is not wanted", "fix": "drop it"} for name in names]
        )

    daemon.answers["mcpd/config"] = {"path": str(path), "source": str(path), "generation": 1, "servers": {}}
    daemon.answers["mcpd/servers/set"] = judge
    daemon.answers["mcpd/reload"] = applied([])


def applied(errors: list[dict[str, str]]) -> dict[str, Any]:
    lists: dict[str, list[str]] = {"added": [], "removed": [], "changed": [], "unchanged": []}
    return {**lists, "generation": 2, "errors": errors, "dry_run": False, "saved": None}


def test_running_daemon_validates_and_reloads(
    home: Path, cursor: Path, daemon: FakeDaemon, mcpctl: Mcpctl
) -> None:
    """The daemon has the environment that matters, and may use another file."""
    path = home / "elsewhere.json"
    scripted(daemon, path, lambda name: name == "time")
    ran = mcpctl("import", "--yes")
    assert ran.code == 0
    assert "blocked: time is not wanted; drop it" in ran.out
    assert [*json.loads(path.read_text())["mcpServers"]] == ["api", "unset"]
    assert daemon.requests[-1][0] == "mcpd/reload"
    dry = [params for method, params in daemon.requests if method == "mcpd/servers/set"]
    assert all(params["dry_run"] for params in dry)


@pytest.mark.parametrize("raised", [False, True])
def test_rejected_import_restores_both_files(
    home: Path, cursor: Path, daemon: FakeDaemon, mcpctl: Mcpctl, raised: bool
) -> None:
    """Neither servers nor secrets are written partly."""
    path = home / "elsewhere.json"
    path.write_text("{} // mine\n")
    scripted(daemon, path)
    problem = {"path": "$.x", "message": "broken", "fix": ""}
    fault = Fault("cannot be used: broken", code="bad_spec", exit=2, problems=[problem])
    daemon.answers["mcpd/reload"] = fault if raised else applied([problem])
    ran = mcpctl("import", "--yes")
    assert ran.code == 2
    assert "nothing was imported" in ran.err
    assert "$.x: broken" in ran.err
    assert path.read_text() == "{} // mine\n"
    assert secrets(home) == {}


def test_stored_secrets_are_used_and_not_overwritten(home: Path, cursor: Path, alone: Mcpctl) -> None:
    """The same value keeps its name, and another value gets another."""
    path = home / ".config/mcpd/secrets.json"
    path.parent.mkdir(parents=True)
    path.write_text('{"MINE": "s3cr3t-t0ken-value", "API_TOKEN": "another"}')
    path.chmod(0o600)
    assert alone("import", "cursor", "-s", "api", "--yes").code == 0
    assert ours(home)["api"]["headers"] == {"Authorization": "Bearer ${secret:MINE}"}
    assert secrets(home) == {"MINE": "s3cr3t-t0ken-value", "API_TOKEN": "another"}
    path.chmod(0o644)
    assert "other users can access" in alone("import", "--yes").err


def test_secret_from_another_file_is_stored_under_its_own_name(home: Path, alone: Mcpctl) -> None:
    settle("continue", home)
    (home / ".config/mcpd").mkdir(parents=True)
    path = home / ".config/mcpd/secrets.json"
    path.write_text('{"BRAVE_API_KEY": "of somebody else"}')
    path.chmod(0o600)
    words = ["import", "continue", "-s", "Brave-Search", "--yes"]
    before = {name: (home / name).read_bytes() for name in (".continue/config.yaml", ".continue/.env")}
    assert alone(*words).code == 0
    assert ours(home)["Brave-Search"]["env"] == {"BRAVE_API_KEY": "${secret:BRAVE_SEARCH_BRAVE_API_KEY}"}
    assert secrets(home)["BRAVE_SEARCH_BRAVE_API_KEY"] == "BSA-from-the-env-file"
    assert {name: (home / name).read_bytes() for name in before} == before


# ---- on a terminal -----------------------------------------------------------------------------------


def test_control_characters_are_not_sent_to_the_terminal(home: Path) -> None:
    """A project's file may come from anywhere, and the user decides by what is shown."""
    path = home / ".cursor/mcp.json"
    path.parent.mkdir()
    path.write_text(
        json.dumps({"mcpServers": {"a": {"command": "evil", "args": ["\x1b[2K\x1b[1A harmless"]}}})
    )
    code, seen = on_terminal(home, {"[y/N]": "n"}, "import")
    assert (code, "evil" in seen, "\x1b[" in seen) == (130, True, False)


def test_unknown_secret_is_prompted_without_echo(home: Path) -> None:
    """VS Code does not store the answers to its inputs in a file. The name says whose secret it is."""
    settle("vscode", home)
    answers = {"[y/N]": "y", "github: GitHub token": "typed-by-hand"}
    code, seen = on_terminal(home, answers, "import", "vscode", "-s", "github")
    assert (code, "typed-by-hand" in seen) == (0, False)
    ((name, value),) = secrets(home).items()
    assert re.fullmatch("vscode_[0-9a-f]{6}_GH_TOKEN", name)
    assert value == "typed-by-hand"
    assert ours(home)["github"]["headers"] == {"Authorization": f"Bearer ${{secret:{name}}}"}


@pytest.mark.parametrize("question", ["[y/N]", "github: GitHub token"])
def test_aborted_prompt_imports_nothing(question: str, home: Path) -> None:
    """Ctrl-D or Ctrl-C; the message is on a line of its own."""
    settle("vscode", home)
    code, seen = on_terminal(home, {"[y/N]": "y"} | {question: "\x04"}, "import", "-s", "github")
    assert code == 130
    assert seen.replace("\r", "").endswith("\nnothing was imported\n")
    assert not (home / ".config/mcpd").exists()


def test_server_with_an_unknown_secret_is_blocked_without_a_terminal(home: Path, alone: Mcpctl) -> None:
    """Until the secret is stored. The report shows how."""
    settle("vscode", home)
    words = ["import", "vscode", "-s", "github", "--yes", "--json"]
    (server,) = alone(*words).json()["servers"]
    (name,) = server["needs"]
    assert f"it needs a secret that only you know: {name}; " in server["problem"]
    assert server["problem"].endswith(f"mcpctl secret set {name}")
    assert not (home / ".config/mcpd/config.json").exists()
    (home / ".config/mcpd").mkdir()
    path = home / ".config/mcpd/secrets.json"
    path.write_text(json.dumps({name: "mine"}))
    path.chmod(0o600)
    assert alone(*words).json()["imported"] == ["github"]
    assert secrets(home) == {name: "mine"}


def test_difference_from_the_server_in_mcpd_is_shown_by_name(home: Path, cursor: Path, alone: Mcpctl) -> None:
    """Nothing is changed in mcpd. A name alone is enough."""
    assert alone("import", "--yes").code == 0
    before = ours(home)
    document = json.loads(cursor.read_text())
    document["mcpServers"]["time"] = {"command": "other"}
    document["mcpServers"]["api"]["headers"]["Authorization"] = "Bearer new"
    cursor.write_text(json.dumps(document))
    found = alone("import", "--yes", "--json").json()
    assert [(one["name"], one["differs_in"]) for one in found["similar"]] == [
        ("time", ["command", "args"]),
        ("api", ["headers.Authorization"]),
    ]
    assert ours(home) == before
    assert alone("import", "-s", "time", "--yes").code == 0
    assert ours(home) == {**before, "time-cursor": {"command": "other"}}


def test_deleted_configuration_is_not_replaced_by_an_import(
    home: Path, mcpctl: Mcpctl, daemon: FakeDaemon, tmp_path: Path
) -> None:
    """A new file would contain only what is imported, and all other servers would end."""
    path = tmp_path / "gone.json"
    daemon.answers["mcpd/config"] = {"path": str(path), "source": str(path), "servers": {"a": {}}}
    refused = mcpctl("import", "--yes")
    assert refused.code == 2
    assert "it was deleted (restore it, or create it" in refused.err
    assert not path.exists()
    daemon.answers["mcpd/config"] = {"path": str(path), "source": "none", "servers": {}}
    assert mcpctl("import", "--yes").code != 2


def test_preview_names_the_secret_that_the_import_writes(home: Path, alone: Mcpctl) -> None:
    """And does not ask for a value that the editor's `.env` has."""
    (home / ".gemini").mkdir()
    (home / ".gemini/.env").write_text("API_KEY=k-gemini\n")
    gemini = {"mcpServers": {"api": {"command": "x", "env": {"API_KEY": "$API_KEY"}}}}
    (home / ".gemini/settings.json").write_text(json.dumps(gemini))
    store = home / ".config/mcpd/secrets.json"
    store.parent.mkdir(parents=True)
    store.write_text(json.dumps({"API_KEY": "another"}))
    store.chmod(0o600)
    shown = alone("import", "--dry-run").out
    alone("import", "--yes")
    written = ours(home)["api"]["env"]["API_KEY"]
    assert f"API_KEY={written}" in shown
    assert written != "${secret:API_KEY}"
    assert "needs:" not in shown

"""A repeated `mcpctl import`: changes in the editors and in mcpd, and servers that only mcpd has."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from mcpd.config.edit_config_file import put_servers
from mcpd.model.errors import BadSpec
from tests.ctl.conftest import Mcpctl
from tests.ctl.editors.golden import settle
from tests.ctl.editors.terminal import on_terminal

TIME: dict[str, Any] = {"command": "uvx", "args": ["mcp-server-time"]}
API: dict[str, Any] = {
    "url": "https://api.example.com/mcp",
    "headers": {"Authorization": "Bearer s3cr3t-t0ken-value", "X-Region": "eu"},
}
CONFIG = ".config/mcpd/config.json"


def cursor(home: Path, **servers: Any) -> Path:
    return written(home / ".cursor/mcp.json", {"mcpServers": servers})


def windsurf(home: Path, **servers: Any) -> Path:
    return written(home / ".codeium/windsurf/mcp_config.json", {"mcpServers": servers})


def written(path: Path, value: object) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(value))
    return path


def ours(home: Path) -> Any:
    return json.loads((home / CONFIG).read_text())["mcpServers"]


def change_ours(home: Path, **servers: Any) -> None:
    written(home / CONFIG, {"mcpServers": {**ours(home), **servers}})


def test_changed_entry_is_shown_by_part_and_applied(home: Path, alone: Mcpctl) -> None:
    """It is not imported as a second server; changes in mcpd and comments stay."""
    cursor(home, time=TIME, api=API)
    assert alone("import", "--yes").code == 0
    text = (home / CONFIG).read_text()
    text = text.replace('"command": "uvx"', '"lazy": true, // mine\n      "command": "uvx"')
    (home / CONFIG).write_text(text)
    cursor(home, time=TIME | {"args": ["mcp-server-time", "--utc"]}, api=API)
    ran = alone("import", "--dry-run")
    assert (
        ran.out
        == """\
time, changed in Cursor since it was imported
  args: mcp-server-time -> mcp-server-time --utc
  from: Cursor, ~/.cursor/mcp.json

already in mcpd
  api: Cursor, ~/.cursor/mcp.json

0 servers to import, 1 change to apply, from 1 file
"""
    )
    (changed,) = alone("import", "--dry-run", "--json").json()["changed"]
    assert changed["name"] == "time"
    assert changed["parts"] == [
        {
            "part": "args",
            "here": ["mcp-server-time"],
            "there": ["mcp-server-time", "--utc"],
            "changed_here": False,
        }
    ]
    assert (home / CONFIG).read_text() == text
    answer = alone("import", "--yes", "--json").json()
    assert (answer["imported"], answer["taken_over"], answer["written"]) == ([], ["time"], True)
    assert (home / CONFIG).read_text() == text.replace('["mcp-server-time"]', '["mcp-server-time", "--utc"]')
    again = alone("import", "--yes", "--json").json()
    assert (again["changed"], again["servers"], again["written"]) == ([], [], False)


def test_renewed_secret_is_stored_under_a_new_name(home: Path, alone: Mcpctl) -> None:
    """The history only contains a digest of it."""
    cursor(home, api=API)
    assert alone("import", "--yes").code == 0
    headers = API["headers"] | {"Authorization": "Bearer an0ther-t0ken-value"}
    cursor(home, api=API | {"headers": headers})
    ran = alone("import", "--yes")
    assert "headers.Authorization: Bearer ${secret:API_TOKEN} -> Bearer ***\n" in ran.out
    assert "secret: headers.Authorization is in plain text in the file" in ran.out
    assert ours(home)["api"]["headers"] == {"Authorization": "Bearer ${secret:API_TOKEN_2}", "X-Region": "eu"}
    stored = json.loads((home / ".config/mcpd/secrets.json").read_text())
    assert stored == {"API_TOKEN": "s3cr3t-t0ken-value", "API_TOKEN_2": "an0ther-t0ken-value"}
    memory = home / ".local/state/mcpd/imports.json"
    assert memory.stat().st_mode & 0o777 == 0o600
    assert "t0ken" not in memory.read_text() + ran.out + ran.err


def test_conflicting_change_needs_confirmation(home: Path, alone: Mcpctl) -> None:
    """`--yes` alone does not overwrite a change in mcpd; together with the server's name it does."""
    cursor(home, time=TIME)
    alone("import", "--yes")
    change_ours(home, time=TIME | {"args": ["mcp-server-time", "--mine"], "timeout": 5000})
    cursor(home, time=TIME | {"args": ["mcp-server-time", "--theirs"], "env": {"A": "b"}})
    ran = alone("import", "--yes")
    conflict = "the definition was changed both in mcpd and in the editor: args"
    assert f"blocked: {conflict}; mcpctl import --server time --yes imports it" in ran.out
    assert ours(home)["time"]["args"] == ["mcp-server-time", "--mine"]
    assert alone("import", "--yes", "--server", "time").code == 0
    assert ours(home)["time"] == {
        "command": "uvx",
        "args": ["mcp-server-time", "--theirs"],
        "timeout": 5000,
        "env": {"A": "b"},
    }


def test_server_changed_only_in_mcpd_is_known(home: Path, alone: Mcpctl) -> None:
    """The editor's entry has not changed."""
    cursor(home, time=TIME)
    alone("import", "--yes")
    change_ours(home, time=TIME | {"args": ["mcp-server-time", "--mine"]})
    for _ in range(2):
        ran = alone("import", "--yes")
        assert "  time: Cursor, ~/.cursor/mcp.json (changed in mcpd since)\n" in ran.out
        assert "0 servers to import" in ran.out
    assert [*ours(home)] == ["time"]


def test_change_in_one_of_two_editors_needs_confirmation(home: Path, alone: Mcpctl) -> None:
    """It may be another account. If both changed alike, nothing is asked."""
    cursor(home, clock=TIME)
    windsurf(home, time=TIME)
    alone("import", "--yes")
    new = TIME | {"args": ["mcp-server-time", "--utc"]}
    cursor(home, clock=new)
    ran = alone("import", "cursor", "--yes")
    assert "clock, changed in Cursor since it was imported\n" in ran.out
    conflict = "the entry has not changed in Windsurf"
    assert f"blocked: {conflict}; mcpctl import --server clock --yes imports it" in ran.out
    assert ours(home) == {"clock": TIME}
    windsurf(home, time=new)
    assert "clock, changed in Cursor and Windsurf since" in alone("import", "--yes").out
    assert ours(home) == {"clock": new}


def test_different_changes_of_two_editors_are_not_mixed(home: Path, alone: Mcpctl) -> None:
    """The nearer one is offered, and the other one is named."""
    cursor(home, time=TIME)
    windsurf(home, time=TIME)
    alone("import", "--yes")
    cursor(home, time=TIME | {"args": ["one"]})
    windsurf(home, time=TIME | {"args": ["two"]})
    ran = alone("import", "--dry-run")
    assert ran.out.count("changed in Cursor since") == 1
    assert "blocked: the entry was changed differently in Windsurf; mcpctl import --server time" in ran.out


def test_removed_server_is_not_imported_again(home: Path, alone: Mcpctl) -> None:
    """Unless it is named, or mcpd has no servers at all."""
    cursor(home, time=TIME, api=API)
    alone("import", "--yes")
    written(home / CONFIG, {"mcpServers": {"api": ours(home)["api"]}})
    ran = alone("import", "--yes")
    assert "blocked: it was imported before and then removed from mcpd; mcpctl import --server" in ran.out
    assert [*ours(home)] == ["api"]
    assert alone("import", "--yes", "-s", "time").code == 0
    assert [*ours(home)] == ["api", "time"]
    (home / CONFIG).unlink()
    assert alone("import", "--yes").code == 0
    assert [*ours(home)] == ["time", "api"]


def test_servers_only_in_mcpd_are_listed_after_a_full_import(home: Path, alone: Mcpctl) -> None:
    """The files of a single editor do not show that a server is missing elsewhere."""
    path = cursor(home, time=TIME)
    alone("import", "--yes")
    change_ours(home, extra={"command": "x"})
    assert "only in mcpd\n  extra\n" in alone("import", "--dry-run").out
    assert alone("import", "--dry-run", "--json").json()["only_here"] == ["extra"]
    assert alone("import", "cursor", "--dry-run", "--json").json()["only_here"] == []
    path.write_text("{}")
    assert alone("import", "--dry-run", "--json").json()["only_here"] == ["time", "extra"]


def test_entry_disabled_by_take_over_is_unchanged(home: Path, alone: Mcpctl) -> None:
    """Otherwise an import after `--take-over` would disable the servers in mcpd too."""
    windsurf(home, time=TIME)
    alone("import", "--yes")
    assert "time: disabled" in alone("install", "windsurf", "--take-over=all").out
    answer = alone("import", "--yes", "--json").json()
    assert (answer["changed"], [one["name"] for one in answer["known"]]) == ([], ["time"])
    assert alone("uninstall", "windsurf").code == 0
    windsurf(home, time=TIME | {"disabled": True})  # now a person has
    answer = alone("import", "--yes", "--json").json()
    (part,) = answer["changed"][0]["parts"]
    assert part == {"part": "enabled", "here": True, "there": False, "changed_here": False}
    assert ours(home)["time"]["enabled"] is False


def test_changed_secret_in_an_env_file_is_found(home: Path, alone: Mcpctl) -> None:
    """Nothing in the editor's file itself has changed."""
    beside = home / "env"
    beside.write_text("API_KEY=first-s3cret\n")
    cursor(home, a={"command": "x", "envFile": str(beside)})
    settle("continue", home)
    alone("import", "--yes")
    beside.write_text("API_KEY=second-s3cret\n")
    (home / ".continue/.env").write_text("BRAVE_API_KEY=another-brave-key\n")
    changed = alone("import", "--yes", "--json").json()["changed"]
    parts = {one["name"]: [part["part"] for part in one["parts"]] for one in changed}
    assert parts == {"a": ["env.API_KEY"], "Brave-Search": ["env.BRAVE_API_KEY"]}
    stored = json.loads((home / ".config/mcpd/secrets.json").read_text())
    assert {"second-s3cret", "another-brave-key"} <= set(stored.values())
    assert alone("import", "--yes", "--json").json()["changed"] == []


def test_unfolded_entry_stays_unfolded(home: Path, alone: Mcpctl) -> None:
    """Its changes are those of the server behind `mcp-remote`."""
    remote: dict[str, Any] = {"command": "npx", "args": ["-y", "mcp-remote", "https://a.example.com/mcp"]}
    cursor(home, a=remote)
    alone("import", "--yes", "--unfold")
    assert alone("import", "--dry-run", "--json").json()["changed"] == []
    cursor(home, a=remote | {"args": ["-y", "mcp-remote", "https://b.example.com/mcp"]})
    assert "url: https://a.example.com/mcp -> https://b.example.com/mcp\n" in alone("import", "--yes").out
    assert ours(home) == {"a": {"url": "https://b.example.com/mcp"}}


def test_program_may_change_to_a_url(home: Path, alone: Mcpctl) -> None:
    """Nothing of the program stays in the definition."""
    (home / "src/x.py").touch()
    written(home / "src/.mcp.json", {"mcpServers": {"a": {"command": "python", "args": ["./x.py"]}}})
    alone("import", "--yes")
    assert ours(home)["a"]["cwd"] == str(home / "src")
    written(home / "src/.mcp.json", {"mcpServers": {"a": {"type": "http", "url": "http://localhost:1/mcp"}}})
    assert alone("import", "--yes").code == 0
    assert ours(home) == {"a": {"type": "http", "url": "http://localhost:1/mcp"}}


def test_each_change_is_confirmed(home: Path, alone: Mcpctl) -> None:
    """The default is yes, but no for a conflict."""
    cursor(home, time=TIME, api=API)
    alone("import", "--yes")
    change_ours(home, time=TIME | {"args": ["mine"]})
    cursor(home, time=TIME | {"args": ["theirs"]}, api=API | {"url": "https://new.example.com/mcp"})
    answers = {"time: apply args from Cursor? [y/N]": "", "api: apply url from Cursor? [Y/n]": ""}
    code, seen = on_terminal(home, answers, "import")
    assert code == 0
    assert "note: the definition was changed both in mcpd and in the editor: args" in seen
    assert "1 server saved" in seen
    assert ours(home)["time"]["args"] == ["mine"]
    assert ours(home)["api"]["url"] == "https://new.example.com/mcp"


@pytest.mark.parametrize("text", ["", "[]", '{"salt": 1}', '{"salt": "a", "entries": [3]}', "\xff"])
def test_unreadable_history_counts_as_empty(home: Path, alone: Mcpctl, text: str) -> None:
    """The import works as usual and writes a new history."""
    cursor(home, time=TIME)
    alone("import", "--yes")
    memory = home / ".local/state/mcpd/imports.json"
    memory.write_text(text, "latin-1")
    ran = alone("import", "--yes")
    assert (ran.code, "already in mcpd\n  time: Cursor" in ran.out) == (0, True)
    cursor(home, time=TIME | {"args": ["new"]})
    assert "time, changed in Cursor since" in alone("import", "--yes").out


def test_entries_of_the_same_name_in_a_list_are_not_remembered(home: Path, alone: Mcpctl) -> None:
    """Continue uses a list, so they could be mixed up."""
    path = home / ".continue/config.yaml"
    path.parent.mkdir()
    one, two = "- {name: a, command: one}\n", "- {name: a, command: two}\n"
    path.write_text(f"mcpServers:\n{one}{two}")
    alone("import", "--yes")
    path.write_text(f"mcpServers:\n{two}{one}")
    answer = alone("import", "--yes", "--json").json()
    assert (answer["changed"], len(answer["known"])) == ([], 2)


def test_unwritable_history_does_not_fail_the_import(home: Path, alone: Mcpctl) -> None:
    """The import is done by then."""
    cursor(home, time=TIME)
    (home / ".local").write_text("no directory")
    ran = alone("import", "--yes")
    assert (ran.code, ours(home)) == (0, {"time": TIME})
    assert "will show these servers as new" in ran.err


def test_change_during_the_prompt_is_not_overwritten(tmp_path: Path) -> None:
    """Everything is written as shown, or nothing."""
    path = tmp_path / "c.json"
    path.write_text('{"mcpServers": {"a": {"command": "x"}, "b": {"command": "y"}}}')
    with pytest.raises(BadSpec, match="has changed in"):
        put_servers(path, {"b": {"command": "n"}, "a": {"command": "new"}}, {"a": {"command": "o"}, "b": {}})
    with pytest.raises(BadSpec, match="already"):
        put_servers(path, {"b": {"command": "n"}}, {})
    assert json.loads(path.read_text())["mcpServers"] == {"a": {"command": "x"}, "b": {"command": "y"}}


def test_server_that_is_only_disabled_in_mcpd_has_a_note(home: Path, alone: Mcpctl) -> None:
    """Another editor has an equal one that is enabled. A server that the user turned off has none."""
    windsurf(home, off=TIME | {"disabled": True})
    alone("import", "--yes")
    assert "note:" not in alone("import", "--dry-run").out
    cursor(home, clock=TIME)
    note = "it is enabled in Cursor, but disabled in mcpd; to use it: mcpctl enable off"
    for _ in range(2):
        assert f"    note: {note}\n" in alone("import", "--yes").out
    assert [one["notes"] for one in alone("import", "--json", "--yes").json()["known"]] == [[note], []]
    cursor(home, clock=TIME, api=API)
    alone("import", "--yes")
    change_ours(home, api=ours(home)["api"] | {"enabled": False})
    assert "enable api" not in alone("import", "--dry-run").out

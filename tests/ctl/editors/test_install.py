"""mcpd's entry in the files of editors: what is written, what stays, and how it is undone."""

from __future__ import annotations

import json
import os
import shutil
from pathlib import Path

import pytest

from ctl.editors.backups import EditorBackups
from ctl.editors.config_files import BY_NAME, UserContext
from ctl.editors.install import install, uninstall
from ctl.editors.mcpd_entry import command_entry, install_targets, installable_editors, slot_of
from mcpd.config.in_place_edits.document import parse_document, read_document
from tests.ctl.conftest import Mcpctl
from tests.ctl.editors.golden import CASES, GOLDEN, installed, settle

WITH_ENTRY = [case for case in CASES if (GOLDEN / case / "after").is_dir()]


def editor_of(case: str) -> str:
    return case.rstrip("-12")


def tree(home: Path) -> dict[Path, bytes]:
    """Return every file of the editors."""
    ours = (home / ".local", home / ".config" / "mcpd")
    return {
        path: path.read_bytes()
        for path in home.rglob("*")
        if path.is_file() and not any(path.is_relative_to(one) for one in ours)
    }


@pytest.mark.parametrize("case", WITH_ENTRY)
def test_uninstall_restores_each_format_byte_for_byte(case: str, home: Path, alone: Mcpctl) -> None:
    """Only one file changes, and afterwards everything is as before."""
    settle(case, home)
    before = tree(home)

    ran = alone("install", editor_of(case))

    assert ran.code == 0, ran.err
    assert tree(home) == before | installed(case, home)
    assert alone("install", editor_of(case)).out.endswith(f"already configured in {shown(case, home)}\n")
    ran = alone("uninstall", editor_of(case))
    assert ran.out.endswith(f"{shown(case, home)} restored to its original content\n")
    assert tree(home) == before
    assert list((home / ".local/state/mcpd/editors").iterdir()) == []


@pytest.mark.parametrize("case", WITH_ENTRY)
def test_uninstall_without_a_backup_removes_the_entry(case: str, home: Path, alone: Mcpctl) -> None:
    """The result has the same bytes, since nothing else was changed."""
    settle(case, home)
    before = tree(home)
    assert alone("install", editor_of(case)).code == 0
    for kept in (home / ".local/state/mcpd/editors").iterdir():
        kept.unlink()
    assert "'mcpd' removed from" in alone("uninstall", editor_of(case)).out
    assert tree(home) == before


@pytest.mark.parametrize("name", installable_editors())
def test_created_file_is_removed_by_uninstall(name: str, home: Path, alone: Mcpctl) -> None:
    """With its directories. Only the user can read it, and it only contains mcpd's entry."""
    before = sorted(home.rglob("*"))
    assert alone("install", name).code == 0
    one = install_targets(BY_NAME[name], UserContext(os.environ, home / "src"), project=False)[0]
    document = read_document(one.path, foreign=True)
    assert document.entry_names(slot_of(one, document)) == ["mcpd"]
    assert one.path.stat().st_mode & 0o777 == 0o600
    assert "restored to its original content" in alone("uninstall", name).out
    assert sorted(path for path in home.rglob("*") if ".local" not in str(path)) == before


def shown(case: str, home: Path) -> str:
    (path,) = installed(case, home)
    return f"~/{path.relative_to(home)}"


def test_symbolic_link_mode_and_byte_order_mark_are_kept(home: Path, alone: Mcpctl) -> None:
    """Dotfile repositories use links, and some editors write a byte order mark."""
    real = home / "dots.json"
    real.write_bytes(b'\xef\xbb\xbf{\r\n\t"mcpServers": {}\r\n}')
    real.chmod(0o640)
    (home / ".cursor").mkdir()
    link = home / ".cursor/mcp.json"
    link.symlink_to(real)
    before = real.read_bytes()

    assert alone("install", "cursor").code == 0
    assert link.is_symlink()
    assert real.stat().st_mode & 0o777 == 0o640
    assert real.read_bytes() == (
        b'\xef\xbb\xbf{\r\n\t"mcpServers": {\r\n\t\t"mcpd": {\r\n\t\t\t"command": "/opt/mcpctl",\r\n'
        b'\t\t\t"args": ["bridge", "--client", "cursor"]\r\n\t\t}\r\n\t}\r\n}'
    )
    assert alone("uninstall", "cursor").code == 0
    assert real.read_bytes() == before
    assert real.stat().st_mode & 0o777 == 0o640
    assert link.is_symlink()


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("{", "not valid JSON"),
        ("[]", "does not contain an object"),
        ('{"mcpServers": "elsewhere"}', "cannot edit this file without risking"),
        ('{"mcpServers": {"mcpd": {"command": "my-own-thing"}}}', "another server named 'mcpd'"),
    ],
)
def test_unusable_file_is_not_changed(text: str, said: str, home: Path, alone: Mcpctl) -> None:
    """Exit code 2, the reason, and no backup."""
    (home / ".cursor").mkdir()
    path = home / ".cursor/mcp.json"
    path.write_text(text)
    ran = alone("install", "cursor")
    assert ran.code != 0
    assert said in ran.err
    assert path.read_text() == text


@pytest.mark.parametrize("words", [["install"], ["install", "--dry-run"], ["uninstall"]])
def test_read_only_file_is_not_changed(words: list[str], home: Path, alone: Mcpctl) -> None:
    """It could be replaced, but its owner does not want that."""
    settle("cursor", home)
    path = home / ".cursor/mcp.json"
    if words == ["uninstall"]:
        alone("install", "cursor")
    before = path.read_bytes()
    path.chmod(0o444)
    ran = alone(*words, "cursor")
    assert ran.code == 1
    assert ran.err.splitlines()[-2:] == [
        f"error: cannot write {path}: it is read-only",
        f"next: chmod u+w {path}",
    ]
    assert path.read_bytes() == before
    if words == ["uninstall"]:
        path.chmod(0o644)
        assert "restored to its original content" in alone("uninstall", "cursor").out


@pytest.mark.root
@pytest.mark.skipif(os.getuid() != 0, reason="needs root: only root may give files away")
def test_file_keeps_its_owner(home: Path, alone: Mcpctl) -> None:
    """With sudo, the file must not change hands."""
    settle("cursor", home)
    path = home / ".cursor/mcp.json"
    os.chown(path, 12345, 54321)
    path.chmod(0o640)
    for word in ("install", "uninstall"):
        assert alone(word, "cursor").code == 0
        found = path.stat()
        assert (found.st_uid, found.st_gid, found.st_mode & 0o777) == (12345, 54321, 0o640)


def test_dry_run_writes_nothing(home: Path, alone: Mcpctl) -> None:
    """Neither a file nor a directory."""
    settle("codex", home)
    before = sorted(home.rglob("*"))
    assert "would be added to ~/.codex/config.toml" in alone("install", "codex", "--dry-run").out
    assert sorted(home.rglob("*")) == before


def test_entries_for_one_server_or_profile_coexist(home: Path, alone: Mcpctl) -> None:
    """Uninstall removes all of them."""
    alone("install", "kiro")
    alone("install", "kiro", "--server", "github")
    ran = alone("install", "kiro", "--profile", "work", "--name", "work")
    assert "warning: mcpd has no profile 'work' (there are none)" in ran.err
    alone("install", "kiro", "--profile", "play")
    path = home / ".kiro/settings/mcp.json"
    found = json.loads(path.read_text())["mcpServers"]
    assert {name: fields["args"][3:] for name, fields in found.items()} == {
        "mcpd": [],
        "mcpd-github": ["--server", "github"],
        "work": ["--profile", "work"],
        "mcpd-play": ["--profile", "play"],
    }
    assert alone("uninstall", "kiro").code == 0
    assert not path.exists()


# ---- taking over -------------------------------------------------------------------------------------

OURS = {"mcpServers": {"tickets": {"command": "uvx", "args": ["tickets-mcp"]}}}

T = '"t": {"command": "uvx", "args": ["tickets-mcp"]}'
TAKEN = {
    "cursor": (
        ".cursor/mcp.json",
        f'{{\n  "mcpServers": {{\n    {T},\n    "other": {{"command": "o"}}\n  }}\n}}\n',
        ["other", "mcpd"], None,
    ),
    "zed": (
        ".config/zed/settings.json",
        f'{{\n  "context_servers": {{\n    {T}, // mine\n    "other": {{"command": "o"}},\n  }},\n}}',
        ["t", "other", "mcpd"], ("t", "enabled", False),
    ),
    "codex": (
        ".codex/config.toml",
        '[mcp_servers.t]\ncommand = "uvx"\nargs = ["tickets-mcp"]\nenabled = true # mine\n\n'
        '[mcp_servers.other]\ncommand = "o"\n',
        ["t", "other", "mcpd"], ("t", "enabled", False),
    ),
    "continue": (
        ".continue/config.yaml",
        "name: x\nmcpServers:\n  - name: t   # mine\n    command: uvx\n    args: [tickets-mcp]\n"
        "  - name: other\n    command: o\n",
        ["other", "mcpd"], None,
    ),
    "opencode": (
        ".config/opencode/opencode.json",
        '{"mcp": {"servers": {"t": {"type": "local", "command": ["uvx", "tickets-mcp"]},'
        ' "other": {"type": "local", "command": ["o"]}}}}',
        ["t", "other", "mcpd"], ("t", "disabled", True),
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", TAKEN)
def test_take_over_disables_entries_for_servers_of_mcpd(name: str, home: Path, alone: Mcpctl) -> None:
    """With the editor's own switch if it has one. Other servers do not change."""
    place, text, names, switch = TAKEN[name]
    path = home / place
    path.parent.mkdir(parents=True)
    path.write_text(text)
    write_ours(home)

    ran = alone("install", name)
    assert (
        f"also provided by mcpd: t; disable them in the editor with: mcpctl install {name} --take-over"
        in ran.out
    )
    assert alone("install", name, "--take-over=all").code == 0

    one = install_targets(BY_NAME[name], UserContext(os.environ, home / "src"), project=False)[0]
    document = read_document(path, foreign=True)
    slot = slot_of(one, document)
    assert document.entry_names(slot) == names
    if switch is not None:
        assert document.value_at((*slot, switch[0], switch[1])) is switch[2]
    assert alone("uninstall", name).code == 0
    assert path.read_text() == text


@pytest.mark.parametrize("is_installed_again", [False, True])
@pytest.mark.parametrize("name", TAKEN)
def test_disabled_entries_are_restored_in_a_changed_file(
    name: str, is_installed_again: bool, home: Path, alone: Mcpctl
) -> None:
    """Enabled or added again, with all their fields. Nobody is told that the file is as it was."""
    place, text, _, _ = TAKEN[name]
    path = home / place
    path.parent.mkdir(parents=True)
    path.write_text(text)
    write_ours(home)
    alone("install", name, "--take-over=all")
    path.write_text(path.read_text().replace("other", "renamed"))
    if is_installed_again:
        alone("install", name, "--name", "again")
    ran = alone("uninstall", name)
    assert "t: restored" in ran.out
    assert "original content" not in ran.out
    document = read_document(path, foreign=True)
    was = parse_document(text.replace("other", "renamed").encode(), path, foreign=True)
    one = install_targets(BY_NAME[name], UserContext(os.environ, home / "src"), project=False)[0]
    slot = slot_of(one, document)
    assert sorted(document.entry_names(slot)) == ["renamed", "t"]
    assert as_map(document.value_at(slot)) == as_map(was.value_at(slot))


def test_entry_that_the_user_added_again_is_kept(home: Path, alone: Mcpctl) -> None:
    """It is not duplicated from the backup, and the user is told where the former one is."""
    place, text, _, _ = TAKEN["cursor"]
    path = home / place
    path.parent.mkdir(parents=True)
    path.write_text(text)
    write_ours(home)
    ran = alone("install", "cursor", "--take-over=all")
    assert "t: removed until mcpctl uninstall (provided by mcpd as tickets)" in ran.out
    path.write_text(path.read_text().replace('"other": {"command": "o"}', '"t": {"command": "new"}'))
    ran = alone("uninstall", "cursor")
    assert "t: not restored, because the file has another entry with this name; the former one" in ran.out
    assert path.read_text() == '{\n  "mcpServers": {\n    "t": {"command": "new"}\n  }\n}\n'


@pytest.mark.parametrize(
    ("ours", "words"),
    [
        ({"enabled": False}, []),
        ({"disabled": True}, []),
        ({}, ["--server", "elsewhere"]),
        ({}, ["--profile", "small"]),
    ],
)
def test_take_over_keeps_servers_that_the_entry_does_not_provide(
    ours: dict[str, object], words: list[str], home: Path, alone: Mcpctl
) -> None:
    """Servers that are disabled in mcpd, or outside of the entry's server or profile."""
    path = home / ".cursor/mcp.json"
    path.parent.mkdir()
    path.write_text(f'{{"mcpServers": {{{T}}}}}')
    write_ours(
        home,
        {
            "mcpServers": {"tickets": {"command": "uvx", "args": ["tickets-mcp"], **ours}},
            "settings": {"profiles": {"small": {"servers": ["x*"]}, "large": {"servers": ["tick*"]}}},
        },
    )
    ran = alone("install", "cursor", "--take-over=all", *words, "--json")
    assert ran.json()["editors"][0]["taken_over"] == []
    assert '"t"' in path.read_text()
    if "--profile" in words:
        ran = alone("install", "cursor", "--take-over=all", "--profile", "large", "--json")
        assert [one["name"] for one in ran.json()["editors"][0]["taken_over"]] == ["t"]


@pytest.mark.parametrize("mcp", [None, {"allowed": ["t"]}, {"excluded": []}, {"excluded": ["x"]}])
def test_list_that_install_added_to_the_file_of_gemini_is_removed(
    mcp: object, home: Path, alone: Mcpctl
) -> None:
    """Also if the file has changed since, so that it cannot be restored byte for byte."""
    path = home / ".gemini/settings.json"
    path.parent.mkdir()
    before: dict[str, object] = {
        "mcpServers": {"t": {"command": "uvx", "args": ["tickets-mcp"]}},
        "theme": "a",
    }
    before |= {} if mcp is None else {"mcp": mcp}
    path.write_text(json.dumps(before))
    write_ours(home)
    assert alone("install", "gemini", "--take-over=all").code == 0
    changed = json.loads(path.read_text()) | {"theme": "b", "new": 1}
    path.write_text(json.dumps(changed, indent=3))
    assert alone("uninstall", "gemini").code == 0
    assert json.loads(path.read_text()) == before | {"theme": "b", "new": 1}


def test_entries_are_restored_after_mcpd_was_removed_by_hand(home: Path, alone: Mcpctl) -> None:
    """The report names the editor."""
    path = home / ".cursor/mcp.json"
    path.parent.mkdir()
    path.write_text(f'{{"mcpServers": {{{T}, "other": {{"command": "o"}}}}}}')
    write_ours(home)
    assert alone("install", "cursor", "--take-over=all").code == 0
    path.write_text('{"mcpServers": {"other": {"command": "o"}}}')
    assert alone("uninstall", "--all").out == (
        "Cursor: mcpd is no longer configured in ~/.cursor/mcp.json\n  t: restored\n"
    )
    assert sorted(json.loads(path.read_text())["mcpServers"]) == ["other", "t"]


def write_ours(home: Path, ours: object = OURS) -> None:
    path = home / ".config/mcpd/config.json"
    path.parent.mkdir(parents=True)
    path.write_text(json.dumps(ours))


def as_map(value: object) -> object:
    """Return a list of entries regardless of its order."""
    return {one["name"]: one for one in value} if isinstance(value, list) else value


# ---- which editors -----------------------------------------------------------------------------------


def test_all_selects_every_editor_with_a_configuration(home: Path, alone: Mcpctl) -> None:
    """If there is none, an error says so."""
    assert alone("install", "--all").code == 5
    settle("cursor", home)
    settle("goose", home)
    ran = alone("install", "--all", "--json")
    assert [one["editor"] for one in ran.json()["editors"]] == ["cursor", "goose"]
    assert alone("uninstall", "--all", "--json").json()["editors"][0]["restored"] is True


def test_uninstall_finds_the_entry_in_any_file_of_the_editor(home: Path, alone: Mcpctl) -> None:
    """opencode reads two files, and install may now choose the other one."""
    first = home / ".config/opencode/opencode.jsonc"
    first.parent.mkdir(parents=True)
    first.write_text("{}")
    assert alone("install", "opencode").code == 0
    first.with_suffix(".json").write_text("{}")
    ran = alone("uninstall", "opencode")
    assert ran.out == "opencode: ~/.config/opencode/opencode.jsonc restored to its original content\n"
    assert first.read_text() == "{}"
    assert alone("uninstall", "opencode").out.count("mcpd is not configured in") == 1


def test_uninstall_all_lists_other_projects(
    home: Path, alone: Mcpctl, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each must be undone in its directory. Records of deleted projects are dropped."""
    settle("cursor", home)
    for name in ("shop", "gone"):
        (home / name).mkdir()
        monkeypatch.chdir(home / name)
        ran = alone("install", "cursor", "--project")
        assert "if git tracks the file, do not commit the change" in ran.out
    shutil.rmtree(home / "gone")
    monkeypatch.chdir(home / "src")
    alone("install", "cursor")
    ran = alone("uninstall", "--all")
    assert (
        "~/shop/.cursor/mcp.json also contains mcpd; run mcpctl uninstall EDITOR --project in its directory"
        in ran.err
    )
    assert "gone" not in ran.err
    monkeypatch.chdir(home / "shop")
    assert alone("uninstall", "cursor", "--project").code == 0
    assert list((home / ".local/state/mcpd/editors").iterdir()) == []


@pytest.mark.parametrize("word", ["install", "uninstall"])
def test_broken_file_does_not_affect_other_editors(word: str, home: Path, alone: Mcpctl) -> None:
    """It is reported with its path, and the exit code shows that something failed."""
    for case in ("codex", "cursor", "goose"):
        settle(case, home)
    if word == "uninstall":
        alone("install", "--all")
    broken = home / ".codex/config.toml"
    broken.write_text("[mcp_servers\n")
    before = tree(home)

    ran = alone(word, "--all")

    assert ran.code == 2
    assert "error: " + str(broken) in ran.err
    assert "config.toml:1:" in ran.err
    changed = {path.name for path, data in tree(home).items() if before[path] != data}
    assert changed == {"mcp.json", "config.yaml"}
    again = alone(word, "--all", "--json")
    assert again.code == 2
    assert [one.get("error", {}).get("code") for one in again.json()["editors"]] == [None, "bad_spec", None]


@pytest.mark.parametrize("words", [[], ["cursor", "--all"], ["cursr"], ["emacs"], ["mcporter"]])
def test_invalid_command_line_is_an_error(words: list[str], home: Path, alone: Mcpctl) -> None:
    """With a suggestion if there is one."""
    ran = alone("install", *words)
    assert ran.code != 0
    assert "cursr" not in words or "did you mean cursor" in ran.err
    assert ", mcporter" not in ran.err, "it is read, and cannot be given an entry"
    assert list(home.rglob("*.json")) == []


def test_project_file_belongs_to_the_repository(
    home: Path, alone: Mcpctl, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As `import` finds it: the nearest one up to the root, where a new one is created."""
    (home / "shop/.git").mkdir(parents=True)
    (home / "shop/web/src").mkdir(parents=True)
    monkeypatch.chdir(home / "shop/web/src")
    assert alone("install", "cursor", "--project").out.startswith(
        "Cursor: 'mcpd' added to ~/shop/.cursor/mcp.json\n"
    )
    near = home / "shop/web/.cursor/mcp.json"
    near.parent.mkdir()
    near.write_text("{}")
    assert "added to ~/shop/web/.cursor/mcp.json" in alone("install", "cursor", "--project").out
    assert "~/shop/web/.cursor/mcp.json restored" in alone("uninstall", "cursor", "--project").out
    near.unlink()
    assert "~/shop/.cursor/mcp.json restored" in alone("uninstall", "cursor", "--project").out
    assert not (home / "shop/.cursor").exists()


def test_file_of_a_project_that_never_ends_is_not_read(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, alone: Mcpctl
) -> None:
    (tmp_path / ".mcp.json").symlink_to("/dev/zero")
    monkeypatch.chdir(tmp_path)
    for words in (["install", "--take-over"], ["install", "--permissions"], ["uninstall"]):
        ran = alone(*words, "claude-code", "--project")
        assert ran.code != 0
        assert "it is not a regular file" in ran.err, ran


def test_concurrent_write_of_an_editor_is_kept(home: Path) -> None:
    """Claude Code writes its file all the time."""
    path = home / ".claude.json"
    path.write_text('{"count": 1}')
    one = install_targets(BY_NAME["claude-code"], UserContext(os.environ, home / "src"), project=False)[0]
    backups = EditorBackups(os.environ)
    writes = iter(['{"count": 2}'])

    def meanwhile(*_: object) -> dict[str, str]:
        path.write_text(next(writes, path.read_text()))
        return {}

    def made(slot: tuple[str, ...]) -> dict[str, object]:
        return command_entry(one.editor, slot, "mcpd", "/opt/mcpctl", ["bridge"])

    install(one, "mcpd", made, meanwhile, backups)
    assert json.loads(path.read_text())["count"] == 2
    uninstall(one, backups)
    assert path.read_text() == '{"count": 2}'


# ---- any file ----------------------------------------------------------------------------------------

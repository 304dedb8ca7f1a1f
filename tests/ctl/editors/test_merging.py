"""Merging of entries, secrets in plain text, and mcpd's own entries."""

from __future__ import annotations

from pathlib import Path

import attrs
import pytest

from ctl.editors.config_files import BY_NAME
from ctl.editors.convert_entry import RawEntry, map_entry, unwrap_proxy
from ctl.editors.mcpd_entry import is_mcpd_entry
from ctl.editors.merge import MergeResult, for_all_editors, merge_candidates
from ctl.editors.read_entries import EntrySource, ImportCandidate, valid_server_name
from ctl.editors.secrets import extract_secrets, masked_definition
from ctl.editors.variables import NeededSecret, UnusableEntry, VariableTranslator

NPX: dict[str, object] = {"command": "npx", "args": ["-y", "x"]}


def one(
    name: str, definition: dict[str, object], editor: str = "cursor", cwd: str | None = None
) -> ImportCandidate:
    source = EntrySource(editor, editor.title(), Path(f"/{editor}.json"), "user", name)
    return ImportCandidate(valid_server_name(name), definition, source, cwd)


def merged(*candidates: ImportCandidate, ours: dict[str, dict[str, object]] | None = None) -> MergeResult:
    return merge_candidates(candidates, ours or {}, {"T": "abc", "TOKEN": "ghp_abcdefghij0123456789"})


def merge(
    *candidates: ImportCandidate, ours: dict[str, dict[str, object]] | None = None
) -> dict[str, dict[str, object]]:
    return {server.name: server.definition for server in merged(*candidates, ours=ours).servers}


def test_copy_whose_key_is_known_is_imported() -> None:
    """The user is not asked for a key that another editor has."""
    asks = attrs.evolve(
        one("weather", NPX | {"env": {"KEY": "${secret:KEY}"}}, "vscode"),
        needed_secrets=(NeededSecret("KEY", "the key", None),),
    )
    found = merged(asks, one("weather", NPX | {"env": {"KEY": "abc"}}))
    assert [server.definition["env"] for server in found.servers] == [{"KEY": "abc"}]
    assert [each.source.editor for each in found.similar] == ["vscode"]


def test_lists_of_tools_of_one_editor_do_not_hide_tools_from_the_others() -> None:
    filtered = one("a", NPX | {"includeTools": ["x"]}, "gemini")
    (server,) = merged(filtered, one("a", dict(NPX), "zed")).servers
    assert server.definition == NPX
    assert server.notes == ("its editors differ, so mcpd's defaults apply: includeTools",)
    assert merge(filtered, one("a", NPX | {"includeTools": ["x"]}, "zed"))["a"]["includeTools"] == ["x"]


@pytest.mark.parametrize(
    ("first", "second", "merged"),
    [
        ({"timeout": 5000}, {}, {}),
        ({"timeout": 5000}, {"timeout": 5000}, {"timeout": 5000}),
        ({"connectTimeout": 30000, "timeout": 1}, {"timeout": 1}, {"timeout": 1}),
        ({"excludeTools": ["x"]}, {}, {}),
        ({"enabled": False}, {}, {}),
        ({"enabled": False}, {"enabled": False}, {"enabled": False}),
    ],
)
def test_settings_of_one_editor_do_not_limit_the_others(
    first: dict[str, object], second: dict[str, object], merged: dict[str, object]
) -> None:
    """What differs is left to mcpd's defaults."""
    for one_is, other_is in ((first, second), (second, first)):
        assert for_all_editors(NPX | one_is, [NPX | one_is, NPX | other_is]) == NPX | merged


FS: dict[str, object] = {"command": "fs"}


URL: dict[str, object] = {"url": "https://a.example/mcp", "headers": {"X-Key": "1"}}
DOCKER: dict[str, object] = {"command": "docker", "args": ["run", "-i", "a"]}


@pytest.mark.parametrize(
    ("first", "second", "differs_in"),
    [
        (NPX, NPX | {"env": {"A": "1"}}, ("env.A",)),
        (NPX, {"command": "bunx", "args": ["x@latest", "stdio"]}, ("command", "args")),
        (URL, {"url": "https://A.example/mcp/?x=1", "type": "http"}, ("url", "headers.X-Key")),
        (
            URL,
            {"command": "npx", "args": ["mcp-remote", "https://a.example/mcp"]},
            ("url", "headers.X-Key", "command", "args"),
        ),
        (DOCKER, DOCKER | {"args": ["run", "-i", "a:1"]}, ("args",)),
        (
            {"command": "npx", "args": ["mcp-remote", "https://a.example/mcp"]},
            {"command": "npx", "args": ["mcp-remote", "https://b.example/mcp", "--unknown"]},
            (),
        ),
        ({"command": "uv", "args": ["run", "a.py"]}, {"command": "uv", "args": ["run", "a.py", "b"]}, ()),
        (FS, FS | {"args": ["-v"]}, ()),
        (URL, {"url": "https://b.example/mcp"}, ()),
    ],
)
def test_same_package_or_url_in_another_file_is_left_out(
    first: dict[str, object], second: dict[str, object], differs_in: tuple[str, ...]
) -> None:
    """A shared connection must not act under another user's name. In one file, they are meant to differ."""
    found = merged(one("a", first), one("b", second, "zed")).similar
    wanted = {("b", "a", differs_in)} if differs_in else set()
    assert {(each.source.name, each.server, tuple(sorted(each.differs_in))) for each in found} == {
        (name, other, tuple(sorted(parts))) for name, other, parts in wanted
    }
    assert [*merge(one("a", first), one("b", second))] == ["a", "b"]
    of_mcpd = merged(one("b", second), ours={"a": first}).similar
    assert [each.server for each in of_mcpd] == [each.server for each in found]


def test_project_does_not_replace_the_server_of_the_user() -> None:
    """Its file may come from anywhere. It gets another name, and with the same package it is left out."""
    mine, near = one("a", NPX), one("a", NPX | {"env": {"A": "1"}}, "zed")
    other = one("a", FS, "kiro")
    of_project = [
        attrs.evolve(each, source=attrs.evolve(each.source, scope="project")) for each in (near, other)
    ]
    whole = merged(*of_project, mine)
    assert {each.name: each.definition for each in whole.servers} == {"a": NPX, "a-kiro": FS}
    assert [each.source.editor for each in whole.similar] == ["zed"]


def test_definition_with_a_reference_wins_over_one_with_the_secret() -> None:
    """They mean the same server, since the variable has that value."""
    headers = [{"Authorization": f"Bearer {text}"} for text in ("ghp_abcdefghij0123456789", "${TOKEN}")]
    literal, reference = ({"url": "https://x.y/mcp", "headers": each} for each in headers)
    assert merge(one("a", {**literal}), one("b", {**reference}, "zed")) == {"a": reference}


def test_server_is_enabled_if_any_editor_enables_it() -> None:
    """If it is disabled everywhere, it is imported as disabled."""
    off = NPX | {"enabled": False}
    assert merge(one("a", off), one("a", NPX, "zed")) == {"a": NPX}
    assert merge(one("a", off), one("a", dict(off), "zed")) == {"a": off}


def test_project_server_runs_in_the_project_unless_a_user_file_has_it_too(tmp_path: Path) -> None:
    """Without relative paths in its arguments, a program is the same server in any directory."""
    (tmp_path / "x.db").touch()
    here = str(tmp_path)
    assert merge(one("a", NPX, cwd=here)) == {"a": NPX | {"cwd": here}}
    assert merge(one("a", NPX, cwd=here), one("a", NPX, "zed")) == {"a": NPX}
    local: dict[str, object] = {"command": "db", "args": ["x.db"]}
    assert merge(one("a", local, cwd=here), one("a", local, "zed")) == {
        "a": local | {"cwd": here},
        "a-zed": local,
    }


@pytest.mark.parametrize(
    "definition",
    [NPX, {"command": ["npx", "-y", "x"]}, {"cmd": "npx", "args": ["-y", "x"]}, NPX | {"cwd": "/p"}],
)
def test_server_that_mcpd_has_is_not_imported(definition: dict[str, object]) -> None:
    """In any spelling and under any name."""
    assert merge(one("a", NPX, cwd="/p"), ours={"mine": definition}) == {}


# ---- secrets -----------------------------------------------------------------------------------------


BEARER, COMMIT, RANDOM = "Bearer abc123def", "0123456789abcdef" * 2 + "01234567", "q7Gd82hfK29dhQpz81Lm"


@pytest.mark.parametrize(
    ("key", "value", "after"),
    [
        ("env", {"GITHUB_TOKEN": "hunter22"}, {"GITHUB_TOKEN": "${secret:GITHUB_TOKEN}"}),
        ("env", {"GITHUB_TOKEN": "${T}"}, None),
        ("env", {"AUTH_MODE": "oauth", "KEY_FILE": "/etc/key", "PORT": "8080"}, None),
        ("env", {"X": "ghp_abcdefghijklmnop"}, {"X": "${secret:X}"}),
        ("env", {"X": RANDOM}, {"X": "${secret:X}"}),
        ("env", {"TOKEN": "a$${b}cdef"}, {"TOKEN": "${secret:TOKEN}"}),
        ("env", {"U": "pg://u:p4ss@${H:-h}/db"}, {"U": "pg://u:${secret:SRV_PASSWORD}@${H:-h}/db"}),
        ("headers", {"Authorization": BEARER}, {"Authorization": "Bearer ${secret:SRV_TOKEN}"}),
        ("headers", {"X-Api-Key": "abc123def"}, {"X-Api-Key": "${secret:SRV_X_API_KEY}"}),
        ("headers", {"X-Region": "eu-west-1", "X-Api-Key": "$${AUTH_TOKEN}"}, None),
        ("args", ["--api-key", "abc123def", "-v"], ["--api-key", "${secret:API_KEY}", "-v"]),
        ("args", ["--token=abc123def", "x=y"], ["--token=${secret:TOKEN}", "x=y"]),
        ("args", ["-H", f"Authorization: {BEARER}"], ["-H", "Authorization: Bearer ${secret:SRV_TOKEN}"]),
        ("args", ["-e", "DB_PASSWORD=abc123def"], ["-e", "DB_PASSWORD=${secret:DB_PASSWORD}"]),
        ("args", ["postgresql://u:p4ss@h/db"], ["postgresql://u:${secret:SRV_PASSWORD}@h/db"]),
        ("args", ["--from", f"git+https://h/x@{COMMIT}"], None),
        ("args", ["--header", "Authorization: Bearer $${AUTH_TOKEN}"], None),
        ("args", ["-y", "@scope/server-filesystem", "--model=claude-3-5-sonnet-20241022"], None),
        ("url", "https://h/mcp?key=abc123def&x=1", "https://h/mcp?key=${secret:SRV_KEY}&x=1"),
        ("url", f"https://h/s/{RANDOM}/mcp?x=1", "https://h/s/${secret:SRV_PATH}/mcp?x=1"),
        ("url", f"https://h/${{X}}/{RANDOM}", None),
    ],
)
def test_secrets_are_found_and_replaced_by_references(key: str, value: object, after: object) -> None:
    """By their names and by their form; nothing else is replaced."""
    done = extract_secrets("srv", {key: value}, {})
    assert done.definition == {key: value if after is None else after}
    assert bool(done.secrets) is (after is not None)
    for secret in done.secrets:
        assert secret.value not in f"{masked_definition(done)} {done.secrets!r}"
        assert secret.value in str(value).replace("$${", "${")


def test_each_secret_value_has_one_name() -> None:
    """Two accounts of one service are common."""
    taken: dict[str, str] = {}
    first = extract_secrets("a", {"env": {"TOKEN": "value-one"}}, taken)
    second = extract_secrets("b", {"env": {"TOKEN": "value-two"}}, taken)
    third = extract_secrets("c", {"env": {"OTHER_TOKEN": "value-one"}}, taken)
    assert [done.secrets[0].name for done in (first, second, third)] == ["TOKEN", "B_TOKEN", "TOKEN"]
    again = extract_secrets("token", {"headers": {"Authorization": "Bearer value-four"}}, taken)
    again = extract_secrets("token", {"headers": {"Authorization": "Bearer value-five"}}, taken)
    assert again.secrets[0].name == "TOKEN_TOKEN_2"


# ---- ourselves ---------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("fields", "ours"),
    [
        ({"command": "/usr/bin/mcpctl", "args": ["bridge"]}, True),
        ({"command": ["mcpctl", "bridge", "--client", "x"]}, True),
        ({"command": "mcpctl bridge"}, True),
        ({"command": "mcpctl", "args": ["--host", "laptop", "bridge"]}, False),
        ({"command": "python", "args": ["-m", "ctl", "bridge"]}, True),
        ({"command": "mcpctl", "args": ["status"]}, False),
        ({"command": "npx", "args": ["-y", "bridge"]}, False),
        ({"type": "http", "url": "unix:///run/user/1000/mcpd/mcpd.sock#/mcp"}, True),
        ({"serverUrl": "http://127.0.0.1:8931/mcp"}, True),
        ({"url": "http://127.0.0.1:9999/mcp"}, False),
        ({"url": "http://[bad"}, False),
    ],
)
def test_mcpd_entry_is_recognized_in_every_spelling(fields: dict[str, object], ours: bool) -> None:
    """Importing it would make mcpd run itself endlessly."""
    assert is_mcpd_entry(fields, frozenset({"127.0.0.1:8931"})) is ours


# ---- mcp-remote --------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("definition", "after"),
    [
        (
            {"command": "npx", "args": ["-y", "mcp-remote@latest", "https://h/mcp", "3334", "--allow-http"]},
            {"url": "https://h/mcp"},
        ),
        (
            {
                "command": "npx",
                "args": ["mcp-remote", "https://h/sse", "--transport", "sse-only"],
                "timeout": 5,
            },
            {"type": "sse", "url": "https://h/sse", "timeout": 5},
        ),
        (
            {
                "command": "/usr/bin/bunx",
                "args": ["mcp-remote", "https://h", "--header", "Authorization:$${AUTH}"],
                "env": {"AUTH": "Bearer ${TOKEN}"},
            },
            {"url": "https://h", "headers": {"Authorization": "Bearer ${TOKEN}"}},
        ),
        ({"command": "npx", "args": ["mcp-remote", "https://h", "--unheard-of", "x"]}, None),
        ({"command": "uvx", "args": ["mcp-proxy", "https://h/sse"]}, None),
        ({"command": "npx", "args": ["-y", "other", "https://h"]}, None),
        ({"command": "docker", "args": ["run", "mcp-remote", "https://h"]}, None),
        ({"url": "https://h"}, None),
    ],
)
def test_proxy_commands_are_unwrapped(definition: dict[str, object], after: dict[str, object] | None) -> None:
    """Only if every option is known."""
    assert unwrap_proxy(definition) == after


# ---- odd entries -------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("fields", "why"),
    [
        ({"command": "x", "args": [1, None]}, "a value that must be a string is"),
        ({"command": "x", "env": [1]}, "its 'env' is not an object"),
        ({"command": 5}, "neither a string nor a list"),
        ({"command": 'a "b'}, "quotation mark"),
        ({"url": {}}, "neither a command nor a URL"),
        ({"command": "x", "envFile": "/nowhere"}, "envFile /nowhere cannot be read"),
    ],
)
def test_invalid_entry_is_skipped(fields: dict[str, object], why: str) -> None:
    """Guessing could run something that nobody wrote."""
    editor = BY_NAME["cursor"]
    raw = RawEntry("a", fields, editor, Path("/x.json"), ("mcpServers",), "user")
    with pytest.raises(UnusableEntry, match=why):
        map_entry(raw, VariableTranslator(editor.variables, Path("/home/ann")))

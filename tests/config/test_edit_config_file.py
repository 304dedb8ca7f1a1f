"""Adding and removing servers in the user's file keeps all other bytes."""

from __future__ import annotations

import json
import os
import re
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from mcpd.config.edit_config_file import add_server, put_profile, put_servers, remove_profile, remove_server
from mcpd.config.in_place_edits import edit_json
from mcpd.config.jsonc import parse_jsonc, to_standard_json
from mcpd.config.loader import load
from mcpd.model.errors import BadSpec
from tests.sampling import scaled

NEW = {"command": "npx", "args": ["-y", "x # y"], "env": {"K": "v: 1"}, "timeout": 3000, "lazy": True}

KEPT = {
    "comments.json": """{
  // top
  "mcpServers": {
    "git": {"command": "uvx"}, // mine, ok
    "time": {
      "command": "uvx" /* , */
    } // last, one
  },
  "settings": {"debug": true,},
}
""",
    "crlf.json": '{\r\n\t"mcpServers": {\r\n\t\t"a": {"command": "x"},\r\n\t},\r\n}\r\n',
    "one-line.json": '{"mcpServers": {"a": {"command": "x"}}}',
    "bom.json": '\ufeff{"mcpServers": {\n    "a": {"command":"x"}}}',
    "list.json": '{"mcp": {"servers": [\n  {"name":"a","command":"x"}, // c\n]}}',
    "inner.jsonc": '{\n  "mcp": {"enabled": true, "servers": {\n    "a": {"command": "x"}\n  }}\n}',
    "plain.toml": """[settings]
timeout = 3000 # ms

[mcpServers.git]   # mine
command = "x"
args = [ "a",  "b" ]

[mcpServers.git.env]
A = "b"

# end
""",
    "no-newline.toml": '[mcpServers.a]\ncommand="x"',
    "inline.toml": '[mcpServers]\na = {command="x"}\n\n[settings]\ndebug=true\n',
    "empty.toml": "",
    "list.toml": '[[mcp.servers]]\nname="a"\ncommand="x"\n',
    "plain.yaml": """# top
settings:
    timeout: 3000   # ms
mcpServers:
    git:   # mine
        command: uvx
        args: [ mcp-server-git,   "x" ]
    # about time
    time:
        command: uvx
        args:
        - mcp-server-time

# end
""",
    "no-newline.yaml": "mcpServers:\n  a: {command: x}",
    "middle.yaml": "mcpServers:\n  a: {command: x}\nsettings:\n  debug: true\n",
    "empty.yaml": "mcpServers:\n",
    "list.yaml": "mcp:\n    servers:\n    -   name: a   # mine\n        command: x\n\n    # the end\n",
    "indented-list.yaml": "# top\nmcp:\n  servers:\n    - name: a\n      command: x\n  enabled: true\n",
    "services.yaml": "services:\n  mcp:\n    - name: a  # mine\n      command: x\n",
    "crlf.yaml": "mcpServers:\r\n  a:\r\n    command: x\r\n",
    "markers.yaml": "---\nmcpServers:\n  a: {command: x}\n...\n",
}


def _words(text: str) -> set[str]:
    return set(re.findall(r"\w+|#|//|/\*", text))


@pytest.mark.parametrize("name", KEPT)
def test_add_then_remove_restores_the_bytes(name: str, tmp_path: Path) -> None:
    """In between, the file contains the old servers, the new one and every old line."""
    path = tmp_path / name
    path.write_bytes(KEPT[name].encode())
    before = load(path, {}).definitions

    add_server(path, "new", NEW)
    assert load(path, {}).definitions == {**before, "new": NEW}
    assert _words(KEPT[name]) <= _words(path.read_bytes().decode())

    assert remove_server(path, "new") is True
    found, expected = path.read_bytes(), KEPT[name].encode()
    assert found == expected or (name == "list.toml" and found.rstrip() == expected.rstrip())


@pytest.mark.parametrize("name", KEPT)
def test_removing_a_server_keeps_the_others_unchanged(name: str, tmp_path: Path) -> None:
    """The server may be the first, middle, last or only one."""
    path = tmp_path / name
    path.write_bytes(KEPT[name].encode())
    add_server(path, "new", NEW)
    text = path.read_bytes()
    everything = load(path, {}).definitions
    for gone in everything:
        path.write_bytes(text)
        assert remove_server(path, gone)
        assert load(path, {}).definitions == {k: v for k, v in everything.items() if k != gone}


@pytest.mark.parametrize("name", ["config.json", "config.toml", "config.yaml"])
def test_missing_file_is_created_private(name: str, tmp_path: Path) -> None:
    """The modes are 0600 and 0700, because definitions contain secrets."""
    path = tmp_path / "new" / "mcpd" / name
    add_server(path, "a", {"command": "x"})
    assert load(path, {}).definitions == {"a": {"command": "x"}}
    assert path.stat().st_mode & 0o777 == 0o600
    assert path.parent.stat().st_mode & 0o777 == 0o700


def test_mode_and_symbolic_link_survive_and_no_temporary_file_is_left(tmp_path: Path) -> None:
    """Dotfile repositories often use symbolic links."""
    real = tmp_path / "dots" / "mcp.json"
    real.parent.mkdir()
    real.write_text("{}")
    real.chmod(0o640)
    link = tmp_path / "config.json"
    link.symlink_to(real)
    add_server(link, "a", {"command": "x"})
    assert link.is_symlink()
    assert real.stat().st_mode & 0o777 == 0o640
    assert os.listdir(real.parent) == ["mcp.json"]


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("c.json", '{"mcpServers": {'),
        ("c.toml", "a = = 1"),
        ("c.yaml", "a: [1"),
        ("c.json", "[]"),
        ("c.conf", ""),
    ],
)
def test_a_file_that_cannot_be_parsed_is_not_touched(name: str, text: str, tmp_path: Path) -> None:
    """Editing it could destroy it."""
    path = tmp_path / name
    path.write_text(text)
    with pytest.raises(BadSpec):
        add_server(path, "a", NEW)
    with pytest.raises(BadSpec):
        remove_server(path, "a")
    assert path.read_text() == text


@pytest.mark.parametrize(
    ("name", "text", "after"),
    [
        (
            "c.json",
            '{"mcpServers": {\n  // first\n  "a": {"command": "x"}, // it\n  "b": {"command": "y"}\n}}\n',
            '{"mcpServers": {\n  // first\n  "a": {"command": "new", "args": ["1"]}, // it\n'
            '  "b": {"command": "y"}\n}}\n',
        ),
        (
            "c.yaml",
            "mcpServers:\n  # first\n  a:\n    args: [2]\n    command: x  # it\n  # second\n"
            "  b: {command: y}\n",
            "mcpServers:\n  # first\n  a:\n    args: ['1']\n    command: new # it\n  # second\n"
            "  b: {command: y}\n",
        ),
        (
            "c.toml",
            '[mcpServers.a] # first\ncommand = "x" # it\n\n[mcpServers.b]\ncommand = "y"\n',
            '[mcpServers.a] # first\ncommand = "new" # it\nargs = ["1"]\n\n[mcpServers.b]\ncommand = "y"\n',
        ),
    ],
)
def test_replaced_server_keeps_its_position_and_comments(
    name: str, text: str, after: str, tmp_path: Path
) -> None:
    """The user may have chosen the position and explained it in a comment."""
    path = tmp_path / name
    path.write_text(text)
    add_server(path, "a", {"command": "new", "args": ["1"]})
    assert path.read_text() == after


@pytest.mark.parametrize(
    ("text", "rest"),
    [
        ('{"a": {} /* 1 */, "x": {}}', '{"a": {} /* 1 */}'),
        ('{"a": {} // 1\n, /* 2 */ "x": {} /* 3 */, }', '{"a": {} // 1\n, /* 2 */  }'),
        ('{"a": {}, "x": {}}', '{"a": {}}'),
    ],
)
def test_comment_next_to_a_removed_server_stays(text: str, rest: str) -> None:
    """It may belong to the previous entry."""
    assert edit_json.remove(text, (), False, "x") == rest


fillers = st.sampled_from(["", " ", "\n  ", "/* , } ] */", '// " { ,\n', "\n// x\n  "])


@st.composite
def commented(draw: st.DrawFn) -> tuple[str, list[str]]:
    """Generate a document with servers, and whitespace and comments between all tokens."""
    names: list[str] = draw(st.lists(st.sampled_from(["a", "b", "c", 'q"\\', "//"]), unique=True, max_size=4))

    def gap() -> str:
        return draw(fillers)

    parts = [
        f'{gap()}{json.dumps(name)}{gap()}:{gap()}{{{gap()}"command"{gap()}:{gap()}"/*,*/"{gap()}}}{gap()}'
        for name in names
    ]
    tail = draw(st.sampled_from(["", ","])) if parts else ""
    text = f'{gap()}{{{gap()}"mcpServers":{gap()}{{{",".join(parts)}{tail}{gap()}}}{gap()}}}{gap()}'
    return text, names


@settings(max_examples=scaled(80), suppress_health_check=[HealthCheck.function_scoped_fixture], deadline=None)
@given(commented(), st.data())
def test_json_with_comments_anywhere_survives_edits(
    tmp_path: Path, document: tuple[str, list[str]], data: st.DataObject
) -> None:
    """An edit changes one server and loses no other, whatever is between the tokens."""
    text, names = document
    assert len(to_standard_json(text)) == len(text)
    path = tmp_path / "c.json"
    path.write_text(text)
    add_server(path, "new", {"command": "y"})
    gone = data.draw(st.sampled_from([*names, "new"]))
    assert remove_server(path, gone)
    found = parse_jsonc(path.read_text())
    assert isinstance(found, dict)
    servers = found["mcpServers"]
    assert isinstance(servers, dict)
    assert list(servers) == [name for name in [*names, "new"] if name != gone]


def test_several_servers_are_added_or_none(tmp_path: Path) -> None:
    path = tmp_path / "c.json"
    text = '{"mcpServers": {"a": {"command": "x"}}}'
    path.write_text(text)
    with pytest.raises(BadSpec, match="already exists"):
        put_servers(path, {"b": {"command": "n"}, "a": {"command": "z"}})
    assert path.read_text() == text
    put_servers(path, {"b": {"command": "n"}})
    assert load(path, {}).definitions == {"a": {"command": "x"}, "b": {"command": "n"}}


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("c.json", '{\n  // mine\n  "mcpServers": {}\n}\n'),
        ("c.json", '{"mcpServers": {}, "settings": {"debug": true}}\n'),
        ("c.json", '{"mcp": {"servers": {}, "globalSettings": {"profiles": {"other": {}}}}}\n'),
        ("c.yaml", "mcpServers: {}\nsettings:\n  debug: true # why\n"),
        ("c.toml", "[settings]\ndebug = true # why\n"),
    ],
)
def test_profile_that_was_added_is_removed_again(name: str, text: str, tmp_path: Path) -> None:
    """With the objects that were added for it. It stays if it is not the expected one, or is referred to."""
    path = tmp_path / name
    path.write_text(text)
    put_profile(path, "it", {"servers": ["a", "b"]})
    added = path.read_text()
    assert not remove_profile(path, "it", {"servers": ["a"]})
    assert not remove_profile(path, "other one", {"servers": ["a", "b"]})
    assert path.read_text() == added
    assert remove_profile(path, "it", {"servers": ["a", "b"]})
    assert path.read_text() == text
    path.write_text('{"settings": {"profiles": {"it": {}}, "policies": [{"profiles": ["it"]}]}}')
    if name == "c.json":
        assert not remove_profile(path, "it", {})

"""Changing another program's file: one value, one entry, and nothing else of it."""

from __future__ import annotations

import io
from pathlib import Path

import pytest
import tomlkit
from hypothesis import given, settings
from hypothesis import strategies as st
from ruamel.yaml import YAML

from mcpd.config.in_place_edits.document import parse_document, read_document
from mcpd.model.errors import BadSpec
from tests.sampling import scaled


@pytest.mark.parametrize(
    ("name", "before", "after"),
    [
        ("a.json", '{"s": {"a": {"off": false, "x": 1}}}', '{"s": {"a": {"off": true, "x": 1}}}'),
        ("b.jsonc", '{\n\t"s": {\n\t\t"a": {\n\t\t\t"x": 1, // one\n\t\t},\n\t},\n}',
         '{\n\t"s": {\n\t\t"a": {\n\t\t\t"x": 1, // one\n\t\t\t"off": true,\n\t\t},\n\t},\n}'),
        ("c.toml", '[s.a]\nx = 1 # one\n\n# b\n[s.b]\noff = false\n',
         '[s.a]\nx = 1 # one\noff = true\n\n# b\n[s.b]\noff = false\n'),
        ("d.toml", '[s.a]\r\noff = false # one\r\n', '[s.a]\r\noff = true # one\r\n'),
        ("e.toml", '[s]\na = {x = 1} # one\n', '[s]\na = {x = 1,off = true} # one\n'),
        ("f.yaml", "s:\n   a:\n      x: [ 1,  2 ] # one\n\n   # b\n   b: {}\n",
         "s:\n   a:\n      x: [ 1,  2 ] # one\n      off: true\n\n   # b\n   b: {}\n"),
        ("g.yaml", "s:\n  a:\n    off: no # one\n    x: 1", "s:\n  a:\n    off: true # one\n    x: 1"),
    ],
)  # fmt: skip
def test_value_is_changed_in_place_or_appended(name: str, before: str, after: str) -> None:
    """Indentation, line breaks, remarks and a missing last line break are the file's own habits."""
    document = parse_document(before.encode(), Path(name))
    assert document.with_value(("s", "a", "off"), True).text == after


LISTS = [
    (
        '{"m": {"l": [\n  "a", // 1\n  "b"\n]}}',
        ["a", "b", "c"],
        '{"m": {"l": [\n  "a", // 1\n  "b",\n  "c"\n]}}',
    ),
    ('{"m": {"l": [\n  "a", // 1\n  "b"\n]}}', ["a"], '{"m": {"l": [\n  "a" // 1\n]}}'),
    ('{"m": {"l": ["a", /* 1 */ "b", "c"]}}', ["b"], '{"m": {"l": [ /* 1 */ "b"]}}'),
    ('{"m": {"l": ["a", "b"]}}', ["b", "a"], '{"m": {"l": ["b", "a"]}}'),
    ('{"m": {"l": ["a", 1]}}', ["a", 1, "b"], '{"m": {"l": ["a", 1, "b"]}}'),
    ('{"m": {"l": ["a", "b", "a"]}}', ["b"], '{"m": {"l": ["b"]}}'),
]


@pytest.mark.parametrize(("before", "value", "after"), LISTS)
def test_string_list_is_edited_in_place(before: str, value: list[object], after: str) -> None:
    """It may be one name on a line, with a remark why."""
    assert parse_document(before.encode(), Path("a.json")).with_value(("m", "l"), value).text == after


def test_missing_parent_objects_are_created() -> None:
    """The objects on the way to it are made."""
    document = parse_document(b'{"x": 1}\n', Path("a.json")).with_value(("mcp", "excluded"), ["a"])
    assert document.value == {"x": 1, "mcp": {"excluded": ["a"]}}


def test_value_of_another_type_is_never_overwritten() -> None:
    """A text where entries should be is somebody's, whatever it means."""
    document = parse_document(b'{"mcpServers": "see other file"}', Path("a.json"))
    with pytest.raises(BadSpec, match="was not changed"):
        document.with_entry(("mcpServers",), "a", {})
    with pytest.raises(BadSpec, match="was not changed"):
        document.with_entry(("mcpServers", "x"), "a", {})


def test_empty_flow_value_is_replaced_by_lines() -> None:
    """So that the rest of a YAML file need not be rewritten."""
    document = parse_document(b"a:   1\nmcpServers: []  # none yet\nb: 2\n", Path("a.yaml"))
    text = document.with_entry(("mcpServers",), "x", {"command": "c"}).text
    assert text == "a:   1\nmcpServers:   # none yet\n  - name: x\n    command: c\nb: 2\n"


def test_missing_list_is_created_as_a_list() -> None:
    """Where the format wants one."""
    document = parse_document(b"name: x\n", Path("a.yaml"))
    text = document.with_entry(("mcpServers",), "x", {"command": "c"}, listed=True).text
    assert text == "name: x\n\nmcpServers:\n- name: x\n  command: c\n"


def test_duplicate_keys_are_accepted_in_foreign_files(tmp_path: Path) -> None:
    """In our own file they are an error."""
    path = tmp_path / "a.json"
    path.write_text('{"a": 1, "a": 2, "s": {}}')
    assert read_document(path, foreign=True).with_entry(("s",), "n", {}).value["s"] == {"n": {}}
    with pytest.raises(BadSpec, match="more than once"):
        read_document(path)


NEW = {"command": "c", "args": ["a", "b: #"], "env": {"K": "v"}}
keys = st.text("abc-. #:é'\"", min_size=1, max_size=5)
values = st.recursive(
    st.booleans()
    | st.integers(-9, 9)
    | st.text(st.characters(blacklist_categories=["Cs", "Cc"]), max_size=6),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(keys, inner, max_size=3),
    max_leaves=6,
)
entries = st.dictionaries(keys, st.dictionaries(keys, values, max_size=3), max_size=3)
documents = st.builds(
    lambda rest, found: rest | ({} if found is None else {"s": found}),
    st.dictionaries(keys, values, max_size=3),
    st.none() | entries,
)


@settings(max_examples=scaled(80), deadline=None)
@given(documents, st.booleans(), st.integers(2, 6), st.booleans())
def test_yaml_entry_can_be_added_and_removed(
    value: dict[str, object], flow: bool, indent: int, crlf: bool
) -> None:
    """In block and flow style, with any indentation: nothing else of what it means is lost."""
    writer = YAML(typ="safe", pure=True)
    writer.default_flow_style = None if flow else False
    writer.indent = indent
    out = io.StringIO()
    writer.dump(value, out)
    come_and_go(out.getvalue(), "a.yaml", crlf=crlf)


@settings(max_examples=scaled(80), deadline=None)
@given(documents, st.booleans())
def test_toml_entry_can_be_added_and_removed(value: dict[str, object], crlf: bool) -> None:
    """Tables, inline tables, odd keys."""
    come_and_go(tomlkit.dumps(value), "a.toml", crlf=crlf)


def come_and_go(text: str, name: str, *, crlf: bool) -> None:
    try:
        before = parse_document((text.replace("\n", "\r\n") if crlf else text).encode(), Path(name))
        changed = before.with_entry(("s",), "new", NEW).with_value(("s", "new", "off"), True)
        after = changed.without_entry(("s",), "new")
    except BadSpec:
        return  # refused, which is always right
    assert changed.value_at(("s", "new")) == {**NEW, "off": True}
    found = parse_document(after.data, Path(name)).value
    assert without_nothing(found) == without_nothing(before.value)


def without_nothing(value: dict[str, object]) -> dict[str, object]:
    return {key: inner for key, inner in value.items() if key != "s" or inner}

"""Edits of another program's file change one value or entry and nothing else."""

from __future__ import annotations

import io
import os
from pathlib import Path

import pytest
import tomlkit
from hypothesis import given, settings
from hypothesis import strategies as st
from ruamel.yaml import YAML

from mcpd.config.in_place_edits.document import (
    check_writable,
    parse_document,
    read_document,
)
from mcpd.model.errors import BadSpec, CannotWrite
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
    """Indentation, line breaks, comments and a missing final newline are preserved."""
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
    ('{"m": {"l": [\n  "a", // 1\n  "b"\n]}}', ["c", "d"], '{"m": {"l": [\n  "c", // 1\n  "d"\n]}}'),
    ('{"m": {"l": ["a", 1]}}', ["a", 1, "b"], '{"m": {"l": ["a", 1, "b"]}}'),
    ('{"m": {"l": ["a", "b", "a"]}}', ["b"], '{"m": {"l": ["b"]}}'),
]


@pytest.mark.parametrize(("before", "value", "after"), LISTS)
def test_string_list_is_edited_in_place(before: str, value: list[object], after: str) -> None:
    """The list may have one name per line, with comments."""
    assert parse_document(before.encode(), Path("a.json")).with_value(("m", "l"), value).text == after


def test_missing_parent_objects_are_created() -> None:
    document = parse_document(b'{"x": 1}\n', Path("a.json")).with_value(("mcp", "excluded"), ["a"])
    assert document.value == {"x": 1, "mcp": {"excluded": ["a"]}}


def test_value_of_another_type_is_never_overwritten() -> None:
    """A string in place of the entries may be important to the user."""
    document = parse_document(b'{"mcpServers": "see other file"}', Path("a.json"))
    with pytest.raises(BadSpec, match="was not changed"):
        document.with_entry(("mcpServers",), "a", {})
    with pytest.raises(BadSpec, match="was not changed"):
        document.with_entry(("mcpServers", "x"), "a", {})


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


@settings(max_examples=scaled(40), deadline=None)
@given(documents, st.booleans(), st.integers(2, 6), st.booleans())
def test_yaml_entry_can_be_added_and_removed(
    value: dict[str, object], flow: bool, indent: int, crlf: bool
) -> None:
    """For block and flow style and any indentation, the other content keeps its meaning."""
    writer = YAML(typ="safe", pure=True)
    writer.default_flow_style = None if flow else False
    writer.indent = indent
    out = io.StringIO()
    writer.dump(value, out)
    add_and_remove(out.getvalue(), "a.yaml", crlf=crlf)


@settings(max_examples=scaled(40), deadline=None)
@given(documents, st.booleans())
def test_toml_entry_can_be_added_and_removed(value: dict[str, object], crlf: bool) -> None:
    """The cases include tables, inline tables and unusual keys."""
    add_and_remove(tomlkit.dumps(value), "a.toml", crlf=crlf)


def add_and_remove(text: str, name: str, *, crlf: bool) -> None:
    try:
        before = parse_document((text.replace("\n", "\r\n") if crlf else text).encode(), Path(name))
        changed = before.with_entry(("s",), "new", NEW).with_value(("s", "new", "off"), True)
        after = changed.without_entry(("s",), "new")
    except BadSpec:
        return  # a refusal is always acceptable
    assert changed.value_at(("s", "new")) == {**NEW, "off": True}
    found = parse_document(after.data, Path(name)).value
    assert without_empty_values(found) == without_empty_values(before.value)


def without_empty_values(value: dict[str, object]) -> dict[str, object]:
    return {key: inner for key, inner in value.items() if key != "s" or inner}


def test_other_elements_of_a_list_stay_when_an_entry_is_removed() -> None:
    document = parse_document(b'{"s": ["x", {"name": "a"}, {"name": "b"}, 5]}', Path("a.json"))
    assert document.entry_names(("s",)) == ["a", "b"]
    assert document.without_entry(("s",), "a").value == {"s": ["x", {"name": "b"}, 5]}


def test_edit_with_another_effect_than_wanted_is_refused() -> None:
    """Parsers use the last of two equal keys, and the edit would change the first."""
    document = parse_document(b'{"s": {}, "s": {}}', Path("a.json"), foreign=True)
    with pytest.raises(BadSpec, match="was not changed"):
        document.with_entry(("s",), "n", {})
    with pytest.raises(BadSpec, match="was not changed"):
        document.with_value(("s", "x"), 1)


@pytest.mark.parametrize(
    ("name", "before", "after"),
    [
        (
            "a.yaml",
            "s: {a: {c: 'q', d: \"r\"}} # k\n",
            "s: {a: {c: 'q', d: \"r\"}, n: {x: 1}} # k\n",
        ),
        ("b.yaml", '{"b": 1}\n', '{"b": 1, s: {n: {x: 1}}}\n'),
        ("c.toml", "s = {a = {c = 'q'}} # k\n", "s = {a = {c = 'q'},n = {x = 1}} # k\n"),
        ("d.yaml", "s: [{name: a, c: 'q'}, 5] # k\n", "s: [{name: a, c: 'q'}, 5, {name: n, x: 1}] # k\n"),
    ],
)
def test_rewritten_text_keeps_its_style(name: str, before: str, after: str) -> None:
    """If an edit of single lines is impossible, the library of the format writes the text."""
    document = parse_document(before.encode(), Path(name))
    changed = document.with_entry(("s",), "n", {"x": 1})
    assert changed.text == after
    assert changed.without_entry(("s",), "n").value == {**document.value, "s": document.value.get("s", {})}


def test_document_does_not_show_its_text() -> None:
    document = parse_document(b'\xef\xbb\xbf{"a": "hunter22"}', Path("a.json"))
    assert "hunter22" not in repr(document)
    assert document.data == b'\xef\xbb\xbf{"a": "hunter22"}'


def test_file_without_write_permission_is_refused(tmp_path: Path) -> None:
    """This applies to root as well, who could replace the file."""
    path = tmp_path / "a.json"
    check_writable(path)
    path.touch(0o600)
    check_writable(path)
    path.chmod(0o444)
    with pytest.raises(CannotWrite, match="is read-only"):
        check_writable(path)


def test_device_or_pipe_in_place_of_a_file_is_not_read(tmp_path: Path) -> None:
    """Reading the device would never end, and take all memory; the pipe would never open."""
    device, pipe = tmp_path / "a.json", tmp_path / "b.json"
    device.symlink_to("/dev/zero")
    os.mkfifo(pipe)
    for file in (device, pipe):
        for foreign in (False, True):
            with pytest.raises(BadSpec, match="it is not a regular file"):
                read_document(file, foreign=foreign)

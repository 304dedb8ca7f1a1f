"""TOML edits add or remove whole tables and keep every other line; None where that is impossible."""

from __future__ import annotations

import pytest

from mcpd.config.in_place_edits import edit_toml


@pytest.mark.parametrize(
    ("text", "path", "listed", "entry", "after"),
    [
        ('', ('s',), False, {'c': 'x'}, '[s.n]\nc = "x"\n'),
        ('x=1\n', ('s',), False, {'c': 'x'}, 'x=1\n\n[s.n]\nc = "x"\n'),
        ('x=1', ('s',), True, {'c': 'x'}, 'x=1\n\n[[s]]\nname = "n"\nc = "x"'),
        ('x=1\r\n', ('a', 's'), True, {'c': 'x'}, 'x=1\r\n\r\n[[a.s]]\r\nname = "n"\r\nc = "x"\r\n'),
    ],
)  # fmt: skip
def test_entry_is_added(
    text: str, path: tuple[str, ...], listed: bool, entry: dict[str, object], after: str | None
) -> None:
    assert edit_toml.add(text, path, listed, "n", entry) == after


@pytest.mark.parametrize(
    ("text", "path", "listed", "name", "after"),
    [
        ('[s.a]\nx = 1\n\n[s.b]\ny = 1\n[s.b.env]\nz = 1\n\n# c\n[t]\n', ('s',), False, 'a',
         '\n[s.b]\ny = 1\n[s.b.env]\nz = 1\n\n# c\n[t]\n'),
        ('[s.a]\nx = 1\n\n[s.b]\ny = 1\n[s.b.env]\nz = 1\n\n# c\n[t]\n', ('s',), False, 'b',
         '[s.a]\nx = 1\n\n# c\n[t]\n'),
        ('[s.a]\nx = 1\n\n[s.b]\ny = 1\n[s.b.env]\nz = 1\n\n# c\n[t]\n', ('s',), False, 'q', None),
        ('x = 1\n\n[s.a]\ny = 1', ('s',), False, 'a', 'x = 1'),
        ('[[s]]\nname = "a"\n\n[[s]]\nname = "b"\n[s.env]\nx = 1\n', ('s',), True, 'a',
         '\n[[s]]\nname = "b"\n[s.env]\nx = 1\n'),
        ('[[s]]\nname = "a"\n\n[[s]]\nname = "b"\n[s.env]\nx = 1\n', ('s',), True, 'b',
         '[[s]]\nname = "a"\n'),
        ('x = 1\r\n\r\n[s.a]\r\ny = 1', ('s',), False, 'a', 'x = 1'),
        ('[s.a]\nx = 1\n[s.b]\n', ('s',), False, 'a', '[s.b]\n'),
        ('[[s]]\nname = "a"\n[[s.l]]\n[[s]]\nname = "b"\n', ('s',), True, 'b',
         '[[s]]\nname = "a"\n[[s.l]]\n'),
        ('x = 1\n# k\n[s.a]\ny = 1\n', ('s',), False, 'a', 'x = 1\n# k\n'),
        ('[s]\n[[s.l]]\nname="q"\n[[s.l]]\nname="r"\n', ('s', 'l'), True, 'r', '[s]\n[[s.l]]\nname="q"\n'),
        ('[s.a]\nl = """\n[x]\n"""\n[s.b]\n', ('s',), False, 'a', '[x]\n"""\n[s.b]\n'),
        ('[s.a]\n[t]\n[s.a.env]\n[u]\n', ('s',), False, 'a', '[t]\n[u]\n'),
        ('[[s.a]]\nx=1\n[t]\n', ('s',), False, 'a', '[t]\n'),
    ],
)  # fmt: skip
def test_entry_is_removed(
    text: str, path: tuple[str, ...], listed: bool, name: str, after: str | None
) -> None:
    assert edit_toml.remove(text, path, listed, name) == after


@pytest.mark.parametrize(
    ("text", "path", "value", "after"),
    [
        ('[s]\na = true # x\n', ('s', 'a'), False, '[s]\na = false # x\n'),
        ('[s]\n"a" = true\n', ('s', 'a'), False, '[s]\n"a" = false\n'),
        ('[s]\nab = true\n', ('s', 'a'), False, '[s]\nab = true\na = false\n'),
        ('[s]\n[t]\na = true\n', ('s', 'a'), False, '[s]\na = false\n[t]\na = true\n'),
        ('[s]\nb = 1\n\n# c\n[t]\n', ('s', 'a'), True, '[s]\nb = 1\na = true\n\n# c\n[t]\n'),
        ('[s]', ('s', 'a'), True, '[s]\na = true'),
        ('[s]\r\n', ('s', 'a'), True, '[s]\r\na = true\r\n'),
        ('[[s]]\n', ('s', 'a'), True, None),
        ('[s]\n', ('s', 'a'), 'x', None),
        ('x=1\n', ('s', 'a'), True, None),
        ('[s]\na = 5\n', ('s', 'a'), True, '[s]\na = 5\na = true\n'),
        ('[s]\nb = 1\n# c\n', ('s', 'a'), True, '[s]\nb = 1\na = true\n# c\n'),
        ('x=1\n[s]\nb=1\n[t]\na = true\n[s.u]\n', ('s', 'a'), True,
         'x=1\n[s]\nb=1\na = true\n[t]\na = true\n[s.u]\n'),
        ('[s]\nb = 1\na = true', ('s', 'a'), False, '[s]\nb = 1\na = false'),
    ],
)  # fmt: skip
def test_value_is_set(text: str, path: tuple[str, ...], value: object, after: str | None) -> None:
    assert edit_toml.change(text, path, value) == after

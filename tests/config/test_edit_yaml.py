"""YAML edits add or remove whole lines and keep all others; None where that is impossible."""

from __future__ import annotations

import pytest

from mcpd.config.in_place_edits import edit_yaml


@pytest.mark.parametrize(
    ("text", "path", "listed", "entry", "after"),
    [
        ('', ('s',), False, {'c': 'x'}, 's:\n  n:\n    c: x\n'),
        ('a: 1\n', ('s',), False, {'é': 'ü'}, 'a: 1\n\ns:\n  n:\n    é: ü\n'),
        ('a: 1', ('s',), True, {'c': 'x'}, 'a: 1\n\ns:\n- name: n\n  c: x'),
        ('', ('a', 's'), False, {'c': 'x'}, None),
        ('a:\n  b: 1\n', ('a', 's'), False, {'c': 'x'}, None),
        ('s:\n  a: {}\n', ('s',), False, {'c': 'x'}, 's:\n  a: {}\n  n:\n    c: x\n'),
        ('s:\n    a: {}\nt: 1\n', ('s',), False, {'c': 'x'}, 's:\n    a: {}\n    n:\n        c: x\nt: 1\n'),
        ('s:\n  a: {}', ('s',), False, {'c': 'x'}, 's:\n  a: {}\n  n:\n    c: x'),
        ('s:\r\n  a: {}\r\n', ('s',), False, {'c': 'x'}, 's:\r\n  a: {}\r\n  n:\r\n    c: x\r\n'),
        ('s:\n- name: a\n', ('s',), True, {'c': 'x'}, 's:\n- name: a\n- name: n\n  c: x\n'),
        ('s:\n  - name: a\n  # k\n\nt: 1\n', ('s',), True, {'c': 'x'},
         's:\n  - name: a\n  - name: n\n    c: x\n  # k\n\nt: 1\n'),
        ('s: {}\n', ('s',), False, {'c': 'x'}, 's:\n  n:\n    c: x\n'),
        ('s: [] # k\n', ('s',), True, {'c': 'x'}, 's:  # k\n  - name: n\n    c: x\n'),
        ('s:\nt: 1\n', ('s',), False, {'c': 'x'}, None),
        ('s: {a: {}}\n', ('s',), False, {'c': 'x'}, None),
        ('s: [1]\n', ('s',), True, {'c': 'x'}, None),
        ('{s: {}}\n', ('s',), False, {'c': 'x'}, None),
        ('s: 5\n', ('s',), False, {'c': 'x'}, None),
        ('s:\n  {}\n', ('s',), False, {'c': 'x'}, None),
        ('m:\n  s:\n    a: {}\n  t: 1\n', ('m', 's'), False, {'c': 'x'},
         'm:\n  s:\n    a: {}\n    n:\n      c: x\n  t: 1\n'),
        ('- 1\n', ('s',), False, {'c': 'x'}, None),
        ('s:', ('s',), True, {'c': 'x'}, None),
        ('s:\n  - a\n', ('s',), False, {'c': 'x'}, None),
        ('s:\n  a: {}\n', ('s',), True, {'c': 'x'}, None),
        ('m: {s: {}}\n', ('m', 's'), False, {'c': 'x'}, None),
    ],
)  # fmt: skip
def test_entry_is_added(
    text: str, path: tuple[str, ...], listed: bool, entry: dict[str, object], after: str | None
) -> None:
    assert edit_yaml.add(text, path, listed, "n", entry) == after


@pytest.mark.parametrize(
    ("text", "path", "listed", "name", "after"),
    [
        ('s:\n  a:\n    c: 1\n  b:\n    c: 2\n', ('s',), False, 'a', 's:\n  b:\n    c: 2\n'),
        ('s:\n  a:\n    c: 1\n  # k\n  b:\n    c: 2\n', ('s',), False, 'a', 's:\n  # k\n  b:\n    c: 2\n'),
        ('s:\n  a:\n    c: 1\n\n  # k\n  b:\n    c: 2\n', ('s',), False, 'b',
         's:\n  a:\n    c: 1\n\n  # k\n'),
        ('s:\n  a: {c: 1}\n  b: 2\n', ('s',), False, 'a', 's:\n  b: 2\n'),
        ('s:\n  a: {c: 1}\n  b: 2', ('s',), False, 'b', 's:\n  a: {c: 1}'),
        ('s:\r\n  a: 1\r\n  b: 2', ('s',), False, 'b', 's:\r\n  a: 1'),
        ('s: {a: 1}\n', ('s',), False, 'a', None),
        ('s:\n  a: 1\n', ('s',), False, 'q', None),
        ('t: 1\n', ('s',), False, 'a', None),
        ('', ('s',), False, 'a', None),
        ('s:\n- name: a\n  c: 1\n- name: b\n', ('s',), True, 'a', 's:\n- name: b\n'),
        ('s:\n- name: a\n  c: 1\n- name: b\n', ('s',), True, 'b', 's:\n- name: a\n  c: 1\n'),
        ('s:\n- {name: a}\n- name: b\n', ('s',), True, 'a', None),
        ('s:\n- name: a\n- name: a\n', ('s',), True, 'a', None),
        ('s:\n- 5\n- name: a\n', ('s',), True, 'a', 's:\n- 5\n'),
        ('s:\n-\n  name: a\n', ('s',), True, 'a', None),
        ('s: [{name: a}]\n', ('s',), True, 'a', None),
        ('s:\n  a: 1\n', ('s',), True, 'a', None),
        ('s:\n  a:\n    c: 1\n    # k\nt: 1\n', ('s',), False, 'a', 's:\n    # k\nt: 1\n'),
        ('s:\n- a\n- b\n', ('s',), True, 'a', None),
        ('s:\n- name: b\n-   c: 1\n    name: a # k\n\n# end\n', ('s',), True, 'a',
         's:\n- name: b\n\n# end\n'),
    ],
)  # fmt: skip
def test_entry_is_removed(
    text: str, path: tuple[str, ...], listed: bool, name: str, after: str | None
) -> None:
    assert edit_yaml.remove(text, path, listed, name) == after


@pytest.mark.parametrize(
    ("text", "path", "value", "after"),
    [
        ('s:\n  a: true # k\n', ('s', 'a'), False, 's:\n  a: false # k\n'),
        ('s:\n  a: no\n  b: 1\n', ('s', 'a'), True, 's:\n  a: true\n  b: 1\n'),
        ('s:\n  b: 1\n', ('s', 'a'), True, 's:\n  b: 1\n  a: true\n'),
        ('s:\n  b: 1\n\n# k\nt: 1\n', ('s', 'a'), True, 's:\n  b: 1\n  a: true\n\n# k\nt: 1\n'),
        ('s:\n  b: 1', ('s', 'a'), True, 's:\n  b: 1\n  a: true'),
        ('s:\r\n  b: 1\r\n', ('s', 'a'), True, 's:\r\n  b: 1\r\n  a: true\r\n'),
        ('s: {b: 1}\n', ('s', 'a'), True, None),
        ('s: {}\n', ('s', 'a'), True, None),
        ('s:\n', ('s', 'a'), True, None),
        ('s:\n  a: [1]\n', ('s', 'a'), True, None),
        ('s:\n  a: {}\n', ('s', 'a'), True, None),
        ('s:\n  a:\n', ('s', 'a'), True, None),
        ('s:\n  a: |\n    x\n', ('s', 'a'), True, None),
        ("s:\n  a: 'x\n    y'\n", ('s', 'a'), True, None),
        ('s:\n  a: true\n', ('s', 'a'), 'x', None),
        ('a: true\n', ('a',), False, None),
        ('', ('s', 'a'), True, None),
        ('s:\n  b: 1\n', ('s', 't', 'a'), True, None),
        ('t: 1\n', ('s', 'a'), True, None),
        ('s: 5\n', ('s', 'a'), True, None),
        ('s:\n  t:\n    b: 1\n  u: 2\n', ('s', 't', 'a'), True,
         's:\n  t:\n    b: 1\n    a: true\n  u: 2\n'),
        ("s:\n  ''\n", ('s', 'a'), True, None),
    ],
)  # fmt: skip
def test_value_is_set(text: str, path: tuple[str, ...], value: object, after: str | None) -> None:
    assert edit_yaml.change(text, path, value) == after

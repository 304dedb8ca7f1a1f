"""URI templates match like the simple forms of RFC 6570, at bounded cost."""

from __future__ import annotations

import pytest

from mcpd.gateway.index import parse_template


@pytest.mark.parametrize(
    ("template", "uri", "matches"),
    [
        ("file:///{path}", "file:///a", True),
        ("file:///{path}", "file:///a/b", False),
        ("file:///{+path}", "file:///a/b", True),
        ("db://{table}/{id}", "db://users/7", True),
        ("db://{table}/{id}", "db://users/7/8", False),
        ("db://{table}/rows/{id}.json", "db://users/rows/a.json.json", True),
        ("x:{a}/y/{b}", "x:1/y/y/2", False),
        ("plain:x", "plain:x", True),
        ("plain:x", "plain:xy", False),
        ("open{brace", "open{brace", True),
        ("{x}b{y}", "aab", True),
        ("{x}b{y}", "aa", False),
        ("{x}b{y}b", "ab", False),
        ("a:{x}", "a:" + "a" * 1998, True),
        ("a:{x}", "a:" + "a" * 1999, False),
        ("{x}" * 20, "a/b", False),
        ("{x}" * 21, "a/b", True),
    ],
)
def test_simple_slot_matches_within_one_path_segment(template: str, uri: str, matches: bool) -> None:
    """A long URI matches nothing, and a template of many slots matches by its literal parts alone."""
    assert parse_template(template).matches(uri) is matches


@pytest.mark.parametrize("slot", ["{a}", "{+a}", "{a}a", "{+a}a", "{a}/"])
def test_hostile_template_is_matched_quickly(slot: str) -> None:
    """As a regular expression, twenty slots and forty letters would run longer than the daemon lives, and
    block it."""
    hostile = parse_template("x:" + slot * 20 + "!")
    assert not hostile.matches("x:" + "a" * 1900)
    assert not hostile.matches("x:" + "a/" * 950)
    assert not hostile.matches("x:" + "a" * 10_000_000)

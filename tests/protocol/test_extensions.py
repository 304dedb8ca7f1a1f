"""Which extensions pass through, and how the declarations of several peers are united."""

from __future__ import annotations

import pytest

from mcpd.protocol.extensions import transparent, united


@pytest.mark.parametrize("declared", [None, 5, [], {"x": True, "y": "z"}])
def test_malformed_declarations_are_ignored(declared: object) -> None:
    assert transparent(declared) == {}
    assert united([declared, declared]) == {}


def test_declarations_are_united() -> None:
    one = {"x": {"types": ["a", "b"], "deep": {"k": 1}, "kept": 1, "first": 1}}
    two = {"x": {"types": ["b", "c"], "deep": {"l": 2}, "kept": {}, "first": [2], "new": 3}, "y": {}}
    assert united([one, two]) == {
        "x": {"types": ["a", "b", "c"], "deep": {"k": 1, "l": 2}, "kept": 1, "first": 1, "new": 3},
        "y": {},
    }
    assert one["x"]["types"] == ["a", "b"]

"""JSON paths, limits of parsed documents, and the names of types and of similar words."""

from __future__ import annotations

from mcpd.model.json_path import is_too_large, join_path, merge_patch


def test_unusual_keys_are_quoted_in_a_path() -> None:
    assert [join_path("$", key) for key in ("git", "a b", "", 0)] == ["$.git", '$["a b"]', '$[""]', "$[0]"]


def nested(depth: int) -> object:
    value: object = 1
    for level in range(depth):
        value = [value] if level % 2 else {"a": value}
    return value


def test_document_is_too_large_just_above_the_limits() -> None:
    assert not is_too_large(nested(64))
    assert is_too_large(nested(65))
    assert not is_too_large([0] * 9, max_values=10)
    assert is_too_large([0] * 10, max_values=10)
    assert is_too_large({str(n): 0 for n in range(10)}, max_values=10)


def test_merge_patch_of_rfc_7396() -> None:
    target = {"a": 1, "b": {"c": 2, "d": 3}, "e": [1]}
    patch = {"a": None, "b": {"c": None, "x": {"y": 1, "z": None}}, "e": [2], "f": "new"}
    assert merge_patch(target, patch) == {"b": {"d": 3, "x": {"y": 1}}, "e": [2], "f": "new"}
    assert target == {"a": 1, "b": {"c": 2, "d": 3}, "e": [1]}

"""Strict decoding of JSON into classes: no guesses, and every problem has a path."""

from __future__ import annotations

from typing import Any

import attrs
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from mcpd.model import api, codec
from mcpd.model.codec import ShapeError
from mcpd.model.config_api import SetServersParams
from tests.sampling import scaled


@attrs.frozen(kw_only=True)
class Inner:
    n: int
    ratio: float = 1.0


@attrs.frozen(kw_only=True)
class Outer:
    name: str
    on: bool = False
    inner: Inner | None = None
    items: tuple[Inner, ...] = ()
    words: tuple[str, ...] = ()
    switch: bool | float = True


@pytest.mark.parametrize(
    ("value", "complaint"),
    [
        ({"name": 5}, "must be a string, not a number @ $.name"),
        ({"name": "x", "on": "false"}, "must be true or false, not a string @ $.on"),
        ({"name": "x", "on": 1}, "must be true or false, not a number @ $.on"),
        ({"name": "x", "inner": {"n": True}}, "must be a whole number, not true or false @ $.inner.n"),
        ({"name": "x", "switch": "on"}, "must be true or false or a number, not a string @ $.switch"),
        ({"name": "x", "words": "letters"}, "must be a list, not a string @ $.words"),
        ({"name": "x", "words": ["a", 1]}, "must be a string, not a number @ $.words[1]"),
        ({"name": "x", "items": [{"n": 1}, []]}, "must be an object, not a list @ $.items[1]"),
        ({"name": "x", "nmae": 1}, "unknown member: nmae @ $"),
        ({}, "required member missing: name @ $"),
        ("text", "must be an object, not a string @ $"),
    ],
)
def test_wrong_type_is_refused_with_its_path(value: Any, complaint: str) -> None:
    """cattrs alone turns "false" into True and a string into a list."""
    with pytest.raises(ShapeError) as bad:
        codec.structure(value, Outer)
    assert complaint in str(bad.value)


@pytest.mark.parametrize(("value", "is_"), [(False, False), (1, 1.0), (2.5, 2.5)])
def test_union_of_primitives_keeps_the_type(value: object, is_: object) -> None:
    """False is not a number, and 1 is not True."""
    switch = codec.structure({"name": "x", "switch": value}, Outer).switch
    assert (switch, type(switch)) == (is_, type(is_))


def test_all_errors_are_reported_together() -> None:
    with pytest.raises(ShapeError) as bad:
        codec.structure({"name": 1, "on": 2, "inner": {}, "odd": 3}, Outer)
    assert len(bad.value.problems) == 4


@settings(derandomize=True, max_examples=scaled(200))
@given(
    st.recursive(
        st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text(max_size=5),
        lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=8), inner, max_size=3),
    )
)
def test_any_json_is_structured_or_refused(value: object) -> None:
    """Client input never raises another exception."""
    for kind in (SetServersParams, api.AttachParams, api.LifecycleParams, api.LogsParams, api.EventsParams):
        problems: list[object] = []
        try:
            codec.structure(value, kind)
        except ShapeError as bad:
            problems = [*bad.problems] or ["none"]
        assert all(str(getattr(problem, "path", "")).startswith("$") for problem in problems)


@pytest.mark.parametrize("data", [b"", b"{", b"\xff", b"[" * 5000, b'{"a":"\\ud800"}'])
def test_invalid_json_is_refused(data: bytes) -> None:
    with pytest.raises(ShapeError):
        codec.decode(data, Outer)

"""Lines that are one message together."""

from __future__ import annotations

import json

from hypothesis import given
from hypothesis import strategies as st

from mcpd.wire.multiline import MultilineJoiner

JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(), inner, max_size=4),
)


@given(st.dictionaries(st.text(), JSON, min_size=1), st.sampled_from([1, 4, "\t"]))
def test_what_an_indenting_printer_wrote_is_put_together(value: object, indent: int | str) -> None:
    """Whatever is in it; the last line tells that it is over."""
    *lines, last = json.dumps(value, indent=indent).encode().split(b"\n")
    collecting = MultilineJoiner(1 << 20)
    assert [collecting.feed(line) for line in lines] == [None] * len(lines)
    whole = collecting.feed(last + b"\r")
    assert whole is not None
    assert json.loads(whole) == value
    assert b"\n" not in whole


def test_lines_outside_of_braces_are_not_kept() -> None:
    """Nearly all junk is a greeting or a log."""
    collecting = MultilineJoiner(1 << 20)
    assert [collecting.feed(line) for line in (b"}", b"hello", b"{not json}", b"}")] == [None] * 4
    assert collecting._lines == []


def test_what_never_ends_is_not_kept_for_ever() -> None:
    """A brace is soon written, and a server has time."""
    collecting = MultilineJoiner(1000)
    collecting.feed(b"{")
    for _ in range(1000):
        assert collecting.feed(b"x" * 100) is None
        assert collecting._size <= 1000
    assert collecting.feed(b"}") is None

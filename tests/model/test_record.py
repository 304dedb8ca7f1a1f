"""Types of the control API compare, hash and print as attrs classes do."""

from __future__ import annotations

import attrs

from mcpd.model.record import Record


@attrs.frozen(kw_only=True, eq=False, repr=False)
class Point(Record):
    x: int
    y: tuple[int, ...] = ()


@attrs.frozen(kw_only=True, eq=False, repr=False)
class OtherPoint(Record):
    x: int
    y: tuple[int, ...] = ()


def test_records_are_equal_if_type_and_fields_are() -> None:
    """The same values in another type are something else."""
    assert Point(x=1, y=(2,)) == Point(x=1, y=(2,))
    assert Point(x=1) != Point(x=2)
    assert Point(x=1) != OtherPoint(x=1)
    assert Point(x=1) != (1, ())


def test_equal_records_have_the_same_hash() -> None:
    """They can be members of a set."""
    assert {Point(x=1), Point(x=1), Point(x=2)} == {Point(x=2), Point(x=1)}


def test_records_show_their_fields() -> None:
    """As in the log, and in the message of a failed test."""
    assert repr(Point(x=1, y=(2,))) == "Point(x=1, y=(2,))"

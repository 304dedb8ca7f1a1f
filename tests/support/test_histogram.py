"""Times in a fixed number of buckets: what may be relied on, whatever is added."""

from __future__ import annotations

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mcpd.support.histogram import Histogram, merge, upper_bound

times = st.floats(min_value=2e-5, max_value=8000)


@given(st.lists(times, min_size=1), st.sampled_from([0.5, 0.95, 0.99, 1.0]))
def test_a_quantile_is_good_to_an_eighth(values: list[float], share: float) -> None:
    """Of the exact one: the width of a bucket, in either direction."""
    histogram = Histogram()
    for value in values:
        histogram.add(value)
    exact = sorted(values)[math.ceil(share * len(values)) - 1]
    told = histogram.quantile(share)
    assert told is not None
    assert exact / 1.26 <= told <= exact * 1.26


@given(st.floats(min_value=-1, max_value=1e9))
def test_whatever_is_added_is_counted_once(value: float) -> None:
    """A clock that went backwards and a call of a year among them."""
    histogram = Histogram()
    histogram.add(value)
    assert sum(histogram.buckets) == histogram.count == 1
    assert [calls for _, calls in histogram.cumulative_counts()][-1] == 1


@given(st.lists(times))
def test_octaves_tell_exactly_how_many_took_at_most_so_long(values: list[float]) -> None:
    """What a Prometheus histogram is made of; its bounds are powers of two."""
    histogram = Histogram()
    for value in values:
        histogram.add(value)
    for seconds, calls in histogram.cumulative_counts():
        if 1e-4 < seconds < 4000:
            assert math.log2(seconds).is_integer()
            assert calls == sum(value < seconds for value in values)


@given(times)
def test_all_quantiles_of_one_value_are_equal(value: float) -> None:
    """P95 above P50 would speak of a call that nobody made."""
    histogram = Histogram()
    histogram.add(value)
    assert histogram.quantile(0.5) == histogram.quantile(0.95) == histogram.quantile(0.99)


def test_nothing_added_has_no_quantile() -> None:
    """Not zero: that would be a lie about a very quick server."""
    assert Histogram().quantile(0.5) is None


def test_bounds_grow_and_merging_adds() -> None:
    """And what is merged stays as it is."""
    assert all(upper_bound(index) < upper_bound(index + 1) for index in range(119))
    one, two = Histogram(), Histogram()
    one.add(0.001)
    two.add(1.0)
    both = merge([one, two])
    assert (both.count, one.count) == (2, 1)
    assert both.total == pytest.approx(1.001)

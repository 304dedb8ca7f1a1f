"""A histogram with a fixed number of buckets keeps its guarantees for any values."""

from __future__ import annotations

import math

from hypothesis import given
from hypothesis import strategies as st

from mcpd.transports.tool_call_stats import Histogram

times = st.floats(min_value=2e-5, max_value=8000)


@given(st.lists(times, min_size=1), st.sampled_from([0.5, 0.95, 0.99, 1.0]))
def test_quantile_error_is_at_most_one_bucket(values: list[float], share: float) -> None:
    """The error is at most the width of a bucket, in either direction."""
    histogram = Histogram()
    for value in values:
        histogram.add(value)
    exact = sorted(values)[math.ceil(share * len(values)) - 1]
    estimate = histogram.quantile(share)
    assert estimate is not None
    assert exact / 1.26 <= estimate <= exact * 1.26


@given(st.lists(times))
def test_octave_counts_are_exact(values: list[float]) -> None:
    """They form a Prometheus histogram whose bounds are powers of two."""
    histogram = Histogram()
    for value in values:
        histogram.add(value)
    for seconds, calls in histogram.cumulative_counts():
        if 1e-4 < seconds < 4000:
            assert math.log2(seconds).is_integer()
            assert calls == sum(value < seconds for value in values)

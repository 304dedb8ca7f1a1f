"""A histogram of durations with a fixed number of buckets: four per octave, from 8 µs to two hours."""

from __future__ import annotations

import math
import sys
from array import array
from collections import Counter
from collections.abc import Iterable, Iterator

_OCTAVES = 30
_LOWEST = -17
"""The first octave begins at 2 ** -17 seconds; its first bucket also counts everything shorter."""
_BUCKETS = 4 * _OCTAVES
FOLD_AT = 128
_UPPER_HALF = 1 if sys.byteorder == "little" else 0
_FIRST = (127 + _LOWEST) << 2


class Histogram:
    """`add` costs 60 ns on average; quantiles are accurate to a quarter of their value.

    Durations are sorted into buckets in batches: the upper bits of a 32-bit float (exponent and two bits of
    the mantissa) *are* the bucket, and counting them is one call into C.
    """

    __slots__ = ("_buckets", "_count", "_total", "pending")

    def __init__(self) -> None:
        self._buckets = [0] * _BUCKETS
        self._count = 0
        self._total = 0.0
        self.pending: list[float] = []
        """Durations that are not counted yet. A fast path may append here and call `fold` at FOLD_AT."""

    def add(self, seconds: float) -> None:
        self.pending.append(seconds)
        if len(self.pending) >= FOLD_AT:
            self.fold()

    @property
    def count(self) -> int:
        return self._count + len(self.pending)

    @property
    def total(self) -> float:
        """The sum of everything added, in seconds."""
        self.fold()
        return self._total

    @property
    def buckets(self) -> list[int]:
        """The counts of all buckets."""
        self.fold()
        return self._buckets

    def quantile(self, share: float) -> float | None:
        """Return the duration in seconds that this share (0.5: half) did not exceed; None if empty."""
        if not self.count:
            return None
        rank = max(1, math.ceil(share * self.count))
        seen = 0
        for index, number in enumerate(self.buckets):
            if seen + number >= rank:  # interpolate linearly inside the bucket
                low = upper_bound(index - 1) if index else 0.0
                return low + (upper_bound(index) - low) * (rank - seen - 0.5) / number
            seen += number
        return upper_bound(_BUCKETS - 1)

    def cumulative_counts(self) -> Iterator[tuple[float, int]]:
        """Yield for each power of two: seconds, and how many durations were shorter."""
        seen, buckets = 0, self.buckets
        for octave in range(_OCTAVES):
            seen += sum(buckets[4 * octave : 4 * octave + 4])
            yield upper_bound(4 * octave + 3), seen

    def fold(self) -> None:
        fresh = self.pending
        if not fresh:
            return
        self._count += len(fresh)
        self._total += sum(fresh)
        halves = memoryview(array("f", fresh)).cast("B").cast("H")[_UPPER_HALF::2]
        for upper, number in Counter(halves.tolist()).items():
            index = 0 if upper & 0x8000 else (upper >> 5) - _FIRST
            self._buckets[min(max(index, 0), _BUCKETS - 1)] += number
        fresh.clear()


def upper_bound(index: int) -> float:
    """Return the upper bound of a bucket in seconds."""
    octave, quarter = divmod(index, 4)
    return float(2.0 ** (octave + _LOWEST) * (1.25 + quarter / 4))


def merge(histograms: Iterable[Histogram]) -> Histogram:
    """Return a new histogram with the sums of all."""
    whole = Histogram()
    for histogram in histograms:
        whole._count += histogram.count
        whole._total += histogram.total
        whole._buckets = [one + other for one, other in zip(whole._buckets, histogram.buckets, strict=True)]
    return whole

"""Benchmark results with their limits, and the routes to the stub that are measured alternately."""

from __future__ import annotations

import signal
import statistics
import time
from collections.abc import Callable, Sequence

import attrs

from benchmarks.load import Route

IN_FLIGHT = 64
PATIENCE = 60
"""Timeout for one step, in seconds. A step reaches it only if a response is missing."""
TIMES = "×"  # noqa: RUF001 - the multiplication sign is intended


@attrs.frozen
class Row:
    """One result, with a limit if the result is a requirement."""

    what: str
    measured: str
    value: float
    limit: float | None = None
    at_least: bool = False
    unit: str = TIMES

    @property
    def holds(self) -> bool:
        if self.limit is None:
            return True
        return self.value >= self.limit if self.at_least else self.value <= self.limit

    def cells(self) -> list[str]:
        """Return the cells of the table row."""
        bound = "" if self.limit is None else f"{'≥' if self.at_least else '≤'} {self.limit:g} {self.unit}"
        verdict = "" if self.limit is None else "yes" if self.holds else "NO"
        return [self.what, self.measured, f"{self.value:.3g} {self.unit}", bound, verdict]


@attrs.frozen
class Way:
    """A route to the stub and its measurements, one value per round."""

    name: str
    route: Route
    pid: int = 0
    """The process between the client and the stub, whose CPU time is measured; 0 for none."""
    second_pid: int = 0
    """A second process between them, whose CPU time is added."""
    p50: list[float] = attrs.field(factory=list)
    p99: list[float] = attrs.field(factory=list)
    rate: list[float] = attrs.field(factory=list)
    cpu: list[float] = attrs.field(factory=list)
    """Seconds of CPU time for each call of `rate`, in user mode and in the kernel."""
    big: list[float] = attrs.field(factory=list)
    huge: list[float] = attrs.field(factory=list)

    def warm(self) -> None:
        """Make the first calls, which include one-time costs."""
        self.route.latencies("echo", 200)

    def small_one_by_one(self, calls: int) -> None:
        taken = sorted(self.route.latencies("echo", calls))
        self.p50.append(statistics.median(taken))
        self.p99.append(taken[len(taken) * 99 // 100])

    def small_in_flight(self, calls: int) -> None:
        before = self._cpu_time()
        self.rate.append(self.route.rate(calls, IN_FLIGHT))
        self.cpu.append((self._cpu_time() - before) / calls)

    def _cpu_time(self) -> float:
        return cpu_time(self.pid) + cpu_time(self.second_pid)

    def big_one_by_one(self, calls: int) -> None:
        self.big.append(statistics.median(self.route.latencies("big", calls)))

    def huge_one_by_one(self, calls: int) -> None:
        self.huge.append(statistics.median(self.route.latencies("huge", calls)))


def cpu_time(pid: int) -> float:
    """Return the CPU time of a process in seconds, exact to a microsecond; 0 for the process 0."""
    return time.clock_gettime((~pid << 3) | 2) if pid else 0.0  # see clock_getcpuclockid(3)


def in_turns(
    ways: Sequence[Way], rounds: int, *, calls: int = 0, flood: int = 0, big: int = 0, huge: int = 0
) -> None:
    """Run all measurements in several rounds, alternating between the ways. A count of 0 skips one."""
    for way in ways:
        way.warm()
    kinds = (
        (Way.small_one_by_one, calls),
        (Way.small_in_flight, flood),
        (Way.big_one_by_one, big),
        (Way.huge_one_by_one, huge),
    )
    for _ in range(rounds):
        for measure, count in kinds:
            for way in ways if count else ():
                signal.alarm(PATIENCE)
                measure(way, count)


def ratio(over: Sequence[float], under: Sequence[float]) -> float:
    """Return the median of the ratios per round, because a disturbance affects both sides of a round."""
    return statistics.median(a / b for a, b in zip(over, under, strict=True))


def pair(under: Sequence[float], over: Sequence[float], shown: Callable[[float], str]) -> str:
    return f"{shown(statistics.median(under))} → {shown(statistics.median(over))}"


def micro(seconds: float) -> str:
    return f"{seconds * 1e6:.0f} µs"


def micro_tenth(seconds: float) -> str:
    return f"{seconds * 1e6:.1f} µs"


def a_second(value: float) -> str:
    return f"{value:,.0f}/s"


def milli(seconds: float) -> str:
    return f"{seconds * 1e3:.2f} ms"


def table(head: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """Return a Markdown table with aligned columns."""
    widths = [max(map(len, column)) for column in zip(head, *rows, strict=True)]
    return "\n".join(
        "| " + " | ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)) + " |"
        for row in (head, ["-" * width for width in widths], *rows)
    )

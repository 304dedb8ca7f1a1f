"""One cause cannot fill the log."""

from __future__ import annotations

import logging
import sys

from mcpd.support.log_rate import BURST, FROM_OUTSIDE, INTERVAL, RateLimit


class Clock:
    now = 0.0

    def __call__(self) -> float:
        return self.now


def record(
    text: str = "an error in %s", error: Exception | None = None, line: int = 1, level: int = logging.ERROR
) -> logging.LogRecord:
    info = None if error is None else (type(error), error, error.__traceback__)
    return logging.LogRecord("mcpd", level, "x.py", line, text, ("x",), info)


def raised(number: int = 0) -> Exception:
    try:
        if number:
            raise KeyError(number)
        raise ValueError(number)
    except Exception as error:
        return error


def test_one_traceback_per_interval_and_the_rest_is_counted() -> None:
    clock = Clock()
    limit = RateLimit(clock)
    assert [limit.filter(record(error=raised())) for _ in range(5)] == [True] + 4 * [False]
    clock.now += INTERVAL
    later = record(error=raised())
    assert limit.filter(later)
    assert later.getMessage() == "an error in x (4 more like this were not logged)"
    clock.now += INTERVAL
    assert limit.filter(quiet := record(error=raised()))
    assert quiet.getMessage() == "an error in x"


def test_other_causes_have_their_own_limit() -> None:
    limit = RateLimit(Clock())
    assert limit.filter(record(error=raised()))
    assert limit.filter(record(error=raised(), line=2))
    assert limit.filter(record(error=raised(1)))
    assert limit.filter(record(error=ExceptionGroup("", [raised(1)]), line=3))
    assert not limit.filter(record(error=ExceptionGroup("", [raised(1)]), line=3))
    assert limit.filter(record(error=ExceptionGroup("", [raised()]), line=3))


def test_lines_without_a_traceback_have_a_higher_limit_and_debug_lines_none() -> None:
    limit = RateLimit(Clock())
    assert sum(limit.filter(record(level=logging.WARNING)) for _ in range(2 * BURST)) == BURST
    assert all(limit.filter(record(level=logging.DEBUG)) for _ in range(2 * BURST))


def test_memory_is_bounded() -> None:
    clock = Clock()
    limit = RateLimit(clock)
    for line in range(5000):
        limit.filter(record(line=line))
        clock.now += 0.0001 if line < 2500 else INTERVAL
    assert sys.getsizeof(limit._causes) < 100_000
    assert len(limit._causes) <= 1000


def test_lines_that_anybody_can_cause_are_logged_once_per_interval() -> None:
    clock = Clock()
    limit = RateLimit(clock)

    def refused() -> logging.LogRecord:
        made = record(level=logging.WARNING)
        made.__dict__.update(FROM_OUTSIDE)
        return made

    assert [limit.filter(refused()) for _ in range(3)] == [True, False, False]
    clock.now += INTERVAL
    assert limit.filter(refused())

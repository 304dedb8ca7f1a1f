"""Option values for durations, times of day and ISO times."""

from __future__ import annotations

import time
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta

import click
import pytest

from ctl.cli.arguments import SecondsType, parse_duration, parse_time, rfc3339


@pytest.fixture
def in_berlin(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """UTC+1 in winter; daylight saving time ended on 2026-10-25 at 03:00."""
    monkeypatch.setenv("TZ", "CET-1CEST,M3.5.0,M10.5.0/3")
    time.tzset()
    yield
    monkeypatch.undo()
    time.tzset()


@pytest.mark.parametrize(
    ("text", "seconds"), [("90s", 90), ("30m", 1800), ("2h", 7200), ("1d12h", 129_600), ("1h30m", 5400)]
)
def test_duration_is_the_sum_of_its_parts(text: str, seconds: int) -> None:
    assert parse_duration(text) == timedelta(seconds=seconds)


@pytest.mark.parametrize(
    ("now", "text", "meant"),
    [
        ("2026-11-22T16:00:00Z", "18:00", "2026-11-22T17:00:00.000Z"),
        ("2026-11-22T16:00:00Z", "17:00", "2026-11-23T16:00:00.000Z"),
        ("2026-11-22T16:00:00Z", "9:30", "2026-11-23T08:30:00.000Z"),
        ("2026-11-22T23:30:00Z", "00:31:05", "2026-11-22T23:31:05.000Z"),
        ("2026-10-24T20:00:00Z", "08:00", "2026-10-25T07:00:00.000Z"),
        ("2026-11-22T16:00:00Z", "2026-11-22T18:00", "2026-11-22T17:00:00.000Z"),
        ("2026-11-22T16:00:00Z", "2026-11-23", "2026-11-22T23:00:00.000Z"),
        ("2026-11-22T16:00:00Z", "2026-11-22T18:00:00.5-05:00", "2026-11-22T23:00:00.500Z"),
    ],
)
def test_time_of_day_is_the_next_one_in_local_time(in_berlin: None, now: str, text: str, meant: str) -> None:
    """Tomorrow if it is past today, with the UTC offset of that day."""
    assert rfc3339(parse_time(text, datetime.fromisoformat(now))) == meant


@pytest.mark.parametrize(
    ("text", "complaint"),
    [
        ("six", "is not a time such as 18:00"),
        ("25:00", "is not a time"),
        ("1800", "is not a time"),
        ("2026-11-22T15:00:00Z", "is in the past"),
        ("2026-11-22T16:00Z", "is in the past"),
    ],
)
def test_invalid_or_past_time_is_refused(text: str, complaint: str) -> None:
    with pytest.raises(click.BadParameter, match=complaint):
        parse_time(text, datetime(2026, 11, 22, 16, tzinfo=UTC))


@pytest.mark.parametrize("text", ["nan", "inf", "-inf", "-1"])
def test_seconds_are_finite(text: str) -> None:
    with pytest.raises(click.BadParameter, match=f"(?i){text}"):
        SecondsType(min=0).convert(text, None, None)
    assert SecondsType(min=0).convert("1.5", None, None) == 1.5

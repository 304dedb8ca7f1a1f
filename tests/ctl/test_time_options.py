"""Option values for durations and seconds."""

from __future__ import annotations

from datetime import timedelta

import click
import pytest

from ctl.cli.arguments import SecondsType, parse_duration


@pytest.mark.parametrize(
    ("text", "seconds"), [("90s", 90), ("30m", 1800), ("2h", 7200), ("1d12h", 129_600), ("1h30m", 5400)]
)
def test_duration_is_the_sum_of_its_parts(text: str, seconds: int) -> None:
    assert parse_duration(text) == timedelta(seconds=seconds)


@pytest.mark.parametrize("text", ["nan", "inf", "-inf", "-1"])
def test_seconds_are_finite(text: str) -> None:
    with pytest.raises(click.BadParameter, match=f"(?i){text}"):
        SecondsType(min=0).convert(text, None, None)
    assert SecondsType(min=0).convert("1.5", None, None) == 1.5

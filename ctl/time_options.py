"""Durations and times as option values: `2h`, `18:00`, or an ISO time."""

from __future__ import annotations

import math
import re
from collections.abc import Callable
from datetime import UTC, datetime, time, timedelta
from typing import Any

import click
from click.decorators import FC

utc_option = click.option("--utc", is_flag=True, help="Show times in UTC instead of the local time zone.")

_SPAN = re.compile(r"(?=\d)(?:(\d{1,6})d)?(?:(\d{1,6})h)?(?:(\d{1,6})m)?(?:(\d{1,6})s)?")
_CLOCK = re.compile(r"\d\d?:\d\d(:\d\d)?")


class SecondsType(click.FloatRange):
    """A finite number of seconds. JSON has no NaN and no infinities, so they cannot be sent to the daemon."""

    def convert(
        self,
        value: Any,  # noqa: ANN401 # text or a default
        param: click.Parameter | None,
        ctx: click.Context | None,
    ) -> float:
        seconds: float = super().convert(value, param, ctx)
        if not math.isfinite(seconds):
            self.fail(f"{value!r} is not a number of seconds", param, ctx)
        return seconds


def seconds_option(name: str, default: float, help: str) -> Callable[[FC], FC]:
    """Return an option for a number of seconds."""
    return click.option(
        name, metavar="SECONDS", type=SecondsType(min=0), default=default, show_default=True, help=help
    )


def parse_duration(text: str) -> timedelta:
    """Parse `90s`, `30m`, `2h` or `1d12h`. Raises BadParameter."""
    found = _SPAN.fullmatch(text)
    days, hours, minutes, seconds = (int(part or 0) for part in found.groups()) if found else (0,) * 4
    length = timedelta(days=days, hours=hours, minutes=minutes, seconds=seconds)
    if not length:
        raise click.BadParameter(f"{text!r} is not a duration such as 90s, 30m, 2h or 1d12h")
    return length


def parse_time(text: str, now: datetime | None = None) -> datetime:
    """Parse an ISO time in the future, or `18:00` as the next such local time. Raises BadParameter."""
    now = now or datetime.now(UTC)
    try:
        if _CLOCK.fullmatch(text):
            hour, minute, second = map(int, f"{text}:0".split(":")[:3])
            today = datetime.combine(now.astimezone(), time(hour, minute, second))
            found = today.astimezone()
            return found if found > now else (today + timedelta(days=1)).astimezone()
        found = datetime.fromisoformat(text).astimezone()
    except (ValueError, OverflowError):
        raise click.BadParameter(f"{text!r} is not a time such as 18:00 or 2026-11-21T18:00") from None
    if found <= now:
        raise click.BadParameter(f"{text!r} is in the past")
    return found


def rfc3339(when: datetime) -> str:
    """Format a time for the daemon."""
    return when.astimezone(UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")

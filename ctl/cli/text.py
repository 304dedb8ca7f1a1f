"""Text for a terminal: sanitized, measured and truncated; relative times.

All text from servers is untrusted: an escape sequence in a tool's description must not move the cursor, set
the window title or hide a word. Pure functions; the fast path of `status` imports this module.
"""

from __future__ import annotations

import time

_EPOCH_DAY = 719468
"""Days from 0000-03-01 to 1970-01-01 in the proleptic Gregorian calendar."""
_FIRST, _LAST = -62135596800.0, 253402300800.0
"""The years 1 and 10000, in seconds since the epoch: what RFC 3339 can express."""


def clean(text: str) -> str:
    """Return `text` on one line, without control, escape, formatting and bidirectional characters."""
    if text.isprintable():
        return text
    return " ".join(clean_block(text).split())


def clean_block(text: str) -> str:
    """Like `clean`, but keep lines and tabs."""
    if text.isprintable():
        return text
    import re
    from unicodedata import category

    # Whole sequences first (CSI, then OSC and its relatives up to their end), or "[31m" would stay behind.
    text = re.sub(r"\x1b\[[0-?]*[ -/]*[@-~]|\x1b[\]PX^_].*?(?:\x07|\x1b\\|$)", "", text, flags=re.DOTALL)
    text = text.replace("\r\n", "\n").replace("\r", "\n").replace("\u2028", "\n").replace("\u2029", "\n")
    kept = []
    for char in text:
        kind = "Ll" if char.isprintable() or char in "\n\t" else category(char)
        if kind == "Cs":
            kept.append("\N{REPLACEMENT CHARACTER}")
        elif kind == "Zs":
            kept.append(" ")
        elif kind not in ("Cc", "Cf"):
            kept.append(char)
    return "".join(kept)


def width(text: str) -> int:
    """Return the number of terminal columns of `text`, which is clean and one line."""
    if text.isascii():
        return len(text)
    from unicodedata import combining, east_asian_width

    return sum(0 if combining(c) else 2 if east_asian_width(c) in "WF" else 1 for c in text)


def cut(text: str, columns: int) -> str:
    """Truncate `text` to so many columns, with an ellipsis."""
    if width(text) <= columns:
        return text
    while text and width(text) > columns - 1:
        text = text[:-1]
    return text + "…" if columns > 0 else ""


def timestamp(stamp: str) -> float | None:
    """Return an RFC 3339 UTC time (`2026-11-21T06:30:00.123Z`) in seconds since the epoch; None if invalid.

    The stamp may come from a damaged file, so the result is a time that can be shown.
    Parsed by hand: importing `datetime` would cost a sixth of the run time of `mcpctl status`.
    """
    try:
        year, month, day = int(stamp[0:4]), int(stamp[5:7]), int(stamp[8:10])
        clock = int(stamp[11:13]) * 3600 + int(stamp[14:16]) * 60 + float(stamp[17:].rstrip("Z"))
    except ValueError:
        return None
    if month <= 2:
        year, month = year - 1, month + 12
    days = 365 * year + year // 4 - year // 100 + year // 400 + (153 * (month - 3) + 2) // 5 + day - 1
    seconds = (days - _EPOCH_DAY) * 86400 + clock
    return seconds if _FIRST <= seconds < _LAST else None


def seconds_since(stamp: str, now: float | None = None) -> float | None:
    """Return the seconds since an RFC 3339 UTC time; None if it is invalid."""
    then = timestamp(stamp)
    return None if then is None else (time.time() if now is None else now) - then


def clock_time(stamp: str) -> str:
    """Return an RFC 3339 UTC time as `2026-11-21 07:30:00` in local time; invalid text unchanged."""
    seconds = timestamp(stamp)
    if seconds is None:
        return stamp
    return time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(seconds))


def format_time(stamp: str | None) -> str:
    """Return `2026-11-21 07:30:00 (3m ago)` in local time."""
    return f"{clock_time(str(stamp))} ({ago(stamp)})"


def in_local_time(text: str) -> str:
    """Convert times such as `2026-11-21 18:00:00 UTC` in a sentence of the daemon.

    The result has the offset of the zone, as in `2026-11-21 19:00:00 +01:00`.
    """
    if " UTC" not in text:
        return text
    import re

    def convert(found: re.Match[str]) -> str:
        seconds = timestamp(f"{found[1]}T{found[2]}Z")
        if seconds is None:
            return found[0]
        local = time.strftime("%Y-%m-%d %H:%M:%S %z", time.localtime(seconds))
        return f"{local[:-2]}:{local[-2:]}"

    return re.sub(r"(\d{4}-\d\d-\d\d) (\d\d:\d\d:\d\d) UTC", convert, text)


def log_line(line: str) -> str:
    """Convert the time at the beginning of a line of a log to the local time zone.

    A line without a time is returned unchanged.
    """
    stamp, space, text = line.partition(" ")
    if not stamp.endswith("Z") or timestamp(stamp) is None:
        return line
    return f"{clock_time(stamp)}{stamp[19:-1]}{space}{text}"


def format_duration(seconds: float) -> str:
    """Format seconds as `4s`, `3m`, `5h` or `2d`: the largest unit that fits, rounded down."""
    whole = max(0, int(seconds))
    for unit, size in (("d", 86400), ("h", 3600), ("m", 60)):
        if whole >= size:
            return f"{whole // size}{unit}"
    return f"{whole}s"


def ago(stamp: str | None, now: float | None = None) -> str:
    """Return `3m ago`, or `-` without a time."""
    seconds = seconds_since(stamp, now) if stamp else None
    if seconds is None:
        return "-"
    return "just now" if seconds < 1 else f"{format_duration(seconds)} ago"


def until(stamp: str | None, now: float | None = None) -> str:
    """Return `in 4s`, `now` for a time in the past, or empty text without a time."""
    seconds = seconds_since(stamp, now) if stamp else None
    if seconds is None:
        return ""
    return "now" if seconds > -1 else f"in {format_duration(-seconds)}"


def count(number: int, noun: str) -> str:
    """Return `1 tool`, `3 tools`."""
    return f"{number} {noun}" if number == 1 else f"{number} {noun}s"

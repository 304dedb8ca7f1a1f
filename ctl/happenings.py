"""The journal's entries for a person: when, which server, what, why, by whom."""

from __future__ import annotations

from collections.abc import Sequence

from ctl.client import Json
from ctl.render import Line, paint
from ctl.table import table
from ctl.views import COLORS, WIDE


def history_table(entries: Sequence[Json], *, servers: bool, fit: int | None) -> list[Line]:
    """Oldest first. `servers`: whether there is a column that says which.

    On a narrow terminal the year is left out.
    """
    year = 5 if fit is not None and fit < WIDE else 0
    header = ["WHEN (UTC)", *(["SERVER"] if servers else []), "WHAT", "BY", "CAUSE"]
    rows: list[Line] = [
        [
            str(entry.get("at", ""))[year:19].replace("T", " "),
            *([str(entry.get("server") or "-")] if servers else []),
            _what(entry),
            str(entry.get("by") or "-"),
            cause(entry),
        ]
        for entry in entries
    ]
    return table(header, rows, fit=fit, squeeze=(len(header) - 2,))


def _what(entry: Json) -> str:
    state = entry.get("state")
    return paint(str(state), COLORS.get(str(state), "bold")) if state else str(entry.get("what", "?"))


def cause(entry: Json) -> str:
    """Why, with the evidence in short and how often."""
    message = str(entry.get("message") or "-").partition("; looked in PATH=")[0]
    ended = ""
    if entry.get("signal"):
        ended = f", {entry['signal']}"
    elif isinstance(entry.get("exit_code"), int):
        ended = f", exit code {entry['exit_code']}"
    kind = f"[{entry['kind']}{ended}] " if entry.get("kind") else ""
    times = entry.get("times")
    return f"{kind}{message}" + (f" (for the {times}th time)" if isinstance(times, int) and times > 2 else "")

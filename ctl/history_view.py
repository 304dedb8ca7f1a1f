"""The journal's entries for a person: when, which server, what, why, by whom."""

from __future__ import annotations

from collections.abc import Sequence

from ctl.daemon_client import Json
from ctl.output import Line, paint
from ctl.status_view import COLORS, WIDE, exit_details, short_message
from ctl.table import table


def history_table(entries: Sequence[Json], *, servers: bool, fit: int | None) -> list[Line]:
    """Oldest first. `servers`: whether there is a column that says which.

    On a terminal, who asked has a column only when anybody did; on a narrow one the year is left out.
    """
    by = fit is None or any(entry.get("by") for entry in entries)
    year = 5 if fit is not None and fit < WIDE else 0
    header = ["WHEN (UTC)", *(["SERVER"] if servers else []), "WHAT", *(["BY"] if by else []), "CAUSE"]
    rows: list[Line] = [
        [
            str(entry.get("at", ""))[year:19].replace("T", " "),
            *([str(entry.get("server") or "-")] if servers else []),
            _what(entry),
            *([str(entry.get("by") or "-")] if by else []),
            cause(entry),
        ]
        for entry in entries
    ]
    return table(header, rows, fit=fit, squeeze=(len(header) - 2,) if by else ())


def _what(entry: Json) -> str:
    state = entry.get("state")
    return paint(str(state), COLORS.get(str(state), "bold")) if state else str(entry.get("what", "?"))


def cause(entry: Json) -> str:
    """Why, with the evidence in short and how often."""
    message = short_message(entry.get("message") or "-")
    kind = f"[{', '.join([str(entry['kind']), *exit_details(entry)])}] " if entry.get("kind") else ""
    times = entry.get("times")
    return f"{kind}{message}" + (f" ({times} times by now)" if isinstance(times, int) and times > 1 else "")

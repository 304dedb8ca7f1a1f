"""Past events and calls, as tables."""

from __future__ import annotations

from collections.abc import Sequence

from ctl.cli.output import Line, StyledText, paint, table
from ctl.cli.text import clock_time, count, in_local_time
from ctl.show.status import COLORS, exit_details, short_message

TYPE_CHECKING = False  # type checkers know the name; importing `typing` for it costs 3 ms on every run
if TYPE_CHECKING:
    from ctl.api_types import CallRecord, HistoryEntry

_OUTCOME_COLORS = {
    "ok": "green",
    "tool-error": "yellow",
    "error": "red",
    "failed": "red",
    "denied": "yellow",
    "cancelled": "dim",
    "input-required": "cyan",
}


def history_table(entries: Sequence[HistoryEntry], *, servers: bool, fit: int | None) -> list[Line]:
    """The events, oldest first. `servers`: add a column with the server's name."""
    header = ["WHEN", *(["SERVER"] if servers else []), "WHAT", "BY", "CAUSE"]
    rows: list[Line] = [
        [
            clock_time(entry["at"]),
            *([entry.get("server") or "-"] if servers else []),
            paint(state, COLORS.get(state, "bold")) if (state := entry.get("state")) else entry["what"],
            entry.get("by") or "-",
            _past_cause(entry),
        ]
        for entry in entries
    ]
    return table(header, rows, fit=fit, squeeze=(len(header) - 2,))


def _past_cause(entry: HistoryEntry) -> str:
    """Return the cause with its evidence, and how often it occurred."""
    failure = entry.get("kind")
    kind = f"[{', '.join([failure, *exit_details(entry)])}] " if failure else ""
    times = entry.get("times", 1)
    repeated = f" ({count(times, 'time')} so far)" if times > 1 else ""
    return f"{kind}{in_local_time(short_message(entry.get('message') or '-'))}{repeated}"


def calls_table(records: Sequence[CallRecord], *, fit: int | None) -> list[Line]:
    shared = any(record.get("replica") for record in records)
    header = ["WHEN", "CLIENT", "SERVER", "CALL", "OUTCOME", "TIME", "BYTES", "MESSAGE"]
    if shared:
        header.insert(7, "REPLICA")
    rows: list[Line] = [
        [
            clock_time(record["at"])[5:],
            _client(record),
            record.get("server") or "-",
            _called(record),
            _outcome(record),
            _duration(record),
            str(record.get("response_bytes", 0)),
            *([record.get("replica") or "-"] if shared else []),
            _message(record),
        ]
        for record in records
    ]
    return table(header, rows, fit=fit, right=(5, 6), squeeze=(1, 3))


def call_line(record: CallRecord) -> Line:
    return [
        paint(clock_time(record["at"])[11:], "dim"),
        f"  {_client(record):<20}  {record.get('server') or '-':<16}  {_called(record):<24}  ",
        _outcome(record),
        f"  {_duration(record)}  {_message(record)}".rstrip(),
    ]


def _client(record: CallRecord) -> str:
    name, pid = record.get("client") or "-", record.get("pid")
    if person := record.get("person"):
        return f"{name} of {person}"
    return f"{name} ({pid})" if pid else name


def _called(record: CallRecord) -> str:
    name, method = record.get("name") or "", record.get("method") or "-"
    return name if name and method == "tools/call" else f"{method} {name}".strip()


def _outcome(record: CallRecord) -> StyledText:
    outcome = record["outcome"]
    text = f"{outcome} (cached)" if record.get("cached") else outcome
    return paint(text, _OUTCOME_COLORS.get(outcome, "bold"))


def _duration(record: CallRecord) -> str:
    return f"{record.get('duration_ms', 0):.0f} ms"


def _message(record: CallRecord) -> str:
    if record["outcome"] == "omitted":
        return f"{count(record.get('count', 1), 'more call')} in one second"
    return record.get("message") or ""

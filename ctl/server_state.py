"""What the commands say about the state of a server: its color, its failure, who it waits for, exit codes.

`mcpctl status` runs in shell prompts, so this module must not import click, rich or attrs.
"""

from __future__ import annotations

from ctl.output import paint
from ctl.terminal_text import ago, count

TYPE_CHECKING = False  # type checkers know the name; importing `typing` for it costs 3 ms on every run
if TYPE_CHECKING:
    from ctl.api_types import Failure, HistoryEntry, ServerStats, ServerStatus

COLORS = {
    "connected": "green",
    "pending": "yellow",
    "failed": "red",
    "disabled": "dim",
    "needs-auth": "yellow",
    "idle": "cyan",
}

READY = ("connected", "idle")
"""States in which a call works immediately, or as soon as the server has started on demand."""

BROKEN = ("failed", "needs-auth")
"""States that a person has to do something about."""


def painted_state(status: ServerStatus | ServerStats) -> str:
    """Return the state of a server in its color."""
    return paint(status["status"], COLORS.get(status["status"], "bold"))


def not_ready_exit(server: ServerStatus) -> int:
    """Return the exit code for a server: 0 if it is ready, 4 if it needs a login, otherwise 6."""
    if server["status"] in READY:
        return 0
    return 4 if server["status"] == "needs-auth" else 6


def impairment(server: ServerStatus) -> str:
    """Return what is wrong with a server although it is connected; empty if nothing is known."""
    return waiting_summary(server) or server.get("degraded", "")


def waiting_summary(server: ServerStatus) -> str:
    """Return for whose answer how many calls wait: `2 calls wait: cursor was asked 3m ago`. Empty if no call
    waits, or if calls wait only for other calls."""
    questions, number = server.get("questions"), server.get("waiting_calls", 0)
    if not questions or not number:
        return ""
    verb = "waits" if number == 1 else "wait"
    return f"{count(number, 'call')} {verb}: {questions[0]['client']} was asked {ago(questions[0]['since'])}"


def failure_summary(failure: Failure) -> str:
    """Return a failure in one phrase; `status SERVER` shows the rest."""
    return failure.get("summary") or failure["message"].partition("\n")[0].partition("; ")[0]


def short_message(message: str) -> str:
    """Return a failure's message without the searched PATH, which `why` shows separately."""
    return message.partition("; looked in PATH=")[0]


def exit_details(failure: Failure | HistoryEntry) -> list[str]:
    """Return how a process or connection ended: `exit code 3`, `SIGKILL`, `HTTP status 503`."""
    details = [signal] if (signal := failure.get("signal")) else []
    details += [f"exit code {code}"] if (code := failure.get("exit_code")) is not None else []
    details += [f"HTTP status {status}"] if (status := failure.get("http_status")) is not None else []
    return details + (["crash loop"] if failure.get("crash_loop") else [])

"""Waiting for several servers: one line for each as soon as its state is known, and a progress line.

The progress line names the servers that are still awaited and what they are doing. It is shown on a terminal
only.
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, NamedTuple, cast

from ctl.cli.errors import CtlError, DaemonError, ServerNotReady, TimedOut
from ctl.cli.invocation import CliContext
from ctl.cli.json_text import mapping
from ctl.cli.text import count, in_local_time, until
from ctl.daemon.client import Json
from ctl.explain.next_steps import next_step
from ctl.show.status import BROKEN, failure_summary, painted_state

if TYPE_CHECKING:
    from ctl.api_types import ServerResult, ServerStatus

_IN_PROGRESS_LINE = 3
"""Servers that the progress line describes; the others are counted."""


def state_phrase(status: ServerStatus) -> str:
    """Return the state as the rest of a sentence that begins with the server's name: `needs a login`."""
    from mcpd.model.status import ServerState  # takes some milliseconds

    if status["status"] == "pending" and status.get("last_error"):
        return "has failed and is starting again"
    return ServerState(status["status"]).phrase


def status_summary(status: ServerStatus) -> str:
    reason = status.get("reason", "")
    if status["status"] == "connected":
        pid = f", pid {pid}" if (pid := status.get("pid")) else ""
        return f" ({count(status.get('tools', 0), 'tool')}{pid})"
    if status["status"] in ("failed", "needs-auth"):
        failure, retry_at = status.get("last_error"), status.get("retry_at")
        retry = f"; next try {until(retry_at)}" if retry_at else ""
        return f": {failure_summary(failure) if failure else reason}{retry}"
    return f" ({reason})" if reason else ""


def print_status(cli: CliContext, status: ServerStatus) -> None:
    """Print one line about a server, at once. With `--json`, prints nothing."""
    if not cli.out.json:
        cli.out.end_progress()
        cli.out.line(f"{status['name']}: ", painted_state(status), in_local_time(status_summary(status)))
        cli.out.flush()


def print_json(cli: CliContext, statuses: Sequence[ServerStatus], changed: Changed | None = None) -> None:
    """With `--json`, print the document with all statuses, and with the warnings and errors of a change."""
    if cli.out.json:
        more = {} if changed is None else {"warnings": changed.warnings, **failed_member(changed.errors)}
        cli.out.json_document(json.dumps({"servers": statuses, **more}))


def failed_member(errors: Sequence[CtlError]) -> Json:
    """Return the member `failed` of a document about several servers: the errors, if there are any."""
    return {"failed": [error.to_json() for error in errors]} if errors else {}


def show_errors(cli: CliContext, errors: Sequence[CtlError], *, all_failed: bool) -> None:
    """Print the errors of a command for several servers. With `--json`, they are in its only document.

    Raises the first if `all_failed`, with all of them in its details if there are several.
    """
    if all_failed and errors and (cli.out.json or len(errors) == 1):
        failed = failed_member(errors) if len(errors) > 1 else {}
        errors[0].details |= failed
        raise errors[0]
    for error in errors if not cli.out.json else ():
        cli.out.error(error)


def hint_for(cli: CliContext, name: str) -> str:
    try:
        return next_step(cli.call("mcpd/server", {"server": name}, timeout=5.0).value)
    except CtlError:
        return ""


def show_warnings(cli: CliContext, warnings: Iterable[str]) -> None:
    if not cli.out.json:
        for warning in warnings:
            cli.out.warning(warning)


class _ProgressLine:
    """The servers that are still awaited, with the reasons for their states."""

    def __init__(self, cli: CliContext, names: Sequence[str]) -> None:
        self._out = cli.out
        self._awaited = dict.fromkeys(names, "")

    def note(self, status: ServerStatus) -> None:
        if status["name"] in self._awaited:
            failure = status.get("last_error") if status["status"] != "connected" else None
            reason = in_local_time(status.get("reason") or status["status"])
            self._awaited[status["name"]] = f"{reason}: {failure_summary(failure)}" if failure else reason
            self.show()

    def settled(self, name: str) -> None:
        self._awaited.pop(name, None)

    def show(self) -> None:
        described = [f"{name} ({doing})" if doing else name for name, doing in self._awaited.items()]
        if described:
            more = len(described) - _IN_PROGRESS_LINE
            shown = ", ".join(described[:_IN_PROGRESS_LINE]) + (f" and {more} more" if more > 0 else "")
            self._out.progress(f"waiting for {shown}")


class Changed(NamedTuple):
    """The effect of requests that change servers, in the order of the requests."""

    statuses: list[ServerStatus]
    errors: list[DaemonError]
    warnings: list[str]
    """Why settings could not be saved, each cause once."""


def change_each(
    cli: CliContext, method: str, requests: Sequence[Json], *, timeout: float, show: bool = True
) -> Changed:
    """Send one request per server concurrently; each answer is a server's status, printed if `show`.

    Raises TimedOut after `timeout` seconds.
    """
    line = _ProgressLine(cli, [str(each["server"]) for each in requests])

    def on_note(_: str, note: Json) -> None:
        status = mapping(note.get("event")).get("status")
        if status:
            line.note(cast("ServerStatus", status))

    def on_reply(number: int, outcome: object) -> None:
        line.settled(str(requests[number]["server"]))
        if show and not isinstance(outcome, DaemonError):
            print_status(cli, outcome.value["server"])  # type: ignore[attr-defined] # a DaemonReply
        line.show()

    line.show()
    try:
        outcomes = cli.call_all(
            method,
            requests,
            timeout=timeout,
            on_note=on_note if cli.out.shows_progress else None,
            on_reply=on_reply,
        )
    finally:
        cli.out.end_progress()
    answers: list[ServerResult] = [
        outcome.value for outcome in outcomes if not isinstance(outcome, DaemonError)
    ]
    return Changed(
        statuses=[answer["server"] for answer in answers],
        errors=[outcome for outcome in outcomes if isinstance(outcome, DaemonError)],
        warnings=list(dict.fromkeys(each for answer in answers for each in answer.get("warnings", ()))),
    )


def wait_for_each(
    cli: CliContext,
    servers: Sequence[ServerStatus],
    is_settled: Callable[[ServerStatus], bool],
    *,
    timeout: float,
    show: bool = True,
) -> list[ServerStatus]:
    """Wait until every server is settled, and print each then if `show`. Returns the last statuses.

    After `timeout` seconds, prints the others as they are and raises TimedOut. Raises ServerNotReady if one
    is removed.
    """
    deadline = time.monotonic() + timeout
    current = {status["name"]: status for status in servers}
    line = _ProgressLine(cli, list(current))
    awaited = dict.fromkeys(current)

    def update(status: ServerStatus) -> None:
        name = status["name"]
        current[name] = status
        if name in awaited and is_settled(status):
            del awaited[name]
            line.settled(name)
            if show:
                print_status(cli, status)
            line.show()
        else:
            line.note(status)

    try:
        for status in servers:
            update(status)
        events = cli.stream("mcpd/events", {"servers": list(current)}, until=deadline)
        while awaited:
            note = next(events)
            event = note.value.get("event") if note is not None else None
            if event is None:
                continue
            name, changed = event.get("server"), event.get("status")
            if name in awaited and event["kind"] == "removed":
                raise ServerNotReady(f"{name} was removed in the meantime", server=name)
            if name in current and changed:
                update(changed)
    except TimedOut:
        for name in awaited if show else ():
            print_status(cli, current[name])
        raise _timed_out(cli, current, awaited, timeout) from None
    finally:
        cli.out.end_progress()
    return list(current.values())


def _timed_out(
    cli: CliContext, current: Mapping[str, ServerStatus], awaited: Iterable[str], timeout: float
) -> TimedOut:
    """Return an error that names all servers that are not ready, also those that need a person."""
    behind = dict.fromkeys(awaited)
    behind |= {name: None for name, status in current.items() if status["status"] in (*BROKEN, "pending")}
    named = ", ".join(f"{name} {state_phrase(current[name])}" for name in current if name in behind)
    step = "mcpctl doctor   (shows the next step for each of them)"
    return TimedOut(
        f"timed out after {timeout:g} s: {named}",
        hint=hint_for(cli, next(iter(behind))) if len(behind) == 1 else step,
        servers=list(current.values()),
    )

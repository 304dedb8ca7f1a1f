"""The event history: which events are recorded, and how it survives a crash or a full disk."""

from __future__ import annotations

import os
import pickle
from pathlib import Path

import pytest
import trio

from mcpd.model.events import Event, EventKind
from mcpd.model.status import Failure, FailureKind, ServerState, ServerStatus, rfc3339
from mcpd.state import history as event_history
from mcpd.state.history import EventHistory

AT = "2026-11-21T06:30:00.000Z"


def status_event(
    state: ServerState, reason: str = "", *, by: str = "", error: str = "", at: str = AT
) -> Event:
    failure = Failure(kind=FailureKind.EXITED, message=error, at=at, exit_code=3) if error else None
    status = ServerStatus(
        name="it", status=state, since=at, transport="stdio", reason=reason, last_error=failure
    )
    return Event(kind=EventKind.STATUS, at=at, server="it", message=reason, status=status, by=by)


def opened(path: Path) -> EventHistory:
    return EventHistory(path / "history.jsonl", lambda text: text.replace("hunter2", "***"))


def summaries(history: EventHistory, server: str | None = "it") -> list[str]:
    return [
        f"{e.state.value if e.state else e.what.value}: {e.message}"
        for e in history.history(server, 100).entries
    ]


async def saved(history: EventHistory) -> None:
    async with trio.open_nursery() as nursery:
        nursery.start_soon(history.run)
        await trio.testing.wait_all_tasks_blocked()
        nursery.cancel_scope.cancel()


async def test_events_survive_a_restart(tmp_path: Path) -> None:
    """Each event keeps its state, its cause and who requested it."""
    first = opened(tmp_path)
    first.record(status_event(ServerState.CONNECTED))
    for _ in range(2):  # the second connection of a server
        first.record(status_event(ServerState.DISABLED, "it was switched off", by="mcpctl (pid 7)"))
    await saved(first)
    entries = opened(tmp_path).history("it", 10).entries
    assert [(e.state, e.message, e.by) for e in entries] == [
        (ServerState.CONNECTED, "", ""),
        (ServerState.DISABLED, "it was switched off", "mcpctl (pid 7)"),
    ]
    assert (tmp_path / "history.jsonl").stat().st_mode & 0o777 == 0o600


async def test_recorded_failure_has_evidence_and_no_secrets(tmp_path: Path) -> None:
    """Secret values in the message are masked."""
    it = opened(tmp_path)
    it.record(status_event(ServerState.FAILED, "retrying", error="token hunter2 is wrong"))
    (entry,) = it.history("it", 10).entries
    assert (entry.message, entry.kind, entry.exit_code) == ("token *** is wrong", FailureKind.EXITED, 3)
    await saved(it)
    assert b"hunter2" not in it.path.read_bytes()


def test_repeated_events_are_recorded_less_and_less_often(tmp_path: Path) -> None:
    """A long crash loop must not displace the events of its beginning."""
    it = opened(tmp_path)
    for _ in range(1000):
        it.record(status_event(ServerState.PENDING, "connecting"))
        it.record(status_event(ServerState.FAILED, "retrying", error="exited with status 3"))
    assert [e.times for e in it.history("it", 100).entries] == [*(2**power for power in range(10)), 1000]
    it.record(status_event(ServerState.FAILED, error="another"))
    it.record(status_event(ServerState.FAILED, error="exited with status 3"))
    assert [e.times for e in it.history("it", 3).entries] == [512, 1, 1001]


async def test_server_that_keeps_failing_after_it_connected_does_not_displace_events(tmp_path: Path) -> None:
    """The last connection and the last failure are there, until mcpd restarts."""
    it = opened(tmp_path)
    it.record(status_event(ServerState.DISABLED, "it was switched off", by="zed"))
    times = [rfc3339(1_800_000_000 + 20 * number) for number in range(600)]
    for at in times:
        it.record(status_event(ServerState.CONNECTED, at=at))
        it.record(status_event(ServerState.FAILED, error="exited with status 3", at=at))
    entries = it.history("it", 1000).entries
    powers = [2**power for power in range(10)]
    assert entries[0].state is ServerState.DISABLED
    for state in (ServerState.CONNECTED, ServerState.FAILED):
        assert [e.times for e in entries if e.state is state] == [*powers, 600]
    assert [(e.state, e.at) for e in entries[-2:]] == [
        (ServerState.CONNECTED, times[-1]),
        (ServerState.FAILED, times[-1]),
    ]
    await saved(it)
    assert len(opened(tmp_path).history("it", 1000).entries) == 21


@pytest.mark.parametrize("cut", [1, 20, 60])
async def test_truncated_line_loses_only_that_line(tmp_path: Path, cut: int) -> None:
    """The next event starts on a new line."""
    it = opened(tmp_path)
    it.record(status_event(ServerState.CONNECTED, "first"))
    it.record(status_event(ServerState.FAILED, error="second"))
    await saved(it)
    size = it.path.stat().st_size
    os.truncate(it.path, size - cut)
    again = opened(tmp_path)
    again.record(status_event(ServerState.CONNECTED, "third"))
    await saved(again)
    survivors = summaries(opened(tmp_path))
    assert survivors[0] == "connected: first"
    assert survivors[-1] == "connected: third"
    assert len(survivors) == (3 if cut == 1 else 2)


async def test_memory_of_entries_is_bounded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """By their number, of each server and overall, and each has at most 500 characters."""
    monkeypatch.setattr(event_history, "MAX_ENTRIES", 100)
    monkeypatch.setattr(event_history, "MAX_TOTAL", 250)
    it, long = opened(tmp_path), "\N{SNAKE}" * 5000
    it.record(Event(kind=EventKind.TOOLS, at=AT, server="calm", message="+1: +a"))
    for number in range(900):
        server = f"s{number % 4}" if number % 2 else "busy"
        it.record(Event(kind=EventKind.TOOLS, at=AT, server=server, message=f":{long}"))
    for number in range(50):
        it.record(status_event(ServerState.FAILED, error=f"{number}" + "x" * 100_000))
    assert len(it.history("calm", 10).entries) == 1, "a long history displaces nobody's short one"
    every = it.history(None, 10_000).entries
    assert len(every) == it._total == 250
    assert max(len(each.message) for each in every) <= 501
    assert len(it.history("busy", 10_000).entries) <= 100
    assert len(pickle.dumps({name: (seen.state, seen.repeated) for name, seen in it._seen.items()})) < 100_000
    await saved(it)

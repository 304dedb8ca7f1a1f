"""`mcpctl logs --follow`, which continues when the daemon restarts."""

from __future__ import annotations

from typing import Any

import pytest

from ctl.commands import logs_events_tap
from tests.ctl.conftest import Mcpctl
from tests.ctl.fake_daemon import Caller, FakeDaemon, Fault

REMOVED = Fault("no such server: git", code="unknown_server", exit=5, server="git")


def runs(*connections: tuple[list[str], list[str]]) -> Any:
    """Answer with stored lines, send new ones and hang up, for each connection. Then, the server is gone."""
    rest = list(connections)

    def answer(caller: Caller, params: dict[str, Any]) -> object:
        if not rest:
            return REMOVED
        stored, new = rest.pop(0)
        caller.line({"jsonrpc": "2.0", "id": caller.request, "result": {"lines": stored}})
        for line in new:
            caller.notify("mcpd/log", {"request": caller.request, "line": line})
        caller.hang_up()
        return {}

    return answer


@pytest.fixture(autouse=True)
def soon(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(logs_events_tap, "_POLL_SECONDS", 0.01)


def test_lines_are_printed_as_they_come(daemon: FakeDaemon, mcpctl: Mcpctl) -> None:
    """Existing lines come first, then new ones."""
    daemon.answers["mcpd/logs"] = runs((["one"], ["two\x1b[2J"]))
    ran = mcpctl("logs", "git", "-f")
    assert (ran.code, ran.out) == (5, "one\ntwo\n")
    daemon.answers["mcpd/logs"] = runs((["one"], ["two\x1b[2J"]))
    ran = mcpctl("logs", "git", "-f", "--json")
    assert ran.out == '{"line":"one"}\n{"line":"two\\u001b[2J"}\n'
    assert len(ran.err.splitlines()) == 1  # the error


def test_the_next_daemon_is_followed_without_gap_or_repetition(daemon: FakeDaemon, mcpctl: Mcpctl) -> None:
    """The server may have written lines after the connection had ended."""
    daemon.answers["mcpd/logs"] = runs(
        (["1", "2"], ["3"]), (["1", "2", "3", "4"], ["5"]), (["4", "5"], []), (["7"], ["8"])
    )
    ran = mcpctl("logs", "git", "-f")
    assert ran.out.split() == ["1", "2", "3", "4", "5", "7", "8"]
    assert ran.err.count("mcpd has stopped; waiting until it runs again") == 4
    assert ran.err.count("mcpd runs again") == 4


def test_no_earlier_line_is_printed_after_a_restart(daemon: FakeDaemon, mcpctl: Mcpctl) -> None:
    """Also if none was asked for at first."""
    daemon.answers["mcpd/logs"] = runs((["1"], []), (["0", "1", "2"], []))
    assert mcpctl("logs", "git", "-f", "-n", "0").out.split() == ["2"]
    daemon.answers["mcpd/logs"] = runs(([], []), (["1"], []))
    assert mcpctl("logs", "git", "-f").out.split() == ["1"]


def test_a_daemon_that_does_not_answer_at_first_is_an_error(daemon: FakeDaemon, mcpctl: Mcpctl) -> None:
    def hang_up(caller: Caller, params: dict[str, Any]) -> object:
        caller.hang_up()
        return {}

    daemon.answers["mcpd/logs"] = hang_up
    assert mcpctl("logs", "git", "-f").code == 3

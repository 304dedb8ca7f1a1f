"""`mcpctl logs --follow`."""

from __future__ import annotations

from typing import Any

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


def test_lines_are_printed_as_they_come(daemon: FakeDaemon, mcpctl: Mcpctl) -> None:
    """Existing lines come first, then new ones. The end of the daemon is an error."""
    daemon.answers["mcpd/logs"] = runs((["one"], ["two\x1b[2J"]))
    ran = mcpctl("logs", "git", "-f")
    assert (ran.code, ran.out) == (3, "one\ntwo\n")
    daemon.answers["mcpd/logs"] = runs((["one"], ["two\x1b[2J"]))
    ran = mcpctl("logs", "git", "-f", "--json")
    assert ran.out == '{"line":"one"}\n{"line":"two\\u001b[2J"}\n'
    assert len(ran.err.splitlines()) == 1  # the error

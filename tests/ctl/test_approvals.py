"""`mcpctl approvals` lists the calls that wait, and answers them."""

from __future__ import annotations

import pytest

from tests.ctl.conftest import Mcpctl
from tests.ctl.fake_daemon import NOW, FakeDaemon, Fault

WAITING = {
    "id": "3",
    "client": "zed (pid 7)",
    "server": "git",
    "kind": "tool",
    "name": "push",
    "arguments": '{"force":true}',
    "rule": "$.settings.policies[0]",
    "reason": "",
    "since": NOW,
    "expires_at": NOW,
}


def test_waiting_calls_are_listed_with_what_to_type(daemon: FakeDaemon, mcpctl: Mcpctl) -> None:
    daemon.answers["mcpd/approvals"] = {"approvals": [WAITING, {**WAITING, "id": "4", "arguments": ""}]}
    header, first, second, _, advice = mcpctl("approvals").out.splitlines()
    assert header.split() == ["ID", "CLIENT", "USES", "ARGUMENTS", "SINCE", "REFUSED"]
    assert first.startswith('3   zed (pid 7)  push@git  {"force":true}  ')
    assert second.split()[5] == "-"
    assert advice == "next: mcpctl approvals allow 3   (or: mcpctl approvals deny 3)"
    assert mcpctl("approvals", "--json").json()["approvals"][0] == WAITING
    daemon.answers["mcpd/approvals"] = {"approvals": []}
    assert mcpctl("approvals").out == "no calls wait for approval\n"


@pytest.mark.parametrize(
    ("argv", "decision", "said"),
    [
        (("allow", "3"), "once", "call 3: allowed"),
        (("allow", "3", "--session"), "session", "call 3: allowed until the client disconnects"),
        (("allow", "3", "--always"), "always", "call 3: allowed, and a rule was added to the configuration"),
        (("deny", "3"), "no", "call 3: refused"),
    ],
)
def test_call_is_answered(
    daemon: FakeDaemon, mcpctl: Mcpctl, argv: tuple[str, ...], decision: str, said: str
) -> None:
    daemon.answers["mcpd/approve"] = {}
    ran = mcpctl("approvals", *argv)
    assert (ran.code, said in ran.out + ran.err) == (0, True)
    assert daemon.params_of("mcpd/approve") == {"id": "3", "decision": decision}


def test_session_and_always_exclude_each_other(daemon: FakeDaemon, mcpctl: Mcpctl) -> None:
    assert mcpctl("approvals", "allow", "3", "--session", "--always").code == 2
    assert not [name for name, _ in daemon.requests if name == "mcpd/approve"]


def test_unknown_call_is_named_without_parameters_of_the_api(daemon: FakeDaemon, mcpctl: Mcpctl) -> None:
    problem = {"path": "$.id", "message": "no call '99' waits for approval", "fix": "mcpctl approvals"}
    message = "no call '99' waits for approval (see: mcpctl approvals)"

    def refuse(*_: object) -> object:
        raise Fault(message, code="invalid_arguments", exit=2, problems=[problem])

    daemon.answers["mcpd/approve"] = refuse
    ran = mcpctl("approvals", "allow", "99")
    assert ran.code == 5
    assert mcpctl("approvals", "deny", "99", "--json").error()["exit"] == 5
    assert ran.err == "error: no call '99' waits for approval\nnext: mcpctl approvals\n"

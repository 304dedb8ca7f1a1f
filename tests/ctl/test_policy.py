"""`mcpctl policy test` shows which rule decides."""

from __future__ import annotations

from tests.ctl.conftest import Mcpctl
from tests.ctl.fake_daemon import FakeDaemon

ANSWER = {
    "decision": "deny",
    "rule": "$.settings.policies[1]",
    "reason": "never",
    "source": "/c.json",
    "client": {
        "names": ["zed", "zed-editor"],
        "executable": "/usr/bin/zed",
        "transport": "bridge",
        "profile": "",
        "directory": "/src",
        "connected": True,
    },
    "annotations": {"readOnlyHint": False, "destructiveHint": True},
    "steps": [
        {
            "rule": "$.settings.policies[0]",
            "decision": "allow",
            "matches": False,
            "mismatch": "the tool is x",
        },
        {"rule": "$.settings.policies[1]", "decision": "deny", "matches": True, "mismatch": ""},
    ],
}


def test_decision_is_shown_with_the_rules_that_were_compared(daemon: FakeDaemon, mcpctl: Mcpctl) -> None:
    daemon.answers["mcpd/policy"] = ANSWER
    ran = mcpctl("policy", "test", "zed", "x@git", "--transport", "bridge")
    assert ran.code == 1
    assert ran.out.splitlines()[:2] == ["x@git: deny by $.settings.policies[1]", "reason: never"]
    assert "client: zed or zed-editor, executable /usr/bin/zed, transport bridge, directory /src" in ran.out
    assert "connected now" in ran.out
    assert "annotations: destructiveHint" in ran.out
    assert "$.settings.policies[0]  allow     the tool is x" in ran.out
    assert "$.settings.policies[1]  deny      matches" in ran.out
    assert mcpctl("policy", "test", "zed", "x@git", "--json").json() == ANSWER


def test_use_that_no_rule_is_about_is_allowed(daemon: FakeDaemon, mcpctl: Mcpctl) -> None:
    client = {**ANSWER["client"], "names": [], "connected": False}  # type: ignore[dict-item]
    daemon.answers["mcpd/policy"] = {
        **ANSWER,
        "decision": "allow",
        "rule": None,
        "reason": "",
        "steps": [],
        "annotations": None,
        "client": client,
    }
    ran = mcpctl("policy", "test", "zed", "a@b", "--kind", "resource")
    assert ran.code == 0
    assert ran.out.startswith("a@b: allow: no rule matches\n")
    assert "client: no name, executable" in ran.out
    assert "not connected" in ran.out
    assert "annotations" not in ran.out
    assert "warning" not in ran.err


def test_unknown_tool_and_profile_that_does_not_select_it_are_named(
    daemon: FakeDaemon, mcpctl: Mcpctl
) -> None:
    """Otherwise a typing error would look like a permission."""
    client = {**ANSWER["client"], "profile": "review"}  # type: ignore[dict-item]
    allowed = {**ANSWER, "decision": "allow", "rule": None, "reason": "", "steps": [], "client": client}
    daemon.answers["mcpd/policy"] = {**allowed, "known": False, "selected": False}
    ran = mcpctl("policy", "test", "zed", "x@git", "--profile", "review")
    assert ran.code == 1
    assert ran.out.splitlines()[:2] == [
        "x@git: not in the profile review",
        "the rules alone: allow: no rule matches",
    ]
    assert ran.err == "warning: git has no tool named x\n"
    daemon.answers["mcpd/policy"] = {**allowed, "known": False, "selected": True}
    assert mcpctl("policy", "test", "zed", "x@git").code == 0


def test_arguments_of_a_tool_are_refused(daemon: FakeDaemon, mcpctl: Mcpctl) -> None:
    ran = mcpctl("policy", "test", "zed", "a@b", "x=1")
    assert (ran.code, "unexpected argument: x=1" in ran.err) == (2, True)

"""A rule made of an approval allows what was approved, and nothing else."""

from __future__ import annotations

import json
from typing import Any

import attrs
import pytest

from mcpd.calls.client_context import ClientIdentity
from mcpd.calls.stages.approval import NoLastingRuleError, lasting_rule
from mcpd.config.loader import parse_config
from mcpd.gateway.client_facts import SessionFacts
from mcpd.model.policy import ClientFacts, Decision, PolicyRule, UsedItem, decide
from tests.model.test_policy import LOOK_ALIKES

ZED = ClientFacts(
    names=("Zed 1.2", "Zed", "zed-editor"),
    shown=("Zed 1.2", "Zed"),
    executable="/opt/zed-editor",
    transport="bridge",
)
NODE = ClientFacts(names=("codex", "node"), shown=("codex",), executable="/usr/bin/node", transport="bridge")
WEB = ClientFacts(names=("agent 3", "agent"), shown=("agent 3", "agent"), transport="http")
DELETE: Any = ("github", "tool", "delete_repo")


def parsed(client: ClientFacts, use: Any, tmp_path: Any) -> PolicyRule:
    document = {"mcpServers": {"x": {"command": "x"}}, "settings": {"policies": [lasting_rule(client, use)]}}
    (rule,) = parse_config(tmp_path / "c.json", json.dumps(document).encode(), {}).settings.policies
    return rule


def used(use: Any) -> UsedItem:
    return UsedItem(server=use[0], kind=use[1], name=use[2])


def test_rule_names_the_program_the_client_and_the_item() -> None:
    assert lasting_rule(ZED, DELETE) == {
        "decision": "allow",
        "clients": ["Zed"],
        "executables": ["/opt/zed-editor"],
        "servers": ["github"],
        "tools": ["delete_repo"],
    }
    assert lasting_rule(NODE, ("db", "prompt", "review"))["clients"] == ["codex"]
    assert lasting_rule(WEB, ("db", "resource", "file:///a")) == {
        "decision": "allow",
        "clients": ["agent"],
        "transports": ["http"],
        "servers": ["db"],
        "resources": ["file:///a"],
    }


OTHERS = [
    (ClientFacts(names=ZED.names, executable="/opt/other", transport="bridge"), DELETE),
    (ClientFacts(names=("other", "zed-editor"), executable="/opt/zed-editor", transport="bridge"), DELETE),
    (ClientFacts(names=ZED.names, transport="bridge"), DELETE),
    (ClientFacts(), DELETE),
    (ZED, ("gitlab", "tool", "delete_repo")),
    (ZED, ("github", "tool", "delete_repo2")),
    (ZED, ("github", "prompt", "delete_repo")),
    (ZED, ("github", "method", "delete_repo")),
    *((ZED, ("github", "tool", name)) for name in LOOK_ALIKES),
]


@pytest.mark.parametrize(("client", "use"), OTHERS, ids=ascii)
def test_rule_allows_nothing_else(client: ClientFacts, use: Any, tmp_path: Any) -> None:
    rules = [parsed(ZED, DELETE, tmp_path), PolicyRule(decision=Decision.ASK, place="$")]
    assert decide(rules, ZED, used(DELETE)).decision is Decision.ALLOW
    assert decide(rules, client, used(use)).decision is Decision.ASK


@pytest.mark.parametrize(
    ("client", "use"),
    [
        (ZED, ("github", "tool", "*")),
        (ZED, ("github", "tool", "delete_?")),
        (ZED, ("github", "tool", "[d]elete")),
        (ZED, ("github", "tool", "a\nb")),
        (ZED, ("git*", "tool", "a")),
        (ZED, ("github", "resource", "file:///*")),
        (ZED, ("github", "method", "x/delete")),
        (ClientFacts(names=("*",), shown=("*",), transport="http"), DELETE),
        (ClientFacts(names=("z?d", "zed"), shown=("z?d",), executable="/opt/zed"), DELETE),
        (ClientFacts(transport="http"), DELETE),
        (ClientFacts(names=("zed",), shown=("zed",), executable="/opt/zed (deleted)"), DELETE),
    ],
    ids=ascii,
)
def test_names_that_a_rule_would_read_as_patterns_are_refused(client: ClientFacts, use: Any) -> None:
    with pytest.raises(NoLastingRuleError):
        lasting_rule(client, use)


def test_modern_client_is_shown_under_the_name_in_its_request() -> None:
    session = SessionFacts(ClientIdentity(via="http"), None)
    first, second = session.known_by("", "zed 1"), session.known_by("", "agent 2")
    assert (first.shown, second.shown) == (("zed 1", "zed"), ("agent 2", "agent"))
    again = session.known_by("", "zed 1")
    assert (again.shown, set(again.names)) == (first.shown, {"zed 1", "zed", "agent 2", "agent"})
    assert session.known_by("", "zed 1") is again
    assert session.known_by("", "").shown == second.shown, "a request without a name"


def test_name_that_a_client_was_given_counts_and_not_the_one_that_it_reports(tmp_path: Any) -> None:
    """People do not know it by that, and another client could report the same."""

    def bridged(given: str, reported: str) -> ClientFacts:
        facts = SessionFacts(ClientIdentity(via="bridge", name=given, pid=0), None).known_by(reported, "")
        return attrs.evolve(facts, executable="/usr/bin/python3.11")

    allowed = parsed(bridged("zed", "mcp 0.1.0"), DELETE, tmp_path)
    assert allowed.clients == ("zed",)
    assert not allowed.client_mismatch(bridged("zed", "another"))
    assert allowed.client_mismatch(bridged("agent-z", "zed"))

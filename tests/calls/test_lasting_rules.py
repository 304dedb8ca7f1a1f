"""A rule made of an approval allows what was approved, and nothing else."""

from __future__ import annotations

import json
from typing import Any

import pytest

from mcpd.calls.lasting_rules import NoLastingRuleError, lasting_rule
from mcpd.config.loader import parse_config
from mcpd.model.policy import ClientFacts, Decision, PolicyRule, UsedItem, decide
from tests.model.test_policy import LOOK_ALIKES, URIS

ZED = ClientFacts(names=("Zed 1.2", "Zed", "zed-editor"), executable="/opt/zed-editor", transport="bridge")
NODE = ClientFacts(names=("codex", "node"), executable="/usr/bin/node", transport="bridge")
WEB = ClientFacts(names=("agent 3", "agent"), transport="http")
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


@pytest.mark.parametrize("uri", URIS)
def test_rule_for_a_resource_allows_no_other_spelling(uri: str, tmp_path: Any) -> None:
    rules = [parsed(ZED, ("f", "resource", "file:///public/key"), tmp_path)]
    assert decide(rules, ZED, used(("f", "resource", uri))).rule is None


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
        (ClientFacts(names=("*",), transport="http"), DELETE),
        (ClientFacts(names=("z?d", "[zed]"), transport="http"), DELETE),
        (ClientFacts(transport="http"), DELETE),
        (ClientFacts(names=("zed",), executable="/opt/zed (deleted)"), DELETE),
    ],
    ids=ascii,
)
def test_names_that_a_rule_would_read_as_patterns_are_refused(client: ClientFacts, use: Any) -> None:
    with pytest.raises(NoLastingRuleError):
        lasting_rule(client, use)


def test_client_that_calls_itself_a_pattern_is_known_by_its_program() -> None:
    named = ClientFacts(names=("*", "[a]"), executable="/opt/zed", transport="bridge")
    assert lasting_rule(named, DELETE).get("clients") is None
    assert lasting_rule(named, DELETE)["executables"] == ["/opt/zed"]

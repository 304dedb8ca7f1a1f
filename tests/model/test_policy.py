"""Which rule decides about a client's use of a tool, prompt or resource."""

from __future__ import annotations

import time
import timeit
from collections.abc import Callable
from typing import Any

import pytest

from mcpd.model.compiled_rules import CompiledRules
from mcpd.model.lookalikes import fold, fold_uri
from mcpd.model.policy import (
    HINTS,
    ClientFacts,
    Decision,
    PolicyRule,
    UsedItem,
    decide,
    read_only_rule,
)
from tests.stopwatch import within

ZED = ClientFacts(
    names=("zed", "Zed 1.2", "zed-editor"),
    shown=("zed",),
    executable="/usr/bin/zed-editor",
    transport="bridge",
    profile="work",
    directory="/home/ada/src/app",
)
UNKNOWN = ClientFacts(transport="http")
DELETE = UsedItem(server="github", kind="tool", name="delete_repo", hints=HINTS)
READ = UsedItem(
    server="github",
    kind="tool",
    name="get_issue",
    hints={**HINTS, "readOnlyHint": True, "destructiveHint": False},
)
PROMPT = UsedItem(server="github", kind="prompt", name="review")
FILE = UsedItem(server="files", kind="resource", name="file:///secret/key")
CUSTOM = UsedItem(server="github", kind="method", name="x/delete")
UNLISTED = UsedItem(server="github", kind="tool", name="delete_repo")


def rule(decision: str = "deny", **conditions: Any) -> PolicyRule:
    return PolicyRule(decision=Decision(decision), place="$", **conditions)


@pytest.mark.parametrize(
    ("conditions", "client", "item", "denies", "allows"),
    [
        ({}, ZED, DELETE, True, True),
        ({"servers": ("git*",)}, ZED, DELETE, True, True),
        ({"servers": ("files",)}, ZED, DELETE, False, False),
        ({"servers": ("GitHub",)}, ZED, DELETE, True, False),
        ({"tools": ("delete_*",)}, ZED, DELETE, True, True),
        ({"tools": ("delete_*@github",)}, ZED, DELETE, True, True),
        ({"tools": ("delete_*@files",)}, ZED, DELETE, False, False),
        ({"tools": ("Delete-*",)}, ZED, DELETE, True, False),
        ({"tools": ("*",)}, ZED, PROMPT, False, False),
        ({"tools": ("*",)}, ZED, CUSTOM, False, False),
        ({"prompts": ("rev*",)}, ZED, PROMPT, True, True),
        ({"prompts": ("rev*",), "tools": ("x",)}, ZED, PROMPT, True, True),
        ({"resources": ("file:///secret/*",)}, ZED, FILE, True, True),
        ({"resources": ("file:///public/*",)}, ZED, FILE, False, False),
        ({}, ZED, CUSTOM, True, True),
        ({"clients": ("zed",)}, ZED, DELETE, True, True),
        ({"clients": ("codex",)}, ZED, DELETE, False, False),
        ({"clients": ("zed-editor",)}, ZED, DELETE, True, False),
        ({"clients": ("Zed*",)}, ZED, DELETE, True, False),
        ({"clients": ("zed",)}, UNKNOWN, DELETE, True, False),
        ({"executables": ("zed-editor",)}, ZED, DELETE, True, True),
        ({"executables": ("/usr/bin/*",)}, ZED, DELETE, True, True),
        ({"executables": ("/opt/*",)}, ZED, DELETE, False, False),
        ({"executables": ("zed-editor",)}, UNKNOWN, DELETE, True, False),
        ({"transports": ("bridge",)}, ZED, DELETE, True, True),
        ({"transports": ("http", "control")}, ZED, DELETE, False, False),
        ({"profiles": ("w*",)}, ZED, DELETE, True, True),
        ({"profiles": ("w*",)}, UNKNOWN, DELETE, False, False),
        ({"directories": ("/home/*/src",)}, ZED, DELETE, True, True),
        ({"directories": ("/home/ada/src/app",)}, ZED, DELETE, True, True),
        ({"directories": ("/home/ada/src/app/sub",)}, ZED, DELETE, False, False),
        ({"directories": ("/home/ada/s",)}, ZED, DELETE, False, False),
        ({"directories": ("/",)}, ZED, DELETE, True, True),
        ({"directories": ("/home",)}, UNKNOWN, DELETE, True, False),
        ({"hints": {"readOnlyHint": False}}, ZED, DELETE, True, True),
        ({"hints": {"readOnlyHint": False}}, ZED, READ, False, False),
        ({"hints": {"readOnlyHint": False}}, ZED, UNLISTED, True, False),
        ({"hints": {"readOnlyHint": False}}, ZED, CUSTOM, True, False),
        ({"hints": {"readOnlyHint": False}}, ZED, PROMPT, False, False),
        ({"hints": {"destructiveHint": True}}, ZED, DELETE, True, True),
        ({"hints": {"destructiveHint": True}}, ZED, READ, False, False),
    ],
)
def test_when_a_rule_matches(
    conditions: Any, client: ClientFacts, item: UsedItem, denies: bool, allows: bool
) -> None:
    """A rule that denies also matches what is not known, or only looks alike; one that allows does not."""
    assert (not rule("deny", **conditions).mismatch(client, item)) is denies
    assert (not rule("allow", **conditions).mismatch(client, item)) is allows


def test_first_rule_that_matches_decides() -> None:
    rules = [
        rule("allow", clients=("zed",), tools=("delete_*",)),
        rule("deny", tools=("delete_*",)),
        rule("allow"),
    ]
    assert decide(rules, ZED, DELETE).rule is rules[0]
    assert decide(rules, UNKNOWN, DELETE).rule is rules[1]
    assert decide(rules, UNKNOWN, READ).rule is rules[2]
    assert decide([], ZED, DELETE).decision is Decision.ALLOW
    assert decide([read_only_rule("$", servers=("github",))], ZED, READ).rule is None


def test_mismatch_says_which_condition_is_not_met() -> None:
    assert rule(servers=("a",)).mismatch(ZED, DELETE) == "the server is github"
    assert rule(tools=("a",)).mismatch(ZED, DELETE) == "the tool is delete_repo"
    assert rule(tools=("a",)).mismatch(ZED, PROMPT) == "it is not about prompts"
    assert rule(clients=("a",)).mismatch(ZED, DELETE) == "the client is zed"
    assert rule("allow", executables=("a",)).mismatch(UNKNOWN, DELETE) == "the executable is not known"
    assert rule("allow", directories=("/a",)).mismatch(UNKNOWN, DELETE) == "the directory is not known"
    assert rule(directories=("/a",)).mismatch(ZED, DELETE) == "the directory is /home/ada/src/app"
    assert rule(profiles=("a",)).mismatch(UNKNOWN, DELETE) == "the profile is not set"
    assert rule(hints={"readOnlyHint": True}).mismatch(ZED, DELETE) == "readOnlyHint is false"
    assert (
        rule("allow", hints={"readOnlyHint": True}).mismatch(ZED, UNLISTED) == "the annotations are not known"
    )


LOOK_ALIKES = (
    "Delete_Repo",
    "d\u0435lete_repo",
    "dele\u0442e_repo",
    "delete_rep\u043e",
    "\u1d05\u1d07\u029f\u1d07\u1d1b\u1d07_repo",
    "\uff44\uff45\uff4c\uff45\uff54\uff45_repo",
    "delete_repo\u200b",
    "dele\u200dte_repo",
    "\ufeffdelete_repo",
    " delete_repo",
    "delete_repo\n",
    "delete\u2010repo",
    "delete-repo",
    "delete.repo",
    "delete repo",
    "de1ete_repo",
    "deIete_repo",
    "d\u00e9lete_repo",
    "dele\u0301te_repo",
    "\u0111elete_repo",
    "delete_rep0",
    "\U0001d41d\U0001d41e\U0001d425\U0001d41e\U0001d42d\U0001d41e_repo",
    "delete_\u0280epo",
)


@pytest.mark.parametrize("name", LOOK_ALIKES, ids=ascii)
def test_names_that_look_alike_are_denied_and_not_allowed(name: str) -> None:
    item = UsedItem(server="github", kind="tool", name=name)
    assert fold(name) == fold("delete_repo")
    assert not rule("deny", tools=("delete_repo",)).mismatch(ZED, item)
    assert rule("allow", tools=("delete_repo",)).mismatch(ZED, item)


URIS = (
    "FILE:///secret/key",
    "file:///public/../secret/key",
    "file:///%73ecret/key",
    "file:///%2573ecret/key",
    "file:////secret//key",
    "file:///./secret/key",
    "file:///public/%2e%2e/secret/key",
    "file:///public\\..\\secret\\key",
    "file:///../secret/key",
)


@pytest.mark.parametrize("uri", URIS)
def test_other_spellings_of_a_uri_are_denied_and_not_allowed(uri: str) -> None:
    item = UsedItem(server="files", kind="resource", name=uri)
    assert fold_uri(uri) == "file:///secret/key"
    assert not rule("deny", resources=("file:///secret/*",)).mismatch(ZED, item)
    assert rule("allow", resources=("file:///public/*",)).mismatch(ZED, item)


NAMES = {
    "tool": (*LOOK_ALIKES, "delete_repo", "get", "x", "", "a@github", "delete_repo@github", "ab cd "),
    "prompt": ("delete_repo", "Delete_Repo", "x", ""),
    "resource": (*URIS, "file:///secret/key", "file:///public/a", "x", ""),
    "method": ("custom/method",),
}


@pytest.mark.parametrize("decision", ["allow", "ask", "deny"])
def test_names_in_no_list_are_compared_as_all_others(decision: str) -> None:
    conditions: list[dict[str, Any]] = [
        {},
        {"servers": ("git*",)},
        {"servers": ("other",)},
        {"clients": ("zed",)},
        {"tags": ("a*",)},
        {"tags": ("b",)},
        {"hints": {"readOnlyHint": False}},
        {"tools": ("delete_*",)},
        {"tools": ("*",)},
        {"tools": ("get", "delete_repo@github")},
        {"tools": ("*@github",), "tags": ("a",)},
        {"tools": ("ab??cd*", "x"), "hints": {"readOnlyHint": True}},
        {"tools": ("x",), "servers": ("other",)},
        {"prompts": ("delete_repo",)},
        {"prompts": (), "tools": ("g[a-f]t",)},
        {"resources": ("file:///secret/*",)},
        {"resources": ("file:///public/*", "x")},
    ]
    compiled = CompiledRules([rule(decision, **each) for each in conditions])
    compared = set()
    for kind, names in NAMES.items():
        example: Any = {"server": "github", "kind": kind, "tags": ("a",)}
        unlisted = compiled.unlisted(UsedItem(name="", **example))
        for name in names:
            found = compiled.about_item(UsedItem(name=name, **example))
            assert unlisted.about_name(name) == found, (kind, name)
            compared.add(found)
    assert len(compared) > 5, "they differ"


def test_name_in_no_list_costs_little_more_than_one_comparison() -> None:
    """With fifty rules that name tools: before, each of them was compared with each name."""
    rules = [rule("deny", tools=(f"x{n}_*",)) for n in range(50)]
    compiled, item = CompiledRules(rules), UsedItem(server="srv", kind="tool", name="get_all")
    unlisted = compiled.unlisted(item)
    assert unlisted.about_name("get_all") == compiled.about_item(item) == 0

    def best(compare: Callable[[], int]) -> float:
        return min(timeit.repeat(compare, number=20, repeat=10, timer=time.thread_time))

    assert best(lambda: unlisted.about_name("get_all")) < best(lambda: compiled.about_item(item)) / 5


def test_decision_takes_microseconds() -> None:
    """With twenty rules of which the last one matches."""
    rules = [rule("deny", clients=("codex*",), tools=(f"x{n}_*",)) for n in range(19)] + [rule("allow")]
    decide(rules, ZED, DELETE)
    count = 300
    best = min(timeit.repeat(lambda: decide(rules, ZED, DELETE), number=count, repeat=5)) / count
    assert within(best / len(rules), 5e-5)

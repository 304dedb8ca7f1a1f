"""Which rule decides about a client's use of a tool, prompt or resource."""

from __future__ import annotations

from typing import Any

import pytest

from mcpd.model.policy import (
    HINTS,
    ClientFacts,
    Decision,
    PolicyRule,
    UsedItem,
    all_tags,
    decide,
    read_only_rule,
    tags_of_similar_tools,
    tags_of_tool,
)
from mcpd.model.server_spec import StdioSpec

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
        ({"servers": ("files",)}, ZED, DELETE, False, False),
        ({"servers": ("GitHub",)}, ZED, DELETE, True, False),
        ({"tools": ("delete_*@github",)}, ZED, DELETE, True, True),
        ({"tools": ("delete_*@files",)}, ZED, DELETE, False, False),
        ({"tools": ("Delete_*",)}, ZED, DELETE, True, False),
        ({"tools": ("*",)}, ZED, CUSTOM, False, False),
        ({"prompts": ("rev*",)}, ZED, PROMPT, True, True),
        ({"prompts": ("rev*",), "tools": ("x",)}, ZED, PROMPT, True, True),
        ({"resources": ("file:///public/*",)}, ZED, FILE, False, False),
        ({}, ZED, CUSTOM, True, True),
        ({"clients": ("zed",)}, ZED, DELETE, True, True),
        ({"clients": ("codex",)}, ZED, DELETE, False, False),
        ({"clients": ("zed-editor",)}, ZED, DELETE, True, False),
        ({"clients": ("Zed*",)}, ZED, DELETE, True, False),
        ({"clients": ("zed",)}, UNKNOWN, DELETE, True, False),
        ({"executables": ("/usr/bin/*",)}, ZED, DELETE, True, True),
        ({"executables": ("/opt/*",)}, ZED, DELETE, False, False),
        ({"executables": ("zed-editor",)}, UNKNOWN, DELETE, True, False),
        ({"transports": ("bridge",)}, ZED, DELETE, True, True),
        ({"transports": ("http", "control")}, ZED, DELETE, False, False),
        ({"profiles": ("w*",)}, ZED, DELETE, True, True),
        ({"profiles": ("w*",)}, UNKNOWN, DELETE, False, False),
        ({"directories": ("/home/ada/src/app",)}, ZED, DELETE, True, True),
        ({"directories": ("/home/ada/src/app/sub",)}, ZED, DELETE, False, False),
        ({"directories": ("/",)}, ZED, DELETE, True, True),
        ({"directories": ("/home",)}, UNKNOWN, DELETE, True, False),
        ({"hints": {"readOnlyHint": False}}, ZED, DELETE, True, True),
        ({"hints": {"readOnlyHint": False}}, ZED, UNLISTED, True, False),
        ({"hints": {"readOnlyHint": False}}, ZED, CUSTOM, True, False),
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


LOOK_ALIKES = (
    "Delete_Repo",
    "\uff44\uff45\uff4c\uff45\uff54\uff45_repo",
    "delete_repo\u200b",
    "\ufeffdelete_repo",
    " delete_repo",
    "delete_repo\n",
    "\U0001d41d\U0001d41e\U0001d425\U0001d41e\U0001d42d\U0001d41e_repo",
)


@pytest.mark.parametrize("name", LOOK_ALIKES, ids=ascii)
def test_names_that_look_alike_are_denied_and_not_allowed(name: str) -> None:
    item = UsedItem(server="github", kind="tool", name=name)
    assert not rule("deny", tools=("delete_repo",)).mismatch(ZED, item)
    assert rule("allow", tools=("delete_repo",)).mismatch(ZED, item)


URIS = (
    "FILE:///secret/key",
    "file:/secret/key",
    "file:secret/key",
    "file://localhost/secret/key",
    "file://LocalHost/secret/key",
    "file://somewhere/secret/key",
    "file:/public/../secret/key",
    "file:///public/../secret/key",
    "file:/x/%2e%2e/secret/key",
    "file:///%73ecret/key",
    "file:/%73ecret/key",
    "file:///%2573ecret/key",
    "file:////secret//key",
    "file:///./secret/key",
    "file:///public\\..\\secret\\key",
    "file:///../secret/key",
    "file:///secret/key?x",
    "file:///secret/key#x",
    "/secret/key",
    "file:secret/key",
    "fi\tle:///secret/key",
    " FILE:///secret/key\n",
    "file:///x%2fy/../secret/key",
    "file:///x//../../secret/key",
    "file:x%2fy/.%2E/secret/key",
    "file://x%2fy/%73ecret/key",
    "file:///%252e%252e/secret/key",
    "file:///x/%5c../%2e%2e/secret/key",
    "file:\\\\\\secret\\key",
    "file://user@localhost./secret/key",
    "file://secret/key",
    "file:///secret/key%00",
    "file:///se\u00adcret/\ufe0fkey",
    "file:\uff0f\uff0f/secret/key",
    "file:///x/\u2025/secret/key",
    "URL:file:///secret/key",
    "<file:///secret/key>",
    f"file:///{'x/../' * 500}secret/key",
    "file:///%252525252525252525252525252525%5c..%5c/.%2e/secret/key",
)
_OTHER_URIS = {
    "https://api.example.com/private/*": (
        "HTTPS://API.example.com./private/a", "https:api.example.com/private/a",
        "https:/api.example.com:443/private/a", "https:\\\\api.example.com\\private\\a",
        "https://me:pw@api.example.com/private/a", "https://api.example.com:00443//private/./a",
        "https://api%2eexample.com/%70rivate/a", "https://evil.org\\@api.example.com/private/a",
        "https:////api\u3002example\uff0ecom/public/../private/a", "https://a@b@api.example.com:/private/a",
    ),
    "https://b\u00fccher.example/*": ("https://xn--bcher-kva.example/a", "https://B\u00dcCHER.example/a"),
    "https://xn--bcher-kva.example/*": ("https://b\u00fccher.example/a",),
    "http://127.0.0.1:8080/*": ("http://2130706433:8080/a", "http://0x7f.1:8080/a", "http://0177.0.0.1:8080/a",
                              "http://[::ffff:7f00:1]:8080/a"),
    "db://tables/users": ("DB://tables/users/", "db://tables:1/x%2fy/../users", "db:/tables/users",
                          "db:tables/users", "db:///tables/users", "db:/x%2fy//../tables/users",
                          "db://tables/%75sers", "db://tables/x/../users", "db://tables//users?limit=1",
                          "db://tables/orders/%2e%2e/users#x", "db://tables\\users", "db://x/../tables/users"),
    "note:///secret": ("note://anything/secret", "note:/secret", "note:secret"),
    "*/etc/passwd": ("file:/etc/./passwd", "file://localhost/%65tc/passwd"),
}  # fmt: skip


@pytest.mark.parametrize("uri", URIS)
@pytest.mark.parametrize(
    "pattern", ["file:///secret/*", "file:/secret/*", "file://localhost/secret/*", "file:///secret/k?y"]
)
def test_other_spellings_of_a_uri_are_denied_and_not_allowed(uri: str, pattern: str) -> None:
    item = UsedItem(server="files", kind="resource", name=uri)
    assert not rule("deny", resources=(pattern,)).mismatch(ZED, item)
    assert rule("allow", resources=("file:///public/*",)).mismatch(ZED, item)


@pytest.mark.parametrize("pattern", _OTHER_URIS)
def test_spellings_of_other_schemes_are_denied(pattern: str) -> None:
    denial = rule("deny", resources=(pattern,))
    passed = [
        uri
        for uri in (*_OTHER_URIS[pattern], pattern.replace("*", ""))
        if denial.mismatch(ZED, UsedItem(server="files", kind="resource", name=uri))
    ]
    assert passed == []


def test_other_resources_are_not_denied() -> None:
    for uri in ("file:///secrets/key", "file:///public/secret/key", "https://localhost/secret/key", "x", ""):
        item = UsedItem(server="files", kind="resource", name=uri)
        assert rule("deny", resources=("file:///secret/*",)).mismatch(ZED, item), uri
    for uri in ("db://users", "db://other/tables/users", "db://tables/users2", "http://tables/users"):
        item = UsedItem(server="files", kind="resource", name=uri)
        assert rule("deny", resources=("db://tables/users",)).mismatch(ZED, item), uri
    item = UsedItem(server="files", kind="resource", name="HTTPS://Example.com/a/../b")
    assert not rule("deny", resources=("https://example.com/b",)).mismatch(ZED, item)


SPEC = StdioSpec(
    name="github",
    command="x",
    tags=("work",),
    tool_tags={"delete_*": ("dangerous", "work"), "*_repo": ("repo",)},
)


def tagged(tool: str) -> UsedItem:
    return UsedItem(
        server="github",
        kind="tool",
        name=tool,
        tags=tags_of_tool(SPEC, tool),
        similar_tags=tags_of_similar_tools(SPEC, tool),
    )


def test_tool_has_the_tags_of_its_server_and_of_its_name() -> None:
    assert tags_of_tool(SPEC, "delete_repo") == ("work", "dangerous", "repo")
    assert tags_of_tool(SPEC, "get_issue") == ("work",)
    assert all_tags(SPEC) == {"work", "dangerous", "repo"}


@pytest.mark.parametrize("name", LOOK_ALIKES, ids=ascii)
def test_names_that_look_alike_are_denied_and_not_allowed_by_tag(name: str) -> None:
    """A tool does not lose its tags by another spelling, and does not gain any that allow it."""
    deny = PolicyRule(decision=Decision.DENY, place="$", tags=("dangerous",))
    allow = PolicyRule(decision=Decision.ALLOW, place="$", tags=("dangerous",))
    assert not deny.mismatch(ZED, tagged(name))
    assert not deny.mismatch(ZED, tagged("delete_repo"))
    assert not allow.mismatch(ZED, tagged("delete_repo"))
    assert bool(allow.mismatch(ZED, tagged(name))) is not name.startswith("delete_")
    assert deny.mismatch(ZED, tagged("get_issue")) == "the tags are work"

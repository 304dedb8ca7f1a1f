"""Tags of servers and tools, as policies, profiles and lists use them."""

from __future__ import annotations

import pytest

from mcpd.model.policy import ClientFacts, Decision, PolicyRule, UsedItem
from mcpd.model.server_spec import StdioSpec
from mcpd.model.tags import all_tags, tags_of_similar_tools, tags_of_tool
from tests.model.test_policy import LOOK_ALIKES

SPEC = StdioSpec(
    name="github",
    command="x",
    tags=("work",),
    tool_tags={"delete_*": ("dangerous", "work"), "*_repo": ("repo",)},
)
CLIENT = ClientFacts()


def item(tool: str) -> UsedItem:
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
    assert not deny.mismatch(CLIENT, item(name))
    assert not deny.mismatch(CLIENT, item("delete_repo"))
    assert not allow.mismatch(CLIENT, item("delete_repo"))
    assert bool(allow.mismatch(CLIENT, item(name))) is not name.startswith("delete_")
    assert deny.mismatch(CLIENT, item("get_issue")) == "the tags are work"


@pytest.mark.parametrize("kind", ["prompt", "resource", "method"])
def test_everything_of_a_server_has_its_tags(kind: str) -> None:
    deny = PolicyRule(decision=Decision.DENY, place="$", tags=("work",))
    used = UsedItem(server="github", kind=kind, name="x", tags=SPEC.tags)  # type: ignore[arg-type]
    assert not deny.mismatch(CLIENT, used)
    assert deny.mismatch(CLIENT, UsedItem(server="other", kind="tool", name="x")) == "it has no tags"

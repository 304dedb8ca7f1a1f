"""Public tool names are short, legal and unique."""

from __future__ import annotations

import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mcpd.model.tool_names import MAX_NAME_LENGTH, ClientStyle, own_name, public_names, tools_named
from tests.stopwatch import assert_cheap

PAIR = st.tuples(st.sampled_from(["a", "a_", "git", "x" * 60]), st.text(min_size=1, max_size=80))


@pytest.mark.parametrize(
    ("style", "name"),
    [
        (ClientStyle.UNDERSCORES, "git__status"),
        (ClientStyle.SUFFIX, "status@git"),
        (ClientStyle.PREFIX, "mcp_git_status"),
        (ClientStyle.NAMESPACE, "git::status"),
        (ClientStyle.PLAIN, "status"),
    ],
)
def test_each_style_has_its_form(style: ClientStyle, name: str) -> None:
    assert public_names(style, [("git", "status"), ("hg", "log")])[name] == ("git", "status")


def test_plain_style_adds_the_server_if_two_have_the_tool() -> None:
    names = public_names(ClientStyle.PLAIN, [("git", "log"), ("hg", "log"), ("hg", "heads")])
    assert names == {"git__log": ("git", "log"), "hg__log": ("hg", "log"), "heads": ("hg", "heads")}


def test_colliding_names_get_a_permanent_suffix() -> None:
    """The suffix is a hash of server and tool, so later servers do not change it."""
    pairs = [("a", "b__c"), ("a__b", "c")]
    names = public_names(ClientStyle.UNDERSCORES, pairs)
    assert list(names.values()) == pairs
    assert next(iter(names)) == "a__b__c"
    more = public_names(ClientStyle.UNDERSCORES, [*pairs, ("z", "z")])
    assert {name: pair for name, pair in more.items() if pair in pairs} == names


@given(st.sampled_from(ClientStyle), st.lists(PAIR, max_size=30))
def test_every_tool_has_one_name_and_every_name_one_tool(
    style: ClientStyle, pairs: list[tuple[str, str]]
) -> None:
    """This holds for any names, and repeated runs agree."""
    names = public_names(style, pairs)
    assert sorted(names.values()) == sorted(set(pairs))
    assert all(0 < len(name) <= MAX_NAME_LENGTH for name in names)
    assert names == public_names(style, pairs)
    if style in (ClientStyle.UNDERSCORES, ClientStyle.PREFIX, ClientStyle.PLAIN):
        assert all(re.fullmatch(r"[A-Za-z0-9_-]+", name) for name in names)


@pytest.mark.parametrize(
    ("style", "server", "name", "own"),
    [
        (ClientStyle.UNDERSCORES, "git", "git__status", "status"),
        (ClientStyle.UNDERSCORES, "git", "git_status", ""),
        (ClientStyle.UNDERSCORES, "my.git", "my_git__status", "status"),
        (ClientStyle.PLAIN, "git", "status", ""),
        (ClientStyle.SUFFIX, "git", "status@git", "status"),
        (ClientStyle.SUFFIX, "git", "status@legit", ""),
        (ClientStyle.PREFIX, "git", "mcp_git_status", "status"),
        (ClientStyle.PREFIX, "git", "git_status", ""),
        (ClientStyle.NAMESPACE, "git", "git::status", "status"),
        (ClientStyle.NAMESPACE, "git", "git", ""),
    ],
)
def test_name_of_an_unknown_tool_shows_its_server_and_its_own_name(
    style: ClientStyle, server: str, name: str, own: str
) -> None:
    assert own_name(style, server, name) == own


@pytest.mark.parametrize("name", ["git__st", "mcp_git_st", "st@git", "git::st", "git.st", "git/st"])
def test_qualified_names_are_found(name: str) -> None:
    """In every style, among the known tools, and else by the names of the servers."""
    assert tools_named(name, [("hg", "st"), ("git", "st")]) == [("git", "st")]
    assert tools_named(name, [("hg", "st")], ["hg", "git", "gi"]) == [("git", "st")]
    assert tools_named(name, [("hg", "st")]) == []


def test_ambiguous_names_are_all_returned() -> None:
    assert tools_named("a__b__c", [], ["a", "a__b"]) == [("a", "b__c"), ("a__b", "c")]
    assert tools_named("b", [("a", "b")], ["a", "b"]) == []


def test_long_names_cost_no_more_than_what_is_kept_of_them() -> None:
    """Replacing 15 million characters took half a second."""
    pairs = [("s", f"{number}{'!' * 65_000}") for number in range(230)]
    assert_cheap(lambda: public_names(ClientStyle.UNDERSCORES, pairs), 0.15)
    names = public_names(ClientStyle.UNDERSCORES, pairs)
    assert all(name.startswith(f"s__{own[:2].rstrip('!')}") for name, (_, own) in names.items())
    assert all(len(name) == MAX_NAME_LENGTH for name in names)
    assert len(names) == len(pairs)

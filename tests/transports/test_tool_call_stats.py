"""Tool call statistics, by tool name and outcome."""

from __future__ import annotations

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec import Raw

from mcpd.transports.tool_call_stats import MAX_TOOLS, CallStats, ToolCallStats
from mcpd.wire import message as wire
from mcpd.wire.message import Message

OK = Message(result=Raw(b'{"content":[]}'))


def named(tool: str) -> bytes:
    return b'{"name":"%b","arguments":{}}' % tool.encode()


@given(st.text(min_size=1, max_size=50), st.booleans(), st.booleans())
def test_tool_name_is_found_in_any_json_spelling(name: str, ascii_only: bool, last: bool) -> None:
    """The name may be the first or last member, and escaped."""
    if any("\ud800" <= c <= "\udfff" for c in name):
        return
    named = {"name": name}
    params = {"arguments": {"name": "not this"}, **named} if last else {**named, "arguments": {}}
    separators = (",", ":") if ascii_only else (", ", ": ")
    text = json.dumps(params, ensure_ascii=ascii_only, separators=separators).encode()
    tally = CallStats()
    for _ in range(3):
        tally.for_params(text).add_response(0.1, OK, b"{}")
    assert list(tally.by_tool()) == [name]


@pytest.mark.parametrize("params", [b"", b"{}", b"[]", b'{"name":5}', b'{"name":""}', b'{"name":"a', b"\xff"])
def test_call_without_a_usable_name_is_counted(params: bytes) -> None:
    """The server will refuse it, but it counts as a call."""
    tally = CallStats()
    tally.for_params(params).add_response(0.1, OK, b"{}")
    assert tally.total().calls == 1


@pytest.mark.parametrize(
    ("result", "failed"),
    [
        (b'{"content":[],"isError":true}', True),
        (b'{"isError" : true, "content":[]}', True),
        (b'{"content":[],"isError":false}', False),
        (b'{"structuredContent":{"isError":true},"content":[]}', False),
        (b'{"content":[{"type":"text","text":"\\"isError\\":true"}]}', False),
        (b'{"content":[{"type":"text","text":"%b"}],"isError":true}' % (b"x" * 100_000), True),
        (b'{"isError":true,"content":"%b"}' % (b"x" * 100_000), True),
    ],
)
def test_result_with_is_error_counts_as_an_error(result: bytes, failed: bool) -> None:
    """Only the member of the result itself counts, not nested members or text."""
    line = b'{"jsonrpc":"2.0","id":1,"result":%b}' % result
    count = ToolCallStats()
    count.add_response(0.1, wire.parse(line), line)
    assert count.errors == failed


def test_each_call_is_counted_by_its_outcome() -> None:
    """Outcomes are answered, refused, lost and cancelled. Only answers have a duration."""
    tally = CallStats()
    one, other = tally.for_params(named("a")), tally.for_params(named("b"))
    one.add_response(0.5, OK, b"{}")
    one.add_response(0.5, Message(error=Raw(b'{"code":1,"message":"no"}')), b"{}")
    one.lost += 1
    other.cancelled += 1
    whole = tally.total()
    assert (whole.calls, whole.errors, whole.lost, whole.cancelled) == (4, 1, 1, 1)
    assert whole.times.count == 2
    assert tally.by_tool()["b"].calls == 1


def test_invented_tool_names_are_bounded() -> None:
    """After five hundred names, new ones share one counter; known ones keep theirs."""
    tally = CallStats()
    for number in range(3 * MAX_TOOLS):
        tally.for_params(named(f"tool-{number}")).lost += 1
    tally.for_params(named("tool-1")).lost += 1
    assert len(tally.by_tool()) == MAX_TOOLS + 1
    assert tally.total().calls == 3 * MAX_TOOLS + 1
    assert tally.by_tool()["tool-1"].calls == 2

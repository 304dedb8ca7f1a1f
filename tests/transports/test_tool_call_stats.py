"""Tool call statistics, by tool name and outcome."""

from __future__ import annotations

import pytest
from msgspec import Raw

from mcpd.transports.tool_call_stats import MAX_TOOLS, CallStats, ToolCallStats
from mcpd.wire import message as wire
from mcpd.wire.message import Message

OK = Message(result=Raw(b'{"content":[]}'))


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
    one, other = tally.for_tool("a"), tally.for_tool("b")
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
        tally.for_tool(f"tool-{number}").lost += 1
    tally.for_tool("tool-1").lost += 1
    assert len(tally.by_tool()) == MAX_TOOLS + 1
    assert tally.total().calls == 3 * MAX_TOOLS + 1
    assert tally.by_tool()["tool-1"].calls == 2

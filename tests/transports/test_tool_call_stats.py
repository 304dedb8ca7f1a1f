"""Tool call statistics, by tool name and outcome."""

from __future__ import annotations

import logging

import pytest
from msgspec import Raw

from mcpd.model.errors import CallTimeout
from mcpd.transports.tool_call_stats import MAX_TOOLS, NAMELESS, CallStats, ToolCallStats
from mcpd.wire import message as wire
from mcpd.wire.message import Message

OK = Message(result=Raw(b'{"content":[]}'))


def test_call_without_a_name_is_counted() -> None:
    """The server will refuse it, but it counts as a call."""
    tally = CallStats()
    tally.for_tool("").add_response(0.1, OK, b"{}")
    assert tally.by_tool()[NAMELESS].calls == 1


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


def test_failed_calls_are_logged_ever_more_rarely(caplog: pytest.LogCaptureFixture) -> None:
    """With the tool, the server and the reason; a successful call is not logged."""
    caplog.set_level(logging.INFO)
    stats = CallStats("files").for_tool("read_file")
    failed = Message(result=Raw(b'{"content":[{"type":"text","text":"no such file"}],"isError":true}'))
    for _ in range(9):
        stats.add_response(0.1, OK, b"{}")
        stats.add_response(0.1, failed, bytes(failed.result))
    refused = Message(error=Raw(b'{"code":-32603,"message":"disk on fire"}'))
    CallStats("files").for_tool("write").add_response(0.1, refused, b"")
    CallStats("files").for_tool("slow").add_lost(CallTimeout("files: no response", server="files", after=2))
    assert caplog.messages == [
        "read_file@files: failed: no such file",
        "read_file@files: failed: no such file (failure 2)",
        "read_file@files: failed: no such file (failure 4)",
        "read_file@files: failed: no such file (failure 8)",
        "write@files: refused: disk on fire (-32603)",
        "slow@files: no response",
    ]

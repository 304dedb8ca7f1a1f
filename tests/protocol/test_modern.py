"""The dialect of 2026-07-28: headers that repeat parts of a message, retries, and the first request."""

from __future__ import annotations

import json

import pytest
import trio
from msgspec import Raw

from mcpd.protocol import modern
from mcpd.protocol.modern import ParameterHeaders
from mcpd.wire.message import Message
from tests.transports.peer import PATIENCE, connected

VERSION = "2026-07-28"
REGION = {"type": "object", "properties": {"region": {"type": "string", "x-mcp-header": "Region"}}}


def tool(schema: object) -> bytes:
    return json.dumps({"name": "t", "inputSchema": schema}).encode()


def frame(**params: object) -> bytes:
    return json.dumps({"params": params}).encode()


@pytest.mark.parametrize(
    ("method", "data", "more"),
    [
        ("", frame(name="t"), None),
        ("tools/list", frame(), {}),
        ("tools/list", frame(name="t"), {}),
        ("tools/call", frame(name="other"), {"Mcp-Name": "other"}),
        (
            "tools/call",
            frame(name="t", arguments={"region": "eu"}),
            {"Mcp-Name": "t", "Mcp-Param-Region": "eu"},
        ),
        ("tools/call", frame(name="t"), {"Mcp-Name": "t"}),
        ("tools/call", frame(name="t", arguments=[]), {"Mcp-Name": "t"}),
        ("tools/call", frame(), {}),
        ("tools/call", frame(name=5), {}),
        ("tools/call", b"{", {}),
        ("prompts/get", frame(name="t", arguments={"region": "eu"}), {"Mcp-Name": "t"}),
        ("resources/read", frame(uri="file:///t", name="n"), {"Mcp-Name": "file:///t"}),
        ("tasks/get", frame(taskId="1"), {"Mcp-Name": "1"}),
    ],
)
def test_headers_repeat_parts_of_the_message(method: str, data: bytes, more: dict[str, str] | None) -> None:
    headers = ParameterHeaders(VERSION)
    assert headers.admit_tool("t", tool(REGION)) is None
    version = {"MCP-Protocol-Version": VERSION}
    expected = version if more is None else {**version, "Mcp-Method": method, **more}
    assert headers.headers(method, data) == expected


@pytest.mark.parametrize(
    ("definition", "reason", "is_repeated"),
    [
        (tool(REGION), None, True),
        (tool(REGION).replace(b"x-mcp", rb"\u0078-mcp"), None, True),
        (tool({"type": "object"}), None, False),
        (tool(["x-mcp-header"]), None, False),
        (b'["x-mcp-header"]', None, False),
        (b'{"x-mcp-header"', "truncated", False),
        (tool({**REGION, "x-mcp-header": "All"}), "is not at a named argument", False),
    ],
)
def test_tool_is_admitted_unless_its_annotations_are_invalid(
    definition: bytes, reason: str | None, is_repeated: bool
) -> None:
    """What was known about an earlier tool of this name is forgotten."""
    headers = ParameterHeaders(VERSION)
    headers.admit_tool("t", tool(REGION))
    found = headers.admit_tool("t", definition)
    assert found is None if reason is None else found is not None and reason in found
    given = headers.headers("tools/call", frame(name="t", arguments={"region": "eu"}))
    assert ("Mcp-Param-Region" in given) is is_repeated


async def refresh(feature: str) -> None:
    await trio.lowlevel.checkpoint()


@pytest.mark.parametrize(
    ("method", "code", "can_refresh", "is_retried"),
    [
        ("tools/call", modern.HEADER_MISMATCH, True, True),
        ("tools/call", modern.HEADER_MISMATCH, False, False),
        ("tools/call", modern.MISSING_CAPABILITY, True, False),
        ("prompts/get", modern.HEADER_MISMATCH, True, False),
    ],
)
def test_only_a_tool_call_with_mismatching_headers_is_retried(
    method: str, code: int, can_refresh: bool, is_retried: bool
) -> None:
    dialect = modern.dialect(VERSION, refresh_list=refresh if can_refresh else None)
    error = Message(error=Raw(json.dumps({"code": code, "message": "no"}).encode()))
    assert (dialect.retry_after_refusal(method, error) is not None) is is_retried


async def test_discovery_is_not_counted_and_its_cancellation_is_not_sent() -> None:
    """A legacy server would not understand it."""
    async with connected() as peer, trio.open_nursery() as nursery:
        nursery.start_soon(modern.discover, peer.link)
        with trio.fail_after(PATIENCE):
            await peer.hear("server/discover")
            assert peer.link.requests.in_flight == 0
            nursery.cancel_scope.cancel()
    # the link has ended with the peer, and nothing else was sent
    assert peer.methods == ["server/discover"]

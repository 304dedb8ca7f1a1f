"""The result of a tool call, as Python values."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import attrs
import msgspec


class ContentBlock(dict[str, Any]):
    """An MCP content block: a dict with the members that the server sent.

    `bytes(block)` returns it as JSON, as programs expect that were written for earlier versions.
    """

    def __bytes__(self) -> bytes:
        return msgspec.json.encode(self)


@attrs.frozen(kw_only=True)
class ToolResult:
    """The result of a tool call. `output` contains all text, separated by newlines, and placeholders for
    other content."""

    success: bool
    output: str = ""
    data: Any = None
    """The `structuredContent` from the server."""
    error: str | None = None
    """The error text if the tool reported an error (`isError`)."""
    content: tuple[ContentBlock, ...] = ()
    """The content blocks that are not text, such as images, whose `data` is encoded in base64."""
    warnings: tuple[str, ...] = ()


def tool_result(answer: Mapping[str, Any]) -> ToolResult:
    """Return the result of `mcpd/call`."""
    return ToolResult(
        success=answer["success"],
        output=answer.get("output", ""),
        data=answer.get("data"),
        error=answer.get("error"),
        content=tuple(map(ContentBlock, answer.get("content", ()))),
        warnings=tuple(answer.get("warnings", ())),
    )

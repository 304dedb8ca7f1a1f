"""What the calls to one server came to, by tool: counted where the answers come in."""

from __future__ import annotations

from collections.abc import Mapping

import msgspec
from msgspec import Raw

from mcpd.support.histogram import FOLD_AT, Histogram, merge
from mcpd.wire.message import ABSENT, Message

MAX_TOOLS = 500
"""Names come from clients: what is called beyond so many is counted together, as `OTHERS`."""
OTHERS, NAMELESS = "(others)", "?"
_MAX_NAME = 200
_IS_ERROR = b'"isError"'
_F = ord("f")
"""Of `"isError":false`, which some SDKs write each time."""
_END = 256
"""Bytes at either end of a result in which `isError` is looked for: that is where all SDKs put it."""


class ToolCallStats:
    """One tool's calls that have ended. `times` are those of answers, errors among them."""

    __slots__ = ("cancelled", "errors", "lost", "times")

    def __init__(self) -> None:
        self.times = Histogram()
        self.errors = 0
        """The tool said that it failed, or the server refused."""
        self.lost = 0
        """Not answered: timed out, or the connection ended."""
        self.cancelled = 0

    @property
    def calls(self) -> int:
        return self.times.count + self.lost + self.cancelled

    def add_response(self, seconds: float, message: Message, line: bytes) -> None:
        """`line` is the message as it came."""
        fresh = self.times.pending
        fresh.append(seconds)
        if len(fresh) >= FOLD_AT:
            self.times.fold()
        if message.error is not ABSENT:
            self.errors += 1
            return
        at = line.find(_IS_ERROR, -_END)
        if at < 0 and len(line) > _END:
            at = line.find(_IS_ERROR, 0, _END)
        if at >= 0 and line[at + 10] != _F and is_error_result(message.result):
            self.errors += 1


class CallStats:
    """A server's own keeps it over all its connections."""

    def __init__(self) -> None:
        self._tools: dict[str, ToolCallStats] = {}
        self._by_prefix: dict[bytes, ToolCallStats] = {}
        """By what stands in params before the quote that ends the name, where the name comes first."""

    def for_params(self, params: bytes) -> ToolCallStats:
        """Where a `tools/call` with these params is counted."""
        beginning = params[: params.find(b'"', 9)]
        return self._by_prefix.get(beginning) or self._new(beginning, params)

    def by_tool(self) -> Mapping[str, ToolCallStats]:
        """By the tool's name."""
        return self._tools

    def total(self) -> ToolCallStats:
        """All tools together."""
        whole, counts = ToolCallStats(), list(self._tools.values())
        whole.times = merge(count.times for count in counts)
        whole.errors = sum(count.errors for count in counts)
        whole.lost = sum(count.lost for count in counts)
        whole.cancelled = sum(count.cancelled for count in counts)
        return whole

    def _new(self, beginning: bytes, params: bytes) -> ToolCallStats:
        tool = tool_name_in(params)
        if len(self._tools) >= MAX_TOOLS and tool not in self._tools:
            return self._tools.setdefault(OTHERS, ToolCallStats())
        count = self._tools.setdefault(tool, ToolCallStats())
        if beginning == b'{"name":"%b' % tool.encode() and "\\" not in tool:
            self._by_prefix[beginning] = count
        return count


class _ToolParams(msgspec.Struct):
    name: str


_decode = msgspec.json.Decoder(_ToolParams).decode
_members = msgspec.json.Decoder(dict[str, Raw]).decode


def tool_name_in(params: bytes) -> str:
    """The tool that a `tools/call` names; `?` for none."""
    try:
        return _decode(params).name[:_MAX_NAME] or NAMELESS
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError):
        return NAMELESS


def is_error_result(result: Raw) -> bool:
    """Whether a tool's result has `isError` itself, and not something inside it."""
    text = bytes(result)
    try:
        return bytes(_members(text).get("isError", b"")) == b"true"
    except (msgspec.MsgspecError, RecursionError):
        return False

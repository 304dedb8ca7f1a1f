"""Call statistics of one server, by tool, recorded when responses arrive."""

from __future__ import annotations

from collections.abc import Mapping

import msgspec
from msgspec import Raw

from mcpd.support.histogram import FOLD_AT, Histogram, merge
from mcpd.wire.message import ABSENT, Message

MAX_TOOLS = 500
"""Tool names come from clients; calls of further names are counted together as `OTHERS`."""
OTHERS, NAMELESS = "(others)", "?"
_MAX_NAME = 200
_IS_ERROR = b'"isError"'
_F = ord("f")
"""As in `"isError":false`, which some SDKs always write."""
_END = 256
"""Bytes at either end of a result in which `isError` is searched for; all SDKs put it there."""


class ToolCallStats:
    """The finished calls of one tool. `times` includes the responses that are errors."""

    __slots__ = ("cancelled", "errors", "lost", "times")

    def __init__(self) -> None:
        self.times = Histogram()
        self.errors = 0
        """The tool reported a failure, or the server refused the call."""
        self.lost = 0
        """No response: timed out, or the connection ended."""
        self.cancelled = 0

    @property
    def calls(self) -> int:
        return self.times.count + self.lost + self.cancelled

    def add_response(self, seconds: float, message: Message, line: bytes) -> None:
        """Count a response; `line` is the message as received."""
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
    """The statistics of one server, kept across its connections."""

    def __init__(self) -> None:
        self._tools: dict[str, ToolCallStats] = {}
        self._by_prefix: dict[bytes, ToolCallStats] = {}
        """By the bytes of params before the closing quote of the name, if the name is the first member."""

    def for_params(self, params: bytes) -> ToolCallStats:
        """Return the statistics of the tool that these `tools/call` params name."""
        beginning = params[: params.find(b'"', 9)]
        return self._by_prefix.get(beginning) or self._new(beginning, params)

    def by_tool(self) -> Mapping[str, ToolCallStats]:
        """Return the statistics by tool name."""
        return self._tools

    def total(self) -> ToolCallStats:
        """Return the sum over all tools."""
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
    """Return the tool name in the params of a `tools/call`; `?` if there is none."""
    try:
        return _decode(params).name[:_MAX_NAME] or NAMELESS
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError):
        return NAMELESS


def is_error_result(result: Raw) -> bool:
    """Return whether the result itself has a true `isError`, as opposed to something nested in it."""
    text = bytes(result)
    try:
        return bytes(_members(text).get("isError", b"")) == b"true"
    except (msgspec.MsgspecError, RecursionError):
        return False

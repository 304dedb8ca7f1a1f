"""Finds messages in output that has other text in the same line, or one message in several lines.

A progress bar or an escape sequence without a newline often comes before a response, on the same line. Some
servers print their messages with indentation.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator

from mcpd.wire import message as wire
from mcpd.wire.limits import is_response
from mcpd.wire.message import BadFrame

MESSAGE_START = re.compile(rb'\{\s*"(?:jsonrpc|id|method|params|result|error)"\s*:')
_MAX_STARTS = 4
"""Places in a line where a message is looked for: each may cost as much time as parsing the line."""
_MAX_SEVERAL = 1 << 16
"""Bytes of the longest line in which several messages are looked for."""
_MAX_SIZE = 4 << 20
"""Bytes of the longest line that is searched, which takes 40 ms, and of the longest indented message."""
_SENT_BY_SERVERS = ("notifications/", "elicitation/", "sampling/", "roots/")
_decode_first = json.JSONDecoder().raw_decode


def find_messages(line: bytes) -> Iterator[bytes]:
    """Yield the messages of a server in a line that is not one message.

    A request that only clients send is left out: the server has logged what it received.
    """
    start, end = MESSAGE_START.search(line), line.rfind(b"}") + 1
    if start is None or len(line) > _MAX_SIZE:
        return
    if _is_from_server(whole := line[start.start() : end]):
        yield whole
    elif len(line) <= _MAX_SEVERAL:
        yield from filter(_is_from_server, _objects(line))


def _objects(line: bytes) -> Iterator[bytes]:
    text, position = line.decode("latin-1"), 0  # so that positions are those of the bytes
    for _ in range(_MAX_STARTS):
        start = MESSAGE_START.search(line, position)
        if start is None:
            return
        position = start.end()
        try:
            _, position = _decode_first(text, start.start())
        except (ValueError, RecursionError):
            continue
        yield line[start.start() : position]


def _is_from_server(text: bytes) -> bool:
    try:
        message = wire.parse(text)
    except BadFrame:
        return False
    return message.method.startswith(_SENT_BY_SERVERS) if message.method else is_response(message)


class IndentedMessage:
    """Joins the lines of a message that is printed with indentation: from a line `{` to a line `}`."""

    def __init__(self) -> None:
        self._text = bytearray()

    def add(self, line: bytes) -> bytes:
        """Take a line that is no message. Return the message that it completes; empty if there is none."""
        line = line.rstrip()
        if line == b"{":
            self._text[:] = line
        elif self._text:
            self._text += b" " + line
            if line == b"}":
                whole = bytes(self._text)
                self._text.clear()
                return whole
            if len(self._text) > _MAX_SIZE:
                self._text.clear()
        return b""

    @property
    def has_begun(self) -> bool:
        return bool(self._text)

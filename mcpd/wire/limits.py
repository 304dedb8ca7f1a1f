"""Messages that exceed a limit while they arrive: of structure, and what is known of those that are dropped.

A peer may send a message that exceeds a limit. It is dropped while it arrives, so that the connection and its
other messages are not affected. Who sent or awaits the message must still learn that it was dropped.

Reading past a number, a bracket or a space takes up to 3.5 ns per byte, three to ten times as long as in a
string, and each message is read several times. So 32 MiB of text cost little, but 32 MiB of small values
would stop the event loop for a tenth of a second each time.
"""

from __future__ import annotations

import re

import msgspec

from mcpd.wire.message import ABSENT, DECODE_ERRORS, Message, decode_envelope

SHARE = 4
"""Structure may take up at most this fraction (a quarter) of the maximum size of a message."""
COUNTED_FROM = 1 << 20
"""Only messages of more than this many bytes are counted; shorter ones cannot cost much."""
_DENSE = 4
"""Where quotes are fewer than this many bytes apart on average, everything counts."""


class TooMuchStructure(ValueError):
    """A message exceeds the limit; the text names the limit and its value."""

    def __init__(self, limit: int) -> None:
        super().__init__(
            f"more than {limit} bytes outside of strings, such as numbers and brackets (a quarter of the "
            "maximum size of a message)"
        )


class StructureCounter:
    """Counts the bytes of one JSON text that are outside of strings, without checking its syntax.

    Takes 1 ms per MiB of long strings, up to 10 ms per MiB otherwise.
    """

    def __init__(self, max_size: int) -> None:
        """`max_size`: bytes of the longest message."""
        self._limit = max(max_size // SHARE, COUNTED_FROM)
        self._count = 0
        self._is_inside = False
        self._is_escaped = False

    def feed(self, portion: bytes | bytearray) -> None:
        """Count the next portion of the text. Raises TooMuchStructure."""
        if not portion:
            return
        if self._is_escaped:
            portion = portion[1:]
            self._is_escaped = False
        if b"\\" in portion:
            portion = portion.replace(b"\\\\", b"").replace(b'\\"', b"")
            self._is_escaped = portion.endswith(b"\\")
        quotes = portion.count(b'"')
        if quotes * _DENSE > len(portion):
            self._count += len(portion)
        elif quotes or not self._is_inside:
            self._count += sum(map(len, portion.split(b'"')[self._is_inside :: 2]))
        self._is_inside ^= quotes % 2 == 1
        if self._count > self._limit:
            raise TooMuchStructure(self._limit)


_KEPT = 1024
"""Bytes of the beginning and of the end that are kept."""
_MIN_LONGEST = 128 * 1024 * 1024


def longest_dropped(limit: int) -> int:
    """Return the bytes of a server's message after which its end is not waited for any more.

    `limit`: bytes of the longest message that is kept.
    """
    return max(4 * limit, _MIN_LONGEST)


_NAME = rb'"([A-Za-z]{1,20})"\s*+:'
_SCALAR = rb'(?:"[^"\\]*+(?:\\.[^"\\]*+)*"|-?[0-9][0-9.eE+-]*+|true|false|null)'
_MEMBER = rb'"[A-Za-z]{1,20}"\s*+:\s*+' + _SCALAR + rb"\s*+"
_IS_SHORT = rb"\s*+" + _SCALAR + rb"\s*+,"
_BEGINNING = re.compile(
    rb"\s*+(\{(?:\s*+" + _MEMBER + rb",)*\s*+" + _NAME + rb")(?!" + _IS_SHORT + rb")", re.DOTALL
)
"""The members before the long one, and its name. No quantifier of a group is possessive in this package and
in `config`: Python 3.11.0 to 3.11.3 do not match such expressions."""
_END = re.compile(rb"(?:,\s*+" + _MEMBER + rb"){0,4}\}\s*+\Z", re.DOTALL)
"""The members after the long one. A comma followed by a name and a colon is never inside of a string."""
_BOM = b"\xef\xbb\xbf"


class DroppedMessage(msgspec.Struct):
    """A message that exceeds a limit. `reason` describes the limit: `more than 1024 bytes`."""

    reason: str
    start: bytes = b""
    """The first bytes of the message."""
    end: bytes = b""
    """The last bytes that have been read."""
    size: int = 0
    """The number of bytes that have been read."""

    def add(self, portion: bytes) -> None:
        """Take what follows."""
        if len(self.start) < _KEPT:
            self.start = (self.start + portion[:_KEPT])[:_KEPT]
        self.end = (self.end + portion[-_KEPT:])[-_KEPT:]
        self.size += len(portion)

    def envelope(self) -> Message | None:
        """Return the envelope, in which `null` replaces the first value that is an array, an object or long.

        Members next to that value may be missing if they are long too. Returns None if the message does not
        begin like an envelope. Use the envelope only to report that the message was dropped: the peer may
        have sent anything in between.
        """
        beginning = _BEGINNING.match(self.start.removeprefix(_BOM))
        if beginning is None or beginning[2] in (b"id", b"method"):
            return None
        end = _END.search(self.end)
        try:
            return decode_envelope(beginning[1] + b"null" + (b"}" if end is None else end[0]))
        except DECODE_ERRORS:
            return None

    def request_id(self) -> bytes:
        """Return the id if this seems to be a request; empty for any other message, or an unusable id."""
        message = self.envelope()
        if message is None or is_response(message) or message.key in (b"null", b"true", b"false"):
            return b""
        return message.key


def is_response(message: Message) -> bool:
    return not message.method and (message.result is not ABSENT or message.error is not ABSENT)

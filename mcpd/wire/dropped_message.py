"""Messages that are too large to be kept: their beginning and end, from which most envelopes can be read.

A peer may send a message that exceeds a limit. It is dropped while it arrives, so that the connection and its
other messages are not affected. Who sent or awaits the message must still learn that it was dropped.
"""

from __future__ import annotations

import re

import msgspec

from mcpd.wire.message import ABSENT, DECODE_ERRORS, Message, decode_envelope

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

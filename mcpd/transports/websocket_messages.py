"""The WebSocket protocol of a client, with whole messages only, and without those that are too long.

trio-websocket closes the connection when a message exceeds its limit, and with it all other calls.
"""

from __future__ import annotations

from collections.abc import Generator

from wsproto import ConnectionType, WSConnection
from wsproto.events import BytesMessage, Event, TextMessage

from mcpd.support.websocket import GuardedStream
from mcpd.wire.dropped_message import DroppedMessage, longest_dropped


class WholeMessages(WSConnection):
    """Joins the fragments of each message. A message over `limit` bytes is dropped while it arrives.

    An empty message takes its place, and what is known of it is added to `dropped`, which the caller empties.
    """

    def __init__(self, limit: int, stream: GuardedStream) -> None:
        """`stream`: where the fragments come from. It bounds the bytes without a complete message."""
        super().__init__(ConnectionType.CLIENT)
        self.dropped: list[DroppedMessage] = []
        self._limit = limit
        self._stream = stream
        self._parts: list[bytes] = []
        self._size = 0
        """Bytes of the open message."""
        self._dropping: DroppedMessage | None = None

    def events(self) -> Generator[Event, None, None]:
        """Return the pending events. Raises wsproto's RemoteProtocolError."""
        for event in super().events():
            if not isinstance(event, (TextMessage, BytesMessage)):
                yield event
            elif (message := self._take(event)) is not None:
                yield message

    def _take(self, fragment: TextMessage | BytesMessage) -> BytesMessage | None:
        """Take a fragment; return the message that it completes."""
        data = fragment.data.encode() if isinstance(fragment, TextMessage) else bytes(fragment.data)
        self._size += len(data)
        if self._dropping is None and self._size > self._limit:
            self._dropping = DroppedMessage(f"more than {self._limit} bytes")
            self._dropping.add(b"".join(self._parts))
            self._parts.clear()
            self._stream.longest_message = longest_dropped(self._limit)
        if self._dropping is not None:
            self._dropping.add(data)
        elif data:
            self._parts.append(data)
        return self._finish_message() if fragment.message_finished else None

    def _finish_message(self) -> BytesMessage:
        whole = b"".join(self._parts)  # not a copy of a single fragment
        if self._dropping is not None:
            self.dropped.append(self._dropping)
            self._dropping = None
            self._stream.longest_message = self._limit
        self._parts.clear()
        self._size = 0
        self._stream.message_received()
        return BytesMessage(data=whole)

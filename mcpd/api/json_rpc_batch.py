"""JSON-RPC batches, which only revision 2025-03-26 has: the responses are sent as one array."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from mcpd.wire import message as wire
from mcpd.wire.message import ABSENT, BadFrame, Message, TooLarge

MAX_MESSAGES = 100
"""Messages in one batch."""


class BatchReply:
    """The `Responder` of all requests of one batch."""

    def __init__(self, requests: int, send: Callable[[bytes], None]) -> None:
        self._remaining = requests
        self._send = send
        self._responses: list[bytes] = []

    def send(self, frame: bytes) -> None:
        self._send(frame)

    def finish(self, frame: bytes, code: int = 0) -> None:
        self._responses.append(frame.rstrip(b"\n"))
        self.drop()

    def drop(self) -> None:
        self._remaining -= 1
        if not self._remaining and self._responses:
            self._send(b"[%b]\n" % b",".join(self._responses))


def parse_batch(line: bytes) -> Sequence[Message]:
    """Parse a JSON array of messages. Raises BadFrame if it is invalid, empty or too long.

    The messages are counted before the first one is parsed.
    """
    try:
        parts = wire.split_batch(line, MAX_MESSAGES)
    except TooLarge:
        parts = []
    if not parts:
        raise BadFrame(f"a batch must have 1 to {MAX_MESSAGES} messages")
    return [wire.parse(part) for part in parts]


def is_request(message: Message) -> bool:
    """Return whether a message needs a response."""
    return bool(message.method) and message.id is not ABSENT


def count_requests(messages: Sequence[Message]) -> int:
    return sum(map(is_request, messages))

"""One event stream, heard to its end: what it says about itself, and whether it has fallen silent."""

from __future__ import annotations

import math
from collections.abc import Callable

import attrs
import httpx
import trio

from mcpd.support.outbox import batch
from mcpd.transports.http_client import bodies
from mcpd.transports.http_client.connection_errors import describe_error
from mcpd.wire.event_stream import SseDecoder, SseEvent

SILENCE = 90.0
"""A stream that has sent keep-alive comments, and is silent for so long, is dead."""
RESUME_AFTER = 1.0
"""Seconds before a stream is asked for again, where the server does not say."""
_MIN_RETRY, _MAX_RETRY = 0.1, 60.0
"""What a server may say instead."""


@attrs.define(eq=False)
class StreamState:
    """What one stream, over all its resumptions, has said about itself."""

    last_id: str | None = None
    retry: float = RESUME_AFTER
    events: int = 0
    keeps_alive: bool = False

    def record(self, event: SseEvent) -> None:
        self.events += 1
        self.last_id = event.id if event.id is not None else self.last_id
        if event.retry is not None:
            seconds = min(event.retry / 1000, _MAX_RETRY)
            self.retry = seconds if seconds >= _MIN_RETRY else RESUME_AFTER


async def read_events(
    response: httpx.Response, heard: StreamState, limit: int, take: Callable[[SseEvent], None]
) -> str:
    """Give `take` every event of a response until it ends; why it did. `limit` bounds an event's data.

    Raises EventTooLong, ProtocolViolation, and what `take` raises.
    """
    decoder = SseDecoder(limit)
    with trio.CancelScope() as silence:

        def feed(part: bytes) -> None:
            with batch():
                for event in decoder.feed(part):
                    heard.record(event)
                    take(event)
            heard.keeps_alive = heard.keeps_alive or _has_comment(part)
            if heard.keeps_alive:
                silence.deadline = trio.current_time() + SILENCE

        try:
            await bodies.feed_body(response, feed, math.inf)
        except httpx.TransportError as error:
            return describe_error(error)
    if silence.cancelled_caught:
        return f"its event stream was silent for {SILENCE:g} s"
    return "its event stream ended"


def _has_comment(part: bytes) -> bool:
    """Whether a portion of a stream has a comment, which servers send to keep the stream alive."""
    return part.startswith(b":") or b"\n:" in part or b"\r:" in part

"""What a legacy client has been asked and has not answered."""

from __future__ import annotations

import itertools
from collections.abc import Callable

import msgspec
from msgspec import Raw

from mcpd.gateway.responder import Responder
from mcpd.wire import message as wire
from mcpd.wire.message import Message

ResponseCallback = Callable[[Message | None], None]
"""Called with a client's response to a question, or None when there will be none."""


class ClientRequests:
    """Of one client; `tell` sends it a frame that belongs to no request."""

    def __init__(self, send: Callable[[bytes], None]) -> None:
        self._send = send
        self._pending: dict[bytes, ResponseCallback] = {}
        self._ids = itertools.count(1)
        self._is_closed = False

    def __len__(self) -> int:
        return len(self._pending)

    def send_request(
        self, method: str, params: bytes, reply: Responder | None, on_response: ResponseCallback
    ) -> bytes:
        """Ask something, on the line of the request it belongs to; the question's id.

        `answered` is called exactly once, unless `withdraw` came first.
        """
        key = b"%d" % next(self._ids)
        if self._is_closed:
            on_response(None)
            return key
        self._pending[key] = on_response
        (self._send if reply is None else reply.send)(wire.request(key, method, params))
        return key

    def cancel(self, key: bytes, reason: str) -> None:
        """Nobody wants to know any more."""
        if self._pending.pop(key, None) is not None:
            body = msgspec.json.encode({"requestId": Raw(key), "reason": reason})
            self._send(wire.notification("notifications/cancelled", body))

    def handle_response(self, response: Message) -> None:
        """Ignored where nothing was asked, or nobody wants to know any more."""
        answered = self._pending.pop(bytes(response.id), None)
        if answered is not None:
            answered(response)

    def close(self) -> None:
        """The client is gone."""
        self._is_closed = True
        questions, self._pending = list(self._pending.values()), {}
        for answered in questions:
            answered(None)

"""Requests of servers and of mcpd to one client, until it has responded."""

from __future__ import annotations

import itertools
from collections.abc import Callable

import msgspec
import trio
from msgspec import Raw

from mcpd.calls.call import ResponseCallback
from mcpd.calls.client_context import Responder
from mcpd.wire import message as wire
from mcpd.wire.message import Message


class ClientRequests:
    """Unanswered requests to one client. `send` sends it a frame outside of any request."""

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
        """Send a request to the client and return its id. `reply` is the client's request that it belongs
        to.

        `on_response` is called exactly once, unless `cancel` comes first.
        """
        key = b"%d" % next(self._ids)
        if self._is_closed:
            on_response(None)
            return key
        self._pending[key] = on_response
        (self._send if reply is None else reply.send)(wire.request(key, method, params))
        return key

    async def request(self, method: str, params: bytes, reply: Responder, timeout: float) -> Message | None:
        """Send a request and return the response; None if there is none within `timeout` seconds."""
        responses: list[Message | None] = []
        done = trio.Event()

        def on_response(response: Message | None) -> None:
            responses.append(response)
            done.set()

        key = self.send_request(method, params, reply, on_response)
        reason = "its call has ended"
        try:
            with trio.move_on_after(timeout) as patience:
                await done.wait()
            if patience.cancelled_caught:
                reason = f"no answer within {timeout:g} s"
        finally:
            if not done.is_set():
                self.cancel(key, reason)
        return responses[0] if responses else None

    def cancel(self, key: bytes, reason: str) -> None:
        """Cancel a request; its response will be ignored."""
        if self._pending.pop(key, None) is not None:
            body = msgspec.json.encode({"requestId": Raw(key), "reason": reason})
            self._send(wire.notification("notifications/cancelled", body))

    def handle_response(self, response: Message) -> None:
        """Handle a response. Responses to unknown or cancelled requests are ignored."""
        answered = self._pending.pop(bytes(response.id), None)
        if answered is not None:
            answered(response)

    def close(self) -> None:
        """The client has disconnected: end all requests with None."""
        self._is_closed = True
        questions, self._pending = list(self._pending.values()), {}
        for answered in questions:
            answered(None)

"""What a legacy client has been asked and has not answered."""

from __future__ import annotations

import itertools
from collections.abc import Callable

import msgspec
from msgspec import Raw

from mcpd.gateway.responder import Reply
from mcpd.wire import message as wire
from mcpd.wire.message import Message

Answered = Callable[[Message | None], None]
"""Called with a client's response to a question, or None when there will be none."""


class Outstanding:
    """Of one client; `tell` sends it a frame that belongs to no request."""

    def __init__(self, tell: Callable[[bytes], None]) -> None:
        self._tell = tell
        self._questions: dict[bytes, Answered] = {}
        self._ids = itertools.count(1)
        self._is_over = False

    def __len__(self) -> int:
        return len(self._questions)

    def ask(self, method: str, params: bytes, reply: Reply | None, answered: Answered) -> bytes:
        """Ask something, on the line of the request it belongs to; the question's id.

        `answered` is called exactly once, unless `withdraw` came first.
        """
        key = b"%d" % next(self._ids)
        if self._is_over:
            answered(None)
            return key
        self._questions[key] = answered
        (self._tell if reply is None else reply.note)(wire.request(key, method, params))
        return key

    def withdraw(self, key: bytes, reason: str) -> None:
        """Nobody wants to know any more."""
        if self._questions.pop(key, None) is not None:
            body = msgspec.json.encode({"requestId": Raw(key), "reason": reason})
            self._tell(wire.notification("notifications/cancelled", body))

    def answered(self, response: Message) -> None:
        """Ignored where nothing was asked, or nobody wants to know any more."""
        answered = self._questions.pop(bytes(response.id), None)
        if answered is not None:
            answered(response)

    def close(self) -> None:
        """The client is gone."""
        self._is_over = True
        questions, self._questions = list(self._questions.values()), {}
        for answered in questions:
            answered(None)

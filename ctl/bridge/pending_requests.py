"""Requests that wait for an answer: the editor's (with deadlines, limits and batches) and the daemon's."""

from __future__ import annotations

import math

import msgspec
from msgspec import Raw

from ctl.bridge import error_replies, resume
from mcpd.wire import message as wire
from mcpd.wire.message import ABSENT, Message

HANDSHAKE_TIMEOUT = 8.0
"""Seconds that `initialize` and `server/discover` wait for a daemon; editors give up after 10 or 30."""
DAEMON_RESPONSE_TIMEOUT = 4.0
"""Additional seconds for the daemon's response, which may itself wait ten seconds for a server."""
DAEMON_WAIT_TIMEOUT = 15.0
"""Seconds that any other request waits for a daemon before it is answered with an error."""
MAX_OPEN = 4096
"""Open requests. The daemon's limit is lower; this one bounds what waits while there is no daemon."""
MAX_UNSENT_BYTES = 8 * 1024 * 1024
"""Bytes of requests that wait for a daemon."""
MAX_KEPT_LINE = 16 * 1024
"""Bytes of a line that is kept while its call is in progress."""

HANDSHAKE_METHODS = frozenset((resume.INITIALIZE, resume.DISCOVER))
STATEFUL_METHODS = frozenset(
    (
        resume.INITIALIZE,
        resume.SET_LEVEL,
        resume.SUBSCRIBE,
        resume.UNSUBSCRIBE,
        resume.LISTEN,
    )
)
"""Requests whose responses change what a restarted daemon must be told."""
CALL_METHODS = frozenset(("tools/call", "prompts/get", "completion/complete"))
"""Requests that need no state of their own, which are nearly all."""
RETRYABLE_METHODS = STATEFUL_METHODS | {
    resume.DISCOVER,
    "tools/list",
    "prompts/list",
    "resources/list",
    "resources/templates/list",
    "resources/read",
}
"""Idempotent requests. Nothing else is sent again once it may have reached the daemon."""


class EditorRequest(msgspec.Struct, eq=False, gc=False):
    method: str
    line: bytes
    """Empty for a long call (MAX_KEPT_LINE) that was sent."""
    sent: bool
    retried: bool = False
    """Whether it was sent twice. A request that ends two daemons is not sent to a third."""
    subscription: resume.EditorSubscription | None = None
    """Set once the daemon has acknowledged a `subscriptions/listen`."""


class PendingEditorRequests:
    """All open requests. A request is unsent until the daemon gets it, and open until `remove`."""

    def __init__(self) -> None:
        self.open: dict[bytes, EditorRequest] = {}
        """By the bytes of their ids, in order of arrival."""
        self.deadlines: dict[bytes, float] = {}
        """When a request is answered with an error; not every request has a deadline."""
        self._unsent_bytes = 0

    @property
    def has_unsent(self) -> bool:
        """Return whether a request other than a subscription waits to be sent."""
        return any(not request.sent and request.subscription is None for request in self.open.values())

    @property
    def has_open(self) -> bool:
        """Return whether a request other than a subscription is unanswered."""
        return any(request.subscription is None for request in self.open.values())

    def has_method(self, method: str) -> bool:
        return any(request.method == method for request in self.open.values())

    def next_deadline(self) -> float:
        return min(self.deadlines.values(), default=math.inf)

    def overdue(self, now: float) -> list[bytes]:
        return [key for key, deadline in self.deadlines.items() if deadline <= now]

    def add(self, key: bytes, method: str, line: bytes, now: float, *, sent: bool) -> bool:
        """Add a request. Return False, and keep nothing, if that would exceed a limit."""
        if len(self.open) >= MAX_OPEN or (not sent and self._unsent_bytes + len(line) > MAX_UNSENT_BYTES):
            return False
        keep = not sent or method in RETRYABLE_METHODS or len(line) <= MAX_KEPT_LINE
        self.open[key] = EditorRequest(method, line if keep else b"", sent)
        if method in HANDSHAKE_METHODS:
            self.deadlines[key] = now + HANDSHAKE_TIMEOUT + (DAEMON_RESPONSE_TIMEOUT if sent else 0.0)
        elif not sent:
            self.deadlines[key] = now + DAEMON_WAIT_TIMEOUT
        if not sent:
            self._unsent_bytes += len(line)
        return True

    def remove(self, key: bytes) -> EditorRequest:
        request = self.open.pop(key)
        self.deadlines.pop(key, None)
        if not request.sent:
            self._unsent_bytes -= len(request.line)
        return request

    def requeue(self, key: bytes, line: bytes, now: float) -> None:
        """Send a request again, as `line`, within DAEMON_WAIT_TIMEOUT unless it is a subscription."""
        request = self.open[key]
        request.line = line
        self.mark_unsent(request)
        if request.subscription is None:
            self.deadlines.setdefault(key, now + DAEMON_WAIT_TIMEOUT)

    def mark_unsent(self, request: EditorRequest) -> None:
        request.sent = False
        self._unsent_bytes += len(request.line)

    def take_unsent(self) -> list[bytes]:
        """Return the lines of all unsent requests, which count as sent from now on."""
        lines = []
        for key, request in self.open.items():
            if not request.sent:
                request.sent = True
                if request.method in HANDSHAKE_METHODS:
                    self.deadlines[key] += DAEMON_RESPONSE_TIMEOUT
                else:
                    self.deadlines.pop(key, None)
                lines.append(request.line)
                if request.method not in RETRYABLE_METHODS and len(request.line) > MAX_KEPT_LINE:
                    request.line = b""
        self._unsent_bytes = 0
        return lines

    def limit_deadlines(self, latest: float) -> None:
        for key, deadline in self.deadlines.items():
            self.deadlines[key] = min(deadline, latest)


class ResponseBatches:
    """Collects the responses to requests that came in one array (MCP 2025-03-26 only) into one array."""

    def __init__(self) -> None:
        self._batches: dict[bytes, tuple[set[bytes], list[bytes]]] = {}
        """Id → the unanswered ids of its batch, and the responses so far."""

    def __bool__(self) -> bool:
        return bool(self._batches)

    def open_batch(self, keys: list[bytes]) -> None:
        self._batches.update(dict.fromkeys(keys, (set(keys), [])))

    def add_response(self, key: bytes, line: bytes) -> bytes | None:
        """Return the line to send: the response itself, a complete array, or None while some are missing."""
        if key not in self._batches:
            return line
        self._batches[key][1].append(line.rstrip())
        return self.remove_request(key)

    def remove_request(self, key: bytes) -> bytes | None:
        """Stop waiting for the response to `key`; return the array if that completes it."""
        unanswered, responses = self._batches.pop(key, (set[bytes](), []))
        unanswered.discard(key)
        return None if unanswered or not responses else b"[%b]\n" % b",".join(responses)


MAX_OPEN_SERVER_REQUESTS = 1000
"""Requests that an editor may leave unanswered."""
CANCELLED = "notifications/cancelled"


class ServerRequestRelay:
    """Gives each request an id of its own, so that a late response never reaches the next daemon."""

    def __init__(self) -> None:
        self._open: dict[bytes, bytes] = {}
        """The bridge's id → the daemon's id."""
        self._last_id = 0

    def forward(self, request: Message) -> bytes | None:
        """Return the line for the editor; None if the editor has left too many requests unanswered."""
        if len(self._open) >= MAX_OPEN_SERVER_REQUESTS:
            return None
        self._last_id += 1
        ours = b"%d" % self._last_id
        self._open[ours] = request.key
        return wire.request(ours, request.method, bytes(request.params))

    def translate_response(self, response: Message) -> bytes | None:
        """Return the line for the daemon; None if no request of the current daemon has this id."""
        theirs = self._open.pop(response.key.strip(b'"'), None)
        if theirs is None:
            return None
        if response.result is not ABSENT:
            return wire.result(theirs, response.result)
        if response.error is not ABSENT:
            return wire.error(theirs, response.error)
        message = "the client's response has neither a result nor an error"
        return error_replies.error(theirs, wire.INTERNAL_ERROR, message)

    def translate_cancellation(self, theirs: bytes, params: dict[str, Raw]) -> bytes | None:
        """Return the line that cancels the daemon's request at the editor; None if it is not open."""
        for ours, daemon_id in self._open.items():
            if daemon_id == theirs:
                del self._open[ours]
                return cancellation(ours, params)
        return None

    def cancel_all(self, reason: str) -> list[bytes]:
        """Return the lines that cancel all open requests at the editor, after the daemon has gone."""
        requests, self._open = self._open, {}
        return [cancellation(ours, {"reason": reason}) for ours in requests]


def cancellation(key: bytes, params: dict[str, Raw] | dict[str, str]) -> bytes:
    return wire.notification(CANCELLED, msgspec.json.encode({**params, "requestId": Raw(key)}))

"""One editor's session: which requests are open, and what a restarted daemon must be told.

Lines go in (`from_editor`, `from_daemon`) with the time of their arrival. Lines come out through the two
callables given at the start, with their newline. The link reports when it connects and disconnects. There is
no input or output here.
"""

from __future__ import annotations

import math
from collections.abc import Callable

from msgspec import Raw

from ctl.bridge import error_replies, resume
from ctl.bridge.error_replies import ErrorObject, is_valid_id
from ctl.bridge.pending_requests import (
    CALL_METHODS,
    CANCELLED,
    HANDSHAKE_METHODS,
    MAX_KEPT_LINE,
    MAX_OPEN,
    RETRYABLE_METHODS,
    STATEFUL_METHODS,
    EditorRequest,
    PendingEditorRequests,
    ResponseBatches,
    ServerRequestRelay,
    cancellation,
)
from ctl.bridge.resume import StateRestorer
from mcpd.wire import message as wire
from mcpd.wire.json_repair import repair_json
from mcpd.wire.message import ABSENT, BadFrame, Message, members_or_empty

SendLine = Callable[[bytes], None]

_CONTROL_API_PREFIXES = ("mcpd/", "rpc.")
"""Methods that the bridge refuses, so that a model cannot control the daemon."""
_PERMANENT_ERRORS = (wire.INVALID_REQUEST, wire.METHOD_NOT_FOUND, wire.INVALID_PARAMS)
"""Errors that a later attempt does not fix."""


class EditorSession:
    """Routes messages between the editor and the daemon while `connected`. Requests wait here until a daemon
    accepts them."""

    def __init__(self, to_editor: SendLine, to_daemon: SendLine, log: Callable[[str], None]) -> None:
        self._to_editor = to_editor
        self._to_daemon = to_daemon
        self._log = log
        self.connected = False
        self._accepts_requests = False
        """Whether it is connected, and the daemon has not refused a request because it stops."""
        self.down_reason: ErrorObject | str = "mcpd has not answered yet"
        """Why requests wait, for the error that answers them in the end."""
        self.pending = PendingEditorRequests()
        self._open, self._deadlines = self.pending.open, self.pending.deadlines
        """The same objects, because nearly every line is looked up in them."""
        self._abandoned: set[bytes] = set()
        """Requests that were answered with an error here; the daemon's late responses to them are dropped."""
        self._resume = StateRestorer(to_daemon, log)
        self._server_requests = ServerRequestRelay()
        self._batches = ResponseBatches()
        self._legacy: resume.LegacySession | None = None

    # ── for the loop ────────────────────────────────────────────────────────────────────────────

    @property
    def is_idle(self) -> bool:
        """Return whether it is connected and `tick` has nothing to do until the next message."""
        return self.connected and not self._deadlines and self._resume.retry_at == math.inf

    def next_at(self) -> float:
        return min(self._resume.retry_at, self.pending.next_deadline())

    def tick(self, now: float) -> None:
        """Fail overdue requests, and repeat what the daemon refused."""
        if self._deadlines:
            for key in self.pending.overdue(now):
                self._fail(key)
        if now >= self._resume.retry_at:
            self._resume.retry_at = math.inf
            if self._accepts_requests:
                self._repeat_refused()

    def fail_all(self) -> None:
        """Answer every open request with an error, before the bridge exits."""
        for key, request in list(self._open.items()):
            if request.subscription is None:
                self._fail(key)

    # ── from the editor ─────────────────────────────────────────────────────────────────────────

    def from_editor(self, line: bytes, now: float) -> None:
        try:
            message = wire.decode_envelope(line)
            if len(line) > wire.MAX_ID:
                wire.check_id(message)
        except wire.DECODE_ERRORS as problem:
            self._on_unreadable_line(line, now, problem)
            return
        # A short path for nearly all lines (see `BridgeLoop._poll_and_handle`).
        if self._accepts_requests and message.method in CALL_METHODS:
            key = bytes(message.id)
            if key.isdigit() and key not in self._open and len(self._open) < MAX_OPEN:
                kept = line if len(line) <= MAX_KEPT_LINE else b""
                self._open[key] = EditorRequest(message.method, kept, True)
                self._to_daemon(line)
                return
        self._dispatch(line, message, now)

    def _dispatch(self, line: bytes, message: Message, now: float) -> None:
        method, key = message.method, message.key
        if not method:
            if not key:
                self.reject(
                    b"null", "a message must have a `method`, or the `id` of a request that it answers"
                )
            elif (response := self._server_requests.translate_response(message)) is not None:
                self._to_daemon(response)
        elif not key or wire.is_null_notification(message):
            self._on_editor_notification(line, message)
        elif not is_valid_id(message.id):
            self.reject(b"null", "a request id must be a string or a number")
        elif key in self._open or key in self._resume:
            self.reject(key, "another open request has this id, so their responses could not be told apart")
        elif method.startswith(_CONTROL_API_PREFIXES):
            self._respond(key, error_replies.not_an_mcp_method(key, method))
        elif method == resume.PING and resume.RESERVED not in line:
            self._respond(key, wire.result(key, b"{}"))  # a legacy ping asks about this connection only
        else:
            self._forward_request(key, method, line, now)

    def reject(self, key: bytes, reason: str) -> None:
        """Answer a message that cannot be a valid request."""
        self._to_editor(error_replies.error(key, wire.INVALID_REQUEST, reason))

    def _forward_request(self, key: bytes, method: str, line: bytes, now: float) -> None:
        if not self.pending.add(key, method, line, now, sent=self._accepts_requests):
            self._respond(key, error_replies.too_many_requests(key, method))
            return
        if method in HANDSHAKE_METHODS:
            self._abandoned.discard(key)
        if self._accepts_requests:
            self._to_daemon(line)

    def _on_editor_notification(self, line: bytes, message: Message) -> None:
        if message.method == CANCELLED:
            key = bytes(members_or_empty(message.params).get("requestId", ABSENT))
            request = self._open.get(key)
            if request is not None and request.method == resume.INITIALIZE:
                return  # MCP: a client must not cancel `initialize`
            if request is not None:
                self.pending.remove(key)
                if (batch := self._batches.remove_request(key)) is not None:
                    self._to_editor(batch)
                if not request.sent:
                    return
        elif message.method == resume.INITIALIZED and self._legacy is not None:
            self._legacy.initialized = True
        if self.connected:  # a later daemon needs lasting state only, which `on_connected` restores
            self._to_daemon(line)

    def _on_unreadable_line(self, line: bytes, now: float, problem: Exception) -> None:
        text = line.strip()
        if (repaired := repair_json(text)) != text:
            self.from_editor(repaired + b"\n", now)
        elif text[:1] == b"[" and self._legacy is not None and self._legacy.allows_batches:
            self._on_batch(text, now)
        elif text:
            self._to_editor(error_replies.unreadable_line(line, problem))

    def _on_batch(self, line: bytes, now: float) -> None:
        part = line
        try:
            messages: list[tuple[bytes, Message]] = []
            for part in wire.split_batch(line):
                messages.append((part + b"\n", wire.decode_envelope(part)))
                wire.check_id(messages[-1][1])
        except (BadFrame, *wire.DECODE_ERRORS) as problem:
            self._to_editor(error_replies.unreadable_line(part, problem))
            return
        keys = [message.key for _, message in messages if message.method and is_valid_id(message.id)]
        if not messages or len(set(keys)) < len(keys) or any(key in self._open for key in keys):
            self.reject(b"null", "this batch is empty, or two requests have the same id")
            return
        self._batches.open_batch(keys)
        for part, message in messages:
            self._dispatch(part, message, now)

    # ── from the daemon ─────────────────────────────────────────────────────────────────────────

    def from_daemon(self, line: bytes, now: float) -> None:
        try:
            message = wire.decode_envelope(line)
        except wire.DECODE_ERRORS as problem:
            if line.strip():
                self._log(f"ignored an unreadable line from mcpd: {problem}")
            return
        key = bytes(message.id)
        if message.method:
            if key:
                self._on_daemon_request(message)
            else:
                self._on_daemon_notification(line, message, now)
            return
        request = self._open.get(key)
        if request is None:
            self._on_unmatched_response(line, message, now)
        elif message.error is not ABSENT and self._hold_refused(key, request, message.error, now):
            return
        elif request.method not in STATEFUL_METHODS or self._update_state(message, request, now):
            del self._open[key]
            if self._deadlines:
                self._deadlines.pop(key, None)
            if self._batches:
                self._respond(key, line)
            else:
                self._to_editor(line)

    def _hold_refused(self, key: bytes, request: EditorRequest, body: Raw, now: float) -> bool:
        """Keep a request for the next daemon if this one refused it because it stops: no server has seen it.
        Later requests wait too. Return whether it is kept."""
        if b'"stopping"' not in bytes(body):
            return False
        error = error_replies.parse_error(body)
        if bytes(members_or_empty(error.data).get("stopping", ABSENT)) != b"true":
            return False
        self._accepts_requests = False
        self.down_reason = "mcpd is stopping"
        if not request.line:
            return False
        self.pending.requeue(key, request.line, now)
        return True

    def _on_unmatched_response(self, line: bytes, message: Message, now: float) -> None:
        key = message.key
        if key in self._resume:
            notification = self._resume.on_response(key, message, now)
            if notification is not None:
                self._to_editor(notification)
        elif key in self._abandoned:
            self._abandoned.discard(key)
        else:
            self._to_editor(line)  # the response to a cancelled request, which the editor may ignore

    def _update_state(self, response: Message, request: EditorRequest, now: float) -> bool:
        """Return whether the editor gets the response. The bridge keeps subscriptions open on its own."""
        if request.subscription is not None:
            if not request.sent:
                return False
            if (
                response.error is not ABSENT
                and error_replies.parse_error(response.error).code in _PERMANENT_ERRORS
            ):
                return True
            self._on_subscription_ended(request, request.subscription, now)
            return False
        if response.result is not ABSENT:
            params = bytes(wire.decode_envelope(request.line).params)
            if request.method == resume.INITIALIZE:
                self._legacy = resume.LegacySession(params, bytes(response.result))
            elif self._legacy is not None:
                self._legacy.record(request.method, params)
        return True

    def _on_daemon_request(self, message: Message) -> None:
        line = self._server_requests.forward(message)
        if line is not None:
            self._to_editor(line)
        else:
            reason = "the client left too many requests unanswered"
            self._to_daemon(error_replies.error(message.key, wire.INTERNAL_ERROR, reason))

    def _on_daemon_notification(self, line: bytes, message: Message, now: float) -> None:
        if message.method == CANCELLED:
            params = members_or_empty(message.params)
            key = bytes(params.get("requestId", ABSENT))
            if (cancelled := self._server_requests.translate_cancellation(key, params)) is not None:
                self._to_editor(cancelled)
                return
            request = self._open.get(key)
            if request is not None and request.subscription is not None:
                if request.sent:
                    self._on_subscription_ended(request, request.subscription, now)
                return
        elif message.method == resume.ACKNOWLEDGED:
            key = resume.subscription_id(message.params)
            request = self._open.get(key)
            if request is not None and request.subscription is not None:
                for each in request.subscription.resume(key, message.params):
                    self._to_editor(each)
                if not request.subscription.is_complete:
                    self._resume.schedule_retry(now)
                return
            if request is not None:
                request.subscription = resume.EditorSubscription(message.params)
                self._deadlines.pop(key, None)
        self._to_editor(line)

    # ── the link ────────────────────────────────────────────────────────────────────────────────

    def on_connected(self) -> None:
        """Restore this editor's state on the daemon, then send what waits."""
        self.connected = self._accepts_requests = True
        self._abandoned.clear()
        self._resume.reset()
        session = self._legacy
        if session is not None and not self.pending.has_method(resume.INITIALIZE):
            # No need to wait for the responses: the daemon handles lines in order.
            self._resume.send(resume.INITIALIZE, session.params)
            if session.initialized:
                self._to_daemon(wire.notification(resume.INITIALIZED))
            for method, params in session.restore_requests():
                self._resume.send(method, params)
        for line in self.pending.take_unsent():
            self._to_daemon(line)
        if session is not None:
            for line in session.change_notifications():
                self._to_editor(line)

    def on_disconnected(self, reason: str, unwritten: list[bytes], now: float) -> None:
        """Keep the requests that may be sent to the next daemon; answer the others with an error.

        A request may be sent again if it is idempotent, or if its line is in `unwritten`: the daemon ignores
        a line without its newline. Any other request may have run.
        """
        self.connected = self._accepts_requests = False
        self.down_reason = reason
        self._resume.clear()
        self._abandoned.clear()
        # Requests only: a response to a server request may have the id of one of the editor's calls.
        safe = {message.key: line for line in unwritten if (message := wire.decode_envelope(line)).method}
        for key, request in list(self._open.items()):
            if request.subscription is not None:
                request.subscription.on_disconnected()
            if not request.sent:
                continue
            if key in safe:
                self.pending.requeue(key, safe[key], now)
            elif request.subscription is not None or (
                request.method in RETRYABLE_METHODS and not request.retried
            ):
                request.retried = True
                self.pending.requeue(key, request.line, now)
            else:
                self.pending.remove(key)
                self._respond(key, error_replies.connection_lost(key, request.method, reason))
        for line in self._server_requests.cancel_all(reason):
            self._to_editor(line)

    def daemon_unreachable(self, reason: ErrorObject | str, latest: float) -> None:
        """Stop waiting for a daemon: unsent requests fail at the time `latest` if not before."""
        self.down_reason = reason
        self.pending.limit_deadlines(latest)

    # ── restoring state ─────────────────────────────────────────────────────────────────────────

    def _on_subscription_ended(
        self, request: EditorRequest, subscription: resume.EditorSubscription, now: float
    ) -> None:
        """Open a subscription again that the daemon ended, as it does before it stops."""
        subscription.on_disconnected()
        self.pending.mark_unsent(request)
        self._resume.schedule_retry(now)

    def _repeat_refused(self) -> None:
        self._resume.retry_refused(self._legacy.restore_requests() if self._legacy is not None else [])
        for key, request in self._open.items():
            if request.sent and request.subscription is not None and not request.subscription.is_complete:
                if self._resume.is_exhausted:
                    continue
                self._to_daemon(cancellation(key, {"reason": "sent again"}))
                self.pending.mark_unsent(request)
        for line in self.pending.take_unsent():
            self._to_daemon(line)

    # ── one request ─────────────────────────────────────────────────────────────────────────────

    def _respond(self, key: bytes, line: bytes) -> None:
        if self._batches:
            batch = self._batches.add_response(key, line)
            if batch is None:
                return
            line = batch
        self._to_editor(line)

    def _fail(self, key: bytes) -> None:
        request = self.pending.remove(key)
        if not request.sent:
            self._respond(key, error_replies.daemon_unreachable(key, request.method, self.down_reason))
            return
        if len(self._abandoned) < MAX_OPEN:
            self._abandoned.add(key)
        self._respond(key, error_replies.response_timeout(key, request.method))

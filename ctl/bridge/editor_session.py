"""The books of one editor's conversation: what is under way, and what a new daemon has to be told.

Lines go in (`from_editor`, `from_daemon`) with the moment of their coming; lines come out through the two
callables given at the start, all of them with their newline. The link says when it is up and when it was
lost. No input or output here.
"""

from __future__ import annotations

import math
from collections.abc import Callable

from msgspec import Raw

from ctl.bridge import envelope, error_replies, legacy, modern
from ctl.bridge.batch import ResponseBatches
from ctl.bridge.envelope import ABSENT, Head, Malformed
from ctl.bridge.pending_requests import MAX_OPEN, PendingEditorRequests
from ctl.bridge.requests import (
    HANDSHAKE_METHODS,
    RETRYABLE_METHODS,
    STATEFUL_METHODS,
    UNTRACKED,
    EditorRequest,
)
from ctl.bridge.resume import StateRestorer
from ctl.bridge.server_requests import CANCELLED, ServerRequestRelay
from mcpd.support.json_repair import repair_json

SendLine = Callable[[bytes], None]

_CONTROL_API_PREFIXES = ("mcpd/", "rpc.")
"""The control API is the user's; what an editor's model writes has no business there."""
_PERMANENT_ERRORS = (envelope.INVALID_REQUEST, envelope.METHOD_NOT_FOUND, envelope.INVALID_PARAMS)
"""Errors that asking again later does not mend."""


class EditorSession:
    """`up` says whether the editor's messages may go to the daemon; else they wait here."""

    def __init__(self, to_editor: SendLine, to_daemon: SendLine, log: Callable[[str], None]) -> None:
        self._to_editor = to_editor
        self._to_daemon = to_daemon
        self._log = log
        self.connected = False
        self.down_reason: envelope.Error | str = "mcpd has not answered yet"
        """Why the editor's requests wait, for whoever has waited too long."""
        self._pending = PendingEditorRequests()
        self._open, self._deadlines = self._pending.open, self._pending.deadlines
        """The same: nearly every line is looked up in them."""
        self._abandoned: set[bytes] = set()
        """Answered by us: what this daemon says to them comes too late."""
        self._resume = StateRestorer(to_daemon, log)
        self._server_requests = ServerRequestRelay()
        self._batches = ResponseBatches()
        self._legacy: legacy.LegacySession | None = None

    # ── for the loop ────────────────────────────────────────────────────────────────────────────

    @property
    def has_unsent_requests(self) -> bool:
        """Whether the editor waits for a daemon."""
        return not self.connected and self._pending.has_unsent

    @property
    def has_open_requests(self) -> bool:
        """Whether answers are still to come, subscriptions apart."""
        return self._pending.has_open

    @property
    def is_idle(self) -> bool:
        """The link is up, and `tick` will have nothing to do unless something else happens."""
        return self.connected and not self._deadlines and self._resume.retry_at == math.inf

    def next_at(self) -> float:
        """When `tick` has something to do, by the loop's clock."""
        return min(self._resume.retry_at, self._pending.next_deadline())

    def tick(self, now: float) -> None:
        """Answer what has waited too long; ask again for what the daemon did not grant."""
        if self._deadlines:
            for key in self._pending.overdue(now):
                self._fail(key)
        if now >= self._resume.retry_at:
            self._resume.retry_at = math.inf
            if self.connected:
                self._retry_refused()

    def fail_all(self) -> None:
        """The end: nobody is left without an answer."""
        for key, request in list(self._open.items()):
            if request.subscription is None:
                self._fail(key)

    # ── from the editor ─────────────────────────────────────────────────────────────────────────

    def from_editor(self, line: bytes, now: float) -> None:
        try:
            head = envelope.read_head(line)
        except envelope.UNREADABLE as problem:
            self._on_unreadable_line(line, now, envelope.malformed(line, problem))
            return
        # What nearly all lines are, in as few steps as can be (see `Loop._turns`).
        if self.connected and (passed := UNTRACKED.get(head.method)) is not None:
            key = bytes(head.id)
            if key.isdigit() and key not in self._open and len(self._open) < MAX_OPEN:
                self._open[key] = passed
                self._to_daemon(line)
                return
        self._dispatch(line, head, now)

    def reject_long_line(self, limit: int) -> None:
        """The editor sent a line longer than the loop takes."""
        words = f"a message is longer than the limit of {limit} bytes, and was not read"
        self._to_editor(error_replies.invalid_request(b"null", words))

    def _dispatch(self, line: bytes, head: Head, now: float) -> None:
        method = head.method
        key = bytes(head.id)
        if not method:
            self._on_editor_response(line, key)
        elif not key:
            self._on_editor_notification(method, line)
        elif not envelope.is_id(head.id):
            self._to_editor(
                error_replies.invalid_request(b"null", "the id of a request is a string or a number")
            )
        elif key in self._open or key in self._resume:
            words = "a request with this id is under way: its answer could not be told from this one's"
            self._to_editor(error_replies.invalid_request(key, words))
        elif method.startswith(_CONTROL_API_PREFIXES):
            self._respond(key, error_replies.not_an_mcp_method(key, method))
        elif method == legacy.PING and modern.RESERVED not in line:
            self._respond(key, envelope.result(key, b"{}"))  # it asks for this hop, which is us
        else:
            self._forward_request(key, method, line, now)

    def _forward_request(self, key: bytes, method: str, line: bytes, now: float) -> None:
        if not self._pending.add(key, method, line, now, sent=self.connected):
            self._respond(key, error_replies.too_many_requests(key, method))
            return
        if method in HANDSHAKE_METHODS:
            self._abandoned.discard(key)
        if self.connected:
            self._to_daemon(line)

    def _on_editor_notification(self, method: str, line: bytes) -> None:
        if method == CANCELLED:
            key = bytes(envelope.members(envelope.message(line).params).get("requestId", ABSENT))
            request = self._open.get(key)
            if request is not None and request.method == legacy.INITIALIZE:
                return  # the specification: it must not be cancelled
            if request is not None:
                self._pending.remove(key)
                if (rest := self._batches.remove_request(key)) is not None:
                    self._to_editor(rest)
                if not request.sent:
                    return
        elif method == legacy.INITIALIZED and self._legacy is not None:
            self._legacy.initialized = True
        if self.connected:  # else there is nobody whom it concerns: a new daemon is told what lasts
            self._to_daemon(line)

    def _on_editor_response(self, line: bytes, key: bytes) -> None:
        if not key:
            words = "no `method`, and no `id` of a question that it would answer"
            self._to_editor(error_replies.invalid_request(b"null", words))
        elif (answer := self._server_requests.translate_response(line, key)) is not None:
            self._to_daemon(answer)

    def _on_unreadable_line(self, line: bytes, now: float, problem: Malformed) -> None:
        bare = line.strip()
        if (sound := repair_json(bare)) != bare:
            self.from_editor(sound + b"\n", now)
        elif bare[:1] == b"[" and self._legacy is not None and self._legacy.allows_batches:
            self._on_batch(bare, now)
        elif bare:
            self._to_editor(problem.answer)

    def _on_batch(self, line: bytes, now: float) -> None:
        try:
            lines = [each + b"\n" for each in envelope.batch(line)]
            heads = [envelope.head(each) for each in lines]
        except Malformed as problem:
            self._to_editor(problem.answer)
            return
        keys = [bytes(head.id) for head in heads if head.method and envelope.is_id(head.id)]
        if not heads or len(set(keys)) < len(keys) or any(key in self._open for key in keys):
            words = "an empty batch, or two requests with the same id"
            self._to_editor(error_replies.invalid_request(b"null", words))
            return
        self._batches.open_batch(keys)
        for each, head in zip(lines, heads, strict=True):
            self._dispatch(each, head, now)

    # ── from the daemon ─────────────────────────────────────────────────────────────────────────

    def from_daemon(self, line: bytes, now: float) -> None:
        try:
            head = envelope.read_head(line)
        except envelope.UNREADABLE as problem:
            if line.strip():
                self._log(f"the daemon sent a line that was left out: {envelope.malformed(line, problem)}")
            return
        method, key = head.method, bytes(head.id)
        if method:
            if key:
                self._on_daemon_request(line, method, key)
            else:
                self._on_daemon_notification(line, method, now)
            return
        request = self._open.get(key)
        if request is None:
            self._on_unmatched_response(line, key, now)
        elif request.method not in STATEFUL_METHODS or self._update_state(line, request, now):
            del self._open[key]
            if self._deadlines:
                self._deadlines.pop(key, None)
            if self._batches:
                self._respond(key, line)
            else:
                self._to_editor(line)

    def _on_unmatched_response(self, line: bytes, key: bytes, now: float) -> None:
        if key in self._resume:
            told = self._resume.on_response(key, envelope.message(line), now)
            if told is not None:
                self._to_editor(told)
        elif key in self._abandoned:
            self._abandoned.discard(key)
        else:
            self._to_editor(line)  # to what it cancelled; it knows what to do

    def _update_state(self, line: bytes, request: EditorRequest, now: float) -> bool:
        """Whether the answer is for the editor. Only subscriptions are kept open without its knowledge."""
        answer = envelope.message(line)
        if request.subscription is not None:
            if not request.sent:
                return False
            if answer.error is not ABSENT and envelope.error_of(answer.error).code in _PERMANENT_ERRORS:
                return True
            self._on_subscription_ended(request, request.subscription, now)
            return False
        if answer.result is not ABSENT:
            params = bytes(envelope.message(request.line).params)
            if request.method == legacy.INITIALIZE:
                self._legacy = legacy.LegacySession(params, bytes(answer.result))
            elif self._legacy is not None:
                self._legacy.record(request.method, params)
        return True

    def _on_daemon_request(self, line: bytes, method: str, key: bytes) -> None:
        question = self._server_requests.forward(method, key, bytes(envelope.message(line).params))
        if question is not None:
            self._to_editor(question)
        else:
            words = "the client leaves too many questions unanswered"
            self._to_daemon(envelope.error(key, envelope.INTERNAL_ERROR, words))

    def _on_daemon_notification(self, line: bytes, method: str, now: float) -> None:
        if method == CANCELLED:
            members = envelope.members(envelope.message(line).params)
            key = bytes(members.get("requestId", ABSENT))
            if (told := self._server_requests.translate_cancellation(key, members)) is not None:
                self._to_editor(told)
                return
            request = self._open.get(key)
            if request is not None and request.subscription is not None:
                if request.sent:
                    self._on_subscription_ended(request, request.subscription, now)
                return
        elif method == modern.ACKNOWLEDGED:
            params = envelope.message(line).params
            key = modern.subscription_id(params)
            request = self._open.get(key)
            if request is not None and request.subscription is not None:
                for each in request.subscription.resume(key, params):
                    self._to_editor(each)
                if not request.subscription.is_complete:
                    self._resume.schedule_retry(now)
                return
            if request is not None:
                request.subscription = modern.EditorSubscription(params)
                self._deadlines.pop(key, None)
        self._to_editor(line)

    # ── the link ────────────────────────────────────────────────────────────────────────────────

    def on_connected(self) -> None:
        """The daemon listens. It is told first what it has to know of this editor."""
        self.connected = True
        self._abandoned.clear()
        self._resume.reset()
        session = self._legacy
        if session is not None and not self._pending.has_method(legacy.INITIALIZE):
            # All at once: the daemon takes lines in their order, and answers the first when it can.
            self._resume.send(legacy.INITIALIZE, session.params)
            if session.initialized:
                self._to_daemon(envelope.notification(legacy.INITIALIZED))
            for method, params in session.restore_requests():
                self._resume.send(method, params)
        self._send_unsent()
        if session is not None:
            for line in session.change_notifications():
                self._to_editor(line)

    def on_disconnected(self, reason: str, unwritten: list[bytes], now: float) -> None:
        """What surely did not leave waits for the next daemon, and so does what may be asked twice.

        The rest is answered with an error that says so: it may have run. `unwritten` are lines that did
        not leave as a whole: the daemon takes no line without its end.
        """
        self.connected = False
        self.down_reason = reason
        self._resume.clear()
        self._abandoned.clear()
        # Requests only: an answer to a question of the daemon's may have the id of one of the editor's calls.
        safe = {bytes(head.id): line for line in unwritten if (head := envelope.head(line)).method}
        for key, request in list(self._open.items()):
            if request.subscription is not None:
                request.subscription.on_disconnected()
            if not request.sent:
                continue
            if key in safe:
                if request.method in UNTRACKED:
                    self._open[key] = EditorRequest(request.method, b"", True)
                self._pending.requeue(key, safe[key], now)
            elif request.subscription is not None or (
                request.method in RETRYABLE_METHODS and not request.retried
            ):
                request.retried = True
                self._pending.requeue(key, request.line, now)
            else:
                self._pending.remove(key)
                self._respond(key, error_replies.connection_lost(key, request.method, reason))
        for line in self._server_requests.cancel_all(reason):
            self._to_editor(line)

    def daemon_unreachable(self, why: envelope.Error | str, by: float) -> None:
        """No daemon, and it will not be there soon: nobody waits longer than to the moment `by`."""
        self.down_reason = why
        self._pending.limit_deadlines(by)

    # ── what a new daemon has to be told ────────────────────────────────────────────────────────

    def _on_subscription_ended(
        self, request: EditorRequest, listen: modern.EditorSubscription, now: float
    ) -> None:
        """The daemon has ended a subscription, as it does before it stops. The editor's goes on."""
        listen.on_disconnected()
        self._pending.mark_unsent(request)
        self._resume.schedule_retry(now)

    def _retry_refused(self) -> None:
        self._resume.retry_refused(self._legacy.restore_requests() if self._legacy is not None else [])
        for key, request in self._open.items():
            if request.sent and request.subscription is not None and not request.subscription.is_complete:
                if self._resume.is_exhausted:
                    continue
                told = envelope.notification(CANCELLED, {"requestId": Raw(key), "reason": "asked again"})
                self._to_daemon(told)
                self._pending.mark_unsent(request)
        self._send_unsent()

    def _send_unsent(self) -> None:
        for line in self._pending.take_unsent():
            self._to_daemon(line)

    # ── one request ─────────────────────────────────────────────────────────────────────────────

    def _respond(self, key: bytes, line: bytes) -> None:
        if self._batches:
            together = self._batches.add_response(key, line)
            if together is None:
                return
            line = together
        self._to_editor(line)

    def _fail(self, key: bytes) -> None:
        request = self._pending.remove(key)
        if not request.sent:
            self._respond(key, error_replies.daemon_unreachable(key, request.method, self.down_reason))
            return
        if len(self._abandoned) < MAX_OPEN:
            self._abandoned.add(key)
        self._respond(key, error_replies.response_timeout(key, request.method))

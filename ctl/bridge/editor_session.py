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
from ctl.bridge.batch import Batches
from ctl.bridge.envelope import ABSENT, Head, Malformed
from ctl.bridge.pending_requests import MAX_OPEN, Pending
from ctl.bridge.requests import HANDSHAKES, LEARNT_FROM, PASSED, REPEATABLE, Request
from ctl.bridge.resume import Resuming
from ctl.bridge.server_requests import CANCELLED, Questions
from mcpd.support.json_repair import repair_json

Put = Callable[[bytes], None]

_NOT_FOR_EDITORS = ("mcpd/", "rpc.")
"""The control API is the user's; what an editor's model writes has no business there."""
_FINAL = (envelope.INVALID_REQUEST, envelope.METHOD_NOT_FOUND, envelope.INVALID_PARAMS)
"""Errors that asking again later does not mend."""


class Conversation:
    """`up` says whether the editor's messages may go to the daemon; else they wait here."""

    def __init__(self, to_editor: Put, to_daemon: Put, log: Callable[[str], None]) -> None:
        self._to_editor = to_editor
        self._to_daemon = to_daemon
        self._log = log
        self.up = False
        self.why_down: envelope.Error | str = "mcpd has not answered yet"
        """Why the editor's requests wait, for whoever has waited too long."""
        self._pending = Pending()
        self._open, self._due = self._pending.open, self._pending.due
        """The same: nearly every line is looked up in them."""
        self._given_up: set[bytes] = set()
        """Answered by us: what this daemon says to them comes too late."""
        self._resuming = Resuming(to_daemon, log)
        self._questions = Questions()
        self._batches = Batches()
        self._session: legacy.Session | None = None

    # ── for the loop ────────────────────────────────────────────────────────────────────────────

    @property
    def waits(self) -> bool:
        """Whether the editor waits for a daemon."""
        return not self.up and self._pending.waits

    @property
    def is_at_work(self) -> bool:
        """Whether answers are still to come, subscriptions apart."""
        return self._pending.is_at_work

    @property
    def is_calm(self) -> bool:
        """The link is up, and `tick` will have nothing to do unless something else happens."""
        return self.up and not self._due and self._resuming.at == math.inf

    def next_at(self) -> float:
        """When `tick` has something to do, by the loop's clock."""
        return min(self._resuming.at, self._pending.next_due())

    def tick(self, now: float) -> None:
        """Answer what has waited too long; ask again for what the daemon did not grant."""
        if self._due:
            for key in self._pending.overdue(now):
                self._give_up(key)
        if now >= self._resuming.at:
            self._resuming.at = math.inf
            if self.up:
                self._ask_again()

    def give_up_all(self) -> None:
        """The end: nobody is left without an answer."""
        for key, request in list(self._open.items()):
            if request.listen is None:
                self._give_up(key)

    # ── from the editor ─────────────────────────────────────────────────────────────────────────

    def from_editor(self, line: bytes, now: float) -> None:
        try:
            head = envelope.read_head(line)
        except envelope.UNREADABLE as problem:
            self._odd_line(line, now, envelope.malformed(line, problem))
            return
        # What nearly all lines are, in as few steps as can be (see `Loop._turns`).
        if self.up and (passed := PASSED.get(head.method)) is not None:
            key = bytes(head.id)
            if key.isdigit() and key not in self._open and len(self._open) < MAX_OPEN:
                self._open[key] = passed
                self._to_daemon(line)
                return
        self._received(line, head, now)

    def line_left_out(self, limit: int) -> None:
        """The editor sent a line longer than the loop takes."""
        words = f"a message is longer than the limit of {limit} bytes, and was not read"
        self._to_editor(error_replies.invalid(b"null", words))

    def _received(self, line: bytes, head: Head, now: float) -> None:
        method = head.method
        key = bytes(head.id)
        if not method:
            self._editor_answers(line, key)
        elif not key:
            self._editor_tells(method, line)
        elif not envelope.is_id(head.id):
            self._to_editor(error_replies.invalid(b"null", "the id of a request is a string or a number"))
        elif key in self._open or key in self._resuming:
            words = "a request with this id is under way: its answer could not be told from this one's"
            self._to_editor(error_replies.invalid(key, words))
        elif method.startswith(_NOT_FOR_EDITORS):
            self._answer(key, error_replies.not_mcp(key, method))
        elif method == legacy.PING and modern.RESERVED not in line:
            self._answer(key, envelope.result(key, b"{}"))  # it asks for this hop, which is us
        else:
            self._ask(key, method, line, now)

    def _ask(self, key: bytes, method: str, line: bytes, now: float) -> None:
        if not self._pending.add(key, method, line, now, sent=self.up):
            self._answer(key, error_replies.too_many(key, method))
            return
        if method in HANDSHAKES:
            self._given_up.discard(key)
        if self.up:
            self._to_daemon(line)

    def _editor_tells(self, method: str, line: bytes) -> None:
        if method == CANCELLED:
            key = bytes(envelope.members(envelope.message(line).params).get("requestId", ABSENT))
            request = self._open.get(key)
            if request is not None and request.method == legacy.INITIALIZE:
                return  # the specification: it must not be cancelled
            if request is not None:
                self._pending.forget(key)
                if (rest := self._batches.cancelled(key)) is not None:
                    self._to_editor(rest)
                if not request.sent:
                    return
        elif method == legacy.INITIALIZED and self._session is not None:
            self._session.initialized = True
        if self.up:  # else there is nobody whom it concerns: a new daemon is told what lasts
            self._to_daemon(line)

    def _editor_answers(self, line: bytes, key: bytes) -> None:
        if not key:
            words = "no `method`, and no `id` of a question that it would answer"
            self._to_editor(error_replies.invalid(b"null", words))
        elif (answer := self._questions.answered(line, key)) is not None:
            self._to_daemon(answer)

    def _odd_line(self, line: bytes, now: float, problem: Malformed) -> None:
        bare = line.strip()
        if (sound := repair_json(bare)) != bare:
            self.from_editor(sound + b"\n", now)
        elif bare[:1] == b"[" and self._session is not None and self._session.batches:
            self._batch(bare, now)
        elif bare:
            self._to_editor(problem.answer)

    def _batch(self, line: bytes, now: float) -> None:
        try:
            lines = [each + b"\n" for each in envelope.batch(line)]
            heads = [envelope.head(each) for each in lines]
        except Malformed as problem:
            self._to_editor(problem.answer)
            return
        keys = [bytes(head.id) for head in heads if head.method and envelope.is_id(head.id)]
        if not heads or len(set(keys)) < len(keys) or any(key in self._open for key in keys):
            words = "an empty batch, or two requests with the same id"
            self._to_editor(error_replies.invalid(b"null", words))
            return
        self._batches.begin(keys)
        for each, head in zip(lines, heads, strict=True):
            self._received(each, head, now)

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
                self._daemon_asks(line, method, key)
            else:
                self._daemon_tells(line, method, now)
            return
        request = self._open.get(key)
        if request is None:
            self._other_answer(line, key, now)
        elif request.method not in LEARNT_FROM or self._learn(line, request, now):
            del self._open[key]
            if self._due:
                self._due.pop(key, None)
            if self._batches:
                self._answer(key, line)
            else:
                self._to_editor(line)

    def _other_answer(self, line: bytes, key: bytes, now: float) -> None:
        if key in self._resuming:
            told = self._resuming.answered(key, envelope.message(line), now)
            if told is not None:
                self._to_editor(told)
        elif key in self._given_up:
            self._given_up.discard(key)
        else:
            self._to_editor(line)  # to what it cancelled; it knows what to do

    def _learn(self, line: bytes, request: Request, now: float) -> bool:
        """Whether the answer is for the editor. Only subscriptions are kept open without its knowledge."""
        answer = envelope.message(line)
        if request.listen is not None:
            if not request.sent:
                return False
            if answer.error is not ABSENT and envelope.error_of(answer.error).code in _FINAL:
                return True
            self._ended(request, request.listen, now)
            return False
        if answer.result is not ABSENT:
            params = bytes(envelope.message(request.line).params)
            if request.method == legacy.INITIALIZE:
                self._session = legacy.Session(params, bytes(answer.result))
            elif self._session is not None:
                self._session.granted(request.method, params)
        return True

    def _daemon_asks(self, line: bytes, method: str, key: bytes) -> None:
        question = self._questions.asked(method, key, bytes(envelope.message(line).params))
        if question is not None:
            self._to_editor(question)
        else:
            words = "the client leaves too many questions unanswered"
            self._to_daemon(envelope.error(key, envelope.INTERNAL_ERROR, words))

    def _daemon_tells(self, line: bytes, method: str, now: float) -> None:
        if method == CANCELLED:
            members = envelope.members(envelope.message(line).params)
            key = bytes(members.get("requestId", ABSENT))
            if (told := self._questions.cancelled(key, members)) is not None:
                self._to_editor(told)
                return
            request = self._open.get(key)
            if request is not None and request.listen is not None:
                if request.sent:
                    self._ended(request, request.listen, now)
                return
        elif method == modern.ACKNOWLEDGED:
            params = envelope.message(line).params
            key = modern.subscription(params)
            request = self._open.get(key)
            if request is not None and request.listen is not None:
                for each in request.listen.resumed(key, params):
                    self._to_editor(each)
                if not request.listen.is_whole:
                    self._resuming.later(now)
                return
            if request is not None:
                request.listen = modern.Listen(params)
                self._due.pop(key, None)
        self._to_editor(line)

    # ── the link ────────────────────────────────────────────────────────────────────────────────

    def link_up(self) -> None:
        """The daemon listens. It is told first what it has to know of this editor."""
        self.up = True
        self._given_up.clear()
        self._resuming.begin()
        session = self._session
        if session is not None and not self._pending.has(legacy.INITIALIZE):
            # All at once: the daemon takes lines in their order, and answers the first when it can.
            self._resuming.ask(legacy.INITIALIZE, session.params)
            if session.initialized:
                self._to_daemon(envelope.notification(legacy.INITIALIZED))
            for method, params in session.wishes():
                self._resuming.ask(method, params)
        self._send_waiting()
        if session is not None:
            for line in session.missed():
                self._to_editor(line)

    def link_lost(self, reason: str, unwritten: list[bytes], now: float) -> None:
        """What surely did not leave waits for the next daemon, and so does what may be asked twice.

        The rest is answered with an error that says so: it may have run. `unwritten` are lines that did
        not leave as a whole: the daemon takes no line without its end.
        """
        self.up = False
        self.why_down = reason
        self._resuming.lost()
        self._given_up.clear()
        # Requests only: an answer to a question of the daemon's may have the id of one of the editor's calls.
        safe = {bytes(head.id): line for line in unwritten if (head := envelope.head(line)).method}
        for key, request in list(self._open.items()):
            if request.listen is not None:
                request.listen.lost()
            if not request.sent:
                continue
            if key in safe:
                if request.method in PASSED:
                    self._open[key] = Request(request.method, b"", True)
                self._pending.wait_again(key, safe[key], now)
            elif request.listen is not None or (request.method in REPEATABLE and not request.again):
                request.again = True
                self._pending.wait_again(key, request.line, now)
            else:
                self._pending.forget(key)
                self._answer(key, error_replies.lost(key, request.method, reason))
        for line in self._questions.lost(reason):
            self._to_editor(line)

    def cannot_reach(self, why: envelope.Error | str, by: float) -> None:
        """No daemon, and it will not be there soon: nobody waits longer than to the moment `by`."""
        self.why_down = why
        self._pending.bring_forward(by)

    # ── what a new daemon has to be told ────────────────────────────────────────────────────────

    def _ended(self, request: Request, listen: modern.Listen, now: float) -> None:
        """The daemon has ended a subscription, as it does before it stops. The editor's goes on."""
        listen.lost()
        self._pending.reopen(request)
        self._resuming.later(now)

    def _ask_again(self) -> None:
        self._resuming.ask_again(self._session.wishes() if self._session is not None else [])
        for key, request in self._open.items():
            if request.sent and request.listen is not None and not request.listen.is_whole:
                if self._resuming.gives_up:
                    continue
                told = envelope.notification(CANCELLED, {"requestId": Raw(key), "reason": "asked again"})
                self._to_daemon(told)
                self._pending.reopen(request)
        self._send_waiting()

    def _send_waiting(self) -> None:
        for line in self._pending.take_waiting():
            self._to_daemon(line)

    # ── one request ─────────────────────────────────────────────────────────────────────────────

    def _answer(self, key: bytes, line: bytes) -> None:
        if self._batches:
            together = self._batches.answered(key, line)
            if together is None:
                return
            line = together
        self._to_editor(line)

    def _give_up(self, key: bytes) -> None:
        request = self._pending.forget(key)
        if not request.sent:
            self._answer(key, error_replies.unreachable(key, request.method, self.why_down))
            return
        if len(self._given_up) < MAX_OPEN:
            self._given_up.add(key)
        self._answer(key, error_replies.unanswered(key, request.method))

"""The books of one editor's conversation: what is under way, and what a new daemon has to be told.

Lines go in (`from_editor`, `from_daemon`) with the moment of their coming; lines come out through the two
callables given at the start. The link says when it is up and when it was lost. No input or output here.
"""

from __future__ import annotations

import math
from collections.abc import Callable

from msgspec import Raw

from ctl.bridge import envelope, legacy, modern
from ctl.bridge.batch import Batches
from ctl.bridge.envelope import ABSENT, Head, Malformed, Message
from mcpd.support.mending import mended

Put = Callable[[bytes], None]

HANDSHAKE_WITHIN = 8.0
"""Seconds for an answer to `initialize` or `server/discover`, whatever the daemon does. Some editors give up
after 10."""
PATIENCE = 15.0
"""How long any other request waits for a daemon to come; it is answered with an error then."""
MAX_OPEN = 4096
"""Requests under way. The daemon refuses sooner; this bounds what waits while there is none."""
MAX_WAITING = 8 * 1024 * 1024
"""Bytes of requests that wait for a daemon."""
MAX_QUESTIONS = 1000
"""Requests of servers that the editor has not answered."""
_REOPEN, _REOPEN_AT_MOST = 1.0, 10.0
"""Seconds until a subscription that the daemon has ended is opened again: the first time, and at last."""

_CANCELLED = "notifications/cancelled"
_HANDSHAKES = frozenset((legacy.INITIALIZE, modern.DISCOVER))
_LEARNT_FROM = frozenset(
    (legacy.INITIALIZE, legacy.SET_LEVEL, legacy.SUBSCRIBE, legacy.UNSUBSCRIBE, modern.LISTEN)
)
"""Requests whose answers change what a new daemon has to be told."""
_REPEATABLE = _LEARNT_FROM | {
    modern.DISCOVER,
    "tools/list",
    "prompts/list",
    "resources/list",
    "resources/templates/list",
    "resources/read",
}
"""Asking these twice does nothing twice. Nothing else is ever sent again once it may have arrived."""
_NOT_FOR_EDITORS = ("mcpd/", "rpc.")
"""The control API is the user's; what an editor's model writes has no business there."""
_FINAL = (envelope.INVALID_REQUEST, envelope.METHOD_NOT_FOUND, envelope.INVALID_PARAMS)
"""Errors that asking again later does not mend."""


class Request:
    """One of the editor's, until it is answered."""

    __slots__ = ("acknowledged", "again", "line", "method", "sent")

    def __init__(self, method: str, line: bytes, sent: bool) -> None:
        self.method = method
        self.line = line
        """Kept while it may have to be sent (again); else empty."""
        self.sent = sent
        self.again = False
        """It has been sent twice: what kills two daemons is not tried on a third."""
        self.acknowledged = False
        """A subscription, which the editor believes to be open from here on."""


class Conversation:
    """`up` says whether the editor's messages may go to the daemon; else they wait here."""

    def __init__(self, to_editor: Put, to_daemon: Put, log: Callable[[str], None]) -> None:
        self._to_editor = to_editor
        self._to_daemon = to_daemon
        self._log = log
        self.up = False
        self.why_down: envelope.Error | str = "mcpd has not answered yet"
        """Why the editor's requests wait, for whoever has waited too long."""
        self._open: dict[bytes, Request] = {}
        """The editor's requests by the bytes of their id, in the order they came."""
        self._due: dict[bytes, float] = {}
        """When an error is sent in place of an answer, for those of them that have such a moment."""
        self._waiting = 0
        """Bytes of those that could not be sent yet."""
        self._given_up: set[bytes] = set()
        """Answered by us: what this daemon says to them comes too late."""
        self._own: dict[bytes, Callable[[Message], None]] = {}
        """Our own requests to the daemon."""
        self._questions: dict[bytes, bytes] = {}
        """Requests of the daemon's, our id → its id. Ours are never used twice: a late answer must not
        meet a question of the next daemon's."""
        self._last_id = 0
        self._session: legacy.Session | None = None
        self._batches = Batches()
        self._reopen_at = math.inf
        self._reopen_after = _REOPEN

    # ── for the loop ────────────────────────────────────────────────────────────────────────────

    @property
    def waits(self) -> bool:
        """Whether the editor waits for a daemon."""
        return not self.up and any(not (r.sent or r.acknowledged) for r in self._open.values())

    @property
    def is_at_work(self) -> bool:
        """Whether answers are still to come, subscriptions apart."""
        return any(not request.acknowledged for request in self._open.values())

    def next_at(self) -> float:
        """When `tick` has something to do, by the loop's clock."""
        return min(self._reopen_at, min(self._due.values(), default=math.inf))

    def tick(self, now: float) -> None:
        """Answer what has waited too long; open again what the daemon closed."""
        if self._due:
            for key in [key for key, due in self._due.items() if due <= now]:
                self._give_up(key)
        if now >= self._reopen_at:
            self._reopen_at = math.inf
            if self.up:
                self._send_waiting()

    def give_up_all(self) -> None:
        """The end: nobody is left without an answer."""
        for key, request in list(self._open.items()):
            if not request.acknowledged:
                self._give_up(key)

    # ── from the editor ─────────────────────────────────────────────────────────────────────────

    def from_editor(self, line: bytes, now: float) -> None:
        try:
            head = envelope.head(line)
        except Malformed as problem:
            self._odd_line(line, now, problem)
        else:
            self._received(line, head, now)

    def line_left_out(self, limit: int) -> None:
        """The editor sent a line longer than the loop takes."""
        words = f"a message is longer than the limit of {limit} bytes, and was not read"
        self._to_editor(envelope.error(b"null", envelope.INVALID_REQUEST, words))

    def _received(self, line: bytes, head: Head, now: float) -> None:
        method = head.method
        key = bytes(head.id)
        if not method:
            self._editor_answers(line, key)
        elif not key:
            self._editor_tells(method, line)
        elif not envelope.is_id(head.id):
            words = "the id of a request is a string or a number"
            self._to_editor(envelope.error(b"null", envelope.INVALID_REQUEST, words))
        elif key in self._open or key in self._own:
            words = "a request with this id is under way: its answer could not be told from this one's"
            self._to_editor(envelope.error(key, envelope.INVALID_REQUEST, words))
        elif method.startswith(_NOT_FOR_EDITORS):
            words = f"{_shortened(method)}: only MCP passes through here; see mcpctl for the rest"
            self._answer(key, envelope.error(key, envelope.METHOD_NOT_FOUND, words))
        elif method == legacy.PING and modern.RESERVED not in line:
            self._answer(key, envelope.result(key, b"{}"))  # it asks for this hop, which is us
        else:
            self._ask(key, method, line, now)

    def _ask(self, key: bytes, method: str, line: bytes, now: float) -> None:
        up = self.up
        if len(self._open) >= MAX_OPEN or (not up and self._waiting + len(line) > MAX_WAITING):
            words = f"too many requests are under way: {_shortened(method)} was not sent, it did not run"
            facts = {"code": "overloaded", "exit": 6, "may_have_run": False, "retryable": True}
            self._answer(key, envelope.error(key, envelope.SERVER_ERROR, words, facts))
            return
        keep = not up or method in _REPEATABLE
        self._open[key] = Request(method, line if keep else b"", up)
        self._given_up.discard(key)
        if method in _HANDSHAKES:
            self._due[key] = now + HANDSHAKE_WITHIN
        elif not up:
            self._due[key] = now + PATIENCE
        if up:
            self._to_daemon(line + b"\n")
        else:
            self._waiting += len(line)

    def _editor_tells(self, method: str, line: bytes) -> None:
        if method == _CANCELLED:
            key = bytes(envelope.members(envelope.message(line).params).get("requestId", ABSENT))
            request = self._open.get(key)
            if request is not None and request.method == legacy.INITIALIZE:
                return  # the specification: it must not be cancelled
            if request is not None:
                self._forget(key, request)
                if (rest := self._batches.cancelled(key)) is not None:
                    self._to_editor(rest)
                if not request.sent:
                    return
        elif method == legacy.INITIALIZED and self._session is not None:
            self._session.initialized = True
        if self.up:  # else there is nobody whom it concerns: a new daemon is told what lasts
            self._to_daemon(line + b"\n")

    def _editor_answers(self, line: bytes, key: bytes) -> None:
        theirs = self._questions.pop(key.strip(b'"'), None)
        if theirs is None:
            if not key:
                words = "no `method`, and no `id` of a question that it would answer"
                self._to_editor(envelope.error(b"null", envelope.INVALID_REQUEST, words))
            return  # otherwise a late answer to a daemon that has gone
        message = envelope.message(line)
        if message.result is not ABSENT:
            self._to_daemon(envelope.result(theirs, bytes(message.result)))
        elif message.error is not ABSENT:
            self._to_daemon(envelope.raw_error(theirs, bytes(message.error)))
        else:
            words = "the client's answer has neither result nor error"
            self._to_daemon(envelope.error(theirs, envelope.INTERNAL_ERROR, words))

    def _odd_line(self, line: bytes, now: float, problem: Malformed) -> None:
        bare = line.strip()
        if (sound := mended(bare)) != bare:
            self.from_editor(sound, now)
        elif bare[:1] == b"[" and self._session is not None and self._session.batches:
            self._batch(bare, now)
        elif bare:
            self._to_editor(problem.answer)

    def _batch(self, line: bytes, now: float) -> None:
        try:
            lines = envelope.batch(line)
            heads = [envelope.head(each) for each in lines]
        except Malformed as problem:
            self._to_editor(problem.answer)
            return
        keys = [bytes(head.id) for head in heads if head.method and envelope.is_id(head.id)]
        if not heads or len(set(keys)) < len(keys) or any(key in self._open for key in keys):
            words = "an empty batch, or two requests with the same id"
            self._to_editor(envelope.error(b"null", envelope.INVALID_REQUEST, words))
            return
        self._batches.begin(keys)
        for each, head in zip(lines, heads, strict=True):
            self._received(each, head, now)

    # ── from the daemon ─────────────────────────────────────────────────────────────────────────

    def from_daemon(self, line: bytes, now: float) -> None:
        try:
            head = envelope.head(line)
        except Malformed as problem:
            if line.strip():
                self._log(f"the daemon sent a line that was left out: {problem}")
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
            self._other_answer(line, key)
        elif request.method not in _LEARNT_FROM or self._learn(line, key, request, now):
            del self._open[key]
            if self._due:
                self._due.pop(key, None)
            self._answer(key, line + b"\n")

    def _other_answer(self, line: bytes, key: bytes) -> None:
        own = self._own.pop(key, None)
        if own is not None:
            own(envelope.message(line))
        elif key in self._given_up:
            self._given_up.discard(key)
        else:
            self._to_editor(line + b"\n")  # to what it cancelled; it knows what to do

    def _learn(self, line: bytes, key: bytes, request: Request, now: float) -> bool:
        """Whether the answer is for the editor. Only subscriptions are kept open without its knowledge."""
        answer = envelope.message(line)
        if request.method == modern.LISTEN:
            if not request.acknowledged:
                return True
            if not request.sent:
                return False
            if answer.error is not ABSENT and envelope.error_of(answer.error).code in _FINAL:
                return True
            self._reopen(request, now)
            return False
        if answer.result is not ABSENT:
            params = bytes(envelope.message(request.line).params)
            if request.method == legacy.INITIALIZE:
                self._session = legacy.Session(params, bytes(answer.result))
            elif self._session is not None:
                self._session.granted(request.method, params)
        return True

    def _reopen(self, request: Request, now: float) -> None:
        request.sent = False
        self._waiting += len(request.line)
        self._reopen_at = min(self._reopen_at, now + self._reopen_after)
        self._reopen_after = min(_REOPEN_AT_MOST, 2 * self._reopen_after)

    def _daemon_asks(self, line: bytes, method: str, theirs: bytes) -> None:
        if len(self._questions) >= MAX_QUESTIONS:
            words = "the client leaves too many questions unanswered"
            self._to_daemon(envelope.error(theirs, envelope.INTERNAL_ERROR, words))
            return
        self._last_id += 1
        ours = b"%d" % self._last_id
        self._questions[ours] = theirs
        self._to_editor(envelope.request(ours, method, bytes(envelope.message(line).params)))

    def _daemon_tells(self, line: bytes, method: str, now: float) -> None:
        if method == _CANCELLED:
            members = envelope.members(envelope.message(line).params)
            named = bytes(members.get("requestId", ABSENT))
            for ours, theirs in self._questions.items():
                if theirs == named:
                    del self._questions[ours]
                    self._to_editor(envelope.notification(_CANCELLED, {**members, "requestId": Raw(ours)}))
                    return
            request = self._open.get(named)
            if request is not None and request.acknowledged:
                if request.sent:
                    self._reopen(request, now)
                return
        elif method == modern.ACKNOWLEDGED:
            params = envelope.message(line).params
            key = modern.subscription(params)
            request = self._open.get(key)
            self._reopen_after = _REOPEN
            if request is not None and request.acknowledged:
                for each in modern.missed(key, params):
                    self._to_editor(each)
                return
            if request is not None:
                request.acknowledged = True
        self._to_editor(line + b"\n")

    # ── the link ────────────────────────────────────────────────────────────────────────────────

    def link_up(self) -> None:
        """The daemon listens. It is told first what it has to know of this editor."""
        self._given_up.clear()
        asks_anew = any(request.method == legacy.INITIALIZE for request in self._open.values())
        if self._session is None or asks_anew:
            self._ready()
        else:
            self._ask_ourselves(legacy.INITIALIZE, self._session.params, self._resumed)

    def link_lost(self, reason: str, unwritten: list[bytes], now: float) -> None:
        """What surely did not leave waits for the next daemon, and so does what may be asked twice.

        The rest is answered with an error that says so: it may have run. `unwritten` are lines that did
        not leave as a whole: the daemon takes no line without its end.
        """
        self.up = False
        self.why_down = reason
        self._own.clear()
        self._given_up.clear()
        safe: dict[bytes, bytes] = {}
        for line in unwritten:
            safe[bytes(envelope.head(line).id)] = line.rstrip(b"\n")
        for key, request in list(self._open.items()):
            if not request.sent:
                continue
            if key in safe:
                self._wait_again(key, request, safe[key], now)
            elif request.acknowledged or (request.method in _REPEATABLE and not request.again):
                request.again = True
                self._wait_again(key, request, request.line, now)
            else:
                self._forget(key, request)
                self._answer(key, envelope.error(key, envelope.SERVER_ERROR, *_lost(request.method, reason)))
        questions, self._questions = self._questions, {}
        for ours in questions:
            told = {"requestId": Raw(ours), "reason": reason}
            self._to_editor(envelope.notification(_CANCELLED, told))

    def cannot_reach(self, why: envelope.Error | str, by: float) -> None:
        """No daemon, and it will not be there soon: nobody waits longer than to the moment `by`."""
        self.why_down = why
        for key, due in self._due.items():
            self._due[key] = min(due, by)

    def _ask_ourselves(self, method: str, params: bytes, then: Callable[[Message], None]) -> None:
        self._last_id += 1
        key = b'"mcpctl-bridge-%d"' % self._last_id
        self._own[key] = then
        self._to_daemon(envelope.request(key, method, params))

    def _resumed(self, answer: Message) -> None:
        """The new daemon has answered the old handshake."""
        session = self._session
        assert session is not None
        if answer.error is not ABSENT:
            self._log(f"the new daemon refuses the handshake: {envelope.error_of(answer.error).message}")
        if session.initialized:
            self._to_daemon(envelope.notification(legacy.INITIALIZED))
        for method, params in session.wishes():
            self._ask_ourselves(method, params, self._noted(method, params))
        self._ready()
        for line in session.missed():
            self._to_editor(line)

    def _noted(self, method: str, params: bytes) -> Callable[[Message], None]:
        def note(answer: Message) -> None:
            if answer.error is not ABSENT:
                what = _shortened(params.decode(errors="replace"))
                why = envelope.error_of(answer.error).message
                self._log(f"the new daemon refuses {method} {what}: {why}")

        return note

    def _ready(self) -> None:
        self.up = True
        self._reopen_at = math.inf
        self._send_waiting()

    def _send_waiting(self) -> None:
        for key, request in self._open.items():
            if not request.sent:
                request.sent = True
                if request.method not in _HANDSHAKES:
                    self._due.pop(key, None)
                self._to_daemon(request.line + b"\n")
                if request.method not in _REPEATABLE:
                    request.line = b""
        self._waiting = 0

    # ── one request ─────────────────────────────────────────────────────────────────────────────

    def _answer(self, key: bytes, line: bytes) -> None:
        if self._batches:
            together = self._batches.answered(key, line)
            if together is None:
                return
            line = together
        self._to_editor(line)

    def _forget(self, key: bytes, request: Request) -> None:
        del self._open[key]
        self._due.pop(key, None)
        if not request.sent:
            self._waiting -= len(request.line)

    def _wait_again(self, key: bytes, request: Request, line: bytes, now: float) -> None:
        request.sent = False
        request.line = line
        self._waiting += len(line)
        if not request.acknowledged:
            self._due.setdefault(key, now + PATIENCE)

    def _give_up(self, key: bytes) -> None:
        request = self._open[key]
        self._forget(key, request)
        if request.sent:
            if len(self._given_up) < MAX_OPEN:
                self._given_up.add(key)
            words = f"mcpd has not answered {_shortened(request.method)} in time"
            facts = {"code": "timeout", "exit": 7, "may_have_run": True, "retryable": True}
            self._answer(key, envelope.error(key, envelope.SERVER_ERROR, words, facts))
        elif isinstance(self.why_down, str):
            words = f"{self.why_down}; {_shortened(request.method)} was not sent, it did not run: try again"
            facts = {"code": "daemon_unreachable", "exit": 3, "may_have_run": False, "retryable": True}
            self._answer(key, envelope.error(key, envelope.SERVER_ERROR, words, facts))
        else:
            why = self.why_down
            members = {**envelope.members(why.data), "may_have_run": Raw(b"false")}
            self._answer(key, envelope.error(key, why.code, why.message, members))


def _lost(method: str, reason: str) -> tuple[str, dict[str, object]]:
    words = (
        f"{reason} while {_shortened(method)} was under way; it may have run, so it was not sent again: "
        "look before you repeat it"
    )
    return words, {"code": "link_lost", "exit": 6, "may_have_run": True, "retryable": True}


def _shortened(text: str) -> str:
    return text if len(text) <= 100 else f"{text[:100]}…"

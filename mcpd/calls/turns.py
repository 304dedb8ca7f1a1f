"""Turns: which calls must wait for other calls to the same server, and for how long.

- Exclusive calls (`concurrency` in the definition) run one at a time; the clients take turns.
- A legacy server that cannot tell which call its requests belong to gets the calls of one client at a time,
  if the tool has not shown yet that it asks nothing. After QUESTION_WAIT they overlap; what the server then
  asks is declined unless it can belong to one client only (`questions.router`). A call of a tool that
  has asked before waits that long for each other client, because it will need its turn.
- Calls that may change something have short turns, because many servers read a file, change it and write it
  back. Such a change usually takes milliseconds. A turn ends with its call, or after `Route.write_turn`, and
  no call waits longer than its own `Route.write_turn`.

Nobody waits longer than ANSWER_WAIT for the answer of another client, and only if the definition rules out
other processes: otherwise the call is sent to one of its client's own after QUESTION_WAIT.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Sequence
from itertools import islice

import trio

from mcpd.calls.call import INTERACTIVE_METHODS, QUEUED, Call, Caller, CallHandler, Spawn
from mcpd.calls.questions.open_questions import AskedQuestion, OpenQuestions, separate_clients
from mcpd.io.outbox import batch
from mcpd.model.errors import Overloaded
from mcpd.model.status import WaitingCall, format_time, rfc3339
from mcpd.supervision.attachments import Attachment
from mcpd.supervision.managed_server import ManagedServer
from mcpd.supervision.supervisor_context import WaitingReport

QUESTION_WAIT = 2.0
"""Seconds for which a call waits for other clients because the server might ask something."""
ANSWER_WAIT = 20.0
"""Seconds for which a call waits for another client's answer to a question, before it fails."""
ABSENT_WAIT = 10.0
"""Seconds for which a client that others wait for may be away, before its question is dropped."""
LOOK_INTERVAL = 1.0
"""Seconds between two looks at the questions that others wait for."""
DECLARED = 1.0
"""Seconds of a write turn for a tool that declares `readOnlyHint: false`."""
UNDECLARED = 0.095
"""The same for a tool that declares nothing. Many of them change nothing, but wait for a network."""
_MAX_SHOWN = 10
_batch = batch()
_SEVERAL = object()
"""The owner of turns that overlap."""


class TurnQueue:
    """Calls of one server that take turns: those of one owner at a time, in order of arrival.

    While others wait, new calls of the owner queue up too, so that nobody starves. `start` sends a call whose
    turn has come, and must not raise. `spawn` must run tasks that outlive the calls.
    """

    def __init__(self, start: Callable[[Call], None], spawn: Spawn) -> None:
        self._start = start
        self._spawn = spawn
        self.owner: object = None
        """Whose calls have their turn, if any have."""
        self.holders: dict[Call, object] = {}
        """The calls that have a turn, and their owners. All of them have been sent, or are being sent."""
        self.waiting: dict[Call, tuple[object, float]] = {}
        """In order of arrival, with their owners and the time at which they arrived."""
        self._is_starting = False
        self._is_watched = False
        self._timer = trio.CancelScope()
        self._timer_at = -math.inf
        """When `_watch` looks next; -∞ while it is about to compute that."""

    def enter(self, call: Call, owner: object) -> bool:
        """Return True if the call may be sent now; otherwise `start` is called for it later."""
        if not self.waiting:
            if self.owner is not owner and self.holders:
                self._drop_ended()
            if self.owner is owner or not self.holders:
                self._hold(call, owner)
                return True
        if len(self.waiting) >= call.server.spec.max_queued:
            return self._on_full(call, owner)
        now = _batch.now if _batch.depth else trio.current_time()
        self.waiting[call] = owner, now
        if not self._is_watched:
            self._is_watched = True
            self._spawn(self._watch)
        elif (look_at := self._look_at(call, now)) < self._timer_at:
            self._timer.deadline = self._timer_at = look_at
        return False

    def leave(self, call: Call) -> None:
        """End the turn of a call, or its wait. Does nothing for a call without either."""
        if call in self.holders:
            del self.holders[call]
            if self.owner is _SEVERAL and len(set(map(id, self.holders.values()))) == 1:
                self.owner = next(iter(self.holders.values()))
        elif self.waiting.pop(call, None) is None:
            return
        if self.waiting:
            self._start_next()

    def __len__(self) -> int:
        return len(self.holders) + len(self.waiting)

    def _hold(self, call: Call, owner: object) -> None:
        self.owner = owner if not self.holders or self.owner is owner else _SEVERAL
        self.holders[call] = owner

    def _start_next(self) -> None:
        """Start the calls whose turn has come. A loop, not recursion: if nothing can be sent, each call
        leaves immediately, however many wait.
        """
        if self._is_starting:
            return
        self._is_starting = True
        try:
            while self.waiting:
                self._drop_ended()
                call = self._next()
                owner, _ = self.waiting[call]
                if self.holders and self.owner is not owner:
                    break
                self._begin(call, owner)
        finally:
            self._is_starting = False

    def _begin(self, call: Call, owner: object) -> None:
        del self.waiting[call]
        self._hold(call, owner)
        self._start(call)

    async def _watch(self) -> None:
        """Watch the clock while calls wait."""
        try:
            while self.waiting:
                arrived = [(call, since) for call, (_, since) in self.waiting.items()]
                looks = (self._look_at(call, since) for call, since in arrived)
                self._timer_at = min(self._turns_end(), *looks)
                with trio.CancelScope(deadline=self._timer_at) as self._timer:
                    await trio.sleep_forever()
                self._timer_at = -math.inf
                self._start_next()
                self._end_waits(trio.current_time())
        finally:
            self._is_watched, self._timer_at = False, -math.inf

    # ── what differs between the two kinds of turns ─────────────────────────────────────────────

    def _next(self) -> Call:
        """Return the waiting call whose turn is next."""
        return next(iter(self.waiting))

    def _on_full(self, call: Call, owner: object) -> bool:
        """Return whether a call is sent although too many wait. Raises Overloaded."""
        raise NotImplementedError

    def _look_at(self, call: Call, since: float) -> float:
        """Return when `_end_waits` must look at a call that has waited since then. At this very time, it must
        do something: a difference of times may be rounded to less.
        """
        raise NotImplementedError

    def _end_waits(self, now: float) -> None:
        """Start, or fail, the calls that have waited long enough."""
        raise NotImplementedError

    def _turns_end(self) -> float:
        """Return when the last turn ends, whatever its call does."""
        return math.inf

    def _drop_ended(self) -> None:
        """Drop the holders whose turns have ended before their calls."""


class WriteTurns(TurnQueue):
    """Short turns of calls that may change something. They are a precaution, and no reason to refuse a call:
    one that has waited long enough runs without a turn.
    """

    def _on_full(self, call: Call, owner: object) -> bool:
        return True

    def _look_at(self, call: Call, since: float) -> float:
        return since + call.route.write_turn

    def _end_waits(self, now: float) -> None:
        for call, (_, since) in list(self.waiting.items()):
            if self._look_at(call, since) <= now and self.waiting.pop(call, None) is not None:
                self._start(call)

    def _turns_end(self) -> float:
        return max((call.sent_at + call.route.write_turn for call in self.holders), default=0.0)

    def _drop_ended(self) -> None:
        if self._turns_end() <= trio.current_time():
            self.holders.clear()


class ClientTurns(TurnQueue):
    """Turns of exclusive calls, and of those during which a server may ask something. They last as long as
    the calls.
    """

    def __init__(
        self,
        start: Callable[[Call], None],
        spawn: Spawn,
        server: ManagedServer,
        handler: CallHandler,
        questions: OpenQuestions,
    ) -> None:
        super().__init__(start, spawn)
        self._server = server
        self._handler = handler
        self._questions = questions
        self._looked_at = -math.inf
        """When `_end_waits` last looked at the calls that wait."""
        self._turn_began = -math.inf
        """Since when the calls with a turn keep others waiting; a client's time to answer is left out."""
        self._lines: dict[Caller, dict[Call, None]] = {}
        """The waiting calls of each client. The first client is the next."""

    def enter(self, call: Call, owner: object) -> bool:
        """See `TurnQueue.enter`."""
        may_start = super().enter(call, owner)
        if not may_start:
            self._lines.setdefault(call.caller, {})[call] = None
        return may_start

    def leave(self, call: Call) -> None:
        """See `TurnQueue.leave`."""
        if (line := self._lines.get(call.caller)) is not None and line.pop(call, self) is None and not line:
            del self._lines[call.caller]
        super().leave(call)

    def _next(self) -> Call:
        """Return the next client's first call: many exclusive calls of one do not delay those of others."""
        first = super()._next()
        return next(iter(next(iter(self._lines.values())))) if first.route.is_exclusive else first

    def _begin(self, call: Call, owner: object) -> None:
        line = self._lines.pop(call.caller)
        del line[call]
        if line:
            self._lines[call.caller] = line  # as the last one
        super()._begin(call, owner)

    def _hold(self, call: Call, owner: object) -> None:
        if self.owner is not owner or not self.holders:
            self._turn_began = trio.current_time()
        super()._hold(call, owner)

    def _on_full(self, call: Call, owner: object) -> bool:
        if not call.route.is_exclusive:
            self._hold(call, owner)
            return True
        name = self._server.spec.name
        message = f"{name}: {call.server.spec.max_queued} calls are already waiting for their turn"
        raise Overloaded(f"{message}; nothing was sent, try again later", server=name)

    def _look_at(self, call: Call, since: float) -> float:
        first = since + (LOOK_INTERVAL if call.route.is_exclusive else QUESTION_WAIT)
        return first if first > self._looked_at else self._looked_at + LOOK_INTERVAL

    def _end_waits(self, now: float) -> None:
        self._looked_at = now
        self._drop_orphaned(now)
        blocking = self._blocking()
        if blocking:
            self._turn_began = now
        for call, (owner, since) in list(self.waiting.items()):
            if call not in self.waiting or call.state is not QUEUED:
                continue  # its turn came when an earlier one left the queue
            others = [each for each in blocking if each.call.caller is not call.caller]
            if self._is_overdue(call, since, others, now):
                call.failed(_overdue(call, now - since, self._obstacle(others)))
            elif others and self._may_separate(call, since, others[0], now):
                separate_clients(self._server)
                self._handler.use_own_process(call)
            elif not others and not call.route.is_exclusive and self._may_overlap(call, owner, since, now):
                self._begin(call, owner)

    def _may_overlap(self, call: Call, owner: object, since: float, now: float) -> bool:
        history = self._server.elicitation_history
        if owner is not self.owner and history.has_asked(call.route.method, call.tool):
            since = max(since, self._turn_began)
        return now >= since + QUESTION_WAIT

    def _may_separate(self, call: Call, since: float, question: AskedQuestion, now: float) -> bool:
        """Return whether the call should not wait for a person who answers another client's question."""
        spec = self._server.spec
        allowed = spec.share == "all" and not spec.is_single_process and not call.route.is_exclusive
        return allowed and now >= max(since, question.asked_at) + QUESTION_WAIT

    def _is_overdue(self, call: Call, since: float, others: Sequence[AskedQuestion], now: float) -> bool:
        if others and now >= max(since, others[0].asked_at - QUESTION_WAIT) + ANSWER_WAIT:
            return True
        return call.route.is_exclusive and now >= since + call.idle_timeout

    def _blocking(self) -> list[AskedQuestion]:
        """Return the open questions of the calls that have a turn now."""
        return [each for each in self._questions.of(self._server) if each.call in self.holders]

    def _drop_orphaned(self, now: float) -> None:
        """Drop questions whose clients have been away for too long since others wait."""
        for question in self._blocking():
            caller = question.call.caller
            if caller.is_connected:
                question.absent_since = None
            elif question.absent_since is None:
                question.absent_since = now
            elif now - question.absent_since >= ABSENT_WAIT and question in self._questions.of(self._server):
                self._server.log.add_line(
                    f"[mcpd] {question.call.description} asked {caller.describe(question.call.context)}, "
                    "which has disconnected; the question was dropped, because others wait"
                )
                reason = "its client has disconnected, and others wait"
                self._handler.drop_questions(question.call, question.text or question.method, reason)

    def _obstacle(self, blocking: Sequence[AskedQuestion]) -> str:
        """Return what a queued call waits for."""
        if blocking:
            question = blocking[0]
            caller = question.call.caller
            text = f" ({question.text})" if question.text else ""
            return (
                f"an answer of {caller.describe(question.call.context)}, which {question.call.description} "
                f"asked{text} at {format_time(question.since)}; the calls must not overlap"
            )
        obstacle = "other calls, which must not overlap with this one"
        for holder in self.holders:
            return f"{obstacle} ({holder.description} of {holder.caller.describe(holder.context)})"
        return obstacle


CLIENT_TURNS = Attachment[ClientTurns]("the turns of clients")
WRITE_TURNS = Attachment[WriteTurns]("the turns of calls that write")


class CallTurns:
    """Decides when calls may be sent. `start` sends a call whose turn has come, and must not raise. `spawn`
    must run tasks that outlive the calls.
    """

    def __init__(
        self, start: Callable[[Call], None], spawn: Spawn, handler: CallHandler, questions: OpenQuestions
    ) -> None:
        self._start = start
        self._spawn = spawn
        self._handler = handler
        self._questions = questions

    def enter(self, call: Call) -> bool:
        """Return True if the call may be sent now; otherwise `start` is called for it later. Its turn or its
        wait ends with `release_turn`.

        Raises Overloaded if too many calls wait; the call has no turn then.
        """
        assert call.binding is not None
        if call.route.is_exclusive or call.binding.may_ask:
            owner = turn_owner(call)
            if owner is not None and not self._enter_client_turn(call, owner):
                return False
        if not call.route.write_turn:
            return True
        server, caller = call.server, call.caller
        turns = (server.original or server).attachments.get(WRITE_TURNS)
        if turns is not None and turns.owner is caller and not turns.waiting:  # nobody else writes
            call.holds_turn = True
            turns.holders[call] = caller
            return True
        return self._enter_write_turn(call)

    def _enter_client_turn(self, call: Call, owner: object) -> bool:
        queue = call.server.attachments.get(CLIENT_TURNS)
        if queue is None:
            queue = ClientTurns(self._on_turn, self._spawn, call.server, self._handler, self._questions)
            call.server.attachments[CLIENT_TURNS] = queue
        call.holds_turn = True
        return queue.enter(call, owner)

    def _on_turn(self, call: Call) -> None:
        if not call.route.write_turn or self._enter_write_turn(call):
            self._start(call)

    def _enter_write_turn(self, call: Call) -> bool:
        attachments = (call.server.original or call.server).attachments  # all its processes share them
        turns = attachments.get(WRITE_TURNS)
        if turns is None:
            turns = WriteTurns(self._start, self._spawn)
            attachments[WRITE_TURNS] = turns
        call.holds_turn = True
        return turns.enter(call, call.caller)

    def describe(self, server: ManagedServer, mask: Callable[[str], str]) -> WaitingReport:
        """Return the open questions of a server and of its legacy connection, the first calls that wait, and
        the number of all of them."""
        connections = [each for each in (server, server.companion) if each is not None]
        questions = [question for each in connections for question in self._questions.of(each)]
        queues = [queue for each in connections if (queue := each.attachments.get(CLIENT_TURNS)) is not None]
        waits = (_describe(queue, call, mask) for queue in queues for call in queue.waiting)
        return (
            tuple(each.describe(mask) for each in questions[:_MAX_SHOWN]),
            tuple(islice(waits, _MAX_SHOWN)),
            sum(len(queue.waiting) for queue in queues),
        )

    def waits_of(self, caller: Caller, mask: Callable[[str], str]) -> tuple[WaitingCall, ...]:
        """Return the calls of a client that wait for other clients."""
        calls = caller.calls.values()
        queues = [(call, queue) for call in calls if (queue := call.server.attachments.get(CLIENT_TURNS))]
        waits = (_describe(queue, call, mask) for call, queue in queues if call in queue.waiting)
        return tuple(islice(waits, _MAX_SHOWN))


def _describe(queue: ClientTurns, call: Call, mask: Callable[[str], str]) -> WaitingCall:
    obstacles = (f"{each.description} of {each.caller.describe(each.context)}" for each in queue.holders)
    _, since = queue.waiting[call]
    return WaitingCall(
        client=mask(call.caller.describe(call.context)),
        call=mask(call.description),
        since=rfc3339(time.time() - (trio.current_time() - since)),
        server=call.server.configured_name,
        waits_for=mask(next(obstacles, "")),
    )


def turn_owner(call: Call) -> object:
    """Return whose calls may run together with this one; None if it need not take turns."""
    route = call.route
    if route.is_exclusive:
        return call
    assert call.binding is not None
    if (
        call.binding.may_ask
        and not call.binding.upstream.link.correlates_server_requests
        and route.method in INTERACTIVE_METHODS
        and not route.is_read_only
        and route.spec.concurrency != "free"
        and call.server.elicitation_history.may_ask(route.method, route.tool)
    ):
        return call.caller
    return None


def release_turn(call: Call) -> None:
    """End the call's turns, or its wait for one. Does nothing if it has neither."""
    if not call.holds_turn:
        return
    call.holds_turn = False
    server = call.server
    if (writes := (server.original or server).attachments.get(WRITE_TURNS)) is not None:
        if writes.waiting or writes.owner is not call.caller:
            writes.leave(call)
        else:  # nobody else writes
            writes.holders.pop(call, None)
    if (queue := server.attachments.get(CLIENT_TURNS)) is not None:
        if call in queue.holders and call.context.accepts_server_requests and call.response_size:
            server.elicitation_history.record_answer(call.route.method, call.tool)
        queue.leave(call)


def _overdue(call: Call, seconds: float, obstacle: str) -> Overloaded:
    """Return the error for a call that has waited too long: who was asked what, and what to do."""
    name = call.server.spec.name
    message = f"{name}: {call.description} waited {seconds:.0f} s for {obstacle}; nothing was sent"
    if call.server.spec.concurrency != "auto":
        return Overloaded(f"{message}, try again later", server=name)
    return Overloaded(message + (separate_clients(call.server) or ", try again later"), server=name)

"""Calls that wait for their turn: they do not wait long for a client that does not answer a question.

While calls wait, a question whose client cannot be reached is dropped after a few seconds. If the client is
there, but a person takes long to answer, the calls of others go to a spare instance of the server, if there
may be one. A call that has waited as long as a silent server may take fails.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence

import trio

from mcpd.calls.call import QUEUED, Call, Caller, CallHandler, Spawn
from mcpd.calls.concurrency import turn_queue
from mcpd.calls.open_questions import AskedQuestion, OpenQuestions
from mcpd.model.errors import Overloaded
from mcpd.model.status import WaitingCall, format_time, rfc3339
from mcpd.supervision.managed_server import ManagedServer
from mcpd.supervision.supervisor_context import WaitingReport

CHECK_INTERVAL = 1.0
"""Seconds between two looks at the calls that wait."""
ABSENT_TIMEOUT = 5.0
"""Seconds for a client that has disconnected to return while others wait for it."""
RETURN_TIMEOUT = 10.0
"""The same for a client that may connect only to send its answer: HTTP in the revision without sessions."""
ANSWER_DELAY = 3.0
"""Seconds in which others wait for an answer before they use a spare instance."""
_MAX_SHOWN = 10

FindSpare = Callable[[Caller, ManagedServer], ManagedServer | None]
"""Returns a connected spare instance of the server for this caller. If it returns None, it may have started
to start one, which a later call returns."""


class WaitingCalls:
    """Watches the turn queues of all servers. `spawn` must run tasks that outlive the calls."""

    def __init__(
        self,
        handler: CallHandler,
        questions: OpenQuestions,
        spawn: Spawn,
        find_spare: FindSpare,
    ) -> None:
        self._handler = handler
        self._questions = questions
        self._spawn = spawn
        self._find_spare = find_spare

    def add(self, call: Call) -> None:
        """Watch a call that has just been queued. It may be sent to a spare instance immediately.

        Short waits (`write_turns`) need no watching.
        """
        queue = turn_queue(call.server)
        if not queue.waiting():
            return
        if not queue.is_watched:
            queue.is_watched = True
            self._spawn(lambda server=call.server: self._watch(server))  # type: ignore[misc]
        self._use_spare(call, self._blocking(call.server))

    def is_free(self, server: ManagedServer) -> bool:
        """Return whether a call to the server would not wait for anybody's answer."""
        return not (turn_queue(server).waiting() or self._blocking(server))

    def obstacle(self, call: Call) -> str:
        """Return what a queued call waits for, for error messages."""
        return _obstacle(call, self._blocking(call.server))

    async def _watch(self, server: ManagedServer) -> None:
        """Watch one server. Runs while any call waits."""
        queue = turn_queue(server)
        try:
            while queue.waiting():
                await trio.sleep(CHECK_INTERVAL)
                self._drop_orphaned(server)
                blocking = self._blocking(server)
                for call in _waiting(server):
                    if call.state is not QUEUED:
                        continue  # its turn came when an earlier one left the queue
                    if call.deadline <= trio.current_time() and not call.send_deadline:  # see SendDeadlines
                        call.failed(_overdue(call, blocking))
                    else:
                        self._use_spare(call, blocking)
        finally:
            queue.is_watched = False

    def _blocking(self, server: ManagedServer) -> list[AskedQuestion]:
        """Return the open questions of the calls that have a turn now."""
        holders = turn_queue(server).holders()
        return [each for each in self._questions.of(server) if each.call in holders]

    def _drop_orphaned(self, server: ManagedServer) -> None:
        """Drop questions whose clients have been away for too long since others wait."""
        now = trio.current_time()
        if not turn_queue(server).waiting():
            return
        for question in self._blocking(server):
            if question not in self._questions.of(server):
                continue  # dropped with an earlier one of its call
            caller = question.call.caller
            if caller.is_connected:
                question.absent_since = None
            elif question.absent_since is None:
                question.absent_since = now
            elif now - question.absent_since >= (RETURN_TIMEOUT if caller.may_return else ABSENT_TIMEOUT):
                server.log.add_line(
                    f"[mcpd] {question.call.description} asked {caller.describe(question.call.context)}, "
                    "which has disconnected; the question was dropped, because others wait"
                )
                reason = "its client has disconnected, and others wait"
                self._handler.drop_questions(question.call, question.text or question.method, reason)

    def _use_spare(self, call: Call, blocking: Sequence[AskedQuestion]) -> None:
        """Send the call to a spare instance if one is ready, and if it waits for somebody else's answer."""
        if call.route.is_exclusive or not blocking:
            return
        since = trio.current_time() - ANSWER_DELAY
        for question in blocking:
            other = question.call.caller
            may_answer = other.is_connected or other.may_return
            if other is not call.caller and may_answer and question.asked_at <= since:
                break
        else:
            return
        spare = self._find_spare(call.caller, call.server)
        if spare is not None:
            self._handler.send_elsewhere(call, spare)

    def describe(self, server: ManagedServer, mask: Callable[[str], str]) -> WaitingReport:
        """Return the open questions of a server and of its legacy connection, the first calls that wait, and
        the number of all of them."""
        connections = [each for each in (server, server.companion) if each is not None]
        questions = [question for each in connections for question in self._questions.of(each)]
        waiting = [call for each in connections if each.turn_queue is not None for call in _waiting(each)]
        now, wall = trio.current_time(), time.time()
        return (
            tuple(each.describe(mask) for each in questions[:_MAX_SHOWN]),
            tuple(
                WaitingCall(
                    client=call.caller.describe(call.context),
                    call=call.description,
                    since=rfc3339(wall - (now - call.queued_at)),
                )
                for call in waiting[:_MAX_SHOWN]
            ),
            len(waiting),
        )


def _waiting(server: ManagedServer) -> Sequence[Call]:
    return [each for each in turn_queue(server).waiting() if isinstance(each, Call)]


def _overdue(call: Call, blocking: Sequence[AskedQuestion]) -> Overloaded:
    """Return the error for a call that has waited too long: who was asked what, and what to do."""
    server = call.server
    name = server.spec.name
    message = f"{name}: {call.description} waited {call.idle_timeout:g} s for {_obstacle(call, blocking)}"
    message += "; nothing was sent, try again later"
    if server.spec.concurrency in ("auto", "free"):
        message += f" (`share: client` in the definition of {name} gives each its own)"
    return Overloaded(message, server=name)


def _obstacle(call: Call, blocking: Sequence[AskedQuestion]) -> str:
    """Return what a queued call waits for."""
    if blocking:
        question = blocking[0]
        caller = question.call.caller
        text = f" ({question.text})" if question.text else ""
        return (
            f"an answer of {caller.describe(question.call.context)}, which {question.call.description} asked"
            f"{text} at {format_time(question.since)}; the calls must not overlap"
        )
    obstacle = "other calls, which must not overlap with this one"
    holders = [each for each in turn_queue(call.server).holders() if isinstance(each, Call)]
    if holders:
        holder = holders[0]
        obstacle += f" ({holder.description} of {holder.caller.describe(holder.context)})"
    return obstacle

"""The call engine: every request that a client makes of a server runs through here, whatever its way in.

A call is routed, passes the stages of its route, waits for its server and for its turn, and is sent. A result
may need more rounds, or become a task, before the client gets it. Each client gets exactly one response.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Collection, Sequence
from functools import partial

import trio
from msgspec import Raw

from mcpd.calls.call import (
    BETWEEN_ROUNDS,
    DONE,
    INTERACTIVE_METHODS,
    LARGE_RESULT,
    PREPARING,
    QUEUED,
    SENT,
    SUSPENDED,
    Answer,
    Binding,
    Call,
    Caller,
    Spawn,
    StageWork,
    Work,
)
from mcpd.calls.client_context import ClientRequest
from mcpd.calls.connections import Connections
from mcpd.calls.limits import SMALL, ArgumentBudget
from mcpd.calls.questions import rounds
from mcpd.calls.questions.questions import Questions
from mcpd.calls.responses import ServerResponses, doubt_list
from mcpd.calls.routes import RouteTable, StageFactory, Target, make_binding
from mcpd.calls.turns import CallTurns, release_turn
from mcpd.io.outbox import batch
from mcpd.io.reader import traffic
from mcpd.io.turns import take_turn
from mcpd.model.errors import (
    Denied,
    InvalidArguments,
    LimitReached,
    McpdError,
    Problem,
    ProtocolViolation,
)
from mcpd.model.events import CallOutcome
from mcpd.model.replica import ALONE, Replica
from mcpd.operations import Operations
from mcpd.protocol.upstream_session import Upstream
from mcpd.supervision.managed_server import ManagedServer
from mcpd.wire.message import ABSENT, BadFrame, Message, may_have_member

log = logging.getLogger("mcpd.calls")
_batch = batch()
OK, TOOL_ERROR = CallOutcome.OK, CallOutcome.TOOL_ERROR


class CallEngine:
    """All calls of the daemon. `spawn` must run tasks that outlive clients; `roots` returns the roots of all
    clients that use a server, and `own_server` the dedicated server of a client."""

    def __init__(
        self,
        operations: Operations,
        spawn: Spawn,
        roots: Callable[[ManagedServer], Sequence[Raw]],
        own_server: Callable[[Caller, ManagedServer], ManagedServer] = lambda caller, server: server,
        stages: Sequence[StageFactory] = (),
        replica: Replica = ALONE,
    ) -> None:
        self._operations = operations
        self._spawn = spawn
        self._own_server = own_server
        self.routes = RouteTable(operations, stages)
        self._arguments = ArgumentBudget()
        self.questions = Questions(self, spawn, roots, replica)
        self.asking = self.questions.open.asking
        self.ask_with_result = self.questions.suspended.ask
        self.withdraw = self.questions.suspended.withdraw
        self.drop_questions = self.questions.drop
        self.connections = Connections(operations, spawn)
        self.turns = CallTurns(self._start_turn, spawn, self, self.questions.open)
        self._responses = ServerResponses(self, operations, self.questions)

    # ── the way of a call to its server ─────────────────────────────────────────────────────────

    def __repr__(self) -> str:
        suspended = len(self.questions.suspended)
        return f"<CallEngine {len(self.connections)} connecting, {suspended} suspended>"

    def start(self, caller: Caller, request: ClientRequest, target: Target) -> None:
        """Send a client's request to its server, immediately if possible.

        Raises McpdError or BadFrame; nothing was sent then, and the caller must respond.
        """
        server, params, context = target.server, target.params, request.context
        if (
            context.modern
            and request.method in INTERACTIVE_METHODS
            and may_have_member(params, b'"requestState"')
        ):
            own = self.questions.resume(caller, request, server.configured_name, params)
            if own is None:
                return
            params = own
        elif context.prefers_legacy:
            second = self.connections.choose(caller, context, server, request.method)
            if second.upstream is not None or not self._asks_nothing(caller, server, request.method, target):
                server = second
        route = self.routes.find(caller.scope, server, request.method, target.tool, params)
        call = caller.calls[request.key] = Call(self, caller, request, context, server, params, route)
        call.arrived_at = _batch.now if _batch.depth else trio.current_time()
        call.alias = target.alias
        call.total_timeout = route.total_timeout
        if request.timeout:
            call.idle_timeout, call.timeout_source = request.timeout, "the caller set"
        else:
            call.idle_timeout, call.timeout_source = route.idle_timeout, route.timeout_source
        try:
            if len(params) > SMALL:
                self._arguments.add(call)
            if (upstream := server.upstream) is None:
                self.connections.add(call)
                self._start_work(call, partial(self._prepare, call))
            elif route.stages.before:
                self._run_stages(call)
            else:
                self._send(call, upstream)
        except Exception as error:
            if not isinstance(error, McpdError) or not self._send_after_failure(call, error):
                self._refuse(call, error)
                raise

    def go_on(self, caller: Caller, request: ClientRequest, target: Target, upstream: Upstream) -> Call:
        """Add a call that the version before this one has sent to this connection."""
        server, context = target.server, request.context
        route = self.routes.find(caller.scope, server, request.method, target.tool, target.params)
        call = caller.calls[request.key] = Call(self, caller, request, context, server, target.params, route)
        call.alias, call.passed, call.stats = target.alias, len(route.stages.before), route.stats
        binding = self._bind(call, upstream)
        may_be_misrouted = binding.may_ask and not upstream.link.correlates_server_requests
        if (may_be_misrouted or route.may_wait) and not self.turns.enter(call):
            release_turn(call)  # its turn had ended before, as that of a call that takes long
        call.state = SENT
        return call

    def _asks_nothing(self, caller: Caller, server: ManagedServer, method: str, target: Target) -> bool:
        """Return whether a call need not wait for the server's second process: a tool that only reads hardly
        asks anything, and any process gives the same answer."""
        if server.upstream is None or method != "tools/call":
            return False
        return self.routes.find(caller.scope, server, method, target.tool, target.params).is_read_only

    def _refuse(self, call: Call, error: Exception) -> None:
        """End a call that could not be started. Its caller responds."""
        code = error.code if isinstance(error, McpdError) else ""
        call.tell_ended(_outcome(error), code, str(error))
        if call.request is not None:
            call.caller.calls.pop(call.request.key, None)
        call.move(DONE)
        self._release(call)

    async def _prepare(self, call: Call) -> None:
        """Wait for the server, run the stages, and send the call."""
        server = await self.connections.wait_connected(call)
        await take_turn(call.caller)  # many calls may have waited for this server
        self.connections.remove(call)  # from those of the server that it waited for
        call.server = server
        route = self.routes.find(  # the lists may have come with the connection
            call.caller.scope, call.server, call.route.method, call.route.tool, call.params
        )
        if route is not call.route:  # other stages may be its own
            call.route, call.passed = route, 0
        await self._run_other_stages(call)

    def _run_stages(self, call: Call) -> None:
        """Run the stages, and send the call; in a task if something must be waited for."""
        for before in call.route.stages.before:
            pending = before(call)
            call.passed += 1
            if pending is None:
                continue
            if isinstance(pending, Answer):
                self._answer(call, pending)
            else:
                self._start_work(call, partial(self._run_other_stages, call, pending))
            return
        self._send(call, self.connections.upstream(call.server))

    async def _run_other_stages(self, call: Call, pending: StageWork | None = None) -> None:
        """Wait for `pending`, run the stages that the call has not passed, and send the call."""
        answer = None if pending is None else await pending()
        stages = call.route.stages.before
        while answer is None and call.passed < len(stages):
            await trio.lowlevel.checkpoint_if_cancelled()  # nobody would tell the stage that the call ended
            found = stages[call.passed](call)
            call.passed += 1
            answer = await found() if callable(found) else found
        if call.server.upstream is None:
            await self._operations.wait_ready(call.server)
        await trio.lowlevel.checkpoint()
        if answer is None:
            self._send(call, self.connections.upstream(call.server))
        else:
            self._answer(call, answer)

    def _answer(self, call: Call, answer: Answer) -> None:
        """Complete the call with a stage's answer."""
        call.work = None
        self._bind(call, self.connections.upstream(call.server))
        call.is_cached = answer.is_cached
        self._responses.complete(call, answer.result)

    def _send(self, call: Call, upstream: Upstream) -> None:
        """Submit the call now, or when its turn comes."""
        binding = call.caller.binding
        if binding is None or binding.upstream is not upstream or binding.context is not call.context:
            binding = self._bind(call, upstream)
        else:
            call.binding, call.meta = binding, binding.meta
        if (
            binding.awaits_visits
            and call.state is PREPARING
            and may_have_member(call.params, b'"inputResponses"')
        ):
            rounds.accept_visit(call)
        may_be_misrouted = binding.may_ask and not upstream.link.correlates_server_requests
        if (may_be_misrouted or call.route.may_wait) and not self.turns.enter(call):
            call.work = None
            call.move(QUEUED)
        else:
            self.submit(call)

    def _bind(self, call: Call, upstream: Upstream) -> Binding:
        """Assign the call to a connection. The binding is shared with the client's other calls there."""
        known = call.caller.binding
        if known is None or known.upstream is not upstream or known.context is not call.context:
            known = call.caller.binding = make_binding(call.caller, call.context, upstream)
            if call.context.modern:
                call.server.note_modern_client()
        call.binding = known
        call.meta = known.meta
        return known

    def _start_turn(self, call: Call) -> None:
        """Submit the call now that its turn has come. Its server may have been restarted since."""
        upstream = call.server.upstream

        async def submit() -> None:
            upstream = await self._operations.wait_ready(call.server)
            await trio.lowlevel.checkpoint_if_cancelled()
            self._bind(call, upstream)
            self.submit(call)

        try:
            if upstream is None:
                call.move(PREPARING)
                self._start_work(call, submit)
            else:
                self._bind(call, upstream)
                self.submit(call)
        except Exception as error:  # calls behind it must still get their turn
            self.fail(call, _to_mcpd_error(call, error))

    def submit(self, call: Call) -> None:
        """Send the call now. Raises LinkLost, Overloaded, InvalidArguments; nothing was sent then."""
        request, binding = call.request, call.binding
        assert request is not None
        assert binding is not None
        call.work = None
        upstream, method = binding.upstream, request.method
        try:
            if call.route.requires_task and upstream.accepts_task_param:
                rounds.add_task_param(call)
            params, call.stats = call.params, call.route.stats
            if not binding.translation.same and (
                method != "tools/call" or len(params) > SMALL or b'"task"' in params
            ):
                params = binding.translation.params(method, params)
            upstream.link.submit(call, method, params, plain=request.has_no_meta)
        except BadFrame as error:
            raise InvalidArguments(f"params: {error}", [Problem("$", str(error))]) from None
        if call.state is PREPARING:  # the usual case of `move`
            call.state = SENT
        else:
            call.move(SENT)

    # ── what the server answers ─────────────────────────────────────────────────────────────────

    def on_answered(self, call: Call, message: Message) -> None:
        traffic.more_expected = True
        binding, route = call.binding, call.route
        assert binding is not None
        if call.state is SUSPENDED:
            self.questions.suspended.on_answered(call, message)
        elif message.error is not ABSENT:
            self._responses.on_error(call, message.error)
        elif call.is_task or route.stages.after or call.alias or call.response_size > LARGE_RESULT:
            self._responses.on_result(call, message.result)
        elif binding.is_verbatim:
            self.finish(call, message.result)
        elif (result := binding.translation.final_result(route.method, message.result)) is not None:
            self.finish(call, result)
        else:
            self._responses.on_result(call, message.result)

    # ── its end ─────────────────────────────────────────────────────────────────────────────────

    def finish(self, call: Call, result: Raw | bytes, outcome: CallOutcome = OK) -> None:
        """End the call with a result in the client's revision."""
        for ended in call.route.stages.ended:
            ended(call, TOOL_ERROR if call.reports_error else outcome, result, "", "")
        if call.reports_error:
            doubt_list(call, result)
        request = call.request
        assert request is not None
        if call.state is SENT:  # the usual case of `move`
            call.state = DONE
        else:
            call.move(DONE)
        call.request = None
        call.caller.send_result(call, request, result)
        if call.open_questions or call.kept is not None:
            self._release(call)
        elif call.holds_turn:
            release_turn(call)

    def finish_with_error(
        self, call: Call, error: Raw | bytes, own_code: int, *, code: str, message: str
    ) -> None:
        """See `CallHandler`."""
        call.tell_ended(CallOutcome.ERROR, code, message)
        self._end(call, lambda request: call.caller.send_error_object(call, request, error, own_code))

    def fail(self, call: Call, error: McpdError) -> None:
        """End the call with an error of mcpd's own."""
        if error.server is not None:
            error.server = call.server.configured_name
        call.tell_ended(_outcome(error), error.code, error.message)
        self._end(call, lambda request: call.caller.send_error(call, request, error))

    def _end(self, call: Call, respond: Callable[[ClientRequest], None]) -> None:
        request = call.request
        assert request is not None
        call.move(DONE)
        call.request = None
        respond(request)
        self._release(call)

    def on_failed(self, call: Call, error: McpdError) -> None:
        if call.state is SUSPENDED:
            self.questions.suspended.on_failed(call, error)
        elif call.state not in (PREPARING, SENT) or not self._send_after_failure(call, error):
            self.fail(call, error)

    def _send_after_failure(self, call: Call, error: McpdError) -> bool:
        """Send the call again when a stage has removed what made it fail. Returns False if none can."""
        for failed in call.route.stages.failed:
            wait = failed(call, error)
            if wait is not None:
                self.send_again(call, wait)
                return True
        return False

    def use_own_process(self, call: Call) -> bool:
        """See `CallHandler`."""
        server = self._own_server(call.caller, call.server.original or call.server)
        if server.original is None:
            return False
        release_turn(call)
        call.server = server
        call.move(PREPARING)
        self._start_work(call, partial(self._send_when_ready, call))
        return True

    async def _send_when_ready(self, call: Call) -> None:
        upstream = await self._operations.wait_ready(call.server)
        await trio.lowlevel.checkpoint_if_cancelled()
        self._send(call, upstream)

    def send_again(self, call: Call, wait: Work) -> None:
        """See `CallHandler`."""
        release_turn(call)

        async def send() -> None:
            try:
                await wait()
            except McpdError as error:
                self.fail(call, error)
                return
            await trio.lowlevel.checkpoint_if_cancelled()
            if call.state is PREPARING and call.binding is None:  # it waited for its connection
                await self._prepare(call)
            else:
                await self._operations.wait_ready(call.server)
                self._send(call, self.connections.upstream(call.server))

        self.continue_with(call, send)

    def cancel(self, call: Call, reason: str) -> None:
        """Withdraw the call, at its server too. Its client gets no response, and the caller forgets it."""
        work, state = call.work, call.state
        if state is DONE:
            return
        call.tell_ended(CallOutcome.CANCELLED, "", reason)
        call.move(DONE)
        call.request = None
        if work is not None:
            work.cancel(reason=reason)
        elif state in (SENT, SUSPENDED) and call.binding is not None:  # None: only a stage has asked
            call.upstream.link.cancel(call, reason)
        self._release(call)

    def cancel_all(self, calls: Collection[Call], reason: str) -> None:
        """Withdraw the calls of a client that leaves. The end of one must not send another: those that wait
        for a turn are first, then those sent last, which may still wait for their connection."""
        ordered = sorted(calls, key=lambda call: (call.state is QUEUED, int(call.key or 0)))
        for call in reversed(ordered):
            self.cancel(call, reason)

    def on_caller_left(self, caller: Caller) -> None:
        """Forget a client whose calls have been withdrawn."""
        self.connections.companions.on_client_left(caller)
        self.questions.urls.on_caller_left(caller)

    def _release(self, call: Call) -> None:
        """The call has ended: assign its open questions to others, and let the next call have its turn."""
        self.connections.remove(call)
        self._arguments.remove(call)
        release_turn(call)
        self.questions.on_call_ended(call)

    # ── work that cannot be finished immediately ────────────────────────────────────────────────

    def continue_with(self, call: Call, work: Work) -> None:
        """See `CallHandler`."""
        if call.state is SENT:
            call.move(BETWEEN_ROUNDS)
            if call.open_questions and not call.is_task:  # a task may still need the answers
                self.questions.requests.on_call_ended(call)
        self._start_work(call, work)

    def _start_work(self, call: Call, work: Work) -> None:
        """Run `work` in a task; see `CallHandler.continue_with`."""
        scope = call.work = trio.CancelScope()

        async def run() -> None:
            with scope:
                try:
                    await trio.lowlevel.checkpoint_if_cancelled()
                    await work()
                except Exception as error:
                    if call.state is not DONE:
                        call.work = None
                        self.on_failed(call, _to_mcpd_error(call, error))

        # A modern client may answer a question over another connection than that of its call.
        (self._spawn if call.context.modern else call.caller.spawn)(run)


def _outcome(error: Exception) -> CallOutcome:
    return CallOutcome.DENIED if isinstance(error, Denied | LimitReached) else CallOutcome.FAILED


def _to_mcpd_error(call: Call, error: Exception) -> McpdError:
    """Convert an exception raised on behalf of a call into the error that its client gets."""
    if isinstance(error, McpdError):
        return error
    name = call.server.spec.name
    if isinstance(error, BadFrame):
        return ProtocolViolation(f"{name}: {error}", server=name)
    log.error("%s: an error in mcpd itself, while handling a call", name, exc_info=error)
    return ProtocolViolation(f"{name}: an error in mcpd itself; see its log", server=name)

"""The call engine: every request that a client makes of a server runs through here, whatever its way in.

A call is routed, passes the stages of its route, waits for its server and for its turn, and is sent. A result
may need more rounds, or become a task, before the client gets it. Each client gets exactly one response.
"""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Callable, Iterable, Sequence
from functools import partial

import msgspec
import trio
from msgspec import Raw

from mcpd.calls import concurrency, input_rounds, url_elicitation
from mcpd.calls.call import (
    BETWEEN_ROUNDS,
    DONE,
    INTERACTIVE_METHODS,
    PREPARING,
    QUEUED,
    SENT,
    SUSPENDED,
    Answer,
    Binding,
    Call,
    Caller,
    StageWork,
    Work,
    restore_alias,
)
from mcpd.calls.call_limits import SMALL, ArgumentBudget, ConnectingCalls
from mcpd.calls.call_log import CallLog
from mcpd.calls.client_context import ClientRequest
from mcpd.calls.input_rounds import StateSigner
from mcpd.calls.kept_messages import KeptMessages
from mcpd.calls.legacy_companions import LegacyCompanions
from mcpd.calls.login_links import LoginLinks
from mcpd.calls.open_questions import OpenQuestions
from mcpd.calls.routes import RouteTable, StageFactory, make_binding
from mcpd.calls.send_deadlines import SendDeadlines
from mcpd.calls.server_request_router import ServerRequestRouter
from mcpd.calls.suspended_calls import SuspendedCalls
from mcpd.calls.url_elicitation import UrlElicitations
from mcpd.calls.waiting_calls import FindSpare, WaitingCalls
from mcpd.config.settings import Settings
from mcpd.daemon_operations import Operations
from mcpd.model.call_record import CallLogLevel, CallOutcome
from mcpd.model.errors import (
    InputNeeded,
    InvalidArguments,
    LinkLost,
    McpdError,
    NeedsAuth,
    NotReady,
    Overloaded,
    Problem,
    ProtocolViolation,
)
from mcpd.protocol import mcp_tasks
from mcpd.protocol.revision_translation import R5
from mcpd.protocol.upstream_session import Upstream
from mcpd.supervision.managed_server import ManagedServer
from mcpd.support.outbox import batch
from mcpd.support.pipe_reader import traffic
from mcpd.support.turns import in_turns, rest, take_turn
from mcpd.wire import message as wire
from mcpd.wire.message import ABSENT, BadFrame, Message

log = logging.getLogger("mcpd.calls")
_batch = batch()
OK, TOOL_ERROR, INPUT_REQUIRED = CallOutcome.OK, CallOutcome.TOOL_ERROR, CallOutcome.INPUT_REQUIRED

_LARGE = 2 * 1024 * 1024
"""Bytes of params, of a result, or of an error that are not looked at in the turn in which they arrived: each
look takes up to 3 ms per MiB, as reading the envelope did."""

Spawn = Callable[[Work], None]
"""Starts a task. The provider decides how long it may live."""


class Target(msgspec.Struct, frozen=True, eq=False, gc=False):
    """Where a request goes, and with which params."""

    server: ManagedServer
    params: bytes
    tool: str = ""
    """The tool's own name, if it is known."""
    alias: tuple[str, str] | None = None
    """See `Call.alias`."""


class CallEngine:
    """All calls of the daemon. `spawn` must run tasks that outlive clients; `roots` returns the roots of all
    clients that use a server; `find_spare` a second instance for calls that would wait too long."""

    def __init__(
        self,
        operations: Operations,
        spawn: Spawn,
        roots: Callable[[ManagedServer], Iterable[Raw]],
        stages: Sequence[StageFactory] = (),
        find_spare: FindSpare = lambda caller, server: None,
        call_log: CallLog | None = None,
    ) -> None:
        self._operations = operations
        self._spawn = spawn
        self._routes = RouteTable(operations, stages, self._apply_settings)
        self.call_log = call_log
        self._recording: CallLog | None = None
        """The call log, unless the settings switch it off."""
        self._state_signer = StateSigner()
        self._connecting = ConnectingCalls()
        self._arguments = ArgumentBudget()
        self.open_questions = OpenQuestions()
        self.asking = self.open_questions.asking
        self.waiting_calls = WaitingCalls(self, self.open_questions, spawn, find_spare)
        self._send_deadlines = SendDeadlines(self, spawn, self.waiting_calls.obstacle)
        self._turns = concurrency.Turns(self._start_turn, spawn)
        self.companions = LegacyCompanions(operations, spawn)
        self.kept_messages = KeptMessages()
        self.suspended_calls = SuspendedCalls(self, spawn, self.kept_messages)
        self.url_elicitations = UrlElicitations()
        self.login_links = LoginLinks(operations, self.suspended_calls.ask, spawn)
        self.server_requests = ServerRequestRouter(
            self.suspended_calls,
            self.url_elicitations,
            self.open_questions,
            spawn,
            roots,
            self.kept_messages,
        )

    # ── a call's way to its server ──────────────────────────────────────────────────────────────

    def start(self, caller: Caller, request: ClientRequest, target: Target) -> None:
        """Send a client's request to its server, immediately if possible.

        Raises McpdError or BadFrame; nothing was sent then, and the caller must respond.
        """
        server, params, context = target.server, target.params, request.context
        if context.modern and b'"requestState"' in params and request.method in INTERACTIVE_METHODS:
            if self.suspended_calls.resume(caller, request):
                return
            params = self._state_signer.restore(server.spec.name, params)
        elif context.prefers_legacy and ((own := server.upstream) is None or own.era != "legacy"):
            may_open = request.method in INTERACTIVE_METHODS
            server = self.companions.choose(caller, context, server, may_open=may_open)
        route = self._routes.find(caller.scope, server, request.method, target.tool, params)
        call = caller.calls[request.key] = Call(self, caller, request, context, server, params, route)
        if self._recording is not None:
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
                self._connecting.add(call)
                self._start_work(call, lambda: self._prepare(call))
            elif len(params) > _LARGE:
                self._start_work(call, lambda: self._prepare(call))
            elif route.stages:
                self._run_stages(call)
            else:
                self._send(call, upstream)
            if request.timeout and call.state in (PREPARING, QUEUED):
                self._send_deadlines.add(call)
        except Exception as error:
            if isinstance(error, NeedsAuth) and self.login_links.may_help(call, error):
                self._retry_after_login(call, error)
                return
            if self._recording is not None:
                code = error.code if isinstance(error, McpdError) else ""
                self._recording.add(call, CallOutcome.FAILED, code=code, message=str(error))
            caller.calls.pop(request.key, None)
            call.move(DONE)
            self._release(call)
            raise

    def forget_routes(self) -> None:
        """See `RouteTable.forget`."""
        self._routes.forget()

    def _apply_settings(self, settings: Settings) -> None:
        log = self.call_log
        if log is not None:
            log.level, log.otlp_endpoint = settings.call_log, settings.otlp_endpoint
            is_off = settings.call_log is CallLogLevel.OFF and not settings.otlp_endpoint
            self._recording = None if is_off else log

    def _run_stages(self, call: Call) -> None:
        """Run the stages, and send the call; in a task if something must be waited for."""
        for number, stage in enumerate(call.route.stages, 1):
            pending = stage.before(call)
            if isinstance(pending, Answer):
                self._answer(call, pending)
                return
            if pending is not None:
                self._start_work(call, partial(self._prepare, call, number, pending))
                return
        self._send(call, self._connection(call.server))

    async def _prepare(self, call: Call, passed: int = 0, pending: StageWork | None = None) -> None:
        """Wait for the server and the stages but the first `passed` ones, then send the call."""
        answer = None
        if pending is not None:
            answer = await pending()
        else:
            server = await self._wait_connected(call)
            await take_turn()  # many calls may have waited for this server
            self._connecting.remove(call)
            call.server = server
            call.route = self._routes.find(  # the lists may have come with the connection
                call.caller.scope, call.server, call.route.method, call.route.tool, call.params
            )
        for stage in call.route.stages[passed:]:
            if answer is not None:
                break
            if len(call.params) > _LARGE:
                await rest()
            found = stage.before(call)
            answer = await found() if callable(found) else found
        if call.server.upstream is None:
            await self._operations.wait_ready(call.server)
        if len(call.params) > _LARGE:
            await rest()
        await trio.lowlevel.checkpoint()
        if answer is None:
            self._send(call, self._connection(call.server))
        else:
            self._answer(call, answer)

    async def _wait_connected(self, call: Call) -> ManagedServer:
        """Return the connection for the call, once somebody has logged in if that is missing."""
        may_open = call.route.method in INTERACTIVE_METHODS
        try:
            return await self.companions.wait_connected(
                call.caller, call.context, call.server, may_open=may_open
            )
        except NotReady as error:
            if not self.login_links.may_help(call, error):
                raise
            await self.login_links.wait_logged_in(call, error)
            return await self.companions.wait_connected(
                call.caller, call.context, call.server, may_open=may_open
            )

    def _answer(self, call: Call, answer: Answer) -> None:
        """Complete the call with a stage's answer."""
        call.work = None
        if call.send_deadline:
            self._send_deadlines.remove(call)
        self._bind(call, self._connection(call.server))
        call.is_cached = True
        self._complete(call, answer.result)

    def _connection(self, server: ManagedServer) -> Upstream:
        upstream = server.upstream
        if upstream is None:
            raise self._operations.not_ready_error(server)
        return upstream

    def _send(self, call: Call, upstream: Upstream) -> None:
        """Submit the call now, or when its turn comes."""
        binding = self._bind(call, upstream)
        if binding.is_modern_to_legacy and call.state is PREPARING:
            self._accept_visit(call)
        may_be_misrouted = binding.may_ask and not upstream.link.correlates_server_requests
        if (may_be_misrouted or call.route.may_wait) and not self._turns.enter(call):
            call.work = None
            if call.state is not QUEUED:
                call.move(QUEUED)
            self.waiting_calls.add(call)
        else:
            self._submit(call)

    def _bind(self, call: Call, upstream: Upstream) -> Binding:
        """Assign the call to a connection. The binding is shared with the client's other calls there."""
        known = call.caller.binding
        if known is None or known.upstream is not upstream or known.context is not call.context:
            known = call.caller.binding = make_binding(call.caller, call.context, upstream)
        call.binding = known
        call.meta = known.meta
        return known

    def _accept_visit(self, call: Call) -> None:
        """Handle the answer to a URL elicitation, which the legacy server itself knows nothing of."""
        if b'"inputResponses"' in call.params and call.route.method in INTERACTIVE_METHODS:
            params = url_elicitation.accept_visit(call.server.spec.name, call.params)
            if params is not None:
                call.params, call.resumed_after_url = params, True

    def _start_turn(self, call: Call) -> None:
        """Submit the call now that its turn has come. Its server may have been restarted since."""
        upstream = call.server.upstream
        try:
            if upstream is None:
                call.move(PREPARING)
                self._start_work(call, lambda: self._submit_when_ready(call))
            else:
                self._bind(call, upstream)
                self._submit(call)
        except Exception as error:  # calls behind it must still get their turn
            self.fail(call, self._to_mcpd_error(call, error))

    def send_elsewhere(self, call: Call, server: ManagedServer) -> None:
        """See `CallHandler`. Nothing of the call has been sent before, so it runs once."""
        concurrency.release_turn(call)
        call.move(PREPARING)
        call.server = server
        try:
            call.route = self._routes.find(
                call.caller.scope, server, call.route.method, call.route.tool, call.params
            )
            self._send(call, self._connection(server))
        except Exception as error:  # others that wait are looked at next
            self.fail(call, self._to_mcpd_error(call, error))

    async def _submit_when_ready(self, call: Call) -> None:
        upstream = await self._operations.wait_ready(call.server)
        await trio.lowlevel.checkpoint_if_cancelled()
        self._bind(call, upstream)
        self._submit(call)

    def _submit(self, call: Call) -> None:
        """Send the call now. Raises LinkLost, Overloaded, InvalidArguments; nothing was sent then."""
        request, binding = call.request, call.binding
        assert request is not None
        assert binding is not None
        call.work = None
        upstream, method = binding.upstream, request.method
        seconds_left = self._send_deadlines.seconds_left(call) if call.send_deadline else 0.0
        try:
            if call.route.requires_task and upstream.accepts_task_param:
                input_rounds.add_task_param(call)
            params, call.stats = call.params, call.route.stats
            if not binding.translation.same:
                params = binding.translation.params(method, params)
            upstream.link.submit(call, method, params, plain=request.has_no_meta)
        except BadFrame as error:
            raise InvalidArguments(f"params: {error}", [Problem("$", str(error))]) from None
        call.move(SENT)
        if seconds_left:
            self._send_deadlines.remove(call)
            call.send_deadline = 0.0
            upstream.link.extend_deadline(call, seconds_left)

    # ── what the server answers ─────────────────────────────────────────────────────────────────

    def on_answered(self, call: Call, message: Message) -> None:
        traffic.more_expected = True
        binding = call.binding
        assert binding is not None
        if call.state is SUSPENDED:
            self.suspended_calls.on_answered(call, message)
        elif message.error is not ABSENT:
            self._handle_error(call, message)
        elif len(message.result) > _LARGE and not call.is_task:
            self._continue(call, lambda: self._finish_large(call, message.result))
        elif binding.is_verbatim and not (call.is_task or call.route.stages or call.alias):
            self.finish(call, message.result)
        elif call.is_task:
            self._continue(call, lambda: self._await_task(call, message.result))
        elif binding.upstream.era == "legacy" or not self._continue_unfinished(call, message.result):
            self._complete(call, message.result)

    async def _finish_large(self, call: Call, result: Raw) -> None:
        """As the rest of `on_answered`, with rests between the looks at the result."""
        if call.upstream.era == "modern":
            kind = await in_turns(input_rounds.result_type_in_steps(result))
            await rest()
            if self._continue_unfinished(call, result, kind):
                return
        self._complete(call, result)

    def _continue_unfinished(self, call: Call, result: Raw, kind: str = "") -> bool:
        """Continue a call whose modern server needs input or created a task. Returns False for a result.

        `kind`: the type of the result if it is known already.
        """
        kind = kind or input_rounds.result_type(result)
        if kind == "complete":
            return False
        if kind == "input_required" and call.route.method in INTERACTIVE_METHODS:
            try:
                needed = input_rounds.parse_input_required(call, result)
            except McpdError as error:
                self.fail(call, error)
                return True
            if call.context.modern:
                passed_on = input_rounds.pass_on(call, needed, self._state_signer)
                if call.on_input_required is not None:
                    call.on_input_required(passed_on)
                self.finish(call, passed_on, INPUT_REQUIRED)
            else:
                self._continue(call, lambda: self._run_round(call, needed))
            return True
        if call.context.version:
            return False  # the client asked for it, or decides what to make of it
        if kind == "task":
            self._continue(call, lambda: self._await_task(call, result))
            return True
        name = call.server.spec.name
        text = f"{name}: answered {call.description} with a result of type {kind}, not allowed here"
        self.fail(call, ProtocolViolation(text, server=name))
        return True

    async def _run_round(self, call: Call, needed: input_rounds.InputRequired) -> None:
        """Ask the client what the server wants to know, and send the call again with the answers."""
        await input_rounds.answer_round(call, needed)
        await trio.lowlevel.checkpoint_if_cancelled()
        try:
            self._submit(call)
        except (LinkLost, Overloaded) as error:  # an earlier round has reached the server
            name = call.server.spec.name
            message = (
                f"{name}: {call.description} was interrupted after it had started and may have partly run"
            )
            raise LinkLost(f"{message}; not retried ({error.message})", server=name) from error

    async def _await_task(self, call: Call, created: Raw) -> None:
        """Poll the task until it is done; its result is that of the call."""
        reports = 0

        def report(text: str) -> None:
            nonlocal reports
            reports += 1
            call.report_progress({"progress": Raw(b"%d" % reports), "message": _json(text)})

        result = await mcp_tasks.await_task(
            call.upstream,
            created,
            lambda method, params: input_rounds.ask(call, method, params),
            what=call.description,
            timeout=call.idle_timeout,
            limit=call.hard_deadline - trio.current_time(),
            on_status=report,
            next_connection=lambda: self._operations.wait_reconnected(call.server),
        )
        await trio.lowlevel.checkpoint_if_cancelled()
        self._complete(call, result)

    def _complete(self, call: Call, result: Raw | bytes, passed: int = 0) -> None:
        """Run the stages but the first `passed` ones, and send the client the server's final result, in its
        own revision.
        """
        if len(result) > _LARGE:
            self._release_turn(call)
            self._start_work(call, lambda: self._complete_large(call, result, passed))
            return
        binding = call.binding
        assert binding is not None
        for stage in call.route.stages[passed:] if passed else call.route.stages:
            passed_on = stage.after(call, result)
            passed += 1
            if not isinstance(passed_on, bytes | Raw):
                self._complete_later(call, passed_on, passed)
                return
            result = passed_on
        if not binding.translation.same:
            result = binding.translation.result(call.route.method, Raw(result))
        if call.alias is not None:
            result = restore_alias(result, *call.alias)
        self.finish(call, result)

    async def _complete_large(self, call: Call, result: Raw | bytes, passed: int) -> None:
        """As `_complete`, with rests between the looks at the result."""
        binding = call.binding
        assert binding is not None
        for stage in call.route.stages[passed:]:
            await rest()
            passed_on = stage.after(call, result)
            result = passed_on if isinstance(passed_on, bytes | Raw) else await passed_on()
        if not binding.translation.same:
            result = await in_turns(binding.translation.result_in_steps(call.route.method, Raw(result)))
        if call.alias is not None:
            await rest()
            result = restore_alias(result, *call.alias)
        await rest()
        await trio.lowlevel.checkpoint_if_cancelled()
        self.finish(call, result)

    def _release_turn(self, call: Call) -> None:
        """Let other calls have their turn while mcpd works on the result of this one."""
        if call.holds_turn:
            concurrency.release_turn(call)
        if call.state is not BETWEEN_ROUNDS:
            call.move(BETWEEN_ROUNDS)

    def _complete_later(self, call: Call, pending: Callable[[], Awaitable[Raw | bytes]], passed: int) -> None:
        """Complete the call once a stage has finished."""
        self._release_turn(call)

        async def complete() -> None:
            result = await pending()
            await trio.lowlevel.checkpoint_if_cancelled()
            self._complete(call, result, passed)

        self._start_work(call, complete)

    def _handle_error(self, call: Call, message: Message) -> None:
        request, binding = call.request, call.binding
        assert request is not None
        assert binding is not None
        if len(message.error) > _LARGE:
            self._continue(call, lambda: self._finish_large_error(call, message.error))
            return
        if binding.translation.server < R5 and url_elicitation.is_url_required(message.error):
            if not binding.translation.to_modern:
                self.url_elicitations.record_all(call, message.error)
            elif call.resumed_after_url and call.rounds < url_elicitation.MAX_RETRIES:
                call.start_round()
                self._retry(call, self.url_elicitations.next_completion())
                return
            elif (result := url_elicitation.as_input_required(call, message.error)) is not None:
                self.finish(call, result, INPUT_REQUIRED)
                return
        if self._recording is not None:
            members = wire.members_or_empty(message.error)
            text = wire.string_or(members, "message")
            self._recording.add(call, CallOutcome.ERROR, code=wire.error_code(members), message=text)
        self._finish_error(call, message.error)

    async def _finish_large_error(self, call: Call, error: Raw) -> None:
        """Pass on an error that is too large to be anything but passed on."""
        await rest()
        await trio.lowlevel.checkpoint_if_cancelled()
        if self._recording is not None:
            self._recording.add(call, CallOutcome.ERROR, message="")
        self._finish_error(call, error)

    def _finish_error(self, call: Call, error_object: Raw) -> None:
        binding = call.binding
        assert binding is not None
        error = binding.translation.error(call.route.method, error_object)
        code = 0
        if binding.translation.to_modern and call.missing_capabilities:
            error = url_elicitation.missing_capability_error(call.missing_capabilities, error_object)
            code = url_elicitation.MISSING_CLIENT_CAPABILITY
        self._end(call, lambda request: call.caller.send_error_object(call, request, error, code))

    def _retry(self, call: Call, wait: Callable[[], Awaitable[None]]) -> None:
        """Send the call once more once `wait` has returned. Other calls may have their turn meanwhile."""
        if call.holds_turn:
            concurrency.release_turn(call)

        async def send_again() -> None:
            await wait()
            await trio.lowlevel.checkpoint_if_cancelled()
            self._send(call, self._connection(call.server))

        self._continue(call, send_again)

    def on_progress(self, call: Call, params: Raw) -> None:
        request = call.request
        if request is not None and request.progress_token:
            call.report_progress(wire.members(params))

    # ── the end ─────────────────────────────────────────────────────────────────────────────────

    def finish(self, call: Call, result: Raw | bytes, outcome: CallOutcome = OK) -> None:
        """End the call with a result in the client's revision."""
        recording = self._recording
        if recording is not None:
            if recording.room >= 1:
                recording.add(call, TOOL_ERROR if call.reports_error else outcome, result=result)
            else:
                recording.omitted += 1
        request = call.request
        assert request is not None
        call.move(DONE)
        call.request = None
        call.caller.send_result(call, request, result)
        if (
            call.open_questions
            or call.holds_turn
            or call.has_been_suspended
            or call.counted_bytes
            or call.on_end is not None
        ):
            self._release(call)

    def fail(self, call: Call, error: McpdError) -> None:
        """End the call with an error of mcpd's own."""
        if self._recording is not None:
            self._recording.add(call, CallOutcome.FAILED, code=error.code, message=error.message)
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
            self.suspended_calls.on_failed(call, error)
        elif call.state is SENT and self.login_links.may_help(call, error):
            call.move(BETWEEN_ROUNDS)
            self._retry_after_login(call, error)
        else:
            self.fail(call, error)

    def _retry_after_login(self, call: Call, error: McpdError) -> None:
        """Send the call again when somebody has logged in: the server has refused to execute it."""
        if call.holds_turn:
            concurrency.release_turn(call)

        async def send_again() -> None:
            await self.login_links.wait_logged_in(call, error)
            await self._operations.wait_ready(call.server)
            await trio.lowlevel.checkpoint_if_cancelled()
            self._send(call, self._connection(call.server))

        self._start_work(call, send_again)

    def cancel(self, call: Call, reason: str) -> None:
        """Withdraw the call, at its server too. Its client gets no response, and the caller forgets it."""
        work, state = call.work, call.state
        if state is DONE:
            return
        if self._recording is not None:
            self._recording.add(call, CallOutcome.CANCELLED, message=reason)
        call.move(DONE)
        call.request = None
        if work is not None:
            work.cancel(reason=reason)
        elif state in (SENT, SUSPENDED):
            call.upstream.link.cancel(call, reason)
        self._release(call)

    def _release(self, call: Call) -> None:
        """The call has ended: assign its open questions to others, and let the next call have its turn."""
        if call.on_end is not None:
            call.on_end()
        self._connecting.remove(call)
        if call.send_deadline:
            self._send_deadlines.remove(call)
        if call.counted_bytes:
            self._arguments.remove(call)
        if call.open_questions:
            self.server_requests.on_call_ended(call)
        if call.holds_turn:
            concurrency.release_turn(call)
        if call.has_been_suspended:
            self.suspended_calls.remove(call)

    def drop_questions(self, call: Call, question: str, reason: str) -> None:
        """See `CallHandler`."""
        if call.state is SUSPENDED:
            self.suspended_calls.drop(call, reason)
        elif call.state is BETWEEN_ROUNDS:
            if call.work is not None:
                call.work.cancel(reason=reason)
            name = call.server.spec.name
            message = f"{name}: {call.description} requires input to continue, but {reason}"
            self.fail(call, InputNeeded(message, server=name, asked=question))
        else:
            self.server_requests.decline_all(call, reason)

    # ── suspension (see `suspended_calls`) ──────────────────────────────────────────────────────

    def suspend(self, call: Call, result: bytes) -> None:
        """Answer the client's request for now; the call continues without one."""
        request = call.request
        assert request is not None
        call.move(SUSPENDED)
        call.request = None
        call.caller.send_result(call, request, result)

    def resume(self, call: Call, caller: Caller, request: ClientRequest) -> None:
        """Continue the call for the client's next request."""
        if call.binding is None:  # a stage asked before anything was sent
            call.move(PREPARING)
        else:
            call.move(SENT if call.work is None else BETWEEN_ROUNDS)
        call.caller, call.request = caller, request
        request.has_no_meta = False  # the params remain those of the first request
        caller.calls[request.key] = call

    # ── work that cannot be finished immediately ────────────────────────────────────────────────

    def _continue(self, call: Call, work: Work) -> None:
        call.move(BETWEEN_ROUNDS)
        self._start_work(call, work)

    def _start_work(self, call: Call, work: Work) -> None:
        """Run `work` in a task that ends with the call; an error it raises becomes the response.

        A result that `work` waited for may arrive together with the cancellation, so `work` must check for
        cancellation before it acts.
        """
        scope = call.work = trio.CancelScope()

        async def run() -> None:
            with scope:
                try:
                    await trio.lowlevel.checkpoint_if_cancelled()
                    await work()
                except Exception as error:
                    if call.state is not DONE:
                        call.work = None
                        self.on_failed(call, self._to_mcpd_error(call, error))

        # A modern client may answer a question over another connection than that of its call.
        (self._spawn if call.context.modern else call.caller.spawn)(run)

    def _to_mcpd_error(self, call: Call, error: Exception) -> McpdError:
        """Convert an exception raised on behalf of a call into the error that its client gets."""
        if isinstance(error, McpdError):
            return error
        name = call.server.spec.name
        if isinstance(error, BadFrame):
            return ProtocolViolation(f"{name}: {error}", server=name)
        log.error("%s: an error in mcpd itself, while handling a call", name, exc_info=error)
        return ProtocolViolation(f"{name}: an error in mcpd itself; see its log", server=name)


def _json(value: object) -> Raw:
    return Raw(msgspec.json.encode(value))

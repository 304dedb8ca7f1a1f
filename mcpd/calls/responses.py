"""What a server answers to a call: passed to the client at the end, unless it leads to another round.

A result may ask the client for input, or say that a task was created. A final result passes the stages of the
call's route, and is translated to the client's revision.
"""

from __future__ import annotations

import re
from collections.abc import Awaitable, Callable
from functools import partial

import msgspec
import trio
from msgspec import Raw

from mcpd.calls.call import INTERACTIVE_METHODS, LARGE_RESULT, SUSPENDED, Call, CallHandler
from mcpd.calls.questions import rounds
from mcpd.calls.questions.questions import Questions
from mcpd.calls.questions.rounds import InputRequired
from mcpd.calls.turns import release_turn
from mcpd.model.errors import LinkLost, McpdError, Overloaded, ProtocolViolation
from mcpd.model.events import CallOutcome
from mcpd.model.text import shorten
from mcpd.operations import Operations
from mcpd.protocol import mcp_tasks
from mcpd.protocol.revision_translation import R5, result_type
from mcpd.wire import message as wire
from mcpd.wire.message import BadFrame, Message


class ServerResponses:
    """Continues or ends calls with what their servers answered, through the engine (`handler`)."""

    def __init__(
        self,
        handler: CallHandler,
        operations: Operations,
        questions: Questions,
    ) -> None:
        self._handler = handler
        self._operations = operations
        self._questions = questions

    # ── results ─────────────────────────────────────────────────────────────────────────────────

    def on_result(self, call: Call, result: Raw) -> None:
        """Handle a result of the server, which need not be the final one."""
        if call.is_task:
            self._handler.continue_with(call, partial(self._await_task, call, result))
        elif not call.upstream.types_results or not self._continue_unfinished(call, result):
            self.complete(call, result)

    def _continue_unfinished(self, call: Call, result: Raw) -> bool:
        """Continue a call whose modern server needs input or created a task. Returns False for a final
        result."""
        kind = result_type(result)
        if kind == "complete":
            return False
        if kind == "input_required" and call.route.method in INTERACTIVE_METHODS:
            self._on_input_required(call, result)
            return True
        if call.context.version:
            return False  # the client asked for it, or decides what to make of it
        if kind == "task":
            self._handler.continue_with(call, partial(self._await_task, call, result))
            return True
        name = call.server.spec.name
        text = f"{name}: answered {call.description} with a result of type {kind}, not allowed here"
        self._handler.fail(call, ProtocolViolation(text, server=name))
        return True

    def _on_input_required(self, call: Call, result: Raw) -> None:
        try:
            needed = rounds.parse_input_required(call, result)
        except McpdError as error:
            self._handler.fail(call, error)
            return
        if not call.context.modern:
            self._handler.continue_with(call, lambda: self._run_round(call, needed))
            return
        passed_on = rounds.pass_on(call, needed, self._questions.signer)
        self._handler.finish(call, passed_on, CallOutcome.INPUT_REQUIRED)

    async def _run_round(self, call: Call, needed: InputRequired) -> None:
        """Ask the client what the server wants to know, and send the call again with the answers."""
        await rounds.answer_round(call, needed)
        await trio.lowlevel.checkpoint_if_cancelled()
        try:
            self._handler.submit(call)
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
            message = Raw(msgspec.json.encode(text))
            call.report_progress({"progress": Raw(b"%d" % reports), "message": message})

        key = call.upstream.link, mcp_tasks.task_id(call.upstream, created)
        tasks = self._questions.requests.polled_tasks
        tasks[key] = call
        try:
            result = await mcp_tasks.await_task(
                call.upstream,
                created,
                lambda method, params: rounds.ask(call, method, params),
                what=call.description,
                timeout=call.idle_timeout,
                limit=call.hard_deadline - trio.current_time(),
                on_status=report,
            )
        finally:
            tasks.pop(key, None)
        await trio.lowlevel.checkpoint_if_cancelled()
        call.is_task = False
        if call.state is SUSPENDED:  # its client has been asked and has not returned yet
            self._handler.on_answered(call, Message(result=result))
        else:
            self.complete(call, result)

    def complete(self, call: Call, result: Raw | bytes, passed: int = 0) -> None:
        """Run the result stages but the first `passed` ones, and send the client the final result, which is
        in the server's revision. While a stage works on it in a task, other calls may have their turn.
        """
        stages = call.route.stages
        hooks = stages.after if len(result) <= LARGE_RESULT else stages.after + stages.after_large
        for after in hooks[passed:]:
            passed_on = after(call, result)
            passed += 1
            if callable(passed_on):
                release_turn(call)
                self._handler.continue_with(call, partial(self._complete_later, call, passed_on, passed))
                return
            result = passed_on
        translation = call.translation
        if not translation.same:
            result = translation.result(call.route.method, Raw(result))
        if call.alias is not None:
            result = restore_alias(result, *call.alias)
        self._handler.finish(call, result)

    async def _complete_later(
        self, call: Call, pending: Callable[[], Awaitable[Raw | bytes]], passed: int
    ) -> None:
        """Complete the call once a stage has finished."""
        result = await pending()
        await trio.lowlevel.checkpoint_if_cancelled()
        self.complete(call, result, passed)

    # ── errors ──────────────────────────────────────────────────────────────────────────────────

    def on_error(self, call: Call, error: Raw) -> None:
        """Handle a JSON-RPC error of the server."""
        translation = call.translation
        if translation.server < R5 and rounds.is_url_required(error):
            if not translation.to_modern:
                self._questions.urls.record_all(call, error)
            elif rounds.VISITED in call.slots and call.rounds < rounds.MAX_RETRIES:
                call.start_round()
                self._handler.send_again(call, self._questions.urls.next_completion())
                return
            elif (result := rounds.as_input_required(call, error)) is not None:
                self._handler.finish(call, result, CallOutcome.INPUT_REQUIRED)
                return
        members = wire.members_or_empty(error)
        doubt_list(call, error)
        code, message = wire.error_code(members), ""
        if len(members.get("message", b"")) <= _MAX_MESSAGE:
            message = wire.string_or(members, "message")
        if not code or bytes(members.get("message", b""))[:1] != b'"':
            # Clients reject what JSON-RPC does not allow, and would say nothing of it.
            message = message or shorten(bytes(error), 500).strip('"')
            body = wire.error_body(int(code or wire.INTERNAL_ERROR), message, members.get("data"))
            error = Raw(body)
        self._finish_error(call, error, code, message)

    def _finish_error(self, call: Call, server_error: Raw, code: str, message: str) -> None:
        """End the call with the error. `code` and `message` are for the call log."""
        translation = call.translation
        error, own_code = translation.error(call.route.method, server_error), 0
        if translation.to_modern and (missing := call.slots.get(rounds.MISSING_CAPABILITIES)):
            error = rounds.missing_capability_error(missing, server_error)
            own_code = rounds.MISSING_CLIENT_CAPABILITY
        self._handler.finish_with_error(call, error, own_code, code=code, message=message)


def _says_unknown(noun: str) -> re.Pattern[bytes]:
    absent = "not found|does not exist|(?:not|no longer) (?:available|registered)"
    return re.compile(
        rf"(?i)\b(?:unknown|no such|invalid) {noun}|\b{noun}\b.{{0,200}}?\b(?:{absent})".encode()
    )


_MAX_MESSAGE = 1024 * 1024
"""Bytes of an error message that is decoded for the call log."""
_DOUBTS = {
    "tools/call": ("tools", _says_unknown("tool")),
    "prompts/get": ("prompts", _says_unknown("prompt")),
    "resources/read": ("resources", _says_unknown("resource")),
}
"""By method: the list that may be out of date, and errors that suggest it."""
_SEARCHED = 1000
"""Bytes of an error that are searched for such a text."""


def doubt_list(call: Call, error: Raw | bytes) -> None:
    """Have the server's list fetched again if its error seems to say that it does not know the entry."""
    feature, says_unknown = _DOUBTS.get(call.route.method, (None, None))
    if feature is not None and says_unknown is not None and says_unknown.search(bytes(error), 0, _SEARCHED):
        call.server.doubt_list(feature)


def restore_alias(result: Raw | bytes, own: str, public: str) -> Raw | bytes:
    """Return a read resource under the URI that the client asked for."""
    try:
        members = wire.members(result)
        contents = wire.value(members["contents"])
    except (BadFrame, KeyError):
        return result
    if not isinstance(contents, list):
        return result
    renamed = [
        {**each, "uri": public} if isinstance(each, dict) and each.get("uri") == own else each
        for each in contents
    ]
    return msgspec.json.encode({**members, "contents": renamed})

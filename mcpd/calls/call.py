"""One call: a client's request at one server, from its arrival to its response."""

from __future__ import annotations

import enum
import math
from collections.abc import Awaitable, Callable, Sequence
from contextlib import AbstractContextManager
from typing import Protocol, TypeAlias

import msgspec
import trio
from msgspec import Raw

from mcpd.calls.client_context import ClientContext, ClientRequest, Responder
from mcpd.model.errors import CallTimeout, McpdError
from mcpd.model.events import CallOutcome
from mcpd.model.policy import ClientFacts, Profile
from mcpd.model.server_spec import ServerSpec
from mcpd.model.text import shorten
from mcpd.protocol.revision_translation import R1, Translation
from mcpd.protocol.upstream_session import Upstream
from mcpd.supervision.attachments import Attachment, Attachments
from mcpd.supervision.managed_server import ManagedServer
from mcpd.transports.outgoing_request import Exchange
from mcpd.transports.tool_call_stats import ToolCallStats
from mcpd.wire import message as wire
from mcpd.wire.message import BadFrame, Message, strip_reserved

_SEARCHED = 64 * 1024
INTERACTIVE_METHODS = frozenset({"tools/call", "prompts/get", "resources/read"})
"""Methods during which a server may request input from the client."""

Work = Callable[[], Awaitable[None]]
Spawn = Callable[[Work], None]
"""Starts a task. The provider decides how long it may live."""


class Answer(msgspec.Struct, frozen=True):
    """A result that a stage has for a call, which is not sent then. In the server's revision."""

    result: Raw | bytes
    is_cached: bool = True
    """Whether it is the server's result of an earlier call."""


StageWork = Callable[[], Awaitable[Answer | None]]
ResponseCallback = Callable[[Message | None], None]
"""Called with the client's response, or with None if there will be none."""


class CallState(enum.IntEnum):
    PREPARING = 0
    """The server is connecting, or a stage of the call has not finished."""
    QUEUED = 1
    """The call waits for its turn among the calls of its server."""
    SENT = 2
    """The server works on it, and the client waits for the response."""
    SUSPENDED = 3
    """A modern client answers a question of the server or of mcpd, and will send another request."""
    BETWEEN_ROUNDS = 4
    """The server has answered, but not finally: it asked for input, created a task, or wants a retry or a
    login. Or a stage has not finished with the result."""
    DONE = 5
    """The call was answered, failed or cancelled."""


PREPARING, QUEUED, SENT, SUSPENDED, BETWEEN_ROUNDS, DONE = CallState
_MOVES = {
    PREPARING: frozenset({QUEUED, SENT, SUSPENDED, DONE}),
    QUEUED: frozenset({PREPARING, SENT, DONE}),  # PREPARING: its server restarts when its turn has come
    SENT: frozenset({SUSPENDED, BETWEEN_ROUNDS, DONE}),
    SUSPENDED: frozenset({PREPARING, SENT, BETWEEN_ROUNDS, DONE}),
    BETWEEN_ROUNDS: frozenset({QUEUED, SENT, SUSPENDED, DONE}),
    DONE: frozenset[CallState](),
}


class Scope(msgspec.Struct, eq=False):
    """Callers whose calls run through the same stages. Compared by identity."""

    is_control: bool = False
    """Whether the calls come through the control API, and not from an MCP client."""
    profile: Profile | None = None
    """It changes only with the settings, after which all routes are resolved again."""


LARGE_RESULT = 10_000
"""Bytes. Stages that only work on large results cost other calls nothing."""


class Stage:
    """What one feature does with the calls of one route: a file in `stages/`.

    A subclass defines the methods that it needs; a route calls no others. What a stage knows of a call is in
    `Call.slots`, under a key of its own. The engine imports no stage, and no stage imports another.
    """

    def before(self, call: Call) -> Answer | StageWork | None:
        """Run before the call is sent. Raise the McpdError that refuses it. May return an answer, or what to
        wait for.
        """
        raise NotImplementedError

    def after(self, call: Call, result: Raw | bytes) -> Raw | bytes | Callable[[], Awaitable[Raw | bytes]]:
        """Return the server's final result as it is passed on, or what returns it later. Must not raise."""
        raise NotImplementedError

    def after_large(
        self, call: Call, result: Raw | bytes
    ) -> Raw | bytes | Callable[[], Awaitable[Raw | bytes]]:
        """The same as `after`, but only for a result of more than `LARGE_RESULT` bytes."""
        raise NotImplementedError

    def failed(self, call: Call, error: McpdError) -> Work | None:
        """Return what to wait for before the call is sent again; None if that would not help.

        Only for errors that prove that the server did not execute it: a call is never executed twice.
        """
        raise NotImplementedError

    def ended(
        self, call: Call, outcome: CallOutcome, result: Raw | bytes, code: str = "", message: str = ""
    ) -> None:
        """The call ends. `result` is what its client gets; empty if that is an error, with this code and
        message, or nothing. Called once for each call, and must not raise."""
        raise NotImplementedError


_After: TypeAlias = "Callable[[Call, Raw | bytes], Raw | bytes | Callable[[], Awaitable[Raw | bytes]]]"


class StageHooks(msgspec.Struct, frozen=True):
    """The methods of a route's stages, in the order of the stages."""

    before: tuple[Callable[[Call], Answer | StageWork | None], ...] = ()
    after: tuple[_After, ...] = ()
    after_large: tuple[_After, ...] = ()
    failed: tuple[Callable[[Call, McpdError], Work | None], ...] = ()
    ended: tuple[Callable[[Call, CallOutcome, Raw | bytes, str, str], None], ...] = ()

    @classmethod
    def of(cls, stages: Sequence[Stage]) -> StageHooks:
        return cls(
            tuple(each.before for each in stages if type(each).before is not Stage.before),
            tuple(each.after for each in stages if type(each).after is not Stage.after),
            tuple(each.after_large for each in stages if type(each).after_large is not Stage.after_large),
            tuple(each.failed for each in stages if type(each).failed is not Stage.failed),
            tuple(each.ended for each in stages if type(each).ended is not Stage.ended),
        )


class Route(msgspec.Struct, frozen=True, eq=False, kw_only=True):
    """How the calls of one tool (or of one method) run."""

    spec: ServerSpec
    """The definition it was resolved for."""
    method: str
    tool: str = ""
    """The tool's own name."""
    stats: ToolCallStats | None = None
    """Where a `tools/call` is counted."""
    depends_on_tool: bool = False
    """Whether other tools of the server have other routes, apart from `stats`."""
    stages: StageHooks = StageHooks()
    idle_timeout: float
    total_timeout: float
    timeout_source: str
    is_read_only: bool = False
    is_exclusive: bool = False
    """Whether the definition forbids other calls at the same time (`concurrency`)."""
    write_turn: float = 0.0
    """Seconds for which a call keeps calls of other clients waiting that may change something, too; 0 if it
    neither keeps any waiting nor waits itself (`turns`)."""
    may_wait: bool = False
    """Whether calls are exclusive or take write turns."""
    requires_task: bool = False
    """Whether the tool can only be called as a task (`execution.taskSupport`, 2025-11-25)."""


class Binding(msgspec.Struct, frozen=True, eq=False):
    """What the calls of one client to one connection of a server have in common."""

    upstream: Upstream
    context: ClientContext
    translation: Translation
    is_verbatim: bool
    """Whether the client gets a legacy server's results as they are."""
    awaits_visits: bool
    """Whether answers in a request tell mcpd, and not the server, that a URL was visited."""
    meta: bytes
    """See `Exchange.meta`."""
    may_ask: bool
    """Whether a legacy server may ask this client something during a call."""


class CallerIdentity(msgspec.Struct, frozen=True, gc=False):
    """Who makes a call, for the call log."""

    client: str
    """The name that the client provided, or the name of its program."""
    pid: int
    """0 if it is unknown."""
    via: str
    """How the client is connected."""
    person: str = ""
    """Whose access token the client uses; empty for the person who runs mcpd."""


class Caller(Protocol):
    """Who makes calls and receives the responses: an MCP session, or a connection to the control API.

    No method but `ask` waits, and none raises.
    """

    scope: Scope
    calls: dict[bytes, Call]
    """The calls that have a pending request, by its id. The engine adds them; `send_result`, `send_error`
    and `send_error_object` remove them."""
    binding: Binding | None
    """Of the last call; owned by the engine."""

    def identify(self, context: ClientContext) -> CallerIdentity:
        """Return who the client of a call in this context is, for the call log."""

    @property
    def knows_roots(self) -> bool:
        """Whether no answer of the client to `roots/list` is missing."""

    def effective_roots(self) -> Sequence[Raw]:
        """Return the client's roots; if it declared none, the directory its bridge was started in."""

    @property
    def is_connected(self) -> bool:
        """Whether a question can reach the client now."""

    @property
    def may_return(self) -> bool:
        """Whether a client that is not connected may send its next request as another caller."""

    def facts(self, context: ClientContext) -> ClientFacts:
        """Return what policies may know of the client of a call in this context; always the same object for
        the same facts."""

    def describe(self, context: ClientContext) -> str:
        """Return who the client of a call in this context is, for people: `cursor (pid 4711)`."""

    def spawn(self, work: Work) -> None:
        """Run a task that ends with the client."""

    def request_meta(self, upstream: Upstream, context: ClientContext) -> bytes:
        """Return the `Exchange.meta` of calls in this context."""

    def send_result(self, call: Call, request: ClientRequest, result: Raw | bytes) -> None: ...
    def send_error(self, call: Call, request: ClientRequest, error: McpdError) -> None:
        """Send an error of mcpd's own."""

    def send_error_object(self, call: Call, request: ClientRequest, error: Raw | bytes, code: int) -> None:
        """Send a JSON-RPC error object. `code` is its code if it is mcpd's own; 0 if it is the server's."""

    def send_request(
        self, method: str, params: bytes, reply: Responder | None, on_response: ResponseCallback
    ) -> bytes:
        """Send the client a request that belongs to `reply`, and return its id.

        `on_response` is called exactly once, unless `cancel_request` comes first.
        """

    def cancel_request(self, key: bytes, reason: str) -> None:
        """Cancel a request to the client; its response will be ignored."""

    async def ask(self, call: Call, method: str, params: Raw) -> Raw:
        """Return the client's answer to a question that a server asked in a result.

        Raises McpdError if there is no answer, which ends the call.
        """

    def message_prefix(self, server: str) -> str:
        """Return what precedes a server's questions, so that a person knows who asks."""


class Question(Protocol):
    """What a client is asked: a server's request, or mcpd's own."""

    @property
    def message(self) -> Message: ...
    def respond(self, result: Raw | bytes) -> None: ...
    def decline(self, reason: str) -> None: ...


class CallHandler(Protocol):
    """What calls use of the engine, and what the code that watches or continues them uses."""

    def on_answered(self, call: Call, message: Message) -> None: ...
    def on_failed(self, call: Call, error: McpdError) -> None: ...
    def fail(self, call: Call, error: McpdError) -> None:
        """End the call with an error of mcpd's own."""

    def cancel(self, call: Call, reason: str) -> None:
        """Withdraw the call, at its server too. Its client gets no response, and the caller forgets it."""

    def asking(self, call: Call, method: str, params: bytes) -> AbstractContextManager[object]:
        """Record, while the block runs, that the call's client is asked."""

    def ask_with_result(self, call: Call, question: Question, params: bytes) -> None:
        """Ask a modern client, by a result of its request; it returns with the answer in another one."""

    def withdraw(self, call: Call, question: Question) -> None:
        """Do not ask the question of `ask_with_result` any more, and ignore an answer."""

    def drop_questions(self, call: Call, question: str, reason: str) -> None:
        """End what a call has asked its client, as if the client did not answer. `question` is what it asked,
        for the error."""

    def submit(self, call: Call) -> None:
        """Send another round of the call now. Raises LinkLost, Overloaded, InvalidArguments; nothing was sent
        then."""

    def use_own_process(self, call: Call) -> bool:
        """Let a call that was not sent yet use its client's own process. Returns False if there is none."""

    def send_again(self, call: Call, wait: Work) -> None:
        """Send the call once more when `wait` has returned. Other calls may have their turn meanwhile."""

    def continue_with(self, call: Call, work: Work) -> None:
        """Run `work` in a task that ends with the call, now that the server has answered; an error it raises
        becomes the response.

        A result that `work` waited for may arrive together with the cancellation, so `work` must check for
        cancellation before it acts.
        """

    def finish(self, call: Call, result: Raw | bytes, outcome: CallOutcome = CallOutcome.OK) -> None:
        """End the call with a result in the client's revision."""

    def finish_with_error(
        self, call: Call, error: Raw | bytes, own_code: int, *, code: str, message: str
    ) -> None:
        """End the call with a JSON-RPC error in the client's revision. `own_code`: see `send_error_object`.
        `code` and `message` are recorded in the call log."""


class Progress(msgspec.Struct, eq=False):
    """Makes the progress that a client sees increase over all rounds of a call."""

    high: float = -math.inf
    """What was last reported."""
    base: float = 0.0
    """Of earlier rounds, added to that of this round."""

    def start_round(self) -> None:
        self.base = max(self.high, 0.0)

    def advance(self, members: dict[str, Raw]) -> bool:
        """Add earlier rounds to the members of a notification; return False if it does not increase."""
        try:
            done = msgspec.json.decode(members.get("progress", Raw(b"null")), type=float)
            if self.base:
                done += self.base
                members["progress"] = Raw(msgspec.json.encode(done))
                if "total" in members:
                    total = msgspec.json.decode(members["total"], type=float)
                    members["total"] = Raw(msgspec.json.encode(total + self.base))
        except msgspec.MsgspecError:
            return False
        if done <= self.high:
            return False
        self.high = done
        return True


PROGRESS = Attachment[Progress]("the progress that was reported")
WAS_ASKED = Attachment[bool]("whether the server has sent its client a request")
NOTES = Attachment[tuple[str, ...]]("what stages noticed about the result")


class Call(Exchange):
    """A call. Its client gets exactly one response, unless it cancels; only the engine changes it.

    A call may outlive its first request: a modern client answers a server's question with another one, and
    `request` is the one to be answered next.
    """

    handler: CallHandler
    caller: Caller
    request: ClientRequest | None
    """The client's pending request; None while the call is suspended, and once it is done."""
    context: ClientContext
    server: ManagedServer
    params: bytes
    """The params of the client, with the server's own names. Further rounds add answers to them."""
    route: Route
    binding: Binding | None = None
    """Set when the call is first sent, or queued for that."""
    alias: tuple[str, str] | None = None
    """A resource's own URI, and the URI that the client uses."""
    state: CallState = PREPARING
    arrived_at: float = 0.0
    """`trio.current_time()` when its request came, if calls are logged."""
    work: trio.CancelScope | None = None
    """The task that works on the call while it is not at its server."""
    is_task: bool = False
    """Whether it runs as a task that the client does not know of."""
    holds_turn: bool = False
    """Whether it has a turn at its server, or waits for one."""
    open_questions: int = 0
    """Requests of the server that the client has not answered."""
    rounds: int = 0
    """How often it was sent again with what the client has answered."""
    is_cached: bool = False
    """Whether a stage has answered it, so that the server did not."""
    passed: int = 0
    """How many stages it has passed before it is sent."""
    kept: Attachments | None = None
    """See `slots`."""

    def __repr__(self) -> str:
        return f"<Call {self.description} at {self.server.spec.name!r}, {self.state.name}>"

    def move(self, state: CallState) -> None:
        """Change the state. Only the moves in `_MOVES` are legal."""
        if state not in _MOVES[self.state]:
            raise AssertionError(f"a call cannot move from {self.state.name} to {state.name}")
        self.state = state

    @property
    def slots(self) -> Attachments:
        """What stages, and the questions of servers, know of this call, each under a key of its own."""
        if self.kept is None:
            self.kept = Attachments()
        return self.kept

    def tell_ended(self, outcome: CallOutcome, code: str, message: str) -> None:
        """Tell the stages that the call ends without a result."""
        for ended in self.route.stages.ended:
            ended(self, outcome, b"", code, message)

    @property
    def upstream(self) -> Upstream:
        """The connection that it was last sent to."""
        assert self.binding is not None
        return self.binding.upstream

    @property
    def translation(self) -> Translation:
        """Between the client and the connection that it was last sent to."""
        assert self.binding is not None
        return self.binding.translation

    @property
    def tool(self) -> str:
        """The tool's own name; empty for another method."""
        return self.route.tool

    @property
    def sender(self) -> object:
        return self.caller

    @property
    def description(self) -> str:
        tool = self.tool
        return f"tool {tool!r}" if tool else self.route.method

    def start_round(self) -> None:
        """Begin another round: the server's progress starts at zero again."""
        self.rounds += 1
        self.response_size = 0
        if (progress := self.slots.get(PROGRESS)) is not None:
            progress.start_round()

    def report_progress(self, members: dict[str, Raw]) -> None:
        """Send the client a progress notification with these members, if it asked for any."""
        request = self.request
        if request is None or not request.progress_token:
            return
        members["progressToken"] = Raw(request.progress_token)
        strip_reserved(members)
        if self.context.version == R1:  # which has no such member
            members.pop("message", None)
        progress = self.slots.get(PROGRESS)
        if progress is None:
            progress = self.slots[PROGRESS] = Progress()
        if progress.advance(members):
            frame = wire.notification("notifications/progress", msgspec.json.encode(members))
            request.responder.send(frame)

    def answered(self, message: Message) -> None:
        self.handler.on_answered(self, message)

    def progressed(self, params: Raw) -> None:
        if self.request is not None and self.request.progress_token:
            self.report_progress(wire.members(params))

    def failed(self, error: McpdError) -> None:
        child = self.server.child
        if isinstance(error, CallTimeout) and child is not None and child.is_leader_stopped():
            step = f"run `kill -CONT -{child.pid}` or `mcpctl reconnect {self.server.spec.name}`"
            error = error.with_cause(f"its process is stopped (SIGSTOP); {step}")
        self.handler.on_failed(self, error)


def tool_name(params: bytes) -> str:
    """Return the tool named by the params of a `tools/call`; empty if none."""
    return wire.string_or(wire.members_or_empty(params), "name")


def is_name_unique(params: bytes) -> bool:
    """Return whether all readers agree on the tool's name: no second member could be taken for it.

    False for long params, which take less time to read than to search.
    """
    return len(params) <= _SEARCHED and params.lower().count(b'"name"') == 1 and params.find(b"\\u") < 0


_READ_MEMBERS = frozenset(("name", "uri", "ref", "type", "arguments"))


def read_unambiguous(raw: Raw | bytes) -> dict[str, Raw]:
    """Return the members of params, of which the last of equal ones counts. Raises BadFrame if one differs
    only in case from those that mcpd reads: some readers, such as Go's, ignore case."""
    members = wire.members(raw)
    for key in members:
        if key not in _READ_MEMBERS and key.casefold() in _READ_MEMBERS:
            raise BadFrame(f"`{shorten(key, 40)}` differs from `{key.casefold()}` only in case")
    return members

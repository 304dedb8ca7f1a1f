"""Calls through the control API: tools (`mcpd/call`), prompts and resources."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Annotated

import attrs
import msgspec
import trio
from msgspec import UNSET, Meta, Raw, UnsetType

from mcpd.calls.call import NOTES, Binding, Call, CallerIdentity, ResponseCallback, Spawn, Work
from mcpd.calls.client_context import ClientContext, ClientRequest, Responder
from mcpd.calls.engine import CallEngine
from mcpd.calls.questions.rounds import MISSING_CAPABILITIES
from mcpd.calls.routes import CONTROL, Target
from mcpd.gateway.aggregate import AggregateServer
from mcpd.gateway.session import ClientSession
from mcpd.io.turns import in_turns, rest
from mcpd.model import advice
from mcpd.model.errors import (
    InputNeeded,
    InvalidArguments,
    LinkLost,
    McpdError,
    Problem,
    UnknownResource,
    UpstreamRefused,
    may_have_run,
)
from mcpd.model.policy import ClientFacts
from mcpd.model.steps import Steps, run_steps
from mcpd.model.text import shorten
from mcpd.model.tool_result import MAX_CHECKED, normalize_result
from mcpd.operations import Operations
from mcpd.protocol.upstream_session import Upstream, to_upstream_error
from mcpd.state.clients import ClientConnection
from mcpd.supervision.catalog import MAX_NAME, did_you_mean
from mcpd.supervision.managed_server import ManagedServer
from mcpd.supervision.supervisor import Supervisor
from mcpd.wire import message as wire
from mcpd.wire.message import RESERVED_PREFIX, BadFrame, Message

NO_CONTEXT = ClientContext(version="")
"""The caller declares nothing, cannot be asked, and gets what the server sends."""
_RESOURCE_NOT_FOUND = (-32002, -32602)
"""Error codes for an unknown resource, until 2025-11-25 and since."""


class CallRequest(msgspec.Struct, forbid_unknown_fields=True):
    """`model.api.CallParams`, but with the arguments as bytes, which are forwarded unchanged."""

    server: str
    tool: str
    arguments: Raw = Raw(b"{}")
    timeout: Annotated[float, Meta(gt=0)] | None = None
    raw: bool = False
    meta: dict[str, Raw] | UnsetType = msgspec.field(name="_meta", default=UNSET)

    @property
    def progress_token(self) -> bytes:
        """The token for progress notifications, as JSON; empty if none."""
        return b"" if self.meta is UNSET else bytes(self.meta.get("progressToken", b""))

    def forwarded_params(self) -> tuple[bytes, bool]:
        """Return the params of the `tools/call`, and whether they have no `_meta`.

        Of `_meta`, they contain what is meant for the server, such as a trace context (SEP-414).
        """
        name = msgspec.json.encode(self.tool)
        params = b"".join([b'{"name":', name, b',"arguments":', self.arguments, b"}"])
        meta = {
            name: value
            for name, value in ({} if self.meta is UNSET else self.meta).items()
            if name != "progressToken" and not name.startswith(RESERVED_PREFIX)
        }
        if not meta:
            return params, True
        return b'%b,"_meta":%b}' % (params[:-1], msgspec.json.encode(meta)), False


class ControlCallRequest(ClientRequest):
    """A request to be forwarded, and what its response looks like."""

    raw: bool = True
    """Whether the caller gets the MCP result itself, and not a `CallResult`."""


_decode = msgspec.json.Decoder(CallRequest).decode
_OBJECT = re.compile(rb"\s*\{")


def read_call(params: Raw) -> CallRequest:
    """Parse the params of `mcpd/call`. Raises InvalidArguments."""
    try:
        request = _decode(params if len(params) else b"{}")
    except (msgspec.MsgspecError, RecursionError) as error:
        raise InvalidArguments(f"mcpd/call: {error}", [Problem("$", str(error))]) from None
    if len(request.tool) > MAX_NAME:
        text = f"the name has {len(request.tool)} characters, and mcpd accepts at most {MAX_NAME}"
        raise InvalidArguments(f"mcpd/call: tool: {text}", [Problem("$.tool", text)], server=request.server)
    if _OBJECT.match(request.arguments) is None:
        problem = Problem("$.arguments", "must be an object", "an empty one is {}")
        raise InvalidArguments(f"mcpd/call: {problem}", [problem], server=request.server)
    return request


class ControlClient:
    """Who uses the control API on one connection: its profile, and what policies know of it. Implements
    `ControlActivity`.
    """

    def __init__(
        self, connection: ClientConnection, read_facts: Callable[[], ClientFacts] = ClientFacts
    ) -> None:
        """`read_facts` is called when a policy needs to know the client, once unless that changes."""
        self.connection = connection
        self.selection: AggregateServer | None = None
        """What the client's profile selects; None: everything."""
        self.person: ClientSession | None = None
        """A session of the person whose servers and permissions these are; None: of the one who runs mcpd."""
        self._read_facts = read_facts
        self._facts: ClientFacts | None = None
        self._named = ""
        """The client's name when the facts were read."""

    def select(self, selection: AggregateServer | None) -> None:
        """Use a profile, or none. The client may also have another name from now on."""
        self.selection = selection
        self._facts = None

    def require(self, supervisor: Supervisor, name: str, tool: str = "") -> ManagedServer:
        """Return a server. Raises UnknownServer if there is none or the profile excludes it, and UnknownTool
        if it excludes the tool.
        """
        server = supervisor.get(name)
        if self.selection is not None:
            self.selection.require(server, tool)
        return server

    def source(self, server: ManagedServer) -> ManagedServer | None:
        """Return the server whose lists the client sees for those of `server`; None if there is none."""
        return server if self.person is None else self.person.view.source(server)

    @property
    def profile_label(self) -> str:
        """See `ControlActivity`."""
        return "" if self.selection is None else self.selection.label

    def client_facts(self) -> ClientFacts:
        """Return the facts of the client; always the same object while they are the same."""
        if self.person is not None:
            return self.person.facts(NO_CONTEXT)
        if self._facts is None or self._named != self.connection.name:
            self._named = self.connection.name
            profile = "" if self.selection is None else self.selection.profile.name
            self._facts = attrs.evolve(self._read_facts(), profile=profile)
        return self._facts


class ControlCaller:
    """The calls of one connection to the control API; see `Caller`."""

    def __init__(
        self,
        engine: CallEngine,
        operations: Operations,
        responder: Responder,
        spawn: Spawn,
        client: ControlClient,
    ) -> None:
        self.client = client
        self.scope = CONTROL
        self._engine = engine
        self._operations = operations
        self._responder = responder
        self._spawn = spawn
        self.calls: dict[bytes, Call] = {}
        self.binding: Binding | None = None
        self._session: ClientSession | None = None
        """The MCP session on the same connection, through which servers can ask the client."""

    def answer_in(self, session: ClientSession) -> None:
        """Let the client answer questions of servers in its MCP session. Later calls have its context."""
        self._session = session

    def select(self, selection: AggregateServer | None) -> None:
        """Use a profile for all later calls, or none."""
        self.client.select(selection)
        self.scope = CONTROL if selection is None else selection.control_scope

    # ── the methods ─────────────────────────────────────────────────────────────────────────────

    def call(self, key: bytes, call: CallRequest) -> None:
        """Send a `tools/call`. Raises McpdError; nothing was sent then."""
        params, has_no_meta = call.forwarded_params()
        request = ControlCallRequest(
            key,
            "tools/call",
            params,
            self._responder,
            self._context,
            progress_token=call.progress_token,
            timeout=call.timeout or 0.0,
            has_no_meta=has_no_meta,
            raw=call.raw,
        )
        server = self.client.require(self._operations.supervisor, call.server, call.tool)
        self._begin(request, Target(server, params, call.tool))

    def start(self, key: bytes, name: str, method: str, body: Mapping[str, object]) -> None:
        """Send a request that is not a call of a tool. Raises McpdError; nothing was sent then."""
        server = self.client.require(self._operations.supervisor, name)
        params = msgspec.json.encode(body)
        request = ControlCallRequest(key, method, params, self._responder, self._context)
        self._begin(request, Target(server, params))

    @property
    def _context(self) -> ClientContext:
        """Of the next call. Only a client of the legacy era declares it once."""
        session = self._session
        return NO_CONTEXT if session is None or not session.is_initialized else session.context

    def _begin(self, request: ControlCallRequest, target: Target) -> None:
        session = self.client.person if request.context is NO_CONTEXT else self._session
        if session is not None:
            target = session.dedicated(request.context, target)
        try:
            self._engine.start(self, request, target)
            if self._session is not None and request.method == "tools/call":
                _count(self._session, target.server)
        finally:
            # The call log needs the name when the call has ended. Then the client may have exited, too.
            self.client.connection.read_program_name()

    def cancel(self, key: bytes, reason: str) -> bool:
        """Cancel a call; it gets no response. Returns whether it was in progress."""
        call = self.calls.pop(key, None)
        if call is not None:
            self._engine.cancel(call, reason)
        return call is not None

    def cancel_all(self, reason: str) -> None:
        calls, self.calls = self.calls, {}
        self._engine.cancel_all(calls.values(), reason)
        if self._session is not None:
            self._engine.on_caller_left(self)
            self._session = None

    # ── responses ───────────────────────────────────────────────────────────────────────────────

    def spawn(self, work: Work) -> None:
        self._spawn(work)

    def request_meta(self, upstream: Upstream, context: ClientContext) -> bytes:
        if self._session is None or context is NO_CONTEXT:
            return upstream.default_meta
        return self._session.request_meta(upstream, context)

    def send_result(self, call: Call, request: ClientRequest, result: Raw | bytes) -> None:
        is_raw = isinstance(request, ControlCallRequest) and request.raw
        self.calls.pop(request.key, None)
        if is_raw:
            self._responder.finish(wire.result(request.key, result))
        else:
            notes = () if call.kept is None else _notes(call)
            work = normalize_result(result, notes)
            if len(result) > MAX_CHECKED:
                self._spawn(partial(self._send_large, request.key, work))
            else:
                self._responder.finish(wire.result(request.key, run_steps(work)))

    async def _send_large(self, key: bytes, work: Steps[bytes]) -> None:
        body = await in_turns(work)
        await rest()
        self._responder.finish(wire.result(key, body))

    def send_error(self, call: Call, request: ClientRequest, error: McpdError) -> None:
        self.calls.pop(request.key, None)
        ran = may_have_run(error) if request.method == "tools/call" else None
        self.respond_error(request.key, error, ran)

    def respond_error(self, key: bytes, error: McpdError, ran: bool | None = None) -> None:
        """Respond to any control request with an error of mcpd's own. `ran`: whether a tool may have run;
        None for other requests."""
        data = error.data()
        if ran is not None:
            data.setdefault("may_have_run", ran)
        if self._operations.is_stopping:
            if error.may_have_run is False:
                data["stopping"] = True  # the next daemon may execute it
            elif isinstance(error, LinkLost):
                data["daemon_stopped"] = True  # rather than the server, whose connection mcpd has closed
        self._responder.finish(wire.error(key, wire.error_body(error.rpc, error.message, data)))

    def send_error_object(self, call: Call, request: ClientRequest, error: Raw | bytes, code: int) -> None:
        refused = to_upstream_error(call.server.configured_name, Message(error=Raw(error)))
        if request.method == "resources/read":
            self.send_error(call, request, _explain_unknown_resource(call, refused))
        else:
            self.send_error(call, request, refused)

    def identify(self, context: ClientContext) -> CallerIdentity:
        client = self.client.connection
        if self.client.person is not None:
            return self.client.person.identify(context)
        return CallerIdentity(client.name, client.pid or 0, "control")

    # ── questions: only a client with an MCP session can be asked ───────────────────────────────

    @property
    def knows_roots(self) -> bool:
        return self._session is None or self._session.knows_roots

    def effective_roots(self) -> Sequence[Raw]:
        return () if self._session is None else self._session.effective_roots()

    @property
    def is_connected(self) -> bool:
        return True

    @property
    def may_return(self) -> bool:
        return False

    def facts(self, context: ClientContext) -> ClientFacts:
        return self.client.client_facts()

    def describe(self, context: ClientContext) -> str:
        return self.client.connection.describe() or "a client of the control API"

    def message_prefix(self, server: str) -> str:
        return "" if self._session is None else self._session.message_prefix(server)

    def send_request(
        self, method: str, params: bytes, reply: Responder | None, on_response: ResponseCallback
    ) -> bytes:
        if self._session is not None:
            return self._session.send_request(method, params, reply, on_response)
        on_response(None)
        return b""

    def cancel_request(self, key: bytes, reason: str) -> None:
        if self._session is not None:
            self._session.cancel_request(key, reason)

    async def ask(self, call: Call, method: str, params: Raw) -> Raw:
        """Raises InputNeeded."""
        if self._session is not None and call.context.supports(method.partition("/")[0]):
            return await self._session.ask(call, method, params)
        await trio.lowlevel.checkpoint()
        question, server = _describe_question(method, params), call.server.spec.name
        raise InputNeeded(
            f"{server}: {call.description} requires input to continue ({question}), and nobody can be asked "
            "here; use an MCP client that can answer, `mcpd.client` with `handlers`, or provide everything in"
            " the arguments",
            server=server,
            asked=question,
        )


def _count(session: ClientSession, server: ManagedServer) -> None:
    counts = session.call_counts
    if server in counts.live:
        counts.live[server] += 1
    else:
        counts.add(server)


def _notes(call: Call) -> Sequence[str]:
    """Return the warnings about a result: what stages noticed, and what the client could not be asked."""
    missing = call.slots.get(MISSING_CAPABILITIES)
    notes = call.slots.get(NOTES) or ()
    if missing is None:
        return notes
    text = f"the server asked for {' and '.join(missing)}, and mcpd answered that nobody can be asked here"
    return (*notes, f"{text}; use an MCP client that can answer, or `mcpd.client` with `handlers`")


def _explain_unknown_resource(call: Call, error: UpstreamRefused) -> McpdError:
    """Return UnknownResource with a suggestion if that is what the server's error means."""
    catalog, server = call.server.catalog, call.server.configured_name
    uri = wire.string_or(wire.members_or_empty(call.params), "uri")
    listed = () if catalog is None else catalog.resources
    means_it = error.upstream_code in _RESOURCE_NOT_FOUND or (
        error.upstream_code == 0 and "unknown resource" in error.message.lower()  # the Python SDK 1.x
    )
    if not means_it or any(item.name == uri for item in listed):
        return error
    hint = did_you_mean(uri, listed) or advice.to_list(server, "resources", listed, "its resources")
    return UnknownResource(f"{error.message}; {hint}", uri, server=server)


def _describe_question(method: str, params: Raw) -> str:
    """Return the question as the server phrased it, for error messages."""
    try:
        fields = wire.mapping(params)
    except BadFrame:
        fields = {}
    texts = [value for name in ("message", "url") if isinstance(value := fields.get(name), str)]
    text = " ".join(shorten(value, 200) for value in texts)
    return f"{shorten(method, 60)}: {text}" if text else shorten(method, 60)

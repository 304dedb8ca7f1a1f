"""One MCP client's session, independent of its transport: what it sees, what is in flight, what it was
asked.

The transport passes in every message it reads, with a `Responder` for the answer. Nothing here blocks or
knows about sockets.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Collection, Mapping, Sequence
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import Protocol

import msgspec
import trio
from msgspec import Raw

from mcpd.calls.call import (
    INTERACTIVE_METHODS,
    Binding,
    Call,
    CallerIdentity,
    ResponseCallback,
    Spawn,
    Work,
)
from mcpd.calls.client_context import (
    ClientContext,
    ClientIdentity,
    ClientRequest,
    Responder,
    forwarded_capabilities,
)
from mcpd.calls.engine import CallEngine
from mcpd.calls.kept_results import KeptResults
from mcpd.calls.permissions import Policies, refuse_denied
from mcpd.calls.questions.router import ANSWER_TIMEOUT
from mcpd.calls.routes import Target
from mcpd.gateway.client_facts import ServerCallCounts, SessionFacts, VisibleEntries
from mcpd.gateway.instances import DedicatedServers
from mcpd.gateway.requests import ClientRequests, WaitingRequests, exception_response
from mcpd.gateway.subscriptions import ClientSubscriptions
from mcpd.gateway.tool_search import ToolSearch
from mcpd.gateway.views import LIST_MEMBERS, View
from mcpd.model.api import ListedTools
from mcpd.model.errors import McpdError, ProtocolViolation, UnknownTool
from mcpd.model.policy import ALL_SERVERS, ClientFacts, Decision
from mcpd.model.text import shorten
from mcpd.operations import Operations
from mcpd.protocol.legacy import BATCH_VERSION, VERSIONS
from mcpd.protocol.revision_translation import R4, translate_request
from mcpd.protocol.upstream_session import Upstream
from mcpd.state.clients import program_name
from mcpd.supervision.managed_server import ManagedServer
from mcpd.wire import message as wire
from mcpd.wire.limits import is_response
from mcpd.wire.message import ABSENT, ENVELOPE_START, BadFrame, Message

log = logging.getLogger("mcpd.gateway")

_FORWARDED = frozenset({*INTERACTIVE_METHODS, "completion/complete"})
_USING_LISTS = _FORWARDED | LIST_MEMBERS.keys()
"""The most frequent methods that look at the view's lists, one of which is nearly always the first after a
change."""
_INVALID_REQUEST, _METHOD_NOT_FOUND, _INVALID_PARAMS = -32600, -32601, -32602
DEFAULT_LOG_LEVEL = "info"
"""The log level of a modern server's messages for a legacy client that did not set one."""
_FIRST_CONNECT_TIMEOUT = 10.0
"""Seconds that a new client's first request waits for its server to connect."""
_MAX_OWN_PARAMS = 2 * 1024 * 1024
"""Bytes of params that mcpd decodes itself."""
_MAX_METHOD = 1000
"""Characters of a method that mcpd does not know, but forwards."""
_VALID_ID_START = frozenset(b'"-0123456789')
"""A string or a number (integers by the specification, floats by some clients); never null or a structure."""


class SessionHost(Protocol):
    """The gateway, as a session uses it."""

    policies: Policies
    core: Operations
    calls: CallEngine
    subscriptions: ClientSubscriptions
    dedicated_servers: DedicatedServers
    tool_search: ToolSearch
    kept_results: KeptResults
    waiting_requests: set[trio.CancelScope]

    def on_session_closed(self, session: ClientSession) -> None: ...
    def on_log_level_changed(self, session: ClientSession) -> None: ...
    def on_roots_changed(self, session: ClientSession) -> None: ...
    def servers_of(self, session: ClientSession) -> Sequence[ManagedServer]: ...


class ListenStream(Protocol):
    """One open `subscriptions/listen` request of a modern client."""

    @property
    def request(self) -> ClientRequest: ...
    @property
    def features(self) -> Collection[str]:
        """The lists whose changes are reported."""

    def notify(self, method: str, params: Mapping[str, object] | None = None) -> None: ...
    def end(self) -> None:
        """End the subscription with a result (the daemon stops)."""


class SessionMethods(msgspec.Struct, frozen=True):
    """How a session answers the methods that mcpd answers itself."""

    legacy: Mapping[str, Callable[[ClientSession, ClientRequest], None]]
    modern: Mapping[str, Callable[[ClientSession, ClientRequest], None]]
    notifications: Mapping[str, Callable[[ClientSession], None]]
    answer_list: Callable[[ClientSession, ClientRequest], None]
    answer_read: Callable[[ClientSession, ClientRequest], bool]
    """Answer a read of what mcpd keeps itself. Returns False for a resource of a server."""
    apply_request_meta: Callable[[ClientRequest], None]
    """See `modern.apply_request_meta`."""
    make_stream: Callable[[ClientRequest, frozenset[str]], ListenStream]
    """Makes an open `ListenStream`."""
    answer_unknown_tool: Callable[[ClientSession, ClientRequest, UnknownTool], None]
    """See `built_in.table.answer_unknown_tool`."""

    def is_known(self, method: str) -> bool:
        """Return whether `method` is one of the protocol's own methods."""
        return (
            method in _FORWARDED or method in LIST_MEMBERS or method in self.legacy or method in self.modern
        )


class ClientSession:
    """Made by `Gateway.open_session`. `receive` and `close` never block."""

    def __init__(
        self,
        gateway: SessionHost,
        methods: SessionMethods,
        view: View,
        client: ClientIdentity,
        send: Callable[[bytes], None],
        spawn: Spawn,
    ) -> None:
        self.gateway = gateway
        self._methods = methods
        self.view = view
        self.scope = view.scope
        self.client = client
        self.send = send
        """Sends a frame that belongs to no request."""
        self.context = ClientContext(version=VERSIONS[0])
        """What is known of a client that does not declare it with each request."""
        self.declared_to_own_servers = self.context
        """The context of its last request to a dedicated server."""
        self.version = ""
        """The revision negotiated in a handshake; empty before it, and for a client that needs none."""
        self.is_initialized = False
        """Whether the handshake has been answered: no notification is sent before that."""
        self.roots_requests = 0
        """How often the roots were requested since `roots/list` was sent; 0 if no response is pending."""
        self.peer: str = ""
        """What the client calls itself, as `name version`."""
        self.listen_streams: dict[bytes, ListenStream] = {}
        self.roots: tuple[Raw, ...] = ()
        self.call_counts = ServerCallCounts()
        """The tool calls that were sent to servers."""
        self.client_requests = ClientRequests(send)
        self.listed: ListedTools | None = None
        """The tools that it was last listed."""
        self.last_version = ""
        """The revision of its last request."""
        self.last_client_name = ""
        """What it called itself in its last request, in the revision in which each request says that."""
        self._opened_at = trio.current_time()
        self._spawn = spawn
        self.calls: dict[bytes, Call] = {}
        self.binding: Binding | None = None
        self._waiting = WaitingRequests(gateway.waiting_requests, spawn, self.respond_exception)
        self.request_tasks = self._waiting.scopes
        """Requests other than calls that wait for something."""
        self.is_closed = False
        self._facts = SessionFacts(client, view.scope.profile)
        self.visible = VisibleEntries(gateway.policies)
        self.on_settled: Callable[[str], None] = _ignore
        """Called when the client has set its log level, or subscribed to or unsubscribed from this URI."""
        self.has_connection: Callable[[], bool] = lambda: True
        """Whether a question can reach the client now, as far as its transport knows."""

    def __repr__(self) -> str:
        state = "closed" if self.is_closed else f"{self.in_flight} in flight"
        return f"<ClientSession {self.describe(self.context)}, {self.version or 'stateless'}, {state}>"

    # ── messages of the client ──────────────────────────────────────────────────────────────────

    def receive(self, message: Message, reply: Responder) -> None:
        method = message.method
        if not method or message.id is ABSENT:
            if message.id is ABSENT or is_response(message):
                self._receive_without_id(message)
            else:
                body = wire.error_body(_INVALID_REQUEST, "a request must have a `method`")
                reply.finish(wire.error(message.key, body), _INVALID_REQUEST)
            return
        key, params = bytes(message.id), bytes(message.params)
        request = ClientRequest(key, method, params, reply, self.context)
        if key[0] not in _VALID_ID_START:
            if wire.is_null_notification(message):
                self._receive_without_id(message)
                return
            request.key = b"null"
            self.respond_error(request, _INVALID_REQUEST, "a request id must be a string or a number")
            return
        if key in self.calls or key in self.request_tasks or key in self.listen_streams:
            self.respond_error(request, _INVALID_REQUEST, "a request with this id is still in progress")
            return
        try:
            if len(params) > _MAX_OWN_PARAMS and method not in _FORWARDED and self._methods.is_known(method):
                size = len(params)
                text = (
                    f"the params of {method} have {size} bytes; at most {_MAX_OWN_PARAMS} are accepted here"
                )
                self.respond_error(request, _INVALID_PARAMS, text)
                return
            if params.find(b'_meta"') >= 0 or params.find(b"\\u") >= 0:  # see `may_have_meta`
                self._methods.apply_request_meta(request)
            else:
                request.has_no_meta = True
            if method not in _USING_LISTS:
                self._handle_own_method(request)
            elif self.view.must_prepare:
                self.spawn_request(request, partial(self._handle_prepared, request))
            elif method in _FORWARDED:
                if method == "resources/read" and self._methods.answer_read(self, request):
                    return
                self.forward(request, self.view.route(method, request.params))
            else:
                self._methods.answer_list(self, request)
        except UnknownTool as error:
            self._answer_unknown_tool(request, error)
        except Exception as error:
            self.respond_exception(request, error)

    def _answer_unknown_tool(self, request: ClientRequest, error: UnknownTool) -> None:
        try:
            self._methods.answer_unknown_tool(self, request, error)
        except Exception as refusal:
            self.respond_exception(request, refusal)

    async def _handle_prepared(self, request: ClientRequest) -> None:
        """Handle a request when the long lists of the view are ready to be used."""
        await self.view.prepare()
        await trio.lowlevel.checkpoint_if_cancelled()
        if request.method == "resources/read" and self._methods.answer_read(self, request):
            return
        if request.method in _FORWARDED:
            try:
                self.forward(request, self.view.route(request.method, request.params))
            except UnknownTool as error:
                self._answer_unknown_tool(request, error)
        else:
            self._methods.answer_list(self, request)

    def waiting_requests(self) -> list[ClientRequest]:
        """Return the requests other than calls that wait for something."""
        return list(self._waiting.requests.values())

    def handle_again(self, request: ClientRequest) -> None:
        """Handle a request that the version before this one had received, and no server has seen."""
        try:
            if request.method in _USING_LISTS:
                self.spawn_request(request, partial(self._handle_prepared, request))
            else:
                self._handle_own_method(request)
        except Exception as error:
            self.respond_exception(request, error)

    def go_on_listening(self, request: ClientRequest, features: Collection[str]) -> None:
        """Add a stream that the version before this one had opened."""
        self.listen_streams[request.key] = self._methods.make_stream(request, frozenset(features))

    def forward(self, request: ClientRequest, target: Target) -> None:
        """Forward a request to its server. Raises McpdError, BadFrame; nothing was sent then."""
        if target.server.spec.share != "all" or target.server.elicitation_history.separates_clients:
            target = self.dedicated(request.context, target)
        self.gateway.calls.start(self, request, target)
        if request.method == "tools/call":
            counts, server = self.call_counts.live, target.server
            if server in counts:
                counts[server] += 1
            else:
                self.call_counts.add(server)
        self.last_version = request.context.version
        self.last_client_name = request.context.client_name

    def dedicated(self, context: ClientContext, target: Target) -> Target:
        """Return the target in the dedicated server of this client, if it has one."""
        self.declared_to_own_servers = context
        server = self.gateway.dedicated_servers.server_for(self, target.server)
        return msgspec.structs.replace(target, server=server)

    def _single(self) -> ManagedServer | None:
        """Return the server that the client is attached to, or that of its person."""
        return None if self.view.single is None else self.view.source(self.view.single)

    def _receive_without_id(self, message: Message) -> None:
        try:
            if message.method:
                self._on_notification(message)
            else:
                self.client_requests.handle_response(message)
        except Exception:
            log.exception("an error in mcpd itself, in a client's %s", message.method[:100] or "response")

    def _handle_own_method(self, request: ClientRequest) -> None:
        """Answer a method of this hop, or forward an unknown method to a single server."""
        if request.params == b"null":
            request.params = b""
        methods = self._methods.modern if request.context.modern else self._methods.legacy
        handler = methods.get(request.method)
        if handler is not None:
            handler(self, request)
        elif request.method in self._methods.modern and self.version == "":
            self.respond_error(request, _INVALID_PARAMS, f"{request.method} requires a version in `_meta`")
        elif (
            request.method not in self._methods.legacy  # methods of the other revisions are refused here
            and request.method not in self._methods.modern
            and len(request.method) <= _MAX_METHOD
            and (single := self._single()) is not None
            and _knows_method(single, request)
        ):
            self.forward(request, self.view.route(request.method, request.params))
        else:
            self.respond_error(request, _METHOD_NOT_FOUND, f"no method {request.method[:100]!r}")

    def _on_notification(self, message: Message) -> None:
        if message.method == "notifications/cancelled":
            try:
                members = wire.members(message.params)
            except BadFrame:
                return
            self.cancel(bytes(members.get("requestId", b"")), "the client cancelled it")
        else:
            handler = self._methods.notifications.get(message.method)
            if handler is not None:
                handler(self)
            elif self.view.single is not None and self.is_initialized:
                self._notify_server(self.view.single, message)

    def _notify_server(self, server: ManagedServer, message: Message) -> None:
        """Send a notification to the server that the client is attached to, or to its own process of that,
        unless policies say otherwise. A request without an id is none."""
        method, policies = message.method, self.gateway.policies
        if self._methods.is_known(method) or method.startswith("tasks/"):
            return
        if policies.apply_to(server):
            decision = policies.verdict(self.facts(self.context), server, "method", method).decision
            if decision is not Decision.ALLOW:
                return
        used = self.gateway.servers_of(self)
        upstream = used[-1].upstream if used else None
        if upstream is not None and upstream.asks_by_request:
            upstream.link.notify(message.method, bytes(message.params))

    # ── responses ───────────────────────────────────────────────────────────────────────────────

    def respond(self, request: ClientRequest, result: bytes) -> None:
        request.responder.finish(wire.result(request.key, result))

    def respond_error(self, request: ClientRequest, code: int, text: str) -> None:
        request.responder.finish(wire.error(request.key, wire.error_body(code, text)), code)

    def respond_exception(self, request: ClientRequest, error: Exception) -> None:
        """Send an exception as the response. A bug in mcpd fails only this request."""
        is_stopping = self.gateway.core.is_stopping
        frame, code = exception_response(request, error, is_stopping=is_stopping)
        request.responder.finish(frame, code)

    # ── requests that cannot be answered immediately ────────────────────────────────────────────

    def spawn_request(self, request: ClientRequest, work: Work) -> None:
        """See `WaitingRequests.start`."""
        self._waiting.start(request, work)

    def when_catalog_known(self, request: ClientRequest, work: Callable[[], None]) -> None:
        """Run `work` once the client's server is connected; after a timeout, with what is known."""
        single = self._single()
        is_asleep = single is not None and single.spec.lazy and single.catalog is not None
        if single is None or single.upstream is not None or is_asleep:
            work()
            return

        async def wait() -> None:
            with suppress(McpdError):  # then every capability is offered, and requests report the failure
                await self.gateway.core.wait_ready(single, _FIRST_CONNECT_TIMEOUT)
            await trio.lowlevel.checkpoint_if_cancelled()
            work()

        self.spawn_request(request, wait)

    # ── calls (see `Caller`) ────────────────────────────────────────────────────────────────────

    def spawn(self, work: Work) -> None:
        self._spawn(work)

    def identify(self, context: ClientContext) -> CallerIdentity:
        client = self.client
        name = client.name or self.peer or context.client_name
        return CallerIdentity(name, client.pid, client.via, client.person)

    @property
    def names(self) -> list[str]:
        """The names that it has used."""
        return self._facts.names

    @names.setter
    def names(self, names: list[str]) -> None:
        self._facts.names = names

    @property
    def knows_roots(self) -> bool:
        return self.roots_requests == 0

    @property
    def is_connected(self) -> bool:
        return not self.is_closed and self.has_connection()

    @property
    def may_return(self) -> bool:
        return self.is_anonymous

    def facts(self, context: ClientContext) -> ClientFacts:
        return self._facts.known_by(self.peer, context.client_name)

    def prepare_decisions(self) -> None:
        """If there are policies, read what they may ask of the client before its first call."""
        if (self.is_initialized or self._facts.are_read) and self.gateway.policies.exist():
            self.facts(self.context)

    def check_resource(self, context: ClientContext, server: ManagedServer, uri: str) -> None:
        """Raise Denied if policies forbid the client this resource."""
        policies = self.gateway.policies
        if policies.apply_to(server):
            client = self.facts(context)
            verdict = policies.verdict(client, server, "resource", uri)
            refuse_denied(verdict, client, server, "resource", uri)

    def may_use_resource(self, server: ManagedServer, uri: str) -> bool:
        """See `Subscriber`."""
        policies = self.gateway.policies
        if not policies.apply_to(server):
            return True
        return (
            policies.verdict(self.facts(self.context), server, "resource", uri).decision is not Decision.DENY
        )

    def describe(self, context: ClientContext) -> str:
        pid = self.client.pid
        name = self.client.name or self.peer or context.client_name or (program_name(pid) if pid else "")
        name = shorten(name, 80) or ("an HTTP client" if self.client.via == "http" else "a client")
        if self.client.person:
            name = f"{name} of {self.client.person}"
        return f"{name} (pid {pid})" if pid else name

    def request_meta(self, upstream: Upstream, context: ClientContext) -> bytes:
        capabilities = forwarded_capabilities(context, is_single_server=self.view.single is not None)
        return upstream.request_meta(
            capabilities, context.log_level or (None if context.modern else DEFAULT_LOG_LEVEL)
        )

    def send_result(self, call: Call, request: ClientRequest, result: Raw | bytes) -> None:
        key = request.key
        self.calls.pop(key, None)  # none if the client is leaving
        request.responder.finish(b"".join((ENVELOPE_START, key, b',"result":', result, b"}\n")))

    def send_error(self, call: Call, request: ClientRequest, error: McpdError) -> None:
        self.calls.pop(request.key, None)  # none if the client is leaving
        self.respond_exception(request, error)

    def send_error_object(self, call: Call, request: ClientRequest, error: Raw | bytes, code: int) -> None:
        self.calls.pop(request.key, None)  # none if the client is leaving
        request.responder.finish(wire.error(request.key, error), code)

    def send_request(
        self, method: str, params: bytes, reply: Responder | None, on_response: ResponseCallback
    ) -> bytes:
        return self.client_requests.send_request(method, params, reply, on_response)

    def cancel_request(self, key: bytes, reason: str) -> None:
        self.client_requests.cancel(key, reason)

    async def ask(self, call: Call, method: str, params: Raw) -> Raw:
        """Ask the client. An elicitation that it does not answer is cancelled."""
        await trio.lowlevel.checkpoint_if_cancelled()  # the call may have ended before this task began
        name, request = call.server.configured_name, call.request
        assert request is not None
        try:
            translated = translate_request(method, params, self.context.version, self.message_prefix(name))
        except BadFrame as error:
            raise ProtocolViolation(f"{name}: sent an invalid input request: {error}", server=name) from None
        response = None
        if translated is not None and self.context.supports(method.partition("/")[0]):
            response = await self.client_requests.request(
                method, translated, request.responder, ANSWER_TIMEOUT
            )
        if response is not None and response.result is not ABSENT:
            return response.result
        if method == "elicitation/create":
            return Raw(b'{"action":"cancel"}')
        raise ProtocolViolation(f"{name}: needs {shorten(method, 40)}, which the client refused", server=name)

    # ── notifications ───────────────────────────────────────────────────────────────────────────

    def effective_roots(self) -> Sequence[Raw]:
        if self.roots or not self.client.cwd:
            return self.roots
        return (Raw(msgspec.json.encode({"uri": Path(self.client.cwd).as_uri()})),)

    def message_prefix(self, server: str) -> str:
        """The prefix for a server's questions, if the client sees several servers."""
        return "" if self.view.single is not None else f"[{server}] "

    def notify_list_changed(self, feature: str) -> None:
        method = f"notifications/{feature}/list_changed"
        if self.is_initialized:
            self.send(wire.notification(method))
        for listen in self.listen_streams.values():
            if feature in listen.features:
                listen.notify(method)

    def notify_elicitation_complete(self, params: Raw) -> None:
        """Report that the user has finished a URL elicitation, if the client's revision has that message."""
        if self.version >= R4:
            self.send(wire.notification("notifications/elicitation/complete", bytes(params)))

    def notify_resource_updated(self, listen: bytes, uri: str) -> None:
        """Report a changed resource; `listen` is the id of the subscription, empty for a legacy client."""
        if listen:
            if (
                subscription := self.listen_streams.get(listen)
            ) is not None:  # the daemon may be ending all of them
                subscription.notify("notifications/resources/updated", {"uri": uri})
        else:
            self.send(wire.notification("notifications/resources/updated", msgspec.json.encode({"uri": uri})))

    # ── its state and its end ───────────────────────────────────────────────────────────────────

    @property
    def accepts_batches(self) -> bool:
        """Whether its revision knows JSON-RPC batches."""
        return self.version == BATCH_VERSION

    def calls_by_server(self) -> Mapping[str, int]:
        """Return how often it has called tools, by definition name."""
        return self.call_counts.by_name()

    @property
    def attached(self) -> str:
        """The server that it is attached to, or ALL_SERVERS."""
        return self.view.single.spec.name if self.view.single else ALL_SERVERS

    @property
    def age(self) -> float:
        """Seconds since the session was opened."""
        return trio.current_time() - self._opened_at

    @property
    def in_flight(self) -> int:
        return len(self.calls) + len(self.request_tasks)

    @property
    def is_anonymous(self) -> bool:
        """Whether its next request may come as another session: HTTP in the revision without sessions."""
        return self.client.via == "http" and not self.version

    @property
    def is_busy(self) -> bool:
        """Whether responses are still due."""
        return bool(self.calls or self.request_tasks)

    def cancel(self, key: bytes, reason: str) -> None:
        """Cancel a request, call or subscription: the client gets no response."""
        self._waiting.cancel(key, reason)
        call = self.calls.pop(key, None)
        if call is not None:
            request = call.request
            self.gateway.calls.cancel(call, reason)
            if request is not None:
                request.responder.drop()
        listen = self.listen_streams.pop(key, None)
        if listen is not None:
            self.gateway.subscriptions.on_stream_closed(self, key)
            listen.request.responder.drop()

    def close(self, reason: str) -> None:
        """The client has disconnected. Idempotent."""
        if self.is_closed:
            return
        self.is_closed = True
        calls, self.calls = self.calls, {}
        self.gateway.calls.cancel_all(calls.values(), reason)
        self._waiting.close(reason)
        self.client_requests.close()
        if not self.is_anonymous:
            self.gateway.calls.questions.suspended.on_caller_left(self)
        self.listen_streams.clear()
        self.gateway.on_session_closed(self)


def _ignore(uri: str) -> None: ...


def _knows_method(server: ManagedServer, request: ClientRequest) -> bool:
    """Return whether both sides may know a method that mcpd does not: they share a revision, or an era if the
    method is not of the protocol itself."""
    upstream, method = server.upstream, request.method
    if upstream is None or method.startswith("notifications/"):
        return False
    if upstream.version == request.context.version:
        return True
    return upstream.asks_by_request and not request.context.modern and not method.startswith("tasks/")

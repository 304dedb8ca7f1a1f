"""The control API on one connection: dispatches requests, runs streams, and cancels them."""

from __future__ import annotations

import inspect
import logging
import os
from collections.abc import Awaitable, Callable, Mapping
from functools import partial
from typing import Any, Protocol

import msgspec
import trio

from mcpd.api.control.calls import ControlCaller, ControlClient, read_call
from mcpd.api.control.lists import ListReader
from mcpd.api.control.methods import MAX_WAIT, METHODS, decode_params, openrpc_document
from mcpd.calls.client_context import ClientIdentity, Responder
from mcpd.calls.stages.call_log import record_filter
from mcpd.gateway.client_facts import client_facts
from mcpd.gateway.gateway import Gateway
from mcpd.gateway.views import View
from mcpd.io.turns import TurnLimit, take_turn
from mcpd.model import api, codec
from mcpd.model.errors import McpdError, Overloaded, SlowConsumer, Unsupported
from mcpd.model.events import CallRecords, CallsParams, Event, TapParams
from mcpd.model.json_text import encode_json
from mcpd.model.policy import ALL_SERVERS, ClientFacts
from mcpd.state.clients import MAX_REPORTED, ClientConnection
from mcpd.state.history import acting_for
from mcpd.wire import message as wire
from mcpd.wire.message import METHOD_NOT_FOUND, BadFrame, Message

log = logging.getLogger("mcpd.client")

_MAX_PATH = 4096
"""Characters of a client's working directory; a longer one cannot exist."""
_LINES_AT_ONCE = 100
"""Lines of a server's log that a stream sends before others have their turn."""
MAX_RUNNING = 512
"""Requests in progress on one connection, apart from calls: each takes a task."""

UPGRADE = "mcpd/upgrade"

StartTask = Callable[[Callable[[], Awaitable[None]], str], None]
"""Starts a named task that ends with the connection."""


class ControlResponder(Responder, Protocol):
    """Sends the messages of control requests to the client."""

    async def wait_drained(self) -> None:
        """Wait until the client's connection has taken everything that was sent."""


class ControlRequests:
    """The control requests of one connection. `open_session` switches the connection to MCP."""

    def __init__(
        self,
        gateway: Gateway,
        responder: ControlResponder,
        client: ClientConnection,
        pid: int,
        start: StartTask,
        open_session: Callable[[View, ClientIdentity], object],
    ) -> None:
        self._gateway = gateway
        self._operations = gateway.core
        self._responder = responder
        self._client = client
        self._pid = pid
        self._start_task = start
        self._open_session = open_session
        self.calls = ControlCaller(
            gateway.calls,
            gateway.core,
            responder,
            lambda work: start(work, "call"),
            ControlClient(client, partial(_read_facts, client, pid)),  # not a method: that would be a cycle
        )
        self._streams = _Streams(gateway, responder)
        self._running: dict[bytes, tuple[trio.CancelScope, Message]] = {}
        """By request id, for requests other than calls."""

    @property
    def is_busy(self) -> bool:
        """Whether responses are still due."""
        return bool(self.calls.calls or self._running)

    def is_running(self, key: bytes) -> bool:
        return key in self.calls.calls or key in self._running

    def receive(self, message: Message) -> None:
        """Handle a request: respond, or start a task that will."""
        if message.method == "mcpd/call":
            self.call(message)
            return
        with acting_for(self._client.describe):
            try:
                self._dispatch(message)
            except Exception as error:
                self._send_error(message, error)

    def _dispatch(self, message: Message) -> None:
        name = message.method
        method = METHODS.get(name)
        if method is not None:
            if len(self._running) >= MAX_RUNNING:
                text = f"a connection can have at most {MAX_RUNNING} requests in progress"
                raise Overloaded(f"{name}: {text}; wait for responses, or open another connection")
            params = self._params(message, method.params)
            if name in _STREAMS:
                self._start(message, _STREAMS[name](self._streams, message, params))
                return
            if method.handler is None:
                _OF_CONNECTION[name](self, message, params)
                return
            result = method.handler(self._gateway, params)
            if inspect.isawaitable(result):
                self._start(message, result)
            else:
                self._finish(message, result)
        elif name == "rpc.discover":
            self._responder.finish(wire.result(message.key, openrpc_document()))
        else:
            text = (
                f"no method {name[:100]!r}; `rpc.discover` describes all methods, and "
                "`mcpd/attach` switches this connection to MCP"
            )
            self._responder.finish(wire.error(message.key, wire.error_body(METHOD_NOT_FOUND, text)))

    def _finish(self, message: Message, result: object) -> None:
        self._responder.finish(wire.result(message.key, codec.encode(result)))

    def _send_error(self, message: Message, error: Exception) -> None:
        """Respond with an error. A bug in mcpd fails only the request, not the client's connection."""
        is_call = message.method == "mcpd/call"
        if isinstance(error, McpdError):
            self.calls.respond_error(message.key, error, False if is_call else None)  # nothing was sent
            return
        log.error("client %d: an error in mcpd itself, in %s", self._pid, message.method, exc_info=error)
        text = f"{message.method}: an error in mcpd itself; see its log"
        self.calls.respond_error(message.key, McpdError(text), True if is_call else None)

    def call(self, message: Message) -> None:
        """Handle `mcpd/call`, the most frequent request."""
        try:
            request = read_call(message.params)
            if self._client.session is None:  # which counts its calls itself
                self._client.count_call(request.server)
            self.calls.call(message.key, request)
        except Exception as error:
            self._send_error(message, error)

    def _identify(self, message: Message, params: api.IdentifyParams) -> None:
        profile = None if params.profile == ALL_SERVERS else params.profile or None
        self.calls.select(None if profile is None else self._gateway.profile_view(profile))
        self._client.set_identity(params.client, None)
        self._finish(message, api.IdentifyResult(client=self._client.name, profile=profile))

    def _attach(self, message: Message, params: api.AttachParams) -> None:
        if params.server is not None and params.wait > 0:
            self._start(message, self._attach_when_ready(message, params))
        else:
            self._attach_now(message, params)

    async def _attach_when_ready(self, message: Message, params: api.AttachParams) -> None:
        server = self._gateway.view(params.server).single
        if server is not None:
            await self._operations.wait_ready(server, min(params.wait, MAX_WAIT))
        self._attach_now(message, params)

    def _attach_now(self, message: Message, params: api.AttachParams) -> None:
        """Attach at once, because the messages that follow are for the session."""
        profile = params.profile
        if profile is None and params.server is None and params.client is not None:
            profile = self._gateway.profile_for(params.client.cwd)
        view = self._gateway.view(params.server, profile)
        server = view.single
        identity = params.client or api.AttachedClient()
        self._client.set_identity(identity.name, identity.pid)
        via = "socket" if params.client is None else "bridge"
        self._open_session(
            view,
            ClientIdentity(
                via=via,
                name=identity.name[:MAX_REPORTED],
                pid=identity.pid or self._pid,
                cwd=_usable_directory(identity.cwd or ""),
                peer_pid=self._pid,
                surface=identity.surface,
            ),
        )
        upstream = None if server is None else server.upstream
        answer = api.AttachResult(
            server=params.server,
            profile=profile,
            protocol_version=None if upstream is None else upstream.version,
        )
        self._finish(message, answer)

    def _start(self, message: Message, work: Awaitable[object]) -> None:
        """Start a task that awaits `work`, and responds with what it returns, unless that is None."""
        scope = trio.CancelScope()
        key = message.key
        entry = self._running[key] = scope, message

        async def run() -> None:
            with scope:
                try:
                    result = await work
                    if result is not None:
                        await take_turn()  # many requests may have waited for the same event
                        self._finish(message, result)
                except Exception as error:
                    self._send_error(message, error)
            if self._running.get(key) is entry:
                del self._running[key]

        self._start_task(run, message.method)

    def _params(self, message: Message, into: type[object]) -> object:
        raw = bytes(message.params)
        try:
            params = wire.value(raw) if raw else {}
        except BadFrame as error:
            params = str(error)
        return decode_params(message.method, params, into)

    def handle_cancelled(self, message: Message) -> None:
        """Handle `notifications/cancelled`. An unknown request id is ignored."""
        try:
            key = bytes(wire.members(message.params).get("requestId", b""))
        except BadFrame:
            return
        if self.calls.cancel(key, "the client cancelled it"):
            return
        running = self._running.pop(key, None)
        if running is not None:
            running[0].cancel(reason="the client cancelled it")

    def cancel_all(self, reason: str) -> None:
        self.calls.cancel_all(reason)
        running, self._running = list(self._running.values()), {}
        for scope, _ in running:
            scope.cancel(reason=reason)

    def waiting_for_upgrade(self) -> list[bytes]:
        """Return the ids of the requests that the next version answers."""
        return [key for key, (_, message) in self._running.items() if message.method == UPGRADE]

    def refuse_to_go_on(self, error: McpdError) -> None:
        """Answer all other requests: the next version does not know them."""
        for key, (scope, message) in list(self._running.items()):
            if message.method != UPGRADE:
                del self._running[key]
                scope.cancel(reason=error.message)
                self._send_error(message, error)

    def _list(self, message: Message, params: api.OptionalServerParam) -> None:
        reader = ListReader(self._operations, self._gateway.policies, self.calls.client)
        make = {
            "mcpd/tools": reader.tools,
            "mcpd/resources": reader.resources,
            "mcpd/prompts": reader.prompts,
        }

        async def read() -> object:
            await reader.load(params.server)
            return make[message.method](params.server)

        self._start(message, read())

    def _find_tools(self, message: Message, params: api.FindToolsParams | api.NoParams) -> None:
        client, gateway = self.calls.client, self._gateway
        reader = ListReader(self._operations, gateway.policies, client)
        view: View = client.selection or gateway.profile_view(None)
        if client.person is not None:
            view = client.person.view
        if isinstance(params, api.NoParams):
            self._start(message, reader.costs(view))
        else:
            self._start(message, reader.find(params, gateway.tool_search, view))

    def _prompt(self, message: Message, params: api.PromptParams) -> None:
        body = {"name": params.prompt, "arguments": params.arguments}
        self.calls.start(message.key, params.server, "prompts/get", body)

    def _read(self, message: Message, params: api.ReadParams) -> None:
        """Read a resource, even one that is not listed."""
        self.calls.start(message.key, params.server, "resources/read", {"uri": params.uri})

    def _complete(self, message: Message, params: api.CompleteParams) -> None:
        body: dict[str, object] = {"ref": params.ref, "argument": params.argument}
        if params.context is not None:
            body["context"] = params.context
        self.calls.start(message.key, params.server, "completion/complete", body)


def _usable_directory(text: str) -> str:
    """Return an absolute path that can exist; otherwise nothing, since servers get it as a root."""
    if not text.startswith("/") or len(text) > _MAX_PATH or "\0" in text:
        return ""
    try:
        os.fsencode(text)
    except UnicodeEncodeError:
        return ""
    return text


def _read_facts(client: ClientConnection, pid: int) -> ClientFacts:
    names = (client.reported_name,)
    given = client.name
    return client_facts(names, "control", given_name=given, peer_pid=pid, reported_pid=client.pid or 0)


class _Streams:
    """The methods that send notifications until they are cancelled."""

    def __init__(self, gateway: Gateway, responder: ControlResponder) -> None:
        self._gateway = gateway
        self._operations = gateway.core
        self._responder = responder

    async def events(self, message: Message, params: api.EventsParams) -> None:
        servers = frozenset(params.servers)

        def notify(event: Event) -> None:
            if event.server is None or not servers or event.server in servers:
                self._notify(message, "mcpd/event", "event", event)

        with self._operations.watch() as (snapshot, changes):
            turns = TurnLimit()
            for event in snapshot:
                notify(event)
                await turns.pause()
            async for event in changes:
                await take_turn("streams")  # the streams of all clients wait for the same event
                notify(event)
        raise SlowConsumer(
            "this client read its events too slowly; call mcpd/events again for a new snapshot"
        )

    def _notify(self, message: Message, method: str, member: str, item: object) -> None:
        body = encode_json({"request": msgspec.Raw(message.key), member: codec.unstructure(item)})
        self._responder.send(wire.notification(method, body))

    async def logs(self, message: Message, params: api.LogsParams) -> None:
        log = self._operations.supervisor.get_any(params.server).log
        position = log.position
        tail = wire.result(message.key, codec.encode(api.LogLines(lines=log.tail(params.lines))))
        if not params.follow:
            self._responder.finish(tail)
            return
        self._responder.send(tail)
        while True:
            await log.wait_lines_after(position)
            await take_turn("streams")
            lines, missed = log.lines_after(position, _LINES_AT_ONCE)
            position += missed + len(lines)
            if missed:
                self._notify(message, "mcpd/log", "missed", missed)
            for line in lines:
                self._notify(message, "mcpd/log", "line", line)
            await self._responder.wait_drained()  # meanwhile, new lines wait in the bounded log

    async def tap(self, message: Message, params: TapParams) -> None:
        with self._operations.tap(params) as tap:
            while True:
                self._notify(message, "mcpd/frame", "frame", await tap.next())
                await self._responder.wait_drained()

    async def calls(self, message: Message, params: CallsParams) -> None:
        log, matches = self._gateway.call_log, record_filter(params)
        if log is None:
            raise Unsupported("mcpd/calls: this mcpd keeps no call log")
        with log.watch() as written:
            shared = self._operations.shared
            problem = "" if shared is None else shared.problem
            records = CallRecords(calls=await log.read(params), dropped=log.dropped, problem=problem)
            await take_turn("streams")
            response = wire.result(message.key, codec.encode(records))
            if not params.follow:
                self._responder.finish(response)
                return
            self._responder.send(response)
            seen = set(records.calls)
            async for record in written:
                if matches(record) and record not in seen:
                    await take_turn("streams")
                    self._notify(message, "mcpd/call-record", "call", record)
                    await self._responder.wait_drained()
        raise SlowConsumer("this client read the call log too slowly; call mcpd/calls again")


_STREAMS: Mapping[str, Callable[[_Streams, Message, Any], Awaitable[None]]] = {
    "mcpd/calls": _Streams.calls,
    "mcpd/events": _Streams.events,
    "mcpd/logs": _Streams.logs,
    "mcpd/tap": _Streams.tap,
}
_OF_CONNECTION: Mapping[str, Callable[[ControlRequests, Message, Any], None]] = {
    "mcpd/identify": ControlRequests._identify,
    "mcpd/attach": ControlRequests._attach,
    "mcpd/tools": ControlRequests._list,
    "mcpd/find_tools": ControlRequests._find_tools,
    "mcpd/tool_costs": ControlRequests._find_tools,
    "mcpd/resources": ControlRequests._list,
    "mcpd/prompts": ControlRequests._list,
    "mcpd/prompt": ControlRequests._prompt,
    "mcpd/read": ControlRequests._read,
    "mcpd/complete": ControlRequests._complete,
}
"""The other methods without a handler in METHODS, but for `mcpd/call`."""

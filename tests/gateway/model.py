"""A model of clients, a gateway and one scripted server in memory; more servers can be added.

`Gateway`, `ClientSession`, `TurnQueue`, and `RequestMultiplexer` are real; the wires are lists. The test
decides in which order the server asks and answers and the clients react; a mock clock controls everything
else.
"""

from __future__ import annotations

import itertools
import json
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from contextlib import asynccontextmanager
from types import SimpleNamespace
from typing import Any, NoReturn

import attrs
import msgspec
import trio
from msgspec import Raw

from mcpd.api.control.calls import ControlCaller, ControlClient, read_call
from mcpd.calls.client_context import ClientIdentity
from mcpd.calls.turns import CLIENT_TURNS, WRITE_TURNS
from mcpd.gateway.gateway import Gateway
from mcpd.gateway.session import ClientSession
from mcpd.io.broadcast import Broadcast
from mcpd.io.outbox import batch
from mcpd.model.errors import McpdError, NotReady
from mcpd.model.replica import ALONE
from mcpd.model.server_spec import ServerSpec, StdioSpec
from mcpd.model.status import ServerInfo, ServerState
from mcpd.model.tool_names import ClientStyle
from mcpd.protocol.upstream_session import NotificationInterests, ServerNotification, Upstream
from mcpd.state.clients import ClientConnection
from mcpd.supervision.attachments import Attachments
from mcpd.supervision.catalog import Catalog, Item
from mcpd.supervision.elicitation_history import ElicitationHistory
from mcpd.supervision.result_cache import ResultCache
from mcpd.transports.multiplexer import RequestMultiplexer
from mcpd.transports.outgoing_request import Exchange
from mcpd.transports.tool_call_stats import CallStats
from mcpd.wire import message as wire
from mcpd.wire.message import Message
from tests.gateway.mcp_client import CAPABLE, MODERN, meta

Json = dict[str, Any]
LEGACY = "2025-11-25"
NAME = "srv"


class Wire(RequestMultiplexer):
    """A connection whose other end is a list."""

    def __init__(self) -> None:
        super().__init__(ServerSpec(name=NAME))
        self.frames: list[bytes] = []

    async def run(self) -> NoReturn:
        await self.requests.watch_deadlines(self._expire)

    def _send_request(self, exchange: Exchange, frame: bytes) -> None:
        self.frames.append(frame)

    def _withdraw_request(self, exchange: Exchange, reason: str) -> bool:
        return False

    def _unsent_requests(self) -> set[Exchange]:
        return set()

    def _send_frame(self, frame: bytes) -> None:
        self.frames.append(frame)

    def choke(self, on: bool = True) -> None:
        """Take no more requests, as if the queue were full."""
        self._max_in_flight, self._max_queued = (0, 0) if on else (64, 256)


@attrs.define(eq=False)
class Working:
    """A call that the server works on."""

    key: int
    token: Any
    tag: str
    progress: int = 0
    waits_for: set[str] = attrs.field(factory=set)
    """The server's unanswered questions."""
    heard: list[Json] = attrs.field(factory=list)


class Stub(SimpleNamespace):
    """A namespace compared by identity."""

    __hash__ = object.__hash__  # type: ignore[assignment]
    __eq__ = object.__eq__


class StubServer(Stub):
    @property
    def configured_name(self) -> str:
        return str((self.original or self).spec.name)


def make_catalog(
    tools: Sequence[str | Json] = (),
    resources: Sequence[str | Json] = (),
    templates: Sequence[str | Json] = (),
    prompts: Sequence[str | Json] = (),
    **more: Any,
) -> Catalog:
    """Return a catalog; an entry is either a name (or URI) or the whole entry."""

    def items(entries: Sequence[str | Json], key: str) -> tuple[Item, ...]:
        whole = [{key: entry} if isinstance(entry, str) else entry for entry in entries]
        return tuple(Item(str(entry[key]), msgspec.json.encode(entry)) for entry in whole)

    return Catalog(
        tools=items(tools, "name"),
        resources=items(resources, "uri"),
        templates=items(templates, "uriTemplate"),
        prompts=items(prompts, "name"),
        **more,
    )


def make_upstream(link: Any = None, version: str = LEGACY, **capabilities: object) -> Upstream:
    """Return a connected server. Without `link`, nothing can be sent to it."""
    return Upstream(
        link=link,
        era="modern" if version == MODERN else "legacy",
        version=version,
        info=ServerInfo(),
        capabilities=capabilities or {"tools": {}, "logging": {}},
        ping_method="ping",
    )


def make_server(name: str = NAME, catalog: Catalog | None = None, **spec: Any) -> Any:
    """Return a server that is not connected. `spec` holds fields of its definition."""
    return StubServer(
        is_closed=False,
        spec=StdioSpec(name=name, command="srv", **{"is_single_process": True, **spec}),
        original=None,
        companion=None,
        companion_refusal="",
        state=ServerState.CONNECTED,
        catalog=catalog,
        upstream=None,
        child=None,
        lists_expired=False,
        is_first_start=False,
        attachments=Attachments(),
        list_attachments=Attachments(),
        call_stats=CallStats(),
        results=ResultCache(),
        interests=NotificationInterests(),
        elicitation_history=ElicitationHistory(),
        log=SimpleNamespace(add_line=lambda line: None),
        note_modern_client=lambda: None,
        is_list_doubtful=lambda feature: False,
        doubt_list=lambda feature: None,
        explain_state=lambda: f"{name} is not connected yet: connecting",
    )


def _no_companion(server: Any) -> NoReturn:
    raise NotReady("srv has one connection", server=NAME, state="connected")


class FakeSupervisor(SimpleNamespace):
    """Servers that tests change without notice."""

    @property
    def changes(self) -> object:
        return object()

    async def wait_replaced(self, server: Any) -> Any:
        return server


def make_core(*servers: Any, **settings: Any) -> Any:
    """Return the operations of a daemon with these servers and settings."""

    def find(name: str) -> Any:
        return next((server for server in servers if server.spec.name == name), None)

    return SimpleNamespace(
        replica=ALONE,
        shared=None,
        supervisor=FakeSupervisor(
            servers=lambda: list(servers),
            everything=lambda: list(servers),
            instances=SimpleNamespace(
                servers=list, is_ending=lambda server: False, start_companion=_no_companion
            ),
            get=find,
            find=find,
            announce=lambda event: None,
        ),
        config=SimpleNamespace(
            loaded=SimpleNamespace(
                settings=SimpleNamespace(
                    **{
                        "client_tool_names": ClientStyle.UNDERSCORES,
                        "validate": None,
                        "policies": (),
                        "profiles": {},
                        "approval_notifications": False,
                        **settings,
                    }
                )
            )
        ),
        events=Broadcast(100),
        clients=SimpleNamespace(connected=lambda: ()),
        redactor=SimpleNamespace(mask=str),
        environ={},
        is_stopping=False,
        not_ready_error=lambda server: NotReady("srv is not there", server=NAME, state="pending"),
    )


class World:
    """One server that cannot tell for which call it asks, and any number of clients."""

    def __init__(
        self,
        nursery: trio.Nursery,
        concurrency: str = "free",
        version: str = LEGACY,
        others: Sequence[Any] = (),
    ) -> None:
        self.nursery = nursery
        self.users: list[User] = []
        self.scripts: list[Script] = []
        self.version = version
        self.work: dict[int, Working] = {}
        self.whose: dict[str, Working] = {}
        self.late: list[str] = []
        """Answers to questions that the server no longer needed."""
        self.up = trio.Event()
        self._ids = itertools.count(1)
        self.server: Any = make_server(concurrency=concurrency)
        core = make_core(self.server, *others)
        core.wait_ready = self._ready
        core.refuse_new_calls = lambda: setattr(core, "is_stopping", True)
        self.gateway = Gateway(core)
        self.connect()

    async def _ready(self, server: Any, within: float = 30.0) -> Any:
        with trio.move_on_after(within):
            await self.up.wait()
        if self.server.upstream is None:
            raise NotReady("srv is not there", server=NAME, state="pending")
        return self.server.upstream

    # ── the server ──────────────────────────────────────────────────────────────────────────────

    def connect(self) -> None:
        """Open a new connection; nothing of the old one is kept."""
        self.work.clear()
        self.whose.clear()
        self.wire = wire_ = Wire()
        wire_.inbound = self  # type: ignore[assignment]
        self.server.upstream = make_upstream(wire_, self.version)
        self.nursery.start_soon(wire_.run)
        self.up.set()

    def on_request(self, message: Message, exchange: Exchange | None) -> None:
        if not self.gateway.on_request(self.server, self.wire, message, exchange):
            self.wire.refuse(message, -32601, "no")

    def on_notification(self, message: Message, exchange: Exchange | None) -> None:
        self.gateway.on_notification(
            self.server, ServerNotification(message.method, message.params, exchange)
        )

    def lose(self) -> None:
        """End the server's process, if there is one."""
        if self.server.upstream is None:
            return
        self.work.clear()
        self.whose.clear()
        self.up = trio.Event()
        self.server.upstream = None
        self.wire.close("the process died")

    def hear(self) -> None:
        """Read everything that has arrived."""
        frames, self.wire.frames = self.wire.frames, []
        for frame in frames:
            message = json.loads(frame)
            method = message.get("method")
            if method == "tools/call":
                tag = message["params"]["arguments"]["tag"]
                token = message["params"]["_meta"]["progressToken"]
                self.work[message["id"]] = Working(message["id"], token, tag)
            elif method == "notifications/cancelled":
                gone = self.work.pop(message["params"]["requestId"], None)
                for question in gone.waits_for if gone else ():
                    del self.whose[question]
            elif method is None:
                call = self.whose.pop(str(message["id"]), None)
                if call is None:
                    self.late.append(str(message["id"]))
                else:
                    call.waits_for.discard(str(message["id"]))
                    call.heard.append(message)

    def _say(self, message: Json) -> None:
        with batch():
            self.wire.receiver.receive(json.dumps({"jsonrpc": "2.0", **message}).encode())

    def ask(self, call: Working, method: str = "elicitation/create") -> str:
        key = f"s{next(self._ids)}"
        call.waits_for.add(key)
        self.whose[key] = call
        params: Json = {
            "message": f"{call.tag}: who?",
            "requestedSchema": {"type": "object", "properties": {}},
        }
        if method == "sampling/createMessage":
            text = {"type": "text", "text": f"{call.tag}: who?"}
            params = {"messages": [{"role": "user", "content": text}], "maxTokens": 9}
        self._say({"id": key, "method": method, "params": {} if method == "roots/list" else params})
        return key

    def withdraw(self, key: str) -> None:
        call = self.whose.pop(key)
        call.waits_for.discard(key)
        self._say({"method": "notifications/cancelled", "params": {"requestId": key}})

    def withdraw_unassigned(self, call: Working) -> None:
        """Withdraw the questions of a call of which mcpd does not know yet whom they are for."""
        for (_, key), question in list(self.gateway.calls.questions.requests._open.items()):
            if question.call is None and json.loads(key) in call.waits_for:
                self.withdraw(json.loads(key))

    def progress(self, call: Working) -> None:
        call.progress += 1
        params = {"progressToken": call.token, "progress": call.progress, "message": f"{call.tag} works"}
        self._say({"method": "notifications/progress", "params": params})

    def log(self, call: Working) -> None:
        params = {"level": "info", "data": f"{call.tag} logs"}
        self._say({"method": "notifications/message", "params": params})

    def roots(self) -> None:
        """Ask for roots outside of any call."""
        self._say({"id": f"s{next(self._ids)}", "method": "roots/list"})

    def complete(self, page: str) -> None:
        self._say({"method": "notifications/elicitation/complete", "params": {"elicitationId": page}})

    def need_input(self, call: Working, *, asks: bool) -> None:
        """Answer the call, in the modern revision, with a request for input or for another round."""
        params = {"message": f"{call.tag}: who?", "requestedSchema": {"type": "object", "properties": {}}}
        question = {"who": {"method": "elicitation/create", "params": params}}
        needed = {"inputRequests": question} if asks else {}
        self.end(call, result={"resultType": "input_required", "requestState": call.tag, **needed})

    def end(self, call: Working, error: Json | None = None, result: Json | None = None) -> None:
        """Answer the call, even if its questions are still open; without `result`, with what it heard."""
        del self.work[call.key]
        for question in call.waits_for:
            del self.whose[question]
        text = json.dumps([call.tag, *(heard.get("result", heard.get("error")) for heard in call.heard)])
        if result is None:
            result = {"content": [{"type": "text", "text": text}]}
        self._say({"id": call.key, **({"error": error} if error else {"result": result})})

    # ── the clients ─────────────────────────────────────────────────────────────────────────────

    def user(self, kind: str, capabilities: Mapping[str, object] = CAPABLE) -> User:
        """Add a client: `legacy`; `modern`, on a connection of its own; or `stateless`, a modern one with a
        session per request."""
        user = User(self, f"u{len(self.users)}", kind, capabilities)
        self.users.append(user)
        return user

    def spawn(self, work: Callable[[], Awaitable[None]]) -> None:
        self.nursery.start_soon(work)

    def empty(self) -> list[str]:
        """Describe what is left although no call is in flight; empty if nothing is."""
        left = {
            "queued": sum(len(self.server.attachments.get(key) or ()) for key in (CLIENT_TURNS, WRITE_TURNS)),
            "questions": len(self.gateway.calls.questions.requests._open),
            "suspended": len(self.gateway.calls.questions.suspended._calls)
            + len(self.gateway.calls.questions.suspended._states),
            "bytes that wait for clients": self.gateway.calls.questions.kept.budget.total,
            "at the server": len(self.wire.requests.outstanding()),
        }
        return [f"{count} {what}" for what, count in left.items() if count]


@attrs.define(eq=False)
class Asked:
    """One request of a client, until its final response."""

    params: Json
    key: int
    session: ClientSession
    done: Json | None = None
    needs: Json | None = None
    """The `input_required` result to be answered."""
    cancelled: bool = False


@attrs.define(eq=False)
class _Reply:
    """Collects the frames of one request; over HTTP its session ends with it."""

    user: User
    asked: Asked
    key: int
    session: ClientSession | None

    def send(self, frame: bytes) -> None:
        self.user.take(frame)

    def finish(self, frame: bytes, code: int = 0) -> None:
        message = json.loads(frame)
        assert message["id"] == self.key == self.asked.key, "answered twice, or another's"
        assert self.asked.done is None, "answered twice"
        assert self.asked.needs is None, "answered twice"
        assert not self.asked.cancelled, "answered though cancelled"
        result = message.get("result", {})
        if result.get("resultType") == "input_required":
            for question in result.get("inputRequests", {}).values():
                self.user.check(question["params"])
            self.asked.needs = result
        else:
            self.asked.done = message
        if self.session is not None:
            self.session.close("answered")

    def drop(self) -> None:
        assert self.asked.cancelled, "dropped though it was not cancelled"


class User:
    def __init__(self, world: World, tag: str, kind: str, capabilities: Mapping[str, object]) -> None:
        self.world = world
        self.tag = tag
        self.kind = kind
        self.capabilities = dict(capabilities)
        self.requests: list[Asked] = []
        self.questions: list[Json] = []
        self.progress: list[float] = []
        self.logs: list[str] = []
        self.completed: list[str] = []
        """URL elicitations reported as complete."""
        self.says: dict[str, Json] = {}
        """Unusual answers, by method."""
        self.here = True
        self._keys = itertools.count(1)
        self.session = self._open()
        if kind == "legacy":
            body = {"protocolVersion": LEGACY, "capabilities": self.capabilities, "clientInfo": {"name": tag}}
            hello = Asked({}, next(self._keys), self.session)
            self._put(hello, "initialize", body)
            self.say({"method": "notifications/initialized"})
            for question in list(self.questions):
                self.say({"id": question["id"], "result": {"roots": []}})
            self.questions.clear()

    def _open(self) -> ClientSession:
        via = "http" if self.kind == "stateless" else "socket"
        view = self.world.gateway.view(NAME)
        return self.world.gateway.open_session(view, ClientIdentity(via=via), self.take, self.world.spawn)

    def say(self, message: Json) -> None:
        parsed = wire.parse(json.dumps({"jsonrpc": "2.0", **message}).encode())
        with batch():
            self.session.receive(parsed, _Nowhere())

    def _put(self, asked: Asked, method: str, params: Json) -> None:
        reply = _Reply(self, asked, asked.key, asked.session if self.kind == "stateless" else None)
        frame = json.dumps({"jsonrpc": "2.0", "id": asked.key, "method": method, "params": params}).encode()
        with batch():
            asked.session.receive(wire.parse(frame), reply)

    def call(self, tool: str = "converse") -> Asked:
        session = self._open() if self.kind == "stateless" else self.session
        params: Json = {
            "name": tool,
            "arguments": {"tag": self.tag},
            "_meta": {"progressToken": self.tag},
        }
        if self.kind != "legacy":
            params["_meta"] = meta(self.capabilities, progressToken=self.tag, **{_LEVEL: "debug"})
        asked = Asked(params, next(self._keys), session)
        self.requests.append(asked)
        self._put(asked, "tools/call", params)
        return asked

    def take(self, frame: bytes) -> None:
        message = json.loads(frame)
        method = message.get("method", "")
        params = message.get("params", {})
        if "id" in message:
            self.check(params)
            assert self.kind == "legacy"
            self.questions.append(message)
        elif method == "notifications/cancelled":
            self.questions = [q for q in self.questions if q["id"] != params["requestId"]]
        elif method == "notifications/progress":
            assert params["progressToken"] == self.tag
            assert params["message"].startswith(f"{self.tag} "), f"{self.tag} got {params}"
            self.progress.append(params["progress"])
        elif method == "notifications/elicitation/complete":
            self.completed.append(params["elicitationId"])
        elif method == "notifications/message":
            # A message on stdio may belong to any call that is at the server. Long turns end early, and calls
            # of clients that cannot be asked take none.
            shared = self.world.server.spec.concurrency in ("auto", "free") and any(
                asked.done is None for asked in self.requests
            )
            assert shared or params["data"].startswith(f"{self.tag} "), f"{self.tag} got {params}"
            self.logs.append(params["data"])

    def check(self, params: Json) -> None:
        """Assert that a question belongs to one of this client's calls."""
        if params.get("mode") == "url":
            return
        text = params.get("message") or (params.get("messages") or [{}])[0].get("content", {}).get("text")
        assert text is None or text.startswith(f"{self.tag}: "), f"{self.tag} was asked {text!r}"

    def answer(self, *, refuse: bool = False) -> None:
        """Answer the oldest question, in the way of the client's revision."""
        if self.questions:
            question = self.questions.pop(0)
            said = {"error": {"code": -1, "message": "no"}} if refuse else {"result": self._answer(question)}
            self.say({"id": question["id"], **said})

    def come_back(self, asked: Asked, *, empty: bool = False) -> None:
        """Send the answers in a new request; none if `empty`."""
        needs, asked.needs = asked.needs, None
        assert needs is not None
        answers = (
            {} if empty else {name: self._answer(q) for name, q in needs.get("inputRequests", {}).items()}
        )
        asked.key = next(self._keys)
        asked.session = self._open() if self.kind == "stateless" else self.session
        more = {"inputResponses": answers, **{k: needs[k] for k in needs if k == "requestState"}}
        self._put(asked, "tools/call", {**asked.params, **more})

    def _answer(self, question: Json) -> Json:
        if question["method"] in self.says:
            return self.says[question["method"]]
        if question["method"] == "elicitation/create":
            return {"action": "accept", "content": {"name": self.tag}}
        if question["method"] == "roots/list":
            return {"roots": [{"uri": f"file:///{self.tag}"}]}
        text = {"type": "text", "text": self.tag}
        return {"role": "assistant", "content": text, "model": "m"}

    def cancel(self, asked: Asked) -> None:
        """Cancel in the way of the client's revision and transport."""
        asked.cancelled = True
        if self.kind == "stateless":
            asked.session.close("hung up")
        else:
            self.say({"method": "notifications/cancelled", "params": {"requestId": asked.key}})

    def leave(self) -> None:
        self.here = False
        for asked in self.requests:
            asked.cancelled = True
            if self.kind == "stateless":
                asked.session.close("hung up")
        self.session.close("left")


class Script:
    """A connection to the control API."""

    def __init__(self, world: World, pid: int = 4711) -> None:
        self.tag = f"s{len(world.scripts)}"
        world.scripts.append(self)
        self.here = True
        self.pending: set[int] = set()
        """The calls that are due a response."""
        self.answers: dict[int, Json] = {}
        self.progress: list[Json] = []
        self.caller = ControlCaller(
            world.gateway.calls, world.gateway.core, self, world.spawn, ControlClient(ClientConnection(pid))
        )
        self._keys = itertools.count(1)

    def call(self, tool: str = "t", arguments: object = None, **params: Any) -> int:
        """Send `mcpd/call`; returns the id of the request."""
        body = {"server": NAME, "tool": tool, "arguments": arguments or {}, **params}
        request = read_call(Raw(json.dumps(body).encode()))
        return self.put(lambda key: self.caller.call(key, request))

    def put(self, start: Callable[[bytes], None]) -> int:
        """Start a call under a new id, and return that."""
        key = next(self._keys)
        self.pending.add(key)
        try:
            with batch():
                start(b"%d" % key)
        except McpdError as error:
            self.caller.respond_error(b"%d" % key, error)
        return key

    def cancel(self, key: int) -> None:
        self.pending.remove(key)
        assert self.caller.cancel(b"%d" % key, "the client cancelled it")

    def leave(self) -> None:
        self.here = False
        self.pending.clear()
        self.caller.cancel_all("left")

    def error(self, key: int) -> Json:
        found: Json = self.answers[key]["error"]
        return found

    def send(self, frame: bytes) -> None:
        self.progress.append(json.loads(frame)["params"])

    def finish(self, frame: bytes, code: int = 0) -> None:
        message = json.loads(frame)
        assert message["id"] in self.pending, "answered twice, or though it was cancelled"
        self.pending.remove(message["id"])
        self.answers[message["id"]] = message
        text = ((message.get("result") or {}).get("content") or [{}])[0].get("text", "")
        assert text[2:3] not in ("s", "u") or json.loads(text)[0] == self.tag, "another client's result"

    def drop(self) -> None: ...


class Recorder:
    """The answers to what is asked here, by their ids."""

    def __init__(self, user: User) -> None:
        self.user = user
        self.answers: list[Json] = []
        self.dropped = 0

    def say(self, message: Json) -> None:
        self.user.session.receive(wire.parse(json.dumps({"jsonrpc": "2.0", **message}).encode()), self)

    def send(self, frame: bytes) -> None:
        self.user.take(frame)

    def finish(self, frame: bytes, code: int = 0) -> None:
        self.answers.append(json.loads(frame))

    def drop(self) -> None:
        self.dropped += 1


_LEVEL = "io.modelcontextprotocol/logLevel"


class _Nowhere:
    def send(self, frame: bytes) -> None:
        raise AssertionError(frame)

    def finish(self, frame: bytes, code: int = 0) -> None:
        raise AssertionError(frame)

    def drop(self) -> None:
        raise AssertionError("dropped")


@asynccontextmanager
async def world(**more: Any) -> AsyncIterator[World]:
    async with trio.open_nursery() as nursery:
        made = World(nursery, **more)
        made.gateway._nursery = nursery
        yield made
        nursery.cancel_scope.cancel()

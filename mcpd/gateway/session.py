"""One client's conversation, whatever carries it: what it sees, what it has under way, what it is asked.

A door hands in every message it reads and says where the answers go; nothing here waits or knows of
sockets. A client of the modern revision says what it is with each request, a legacy one once.
"""

from __future__ import annotations

import itertools
from collections.abc import Awaitable, Callable, Sequence
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING

import msgspec
import trio
from msgspec import Raw

from mcpd.eras.legacy import BATCHES_IN
from mcpd.gateway import elsewhere, inputs, legacy, lists, modern, order
from mcpd.gateway.asker import Asker, Request, passed_on
from mcpd.gateway.relay import MAY_ASK, Relay, refused
from mcpd.gateway.reply import Client, Reply
from mcpd.gateway.translate import translation
from mcpd.gateway.view import MEMBERS, Route, View
from mcpd.model.errors import InvalidArguments, McpdError, Problem, ProtocolViolation
from mcpd.supervision.server import ManagedServer
from mcpd.wire import message as wire
from mcpd.wire.message import ABSENT, BadFrame, Message
from mcpd.wire.meta import may_have_meta

if TYPE_CHECKING:
    from mcpd.gateway.gateway import Gateway

Spawn = Callable[[Callable[[], Awaitable[None]]], None]
Answered = Callable[[Message | None], None]
"""Called with a client's response to a question, or None when there will be none."""

UNSAID = "info"
"""What a legacy client gets of a modern server's log messages as long as it has not said."""
_FIRST = 10.0
"""Seconds that a client's first words wait for the one server that they are meant for."""
_ROUTED = frozenset({*MAY_ASK, "completion/complete"})
_INVALID_REQUEST, _METHOD_NOT_FOUND, _INVALID_PARAMS = -32600, -32601, -32602


def is_mcp(method: str) -> bool:
    """Whether it is one of the protocol's own methods."""
    return method in _ROUTED or method in MEMBERS or method in legacy.METHODS or method in modern.METHODS


class Session:
    """Made by `Gateway.open`. `receive` and `close` never block; `close` ends what is under way."""

    def __init__(
        self, gateway: Gateway, view: View, client: Client, tell: Callable[[bytes], None], spawn: Spawn
    ) -> None:
        self.gateway = gateway
        self.view = view
        self.client = client
        self.tell = tell
        """Sends a frame that belongs to no request."""
        self.asker = Asker(version=legacy.NEWEST)
        """What is known of a client that does not say it with its requests."""
        self.version = ""
        """The revision agreed in a handshake; empty before, and for a client that needs none."""
        self.peer: str = ""
        """What the client calls itself, as `name version`."""
        self.listens: dict[bytes, modern.Listen] = {}
        self.roots: tuple[Raw, ...] = ()
        self.servers: dict[ManagedServer, int] = {}
        """How many tool calls went to which."""
        self.spoke = ""
        """The revision of its last request."""
        self._began = trio.current_time()
        self._spawn = spawn
        self._open: dict[bytes, Relay] = {}
        self._waiting: dict[bytes, trio.CancelScope] = {}
        """Requests that are being worked on here, or go out once their server is there."""
        self._questions: dict[bytes, Answered] = {}
        self._ids = itertools.count(1)
        self._dressed: tuple[object, object, bytes] = (None, None, b"")
        """What a request to that server, for that asker, is dressed in."""
        self._closed = False

    # ── in ──────────────────────────────────────────────────────────────────────────────────────

    def receive(self, message: Message, reply: Reply) -> None:
        method = message.method
        if not method:
            answered = self._questions.pop(bytes(message.id), None)
            if answered is not None:
                answered(message)
            return
        if message.id is ABSENT:
            self._heard(message)
            return
        key, params = bytes(message.id), bytes(message.params)
        request = Request(key, method, params, reply, self.asker)
        if key in self._open or (self._waiting and key in self._waiting) or key in self.listens:
            words = "a request with this id is under way: its answer could not be told from this one's"
            self.fail(request, _INVALID_REQUEST, words)
            return
        try:
            if may_have_meta(params):
                modern.open_meta(request)
            else:
                request.plain = True
            if method in _ROUTED:
                self._relay(request)
            elif method in MEMBERS:
                lists.answer(self, request)
            else:
                self._own(request)
        except McpdError as error:
            self.refuse(request, error)
        except BadFrame as error:
            self.fail(request, _INVALID_PARAMS, f"params: {error}")

    def _own(self, request: Request) -> None:
        """What is asked of this hop, or of a single server in words that we do not know."""
        methods = modern.METHODS if request.asker.modern else legacy.METHODS
        own = methods.get(request.method)
        if own is not None:
            own(self, request)
        elif request.method in modern.METHODS and self.version == "":
            self.fail(request, _INVALID_PARAMS, f"{request.method} needs a `_meta` that says the revision")
        elif (
            request.method not in legacy.METHODS  # those of the other revisions are ours to refuse
            and request.method not in modern.METHODS
            and self.view.single is not None
            and inputs.passes_through(self.view.single, request)
        ):
            self._relay(request)
        else:
            self.fail(request, _METHOD_NOT_FOUND, f"no method {request.method[:100]!r}")

    def _heard(self, message: Message) -> None:
        if message.method == "notifications/cancelled":
            try:
                members = wire.members(message.params)
            except BadFrame:
                return
            self.cancel(bytes(members.get("requestId", b"")), "the client cancelled it")
        else:
            heard = legacy.NOTIFICATIONS.get(message.method)
            if heard is not None:
                heard(self)

    # ── passing on ──────────────────────────────────────────────────────────────────────────────

    def _relay(self, request: Request) -> None:
        route = self.view.route(request.method, request.params)
        server, params = route.server, route.params
        if server.spec.share != "all":
            server = self.gateway.instances.of(self, server)
        if request.asker.modern and b'"requestState"' in params and request.method in MAY_ASK:
            if self.gateway.parked.resume(self, request):
                return
            params = self._unsealed(server, params)
        if server.upstream is not None:
            self._send(request, server, route, params)
        else:
            self.later(request, lambda: self._send_when_ready(request, server, route, params))

    def _unsealed(self, server: ManagedServer, params: bytes) -> bytes:
        """With the state as the server wrote it. Raises InvalidArguments for one that is not from it."""
        members = wire.members(params)
        if "requestState" in members:
            state = self.gateway.seal.open(server.spec.name, members["requestState"])
            if state is None:
                words = "`requestState` is not what this server gave, or the daemon has started anew since"
                raise InvalidArguments(f"{words}; call again", [Problem("$.requestState", words)])
            members["requestState"] = state
        return msgspec.json.encode(members)

    async def _send_when_ready(
        self, request: Request, server: ManagedServer, route: Route, params: bytes
    ) -> None:
        await self.gateway.core.ready(server)
        await trio.lowlevel.checkpoint_if_cancelled()
        del self._waiting[request.key]
        self._send(request, server, route, params)

    def _send(self, request: Request, server: ManagedServer, route: Route, params: bytes) -> None:
        tool, upstream = route.tool, server.upstream
        if upstream is None:
            raise self.gateway.core.not_ready(server)
        times, asker = server.spec.timeouts, request.asker
        agreed = None
        asked = asker.modern and upstream.era == "legacy" and request.method in MAY_ASK
        if asked and b'"inputResponses"' in bytes(params):
            agreed = elsewhere.come_back(server.spec.name, params)
        relay = Relay(
            session=self,
            asker=asker,
            request=request,
            upstream=upstream,
            server=server,
            params=params if agreed is None else agreed,
            returned=agreed is not None,
            alias=route.alias,
            translation=translation(asker.version, upstream.version),
            idle=times.tools.get(tool, times.call) if times.tools else times.call,
            limit=times.call_max,
        )
        if request.method == "tools/call":
            self.servers[server] = self.servers.get(server, 0) + 1
        self.spoke = asker.version
        self._open[request.key] = relay
        try:
            self._put(relay, request)
        except (McpdError, BadFrame):
            self._open.pop(request.key, None)
            self._over(relay)
            raise

    def _put(self, relay: Relay, request: Request) -> None:
        """To its server, now or in its turn."""
        alone = relay.server.spec.concurrency != "free" or relay.asker.may_be_asked
        if not alone or order.enter(relay, request):
            self.start(relay)

    def call_again(self, relay: Relay, until: Callable[[], Awaitable[None]]) -> None:
        """Its server has answered, but not what it was asked. Meanwhile others have their turn."""
        if relay.lined:
            order.leave(relay)

        async def call() -> None:
            await until()
            await trio.lowlevel.checkpoint_if_cancelled()
            relay.stop = None
            assert relay.request is not None
            self._put(relay, relay.request)

        self.beside(relay, call)

    def start(self, relay: Relay) -> None:
        """`submit` for the first time: whose it is has not been written on it yet."""
        request, upstream, asker = relay.request, relay.upstream, relay.asker
        assert request is not None
        dressed = self._dressed
        if dressed[0] is not upstream or dressed[1] is not asker:
            told = passed_on(asker, whole=self.view.single is not None)
            level = asker.log_level or (None if asker.modern else UNSAID)
            meta = upstream.dress(told, level)
            dressed = self._dressed = (upstream, asker, meta)
        relay.meta = dressed[2]
        if request.method == "tools/call" and upstream.takes_tasks and inputs.only_as_task(relay):
            relay.as_task = True
        self.submit(relay)

    def submit(self, relay: Relay) -> None:
        """Put it to its server now. Raises LinkLost, Overloaded, BadFrame, with nothing sent."""
        request = relay.request
        assert request is not None
        translation = relay.translation
        params = relay.params if translation.same else translation.params(request.method, relay.params)
        relay.upstream.link.submit(relay, request.method, params, plain=request.plain)

    def finished(self, relay: Relay, frame: bytes, code: int = 0) -> None:
        """Give the client its response; `code`: see `Reply.finish`."""
        request = relay.request
        assert request is not None
        self._open.pop(request.key, None)
        request.reply.finish(frame, code)
        if relay.asked or relay.lined or relay.parked:
            self._over(relay)

    def _over(self, relay: Relay) -> None:
        """Nothing comes for it any more: what was asked for it goes to others, the next has its turn."""
        if relay.asked:
            self.gateway.questions.over(relay)
        if relay.lined:
            order.leave(relay)
        if relay.parked:
            self.gateway.parked.left(relay)

    def became_task(self, relay: Relay, created: Raw) -> None:
        """The server works on it, and is asked after it until it is done."""
        self.beside(relay, lambda: inputs.see_task_through(self, relay, created))

    def wants_input(self, relay: Relay, request: Request, result: Raw) -> bool:
        """Whether a modern server's answer is a question, which is being seen to."""
        return inputs.go_on(self, relay, request, result)

    def park(self, relay: Relay, request: Request, frame: bytes) -> None:
        """Answer the request for now; the relay goes on without one."""
        self._open.pop(request.key, None)
        relay.request = None
        request.reply.finish(frame)

    def unpark(self, relay: Relay, request: Request) -> None:
        """The client has come back."""
        relay.session, relay.request = self, request
        self._open[request.key] = relay

    # ── answering ───────────────────────────────────────────────────────────────────────────────

    def answer(self, request: Request, result: bytes) -> None:
        request.reply.finish(wire.result(request.key, result))

    def fail(self, request: Request, code: int, words: str, data: object = None) -> None:
        request.reply.finish(wire.error(request.key, wire.error_body(code, words, data)), code)

    def refuse(self, request: Request, error: McpdError, relay: Relay | None = None) -> None:
        """Our own error as the response."""
        modern_client = request.asker.modern
        self._open.pop(request.key, None)
        frame = refused(request.key, error, modern=modern_client)
        code = error.rpc
        if code == _INVALID_PARAMS and request.method == "resources/read" and not modern_client:
            frame, code = legacy.not_found(request.key, error), legacy.NOT_FOUND
        request.reply.finish(frame, code)
        if relay is not None:
            self._over(relay)

    def later(self, request: Request, work: Callable[[], Awaitable[None]]) -> None:
        """Answer a request in a task of its own; an McpdError that `work` raises is its response.

        What `work` waited for may come together with the cancellation: before it acts, it has to look.
        """
        scope = trio.CancelScope()
        self._waiting[request.key] = scope

        async def run() -> None:
            with scope:
                try:
                    await work()
                except McpdError as error:
                    if not scope.cancel_called:
                        self.refuse(request, error)
                except BadFrame as error:
                    if not scope.cancel_called:
                        self.fail(request, _INVALID_PARAMS, f"params: {error}")
            if self._waiting.get(request.key) is scope:
                del self._waiting[request.key]

        self._spawn(run)

    def once_known(self, request: Request, work: Callable[[], None]) -> None:
        """Answer when it is known what the one server offers, if that is soon; else with what may be."""
        single = self.view.single
        asleep = single is not None and single.spec.lazy and single.catalog is not None
        if single is None or single.upstream is not None or asleep:
            work()
            return

        async def wait() -> None:
            with suppress(McpdError):  # then all that it may offer is said, and each request says why not
                await self.gateway.core.ready(single, _FIRST)
            await trio.lowlevel.checkpoint_if_cancelled()
            work()

        self.later(request, wait)

    def beside(self, relay: Relay, work: Callable[[], Awaitable[None]]) -> None:
        """Do something for a relay that is not with its server; it can still be cancelled: see `later`."""
        scope = trio.CancelScope()
        relay.stop = lambda reason: scope.cancel(reason=reason)

        async def run() -> None:
            with scope:
                try:
                    await work()
                except (McpdError, BadFrame) as error:
                    relay.stop = None
                    if isinstance(error, BadFrame):
                        error = ProtocolViolation(f"{relay.server.spec.name}: {error}")
                    if relay.request is not None:
                        self.refuse(relay.request, error, relay)

        request = relay.request
        assert request is not None
        self._open[request.key] = relay
        self._spawn(run)

    # ── asking the client ───────────────────────────────────────────────────────────────────────

    def ask(self, method: str, params: bytes, reply: Reply | None, answered: Answered) -> bytes:
        """Ask a legacy client something, on the line of the request it belongs to; the question's id.

        `answered` is called exactly once, unless `withdraw` came first.
        """
        key = b"%d" % next(self._ids)
        frame = wire.request(key, method, params)
        if self._closed:
            answered(None)
            return key
        self._questions[key] = answered
        (self.tell if reply is None else reply.note)(frame)
        return key

    def withdraw(self, key: bytes, reason: str) -> None:
        """Nobody wants to know any more."""
        if self._questions.pop(key, None) is not None:
            body = msgspec.json.encode({"requestId": Raw(key), "reason": reason})
            self.tell(wire.notification("notifications/cancelled", body))

    # ── telling the client ──────────────────────────────────────────────────────────────────────

    def all_roots(self) -> Sequence[Raw]:
        """Where the client works: what it says, else where its bridge was started."""
        if self.roots or not self.client.cwd:
            return self.roots
        return (Raw(msgspec.json.encode({"uri": Path(self.client.cwd).as_uri()})),)

    def label(self, server: str) -> str:
        """What a question of that server begins with, for a client that sees several."""
        return "" if self.view.single is not None else f"[{server}] "

    def list_changed(self, feature: str) -> None:
        method = f"notifications/{feature}/list_changed"
        if self.version:
            self.tell(wire.notification(method))
        for listen in self.listens.values():
            if feature in listen.lists:
                listen.tell(method)

    def updated(self, listen: bytes, uri: str) -> None:
        """A resource changed; `listen` is the subscription that follows it, empty for a legacy client."""
        if listen:
            if (subscription := self.listens.get(listen)) is not None:  # the daemon may be ending them all
                subscription.tell("notifications/resources/updated", {"uri": uri})
        else:
            self.tell(wire.notification("notifications/resources/updated", msgspec.json.encode({"uri": uri})))

    # ── ends ────────────────────────────────────────────────────────────────────────────────────

    @property
    def takes_batches(self) -> bool:
        """Whether its revision knows arrays of messages."""
        return self.version == BATCHES_IN

    @property
    def calls(self) -> int:
        """Tool calls that went to servers."""
        return sum(self.servers.values())

    def calls_by_server(self) -> dict[str, int]:
        """By the name of the definition, whichever instance it was."""
        calls: dict[str, int] = {}
        for server, count in self.servers.items():
            name = (server.of or server).spec.name
            calls[name] = calls.get(name, 0) + count
        return calls

    @property
    def age(self) -> float:
        """Seconds since it began."""
        return trio.current_time() - self._began

    @property
    def in_flight(self) -> int:
        return len(self._open) + len(self._waiting)

    @property
    def is_anonymous(self) -> bool:
        """Whether its next request may come as another session: HTTP in the revision without sessions."""
        return self.client.door == "http" and not self.version

    @property
    def is_at_work(self) -> bool:
        """Whether answers are still to come."""
        return bool(self._open or self._waiting)

    def cancel(self, key: bytes, reason: str) -> None:
        """The client does not want that answer any more: it gets none."""
        scope = self._waiting.pop(key, None)
        if scope is not None:
            scope.cancel(reason=reason)
        relay = self._open.pop(key, None)
        if relay is not None:
            self._give_up(relay, reason)
        if self.listens.pop(key, None) is not None:
            self.gateway.subscriptions.ended(self, key)

    def _give_up(self, relay: Relay, reason: str) -> None:
        relay.request = None
        relay.give_up(reason)
        self._over(relay)

    def close(self, reason: str) -> None:
        """The client is gone. Idempotent."""
        if self._closed:
            return
        self._closed = True
        relays, self._open = list(self._open.values()), {}
        for relay in relays:
            self._give_up(relay, reason)
        for scope in self._waiting.values():
            scope.cancel(reason=reason)
        questions, self._questions = list(self._questions.values()), {}
        for answered in questions:
            answered(None)
        if not self.is_anonymous:
            self.gateway.parked.orphaned(self)
        self.listens.clear()
        self.gateway.left(self)

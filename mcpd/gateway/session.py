"""One client's conversation, whatever carries it: what it sees, what it has under way, what it is asked.

A door hands in every message it reads and says where the answers go; nothing here waits or knows of
sockets. A client of the modern revision says what it is with each request, a legacy one once.
"""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import msgspec
import trio
from msgspec import Raw

from mcpd.gateway import (
    call_concurrency,
    call_tasks,
    client_legacy,
    client_modern,
    dispatch,
    input_required,
    list_methods,
)
from mcpd.gateway.call_tasks import Spawn
from mcpd.gateway.client_context import Asker, Request
from mcpd.gateway.client_requests import Outstanding
from mcpd.gateway.forwarded_call import MAY_ASK, Relay, refused
from mcpd.gateway.responder import Client, Reply
from mcpd.gateway.virtual_server import MEMBERS, View
from mcpd.model.errors import McpdError
from mcpd.protocol.legacy import BATCH_VERSION
from mcpd.supervision.managed_server import ManagedServer
from mcpd.wire import message as wire
from mcpd.wire.message import ABSENT, BadFrame, Message
from mcpd.wire.request_meta import may_have_meta

if TYPE_CHECKING:
    from mcpd.gateway.gateway import Gateway

log = logging.getLogger("mcpd.gateway")

_ROUTED = frozenset({*MAY_ASK, "completion/complete"})
_INVALID_REQUEST, _METHOD_NOT_FOUND, _INVALID_PARAMS, _INTERNAL = -32600, -32601, -32602, -32603
_IDS_BEGIN_WITH = frozenset(b'"-0123456789')
"""A string or a number (integers by the specification, floats by some clients); never null or a structure."""


def is_mcp(method: str) -> bool:
    """Whether it is one of the protocol's own methods."""
    return (
        method in _ROUTED
        or method in MEMBERS
        or method in client_legacy.METHODS
        or method in client_modern.METHODS
    )


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
        self.asker = Asker(version=client_legacy.NEWEST)
        """What is known of a client that does not say it with its requests."""
        self.version = ""
        """The revision agreed in a handshake; empty before, and for a client that needs none."""
        self.greeted = False
        """Whether the handshake has been answered: nothing is told before."""
        self.asks_roots = 0
        """How often its roots were to be learnt since it was asked for them; 0 while it is not."""
        self.peer: str = ""
        """What the client calls itself, as `name version`."""
        self.listens: dict[bytes, client_modern.Listen] = {}
        self.roots: tuple[Raw, ...] = ()
        self.servers: dict[ManagedServer, int] = {}
        """How many tool calls went to which, of those that were there when it last took up another."""
        self.ended: dict[str, int] = {}
        """The same of those that are no more, by the name of the definition."""
        self.outstanding = Outstanding(tell)
        self.spoke = ""
        """The revision of its last request."""
        self._began = trio.current_time()
        self.spawn = spawn
        self.relays: dict[bytes, Relay] = {}
        """What is under way at servers, by the id of the request to be answered."""
        self.waiting: dict[bytes, trio.CancelScope] = {}
        """Requests that are being worked on here, or go out once their server is there."""
        self.dressed: tuple[object, object, bytes] = (None, None, b"")
        """What a request to that server, for that asker, is dressed in."""
        self.is_closed = False

    # ── in ──────────────────────────────────────────────────────────────────────────────────────

    def receive(self, message: Message, reply: Reply) -> None:
        method = message.method
        if not method or message.id is ABSENT:
            self._receive_unanswered(message)
            return
        key, params = bytes(message.id), bytes(message.params)
        request = Request(key, method, params, reply, self.asker)
        if key[0] not in _IDS_BEGIN_WITH:
            request.key = b"null"
            self.fail(request, _INVALID_REQUEST, "the id of a request is a string or a number")
            return
        if key in self.relays or (self.waiting and key in self.waiting) or key in self.listens:
            words = "a request with this id is under way: its answer could not be told from this one's"
            self.fail(request, _INVALID_REQUEST, words)
            return
        try:
            if may_have_meta(params):
                client_modern.open_meta(request)
            else:
                request.plain = True
            if method in _ROUTED:
                dispatch.pass_on(self, request)
            elif method in MEMBERS:
                list_methods.answer(self, request)
            else:
                self._own(request)
        except Exception as error:
            self.failed(request, error)

    def _receive_unanswered(self, message: Message) -> None:
        """A notification, or the response to a question."""
        try:
            if message.method:
                self._heard(message)
            else:
                self.outstanding.answered(message)
        except Exception:
            log.exception("an error in mcpd itself, in a client's %s", message.method[:100] or "response")

    def _own(self, request: Request) -> None:
        """What is asked of this hop, or of a single server in words that we do not know."""
        methods = client_modern.METHODS if request.asker.modern else client_legacy.METHODS
        own = methods.get(request.method)
        if own is not None:
            own(self, request)
        elif request.method in client_modern.METHODS and self.version == "":
            self.fail(request, _INVALID_PARAMS, f"{request.method} needs a `_meta` that says the revision")
        elif (
            request.method not in client_legacy.METHODS  # those of the other revisions are ours to refuse
            and request.method not in client_modern.METHODS
            and self.view.single is not None
            and input_required.passes_through(self.view.single, request)
        ):
            dispatch.pass_on(self, request)
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
            heard = client_legacy.NOTIFICATIONS.get(message.method)
            if heard is not None:
                heard(self)

    # ── answers ─────────────────────────────────────────────────────────────────────────────────

    def finished(self, relay: Relay, frame: bytes, code: int = 0) -> None:
        """Give the client its response; `code`: see `Reply.finish`."""
        request = relay.request
        assert request is not None
        self.relays.pop(request.key, None)
        request.reply.finish(frame, code)
        if relay.asked or relay.lined or relay.parked:
            self.over(relay)

    def over(self, relay: Relay) -> None:
        """Nothing comes for it any more: what was asked for it goes to others, the next has its turn."""
        if relay.asked:
            self.gateway.questions.over(relay)
        if relay.lined:
            call_concurrency.release_turn(relay)
        if relay.parked:
            self.gateway.parked.left(relay)

    def became_task(self, relay: Relay, created: Raw) -> None:
        """The server works on it, and is asked after it until it is done."""
        call_tasks.beside(relay, lambda: input_required.see_task_through(self, relay, created))

    def call_again(self, relay: Relay, until: Callable[[], Awaitable[None]]) -> None:
        """It is to be put to its server once more, when `until` has ended."""
        dispatch.call_again(relay, until)

    def wants_input(self, relay: Relay, request: Request, result: Raw) -> bool:
        """Whether a modern server's answer is a question, which is being seen to."""
        return input_required.go_on(self, relay, request, result)

    def park(self, relay: Relay, request: Request, frame: bytes) -> None:
        """Answer the request for now; the relay goes on without one."""
        self.relays.pop(request.key, None)
        relay.request = None
        request.reply.finish(frame)

    def unpark(self, relay: Relay, request: Request) -> None:
        """The client has come back."""
        relay.session, relay.request = self, request
        self.relays[request.key] = relay

    def answer(self, request: Request, result: bytes) -> None:
        request.reply.finish(wire.result(request.key, result))

    def fail(self, request: Request, code: int, words: str) -> None:
        request.reply.finish(wire.error(request.key, wire.error_body(code, words)), code)

    def failed(self, request: Request, error: Exception) -> None:
        """What went wrong as the response. A bug costs the request that met it, not its client's
        connection, which has others under way."""
        if isinstance(error, McpdError):
            self.refuse(request, error)
        elif isinstance(error, BadFrame):
            self.fail(request, _INVALID_PARAMS, f"params: {error}")
        else:
            method = request.method[:100]
            log.error("an error in mcpd itself, in a client's %s", method, exc_info=error)
            self.relays.pop(request.key, None)
            self.fail(request, _INTERNAL, f"{method}: an error in mcpd itself; its log says more")

    def refuse(self, request: Request, error: McpdError, relay: Relay | None = None) -> None:
        """Our own error as the response."""
        modern_client = request.asker.modern
        self.relays.pop(request.key, None)
        frame = refused(request.key, error, modern=modern_client)
        code = error.rpc
        if code == _INVALID_PARAMS and request.method == "resources/read" and not modern_client:
            frame, code = client_legacy.not_found(request.key, error), client_legacy.NOT_FOUND
        request.reply.finish(frame, code)
        if relay is not None:
            self.over(relay)

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
        if self.greeted:
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
        return self.version == BATCH_VERSION

    @property
    def calls(self) -> int:
        """Tool calls that went to servers."""
        return sum(self.servers.values()) + sum(self.ended.values())

    def used(self, server: ManagedServer) -> None:
        """A tool call goes there. Who stays for days keeps alive no server that has ended."""
        if server not in self.servers:
            for gone in [each for each in self.servers if each.is_over]:
                name = (gone.of or gone).spec.name
                self.ended[name] = self.ended.get(name, 0) + self.servers.pop(gone)
        self.servers[server] = self.servers.get(server, 0) + 1

    def calls_by_server(self) -> dict[str, int]:
        """By the name of the definition, whichever instance it was."""
        calls = dict(self.ended)
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
        return len(self.relays) + len(self.waiting)

    @property
    def is_anonymous(self) -> bool:
        """Whether its next request may come as another session: HTTP in the revision without sessions."""
        return self.client.door == "http" and not self.version

    @property
    def is_at_work(self) -> bool:
        """Whether answers are still to come."""
        return bool(self.relays or self.waiting)

    def cancel(self, key: bytes, reason: str) -> None:
        """The client does not want that answer any more: it gets none."""
        scope = self.waiting.pop(key, None)
        if scope is not None:
            scope.cancel(reason=reason)
        relay = self.relays.pop(key, None)
        if relay is not None:
            assert relay.request is not None
            reply = relay.request.reply
            self._give_up(relay, reason)
            reply.drop()
        listen = self.listens.pop(key, None)
        if listen is not None:
            self.gateway.subscriptions.ended(self, key)
            listen.request.reply.drop()

    def _give_up(self, relay: Relay, reason: str) -> None:
        relay.request = None
        relay.give_up(reason)
        self.over(relay)

    def close(self, reason: str) -> None:
        """The client is gone. Idempotent."""
        if self.is_closed:
            return
        self.is_closed = True
        relays, self.relays = list(self.relays.values()), {}
        for relay in relays:
            self._give_up(relay, reason)
        for scope in self.waiting.values():
            scope.cancel(reason=reason)
        self.outstanding.close()
        if not self.is_anonymous:
            self.gateway.parked.orphaned(self)
        self.listens.clear()
        self.gateway.left(self)

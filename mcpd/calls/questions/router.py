"""Routes a legacy server's elicitation, sampling and roots requests to the right client, or declines them.

Over Streamable HTTP a request arrives on the stream of the call it belongs to, except with servers that use
the stream for unrelated messages. Otherwise it belongs to the only client with a call in flight. If several
clients have one, it belongs to the only one whose call it fits: its tool has asked before, and the tools of
the others are known to ask nothing. Else it waits a few seconds until the calls of all others have been
answered. A request that names a task belongs to the client that waits for the result of the task.

A request that may still belong to several is declined, and each client that can be asked has a process of its
own from then on. The wrong person is never asked.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence

import msgspec
import trio
from msgspec import Raw

from mcpd.calls.call import INTERACTIVE_METHODS, WAS_ASKED, Call, Spawn
from mcpd.calls.limits import KeptMessage, KeptMessages
from mcpd.calls.questions.open_questions import AskedQuestion, OpenQuestions, separate_clients
from mcpd.calls.questions.rounds import MISSING_CAPABILITIES, UrlElicitations
from mcpd.calls.questions.suspended import SuspendedCalls
from mcpd.model.errors import ProtocolViolation
from mcpd.model.text import shorten
from mcpd.protocol.revision_translation import translate_request
from mcpd.protocol.upstream_session import parse_error
from mcpd.supervision.elicitation_history import ElicitationHistory
from mcpd.supervision.managed_server import ManagedServer
from mcpd.transports.base import Channel
from mcpd.transports.outgoing_request import Exchange
from mcpd.wire import message as wire
from mcpd.wire.message import ABSENT, BadFrame, Message

ANSWER_TIMEOUT = 900.0
"""Seconds for a person to answer. Meanwhile the call does not time out."""
REJECTED = -1
"""The error code of a question that nobody answers."""


class ServerRequest(msgspec.Struct, eq=False):
    """An elicitation, sampling or roots request of a server, until it is answered."""

    server: ManagedServer
    link: Channel
    message: Message
    forget: Callable[[ServerRequest], None]
    """Takes the request off the open ones."""
    open_questions: OpenQuestions
    """Where it is recorded that a client is asked."""
    asked: AskedQuestion | None = None
    """The record while it is attached to a call."""
    call: Call | None = None
    client_key: bytes = b""
    """The id of our request, if a legacy client is asked."""
    client_params: bytes = b""
    """The params in the client's own revision."""
    is_settled: bool = False
    kept: KeptMessage | None = None
    """Counts the message until it is settled."""

    @property
    def feature(self) -> str:
        return self.message.method.partition("/")[0]

    def respond(self, result: Raw | bytes) -> None:
        if self._settle():
            self.link.respond(self.message, bytes(result))

    def refuse(self, code: int, text: str) -> None:
        if self._settle():
            self.link.refuse(self.message, code, text)

    def decline(self, reason: str) -> None:
        """Answer for a client that cannot be asked: `decline` for elicitation, otherwise an error."""
        if self.feature == "elicitation":
            self.respond(b'{"action":"decline"}')
        else:
            self.refuse(REJECTED, reason)

    def keep(self, messages: KeptMessages) -> None:
        """Count the message while it waits for a client. Raises ProtocolViolation if there is no room."""
        what = f"its request {shorten(self.message.method, 60)}"
        self.kept = messages.keep(self.message, self.server, what)
        self.message = self.kept.message

    def drop(self) -> None:
        """Let it have no answer from mcpd any more."""
        self.is_settled = True
        if self.kept is not None:
            self.kept.release()
        self.detach()

    def _settle(self) -> bool:
        """Return False if it was settled before, or its connection has ended."""
        was_settled = self.is_settled
        if not was_settled:
            self.forget(self)
            self.drop()
        return not was_settled and self.link.end_error is None

    def attach(self, call: Call) -> None:
        """Assign the request to `call`, and extend the deadlines of all calls it may belong to."""
        self.call = call
        call.open_questions += 1
        call.slots[WAS_ASKED] = True
        self.asked = self.open_questions.add(call, self.message.method, self.client_params)
        for each in ambiguous_with(call):
            self.link.requests.extend_deadline(each, ANSWER_TIMEOUT)

    def detach(self) -> None:
        """Take the request off its call. With no other request open, normal deadlines apply again."""
        call, self.call = self.call, None
        asked, self.asked = self.asked, None
        if asked is not None:
            self.open_questions.remove(asked)
        if call is not None:
            call.open_questions -= 1
            together = ambiguous_with(call)
            if not any(each.open_questions for each in together):
                for each in together:
                    self.link.requests.extend_deadline(each, each.idle_timeout)


def ambiguous_with(call: Call) -> list[Call]:
    """Return the call and those of its client that a request on this connection may also belong to."""
    link = call.upstream.link
    if link.correlates_server_requests:
        return [call]
    others = (
        each
        for each in link.requests.outstanding()
        if isinstance(each, Call)
        and each is not call
        and each.caller is call.caller
        and each.method in INTERACTIVE_METHODS
    )
    return [call, *others]


AMBIGUITY_TIMEOUT = 10.0
"""Seconds to wait until only one client is left that a request may belong to."""
_UNCLEAR = "nobody was asked: it is unclear to which of several calls in progress the request belongs"
MAX_OPEN_REQUESTS = 100
"""Unanswered requests per server connection, so that a client is not flooded."""
_INVALID_PARAMS = -32602


class OpenRequest(msgspec.Struct, frozen=True):
    """A request of a server that is not answered, for the next version of the daemon."""

    key: bytes
    method: str
    params: bytes
    sent_as: bytes
    """The id of the call that it belongs to, if the client of that was asked."""
    client_key: bytes
    """The id under which the client was asked; empty if it was not."""


class ServerRequestRouter:
    """The open requests of all servers. `route` is called by each server's connection."""

    def __init__(
        self,
        suspended_calls: SuspendedCalls,
        url_elicitations: UrlElicitations,
        open_questions: OpenQuestions,
        spawn: Spawn,
        roots: Callable[[ManagedServer], Sequence[Raw]],
        kept: KeptMessages,
    ) -> None:
        self._kept = kept
        self._suspended_calls = suspended_calls
        self._url_elicitations = url_elicitations
        self._open_questions = open_questions
        self._spawn = spawn
        self._roots = roots
        self._open: dict[tuple[Channel, bytes], ServerRequest] = {}
        self._closed: deque[tuple[int, bytes]] = deque(maxlen=MAX_OPEN_REQUESTS)
        """The last requests that were answered: a server may cancel one before it reads the answer."""
        self.polled_tasks: dict[tuple[Channel, str], Call] = {}
        """The calls that run as tasks of mcpd, by connection and id of the task."""

    def open_requests(self, link: Channel) -> list[OpenRequest]:
        """Return the requests of a server that are not answered."""
        found = [question for (of, _), question in self._open.items() if of is link]
        return [
            OpenRequest(
                each.message.key,
                each.message.method,
                bytes(each.message.params),
                each.call.key if each.call is not None and each.client_key else b"",
                each.client_key,
            )
            for each in found
        ]

    def route(
        self, server: ManagedServer, link: Channel, message: Message, exchange: Exchange | None
    ) -> bool:
        """Handle a request; returns False if mcpd does not support it (see `Hooks.on_request`)."""
        question = ServerRequest(server, link, message, self._remove, self._open_questions)
        if message.method == "roots/list":
            self._answer_roots(question, exchange)
            return True
        if message.method not in ("elicitation/create", "sampling/createMessage"):
            return False
        if task := _related_task(message):
            if self._admit(question):
                self._send_to_client(question, self._waits_for(link, task))
            return True
        history = server.elicitation_history
        calls = (exchange,) if exchange is not None else tuple(calls_in_flight(link))
        possible = _fitting(calls, history, question.feature) or one_per_client(calls)
        may_have_asked = [each for each in calls if _may_ask(each, history)] or calls
        for each in may_have_asked:
            if isinstance(each, Call):
                is_certain = len(may_have_asked) == 1
                history.record_request(each.route.method, each.tool, is_certain=is_certain)
        if not self._admit(question):
            return True
        if exchange is None and possible and link.correlates_server_requests:
            link.correlates_server_requests = False
            history.names_no_calls = True
            server.log.add_line(
                f"[mcpd] a request ({message.method}) did not arrive on the stream of its call: from now on, "
                "calls of different clients may wait 2 s for each other, so that the right client is asked"
            )
        if len(possible) <= 1:
            self._send_to_client(question, possible[0] if possible else None)
        elif not any(isinstance(each, Call) and each.context.supports(question.feature) for each in possible):
            self._send_to_client(question, None)  # none of the candidates can be asked
        else:
            by_key = {each.key: each for each in calls}  # later ones cannot have caused it
            self._spawn(lambda: self._wait_until_unambiguous(question, by_key))
        return True

    def _waits_for(self, link: Channel, task: str) -> Exchange | None:
        """Return the call that runs as a task, or a client's own request for its result."""
        own = (
            each
            for each in link.requests.outstanding()
            if isinstance(each, Call)
            and each.route.method == "tasks/result"
            and wire.string_or(wire.members_or_empty(each.params), "taskId") == task
        )
        return self.polled_tasks.get((link, task)) or next(own, None)

    def _admit(self, question: ServerRequest) -> bool:
        """Add a request to the open ones. Refuse it and return False if they are too many or too large."""
        link = question.link
        if sum(known is link for known, _ in self._open) >= MAX_OPEN_REQUESTS:
            question.refuse(REJECTED, f"{MAX_OPEN_REQUESTS} requests are still unanswered")
            return False
        try:
            question.keep(self._kept)
        except ProtocolViolation as error:
            question.server.log.add_line(f"[mcpd] {error.message}")
            question.refuse(REJECTED, error.message)
            return False
        key = (link, question.message.key)
        older = self._open.get(key)
        if older is not None and older.kept is not None:
            older.kept.release()  # the server has used an id twice
        self._open[key] = question
        return True

    def cancel(self, link: Channel, params: Raw) -> None:
        """Handle `notifications/cancelled` from the server, for a request of its own, or one of ours that it
        will not answer. Each side chooses its ids, so that the same one may name both."""
        key = bytes(wire.members(params).get("requestId", b""))
        question = self._open.pop((link, key), None)
        if question is None and (id(link), key) not in self._closed:
            link.fail_cancelled(params)
        elif question is not None:
            self._closed.append((id(link), key))
            call = question.call
            if call is not None:
                if question.client_key:
                    call.caller.cancel_request(question.client_key, "cancelled by the server")
                self._suspended_calls.withdraw(call, question)
            question.drop()

    def on_call_ended(self, call: Call) -> None:
        """The call has ended, or its server has answered it. Re-attach its open requests to another in-flight
        call of this client on the same connection; if there is none, decline them."""
        reason = "its call has ended"
        for question in [each for each in self._open.values() if each.call is call]:
            self._suspended_calls.withdraw(call, question)
            question.detach()
            others = [each for each in ambiguous_with(call)[1:] if each.context.modern is call.context.modern]
            if not others:
                call.caller.cancel_request(question.client_key, reason)
                question.decline(reason)
                continue
            other = next((each for each in others if not each.open_questions), others[0])
            question.attach(other)
            if other.context.modern:
                self._suspended_calls.ask(other, question, question.client_params)

    def decline_all(self, call: Call, reason: str) -> None:
        """Decline what a legacy client is asked during the call, and withdraw it there. The call continues at
        its server."""
        for question in [each for each in self._open.values() if each.call is call]:
            call.caller.cancel_request(question.client_key, reason)
            question.decline(reason)

    def forget(self, link: Channel, message: Message) -> None:
        """Drop a request that failed in mcpd; the caller answers it."""
        question = self._open.pop((link, message.key), None)
        if question is not None:
            question.drop()

    def _remove(self, question: ServerRequest) -> None:
        key = (question.link, question.message.key)
        if self._open.get(key) is question:
            del self._open[key]
            self._closed.append((id(question.link), question.message.key))

    async def _wait_until_unambiguous(self, question: ServerRequest, calls: Mapping[bytes, Exchange]) -> None:
        """Wait until the request can belong to one client only, then send it there; otherwise refuse it.

        `calls`: those in flight when it arrived, by their ids. The server no longer asks for one that it has
        answered, but may still ask for one that was cancelled or has timed out.
        """
        possible, is_hopeless = tuple(calls.values()), False
        with trio.move_on_after(AMBIGUITY_TIMEOUT):
            # Rare and brief polling; otherwise every response of every server would have to check here.
            while not question.is_settled:
                in_flight = {each.key for each in calls_in_flight(question.link)}
                possible, is_hopeless = _narrow(calls, in_flight)
                if len(possible) <= 1 or is_hopeless:
                    break
                await trio.sleep(0.02)
        if question.is_settled:
            return
        if len(possible) <= 1 and not is_hopeless:
            self._send_to_client(question, possible[0] if possible else None)
            return
        next_step = separate_clients(question.server)
        if question.link.end_error is None:
            question.server.log.add_line(f"[mcpd] {question.message.method}: {_UNCLEAR}{next_step}")
        question.refuse(REJECTED, _UNCLEAR + next_step)

    def _send_to_client(self, question: ServerRequest, exchange: Exchange | None) -> None:
        """Ask the client that made the call, if it can be asked."""
        call = exchange if isinstance(exchange, Call) else None
        if call is None or (call.request is None and not self._suspended_calls.holds(call)):
            question.decline(f"no client can be asked for {question.feature}")
            return
        params = question.message.params if question.message.params is not ABSENT else Raw(b"{}")
        mode = wire.string_or(wire.members_or_empty(params), "mode")
        url = question.feature == "elicitation" and mode == "url"
        if self._refuse_unsupported(question, call, url=url):
            return
        caller, context = call.caller, call.context
        prefix = caller.message_prefix(question.server.configured_name)
        try:
            translated = translate_request(question.message.method, params, context.version, prefix)
        except BadFrame as error:
            question.refuse(_INVALID_PARAMS, f"invalid params: {error}")
            return
        if translated is None:
            question.decline("the client's protocol version does not support it")
            return
        if question.feature == "sampling" and not context.supports("sampling", "tools"):
            translated = _without_tools(translated)
        question.client_params = translated
        question.attach(call)
        if context.modern:
            self._suspended_calls.ask(call, question, translated)
            return
        assert call.request is not None
        if url:
            self._url_elicitations.record(caller, question.server, params)
        question.client_key = caller.send_request(
            question.message.method,
            translated,
            call.request.responder,
            lambda response: self._on_response(question, response),
        )

    def _refuse_unsupported(self, question: ServerRequest, call: Call, *, url: bool) -> bool:
        """Answer what the client has not declared to support. Returns False if it supports it."""
        context, feature = call.context, question.feature
        if context.supports(feature) and not (url and not context.supports("elicitation", "url")):
            return False
        missing: dict[str, object] = {feature: {"url": {}} if url else {}}
        before = call.slots.get(MISSING_CAPABILITIES)
        call.slots[MISSING_CAPABILITIES] = {**(before or {}), **missing}
        if url and context.supports("elicitation"):
            question.refuse(_INVALID_PARAMS, "the client does not support URL elicitation")
        else:
            question.decline(f"no client can be asked for {feature}")
        return True

    def _on_response(self, question: ServerRequest, response: Message | None) -> None:
        if response is None:
            question.decline("the client has disconnected")
        elif response.result is not ABSENT:
            question.respond(response.result)
        else:
            code, text, _ = parse_error(response.error)
            text = "the client refused" if text is None else shorten(text, 500)
            question.refuse(REJECTED if code is None else code, text)

    def _answer_roots(self, question: ServerRequest, exchange: Exchange | None) -> None:
        """Answer with the roots of the client whose call the request belongs to, else with those that all
        clients declare: some servers ask before they are ready.

        A server that keeps the answer must not get the roots of one client for all: see
        `Upstream.reads_roots_until`. If there is a process for each root, the original one gets none at all.

        A client whose roots are missing is asked during its call. That is a modern client, or a legacy client
        over HTTP without a GET stream: it gets the request on the stream of its call.
        """
        server, call = question.server, _only_call(question.link, exchange)
        reads_roots = exchange is None and _reads_roots(server)
        if server.original is None and server.spec.share in ("root", "declared-root"):
            call = None
        if (
            call is not None
            and call.request is not None
            and call.context.supports("roots")
            and (call.context.modern or not call.caller.knows_roots)
        ):
            if self._admit(question):
                self._send_to_client(question, call)
            return
        roots = self._roots(server) if call is None or reads_roots else call.caller.effective_roots()
        question.respond(msgspec.json.encode({"roots": roots}))


def _related_task(message: Message) -> str:
    """Return the id of the task during which a server asks (2025-11-25); empty outside of tasks."""
    params = message.params if message.params is not ABSENT else b"{}"
    meta = wire.members_or_empty(wire.members_or_empty(params).get("_meta", b"{}"))
    related = meta.get(f"{wire.RESERVED_PREFIX}related-task", b"{}")
    return wire.string_or(wire.members_or_empty(related), "taskId")


def _without_tools(params: bytes) -> bytes:
    """Return the params of a sampling request without its tools, for a client that does not support them: a
    shared server does not know which client it will ask."""
    members = wire.members(params)
    if members.keys().isdisjoint(("tools", "toolChoice")):
        return params
    return wire.join_members(
        {name: text for name, text in members.items() if name not in ("tools", "toolChoice")}
    )


def _reads_roots(server: ManagedServer) -> bool:
    """Return whether the server is expected to request changed roots now; True once for each change."""
    upstream = server.upstream
    if upstream is None or trio.current_time() >= upstream.reads_roots_until:
        return False
    upstream.reads_roots_until = 0.0
    return True


def _only_call(link: Channel, exchange: Exchange | None) -> Call | None:
    """Return the call that a request belongs to, if only one is possible."""
    possible = candidates(link, exchange)
    return possible[0] if len(possible) == 1 and isinstance(possible[0], Call) else None


def candidates(link: Channel, exchange: Exchange | None) -> Sequence[Exchange]:
    """Return one call per client that a request may belong to. A call without a client counts as one, too."""
    return (exchange,) if exchange is not None else one_per_client(calls_in_flight(link))


def calls_in_flight(link: Channel) -> Iterable[Exchange]:
    """Return the calls during which a server may ask."""
    return (each for each in link.requests.outstanding() if each.method in INTERACTIVE_METHODS)


def one_per_client(calls: Iterable[Exchange]) -> tuple[Exchange, ...]:
    """Return the call of each client that is asked first."""
    found: dict[object, Exchange] = {}
    for each in calls:
        owner = owner_of(each)
        known = found.setdefault(owner, each)
        if (
            isinstance(known, Call)
            and known.open_questions
            and isinstance(each, Call)
            and not each.open_questions
        ):
            found[owner] = each  # most servers ask in the order in which they were called
    return tuple(found.values())


def _may_ask(exchange: Exchange, history: ElicitationHistory) -> bool:
    """Return whether a request may belong to this call, as far as its tool is known."""
    return not isinstance(exchange, Call) or history.may_ask(exchange.route.method, exchange.tool)


def _fitting(calls: Sequence[Exchange], history: ElicitationHistory, feature: str) -> Sequence[Exchange]:
    """Return the call that a request fits; nothing if it may as well belong to another client's."""
    able = (each for each in calls if not isinstance(each, Call) or each.context.supports(feature))
    possible = one_per_client(each for each in able if _may_ask(each, history))
    have_asked = one_per_client(
        each for each in calls if isinstance(each, Call) and history.has_asked(each.route.method, each.tool)
    )
    is_clear = len(possible) == 1 and list(map(owner_of, have_asked)) == [owner_of(possible[0])]
    return have_asked if is_clear else ()


def owner_of(exchange: Exchange) -> object:
    """Return the client that made a call; the call itself if none did."""
    return exchange.caller if isinstance(exchange, Call) else exchange


def _narrow(
    calls: Mapping[bytes, Exchange], in_flight: Collection[bytes]
) -> tuple[tuple[Exchange, ...], bool]:
    """Return one call for each client that still has one of `calls` in flight, and whether the request may
    also belong to a client that has none: to one whose call ended without an answer."""
    possible = one_per_client([each for key, each in calls.items() if key in in_flight])
    owners = {owner_of(each) for each in possible}
    is_hopeless = any(
        owner_of(each) not in owners
        for key, each in calls.items()
        if key not in in_flight and each.key == key and not each.response_size
    )
    return possible, is_hopeless

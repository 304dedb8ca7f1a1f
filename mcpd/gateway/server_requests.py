"""Whom a legacy server's own requests are for, and what it hears where nobody can be asked.

Over Streamable HTTP a question comes on the stream of the call that it belongs to. Elsewhere it comes
with nothing to tell by: it belongs to the one client that has a call under way. While several have,
it waits for a few seconds until one is left; a wrong person is never asked.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import attrs
import msgspec
import trio
from msgspec import Raw

from mcpd.gateway.forwarded_call import MAY_ASK, Relay
from mcpd.gateway.revision_translation.server_requests import question
from mcpd.model.text import shorten
from mcpd.supervision.managed_server import ManagedServer
from mcpd.transports.base import Channel
from mcpd.transports.outgoing_request import Exchange
from mcpd.wire import message as wire
from mcpd.wire.message import ABSENT, BadFrame, Message

if TYPE_CHECKING:
    from mcpd.gateway.gateway import Gateway

UNSURE = 10.0
"""Seconds to wait for all but one of the clients that may be meant to have their answers."""
ANSWER = 900.0
"""Seconds for a person to answer; while they think, the call is not timed out."""
MOST_OPEN = 100
"""Questions of one server that have no answer yet: a client must not be flooded with more."""
_METHOD_NOT_FOUND, _INVALID_PARAMS, _REJECTED = -32601, -32602, -1


@attrs.define(eq=False)
class Asking:
    """One question of a server, out with a client or waiting to be."""

    server: ManagedServer
    link: Channel
    message: Message
    relay: Relay | None = None
    key: bytes = b""
    """Our id of it, where a legacy client is asked."""
    told: bytes = b""
    """What the client is asked: the params in its own revision."""
    over: bool = False

    @property
    def feature(self) -> str:
        return self.message.method.partition("/")[0]

    def respond(self, result: Raw | bytes) -> None:
        if self._end():
            self.link.respond(self.message, bytes(result))

    def refuse(self, code: int, words: str) -> None:
        if self._end():
            self.link.refuse(self.message, code, words)

    def nobody(self, why: str) -> None:
        """The answer to a question that reaches nobody (digest 4.3): servers know what to do with it."""
        if self.feature == "elicitation":
            self.respond(b'{"action":"decline"}')
        else:
            self.refuse(_REJECTED, why)

    def _end(self) -> bool:
        """False when it was over before."""
        was, self.over = self.over, True
        if not was:
            self.detach()
        return not was and self.link.ended is None

    def attach(self, relay: Relay) -> None:
        """It is taken to be about that call. While a person thinks, no call that it may be about is late."""
        self.relay = relay
        relay.asked += 1
        for each in _together(relay):
            self.link.grant(each, ANSWER)

    def detach(self) -> None:
        """It is about no call any more; when nothing else is open, the server is at work again."""
        relay, self.relay = self.relay, None
        if relay is not None:
            relay.asked -= 1
            together = _together(relay)
            if not any(each.asked for each in together):
                for each in together:
                    self.link.grant(each, each.idle)


class Questions:
    """Those under way; `asked` is what a server's connection calls."""

    def __init__(self, gateway: Gateway) -> None:
        self._gateway = gateway
        self._open: dict[tuple[Channel, bytes], Asking] = {}

    def asked(
        self, server: ManagedServer, link: Channel, message: Message, exchange: Exchange | None
    ) -> bool:
        """See `Hooks.asked`."""
        asking = Asking(server, link, message)
        if message.method == "roots/list":
            self._roots(asking, exchange)
            return True
        if message.method not in ("elicitation/create", "sampling/createMessage"):
            return False
        server.elicitation_history.record_request()
        if sum(known is link for known, _ in self._open) >= MOST_OPEN:
            asking.refuse(_REJECTED, f"{MOST_OPEN} questions have no answer yet")
            return True
        self._open[link, message.key] = asking
        meant = _meant(link, exchange)
        if len(meant) <= 1:
            self._put(asking, meant[0] if meant else None)
        elif not any(isinstance(each, Relay) and each.asker.can(asking.feature) for each in meant):
            self._put(asking, None)  # whoever of them it is for: none can be asked
        else:
            self._gateway.spawn(lambda: self._wait_for_one(asking))
        return True

    def withdrawn(self, link: Channel, params: Raw) -> None:
        """The server does not want to know any more."""
        key = bytes(wire.members(params).get("requestId", b""))
        asking = self._open.pop((link, key), None)
        if asking is not None:
            asking.over = True
            relay = asking.relay
            if relay is not None:
                if asking.key:
                    relay.session.outstanding.withdraw(
                        asking.key, "the server does not want to know any more"
                    )
                self._gateway.parked.withdrawn(asking)
                asking.detach()

    def over(self, relay: Relay) -> None:
        """That call has ended, and the link knows it no more: what is still asked must be about another one
        of the same client, where it cannot be told which it is about; else it is moot."""
        reason = "the call that it belongs to is over"
        for asking in [each for each in self._open.values() if each.relay is relay]:
            asking.detach()
            others = [each for each in _together(relay)[1:] if each.asker.modern is relay.asker.modern]
            if not others:
                relay.session.outstanding.withdraw(asking.key, reason)
                asking.nobody(reason)
                self.settled(asking)
                continue
            other = next((each for each in others if not each.asked), others[0])
            asking.attach(other)
            if other.asker.modern:
                self._gateway.parked.ask(other, asking, asking.told)

    def forget(self, link: Channel, message: Message) -> None:
        """It was not taken on after all, and is answered by who said so."""
        asking = self._open.pop((link, message.key), None)
        if asking is not None:
            asking.over = True
            asking.detach()

    def settled(self, asking: Asking) -> None:
        key = (asking.link, asking.message.key)
        if self._open.get(key) is asking:
            del self._open[key]

    async def _wait_for_one(self, asking: Asking) -> None:
        """Until the calls of only one client are left that may be meant."""
        with trio.move_on_after(UNSURE):
            # Polling, seldom and briefly: else every answer of every server would have to look here.
            while len(_meant(asking.link, None)) > 1 and not asking.over:  # noqa: ASYNC110
                await trio.sleep(0.02)
        meant = _meant(asking.link, None)
        if asking.over:
            return
        if len(meant) > 1:
            name = asking.server.spec.name
            asking.server.log.add(
                f"[mcpd] a question ({asking.message.method}) came while several clients had calls under "
                f"way, and was declined: `share: client` in the definition of {name} gives each its own"
            )
            asking.nobody("it cannot be told which client this is for")
            self.settled(asking)
        else:
            self._put(asking, meant[0] if meant else None)

    def _put(self, asking: Asking, exchange: Exchange | None) -> None:
        """Ask the client whose call it is, if it can be asked."""
        name = asking.server.spec.name
        relay = exchange if isinstance(exchange, Relay) else None
        request = relay.request if relay is not None else None
        why = f"nobody can be asked for {asking.feature}"
        if relay is None or (request is None and not relay.session.gateway.parked.holds(relay)):
            asking.nobody(why)
            self.settled(asking)
            return
        asker = relay.asker
        params = asking.message.params if asking.message.params is not ABSENT else Raw(b"{}")
        url = asking.feature == "elicitation" and _mode(params) == "url"
        if not asker.can(asking.feature) or (url and not asker.can("elicitation", "url")):
            relay.lacked = {**(relay.lacked or {}), asking.feature: {"url": {}} if url else {}}
            if url and asker.can("elicitation"):
                asking.refuse(_INVALID_PARAMS, "the client takes no elicitation by URL")
            else:
                asking.nobody(why)
            self.settled(asking)
            return
        session = relay.session
        try:
            told = question(asking.message.method, params, asker.version, session.label(name))
        except BadFrame as error:
            asking.refuse(_INVALID_PARAMS, f"cannot be read: {error}")
            self.settled(asking)
            return
        if told is None:
            asking.nobody("the client's revision has no words for it")
            self.settled(asking)
            return
        asking.told = told
        asking.attach(relay)
        if asker.modern:
            self._gateway.parked.ask(relay, asking, told)
            return
        assert request is not None
        if url:
            self._gateway.url_elicitations.sent(session, asking.server, params)
        asking.key = session.outstanding.ask(
            asking.message.method, told, request.reply, lambda response: self._answered(asking, response)
        )

    def _answered(self, asking: Asking, response: Message | None) -> None:
        self.settled(asking)
        if response is None:
            asking.nobody("the client is gone")
        elif response.result is not ABSENT:
            asking.respond(response.result)
        else:
            code, words = _error(response)
            asking.refuse(code, words)

    def _roots(self, asking: Asking, exchange: Exchange | None) -> None:
        """The roots of all who use the server, from what is known: some ask before they are ready."""
        meant = _meant(asking.link, exchange)
        relay = meant[0] if len(meant) == 1 and isinstance(meant[0], Relay) else None
        if (
            relay is not None
            and relay.request is not None
            and relay.asker.modern
            and relay.asker.can("roots")
        ):
            self._open[asking.link, asking.message.key] = asking
            self._put(asking, relay)
            return
        asking.respond(msgspec.json.encode({"roots": self._gateway.roots(asking.server)}))


def _meant(link: Channel, exchange: Exchange | None) -> Sequence[Exchange]:
    """One call of each client that a question may be for; what cannot be asked counts as a client, too."""
    if exchange is not None:
        return (exchange,)
    found: dict[object, Exchange] = {}
    for each in link.under_way():
        if each.method in MAY_ASK:
            owner = each.session if isinstance(each, Relay) else each
            known = found.setdefault(owner, each)
            if isinstance(known, Relay) and known.asked and isinstance(each, Relay) and not each.asked:
                found[owner] = each  # most servers ask in the order in which they were called
    return tuple(found.values())


def _together(relay: Relay) -> list[Relay]:
    """That call, and those that a question about it could be about just as well: of the same client, at a
    server that cannot say."""
    link = relay.upstream.link
    if link.tells_apart:
        return [relay]
    others = (
        each
        for each in link.under_way()
        if isinstance(each, Relay)
        and each is not relay
        and each.session is relay.session
        and each.method in MAY_ASK
    )
    return [relay, *others]


def _mode(params: Raw) -> str:
    try:
        return msgspec.json.decode(wire.members(params).get("mode", Raw(b'"form"')), type=str)
    except (BadFrame, msgspec.MsgspecError):
        return ""


def _error(response: Message) -> tuple[int, str]:
    try:
        body = wire.value(response.error)
    except BadFrame:
        body = None
    given = body if isinstance(body, dict) else {}
    code, words = given.get("code"), given.get("message")
    return (
        code if isinstance(code, int) and not isinstance(code, bool) else _REJECTED,
        shorten(words, 500) if isinstance(words, str) else "the client refused",
    )

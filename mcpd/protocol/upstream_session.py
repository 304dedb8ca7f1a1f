"""The era-free face of a connected server: what it is, what it can do, and how to ask it."""

from __future__ import annotations

import math
from collections.abc import Awaitable, Callable, Mapping

import attrs
import msgspec
import trio
from msgspec import Raw

from mcpd.model.errors import ProtocolViolation, UpstreamRefused
from mcpd.model.status import ServerInfo
from mcpd.model.text import shorten
from mcpd.protocol.upstream_subscriptions import NotificationInterests
from mcpd.transports.base import Channel
from mcpd.transports.outgoing_request import AwaitedExchange, Exchange
from mcpd.wire import message as wire
from mcpd.wire.message import ABSENT, BadFrame, Message

CLIENT_NAME = "mcpd"
FEATURES = ("tools", "resources", "prompts")
"""What a server lists."""


@attrs.frozen
class ServerNotification:
    """A notification that clients may want: as the server sent it, to be translated by who passes it on."""

    method: str
    """`notifications/message`, `…/resources/updated`, `…/elicitation/complete`, `…/tasks/status`,
    `…/tasks`, `…/cancelled` (a question of the server's own is moot), and from `ManagedServer` also
    `…/list_changed`, once the list has been fetched anew."""
    params: Raw
    """As they came; ABSENT for none. Of a 2026-07-28 server `_meta` names *our* subscription."""
    exchange: Exchange | None = None
    """The request it came for, where the transport can tell: see `Inbound`. It may be any of ours."""
    uri: str = ""
    """Of `notifications/resources/updated`: which; a part, perhaps, of what is followed."""


ServerRequestHandler = Callable[[Channel, Message, Exchange | None], bool]


def _ignore(said: ServerNotification) -> None: ...


@attrs.define
class Hooks:
    """What a server tells unasked, once an era understood it. Called in the reader: must not block."""

    on_list_changed: Callable[[str], None]
    """One of `tools`, `resources`, `prompts`: that list is no longer what it was."""
    on_log: Callable[[str], None]
    """A line the server wants logged."""
    capabilities: Mapping[str, object] = attrs.field(factory=dict)
    """What we can do for the server (`elicitation`, `sampling`, `roots`), as it is declared to it."""
    on_request: ServerRequestHandler | None = None
    """Called with a request that the server makes in an era in which it may, and with the request of
    ours that it makes it for, where the transport can tell (see `Inbound`; else None). True: it is
    taken on, and will be answered with `Channel.respond` or `refuse`, once. False: nobody can, it is
    refused at once. Pings never come here."""
    on_notification: Callable[[ServerNotification], None] = _ignore
    """Called with what clients may want to know, in the order in which it came among the answers."""
    refresh_list: Callable[[str], Awaitable[None]] | None = None
    """Fetch one of the lists anew, and return when that is done, well or not."""
    on_modern_detected: Callable[[], None] = lambda: None
    """Called when a server that was taken for legacy, since it did not answer in time, turns out not
    to be: for the next connection, since this one's era is settled."""
    interests: NotificationInterests = attrs.field(factory=NotificationInterests)
    """What clients want to hear: fulfilled by `Upstream.follow`, while it runs."""


@attrs.define(eq=False)
class Upstream:
    """A server after its handshake. Valid while its link runs."""

    link: Channel
    era: str
    version: str
    info: ServerInfo
    capabilities: Mapping[str, object]
    ping_method: str
    """A real request that costs the server next to nothing."""
    run_subscriptions: Callable[[], Awaitable[None]] | None = None
    """Must run beside the link: for `Hooks.changed` to be called, and `Hooks.interests` to be fulfilled."""
    notifications_ready: trio.Event = attrs.field(factory=trio.Event)
    """Set by `follow` when nothing is missed from now on, or when it can do no more about that."""

    announces_changes: set[str] = attrs.field(factory=set)
    """The FEATURES whose changes reach us: a list of theirs is good until `Hooks.changed`."""
    request_meta: Callable[[Mapping[str, object], str | None], bytes] = lambda capabilities, level: b""
    """`Exchange.meta` for a request that is made for one client: what that client can be asked, and
    the log level it wishes for that request. Empty where an era has no such thing: what it declares
    is for the whole connection."""

    default_meta: bytes = b""
    """`Exchange.meta` for a request that no client stands behind: nobody can be asked, but a call may
    become a task, where the server has such."""

    accepts_task_param: bool = False
    """Whether a call becomes a task by its `task` param (2025-11-25)."""
    notify_roots_changed: Callable[[], None] = lambda: None
    """Tell the server that a `roots/list` would be answered otherwise, where an era has words for that."""

    admit_tool: Callable[[str, bytes], str | None] | None = None
    """Must see every tool listed (name, definition) before it is called, where the era needs it; says
    why a tool must not be offered, if it must not."""

    def has(self, feature: str, part: str | None = None) -> bool:
        """Whether a capability (`tools`), or a part of it (`listChanged`), was declared."""
        declared = self.capabilities.get(feature)
        if part is None:
            return isinstance(declared, Mapping)
        return isinstance(declared, Mapping) and declared.get(part) is True

    def submit(self, exchange: Exchange, method: str, params: Raw | bytes = b"") -> None:
        """See `Channel.submit`."""
        self.link.submit(exchange, method, params)

    async def request(
        self,
        method: str,
        params: Mapping[str, object] | None = None,
        *,
        timeout: float = math.inf,
        meta: bytes = b"",
    ) -> Raw:
        """Ask and wait for the result's bytes; `meta`: see `Exchange.meta`.

        Raises UpstreamRefused when the server answers with an error, CallTimeout after `timeout`
        seconds, LinkLost. Cancelling the wait cancels the request.
        """
        return await send_request(self.link, method, params, timeout=timeout, meta=meta)


async def send_request(
    link: Channel,
    method: str,
    params: Mapping[str, object] | None = None,
    *,
    timeout: float = math.inf,
    cancellable: bool = True,
    meta: bytes = b"",
) -> Raw:
    """`Upstream.request`, for a link that has no era yet."""
    exchange = AwaitedExchange(total_timeout=timeout, meta=meta)
    exchange.cancellable = cancellable
    link.submit(exchange, method, b"" if params is None else msgspec.json.encode(params))
    try:
        message = await exchange.wait_response()
    except BaseException:
        link.cancel(exchange, "nobody waits for it any more")
        raise
    if message.error is not ABSENT:
        raise to_upstream_error(link.name, message)
    return message.result


def to_upstream_error(server: str, message: Message) -> UpstreamRefused:
    """The server's JSON-RPC error as an exception; tolerant of one that has no proper shape."""
    try:
        body = wire.value(message.error)
    except BadFrame:
        body = None
    if not isinstance(body, dict):
        body = {}
    code = body.get("code")
    words = body.get("message")
    return UpstreamRefused(
        f"{server}: {words}"
        if isinstance(words, str)
        else f"{server}: answered with an error: {shorten(bytes(message.error))}",
        server=server,
        upstream_code=code if isinstance(code, int) and not isinstance(code, bool) else 0,
        upstream_data=body.get("data"),
    )


def decode_result(server: str, method: str, result: Raw) -> Mapping[str, object]:
    """Decode a result that must be an object. Raises ProtocolViolation."""
    try:
        body = wire.value(result)
    except BadFrame as error:
        raise ProtocolViolation(f"{server}: its answer to {method} cannot be read: {error}") from None
    if not isinstance(body, dict):
        raise ProtocolViolation(
            f"{server}: its answer to {method} is not an object: {shorten(bytes(result))}", server=server
        )
    return body


def parse_server_info(value: object, instructions: object) -> ServerInfo:
    """Untrusted self-description: strings are taken, anything else is left out."""
    given = value if isinstance(value, Mapping) else {}
    taken = {
        key: str(given[key])[:500] for key in ("name", "version", "title") if isinstance(given.get(key), str)
    }
    words = instructions[:4000] if isinstance(instructions, str) else ""
    return ServerInfo(**taken, instructions=words)


def declared_capabilities(body: Mapping[str, object]) -> Mapping[str, object]:
    declared = body.get("capabilities")
    return declared if isinstance(declared, Mapping) else {}


_LIST_CHANGED = {
    "notifications/tools/list_changed": "tools",
    "notifications/resources/list_changed": "resources",
    "notifications/prompts/list_changed": "prompts",
}


_UPDATED = "notifications/resources/updated"
_FORWARDED = frozenset(
    {
        "notifications/message",
        _UPDATED,
        "notifications/elicitation/complete",
        "notifications/tasks",
        "notifications/tasks/status",
        "notifications/cancelled",
    }
)


def handle_notification(hooks: Hooks, message: Message, exchange: Exchange | None) -> None:
    """Pass on a notification that means the same in every era; ignore the rest."""
    method = message.method
    what = _LIST_CHANGED.get(method)
    if what is not None:
        hooks.on_list_changed(what)
    elif method == _UPDATED:
        uri = _uri(message.params)
        if uri is not None:
            hooks.on_notification(ServerNotification(method, message.params, exchange, uri))
    elif method in _FORWARDED:
        hooks.on_notification(ServerNotification(method, message.params, exchange))
    if method == "notifications/message":
        try:
            body = wire.members(message.params)
            data = bytes(body.get("data", b"null")).decode("utf-8", "replace")
            level = bytes(body.get("level", b'"info"')).decode("utf-8", "replace").strip('"')
        except BadFrame:
            return
        hooks.on_log(f"[{shorten(level, 20)}] {data[:4000]}")


def _uri(params: Raw) -> str | None:
    try:
        return msgspec.json.decode(wire.members(params)["uri"], type=str)
    except (BadFrame, KeyError, msgspec.MsgspecError):
        return None


def report_possible_update(hooks: Hooks, uri: str) -> None:
    """Tell of a followed resource what the server could not: nobody listened for a while."""
    hooks.on_notification(ServerNotification(_UPDATED, Raw(msgspec.json.encode({"uri": uri})), None, uri))

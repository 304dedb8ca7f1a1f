"""A connected server, independent of its protocol version: what it is, what it can do, and how to call it."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Awaitable, Callable, Iterable, Mapping

import msgspec
import trio
from msgspec import Raw

from mcpd.model.errors import ProtocolViolation, UpstreamRefused
from mcpd.model.status import ServerInfo
from mcpd.model.text import shorten
from mcpd.transports.base import Channel
from mcpd.transports.outgoing_request import AwaitedExchange, Exchange
from mcpd.wire import message as wire
from mcpd.wire.message import ABSENT, BadFrame, Message, TooLarge

LEVELS = ("debug", "info", "notice", "warning", "error", "critical", "alert", "emergency")
"""Log levels, the most verbose first."""
_SUBSCRIBED = ""


class NotificationInterests:
    """The interests of any number of holders in one server; any object can be a holder.

    The server gets the union: every resource that somebody subscribes to, and the most verbose log level.
    Nothing here starts a server or waits for one.
    """

    def __init__(self) -> None:
        self.changed = trio.Event()
        """Set, and replaced by a new event, whenever `resources` or `log_level` may have changed."""
        self._followed_by: dict[object, frozenset[str]] = {}
        self._followers: Counter[str] = Counter()
        """How many holders each wanted resource has."""
        self._resources: frozenset[str] | None = frozenset()
        """See `resources`; None if it must be determined again."""
        self._levels: dict[object, str] = {}
        self._results: dict[str, str] = {}
        self._subscribed_before: set[str] = set()
        """Current resources whose subscription was confirmed before, on this or an earlier connection."""
        self._waiters: dict[str, trio.Event] = {}

    @property
    def resources(self) -> frozenset[str]:
        """The resources that anybody subscribes to."""
        if self._resources is None:
            self._resources = frozenset(self._followers)
        return self._resources

    def follow_resources(self, holder: object, uris: Iterable[str]) -> None:
        """Set the resources that this holder wants `notifications/resources/updated` for.

        After a lost connection, one notification is reported for each resource, because changes may have
        been missed.
        """
        before, now = self._followed_by.get(holder, frozenset()), frozenset(uris)
        if now:
            self._followed_by[holder] = now
        else:
            self._followed_by.pop(holder, None)
        for uri in now - before:
            self._followers[uri] += 1
            if self._results.get(uri):  # refused before, but the server may have changed its mind
                del self._results[uri]
        for uri in before - now:
            self._followers[uri] -= 1
            if not self._followers[uri]:
                del self._followers[uri]
                self._results.pop(uri, None)
                self._subscribed_before.discard(uri)
        self._resources = None
        self._notify_changed()

    def set_log_level(self, holder: object, level: str | None) -> None:
        """Set the least severe log level that this holder wants; None for no preference.

        A legacy server keeps a level until another one is set: the protocol cannot unset it. Raises
        ValueError for an unknown level.
        """
        if level is None:
            self._levels.pop(holder, None)
        elif level in LEVELS:
            self._levels[holder] = level
        else:
            raise ValueError(level)
        self._notify_changed()

    def forget(self, holder: object) -> None:
        self._levels.pop(holder, None)
        self.follow_resources(holder, ())

    def subscribe_result(self, uri: str) -> str | None:
        """Return "" if the server confirmed the subscription, the reason if it refused, else None."""
        return self._results.get(uri)

    async def wait_subscribed(self, uri: str) -> str:
        """Wait for `subscribe_result`. The caller must bound the wait: it takes a connection."""
        while (outcome := self._results.get(uri)) is None:
            decided = self._waiters.setdefault(uri, trio.Event())
            try:
                await decided.wait()
            finally:
                if not decided.is_set() and not decided.statistics().tasks_waiting:
                    self._waiters.pop(uri, None)
        return outcome

    @property
    def log_level(self) -> str | None:
        return min(self._levels.values(), key=LEVELS.index, default=None)

    def confirm(self, uri: str) -> bool:
        """The server confirmed. Returns whether it had done so on an earlier connection."""
        if uri not in self._followers:
            return False
        self._set_result(uri, _SUBSCRIBED)
        was_confirmed = uri in self._subscribed_before
        self._subscribed_before.add(uri)
        return was_confirmed

    def confirmed(self) -> list[str]:
        """Return the resources whose subscription the server has confirmed."""
        return sorted(self._subscribed_before)

    def assume_confirmed(self, uris: Iterable[str]) -> None:
        """The server has confirmed these before, on a connection of an earlier version of the daemon."""
        self._subscribed_before.update(uris)

    def reject(self, uri: str, why: str) -> None:
        """The server has refused the subscription; `why` is shown to users."""
        if uri in self._followers:
            self._set_result(uri, why)

    def on_disconnected(self) -> None:
        """The connection has ended: forget what was confirmed or refused."""
        self._results.clear()

    def _set_result(self, uri: str, outcome: str) -> None:
        self._results[uri] = outcome
        if (decided := self._waiters.pop(uri, None)) is not None:
            decided.set()

    def _notify_changed(self) -> None:
        changed, self.changed = self.changed, trio.Event()
        changed.set()


CLIENT_NAME = "mcpd"
FEATURES = ("tools", "resources", "prompts")
"""What a server lists."""
_MAX_ERROR_MEMBER = 1024 * 1024
"""Bytes of a member of an error that is decoded."""
_MAX_KEPT_VALUES, _MAX_KEPT_BYTES = 10_000, 1024 * 1024
"""Limits for a result of which parts are kept as long as the connection lasts, such as the capabilities."""
_NOTIFICATIONS_TIMEOUT = 1.0
"""Seconds to wait for the notification stream to open before the lists are fetched anyway."""
_ROOTS_REQUEST_TIMEOUT = 2.0
"""Seconds within which a server that keeps the roots requests them after they have changed."""


class ServerNotification(msgspec.Struct, frozen=True):
    """A notification that clients may want, as the server sent it."""

    method: str
    """`notifications/message`, `…/resources/updated`, `…/elicitation/complete`, `…/tasks/status`, `…/tasks`,
    `…/cancelled` (the server cancelled a request of its own), and from `ManagedServer` also
    `…/list_changed`, once the list has been fetched again."""
    params: Raw
    """Unchanged; ABSENT if none. For a 2026-07-28 server, `_meta` names *our* subscription."""
    exchange: Exchange | None = None
    """The request it belongs to, if the transport can tell (see `Inbound`). It may be any request of ours."""
    uri: str = ""
    """For `notifications/resources/updated`: the resource, which may be part of a subscribed one."""


ServerRequestHandler = Callable[[Channel, Message, Exchange | None], bool]


class Hooks(msgspec.Struct):
    """Callbacks for what a server sends on its own. They run in the reader and must not block."""

    on_list_changed: Callable[[str], None]
    """Called with `tools`, `resources` or `prompts` when that list has changed, or may have changed while
    nobody listened."""
    on_log: Callable[[str], None]
    """Called with a line that the server wants logged."""
    capabilities: Mapping[str, object] = msgspec.field(default_factory=dict)
    """What we declare to the server (`elicitation`, `sampling`, `roots`)."""
    on_request: ServerRequestHandler | None = None
    """Called with a legacy server's request, and the request of ours that it belongs to, if the transport
    can tell (see `Inbound`). Returning True accepts it: exactly one of `Channel.respond` and `refuse` must
    follow. False refuses it immediately. Pings never get here."""
    on_notification: Callable[[ServerNotification], None] = lambda notification: None
    """Called with notifications that clients may want, in order with the responses."""
    refresh_list: Callable[[str], Awaitable[None]] | None = None
    """Fetches a list again; returns when that has succeeded or failed."""
    on_change_announced: Callable[[str], None] = lambda feature: None
    """Called before `on_list_changed` if the server itself has announced the change."""
    on_modern_detected: Callable[[], None] = lambda: None
    """Called if a server taken for legacy, because it did not answer in time, turns out to be modern. The
    next connection can use that; the era of this one is fixed."""
    interests: NotificationInterests = msgspec.field(default_factory=NotificationInterests)
    """What clients want to be notified of; fulfilled while `Upstream.run_subscriptions` runs."""


class Upstream(msgspec.Struct, eq=False):
    """A server after its handshake. Valid while its connection lasts."""

    link: Channel
    era: str
    version: str
    info: ServerInfo
    capabilities: Mapping[str, object]
    own_info: Mapping[str, object] = msgspec.field(default_factory=dict)
    """What the server says of itself in `serverInfo`, as it is."""
    ping_method: str = "ping"
    """A real request that costs the server next to nothing."""
    run_subscriptions: Callable[[], Awaitable[None]] | None = None
    """Must run while connected: calls `Hooks.on_list_changed` and fulfils `Hooks.interests`."""
    notifications_ready: trio.Event = msgspec.field(default_factory=trio.Event)
    """Set once the notification stream is open, or cannot be opened."""

    announces_changes: set[str] = msgspec.field(default_factory=set)
    """The FEATURES whose changes are announced: such a list is valid until `Hooks.on_list_changed`."""
    request_meta: Callable[[Mapping[str, object], str | None], bytes] = lambda capabilities, level: b""
    """Returns `Exchange.meta` for a request made for one client, given the client's capabilities and log
    level. Empty for a legacy server, to which both are declared per connection."""

    default_meta: bytes = b""
    """`Exchange.meta` for a request without a client; a call may become a task if supported."""

    accepts_task_param: bool = False
    """Whether a call becomes a task by its `task` param (2025-11-25)."""
    notify_roots_changed: Callable[[], None] = lambda: None
    """Tells the server that the roots have changed, if its protocol version has such a message."""
    reads_roots_until: float = 0.0
    """Until then (`trio.current_time()`), its next `roots/list` is taken for the one that follows a handshake
    or a change of the roots, and not for a part of the call in flight."""

    admit_tool: Callable[[str, bytes], str | None] | None = None
    """If set, it must see every listed tool (name, definition) before it is called. Returns why the tool
    must not be offered, or None."""

    def __repr__(self) -> str:
        return f"<Upstream {self.link.name} {self.version} {self.link!r}>"

    def announce_roots(self) -> None:
        self.expect_roots_request()
        self.notify_roots_changed()

    def expect_roots_request(self) -> None:
        self.reads_roots_until = trio.current_time() + _ROOTS_REQUEST_TIMEOUT

    async def start_subscriptions(self, nursery: trio.Nursery) -> None:
        """Start `run_subscriptions`, and wait briefly until it receives notifications."""
        if self.run_subscriptions is not None:
            nursery.start_soon(self.run_subscriptions)
            self.run_subscriptions = None  # it refers back to this object
            with trio.move_on_after(_NOTIFICATIONS_TIMEOUT):
                await self.notifications_ready.wait()
            self.notifications_ready.set()  # from now on, the caller fetches what it could not announce

    def has(self, feature: str, part: str | None = None) -> bool:
        """Return whether a capability (`tools`), or a part of it (`listChanged`), was declared."""
        declared = self.capabilities.get(feature)
        if part is None:
            return isinstance(declared, Mapping)
        return isinstance(declared, Mapping) and declared.get(part) is True

    @property
    def asks_by_request(self) -> bool:
        """Whether the server asks its clients by requests of its own, as before 2026-07-28."""
        return self.era == "legacy"

    @property
    def types_results(self) -> bool:
        """Whether its results have a type, and may be unfinished."""
        return self.era == "modern"

    @property
    def sends_cache_hints(self) -> bool:
        return self.era == "modern"

    @property
    def may_take_subscriptions(self) -> bool:
        """Whether to ask it for resource subscriptions. A legacy server may answer `resources/subscribe` and
        declare that it does not, like every server on the Python SDK 1.x, so it is asked in any case."""
        return self.era == "legacy" or self.has("resources", "subscribe")

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
        """Send a request and return the result's bytes; `meta`: see `Exchange.meta`.

        Raises UpstreamRefused if the server responds with an error, CallTimeout after `timeout` seconds,
        LinkLost. Cancelling the wait cancels the request.
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
    """`Upstream.request`, for a connection whose protocol version is not negotiated yet."""
    exchange = AwaitedExchange(total_timeout=timeout, meta=meta)
    exchange.cancellable = cancellable
    link.submit(exchange, method, b"" if params is None else msgspec.json.encode(params))
    try:
        message = await exchange.wait_response()
    except BaseException:
        link.cancel(exchange, "no longer needed")
        raise
    if message.error is not ABSENT:
        raise to_upstream_error(link.name, message)
    return message.result


def to_upstream_error(server: str, message: Message) -> UpstreamRefused:
    """Return the server's JSON-RPC error as an exception; tolerates malformed errors."""
    code, text, data = parse_error(message.error)
    text = text if text is not None else f"answered with an error: {shorten(bytes(message.error))}"
    return UpstreamRefused(f"{server}: {text}", server=server, upstream_code=code or 0, upstream_data=data)


def parse_error(error: Raw) -> tuple[int | None, str | None, object]:
    """Return code, message and data of a JSON-RPC error; None for each that is missing or malformed.

    Data that is too large to be decoded is returned as `Raw`, which can still be forwarded.
    """
    fields = wire.members_or_empty(error)
    code, text, data = (_decode_member(fields, name) for name in ("code", "message", "data"))
    return (
        code if isinstance(code, int) and not isinstance(code, bool) else None,
        text if isinstance(text, str) else None,
        data,
    )


def _decode_member(fields: Mapping[str, Raw], name: str) -> object:
    raw = fields.get(name)
    if raw is None:
        return None
    if len(raw) > _MAX_ERROR_MEMBER:
        return raw
    try:
        return wire.value(raw)
    except TooLarge:
        return raw
    except BadFrame:
        return None


def decode_result(server: str, method: str, result: Raw) -> Mapping[str, object]:
    """Decode a result that must be an object, and of which parts are kept. Raises ProtocolViolation."""
    try:
        body = wire.value(result, _MAX_KEPT_VALUES, _MAX_KEPT_BYTES)
    except BadFrame as error:
        raise ProtocolViolation(f"{server}: its response to {method} is invalid: {error}") from None
    if not isinstance(body, dict):
        raise ProtocolViolation(
            f"{server}: its answer to {method} is not an object: {shorten(bytes(result))}", server=server
        )
    return body


def parse_server_info(value: object, instructions: object) -> ServerInfo:
    """Parse the server's untrusted self-description; anything but strings is ignored."""
    fields = value if isinstance(value, Mapping) else {}
    names = ("name", "version", "title")
    strings = {name: shorten(str(fields[name]), 500) for name in names if isinstance(fields.get(name), str)}
    text = instructions[:4000] if isinstance(instructions, str) else ""
    return ServerInfo(**strings, instructions=text)


def object_or_empty(value: object) -> Mapping[str, object]:
    """Return what a server sent as an object, such as its capabilities; nothing if it is none."""
    return value if isinstance(value, Mapping) else {}


_LIST_CHANGED = {f"notifications/{feature}/list_changed": feature for feature in FEATURES}
_UPDATED = "notifications/resources/updated"


def handle_notification(hooks: Hooks, message: Message, exchange: Exchange | None) -> None:
    """Pass on a notification."""
    method = message.method
    what = _LIST_CHANGED.get(method)
    if what is not None:
        hooks.on_change_announced(what)
        hooks.on_list_changed(what)
    elif method == _UPDATED:
        try:
            uri = wire.string(wire.members(message.params), "uri")
        except BadFrame:
            return
        hooks.on_notification(ServerNotification(method, message.params, exchange, uri))
    else:
        hooks.on_notification(ServerNotification(method, message.params, exchange))
    if method == "notifications/message":
        try:
            body = wire.members(message.params)
            data = bytes(body.get("data", b"null")).decode("utf-8", "replace")
            level = bytes(body.get("level", b'"info"')).decode("utf-8", "replace").strip('"')
        except BadFrame:
            return
        hooks.on_log(f"[{shorten(level, 20)}] {shorten(data, 4000)}")


def report_possible_update(hooks: Hooks, uri: str) -> None:
    """Report a subscribed resource as updated, because nobody listened for a while."""
    hooks.on_notification(ServerNotification(_UPDATED, Raw(msgspec.json.encode({"uri": uri})), None, uri))

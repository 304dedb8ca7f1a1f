"""Revision 2026-07-28: no session; requests carry the version, changes arrive on a listen stream."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from contextlib import suppress
from functools import partial

import msgspec
import trio
from msgspec import Raw

from mcpd import __version__
from mcpd.model.errors import UpstreamRefused
from mcpd.protocol import extensions
from mcpd.protocol.listen_stream import UpstreamListenStream
from mcpd.protocol.upstream_session import (
    CLIENT_NAME,
    Hooks,
    Upstream,
    decode_result,
    handle_notification,
    object_or_empty,
    parse_server_info,
    to_upstream_error,
)
from mcpd.transports.base import Channel, Dialect
from mcpd.transports.outgoing_request import AwaitedExchange, BeforeRetry, Exchange
from mcpd.wire import message as wire
from mcpd.wire.headers import (
    NAME_PARAMETERS,
    encode_header_value,
    invalid_annotations,
    mirrored_properties,
    param_headers,
)
from mcpd.wire.message import ABSENT, RESERVED_PREFIX, BadFrame, Message

VERSIONS = ("2026-07-28",)
"""Newest first."""

HEADER_MISMATCH, MISSING_CAPABILITY, UNSUPPORTED_VERSION = -32020, -32021, -32022
MODERN_ONLY_ERRORS = frozenset({HEADER_MISMATCH, MISSING_CAPABILITY, UNSUPPORTED_VERSION})
"""Errors that only a modern server sends."""
_CHECK_INTERVAL = 0.1
"""Seconds between two checks whether a server has read the probe: nothing announces it."""
_NO_CAPABILITIES: Mapping[str, object] = {}


def request_meta(version: str, capabilities: Mapping[str, object], log_level: str | None = None) -> bytes:
    """Return the members that `_meta` of every request must have, as JSON."""
    meta: dict[str, object] = {
        f"{RESERVED_PREFIX}protocolVersion": version,
        f"{RESERVED_PREFIX}clientInfo": {"name": CLIENT_NAME, "version": __version__},
        f"{RESERVED_PREFIX}clientCapabilities": capabilities,
    }
    if log_level is not None:
        meta[f"{RESERVED_PREFIX}logLevel"] = log_level
    return msgspec.json.encode(meta)[1:-1]


def dialect(
    version: str,
    parameter_headers: ParameterHeaders | None = None,
    capabilities: Mapping[str, object] = _NO_CAPABILITIES,
    log_level: str | None = None,
    refresh_list: Callable[[str], Awaitable[None]] | None = None,
) -> Dialect:
    """Return the dialect for `version`. `parameter_headers` must have seen the tools; `capabilities` is what
    mcpd supports; `refresh_list` fetches a list again."""

    def retry_after_header_mismatch(method: str, message: Message) -> BeforeRetry | None:
        """A call whose headers do not match the tool's newest definition is refused without being run; the
        specification says to fetch the definition and to retry once."""
        if refresh_list is None or method != "tools/call":
            return None
        mismatch = to_upstream_error("", message).upstream_code == HEADER_MISMATCH
        return partial(refresh_list, "tools") if mismatch else None

    return Dialect(
        retry_after_refusal=retry_after_header_mismatch,
        meta=request_meta(version, capabilities, log_level),
        headers=(parameter_headers or ParameterHeaders(version)).headers,
        disconnect_cancels=True,
    )


class _DiscoverRequest(AwaitedExchange, kw_only=True):
    """The first request; its response may arrive when nobody waits for it any longer."""

    on_late_answer: Callable[[], None] | None = None

    def answered(self, message: Message) -> None:
        super().answered(message)
        if self.on_late_answer is not None and _is_modern(message):
            self.on_late_answer()


async def discover(
    link: Channel,
    version: str = VERSIONS[0],
    on_late_answer: Callable[[], None] | None = None,
    while_waiting: Callable[[], None] | None = None,
) -> Mapping[str, object]:
    """Send `server/discover` and return its result. Raises UpstreamRefused, LinkLost, ProtocolViolation.

    Cancelling it tells the server nothing, because a legacy server would not understand. If a modern server
    responds later while the connection lasts, `on_late_answer` is called. `while_waiting` is called every
    _CHECK_INTERVAL seconds.
    """
    link.set_dialect(dialect(version))
    probe = _DiscoverRequest(long_lived=True, cancellable=False)
    link.submit(probe, "server/discover", b"{}")
    try:
        message = await _wait_response(probe, while_waiting)
    except trio.Cancelled:
        probe.on_late_answer = on_late_answer
        raise
    if message.error is not ABSENT:
        raise to_upstream_error(link.name, message)
    return decode_result(link.name, "server/discover", message.result)


async def _wait_response(probe: AwaitedExchange, while_waiting: Callable[[], None] | None) -> Message:
    while while_waiting is not None:
        with trio.move_on_after(_CHECK_INTERVAL):
            return await probe.wait_response()
        while_waiting()
    return await probe.wait_response()


def _is_modern(message: Message) -> bool:
    try:
        body = wire.value(message.result)
    except BadFrame:
        return False
    versions = version_list(body.get("supportedVersions")) if isinstance(body, dict) else ()
    return any(version in VERSIONS for version in versions)


def discovered(about: Mapping[str, object]) -> Mapping[str, object]:
    """Return a DiscoverResult with these capabilities, `serverInfo` and instructions."""
    return {**about, "_meta": {f"{RESERVED_PREFIX}serverInfo": about["serverInfo"]}}


def make_upstream(link: Channel, hooks: Hooks, version: str, discovered: Mapping[str, object]) -> Upstream:
    """Return the upstream that a DiscoverResult describes, for `version`."""
    parameter_headers = ParameterHeaders(version)
    link.set_dialect(dialect(version, parameter_headers, hooks.capabilities, refresh_list=hooks.refresh_list))
    own_info = object_or_empty(discovered.get("_meta")).get(f"{RESERVED_PREFIX}serverInfo")
    upstream = Upstream(
        link=link,
        era="modern",
        version=version,
        info=parse_server_info(own_info, discovered.get("instructions")),
        own_info=object_or_empty(own_info),
        capabilities=object_or_empty(discovered.get("capabilities")),
        ping_method="server/discover",
    )
    if link.has_headers:
        upstream.admit_tool = parameter_headers.admit_tool
    accepts_log_level = upstream.has("logging")

    def upstream_request_meta(capabilities: Mapping[str, object], log_level: str | None) -> bytes:
        return request_meta(version, capabilities, log_level if accepts_log_level else None)

    async def sync_log_level() -> None:
        while True:
            changed = hooks.interests.changed
            level = hooks.interests.log_level
            link.set_dialect(
                dialect(version, parameter_headers, hooks.capabilities, level, hooks.refresh_list)
            )
            await changed.wait()

    async def follow() -> None:
        async with trio.open_nursery() as nursery:
            if accepts_log_level:
                nursery.start_soon(sync_log_level)
            await subscription.run()
            nursery.cancel_scope.cancel(reason="the link has ended")

    subscription = UpstreamListenStream(upstream, hooks)
    link.inbound = _ModernInbound(hooks, subscription)
    upstream.request_meta = upstream_request_meta
    declared = upstream.capabilities.get("extensions")
    has_tasks = isinstance(declared, Mapping) and extensions.TASKS in declared
    upstream.default_meta = upstream_request_meta(
        {"extensions": {extensions.TASKS: {}}} if has_tasks else {}, None
    )
    upstream.run_subscriptions = follow
    return upstream


class _ModernInbound(msgspec.Struct, eq=False):
    """Handles messages from a modern server: notifications only. Requests are forbidden, and ignored."""

    hooks: Hooks
    subscription: UpstreamListenStream

    def on_request(self, message: Message, exchange: Exchange | None = None) -> None:
        self.hooks.on_log(f"[mcpd] ignored a request ({message.method[:60]}), forbidden in this revision")

    def on_notification(self, message: Message, exchange: Exchange | None = None) -> None:
        if message.method == "notifications/message":
            handle_notification(self.hooks, message, exchange)
        else:
            self.subscription.receive(message, exchange)


def version_list(source: object) -> tuple[str, ...]:
    """Return the version strings of `supportedVersions`, or of an error's `data.supported`."""
    return tuple(item for item in source if isinstance(item, str)) if isinstance(source, list) else ()


def versions_in_error(error: UpstreamRefused) -> tuple[str, ...]:
    data = error.upstream_data
    return version_list(data.get("supported")) if isinstance(data, Mapping) else ()


class _Params(msgspec.Struct, frozen=True):
    """The params that are repeated, or decide what is."""

    name: str | None = None
    uri: str | None = None
    taskId: str | None = None  # the protocol's spelling
    arguments: Raw = Raw(b"{}")


class _Frame(msgspec.Struct, frozen=True):
    params: _Params = _Params()


_decode = msgspec.json.Decoder(_Frame).decode


class ParameterHeaders:
    """Knows which arguments of which tools are repeated; `admit_tool` must see a tool before it is called."""

    def __init__(self, version: str) -> None:
        self._version = {"MCP-Protocol-Version": version}
        self._schemas: dict[str, Mapping[str, object]] = {}

    def headers(self, method: str, frame: bytes) -> Mapping[str, str]:
        """Return the headers of a message; see `Dialect.headers`."""
        if not method:
            return self._version
        headers = {**self._version, "Mcp-Method": encode_header_value(method)}
        named_by = NAME_PARAMETERS.get(method)
        if named_by is None:
            return headers
        try:
            params = _decode(frame).params
        except (msgspec.MsgspecError, RecursionError):
            return headers  # let the server refuse such a request
        name = getattr(params, named_by)
        if name is not None:
            headers["Mcp-Name"] = encode_header_value(name)
            schema = self._schemas.get(name) if method == "tools/call" else None
            if schema is not None:
                with suppress(BadFrame):
                    headers.update(param_headers(schema, wire.mapping(params.arguments)))
        return headers

    def admit_tool(self, tool: str, definition: bytes) -> str | None:
        """Learn which arguments to repeat; return why the tool must not be offered, or None."""
        self._schemas.pop(tool, None)
        if b"x-mcp-header" not in definition and b"\\u" not in definition:
            return None
        try:
            body = wire.value(definition)
        except BadFrame as error:
            return str(error)
        schema = body.get("inputSchema") if isinstance(body, dict) else None
        if not isinstance(schema, dict):
            return None
        wrong = invalid_annotations(schema)
        if wrong is None and mirrored_properties(schema):
            self._schemas[tool] = schema
        return wrong

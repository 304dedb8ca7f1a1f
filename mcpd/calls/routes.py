"""Routes: what applies to all calls of one tool, resolved once and not for each call.

A route is valid until its server's lists or the settings change.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

import msgspec

from mcpd.calls import turns
from mcpd.calls.call import Binding, Caller, Route, Scope, Stage, StageHooks, is_name_unique, tool_name
from mcpd.calls.client_context import ClientContext
from mcpd.config.settings import Settings
from mcpd.model.policy import declares, is_read_only
from mcpd.operations import Operations
from mcpd.protocol.revision_translation import no_translation, translation
from mcpd.protocol.upstream_session import Upstream
from mcpd.supervision.attachments import Attachment
from mcpd.supervision.catalog import Item
from mcpd.supervision.managed_server import ManagedServer
from mcpd.transports.outgoing_request import FROM_TIMEOUT

_MAX_ROUTES = 2000
"""Routes kept for one server: clients may call any name."""
_MAX_NAME = 1000
"""Characters of a tool and method whose route is kept."""
_FROM_TOOL_TIMEOUTS = "`toolTimeouts` in its definition sets"


DIRECT = Scope()
"""MCP clients that see a single server."""
CONTROL = Scope(is_control=True)


class Target(msgspec.Struct, frozen=True, eq=False, gc=False):
    """Where a request goes, and with which params."""

    server: ManagedServer
    params: bytes
    tool: str = ""
    """The tool's own name, if it is known."""
    alias: tuple[str, str] | None = None
    """See `Call.alias`."""


class StageFactory(Protocol):
    """Decides which routes have a stage."""

    is_per_tool: bool
    """Whether that, or what the stage does, depends on the tool."""

    def is_enabled(self, scope: Scope, server: ManagedServer, method: str, settings: Settings) -> bool:
        """Return whether any calls of the method may have the stage."""

    def make(self, scope: Scope, server: ManagedServer, method: str, name: str) -> Stage | None:
        """Return the stage for calls of one tool (`name`), or of a method; None if it has none."""


_Key = tuple[Scope, str, str | bytes]
"""(callers, method, the tool's name or the bytes with which the params of its calls usually begin)."""
ROUTES = Attachment[dict[_Key, Route]]("how calls of each tool run")
_NO_ROUTES: dict[_Key, Route] = {}


def resolve_route(
    scope: Scope,
    server: ManagedServer,
    method: str,
    tool: str,
    settings: Settings,
    factories: Sequence[StageFactory],
) -> Route:
    """Resolve a route and keep it: by the name of the tool, and by the bytes with which the params of its
    calls usually begin.
    """
    enabled = [factory for factory in factories if factory.is_enabled(scope, server, method, settings)]
    made = (each.make(scope, server, method, tool) for each in enabled)
    stages = StageHooks.of([stage for stage in made if stage is not None])
    is_call = method == "tools/call"
    if is_call:
        route = _tool_route(server, tool, stages, all_alike=not any(each.is_per_tool for each in enabled))
    else:
        times = server.spec.timeouts
        route = Route(
            spec=server.spec,
            method=method,
            tool=tool,
            stages=stages,
            idle_timeout=times.call,
            total_timeout=times.call_max,
            timeout_source=FROM_TIMEOUT,
        )
    if len(tool) + len(method) > _MAX_NAME:
        return route
    routes = server.list_attachments.get(ROUTES)
    if routes is None:
        routes = server.list_attachments[ROUTES] = {}
    elif len(routes) >= _MAX_ROUTES:
        routes.clear()
    routes[scope, method, tool] = route
    if is_call and tool and tool.isascii() and not set(tool) & set('"\\'):
        routes[scope, method, b'{"name":"%b' % tool.encode()] = route
    return route


def _tool_route(server: ManagedServer, tool: str, stages: StageHooks, *, all_alike: bool) -> Route:
    """`all_alike`: whether all tools of the server have the same stages."""
    spec, times = server.spec, server.spec.timeouts
    item = server.catalog.tool(tool) if tool and server.catalog is not None else None
    read_only = item is not None and is_read_only(item.raw)
    exclusive = spec.concurrency == "serial" or (spec.concurrency == "writes" and not read_only)
    write_turn = _write_turn(item) if spec.takes_write_turns else 0.0
    own_timeout = times.tools.get(tool)
    return Route(
        spec=spec,
        method="tools/call",
        tool=tool,
        stats=server.call_stats.for_tool(tool),
        depends_on_tool=not all_alike or bool(times.tools) or _tools_differ(server),
        stages=stages,
        idle_timeout=times.call if own_timeout is None else own_timeout,
        total_timeout=times.call_max,
        timeout_source=FROM_TIMEOUT if own_timeout is None else _FROM_TOOL_TIMEOUTS,
        is_read_only=read_only,
        is_exclusive=exclusive,
        write_turn=write_turn,
        may_wait=exclusive or write_turn > 0,
        requires_task=item is not None and requires_task(item),
    )


class RouteTable:
    """Finds the route of each call."""

    def __init__(self, operations: Operations, factories: Sequence[StageFactory]) -> None:
        self._operations = operations
        self._factories = factories
        self._settings: Settings | None = None
        """The settings that the routes were resolved with."""

    def find(self, scope: Scope, server: ManagedServer, method: str, tool: str, params: bytes) -> Route:
        """Return the route of a call; `tool` may be empty. Raises NotReady while the daemon stops."""
        settings = self._operations.config.loaded.settings
        if settings is not self._settings:
            if self._operations.is_stopping:  # asked here, and not for every call: see `forget`
                raise self._operations.not_ready_error(server)
            self._settings = settings
            for each in self._operations.supervisor.everything():
                each.list_attachments.pop(ROUTES, None)
        routes = server.list_attachments.get(ROUTES) or _NO_ROUTES
        if tool or method != "tools/call":
            route = routes.get((scope, method, tool))
        else:
            beginning = params[: params.find(b'"', 9)]  # usually the name is the first member
            route = routes.get((scope, method, beginning))
            if route is None or (route.depends_on_tool and not is_name_unique(params)):
                tool = tool_name(params)
                route = routes.get((scope, method, tool))
        if route is None or route.spec is not server.spec:
            route = resolve_route(scope, server, method, tool, settings, self._factories)
        return route

    def forget(self) -> None:
        """Resolve the routes of new calls again, which fails while the daemon stops."""
        self._settings = None


def make_binding(caller: Caller, context: ClientContext, upstream: Upstream) -> Binding:
    """Return what the client's calls in this context have in common on this connection."""
    translated = (
        translation(context.version, upstream.version)
        if context.version
        else no_translation(upstream.version)
    )
    return Binding(
        upstream=upstream,
        context=context,
        translation=translated,
        is_verbatim=translated.same and not upstream.types_results,
        awaits_visits=context.modern and upstream.asks_by_request,
        meta=caller.request_meta(upstream, context),
        may_ask=context.accepts_server_requests and upstream.asks_by_request,
    )


def requires_task(tool: Item) -> bool:
    return declares(tool.raw, "execution", "taskSupport", b'"required"')


def _write_turn(tool: Item | None) -> float:
    """Return `Route.write_turn`. A tool that declares `openWorldHint` works on something that mcpd does not
    run, and which has other users anyway.
    """
    if tool is None or b"Hint" not in tool.raw:
        return turns.UNDECLARED
    if is_read_only(tool.raw) or declares(tool.raw, "annotations", "openWorldHint", b"true"):
        return 0.0
    says_it_writes = declares(tool.raw, "annotations", "readOnlyHint", b"false")
    return turns.DECLARED if says_it_writes else turns.UNDECLARED


def _tools_differ(server: ManagedServer) -> bool:
    """Return whether the server's tools may differ in their turns, or in how they are called."""
    tools = () if server.catalog is None else server.catalog.tools
    return (
        server.spec.concurrency == "writes"
        or (server.spec.takes_write_turns and any(b"Hint" in tool.raw for tool in tools))
        or any(map(requires_task, tools))
    )

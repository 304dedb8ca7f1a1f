"""The table of `mcpd/…` methods: parameters, result type, and the operation that each one calls."""

from __future__ import annotations

import platform
import time
from collections.abc import Awaitable, Callable, Mapping
from functools import partial
from typing import Any, Generic, TypeVar

import attrs

from mcpd import __version__
from mcpd.api import metrics
from mcpd.gateway import control_reads
from mcpd.model import api, codec
from mcpd.model.api import (
    AddParams,
    ApplyResult,
    CompleteParams,
    ConfigView,
    PromptParams,
    PromptsResult,
    ReadParams,
    RemoveParams,
    ResourcesResult,
    SetServersParams,
    ToolsResult,
)
from mcpd.model.errors import InvalidArguments, Problem
from mcpd.model.events import History, HistoryParams
from mcpd.model.status import parse_timestamp
from mcpd.model.text import shorten
from mcpd.model.usage import ClientsResult, Stats, StatsParams
from mcpd.operations import Operations
from mcpd.protocol.negotiate import PROTOCOL_VERSIONS
from mcpd.supervision.managed_server import ManagedServer

P = TypeVar("P")

MAX_WAIT = 600.0


@attrs.frozen
class Method(Generic[P]):
    """A method of the control API. Either `handler` or `async_handler` is set."""

    summary: str
    params: type[P]
    result: object
    """A class of `mcpd.model`, or a description of an MCP result that is passed through."""
    handler: Callable[[Operations, P], object] | None = None
    """Returns the result without waiting."""
    async_handler: Callable[[Operations, P], Awaitable[object]] | None = None
    """Returns the result after waiting for something."""


def _desired_state_method(
    summary: str, change: Callable[[ManagedServer], None], *, persistent: bool = False
) -> Method[api.LifecycleParams]:
    async def handle(core: Operations, params: api.LifecycleParams) -> api.ServerResult:
        wait = min(params.wait, MAX_WAIT)
        return api.ServerResult(
            server=await core.change_desired_state(params.server, change, wait, persistent=persistent)
        )

    return Method(summary, api.LifecycleParams, api.ServerResult, async_handler=handle)


async def _disable(core: Operations, params: api.DisableParams) -> api.ServerResult:
    until = None if params.until is None else _parse_future_time(params.until)
    change = partial(ManagedServer.set_enabled, on=False, until=until)
    wait = min(params.wait, MAX_WAIT)
    return api.ServerResult(
        server=await core.change_desired_state(params.server, change, wait, persistent=True)
    )


def _parse_future_time(text: str) -> float:
    """Parse a timestamp. Raises InvalidArguments if it is invalid or in the past."""
    try:
        until = parse_timestamp(text)
    except ValueError:
        problem = f"{shorten(text)!r} is not a timestamp with a zone, such as 2026-11-21T18:00:00Z"
    else:
        if until > time.time():
            return until
        problem = f"{text} is in the past"
    raise InvalidArguments(f"mcpd/disable: {problem}", [Problem("$.until", problem)])


async def _refresh_catalogs(core: Operations, params: api.OptionalServerParam) -> None:
    if params.server is not None:
        await core.load_catalog(params.server)
    else:
        await core.refresh_catalogs(core.supervisor.servers())


async def _tools(core: Operations, params: api.OptionalServerParam) -> ToolsResult:
    await _refresh_catalogs(core, params)
    return core.tools(params.server)


async def _resources(core: Operations, params: api.OptionalServerParam) -> ResourcesResult:
    await _refresh_catalogs(core, params)
    return core.resources(params.server)


async def _prompts(core: Operations, params: api.OptionalServerParam) -> PromptsResult:
    await _refresh_catalogs(core, params)
    return core.prompts(params.server)


async def _read(core: Operations, params: ReadParams) -> object:
    return await control_reads.read_resource(core, params.server, params.uri)


async def _prompt(core: Operations, params: PromptParams) -> object:
    return await control_reads.get_prompt(core, params.server, params.prompt, params.arguments)


async def _complete(core: Operations, params: CompleteParams) -> object:
    request: dict[str, object] = {"ref": params.ref, "argument": params.argument}
    if params.context is not None:
        request["context"] = params.context
    return await core.send_request(params.server, "completions", "completion/complete", request)


async def _set_servers(core: Operations, params: SetServersParams) -> ApplyResult:
    applied = core.config.set_servers(
        params.servers, dry_run=params.dry_run, if_generation=params.if_generation
    )
    return await _when_applied(core, applied)


async def _add(core: Operations, params: AddParams) -> ApplyResult:
    applied = core.config.add(params.server, params.definition, save=params.save, replace=params.replace)
    return await _when_applied(core, applied)


async def _remove(core: Operations, params: RemoveParams) -> ApplyResult:
    return await _when_applied(core, core.config.remove(params.server, save=params.save))


async def _reload(core: Operations, _: api.NoParams) -> ApplyResult:
    return await _when_applied(core, core.config.reload())


async def _when_applied(core: Operations, applied: ApplyResult) -> ApplyResult:
    """Return once the change is applied, so that the next status shows it."""
    if not applied.dry_run and not applied.errors:
        await core.supervisor.wait_applied(applied.generation)
    return applied


async def _metrics(core: Operations, _: api.NoParams) -> api.Metrics:
    stats = await core.stats(None, processes=True)
    return api.Metrics(content_type=metrics.CONTENT_TYPE, text=metrics.render(core.status(), stats))


def _version(core: Operations, _: api.NoParams) -> api.VersionInfo:
    daemon = core.status().daemon
    return api.VersionInfo(
        version=__version__,
        api=api.API_VERSION,
        pid=daemon.pid,
        python=platform.python_version(),
        started_at=daemon.started_at,
        search_path=core.search_path,
        protocol_versions=PROTOCOL_VERSIONS,
    )


def _shutdown(core: Operations, _: api.NoParams) -> api.EmptyResult:
    core.stop("requested by a client")
    return api.EmptyResult()


MCP_RESULT = "MCP's own result object, byte for byte"

METHODS: Mapping[str, Method[Any]] = {
    "mcpd/status": Method(
        "Return the status of all servers and the active configuration.",
        api.NoParams,
        api.DaemonStatus,
        handler=lambda core, _: core.status(),
    ),
    "mcpd/server": Method(
        "Return one server with everything that explains its state.",
        api.ServerParam,
        api.ServerDetail,
        handler=lambda core, params: core.server_detail(params.server),
    ),
    "mcpd/tools": Method(
        "List the tools of one server or of all.",
        api.OptionalServerParam,
        ToolsResult,
        async_handler=_tools,
    ),
    "mcpd/resources": Method(
        "List resources and resource templates.",
        api.OptionalServerParam,
        ResourcesResult,
        async_handler=_resources,
    ),
    "mcpd/read": Method("Read a resource.", ReadParams, MCP_RESULT, async_handler=_read),
    "mcpd/prompts": Method("List prompts.", api.OptionalServerParam, PromptsResult, async_handler=_prompts),
    "mcpd/prompt": Method(
        "Get a prompt with its arguments filled in.", PromptParams, MCP_RESULT, async_handler=_prompt
    ),
    "mcpd/complete": Method(
        "Complete an argument of a prompt or resource template.",
        CompleteParams,
        MCP_RESULT,
        async_handler=_complete,
    ),
    "mcpd/connect": _desired_state_method(
        "Connect a server; an existing connection is kept.", ManagedServer.connect
    ),
    "mcpd/disconnect": _desired_state_method(
        "Stop a server until it is connected again or the daemon restarts.", ManagedServer.disconnect
    ),
    "mcpd/reconnect": _desired_state_method(
        "Close a server's connection, if any, and connect again immediately.", ManagedServer.reconnect
    ),
    "mcpd/enable": _desired_state_method(
        "Enable a server; persists across restarts of the daemon.",
        partial(ManagedServer.set_enabled, on=True),
        persistent=True,
    ),
    "mcpd/disable": Method(
        "Disable a server permanently or until a time; persists across restarts of the daemon.",
        api.DisableParams,
        api.ServerResult,
        async_handler=_disable,
    ),
    "mcpd/servers/set": Method(
        "Replace the set of servers, all or nothing; unchanged servers keep running.",
        SetServersParams,
        ApplyResult,
        async_handler=_set_servers,
    ),
    "mcpd/add": Method("Add one server.", AddParams, ApplyResult, async_handler=_add),
    "mcpd/remove": Method("Remove one server.", RemoveParams, ApplyResult, async_handler=_remove),
    "mcpd/reload": Method("Reload the configuration.", api.NoParams, ApplyResult, async_handler=_reload),
    "mcpd/config": Method(
        "Return the active definitions, with secrets masked.",
        api.NoParams,
        ConfigView,
        handler=lambda core, _: core.config.view(),
    ),
    "mcpd/history": Method(
        "Return the events of one server or of all, with their causes; kept over restarts.",
        HistoryParams,
        History,
        handler=lambda core, params: core.history(params.server, params.limit),
    ),
    "mcpd/clients": Method(
        "List the connected clients, their processes and the servers that they use.",
        api.NoParams,
        ClientsResult,
        handler=lambda core, params: core.list_clients(),
    ),
    "mcpd/stats": Method(
        "Return call counts, latencies, memory and CPU time by server, tool and client.",
        StatsParams,
        Stats,
        async_handler=lambda core, params: core.stats(params.server, processes=params.processes),
    ),
    "mcpd/metrics": Method(
        "Return all metrics in the Prometheus text format.",
        api.NoParams,
        api.Metrics,
        async_handler=_metrics,
    ),
    "mcpd/page": Method(
        "Return a one-time address that opens the dashboard in a browser.",
        api.NoParams,
        api.DashboardLink,
        handler=lambda core, _: core.dashboard_link(),
    ),
    "mcpd/ping": Method(
        "Measure a round trip to a connected server.",
        api.PingParams,
        api.PingResult,
        async_handler=lambda core, params: core.ping(params.server, min(params.timeout, MAX_WAIT)),
    ),
    "mcpd/version": Method(
        "Return the versions of mcpd, its API and the supported protocol revisions.",
        api.NoParams,
        api.VersionInfo,
        handler=_version,
    ),
    "mcpd/shutdown": Method("Stop the daemon.", api.NoParams, api.EmptyResult, handler=_shutdown),
}
"""Methods with a single response. `control_requests` has those that stream or change the connection."""


def decode_params(method: str, params: object, into: type[P]) -> P:
    """Convert `params`. Raises InvalidArguments with all errors."""
    try:
        return codec.structure({} if params is None else params, into)
    except codec.ShapeError as error:
        raise InvalidArguments(f"{method}: {error}", error.problems) from None

"""The table of `mcpd/…` methods: parameters, result type and operation."""

from __future__ import annotations

import platform
import time
from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path
from typing import Any, Generic, TypeVar

import attrs
import msgspec

from mcpd import __version__
from mcpd.api import login_methods
from mcpd.api.metrics import collect_metrics
from mcpd.daemon_operations import Operations
from mcpd.model import api, codec, login, policy_api
from mcpd.model.api import (
    CallParams,
    CompleteParams,
    PromptParams,
    PromptsResult,
    ReadParams,
    ResourcesResult,
    ToolsResult,
)
from mcpd.model.call_record import CallRecords, CallsParams
from mcpd.model.config_api import (
    AddParams,
    ApplyResult,
    ConfigCheck,
    ConfigCheckParams,
    ConfigView,
    RemoveParams,
    SetServersParams,
)
from mcpd.model.errors import InvalidArguments, Problem
from mcpd.model.events import Event, History, HistoryParams, TapFrame, TapParams
from mcpd.model.status import parse_timestamp
from mcpd.model.text import shorten
from mcpd.model.tool_result import ToolResult
from mcpd.model.usage_stats import CacheCleared, CacheClearParams, ClientsResult, Stats, StatsParams
from mcpd.protocol.negotiate import PROTOCOL_VERSIONS
from mcpd.supervision.managed_server import ManagedServer

P = TypeVar("P")

MAX_WAIT = 600.0


class Method(msgspec.Struct, Generic[P], frozen=True):
    """A method of the control API."""

    summary: str
    params: type[P]
    result: object
    """A class of `mcpd.model`, or a description of an MCP result that is forwarded unchanged."""
    handler: Callable[[Operations, P], object] | None = None
    """Returns the result, or an awaitable of it. None for methods that call a server, stream, or change the
    connection: `ControlRequests` handles them.

    What is awaited may also be a function that creates the result. It is called when the response is sent, so
    that at most one result exists at a time, however many requests wait for their turn.
    """


def _desired_state_method(
    summary: str, change: Callable[[ManagedServer], None], *, persistent: bool = False
) -> Method[api.LifecycleParams]:
    async def handle(operations: Operations, params: api.LifecycleParams) -> api.ServerResult:
        wait = min(params.wait, MAX_WAIT)
        return await operations.change_desired_state(params.server, change, wait, persistent=persistent)

    return Method(summary, api.LifecycleParams, api.ServerResult, handle)


async def _disable(operations: Operations, params: api.DisableParams) -> api.ServerResult:
    until = None if params.until is None else _parse_future_time(params.until)
    change = partial(ManagedServer.set_enabled, on=False, until=until)
    wait = min(params.wait, MAX_WAIT)
    return await operations.change_desired_state(params.server, change, wait, persistent=True)


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


def _list_method(
    summary: str, result: type, list_items: Callable[[Operations, str | None], object]
) -> Method[api.OptionalServerParam]:
    async def handle(operations: Operations, params: api.OptionalServerParam) -> object:
        if params.server is not None:
            await operations.load_catalog(params.server)
        else:
            await operations.refresh_catalogs(operations.supervisor.servers())
        return partial(list_items, operations, params.server)

    return Method(summary, api.OptionalServerParam, result, handle)


async def _set_servers(operations: Operations, params: SetServersParams) -> ApplyResult:
    applied = await operations.config.set_servers(
        params.servers, dry_run=params.dry_run, if_generation=params.if_generation
    )
    return await _when_applied(operations, applied)


async def _add(operations: Operations, params: AddParams) -> ApplyResult:
    applied = await operations.config.add(
        params.server, params.definition, save=params.save, replace=params.replace
    )
    return await _when_applied(operations, applied)


async def _remove(operations: Operations, params: RemoveParams) -> ApplyResult:
    return await _when_applied(operations, await operations.config.remove(params.server, save=params.save))


async def _reload(operations: Operations, _: api.NoParams) -> ApplyResult:
    return await _when_applied(operations, await operations.config.reload())


async def _when_applied(operations: Operations, applied: ApplyResult) -> ApplyResult:
    """Return once the change is applied, so that the next status shows it, and saved, or with a warning."""
    if applied.dry_run or applied.errors:
        return applied
    await operations.supervisor.wait_applied(applied.generation)
    return attrs.evolve(applied, warnings=(*applied.warnings, *await operations.wait_saved()))


def _version(operations: Operations, _: api.NoParams) -> api.VersionInfo:
    daemon = operations.daemon_info()
    return api.VersionInfo(
        version=__version__,
        api=api.API_VERSION,
        pid=daemon.pid,
        python=platform.python_version(),
        started_at=daemon.started_at,
        search_path=operations.environ.get("PATH", ""),
        protocol_versions=PROTOCOL_VERSIONS,
    )


async def _approve(operations: Operations, params: policy_api.ApproveParams) -> api.EmptyResult:
    await operations.approve(params.id, params.decision)
    return api.EmptyResult()


async def _stats(operations: Operations, params: StatsParams) -> Callable[[], Stats]:
    return (await operations.prepare_stats(params.server, processes=params.processes)).build


def _shutdown(operations: Operations, _: api.NoParams) -> api.EmptyResult:
    operations.stop("requested by a client")
    return api.EmptyResult()


MCP_RESULT = "the unchanged result object from the MCP server"

METHODS: Mapping[str, Method[Any]] = {
    "mcpd/status": Method(
        "Return the status of all servers and the active configuration.",
        api.NoParams,
        api.DaemonStatus,
        lambda operations, _: operations.status(),
    ),
    "mcpd/server": Method(
        "Return the status of one server and the details that explain it.",
        api.ServerParam,
        api.ServerDetail,
        lambda operations, params: operations.explain_server(params.server),
    ),
    "mcpd/tools": _list_method("List the tools of one server or all servers.", ToolsResult, Operations.tools),
    "mcpd/resources": _list_method(
        "List the resources and resource templates of one server or all servers.",
        ResourcesResult,
        Operations.resources,
    ),
    "mcpd/read": Method(
        "Read a resource.",
        ReadParams,
        MCP_RESULT,
    ),
    "mcpd/prompts": _list_method(
        "List the prompts of one server or all servers.", PromptsResult, Operations.prompts
    ),
    "mcpd/prompt": Method(
        "Get a prompt and fill in its arguments.",
        PromptParams,
        MCP_RESULT,
    ),
    "mcpd/complete": Method(
        "Complete an argument of a prompt or resource template.",
        CompleteParams,
        MCP_RESULT,
    ),
    "mcpd/connect": _desired_state_method(
        "Connect a server. If the server is already connected, the connection is kept.", ManagedServer.connect
    ),
    "mcpd/disconnect": _desired_state_method(
        "Stop a server until it is connected again or the daemon restarts.", ManagedServer.disconnect
    ),
    "mcpd/reconnect": _desired_state_method(
        "Close the connection to a server, if there is one, and reconnect immediately.",
        ManagedServer.reconnect,
    ),
    "mcpd/enable": _desired_state_method(
        "Enable a server. The server stays enabled when the daemon restarts.",
        partial(ManagedServer.set_enabled, on=True),
        persistent=True,
    ),
    "mcpd/disable": Method(
        "Disable a server permanently or until a specific time. The server stays disabled when the daemon "
        "restarts.",
        api.DisableParams,
        api.ServerResult,
        _disable,
    ),
    "mcpd/servers/set": Method(
        "Replace the set of servers. If there are errors, mcpd does not apply any changes. Unchanged servers "
        "keep running.",
        SetServersParams,
        ApplyResult,
        _set_servers,
    ),
    "mcpd/add": Method("Add a server.", AddParams, ApplyResult, _add),
    "mcpd/remove": Method("Remove a server.", RemoveParams, ApplyResult, _remove),
    "mcpd/reload": Method("Reload the configuration.", api.NoParams, ApplyResult, _reload),
    "mcpd/config": Method(
        "Return the active definitions. Secrets are masked.",
        api.NoParams,
        ConfigView,
        lambda operations, _: operations.config.view(),
    ),
    "mcpd/config/check": Method(
        "Check the content of a configuration file without applying it.",
        ConfigCheckParams,
        ConfigCheck,
        lambda operations, params: operations.config.check(Path(params.path), params.text),
    ),
    "mcpd/history": Method(
        "Return past events for one server or all servers, including their causes. The history is kept when "
        "the daemon restarts.",
        HistoryParams,
        History,
        lambda operations, params: operations.history(params.server, params.limit),
    ),
    "mcpd/clients": Method(
        "List the connected clients, their processes, and the servers they use.",
        api.NoParams,
        ClientsResult,
        lambda operations, params: operations.list_clients(),
    ),
    "mcpd/policy": Method(
        "Explain whether the policies allow a client to use a tool, prompt, or resource. Nothing is called.",
        policy_api.PolicyParams,
        policy_api.PolicyResult,
        lambda operations, params: operations.explain_policy(params),
    ),
    "mcpd/approvals": Method(
        "List the calls that wait for the approval of a person.",
        api.NoParams,
        policy_api.ApprovalsResult,
        lambda operations, _: policy_api.ApprovalsResult(approvals=operations.list_approvals()),
    ),
    "mcpd/approve": Method(
        "Approve or refuse a call that waits for approval.",
        policy_api.ApproveParams,
        api.EmptyResult,
        _approve,
    ),
    "mcpd/stats": Method(
        "Return call counts, latencies, memory use, and CPU time by server, tool, and client.",
        StatsParams,
        Stats,
        _stats,
    ),
    "mcpd/cache/clear": Method(
        "Drop the cached results of one server or all servers.",
        CacheClearParams,
        CacheCleared,
        lambda operations, params: CacheCleared(results=operations.clear_cache(params.server)),
    ),
    "mcpd/metrics": Method(
        "Return all metrics in the Prometheus text format.",
        api.NoParams,
        api.Metrics,
        lambda operations, _: collect_metrics(operations),
    ),
    "mcpd/page": Method(
        "Return a one-time URL that opens the dashboard in a browser.",
        api.NoParams,
        api.DashboardLink,
        lambda operations, _: operations.dashboard_link(),
    ),
    "mcpd/ping": Method(
        "Measure the round-trip time to a connected server.",
        api.PingParams,
        api.PingResult,
        lambda operations, params: operations.ping(params.server, min(params.timeout, MAX_WAIT)),
    ),
    "mcpd/login/begin": Method(
        "Begin to log in to a remote server, and return what a person needs. mcpd opens no browser.",
        login.LoginParams,
        login.LoginOffer,
        login_methods.begin,
    ),
    "mcpd/login/answer": Method(
        "Pass on the URL at which the browser ended, if it cannot reach mcpd.",
        login.LoginAnswerParams,
        api.EmptyResult,
        login_methods.answer,
    ),
    "mcpd/login/wait": Method(
        "Return the login when the person has finished.",
        login.LoginAttemptParam,
        login.LoginStatus,
        login_methods.wait,
    ),
    "mcpd/login/cancel": Method(
        "Cancel an attempt to log in.", login.LoginAttemptParam, api.EmptyResult, login_methods.cancel
    ),
    "mcpd/logout": Method(
        "Forget a login, or all logins, and revoke the tokens if the authorization server offers that.",
        login.LogoutParams,
        login.LogoutResult,
        login_methods.logout,
    ),
    "mcpd/auth/status": Method(
        "Return the logins of one server or all servers. Tokens are never returned.",
        login.AuthStatusParams,
        login.AuthStatus,
        login_methods.status,
    ),
    "mcpd/auth/refresh": Method(
        "Renew a login now.", api.ServerParam, login.LoginStatus, login_methods.refresh
    ),
    "mcpd/auth/explain": Method(
        "Return every step of a login up to the choice of the client, without logging in.",
        api.ServerParam,
        login.AuthExplanation,
        login_methods.explain,
    ),
    "mcpd/version": Method(
        "Return the version of mcpd, the version of its API, and the supported protocol revisions.",
        api.NoParams,
        api.VersionInfo,
        _version,
    ),
    "mcpd/shutdown": Method("Stop the daemon.", api.NoParams, api.EmptyResult, _shutdown),
    "mcpd/call": Method(
        "Call a tool. mcpd first validates the arguments against the tool's schema. If you cancel the "
        "request or close the connection, mcpd cancels the call. If you set `_meta.progressToken`, mcpd "
        "sends `notifications/progress` messages. mcpd forwards other members of `_meta`, such as trace "
        "context, to the server.",
        CallParams,
        ToolResult,
    ),
    "mcpd/events": Method(
        "Stream events as `mcpd/event` notifications until the request is canceled. The first events are a "
        "snapshot of the current state.",
        api.EventsParams,
        Event,
    ),
    "mcpd/logs": Method(
        "Return the last lines that a server wrote to stderr. If you set `follow`, mcpd also sends new "
        "lines as `mcpd/log` notifications until the request is canceled. Each notification contains a "
        "`line`, or the number of lines `missed` because the client read too slowly.",
        api.LogsParams,
        api.LogLines,
    ),
    "mcpd/calls": Method(
        "Return finished calls: who called what, when, for how long, and how it ended. The call log is kept "
        "when the daemon restarts. If you set `follow`, mcpd also sends new records as `mcpd/call-record` "
        "notifications until the request is canceled.",
        CallsParams,
        CallRecords,
    ),
    "mcpd/tap": Method(
        "Stream the MCP messages of a server as `mcpd/frame` notifications until the request is canceled. "
        "Secrets are masked. The stream continues when the server reconnects.",
        TapParams,
        TapFrame,
    ),
    "mcpd/identify": Method(
        "Set the name of this client, and select a profile. They apply to later requests of the control API "
        "on this connection: lists contain only what the profile selects, and calls of anything else fail. "
        "Other methods are not restricted.",
        api.IdentifyParams,
        api.IdentifyResult,
    ),
    "mcpd/attach": Method(
        "Switch this connection to MCP after the response. The connection then gives access to one server "
        "or all servers.",
        api.AttachParams,
        api.AttachResult,
    ),
}


def decode_params(method: str, params: object, into: type[P]) -> P:
    """Convert `params`. Raises InvalidArguments with all errors."""
    try:
        return codec.structure({} if params is None else params, into)
    except codec.ShapeError as error:
        raise InvalidArguments(f"{method}: {error}", error.problems) from None

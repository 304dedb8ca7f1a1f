"""The table of `mcpd/…` methods (parameters, result type and operation), and its OpenRPC document."""

from __future__ import annotations

import functools
import inspect
import platform
import time
from collections.abc import Awaitable, Callable, Mapping
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, Generic, TypeVar

import attrs
import msgspec

from mcpd import __version__
from mcpd.api.control.reports import connected_clients, explain_policy
from mcpd.api.control.stats import collect_metrics, collect_stats
from mcpd.gateway.gateway import Gateway
from mcpd.model import api, codec, config_api, login
from mcpd.model.api import (
    CacheCleared,
    CallParams,
    ClientsResult,
    CompleteParams,
    PromptParams,
    PromptsResult,
    ReadParams,
    ResourcesResult,
    Stats,
    StatsParams,
    ToolsResult,
)
from mcpd.model.config_api import (
    AddParams,
    ApplyResult,
    ConfigCheck,
    ConfigCheckParams,
    ConfigView,
    EditParams,
    RemoveParams,
    SetServersParams,
)
from mcpd.model.errors import InvalidArguments, Problem
from mcpd.model.events import CallRecords, CallsParams, Event, History, HistoryParams, TapFrame, TapParams
from mcpd.model.status import parse_timestamp
from mcpd.model.text import shorten
from mcpd.model.tool_result import CallResult
from mcpd.operations import Operations
from mcpd.protocol.negotiate import PROTOCOL_VERSIONS
from mcpd.state.active_config import ActiveConfig
from mcpd.supervision.managed_server import ManagedServer

if TYPE_CHECKING:
    from mcpd.auth.service import LoginService

P = TypeVar("P")

MAX_WAIT = 600.0


class Method(msgspec.Struct, Generic[P], frozen=True):
    """A method of the control API."""

    summary: str
    params: type[P]
    result: object
    """A class of `mcpd.model`, or a description of an MCP result that is forwarded unchanged."""
    handler: Callable[[Gateway, P], object] | None = None
    """Returns the result, or an awaitable of it. None for methods that call a server, stream, or change the
    connection: `ControlRequests` handles them.
    """


def _desired_state_method(
    summary: str, change: Callable[[ManagedServer], None], *, persistent: bool = False
) -> Method[api.LifecycleParams]:
    async def handle(gateway: Gateway, params: api.LifecycleParams) -> api.ServerResult:
        wait = min(params.wait, MAX_WAIT)
        return await gateway.core.change_desired_state(params.server, change, wait, persistent=persistent)

    return Method(summary, api.LifecycleParams, api.ServerResult, handle)


async def _disable(gateway: Gateway, params: api.DisableParams) -> api.ServerResult:
    until = None if params.until is None else _parse_future_time(params.until)
    change = partial(ManagedServer.set_enabled, on=False, until=until)
    wait = min(params.wait, MAX_WAIT)
    return await gateway.core.change_desired_state(params.server, change, wait, persistent=True)


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


def _config_method(
    summary: str, params: type[P], change: Callable[[ActiveConfig, P], Awaitable[ApplyResult]]
) -> Method[P]:
    async def handler(gateway: Gateway, given: P) -> ApplyResult:
        return await _when_applied(gateway.core, await change(gateway.core.config, given))

    return Method(summary, params, ApplyResult, handler)


async def _when_applied(operations: Operations, applied: ApplyResult) -> ApplyResult:
    """Return once the change is applied, so that the next status shows it, and saved, or with a warning."""
    if applied.dry_run or applied.errors:
        return applied
    await operations.supervisor.wait_applied(applied.generation)
    return attrs.evolve(applied, warnings=(*applied.warnings, *await operations.wait_saved()))


def _version(gateway: Gateway, _: api.NoParams) -> api.VersionInfo:
    daemon = gateway.core.daemon_info()
    return api.VersionInfo(
        version=__version__,
        api=api.API_VERSION,
        pid=daemon.pid,
        python=platform.python_version(),
        started_at=daemon.started_at,
        search_path=gateway.core.environ.get("PATH", ""),
        protocol_versions=PROTOCOL_VERSIONS,
    )


async def _approvals(gateway: Gateway, _: api.NoParams) -> config_api.ApprovalsResult:
    waiting, shared = gateway.approvals.list(gateway.core.redactor.mask), gateway.approvals.shared
    others = () if shared is None else await shared.others()
    return config_api.ApprovalsResult(approvals=(*waiting, *others))


async def _approve(gateway: Gateway, params: config_api.ApproveParams) -> api.EmptyResult:
    await gateway.approvals.answer(params.id, params.decision)
    return api.EmptyResult()


def _shutdown(gateway: Gateway, _: api.NoParams) -> api.EmptyResult:
    gateway.core.stop("requested by a client")
    return api.EmptyResult()


async def _upgrade(gateway: Gateway, _: api.NoParams) -> None:
    await gateway.core.upgrade()  # the next version answers


def _login_method(
    summary: str, params: type[P], result: type, handle: Callable[[LoginService, P], object]
) -> Method[P]:
    async def handler(gateway: Gateway, given: P) -> object:
        done = handle(await gateway.core.logins.service(), given)
        if inspect.isawaitable(done):
            return await done
        return api.EmptyResult()

    return Method(summary, params, result, handler)


MCP_RESULT = "the unchanged result object from the MCP server"

METHODS: Mapping[str, Method[Any]] = {
    "mcpd/status": Method(
        "Return the status of all servers and the active configuration.",
        api.NoParams,
        api.DaemonStatus,
        lambda gateway, _: gateway.core.status(gateway.approvals.count),
    ),
    "mcpd/server": Method(
        "Return the status of one server and the details that explain it.",
        api.ServerParam,
        api.ServerDetail,
        lambda gateway, params: gateway.core.explain_server(params.server),
    ),
    "mcpd/tools": Method(
        "List the tools of one server or all servers.", api.OptionalServerParam, ToolsResult
    ),
    "mcpd/tool_costs": Method(
        "Estimate the tokens that tools take in the context of a model.", api.NoParams, api.ToolCosts
    ),
    "mcpd/find_tools": Method("Find tools by what they do.", api.FindToolsParams, api.FoundTools),
    "mcpd/resources": Method(
        "List the resources and resource templates of one server or all servers.",
        api.OptionalServerParam,
        ResourcesResult,
    ),
    "mcpd/read": Method(
        "Read a resource.",
        ReadParams,
        MCP_RESULT,
    ),
    "mcpd/prompts": Method(
        "List the prompts of one server or all servers.", api.OptionalServerParam, PromptsResult
    ),
    "mcpd/prompt": Method(
        "Get a prompt and fill in its arguments.",
        PromptParams,
        MCP_RESULT,
    ),
    "mcpd/complete": Method(
        "Complete an argument of a prompt or resource template.", CompleteParams, MCP_RESULT
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
    "mcpd/servers/set": _config_method(
        "Replace the set of servers. If there are errors, mcpd does not apply any changes. Unchanged servers "
        "keep running.",
        SetServersParams,
        lambda config, params: config.set_servers(
            params.servers, dry_run=params.dry_run, if_generation=params.if_generation
        ),
    ),
    "mcpd/add": _config_method(
        "Add a server.",
        AddParams,
        lambda config, params: config.add(
            params.server, params.definition, save=params.save, replace=params.replace
        ),
    ),
    "mcpd/edit": _config_method(
        "Change members of a server's definition, and save them to the configuration file.",
        EditParams,
        lambda config, params: config.edit(params.server, params.changes),
    ),
    "mcpd/remove": _config_method(
        "Remove a server.",
        RemoveParams,
        lambda config, params: config.remove(params.server, save=params.save),
    ),
    "mcpd/reload": _config_method(
        "Reload the configuration.", api.NoParams, lambda config, _: config.reload()
    ),
    "mcpd/config": Method(
        "Return the active definitions. Secrets are masked.",
        api.NoParams,
        ConfigView,
        lambda gateway, _: gateway.core.config.view(),
    ),
    "mcpd/config/check": Method(
        "Check the content of a configuration file without applying it.",
        ConfigCheckParams,
        ConfigCheck,
        lambda gateway, params: gateway.core.config.file.check(Path(params.path), params.text),
    ),
    "mcpd/history": Method(
        "Return past events for one server or all servers, including their causes. The history is kept when "
        "the daemon restarts.",
        HistoryParams,
        History,
        lambda gateway, params: gateway.core.history(params.server, params.limit),
    ),
    "mcpd/clients": Method(
        "List the connected clients, their processes, and the servers they use.",
        api.NoParams,
        ClientsResult,
        lambda gateway, _: connected_clients(
            gateway.sessions, gateway.core.clients.connected(), gateway.core.redactor.mask
        ),
    ),
    "mcpd/policy": Method(
        "Explain whether the policies allow a client to use a tool, prompt, or resource. Nothing is called.",
        config_api.PolicyParams,
        config_api.PolicyResult,
        explain_policy,
    ),
    "mcpd/approvals": Method(
        "List the calls that wait for the approval of a person.",
        api.NoParams,
        config_api.ApprovalsResult,
        _approvals,
    ),
    "mcpd/approve": Method(
        "Approve or refuse a call that waits for approval.",
        config_api.ApproveParams,
        api.EmptyResult,
        _approve,
    ),
    "mcpd/stats": Method(
        "Return call counts, latencies, memory use, and CPU time by server, tool, and client.",
        StatsParams,
        Stats,
        lambda gateway, params: collect_stats(gateway.core, params.server, processes=params.processes),
    ),
    "mcpd/cache/clear": Method(
        "Drop the cached results of one server or all servers.",
        api.OptionalServerParam,
        CacheCleared,
        lambda gateway, params: CacheCleared(results=gateway.core.clear_cache(params.server)),
    ),
    "mcpd/metrics": Method(
        "Return all metrics in the Prometheus text format.",
        api.NoParams,
        api.Metrics,
        lambda gateway, _: collect_metrics(gateway.core),
    ),
    "mcpd/page": Method(
        "Return a one-time URL that opens the dashboard in a browser.",
        api.NoParams,
        api.DashboardLink,
        lambda gateway, _: gateway.core.http.dashboard_link(),
    ),
    "mcpd/ping": Method(
        "Measure the round-trip time to a connected server.",
        api.PingParams,
        api.PingResult,
        lambda gateway, params: gateway.core.ping(params.server, min(params.timeout, MAX_WAIT)),
    ),
    "mcpd/login/begin": _login_method(
        "Begin to log in to a remote server, and return what a person needs. mcpd opens no browser.",
        login.LoginParams,
        login.LoginOffer,
        lambda service, params: service.begin(params),
    ),
    "mcpd/login/answer": _login_method(
        "Pass on the URL at which the browser ended, if it cannot reach mcpd.",
        login.LoginAnswerParams,
        api.EmptyResult,
        lambda service, params: service.answer(params),
    ),
    "mcpd/login/wait": _login_method(
        "Return the login when the person has finished.",
        login.LoginAttemptParam,
        login.LoginStatus,
        lambda service, params: service.wait(params.attempt),
    ),
    "mcpd/login/cancel": _login_method(
        "Cancel an attempt to log in.",
        login.LoginAttemptParam,
        api.EmptyResult,
        lambda service, params: service.cancel(params.attempt),
    ),
    "mcpd/logout": _login_method(
        "Forget a login, or all logins, and revoke the tokens if the authorization server offers that.",
        login.LogoutParams,
        login.LogoutResult,
        lambda service, params: service.logout(params),
    ),
    "mcpd/auth/status": _login_method(
        "Return the logins of one server or all servers. Tokens are never returned.",
        login.AuthStatusParams,
        login.AuthStatus,
        lambda service, params: service.status(params.server, check=params.check),
    ),
    "mcpd/auth/refresh": _login_method(
        "Renew a login now.",
        api.ServerParam,
        login.LoginStatus,
        lambda service, params: service.refresh(params.server),
    ),
    "mcpd/auth/explain": _login_method(
        "Return every step of a login up to the choice of the client, without logging in.",
        api.ServerParam,
        login.AuthExplanation,
        lambda service, params: service.explain(params.server),
    ),
    "mcpd/version": Method(
        "Return the version of mcpd, the version of its API, and the supported protocol revisions.",
        api.NoParams,
        api.VersionInfo,
        _version,
    ),
    "mcpd/shutdown": Method("Stop the daemon.", api.NoParams, api.EmptyResult, _shutdown),
    "mcpd/upgrade": Method(
        "Replace the running daemon by the installed version. Its process id, local servers, connections of "
        "clients and calls in progress stay. If the installed version does not start, the running one goes "
        "on, and the error says why.",
        api.NoParams,
        api.UpgradeResult,
        _upgrade,
    ),
    "mcpd/call": Method(
        "Call a tool. mcpd first validates the arguments against the tool's schema. If you cancel the "
        "request or close the connection, mcpd cancels the call. If you set `_meta.progressToken`, mcpd "
        "sends `notifications/progress` messages. mcpd forwards other members of `_meta`, such as trace "
        "context, to the server.",
        CallParams,
        CallResult,
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


# ── rpc.discover: https://spec.open-rpc.org ──────────────────────────────────────────────────────

_REFERENCE = "#/components/schemas/{name}"


@functools.cache
def openrpc_document() -> bytes:
    """Return the document as JSON. It is made at the first request, and then kept."""
    kinds = {
        kind for each in METHODS.values() for kind in (each.params, each.result) if isinstance(kind, type)
    }
    _, schemas = msgspec.json.schema_components(
        kinds, schema_hook=lambda _: {"description": "any JSON"}, ref_template=_REFERENCE
    )
    return msgspec.json.encode(
        {
            "openrpc": "1.3.2",
            "info": {"title": "mcpd control API", "version": __version__},
            "methods": [_describe(name, METHODS[name], schemas) for name in sorted(METHODS)],
            "components": {"schemas": schemas},
        }
    )


def _describe(name: str, method: Method[Any], schemas: dict[str, Any]) -> dict[str, object]:
    given, result = schemas[method.params.__name__], method.result
    schema = (
        {"$ref": _REFERENCE.format(name=result.__name__)} if isinstance(result, type) else {"type": "object"}
    )
    return {
        "name": name,
        "summary": method.summary,
        "paramStructure": "by-name",
        "params": [
            {"name": member, "required": member in given["required"], "schema": its}
            for member, its in given["properties"].items()
        ],
        "result": {"name": "result", "schema": schema},
    }

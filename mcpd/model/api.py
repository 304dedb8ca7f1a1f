"""The parameters and results of the control API (the `mcpd/…` methods).

The types for the configuration, policies, logins, calls and events are in `config_api.py`, `login.py` and
`events.py`. `api/control/methods.py` assigns all of them to the methods. docs/reference/control-api.md is
generated from them.
Member names use snake_case, and lists are never null. Members that contain MCP objects (`tools` or a raw
result, for example) keep the server's original JSON.
"""

from __future__ import annotations

from collections.abc import Mapping

import attrs
import msgspec

from mcpd.model.config_api import ConfigStatus
from mcpd.model.events import HistoryEntry
from mcpd.model.policy import Surface
from mcpd.model.record import Record
from mcpd.model.status import ServerState, ServerStatus, WaitingCall

API_VERSION = 1
"""Increased when a method or member changes its meaning. Additions do not increase it."""


@attrs.frozen(kw_only=True, eq=False, repr=False)
class NoParams(Record):
    """The method has no parameters."""


@attrs.frozen(kw_only=True, eq=False, repr=False)
class EmptyResult(Record):
    """The method returns no data."""


@attrs.frozen(kw_only=True, eq=False, repr=False)
class UpgradeResult(Record):
    version: str
    """The version that runs now."""
    previous: str
    """The version before."""
    pause: float
    """Seconds in which nobody was served."""


@attrs.frozen(kw_only=True, eq=False, repr=False)
class ServerParam(Record):
    server: str


@attrs.frozen(kw_only=True, eq=False, repr=False)
class OptionalServerParam(Record):
    server: str | None = None
    """If this is null, the request applies to all servers."""


@attrs.frozen(kw_only=True, eq=False, repr=False)
class LifecycleParams(Record):
    """The parameters of connect, disconnect, reconnect and enable."""

    server: str
    wait: float = 0.0
    """The maximum number of seconds to wait for the server to connect, fail, or otherwise settle."""


@attrs.frozen(kw_only=True, eq=False, repr=False)
class DisableParams(Record):
    server: str
    wait: float = 0.0
    """The maximum number of seconds to wait for the server to settle."""
    until: str | None = None
    """The time at which mcpd enables the server again (RFC 3339). If this is null, the server stays
    disabled until a client enables it."""


@attrs.frozen(kw_only=True, eq=False, repr=False)
class HttpListener(Record):
    """The address at which mcpd serves HTTP."""

    url: str
    """The URL of the endpoint that combines all servers. It contains the actual port."""
    auth: str
    """The value is `token` or `none`. If it is `none`, everyone who can connect to the port has access."""
    token_file: str | None = None
    """The path of the file that contains the token for `Authorization: Bearer …`."""


@attrs.frozen(kw_only=True, eq=False, repr=False)
class DaemonInfo(Record):
    version: str
    pid: int
    started_at: str
    socket: str
    instance: str
    """The value of `MCPD_INSTANCE` in the environment of all processes that this daemon starts."""
    clients: int
    http: HttpListener | None = None
    """This is null if mcpd does not serve HTTP."""
    approvals: int = 0
    """The number of calls that wait for the approval of a person (`mcpd/approvals`)."""
    warnings: tuple[str, ...] = ()
    """What mcpd cannot save, such as because the disk is full, and what it could not read when it started.
    Each warning says after the last semicolon what to do."""


@attrs.frozen(kw_only=True, eq=False, repr=False)
class ServerResult(Record):
    """The server's status after the request. If `wait` is set, this is the status after the server
    settles."""

    server: ServerStatus
    warnings: tuple[str, ...] = ()
    """Why the setting could not be saved. It has taken effect, but is lost when mcpd restarts before it is
    saved. mcpd tries again every two seconds."""


@attrs.frozen(kw_only=True, eq=False, repr=False)
class DaemonStatus(Record):
    """The result of `mcpd/status`."""

    servers: tuple[ServerStatus, ...]
    config: ConfigStatus
    daemon: DaemonInfo


@attrs.frozen(kw_only=True, eq=False, repr=False)
class ConnectStep(Record):
    """One step of connecting to a server, and its outcome."""

    at: str
    step: str
    outcome: str
    ms: float


@attrs.frozen(kw_only=True, eq=False, repr=False)
class ServerDetail(Record):
    """The result of `mcpd/server`: a server's status and the details that explain it."""

    server: ServerStatus
    command: tuple[str, ...] = ()
    """The command line, in which secrets are masked. It is empty for a remote server."""
    url: str = ""
    """A remote server's URL, without its query and secrets. It is empty for a local program."""
    cwd: str | None = None
    env: tuple[str, ...] = ()
    """The names of the child process's environment variables."""
    inherited_env: Mapping[str, str] = attrs.field(factory=dict)
    """The variables that the child process inherits from mcpd, such as LANG and HTTPS_PROXY."""
    withheld_env: tuple[str, ...] = ()
    """The names of variables such as HTTPS_PROXY that it does not inherit, because they hold a password."""
    executable: str | None = None
    """The path of the program that mcpd found for the command."""
    path: str = ""
    """The value of PATH that mcpd used to find the command."""
    log: tuple[str, ...] = ()
    """The last lines that the server wrote to stderr. The log is limited in size and kept across restarts."""
    log_file: str = ""
    junk_lines: int = 0
    """The number of lines on stdout that were not valid messages."""
    junk_sample: str = ""
    late_replies: int = 0
    """The number of responses that arrived after their request was canceled or timed out."""
    negotiation: tuple[ConnectStep, ...] = ()
    concurrency: str = ""
    """Which calls may overlap: `concurrency` in the definition, or what mcpd chose."""
    share: str = ""
    """Which clients share a process: `share` in the definition, or what mcpd chose."""
    definition: Mapping[str, object] = attrs.field(factory=dict)
    """The active definition, in which secrets are masked."""
    history: tuple[HistoryEntry, ...] = ()
    """The server's most recent events, oldest first. To get more events, use `mcpd/history`."""
    next: str = ""
    """The suggested next command, followed by a remark in parentheses. `mcpctl` may suggest another one for a
    program that mcpd cannot find, because it knows the PATH of the user's shell."""


@attrs.frozen(kw_only=True, eq=False, repr=False)
class LogsParams(Record):
    server: str
    lines: int = 100
    follow: bool = False
    """If this is true, mcpd sends `mcpd/log` notifications until the request is canceled."""


@attrs.frozen(kw_only=True, eq=False, repr=False)
class LogLines(Record):
    lines: tuple[str, ...]
    """Each line has the form `2026-11-21T06:30:00.123Z text`."""


@attrs.frozen(kw_only=True, eq=False, repr=False)
class EventsParams(Record):
    servers: tuple[str, ...] = ()
    """The servers whose events mcpd sends. If the list is empty, mcpd sends all servers' events."""


@attrs.frozen(kw_only=True, eq=False, repr=False)
class AttachedClient(Record):
    """A description of the client program. mcpd displays it and reports it to servers that request it."""

    name: str = ""
    """The name that mcpd uses for the client, such as `cursor` or `zed`."""
    pid: int | None = None
    """The ID of the process that creates the messages. This is not the bridge's process ID."""
    cwd: str | None = None
    """The client's working directory. mcpd uses it as the root if the client does not declare any
    roots."""
    surface: Surface | None = None
    """What mcpd lists of several servers: `full` for all tools, `search` for tools to find and call them, or
    `auto` to choose by the client and the size of the list. If this is null, mcpd uses the profile's
    `surface`, or else `auto`."""


@attrs.frozen(kw_only=True, eq=False, repr=False)
class IdentifyParams(Record):
    client: str = ""
    """The name by which mcpd shows this client, and by which policies know it, in addition to the name of its
    program. If it is empty, the name does not change."""
    profile: str | None = None
    """The profile that selects the servers and tools that this connection lists and calls. If this is null
    or `*`, everything is selected."""


@attrs.frozen(kw_only=True, eq=False, repr=False)
class IdentifyResult(Record):
    """What applies to the connection from now on."""

    client: str
    profile: str | None = None


@attrs.frozen(kw_only=True, eq=False, repr=False)
class AttachParams(Record):
    server: str | None = None
    """If this is null, the connection gives access to all servers."""
    profile: str | None = None
    """The profile that selects servers and tools. Use `*` to select everything. If this is null, mcpd uses
    the profile that `settings.profileByDirectory` assigns to the client's `cwd`. If there is none, mcpd
    selects everything."""
    client: AttachedClient | None = None
    wait: float = 0.0
    """The maximum number of seconds to wait for the server to connect. Requests wait for it in any case."""


@attrs.frozen(kw_only=True, eq=False, repr=False)
class AttachResult(Record):
    """After this result, the connection carries MCP messages for one server or for the servers in a
    profile."""

    server: str | None = None
    profile: str | None = None
    protocol_version: str | None = None
    """The server's protocol revision, if it is connected."""


@attrs.frozen(kw_only=True, eq=False, repr=False)
class Metrics(Record):
    """The result of `mcpd/metrics`."""

    content_type: str
    text: str


@attrs.frozen(kw_only=True, eq=False, repr=False)
class DashboardLink(Record):
    """The result of `mcpd/page`, which is a link that opens the dashboard."""

    url: str
    """The link can be used only once."""
    seconds: float
    """The number of seconds for which the link is valid."""


@attrs.frozen(kw_only=True, eq=False, repr=False)
class PingParams(Record):
    server: str
    timeout: float = 10.0


@attrs.frozen(kw_only=True, eq=False, repr=False)
class PingResult(Record):
    """The result of `mcpd/ping`. An error response from the server also counts as a response."""

    server: str
    ms: float
    error: str
    """The error, unless the server only lacks the method."""


@attrs.frozen(kw_only=True, eq=False, repr=False)
class VersionInfo(Record):
    version: str
    api: int
    pid: int
    python: str
    started_at: str
    search_path: str
    """The value of PATH that mcpd uses to find the commands of servers, unless a definition sets its own
    PATH."""
    protocol_versions: tuple[str, ...]


@attrs.frozen(kw_only=True, eq=False, repr=False)
class MissingServer(Record):
    """An enabled server whose lists are unknown, because mcpd has never been able to fetch them."""

    server: str
    state: ServerState
    reason: str
    """The server's state and its cause, such as `git has failed: exited (1): no token`."""


@attrs.frozen(kw_only=True, eq=False, repr=False)
class ToolsResult(Record):
    """The result of `mcpd/tools`. mcpd adds `server`, `qualified_name`, and `tags`, if there are any, to each
    tool object."""

    tools: tuple[msgspec.Raw, ...]
    dropped: int = 0
    """The number of entries that mcpd omitted because they are not valid tools."""
    missing: tuple[MissingServer, ...] = ()
    """The enabled servers whose tools are not listed."""


@attrs.frozen(kw_only=True, eq=False, repr=False)
class FindToolsParams(Record):
    query: str
    """What the tools should do, in a few words."""
    limit: int = 10
    """The maximum number of tools to return, at most 100."""


@attrs.frozen(kw_only=True, eq=False, repr=False)
class FoundTools(Record):
    """The tools that fit a query, the best first. mcpd adds `server`, `qualified_name` and `signature` to
    each tool object."""

    tools: tuple[msgspec.Raw, ...]
    fits: bool
    """Whether the first tool is worth a try. Otherwise, all of them have little to do with the query."""


@attrs.frozen(kw_only=True, eq=False, repr=False)
class ResourcesResult(Record):
    """The result of `mcpd/resources`. mcpd adds `server` to each object."""

    resources: tuple[msgspec.Raw, ...]
    resource_templates: tuple[msgspec.Raw, ...]
    missing: tuple[MissingServer, ...] = ()
    """The enabled servers whose resources are not listed."""


@attrs.frozen(kw_only=True, eq=False, repr=False)
class PromptsResult(Record):
    """The result of `mcpd/prompts`. mcpd adds `server` to each object."""

    prompts: tuple[msgspec.Raw, ...]
    missing: tuple[MissingServer, ...] = ()
    """The enabled servers whose prompts are not listed."""


@attrs.frozen(kw_only=True, eq=False, repr=False)
class CallParams(Record):
    server: str
    tool: str
    arguments: Mapping[str, object] = attrs.field(factory=dict)
    timeout: float | None = None
    """The number of seconds without progress, after the call was sent, after which mcpd cancels it. If this
    is null, mcpd uses the configured timeout."""
    raw: bool = False
    """If this is true, mcpd returns the MCP result unchanged instead of a CallResult."""


@attrs.frozen(kw_only=True, eq=False, repr=False)
class ReadParams(Record):
    server: str
    uri: str


@attrs.frozen(kw_only=True, eq=False, repr=False)
class PromptParams(Record):
    server: str
    prompt: str
    arguments: Mapping[str, str] = attrs.field(factory=dict)


@attrs.frozen(kw_only=True, eq=False, repr=False)
class StatsParams(Record):
    server: str | None = None
    """If this is null, the request applies to all servers."""
    processes: bool = False
    """If this is true, mcpd also measures memory and CPU time. This takes about 50 µs for each process on
    the machine."""


@attrs.frozen(kw_only=True, eq=False, repr=False)
class CacheCleared(Record):
    """The result of `mcpd/cache/clear`."""

    results: int
    """The number of results that were dropped."""


@attrs.frozen(kw_only=True, eq=False, repr=False)
class CallCounts(Record):
    """The number of completed tool calls, and the response times of calls that received a response."""

    calls: int
    errors: int
    """The number of calls in which the tool or the server reported an error."""
    lost: int
    """The number of calls that did not receive a response because they timed out or the connection ended."""
    cancelled: int
    p50_ms: float | None = None
    """The median in milliseconds, accurate to 12 %. This is null if no call received a response."""
    p95_ms: float | None = None
    p99_ms: float | None = None


@attrs.frozen(kw_only=True, eq=False, repr=False)
class ToolStats(Record):
    tool: str
    counts: CallCounts
    tags: tuple[str, ...] = ()
    """The tags that the server's definition gives the tool."""


@attrs.frozen(kw_only=True, eq=False, repr=False)
class LatencyBucket(Record):
    seconds: float
    """The upper bound of the bucket."""
    calls: int
    """The number of calls that took at most this long."""


@attrs.frozen(kw_only=True, eq=False, repr=False)
class ProcessCost(Record):
    """The resources that a process and its descendants use."""

    processes: int
    memory: int
    """The resident memory in bytes. Pages that several processes share are counted once for each process."""
    cpu_seconds: float
    """The user and system time since the processes started, including processes that have exited."""


@attrs.frozen(kw_only=True, eq=False, repr=False)
class ServerStats(Record):
    server: str
    status: ServerState
    counts: CallCounts
    seconds: float
    """The total time of all calls that received a response."""
    in_flight: int
    restarts: int
    denied: int = 0
    """The number of uses that a policy or a person has refused. The counts do not include them."""
    cache_hits: int = 0
    """The number of requests that mcpd answered with the result of an equal request."""
    cache_misses: int = 0
    """The number of cacheable requests that mcpd sent to the server."""
    buckets: tuple[LatencyBucket, ...] = ()
    tools: tuple[ToolStats, ...] = ()
    """The server's tools, starting with the tool that is called most often."""
    clients: tuple[str, ...] = ()
    """The names of the connected clients that are attached only to this server or have called one of its
    tools. `mcpd/clients` describes them."""
    cost: ProcessCost | None = None
    """The resources of the server. This is null if they were not requested, or if mcpd does not run a process
    for the server."""
    cpu_seconds: float = 0.0
    """The CPU time of all the server's processes since mcpd started. mcpd updates it when `cost` is
    requested. It does not include the time that a process used between the last request and its exit."""


@attrs.frozen(kw_only=True, eq=False, repr=False)
class Stats(Record):
    """The result of `mcpd/stats`. It contains totals since mcpd started for all connections of each
    server."""

    since: str
    at: str
    servers: tuple[ServerStats, ...]
    clients: int
    """The number of connected clients."""
    daemon: ProcessCost | None = None
    """The resources of mcpd itself, not including its servers."""


@attrs.frozen(kw_only=True, eq=False, repr=False)
class ServerUsage(Record):
    """A client's use of a server."""

    calls: int
    revisions: str = ""
    """The protocol revisions of the client and the server, such as `2025-06-18 → 2026-07-28`. If they are
    equal, only one revision is shown."""
    instance: str | None = None
    """The name of the client's own server instance, if clients do not share one."""


@attrs.frozen(kw_only=True, eq=False, repr=False)
class ListedTools(Record):
    """What a list of tools costs in the context of a model."""

    surface: Surface
    """`full` or `search`."""
    tools: int
    tokens: int
    """An estimate: a token has four bytes of the list as JSON."""


@attrs.frozen(kw_only=True, eq=False, repr=False)
class ToolCost(Record):
    server: str
    name: str
    """The server's own name for the tool."""
    tokens: int


@attrs.frozen(kw_only=True, eq=False, repr=False)
class ToolCosts(Record):
    """What the tools of the client's profile cost in a list."""

    tools: tuple[ToolCost, ...]
    surfaces: tuple[ListedTools, ...]
    """What a client of several servers is listed in each surface."""


@attrs.frozen(kw_only=True, eq=False, repr=False)
class ConnectedClient(Record):
    """A connected client or an HTTP client session."""

    via: str
    """The type of the connection, which is `socket`, `bridge`, `http`, or `page` for the dashboard."""
    name: str
    """The name that mcpd uses for the client, the name that the client provided, or the name of its
    program."""
    pid: int | None
    """The process ID. This is null if the client is connected over TCP, because its process is unknown."""
    since: str
    sees: str = ""
    """The server that the client uses through MCP, `*` for all servers, or `*PROFILE` for the servers in a
    profile. This is empty if the client does not use MCP and has no profile."""
    protocol_version: str = ""
    """The protocol revision of the client's last request."""
    calls: int = 0
    in_flight: int = 0
    cwd: str = ""
    servers: Mapping[str, ServerUsage] = attrs.field(factory=dict)
    waiting: tuple[WaitingCall, ...] = ()
    """The client's calls that wait for other clients, at most 10."""
    listed: ListedTools | None = None
    """The tools that it was last listed."""


@attrs.frozen(kw_only=True, eq=False, repr=False)
class ClientsResult(Record):
    clients: tuple[ConnectedClient, ...]


@attrs.frozen(kw_only=True, eq=False, repr=False)
class CompleteParams(Record):
    server: str
    ref: Mapping[str, object]
    """An MCP reference: `{"type": "ref/prompt", "name": …}` or `{"type": "ref/resource", "uri": …}`."""
    argument: Mapping[str, object]
    """`{"name": …, "value": …}`."""
    context: Mapping[str, object] | None = None

"""The parameters and results of the control API (the `mcpd/…` methods).

The types for events, history, tapped messages and statistics are in `events.py` and `usage_stats.py`.
`api/control_methods.py` assigns these types to the methods. `rpc.discover` and docs/reference/control-api.md
are generated from them. Member names use snake_case, and lists are never null. Members that contain MCP
objects (`tools`, a raw result, …) keep the server's original JSON.
"""

from __future__ import annotations

from collections.abc import Mapping

import attrs
import msgspec

from mcpd.model.errors import Problem
from mcpd.model.events import HistoryEntry
from mcpd.model.record import Record
from mcpd.model.server_spec import ServersDiff
from mcpd.model.status import ServerState, ServerStatus

API_VERSION = 1
"""Increased when a method or member changes its meaning. Additions do not increase it."""


@attrs.frozen(kw_only=True, eq=False, repr=False)
class NoParams(Record):
    """The method has no parameters."""


@attrs.frozen(kw_only=True, eq=False, repr=False)
class EmptyResult(Record):
    """The method returns no data."""


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
class ConfigStatus(Record):
    """The active configuration, and the problems that were found in the configuration file."""

    source: str
    """The path of a file, `$MCPD_SERVERS`, `none`, or `api` if the set was replaced by `mcpd/servers/set`. If
    the file at `path` was unusable when mcpd started, the path of the copy of its last valid content."""
    path: str
    """The path of the file that `mcpd/reload` reads and `mcpd/add` writes. The file may not exist."""
    generation: int
    loaded_at: str
    """When the configuration was loaded; for a copy, when it was saved."""
    problems: tuple[Problem, ...] = ()
    """The errors in the current file. While mcpd is running, it rejects the whole file, and the last valid
    set of servers remains active. If mcpd has started with these errors, they affect only the entries that
    contain them."""
    rejected: bool = False
    """Whether the current file is not used at all, because of `problems`."""
    earlier_definitions: tuple[str, ...] = ()
    """The servers that have their last valid definition, because the one in the current file has errors."""
    warnings: tuple[str, ...] = ()
    """Descriptions of the parts of the configuration that have no effect."""


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
    """The variables that the child process inherits from mcpd, such as LANG and SSL_CERT_FILE."""
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
class PolicyParams(Record):
    """A use of a tool, prompt, or resource by a client, to see what the policies say about it. Set one of
    `tool`, `prompt`, and `resource`."""

    client: str
    """The name of a client. If a client with this name is connected, mcpd uses what it knows about it, except
    for the members that are set here."""
    server: str
    tool: str | None = None
    prompt: str | None = None
    resource: str | None = None
    executable: str | None = None
    transport: str | None = None
    profile: str | None = None
    directory: str | None = None


@attrs.frozen(kw_only=True, eq=False, repr=False)
class PendingApproval(Record):
    """A call that waits for the approval of a person."""

    id: str
    client: str
    server: str
    kind: str
    """`tool`, `prompt`, `resource`, or `method`."""
    name: str
    arguments: str
    """The arguments as JSON, at most 500 characters. Secrets are masked."""
    rule: str
    """The JSON path of the rule that requires the approval."""
    reason: str
    since: str
    expires_at: str
    """The time at which the call is refused if nobody has answered."""


@attrs.frozen(kw_only=True, eq=False, repr=False)
class ApprovalsResult(Record):
    """The calls that wait for approval, the oldest first."""

    approvals: tuple[PendingApproval, ...]


@attrs.frozen(kw_only=True, eq=False, repr=False)
class ApproveParams(Record):
    id: str
    decision: str
    """`once` allows the call. `session` also allows further uses of the same tool until the client
    disconnects. `always` allows the call and writes a rule to the configuration file, which allows this
    client to use the same tool. `no` refuses the call."""


@attrs.frozen(kw_only=True, eq=False, repr=False)
class PolicyClient(Record):
    """What the policies know about the client. An empty value is unknown."""

    names: tuple[str, ...]
    executable: str
    transport: str
    profile: str
    directory: str
    connected: bool
    """Whether this is a connected client."""


@attrs.frozen(kw_only=True, eq=False, repr=False)
class PolicyStep(Record):
    """One rule, and whether it matches."""

    rule: str
    """The rule's JSON path in the configuration."""
    decision: str
    matches: bool
    mismatch: str = ""
    """The condition that is not met."""


@attrs.frozen(kw_only=True, eq=False, repr=False)
class PolicyLimit(Record):
    """A rule that limits the use."""

    rule: str
    """The rule's JSON path in the configuration."""
    rate: str | None = None
    """How often each client may use the item, such as `10/min`."""
    concurrent: int | None = None
    """How many calls of the item each client may make at the same time."""


@attrs.frozen(kw_only=True, eq=False, repr=False)
class PolicyResult(Record):
    """A decision, and how it was made."""

    decision: str
    """`allow`, `ask`, or `deny`."""
    rule: str | None
    """The JSON path of the rule that decides. This is null if no rule matches."""
    reason: str
    source: str
    """The file that contains the rules."""
    client: PolicyClient
    annotations: Mapping[str, bool] | None
    """The tool's annotations, including the defaults. This is null if they are not known."""
    steps: tuple[PolicyStep, ...]
    """The rules up to the one that decides, in order."""
    limits: tuple[PolicyLimit, ...] = ()
    """The rules that limit the use, if it is not denied."""
    known: bool | None = None
    """Whether the server lists the tool or prompt. This is null if its lists have not been fetched yet, and
    for resources, because servers do not have to list them."""
    selected: bool = True
    """Whether the client's profile selects the item. If not, the client cannot use it, whatever the
    decision."""


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
    """The number of seconds without progress after which mcpd cancels the call. They begin when mcpd receives
    the request, so they include the time in which the call waits for its server, its turn, or an approval.
    If this is null, mcpd uses the configured timeout, which begins when the call is sent."""
    raw: bool = False
    """If this is true, mcpd returns the MCP result unchanged instead of a ToolResult."""


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
class CompleteParams(Record):
    server: str
    ref: Mapping[str, object]
    """An MCP reference: `{"type": "ref/prompt", "name": …}` or `{"type": "ref/resource", "uri": …}`."""
    argument: Mapping[str, object]
    """`{"name": …, "value": …}`."""
    context: Mapping[str, object] | None = None


@attrs.frozen(kw_only=True, eq=False, repr=False)
class ConfigView(Record):
    """The result of `mcpd/config`, which contains the active definitions. Secrets are masked."""

    source: str
    path: str
    generation: int
    servers: Mapping[str, Mapping[str, object]]


@attrs.frozen(kw_only=True, eq=False, repr=False)
class ConfigCheckParams(Record):
    path: str
    """The absolute path of the configuration file. Its suffix determines the format, and relative paths in
    the text are resolved against its directory. mcpd does not read the file."""
    text: str
    """The content to check."""


@attrs.frozen(kw_only=True, eq=False, repr=False)
class ConfigCheck(Record):
    """The result of `mcpd/config/check`, which uses the environment of mcpd and applies nothing."""

    servers: tuple[str, ...] = ()
    """The names of the servers. If there are errors, this is empty."""
    warnings: tuple[str, ...] = ()
    errors: tuple[Problem, ...] = ()
    """Why mcpd would reject the content."""


@attrs.frozen(kw_only=True, eq=False, repr=False)
class SetServersParams(Record):
    servers: Mapping[str, Mapping[str, object]]
    """The server definitions by name, in the same format as in the configuration file."""
    dry_run: bool = False
    if_generation: int | None = None
    """If the set is no longer at this generation, mcpd returns the error `conflict`."""


@attrs.frozen(kw_only=True, eq=False, repr=False)
class AddParams(Record):
    server: str
    definition: Mapping[str, object]
    save: bool = True
    """If this is true, mcpd also writes the server to the configuration file."""
    replace: bool = False
    """If this is true, mcpd replaces an existing server of the same name. Otherwise, it returns an error."""


@attrs.frozen(kw_only=True, eq=False, repr=False)
class RemoveParams(Record):
    server: str
    save: bool = True


@attrs.frozen(kw_only=True, eq=False, repr=False)
class ApplyResult(Record):
    """The effect of a change to the set of servers, or of a `dry_run`. Unchanged servers keep running."""

    added: tuple[str, ...] = ()
    removed: tuple[str, ...] = ()
    changed: tuple[str, ...] = ()
    unchanged: tuple[str, ...] = ()
    generation: int
    errors: tuple[Problem, ...] = ()
    """The errors in the set. If there are any errors, mcpd did not apply the set, and the lists are empty."""
    dry_run: bool = False
    saved: str | None = None
    """The path of the file that mcpd wrote."""
    settings_changed: tuple[str, ...] = ()
    """The names of the settings (`settings` in the configuration) that changed."""
    restart_needed: tuple[str, ...] = ()
    """The settings that differ from those with which mcpd started, and that take effect only when it is
    restarted."""
    warnings: tuple[str, ...] = ()
    """Why the change could not be saved in mcpd's state file. It has taken effect, but is lost when mcpd
    restarts before it is saved. mcpd tries again every two seconds."""

    @classmethod
    def plan(
        cls, plan: ServersDiff, generation: int, *, dry_run: bool = False, saved: str | None = None
    ) -> ApplyResult:
        return cls(generation=generation, dry_run=dry_run, saved=saved, **attrs.asdict(plan))

    @classmethod
    def refused(cls, errors: list[Problem], generation: int, *, dry_run: bool = False) -> ApplyResult:
        return cls(generation=generation, errors=tuple(errors), dry_run=dry_run)

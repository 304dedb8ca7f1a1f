"""The parameters and results of the control API (the `mcpd/…` methods).

The types for the configuration, policies, logins, calls, events and statistics are in `config_api.py`,
`login.py`, `call_record.py`, `events.py` and `usage_stats.py`. `api/control/methods.py`
assigns all of them to the methods. docs/reference/control-api.md is generated from them.
Member names use snake_case, and lists are never null. Members that contain MCP objects (`tools` or a raw
result, for example) keep the server's original JSON.
"""

from __future__ import annotations

from collections.abc import Mapping

import attrs
import msgspec

from mcpd.model.config_api import ConfigStatus
from mcpd.model.events import HistoryEntry
from mcpd.model.record import Record
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
    """The number of seconds without progress, after the call was sent, after which mcpd cancels it. If this
    is null, mcpd uses the configured timeout."""
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

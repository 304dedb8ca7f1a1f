"""The parameters and results of the control API (the `mcpd/…` methods).

`events.py` and `usage.py` contain the types for events, history, tapped messages and statistics.
`api/control_methods.py` binds each method to its types; `rpc.discover` and docs/reference/control-api.md are
generated from them. Member names are in snake_case, lists are never null, and members with MCP objects
(`tools`, a raw result, …) contain the server's own JSON.
"""

from __future__ import annotations

from collections.abc import Mapping

import attrs
import msgspec

from mcpd.model.errors import Problem
from mcpd.model.events import HistoryEntry
from mcpd.model.server_spec import ServersDiff
from mcpd.model.status import ServerStatus

API_VERSION = 1
"""Increased when a method or member changes its meaning. Additions do not increase it."""


@attrs.frozen(kw_only=True)
class NoParams:
    """The method has no parameters."""


@attrs.frozen(kw_only=True)
class EmptyResult:
    """The method returns no data."""


@attrs.frozen(kw_only=True)
class ServerParam:
    server: str


@attrs.frozen(kw_only=True)
class OptionalServerParam:
    server: str | None = None
    """null: all servers."""


@attrs.frozen(kw_only=True)
class LifecycleParams:
    """The parameters of connect, disconnect, reconnect and enable."""

    server: str
    wait: float = 0.0
    """Wait up to this many seconds until the server is connected, failed or otherwise settled."""


@attrs.frozen(kw_only=True)
class DisableParams:
    server: str
    wait: float = 0.0
    """Wait up to this many seconds until the server is settled."""
    until: str | None = None
    """Enable the server again at this time (RFC 3339). null: keep it disabled until it is enabled."""


@attrs.frozen(kw_only=True)
class HttpListener:
    """The address at which mcpd serves HTTP."""

    url: str
    """The endpoint of all servers together, with the actual port."""
    auth: str
    """`token`, or `none`: everyone who can reach the port has access."""
    token_file: str | None = None
    """The file with the token for `Authorization: Bearer …`."""


@attrs.frozen(kw_only=True)
class DaemonInfo:
    version: str
    pid: int
    started_at: str
    socket: str
    instance: str
    """The value of `MCPD_INSTANCE` in the environment of all processes that this daemon starts."""
    clients: int
    http: HttpListener | None = None
    """null: mcpd does not serve HTTP."""


@attrs.frozen(kw_only=True)
class ServerResult:
    """The server's status after the request; with `wait`, after the server has settled."""

    server: ServerStatus


@attrs.frozen(kw_only=True)
class ConfigStatus:
    """The configuration in force, and whether the file on disk could be used."""

    source: str
    """The path of a file, `$MCPD_SERVERS`, `api` after `mcpd/servers/set`, or `none`."""
    path: str
    """The file that `mcpd/reload` reads and `mcpd/add` writes. It may not exist."""
    generation: int
    loaded_at: str
    problems: tuple[Problem, ...] = ()
    """Why the current content of the file was rejected. The last valid set stays in force."""
    warnings: tuple[str, ...] = ()
    """Parts of the configuration that have no effect."""


@attrs.frozen(kw_only=True)
class DaemonStatus:
    """The result of `mcpd/status`."""

    servers: tuple[ServerStatus, ...]
    config: ConfigStatus
    daemon: DaemonInfo


@attrs.frozen(kw_only=True)
class ConnectStep:
    """One step of connecting to a server, and its outcome."""

    at: str
    step: str
    outcome: str
    ms: float


@attrs.frozen(kw_only=True)
class ServerDetail:
    """The result of `mcpd/server`: the status of one server and everything that explains it."""

    server: ServerStatus
    command: tuple[str, ...] = ()
    """The command line with secrets masked; empty for a remote server."""
    url: str = ""
    """The URL of a remote server, without query and secrets; empty for a program."""
    cwd: str | None = None
    env: tuple[str, ...] = ()
    """The names of the environment variables of the child process."""
    executable: str | None = None
    """The path at which the command was found."""
    path: str = ""
    """The PATH that was searched for the command."""
    log: tuple[str, ...] = ()
    """The last lines of stderr, from a bounded log that is kept across restarts."""
    log_file: str = ""
    junk_lines: int = 0
    """The number of lines on stdout that were not messages."""
    junk_sample: str = ""
    late_replies: int = 0
    """Responses that arrived after their request was cancelled or had timed out."""
    negotiation: tuple[ConnectStep, ...] = ()
    definition: Mapping[str, object] = attrs.field(factory=dict)
    """The definition in force, with secrets masked."""
    history: tuple[HistoryEntry, ...] = ()
    """The most recent events of the server, oldest first; `mcpd/history` returns more."""


@attrs.frozen(kw_only=True)
class LogsParams:
    server: str
    lines: int = 100
    follow: bool = False
    """Send `mcpd/log` notifications until the request is cancelled."""


@attrs.frozen(kw_only=True)
class LogLines:
    lines: tuple[str, ...]
    """Each line is `2026-11-21T06:30:00.123Z text`."""


@attrs.frozen(kw_only=True)
class EventsParams:
    servers: tuple[str, ...] = ()
    """Send events of these servers only; empty: of all."""


@attrs.frozen(kw_only=True)
class AttachedClient:
    """The program at the other end of an attached connection, for display and for servers that ask."""

    name: str = ""
    """Its name in mcpd's integration: `cursor`, `zed`, …"""
    pid: int | None = None
    """The process that creates the messages, not a bridge in between."""
    cwd: str | None = None
    """Its working directory, used as the root if the client declares none."""


@attrs.frozen(kw_only=True)
class AttachParams:
    server: str | None = None
    """null: all servers together."""
    profile: str | None = None
    """The profile that selects servers and tools; `*` selects everything. null: the profile that
    `settings.profileByDirectory` assigns to the client's `cwd`, otherwise everything."""
    client: AttachedClient | None = None
    wait: float = 0.0
    """How many seconds to wait for the server to connect. Requests wait for the server in any case."""


@attrs.frozen(kw_only=True)
class AttachResult:
    """From now on this connection carries MCP: for one server, or for the servers of a profile."""

    server: str | None = None
    profile: str | None = None
    protocol_version: str | None = None
    """The protocol revision of the server, if it is connected."""


@attrs.frozen(kw_only=True)
class Metrics:
    """The result of `mcpd/metrics`."""

    content_type: str
    text: str


@attrs.frozen(kw_only=True)
class DashboardLink:
    """The result of `mcpd/page`: a link that opens the dashboard."""

    url: str
    """It works once."""
    seconds: float
    """How long the link is valid."""


@attrs.frozen(kw_only=True)
class PingParams:
    server: str
    timeout: float = 10.0


@attrs.frozen(kw_only=True)
class PingResult:
    """The server responded; an error response counts, too."""

    server: str
    ms: float


@attrs.frozen(kw_only=True)
class VersionInfo:
    version: str
    api: int
    pid: int
    python: str
    started_at: str
    search_path: str
    """The PATH of mcpd. It is searched for servers' commands unless a definition sets another one."""
    protocol_versions: tuple[str, ...]


@attrs.frozen(kw_only=True)
class ToolsResult:
    """The result of `mcpd/tools`: the servers' tool objects, plus `server` and `qualified_name`."""

    tools: tuple[msgspec.Raw, ...]
    dropped: int = 0
    """The number of entries that were left out because they are not valid tools."""


@attrs.frozen(kw_only=True)
class ResourcesResult:
    """The result of `mcpd/resources`: the servers' objects, plus `server`."""

    resources: tuple[msgspec.Raw, ...]
    resource_templates: tuple[msgspec.Raw, ...]


@attrs.frozen(kw_only=True)
class PromptsResult:
    """The result of `mcpd/prompts`: the servers' objects, plus `server`."""

    prompts: tuple[msgspec.Raw, ...]


@attrs.frozen(kw_only=True)
class CallParams:
    server: str
    tool: str
    arguments: Mapping[str, object] = attrs.field(factory=dict)
    timeout: float | None = None
    """Seconds that the call may take without progress. null: the configured timeout."""
    raw: bool = False
    """Return the MCP result unchanged instead of a ToolResult."""


@attrs.frozen(kw_only=True)
class ReadParams:
    server: str
    uri: str


@attrs.frozen(kw_only=True)
class PromptParams:
    server: str
    prompt: str
    arguments: Mapping[str, str] = attrs.field(factory=dict)


@attrs.frozen(kw_only=True)
class CompleteParams:
    server: str
    ref: Mapping[str, object]
    """As in MCP: `{"type": "ref/prompt", "name": …}` or `{"type": "ref/resource", "uri": …}`."""
    argument: Mapping[str, object]
    """`{"name": …, "value": …}`."""
    context: Mapping[str, object] | None = None


@attrs.frozen(kw_only=True)
class ConfigView:
    """The result of `mcpd/config`: the definitions in force, with secrets masked."""

    source: str
    path: str
    generation: int
    servers: Mapping[str, Mapping[str, object]]


@attrs.frozen(kw_only=True)
class SetServersParams:
    servers: Mapping[str, Mapping[str, object]]
    """Name → definition, as in the configuration file."""
    dry_run: bool = False
    if_generation: int | None = None
    """Return the error `conflict` unless the set is still at this generation."""


@attrs.frozen(kw_only=True)
class AddParams:
    server: str
    definition: Mapping[str, object]
    save: bool = True
    """Also write the server to the configuration file."""
    replace: bool = False
    """Replace a server of this name. Without it, an existing server is an error."""


@attrs.frozen(kw_only=True)
class RemoveParams:
    server: str
    save: bool = True


@attrs.frozen(kw_only=True)
class ApplyResult:
    """The effect of changing the set of servers, or of the `dry_run`. Unchanged servers keep running."""

    added: tuple[str, ...] = ()
    removed: tuple[str, ...] = ()
    changed: tuple[str, ...] = ()
    unchanged: tuple[str, ...] = ()
    generation: int
    errors: tuple[Problem, ...] = ()
    """The errors in the set. If there are any, nothing was applied and the lists are empty."""
    dry_run: bool = False
    saved: str | None = None
    """The file that was written."""

    @classmethod
    def plan(
        cls, plan: ServersDiff, generation: int, *, dry_run: bool = False, saved: str | None = None
    ) -> ApplyResult:
        return cls(generation=generation, dry_run=dry_run, saved=saved, **attrs.asdict(plan))

    @classmethod
    def refused(cls, errors: list[Problem], generation: int, *, dry_run: bool = False) -> ApplyResult:
        return cls(generation=generation, errors=tuple(errors), dry_run=dry_run)

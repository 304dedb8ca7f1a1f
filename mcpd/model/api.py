"""The control API in types: what the `mcpd/…` methods take and answer.

Families with a file of their own: `definitions`, `features`, `clients`, `usage`, `history`, `tap`.
`api/control_methods.py` binds each method to one call of Operations; `rpc.discover` and
`docs/reference/control-api.md` are made from these classes. Keys are snake_case; lists are never null;
members that hold MCP objects (`tools`, a raw result, …) carry the server's own bytes.
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
"""Raised when a method or a member changes its meaning; additions do not raise it."""


@attrs.frozen(kw_only=True)
class NoParams:
    """The method takes nothing."""


@attrs.frozen(kw_only=True)
class EmptyResult:
    """The method answers nothing but that it was done."""


@attrs.frozen(kw_only=True)
class ServerParam:
    server: str


@attrs.frozen(kw_only=True)
class OptionalServerParam:
    server: str | None = None
    """None: every server."""


@attrs.frozen(kw_only=True)
class LifecycleParams:
    """For connect, disconnect, reconnect and enable."""

    server: str
    wait: float = 0.0
    """Answer when the server has settled (connected, failed, …), after this many seconds at the latest."""


@attrs.frozen(kw_only=True)
class DisableParams:
    server: str
    wait: float = 0.0
    """As for the others."""
    until: str | None = None
    """Come back by itself then (RFC 3339); null: stay off until somebody switches it on."""


@attrs.frozen(kw_only=True)
class HttpListener:
    """Where clients come in over HTTP."""

    url: str
    """The endpoint of all servers together, with the real port."""
    auth: str
    """`token`, or `none`: whoever can reach the port may come in."""
    token_file: str | None = None
    """Holds what goes into `Authorization: Bearer …`."""


@attrs.frozen(kw_only=True)
class DaemonInfo:
    version: str
    pid: int
    started_at: str
    socket: str
    instance: str
    """The mark that every process of this daemon carries in `MCPD_INSTANCE`."""
    clients: int
    http: HttpListener | None = None
    """None: nobody listens for HTTP."""


@attrs.frozen(kw_only=True)
class ServerResult:
    """How the server is after the wish; with `wait`, after it has settled."""

    server: ServerStatus


@attrs.frozen(kw_only=True)
class DaemonStatus:
    """`mcpd/status`."""

    servers: tuple[ServerStatus, ...]
    config: ConfigStatus
    daemon: DaemonInfo


@attrs.frozen(kw_only=True)
class ConnectStep:
    """One step of reaching a server: what was tried and what came of it."""

    at: str
    step: str
    outcome: str
    ms: float


@attrs.frozen(kw_only=True)
class ServerDetail:
    """`mcpd/server`: one status with everything that explains it."""

    server: ServerStatus
    command: tuple[str, ...] = ()
    """The command line, secrets masked; empty for a remote server."""
    url: str = ""
    """Where a remote server listens, without query and secrets; empty for a program."""
    cwd: str | None = None
    env: tuple[str, ...] = ()
    """Names only, of what the child is given."""
    executable: str | None = None
    """Where the command was found."""
    path: str = ""
    """The PATH it was looked for in."""
    log: tuple[str, ...] = ()
    """The last stderr lines, from the bounded log that survives restarts."""
    log_file: str = ""
    junk_lines: int = 0
    """Lines on stdout that were no messages."""
    junk_sample: str = ""
    late_replies: int = 0
    """Answers that came after their request was cancelled or had timed out."""
    negotiation: tuple[ConnectStep, ...] = ()
    definition: Mapping[str, object] = attrs.field(factory=dict)
    """The definition in force, secrets masked."""
    history: tuple[HistoryEntry, ...] = ()
    """What happened to it last, oldest first; `mcpd/history` has more."""


@attrs.frozen(kw_only=True)
class LogsParams:
    server: str
    lines: int = 100
    follow: bool = False
    """Keep sending `mcpd/log` notifications until the request is cancelled."""


@attrs.frozen(kw_only=True)
class LogLines:
    lines: tuple[str, ...]
    """Each `2026-11-21T06:30:00.123Z text`."""


@attrs.frozen(kw_only=True)
class EventsParams:
    servers: tuple[str, ...] = ()
    """Only these; empty: all."""


@attrs.frozen(kw_only=True)
class AttachedClient:
    """Who is at the other end of an attached connection: for people, and for servers that ask."""

    name: str = ""
    """What its configuration calls it: `cursor`, `zed`, …"""
    pid: int | None = None
    """Of the program that the messages come from, not of a bridge in between."""
    cwd: str | None = None
    """Where it works; the root of a client that declares none."""


@attrs.frozen(kw_only=True)
class AttachParams:
    server: str | None = None
    """None: all servers together."""
    profile: str | None = None
    """Which selection of servers and tools the client is to see, `*` for everything; None: what
    `settings.profileByDirectory` says of the client's `cwd`, else everything."""
    client: AttachedClient | None = None
    wait: float = 0.0
    """How long to wait for the server to be connected, seconds; requests wait by themselves."""


@attrs.frozen(kw_only=True)
class AttachResult:
    """From here on this connection speaks MCP: to one server, unrenamed, or to those of a profile."""

    server: str | None = None
    profile: str | None = None
    protocol_version: str | None = None
    """The revision the server speaks, when it is connected."""


@attrs.frozen(kw_only=True)
class Metrics:
    """`mcpd/metrics`."""

    content_type: str
    text: str


@attrs.frozen(kw_only=True)
class DashboardLink:
    """`mcpd/page`: the way into the dashboard."""

    url: str
    """Good once."""
    seconds: float
    """And for so long."""


@attrs.frozen(kw_only=True)
class PingParams:
    server: str
    timeout: float = 10.0


@attrs.frozen(kw_only=True)
class PingResult:
    """The server has answered, with whatever."""

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
    """The PATH of mcpd: where servers' commands are looked for, unless a definition says otherwise."""
    protocol_versions: tuple[str, ...]


@attrs.frozen(kw_only=True)
class ToolsResult:
    """`mcpd/tools`. Each entry is the server's own tool object plus `server` and `qualified_name`."""

    tools: tuple[msgspec.Raw, ...]
    dropped: int = 0
    """Entries that were no usable tools; the rest is kept (CA12)."""


@attrs.frozen(kw_only=True)
class ResourcesResult:
    """`mcpd/resources`. Entries are the servers' own objects plus `server`."""

    resources: tuple[msgspec.Raw, ...]
    resource_templates: tuple[msgspec.Raw, ...]


@attrs.frozen(kw_only=True)
class PromptsResult:
    """`mcpd/prompts`. Entries are the servers' own objects plus `server`."""

    prompts: tuple[msgspec.Raw, ...]


@attrs.frozen(kw_only=True)
class CallParams:
    server: str
    tool: str
    arguments: Mapping[str, object] = attrs.field(factory=dict)
    timeout: float | None = None
    """Seconds of silence allowed; progress starts it afresh. None: the configured one."""
    raw: bool = False
    """Answer the MCP result byte for byte instead of a ToolResult."""


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
    """MCP's own: `{"type": "ref/prompt", "name": …}` or `{"type": "ref/resource", "uri": …}`."""
    argument: Mapping[str, object]
    """`{"name": …, "value": …}`."""
    context: Mapping[str, object] | None = None


@attrs.frozen(kw_only=True)
class ConfigStatus:
    """Which configuration is in force, and whether the file on disk could be used."""

    source: str
    """A file's path, `$MCPD_SERVERS`, `api` after `mcpd/servers/set`, or `none`."""
    path: str
    """The file that `mcpd/reload` reads and `mcpd/add` writes, there or not."""
    generation: int
    loaded_at: str
    problems: tuple[Problem, ...] = ()
    """Why the newest version of the file was refused, while the last good set stays in force."""
    warnings: tuple[str, ...] = ()
    """What the configuration says that has no effect here."""


@attrs.frozen(kw_only=True)
class ConfigView:
    """`mcpd/config`: the definitions in force, secrets masked."""

    source: str
    path: str
    generation: int
    servers: Mapping[str, Mapping[str, object]]


@attrs.frozen(kw_only=True)
class SetServersParams:
    servers: Mapping[str, Mapping[str, object]]
    """Name → definition, in the shape of the configuration file."""
    dry_run: bool = False
    if_generation: int | None = None
    """Refuse with `conflict` unless the set is still at this generation."""


@attrs.frozen(kw_only=True)
class AddParams:
    server: str
    definition: Mapping[str, object]
    save: bool = True
    """Write it into the configuration file too."""
    replace: bool = False
    """Take the place of a server of that name; without it, such a server is an error."""


@attrs.frozen(kw_only=True)
class RemoveParams:
    server: str
    save: bool = True


@attrs.frozen(kw_only=True)
class ApplyResult:
    """What a change of the set does, or would do under `dry_run`. Unchanged servers are not touched."""

    added: tuple[str, ...]
    removed: tuple[str, ...]
    changed: tuple[str, ...]
    unchanged: tuple[str, ...]
    generation: int
    errors: tuple[Problem, ...] = ()
    """What makes the set unusable; then nothing was applied and the lists are empty."""
    dry_run: bool = False
    saved: str | None = None
    """The file that was written."""

    @classmethod
    def plan(
        cls, plan: ServersDiff, generation: int, *, dry_run: bool = False, saved: str | None = None
    ) -> ApplyResult:
        return cls(
            added=plan.added,
            removed=plan.removed,
            changed=plan.changed,
            unchanged=plan.unchanged,
            generation=generation,
            dry_run=dry_run,
            saved=saved,
        )

    @classmethod
    def refused(cls, errors: list[Problem], generation: int, *, dry_run: bool = False) -> ApplyResult:
        return cls(
            added=(),
            removed=(),
            changed=(),
            unchanged=(),
            generation=generation,
            errors=tuple(errors),
            dry_run=dry_run,
        )

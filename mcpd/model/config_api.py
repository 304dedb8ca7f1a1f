"""The parameters and results of the control API about the configuration and policies; see `api.py`."""

from __future__ import annotations

from collections.abc import Mapping

import attrs

from mcpd.model.errors import Problem
from mcpd.model.record import Record
from mcpd.model.server_spec import ServersDiff


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
    """The errors in the current file. If mcpd has started with these errors, they affect only the entries
    that contain them. Otherwise, it rejects the whole file, and the last valid set of servers remains
    active."""
    rejected: bool = False
    """Whether the current file is not used at all, because of `problems`."""
    warnings: tuple[str, ...] = ()
    """Descriptions of the parts of the configuration that have no effect."""


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
class EditParams(Record):
    server: str
    changes: Mapping[str, object]
    """A JSON Merge Patch (RFC 7396): members with their new values, and null for those to remove. Other
    members, such as secrets that are shown masked, stay as they are."""


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
    """Why the change could not be saved in mcpd's state file: it has taken effect, but is lost when mcpd
    restarts before it is saved, and mcpd tries again every two seconds. After `mcpd/reload`, also the errors
    in entries that were not applied because mcpd started with these errors."""

    @classmethod
    def plan(cls, plan: ServersDiff, generation: int, *, dry_run: bool = False) -> ApplyResult:
        return cls(generation=generation, dry_run=dry_run, **attrs.asdict(plan))

    @classmethod
    def refused(cls, errors: list[Problem], generation: int, *, dry_run: bool = False) -> ApplyResult:
        return cls(generation=generation, errors=tuple(errors), dry_run=dry_run)


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
class PendingApproval(Record):
    """A call that waits for the approval of a person."""

    id: str
    client: str
    server: str
    kind: str
    """`tool`, `prompt`, `resource`, or `method`."""
    name: str
    arguments: str
    """All arguments as JSON, exactly as they will be sent. Secrets are masked."""
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

"""The parameters and results of the control API that are about policies and approvals; see `api.py`."""

from __future__ import annotations

from collections.abc import Mapping

import attrs

from mcpd.model.record import Record


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

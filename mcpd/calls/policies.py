"""Applies the policies: which tools, prompts and resources a client sees, and which of its calls are refused.

`model.policy` decides. This module knows the rules in effect, and reads from a call what it would use.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial

import attrs
import msgspec
from msgspec import Raw

from mcpd.calls.approvals import Approvals
from mcpd.calls.call import Call, Scope, StageWork, is_name_unique
from mcpd.config.json_path import join_path
from mcpd.config.settings import Settings
from mcpd.daemon_operations import Operations
from mcpd.model.errors import Denied, InvalidArguments, Problem
from mcpd.model.policy import (
    ALLOWED,
    HINTS,
    ClientFacts,
    Decision,
    ItemKind,
    PolicyRule,
    UsedItem,
    Verdict,
    decide,
    read_only_rule,
)
from mcpd.model.text import shorten
from mcpd.supervision.legacy_companion import catalog_for_legacy
from mcpd.supervision.managed_server import ManagedServer
from mcpd.wire import message as wire
from mcpd.wire.message import BadFrame

_NAMED_BY: Mapping[str, tuple[ItemKind, str]] = {
    "tools/call": ("tool", "name"),
    "prompts/get": ("prompt", "name"),
    "resources/read": ("resource", "uri"),
}
"""Method → what it uses, and the member that names it."""
_TASK_METHODS = "tasks/"
"""They concern calls that were allowed when they were made."""
_MAX_VERDICTS = 1000


class Policies:
    """The rules in effect."""

    def __init__(self, core: Operations) -> None:
        self._core = core

    @property
    def _settings(self) -> Settings:
        return self._core.config.loaded.settings

    def exist(self) -> bool:
        """Return whether there are any rules."""
        return any(map(self.apply_to, self._core.supervisor.servers()))

    def apply_to(self, server: ManagedServer) -> bool:
        """Return whether any rule may concern the server."""
        return bool((server.original or server).spec.read_only or self._settings.policies)

    def rules(self, server: ManagedServer) -> tuple[PolicyRule, ...]:
        """Return the rules for a server, in the order in which they apply."""
        if not (server.original or server).spec.read_only:
            return self._settings.policies
        name = definition_name(server)
        place = join_path(join_path("$.mcpServers", name), "readOnly")
        return (read_only_rule(place, servers=(name,)), *self._settings.policies)

    def verdict(self, client: ClientFacts, server: ManagedServer, kind: ItemKind, name: str) -> Verdict:
        """Return what the rules say about this use."""
        if not self.apply_to(server):
            return ALLOWED
        verdict = decide(self.rules(server), client, used_item(server, kind, name))
        if verdict.decision is Decision.ASK and (server.original or server).spec.trust:
            return Verdict(decision=Decision.ALLOW, rule=verdict.rule)
        return verdict


def definition_name(server: ManagedServer) -> str:
    """Return the name of the server's definition, which its dedicated instances share."""
    return (server.original or server).spec.name


def used_item(server: ManagedServer, kind: ItemKind, name: str) -> UsedItem:
    """Return what is known of a tool, prompt or resource. A tool may be listed on one of the server's two
    connections only (`supervision.legacy_companion`)."""
    hints = None
    for catalog in (server.catalog, catalog_for_legacy(server)) if kind == "tool" else ():
        if catalog is not None and (item := catalog.tool(name)) is not None:
            hints = tool_hints(item.raw)
            break
    return UsedItem(server=definition_name(server), kind=kind, name=name, hints=hints)


def tool_hints(tool: bytes) -> Mapping[str, bool]:
    """Return the annotations of a tool that rules can ask for. A read-only tool destroys nothing."""
    declared = wire.members_or_empty(wire.members_or_empty(tool).get("annotations", b"{}"))
    hints = {
        name: assumed
        if (said := bytes(declared.get(name, b""))) not in (b"true", b"false")
        else said == b"true"
        for name, assumed in HINTS.items()
    }
    if hints["readOnlyHint"]:
        hints["destructiveHint"] = False
    return hints


def refuse_denied(verdict: Verdict, server: ManagedServer, kind: ItemKind, name: str) -> None:
    """Raise Denied unless the use is allowed."""
    rule = verdict.rule
    if verdict.decision is not Decision.DENY or rule is None:
        return
    own, shown = definition_name(server), shorten(name, 80)
    why = f" ({rule.reason})" if rule.reason else ""
    raise Denied(
        f"{own}: {kind} {shown!r} was not used: the rule at {rule.place} denies it{why}; "
        "`mcpctl policy test` explains the decision",
        server=own,
        rule=rule.place,
    )


class PolicyStageFactory:
    """Calls have the stage if there are rules. It comes first, so that other stages reveal nothing before."""

    def __init__(self, policies: Policies, approvals: Approvals) -> None:
        self._policies = policies
        self._approvals = approvals

    def is_enabled(self, scope: Scope, server: ManagedServer, method: str, settings: Settings) -> bool:
        return self._policies.apply_to(server)

    def make(self, scope: Scope, server: ManagedServer, method: str, name: str) -> PolicyStage | None:
        return (
            None
            if method.startswith(_TASK_METHODS)
            else PolicyStage(self._policies, self._approvals, server, method)
        )


@attrs.define(eq=False)
class PolicyStage:
    """Refuses denied calls, and lets a person decide about others. What is compared with the rules is exactly
    what the server gets."""

    policies: Policies
    approvals: Approvals
    server: ManagedServer
    method: str
    verdicts: dict[tuple[ClientFacts, str], Verdict] = attrs.field(factory=dict)
    """Clients repeat their calls. Valid as long as the stage, which is made again when the rules change."""

    def before(self, call: Call) -> StageWork | None:
        """Raises Denied, and InvalidArguments if it is not clear what the call would use. Returns how to wait
        for a person's approval, if that is required."""
        kind, name = read_used_item(call)
        client = call.caller.facts(call.context)
        verdict = self.verdicts.get((client, name))
        if verdict is None:
            verdict = self.policies.verdict(client, self.server, kind, name)
            if len(self.verdicts) >= _MAX_VERDICTS:
                self.verdicts.clear()
            self.verdicts[client, name] = verdict
        refuse_denied(verdict, self.server, kind, name)
        if verdict.decision is not Decision.ASK or verdict.rule is None:
            return None
        use = (definition_name(self.server), kind, name)
        return partial(self.approvals.wait_approved, call, use, verdict.rule)

    def after(self, call: Call, result: Raw | bytes) -> Raw | bytes:
        return result


def read_used_item(call: Call) -> tuple[ItemKind, str]:
    """Return what the call would use, and leave one way to read its params.

    JSON parsers differ in which of two equal members counts, and some ignore case, so the server could read
    another name than mcpd. Equal members are reduced to one; members that differ only in case are refused.

    Raises InvalidArguments.
    """
    method = call.route.method
    try:
        members = _unambiguous(call.params or b"{}")
        if method == "completion/complete":
            reference = _unambiguous(members.get("ref", Raw(b"{}")))
            members["ref"] = Raw(msgspec.json.encode(reference))
            is_prompt = wire.string(reference, "type") == "ref/prompt"
            found: tuple[ItemKind, str] = (
                ("prompt", wire.string(reference, "name"))
                if is_prompt
                else ("resource", wire.string(reference, "uri"))
            )
        elif method in _NAMED_BY:
            kind, member = _NAMED_BY[method]
            found = kind, wire.string(members, member)
        else:
            found = "method", method
    except BadFrame as error:
        message = f"{method}: {error}"
        raise InvalidArguments(message, [Problem("$", str(error))]) from None
    if method != "tools/call" or not is_name_unique(call.params):
        call.params = msgspec.json.encode(members)
    return found


_READ_MEMBERS = frozenset(("name", "uri", "ref", "type", "arguments"))


def _unambiguous(raw: Raw | bytes) -> dict[str, Raw]:
    members = wire.members(raw)
    for key in members:
        if key not in _READ_MEMBERS and key.casefold() in _READ_MEMBERS:
            raise BadFrame(f"`{shorten(key, 40)}` differs from `{key.casefold()}` only in case")
    return members

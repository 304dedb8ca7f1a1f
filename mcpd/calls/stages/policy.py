"""The stage that refuses what policies deny, and notes what else they require of a call.

The rules are compared with exactly what the server gets. Each tool keeps the verdict on each client.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Mapping
from weakref import ref

import attrs
import msgspec
import trio
from msgspec import Raw

from mcpd.calls.call import Call, Scope, Stage, is_name_unique, read_unambiguous
from mcpd.calls.permissions import (
    MAX_SHOWN,
    PERMISSION,
    Permission,
    Policies,
    ServerRules,
    definition_name,
    refuse_denied,
)
from mcpd.calls.questions.suspended import RESUME_TIMEOUT, request_digest
from mcpd.config.settings import Settings
from mcpd.model.errors import InvalidArguments, Problem
from mcpd.model.events import CallOutcome
from mcpd.model.policy import ClientFacts, Decision, ItemKind, Verdict
from mcpd.model.text import fold, shorten
from mcpd.supervision.attachments import Attachment
from mcpd.supervision.managed_server import ManagedServer
from mcpd.wire import message as wire
from mcpd.wire.message import BadFrame

_TASK_METHODS = "tasks/"
"""See `tasks`."""
_MAX_CLIENTS = 1000
"""Clients per tool whose verdicts are kept."""
_NAMED_BY: Mapping[str, tuple[ItemKind, str]] = {
    "tools/call": ("tool", "name"),
    "prompts/get": ("prompt", "name"),
    "resources/read": ("resource", "uri"),
}
"""Method → what it uses, and the member that names it."""
_SHORT = 4096
_VARIABLE = re.compile(r"\{[+#./;?&]?([^{}*:,]+)[^{}]*\}")
"""Of a URI template."""


class PolicyStageFactory:
    """Calls have the stage if there are rules. It comes first, so that other stages reveal nothing before."""

    is_per_tool = True

    def __init__(self, policies: Policies) -> None:
        self._policies = policies
        self._rounds = PassedRounds()

    def is_enabled(self, scope: Scope, server: ManagedServer, method: str, settings: Settings) -> bool:
        return self._policies.apply_to(server)

    def make(self, scope: Scope, server: ManagedServer, method: str, name: str) -> PolicyStage | None:
        if method.startswith(_TASK_METHODS):
            return None
        if self._policies.require_more(server):
            return RequiringPolicyStage(self._policies, server, self._rounds)
        return PolicyStage(self._policies, server)


@attrs.define(eq=False)
class PolicyStage(Stage):
    """Refuses denied calls."""

    policies: Policies
    server: ManagedServer
    _rules: ServerRules | None = attrs.field(default=None, init=False)
    _verdicts: dict[ClientFacts, Verdict] = attrs.field(factory=dict, init=False)
    """Of `_rules` about the route's tool, by client."""

    def before(self, call: Call) -> None:
        """Raises Denied, and InvalidArguments if it is not clear what the call would use."""
        client, rules = call.caller.facts(call.context), self.policies.of(self.server)
        if has_plain_name(call):
            verdict = self._verdict(client, rules, call.route.tool)
            if verdict.decision is Decision.ALLOW and not verdict.limits:
                return
        kind, name = read_used_item(call)
        verdict = rules.verdict(client, kind, name)
        refuse_denied(verdict, client, self.server, kind, name)
        if call.route.method == "completion/complete" and kind == "resource":
            uri = _completed(name, call.params)
            refuse_denied(rules.verdict(client, kind, uri), client, self.server, kind, uri)
        if verdict.limits or verdict.decision is not Decision.ALLOW:
            use = (definition_name(self.server), kind, name)
            self.require(call, Permission(client, use, verdict, (kind, name) in rules.listed))

    def require(self, call: Call, permission: Permission) -> None:
        """Note what the rules require of a call that they do not simply allow."""

    def _verdict(self, client: ClientFacts, rules: ServerRules, tool: str) -> Verdict:
        if rules is not self._rules or len(self._verdicts) >= _MAX_CLIENTS:
            self._rules = rules
            self._verdicts.clear()
        verdict = self._verdicts.get(client)
        if verdict is None:
            verdict = self._verdicts[client] = rules.verdict(client, "tool", tool)
        return verdict


class RequiringPolicyStage(PolicyStage):
    """Also notes what the stages for limits and approvals have to do, unless the call is another round of one
    that has passed them."""

    def __init__(self, policies: Policies, server: ManagedServer, rounds: PassedRounds) -> None:
        super().__init__(policies, server)
        self._rounds = rounds

    def require(self, call: Call, permission: Permission) -> None:
        if permission.verdict.decision is Decision.ASK and len(call.params) <= MAX_SHOWN:
            _reduce(call)
        if not self._rounds.continues(call, permission):
            call.slots[PERMISSION] = permission

    def ended(
        self, call: Call, outcome: CallOutcome, result: Raw | bytes, code: str = "", message: str = ""
    ) -> None:
        if outcome is CallOutcome.INPUT_REQUIRED:
            self._rounds.remember(call, result)


_MAX_ROUNDS = 1000
_RoundKey = tuple[object, ...]
_ROUND = Attachment[_RoundKey]("which request continues the call")


class PassedRounds:
    """Which requests continue a call that has passed the rules. Each can be continued once, within
    RESUME_TIMEOUT, by the same client, with the same params and the state that it was given. A client
    without a connection of its own is the same if the facts that policies know about it are the same."""

    def __init__(self) -> None:
        self._until: dict[_RoundKey, float] = {}

    def continues(self, call: Call, permission: Permission) -> bool:
        """Return whether a call is another round. In both cases, the call may itself be continued."""
        request, client = call.request, permission.client
        if request is None or not call.context.modern:
            return False
        caller = call.caller
        who = (client.executable, client.transport, client.names) if caller.may_return else ref(caller)
        server, kind, name = permission.use
        key = (who, server, kind, _digest(name), request_digest(request.method, request.params))
        call.slots[_ROUND] = key
        if b'"inputResponses"' not in request.params and b'"requestState"' not in request.params:
            return False
        return self._until.pop((*key, _state_digest(request.params)), 0.0) > trio.current_time()

    def remember(self, call: Call, result: Raw | bytes) -> None:
        """Record that the client got `result`, and may send another round."""
        key, now = call.slots.get(_ROUND), trio.current_time()
        if key is None:
            return
        if len(self._until) >= _MAX_ROUNDS:
            self._until = {each: until for each, until in self._until.items() if until > now}
        if len(self._until) < _MAX_ROUNDS:
            self._until[*key, _state_digest(bytes(result))] = now + RESUME_TIMEOUT


def _state_digest(document: bytes) -> bytes:
    """Return a digest of the `requestState`, which can have any length: a thousand may be remembered."""
    return _digest(wire.string_or(wire.members_or_empty(document), "requestState"))


def _digest(text: str) -> bytes:
    return hashlib.sha256(text.encode("utf-8", "surrogatepass")).digest()


def has_plain_name(call: Call) -> bool:
    """Return whether `route.tool` is certainly what every reader takes for the tool's name.

    Faster than `read_used_item`, which decides otherwise.
    """
    return len(call.params) <= _SHORT and bool(call.route.tool) and is_name_unique(call.params)


def read_used_item(call: Call) -> tuple[ItemKind, str]:
    """Return what the call would use, and leave one way to read its params.

    JSON parsers differ in which of two equal members counts, and some ignore case, so the server could read
    another name than mcpd. Equal members are reduced to one; members that differ only in case are refused.

    Raises InvalidArguments.
    """
    method = call.route.method
    try:
        members = read_unambiguous(call.params or b"{}")
        if method == "completion/complete":
            reference = read_unambiguous(members.get("ref", Raw(b"{}")))
            members["ref"] = Raw(msgspec.json.encode(reference))
            found: tuple[ItemKind, str]
            match wire.string(reference, "type"):
                case "ref/prompt":
                    found = "prompt", wire.string(reference, "name")
                case "ref/resource":
                    found = "resource", wire.string(reference, "uri")
                case other:
                    raise BadFrame(f"unknown type of a reference {shorten(other, 40)!r}")
        elif method in _NAMED_BY:
            kind, member = _NAMED_BY[method]
            found = kind, wire.string(members, member)
        elif (known := fold(method)) in _NAMED_BY:
            raise BadFrame(f"the method differs from `{known}` only in its spelling")
        else:
            found = "method", method
    except BadFrame as error:
        message = f"{method}: {error}"
        raise InvalidArguments(message, [Problem("$", str(error))]) from None
    if method != "tools/call" or not is_name_unique(call.params):
        call.params = msgspec.json.encode(members)
    return found


def _completed(template: str, params: bytes) -> str:
    """Return the template of a resource with the values of a completion: the server would say which resources
    begin like this."""
    members = wire.members_or_empty(params)
    argument = wire.members_or_empty(members.get("argument", b"{}"))
    context = wire.members_or_empty(members.get("context", b"{}"))
    known = wire.members_or_empty(context.get("arguments", b"{}"))
    values = {name: wire.string_or(known, name) for name in known}
    values[wire.string_or(argument, "name")] = wire.string_or(argument, "value")
    return _VARIABLE.sub(lambda found: values.get(found[1], found[0]), template)


def _reduce(call: Call) -> None:
    """Leave one way to read the params: the server must not read others than those that a person approved.

    Raises InvalidArguments.
    """
    try:
        call.params = msgspec.json.encode(msgspec.json.decode(call.params or b"{}"))
    except (ValueError, RecursionError) as error:
        message = f"{call.route.method}: params that need approval: {error}"
        raise InvalidArguments(message, [Problem("$", str(error))]) from None

"""Calls that wait for a person's approval, because a rule says `ask`.

The client that made the call is asked, if it supports elicitation and the rule lets it. In any case, the call
is listed in `mcpctl approvals`, and the first answer counts. Nothing is sent to the server before that.
"""

from __future__ import annotations

import itertools
import json
import logging
import os
import pwd
import re
import time
import weakref
from collections.abc import Awaitable, Callable, Mapping
from contextlib import suppress
from functools import partial

import attrs
import msgspec
import trio
from msgspec import Raw

from mcpd.calls.call import SUSPENDED, Call, Caller, Scope, Stage, StageWork
from mcpd.calls.permissions import MAX_SHOWN, PERMISSION, Policies
from mcpd.calls.shared_approvals import SharedApprovals
from mcpd.config.settings import Settings
from mcpd.model.config_api import PendingApproval
from mcpd.model.errors import Denied, InvalidArguments, McpdError, Overloaded, Problem
from mcpd.model.policy import ClientFacts, Decision, ItemKind, PolicyRule
from mcpd.model.status import rfc3339
from mcpd.model.text import shorten
from mcpd.protocol.revision_translation import R3, translate_request
from mcpd.supervision.managed_server import ManagedServer
from mcpd.wire import message as wire
from mcpd.wire.message import Message

_PATTERN = re.compile(r"[*?\[\]]")
"""What rules cannot take literally."""
_MEMBERS: dict[ItemKind, str] = {"tool": "tools", "prompt": "prompts", "resource": "resources"}
_MAX_NAME = 500


class NoLastingRuleError(ValueError):
    """No rule can allow exactly this. Its text says why."""


def lasting_rule(client: ClientFacts, use: tuple[str, ItemKind, str]) -> dict[str, object]:
    """Return a rule, as it is written, that allows the client this use. Raises NoLastingRuleError.

    The client is identified by its program, according to the kernel, and by the name under which the person
    who approved it saw it, because an interpreter such as `node` runs many programs.
    """
    server, kind, name = use
    if kind not in _MEMBERS:
        raise NoLastingRuleError(f"no rule is about the method {name!r} only")
    for text in (server, name):
        if _PATTERN.search(text) or not text.isprintable() or len(text) > _MAX_NAME:
            raise NoLastingRuleError(f"a rule cannot contain the name {text[:80]!r} literally")
    if not client.shown:
        raise NoLastingRuleError("the client's name is not known")
    own = client.shown[-1]
    if _PATTERN.search(own):
        raise NoLastingRuleError(f"a rule cannot contain the client's name {own!r} literally")
    rule: dict[str, object] = {"decision": "allow", "clients": [own]}
    if client.executable and not _PATTERN.search(client.executable):
        if client.executable.endswith(" (deleted)"):
            raise NoLastingRuleError(
                "the client's program has been replaced since it was started; restart it"
            )
        rule["executables"] = [client.executable]
    else:
        rule["transports"] = [client.transport]
    if client.person:
        if _PATTERN.search(client.person):
            raise NoLastingRuleError(f"a rule cannot contain the name {client.person!r} literally")
        rule["people"] = [client.person]
    return {**rule, "servers": [server], _MEMBERS[kind]: [name]}


log = logging.getLogger("mcpd.calls")

APPROVAL_TIMEOUT = 300.0
"""Seconds without an answer after which a call is refused."""
NOTIFICATION_INTERVAL = 30.0
"""Seconds between two notifications: all calls that wait are in the list that they point to."""
MAX_PENDING = 100
"""Calls that may wait for approval: each is a question to a person."""
_ANSWERS = {
    "once": "Allow this call",
    "session": "Allow it until the client disconnects",
    "always": "Always allow this client to use it",
    "no": "Refuse",
}
_INVALID = "invalid"
"""The answer of a client that has accepted the question, but not with one of `_ANSWERS`. Refuses the call."""
_OUTCOMES = {
    "no": "was refused",
    _INVALID: "was refused, because the answer was invalid",
    "": "no longer waits for approval",
}
_APPROVED = ("once", "session", "always")
_Use = tuple[str, ItemKind, str]
"""(definition name, kind, name)."""
_Grant = tuple[_Use, str]
"""(use, fingerprint of the rule that asked)."""


class _Pending(msgspec.Struct, eq=False):
    """One call that waits. `answer` is set once."""

    call: Call
    client: ClientFacts
    who: str
    """The client as people see it. It may report another name while the call waits; a permanent approval is
    for this one."""
    use: _Use
    rule: PolicyRule
    arguments: str
    """What is shown, and sent."""
    asked_at: float = msgspec.field(default_factory=time.time)
    answer: str = ""
    """One of `_ANSWERS`, or `_INVALID`; empty until then."""
    answered: trio.Event = msgspec.field(default_factory=trio.Event)
    question: _ClientQuestion | None = None
    """What a modern client is asked."""
    turn: trio.Lock = msgspec.field(default_factory=trio.Lock)
    """Held while an answer is accepted, which may mean to write a file, so that the first answer counts."""

    def settle(self, answer: str) -> None:
        if not self.answer:
            self.answer = answer
            self.answered.set()


class _ClientQuestion(msgspec.Struct, eq=False):
    """The question to a modern client, which returns with the answer (see `SuspendedCalls`)."""

    pending: _Pending
    message: Message
    answer: str = "no"
    returned: trio.Event = msgspec.field(default_factory=trio.Event)

    def respond(self, result: Raw | bytes) -> None:
        self.answer = _read_answer(result)
        self.returned.set()

    def decline(self, reason: str) -> None:
        self.pending.settle("no")
        self.returned.set()

    async def wait_answer(self) -> str:
        await self.returned.wait()
        return self.answer


class ApprovalStageFactory:
    is_per_tool = False

    def __init__(self, policies: Policies, approvals: Approvals) -> None:
        self._policies = policies
        self._approvals = approvals

    def is_enabled(self, scope: Scope, server: ManagedServer, method: str, settings: Settings) -> bool:
        return self._policies.apply_to(server) and self._policies.require_more(server)

    def make(self, scope: Scope, server: ManagedServer, method: str, name: str) -> ApprovalStage:
        return ApprovalStage(self._approvals)


@attrs.define(eq=False)
class ApprovalStage(Stage):
    """Lets a person decide about the call, if a rule says `ask`."""

    approvals: Approvals

    def before(self, call: Call) -> StageWork | None:
        permission = call.slots.get(PERMISSION)
        if permission is None or permission.verdict.decision is not Decision.ASK:
            return None
        rule = permission.verdict.rule
        return None if rule is None else partial(self.approvals.wait_approved, call, permission.use, rule)


class Approvals:
    """All calls that wait for approval, and what was allowed until a client disconnects."""

    def __init__(
        self,
        announce: Callable[[str, str], None],
        notify: Callable[[str, str], None],
        insert_rule: Callable[[int, Mapping[str, object]], Awaitable[None]],
    ) -> None:
        """`announce` is called with a server and a message when a call begins to wait, and when it ends to;
        `notify` shows a notification with a title and a text on the desktop; `insert_rule` is
        `ActiveConfig.insert_rule`.
        """
        self.announce = announce
        self.notify = notify
        self.insert_rule = insert_rule
        self.shared: SharedApprovals | None = None
        """The approvals of all replicas; None if there are no others."""
        self._pending: dict[str, _Pending] = {}
        self._numbers = itertools.count(1)
        self._granted: weakref.WeakKeyDictionary[Caller, set[_Grant]] = weakref.WeakKeyDictionary()

    async def wait_approved(self, call: Call, use: _Use, rule: PolicyRule) -> None:
        """Return when a person has approved the call, whose params leave one reading. Raises Denied if not,
        Overloaded if too many wait, and InvalidArguments if it cannot be shown."""
        if (use, rule.fingerprint) in self._granted.get(call.caller, ()):
            await trio.lowlevel.checkpoint()
            return
        client = call.caller.facts(call.context)
        if self._is_granted(client, use, rule):
            await trio.lowlevel.checkpoint()
            return
        arguments = _arguments(call, use)
        if len(self._pending) >= MAX_PENDING:
            message = f"{use[0]}: {MAX_PENDING} calls are already waiting for approval"
            raise Overloaded(f"{message}; nothing was sent, see `mcpctl approvals`", server=use[0])
        who = call.caller.describe(call.context)
        pending = _Pending(call, client, who, use, rule, arguments)
        key = str(next(self._numbers))
        self._pending[key] = pending
        what = f"{who}: {use[1]} {shorten(use[2], 80)!r}"
        self.announce(use[0], f"{what} waits for approval (mcpctl approvals allow {key})")
        if self.shared is not None:
            self.shared.publish()
        try:
            with trio.move_on_after(APPROVAL_TIMEOUT):
                await self._ask(pending)
        finally:
            del self._pending[key]
            self.announce(use[0], f"{what} {_OUTCOMES.get(pending.answer, 'was approved')}")
        if pending.question is not None:
            if call.state is not SUSPENDED:
                call.handler.withdraw(call, pending.question)  # which need not be asked any more
            elif pending.answer in _APPROVED:
                await pending.question.returned.wait()  # answered elsewhere: the client is expected to return
        if pending.answer == "session":
            self._granted.setdefault(call.caller, set()).add((use, rule.fingerprint))
            if self.shared is not None and client.person:
                self.shared.grant(*_grant(client, use, rule))
        if pending.answer not in _APPROVED:
            call.server.call_stats.denied += 1
            raise _refusal(pending)

    def _is_granted(self, client: ClientFacts, use: _Use, rule: PolicyRule) -> bool:
        """Return whether the person has approved it for an hour."""
        return (
            self.shared is not None
            and bool(client.person)
            and self.shared.is_granted(*_grant(client, use, rule))
        )

    def settle_granted(self) -> None:
        """See `WaitingCalls`."""
        for each in self._pending.values():
            if self._is_granted(each.client, each.use, each.rule):
                each.settle("once")

    async def _ask(self, pending: _Pending) -> None:
        call = pending.call
        params = self._question(pending)
        if params is None:
            server, kind, name = pending.use
            self.notify(
                f"{shorten(pending.who, 80)} needs your approval",
                f"It wants to use the {kind} {shorten(name, 80)!r} of {shorten(server, 80)}\n"
                "Run: mcpctl approvals, or mcpctl ui",
            )
            await pending.answered.wait()
        elif call.context.modern:
            question = pending.question = _ClientQuestion(pending, Message(method="elicitation/create"))
            with call.handler.asking(call, question.message.method, params):
                call.handler.ask_with_result(call, question, params)
                await self._wait_answered(pending, question.wait_answer)
        else:

            async def ask_client() -> str:
                with call.handler.asking(call, "elicitation/create", params), suppress(McpdError):
                    return _read_answer(await call.caller.ask(call, "elicitation/create", Raw(params)))
                return "no"

            await self._wait_answered(pending, ask_client)

    async def _wait_answered(self, pending: _Pending, ask_client: Callable[[], Awaitable[str]]) -> None:
        """Return when the client, or somebody else, has answered."""
        async with trio.open_nursery() as nursery:

            async def accept_client() -> None:
                answer = await ask_client()
                async with pending.turn:
                    pending.settle(await self._accept_client(pending, answer))

            nursery.start_soon(accept_client)
            await pending.answered.wait()
            nursery.cancel_scope.cancel(reason="it was answered")

    def _question(self, pending: _Pending) -> bytes | None:
        """Return the params of the elicitation for this client; None if it cannot be asked."""
        call, (server, kind, name) = pending.call, pending.use
        if (
            pending.rule.answer == "outside"
            or not call.context.supports("elicitation")
            or call.context.version < R3
        ):
            return None
        why = f" ({pending.rule.reason})" if pending.rule.reason else ""
        answers = {key: label for key, label in _ANSWERS.items() if key != "always" or _may_last(pending)}
        if self.shared is not None and pending.client.person:
            answers["session"] = "Allow it for an hour"
        shown = f" with {pending.arguments}" if pending.arguments else ""
        body = {
            "message": f"May the {kind} '{_visible(name)}' of {server} be used{shown}? "
            f"A rule requires your approval{why}.",
            "requestedSchema": {
                "type": "object",
                "properties": {
                    "decision": {
                        "type": "string",
                        "title": "Decision",
                        "enum": list(answers),
                        "enumNames": list(answers.values()),
                    }
                },
                "required": ["decision"],
            },
        }
        params = msgspec.json.encode(body)
        if not call.context.modern:
            return params  # `Caller.ask` translates them
        return translate_request("elicitation/create", Raw(params), call.context.version, "")

    @property
    def count(self) -> int:
        return len(self._pending)

    def list(self, mask: Callable[[str], str]) -> tuple[PendingApproval, ...]:
        """Return the calls that wait, the oldest first."""
        return tuple(
            PendingApproval(
                id=key,
                client=mask(each.who),
                server=each.use[0],
                kind=each.use[1],
                name=mask(_visible(each.use[2])),
                arguments=mask(each.arguments),
                rule=each.rule.place,
                reason=each.rule.reason,
                since=rfc3339(each.asked_at),
                expires_at=rfc3339(each.asked_at + APPROVAL_TIMEOUT),
            )
            for key, each in self._pending.items()
        )

    async def answer(self, key: str, answer: str) -> None:
        """Answer for the person. Raises InvalidArguments if no such call waits, or the answer is unknown or
        cannot be kept; BadSpec or CannotWrite if the rule cannot be written. The call still waits then."""
        problem = Problem("$.id", f"no call {shorten(key, 20)!r} waits for approval", "mcpctl approvals")
        if answer in _ANSWERS and "@" in key and self.shared is not None:
            await self.shared.answer(key, answer)
            return
        if answer not in _ANSWERS:
            problem = Problem("$.decision", f"must be one of {', '.join(_ANSWERS)}")
        elif (pending := self._pending.get(key)) is not None:
            async with pending.turn:
                try:
                    if answer == "always" and not pending.answer:
                        await self._write_rule(pending, "mcpctl or the dashboard")
                except NoLastingRuleError as error:
                    fix = "allow it once, or until the client disconnects"
                    problem = Problem("$.decision", f"it cannot be allowed permanently: {error}", fix)
                else:
                    if not pending.answer:
                        pending.settle(answer)
                        return
        fix = f" (see: {problem.fix})" if problem.fix == "mcpctl approvals" else ""
        raise InvalidArguments(f"{problem.message}{fix}", [problem])

    async def _accept_client(self, pending: _Pending, answer: str) -> str:
        """Return what a client's answer amounts to: `once` if a rule cannot be written."""
        if answer != "always" or pending.answer:
            return answer
        if pending.client.person:  # only the person who runs mcpd changes the configuration
            return "once"
        try:
            await self._write_rule(pending, "the client")
        except (NoLastingRuleError, McpdError) as error:
            log.warning("%s: allowed once, because no rule could be written: %s", pending.use[0], error)
            return "once"
        return answer

    async def _write_rule(self, pending: _Pending, where: str) -> None:
        """Raises NoLastingRuleError, BadSpec, CannotWrite."""
        rule = lasting_rule(pending.client, pending.use)
        place = _INDEX.search(pending.rule.place)
        if place is None:
            raise NoLastingRuleError(f"the rule at {pending.rule.place} is not in a list")
        now = time.strftime("%Y-%m-%d %H:%M UTC", time.gmtime())
        reason = f"allowed by {_user()} on {now} for {pending.who}, in {where}"
        await self.insert_rule(int(place[1]), {**rule, "reason": reason})


def _grant(client: ClientFacts, use: _Use, rule: PolicyRule) -> tuple[str, ...]:
    """Return what an approval of a person for an hour is about."""
    return (client.person, client.shown[-1] if client.shown else "", *use, rule.fingerprint)


_INDEX = re.compile(r"\.policies\[(\d+)\]$")


def _user() -> str:
    try:
        return pwd.getpwuid(os.getuid()).pw_name
    except KeyError:
        return f"user {os.getuid()}"


def _may_last(pending: _Pending) -> bool:
    """Return whether the client may make the approval permanent."""
    if pending.client.person:
        return False
    try:
        lasting_rule(pending.client, pending.use)
    except NoLastingRuleError:
        return False
    return True


def _arguments(call: Call, use: _Use) -> str:
    """Return the arguments of a call in full. Raises InvalidArguments if nobody would read so much."""
    server, kind, name = use
    if len(call.params) > MAX_SHOWN:
        text = f"its params have more than {MAX_SHOWN} bytes, too many to show to a person"
        message = f"{server}: {kind} {shorten(name, 80)!r} was not used: it requires approval, and {text}"
        raise InvalidArguments(message, [Problem("$", text)])
    members = msgspec.json.decode(call.params, type=dict[str, object])
    if isinstance(meta := members.get("_meta"), dict):  # what the client means for the server
        own = [key for key in meta if key == "progressToken" or key.startswith(wire.RESERVED_PREFIX)]
        members["_meta"] = {key: value for key, value in meta.items() if key not in own}
    named = {"name": name, "uri": name}
    shown = {key: value for key, value in members.items() if value != {} and value != named.get(key)}
    arguments = shown["arguments"] if shown.keys() == {"arguments"} else shown
    return _visible(msgspec.json.encode(arguments).decode()) if shown else ""


def _visible(text: str) -> str:
    """Return text in which invisible characters are escaped as in JSON."""
    return "".join(each if each.isprintable() else json.dumps(each)[1:-1] for each in text)


def _read_answer(result: Raw | bytes) -> str:
    """Return what a client's response to the elicitation means. Only a clear answer is an approval."""
    members = wire.members_or_empty(result)
    if wire.string_or(members, "action") != "accept":
        return "no"
    decision = wire.string_or(wire.members_or_empty(members.get("content", b"{}")), "decision")
    return decision if decision in _ANSWERS else _INVALID


def _refusal(pending: _Pending) -> Denied:
    server, kind, name = pending.use
    what = "approval was refused" if pending.answer else f"was not approved within {APPROVAL_TIMEOUT:g} s"
    if pending.answer == _INVALID:
        what = f"the answer was invalid: `decision` must be one of {', '.join(_ANSWERS)}"
    why = f" ({pending.rule.reason})" if pending.rule.reason else ""
    return Denied(
        f"{server}: {kind} {shorten(name, 80)!r} was not used: it requires approval by the rule at "
        f"{pending.rule.place}{why}, and {what}",
        server=server,
        rule=pending.rule.place,
    )

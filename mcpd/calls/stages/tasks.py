"""The stage that lets each client reach only the tasks that its own calls became, as far as policies allow.

A server knows one client, mcpd, and shows all of its tasks to each. A process that was started again may
count the ids of its tasks from the beginning.
"""

from __future__ import annotations

from collections.abc import Mapping
from weakref import ref

import attrs
import msgspec
from msgspec import Raw

from mcpd.calls.call import Call, Scope, Stage
from mcpd.calls.owner import owner_of
from mcpd.calls.permissions import Policies, refuse_denied
from mcpd.config.settings import Settings
from mcpd.model.errors import InvalidArguments, Problem
from mcpd.model.events import CallOutcome
from mcpd.model.policy import ItemKind
from mcpd.model.server_spec import StdioSpec
from mcpd.model.text import shorten
from mcpd.protocol.extensions import TASKS
from mcpd.supervision.attachments import Attachment
from mcpd.supervision.managed_server import ManagedServer
from mcpd.transports.base import Channel
from mcpd.wire import message as wire
from mcpd.wire.message import BadFrame

_METHODS = "tasks/"
_MAX_TASKS = 10_000
"""Tasks of a server that are remembered, the newest."""
_MAX_RESULT = 64 * 1024
"""Bytes of a result that announces a task."""


@attrs.frozen
class _OwnedTask:
    owner: object
    tool: str
    link: ref[Channel]

    @property
    def is_lost(self) -> bool:
        """Whether the connection on which it was announced has ended: another task may have its id."""
        link = self.link()
        return link is None or link.end_error is not None


_TASKS = Attachment[dict[str, _OwnedTask]]("the tasks of clients, by id")


class TaskStageFactory:
    """Calls of tools have the stage if their server may answer with a task, and all requests about tasks."""

    is_per_tool = False

    def __init__(self, policies: Policies) -> None:
        self._policies = policies

    def is_enabled(self, scope: Scope, server: ManagedServer, method: str, settings: Settings) -> bool:
        return method.startswith(_METHODS) or (
            method == "tools/call" and not scope.is_control and _may_have_tasks(server)
        )

    def make(self, scope: Scope, server: ManagedServer, method: str, name: str) -> Stage:
        if method == "tools/call":
            return NewTaskStage()
        return OwnTaskListStage(self._policies) if method == "tasks/list" else OwnTaskStage(self._policies)


class NewTaskStage(Stage):
    """Remembers whose call became a task."""

    def ended(
        self, call: Call, outcome: CallOutcome, result: Raw | bytes, code: str = "", message: str = ""
    ) -> None:
        if outcome is not CallOutcome.OK or len(result) > _MAX_RESULT or b'"taskId"' not in bytes(result):
            return
        members = wire.members_or_empty(result)
        if "task" in members:
            members = wire.members_or_empty(members["task"])
        if task := wire.string_or(members, "taskId"):
            known = _tasks(call.server)
            if task not in known or known[task].is_lost:
                known.pop(task, None)
                known[task] = _OwnedTask(
                    owner_of(call.caller, call.context), call.tool, ref(call.upstream.link)
                )
            if len(known) > _MAX_TASKS:
                del known[next(iter(known))]


@attrs.define(eq=False)
class OwnTaskStage(Stage):
    """Refuses requests about tasks of others."""

    policies: Policies

    def before(self, call: Call) -> None:
        """Raises Denied, and InvalidArguments if the client has no such task."""
        try:
            members = wire.members(call.params or b"{}")
            task = wire.string(members, "taskId")
            if any(key != "taskId" and key.casefold() == "taskid" for key in members):
                raise BadFrame("a member differs from `taskId` only in case")
        except BadFrame as error:
            text = f"{call.route.method}: {error}"
            raise InvalidArguments(text, [Problem("$", str(error))]) from None
        found = _own_task(call, task)
        if found is None:
            text = f"{call.route.method}: this client has no task {shorten(task, 80)!r}"
            raise InvalidArguments(text, [Problem("$.taskId", "unknown task")])
        _refuse_denied(self.policies, call, "tool", found.tool)
        call.params = msgspec.json.encode(members)  # of equal members, one is left


@attrs.define(eq=False)
class OwnTaskListStage(Stage):
    """Leaves out the tasks of others."""

    policies: Policies

    def before(self, call: Call) -> None:
        """Raises Denied."""
        _refuse_denied(self.policies, call, "method", call.route.method)

    def after(self, call: Call, result: Raw | bytes) -> bytes:
        members = wire.members_or_empty(result)
        own = [
            task
            for task in _array(members)
            if _own_task(call, wire.string_or(wire.members_or_empty(task), "taskId")) is not None
        ]
        return msgspec.json.encode({**members, "tasks": own})


def _array(members: Mapping[str, Raw]) -> list[Raw]:
    try:
        return msgspec.json.decode(members.get("tasks", b"[]"), type=list[Raw])
    except msgspec.MsgspecError:
        return []


def _refuse_denied(policies: Policies, call: Call, kind: ItemKind, name: str) -> None:
    if policies.apply_to(call.server):
        client = call.caller.facts(call.context)
        refuse_denied(policies.verdict(client, call.server, kind, name), client, call.server, kind, name)


def client_of_task(server: ManagedServer, params: Raw) -> object | None:
    """Return the connected client whose call became the task that a notification is about, if it is known."""
    found = _tasks(server).get(wire.string_or(wire.members_or_empty(params), "taskId"))
    return found.owner() if found is not None and isinstance(found.owner, ref) else None


def _own_task(call: Call, task: str) -> _OwnedTask | None:
    """Return the task with this id if it is the client's. Those of a local process end with it."""
    found = _tasks(call.server).get(task)
    if found is None or found.owner != owner_of(call.caller, call.context):
        return None
    return None if found.is_lost and isinstance(call.server.spec, StdioSpec) else found


def _tasks(server: ManagedServer) -> dict[str, _OwnedTask]:
    attachments = (server.original or server).attachments
    found = attachments.get(_TASKS)
    if found is None:
        found = attachments[_TASKS] = {}
    return found


def _may_have_tasks(server: ManagedServer) -> bool:
    """Return whether the server declares tasks, in either variant, or is not known yet."""
    declared = None if server.upstream is None else server.upstream.capabilities
    extensions = {} if declared is None else declared.get("extensions")
    return (
        declared is None or "tasks" in declared or (isinstance(extensions, Mapping) and TASKS in extensions)
    )

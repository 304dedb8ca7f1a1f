"""Tool calls that became tasks: polled until they are done, in two protocol variants.

In 2025-11-25 the client requests a task (some tools require it), polls, and then fetches the result. In the
extension to 2026-07-28 the server decides, if the request declared support, and the last poll brings the
result.
"""

from __future__ import annotations

import math
from collections.abc import Awaitable, Callable, Mapping

import msgspec
import trio
from msgspec import Raw

from mcpd.model.errors import (
    CallTimeout,
    HttpRefused,
    LinkLost,
    McpdError,
    Overloaded,
    ProtocolViolation,
    UpstreamRefused,
)
from mcpd.model.text import shorten
from mcpd.protocol.upstream_session import Upstream, to_upstream_error
from mcpd.transports.outgoing_request import Exchange
from mcpd.wire import message as wire
from mcpd.wire.message import BadFrame, Message

DEFAULT_POLL_INTERVAL, MIN_POLL_INTERVAL, MAX_POLL_INTERVAL = 1.0, 0.1, 30.0
"""Seconds between two polls: if the server proposes nothing, and the bounds for what it proposes."""
MAX_FAILED_POLLS = 5
"""Unanswered polls in a row before we give up; the task itself may continue."""
_CANCEL_TIMEOUT = 10.0
_FINAL = ("completed", "failed", "cancelled")
_RUNNING = ("working", "input_required")
InputHandler = Callable[[str, Raw], Awaitable[Mapping[str, object]]]
"""Called with a server's question (method, params); returns the bare result. An exception ends the task,
because a server cannot be told that nobody answers."""


class _Task(msgspec.Struct, frozen=True):
    """What the server last reported."""

    id: str
    status: str
    message: str
    poll_interval: float
    members: Mapping[str, Raw]


def task_id(upstream: Upstream, created: Raw) -> str:
    """Return the id of the task that a result announces. Raises ProtocolViolation."""
    return _parse_task(upstream, created).id


async def await_task(
    upstream: Upstream,
    created: Raw,
    answer: InputHandler,
    *,
    what: str,
    timeout: float = math.inf,
    limit: float = math.inf,
    on_status: Callable[[str], None] = lambda text: None,
) -> Raw:
    """Wait until the task is done; return the bytes of its result, as if the call itself had returned it.

    `created` is the result that announced the task. `timeout` applies to each request, `limit` to the whole;
    `what` names the call in messages; `on_status` is called with each new status message. If this ends
    early, for example by cancellation, the task is cancelled.

    Raises UpstreamRefused if the task failed or the server cancelled it, CallTimeout, ProtocolViolation,
    LinkLost if its outcome is unknown, and what `answer` raises.
    """
    poller = _TaskPoller(upstream, answer, timeout, on_status)
    task = _parse_task(upstream, created)
    try:
        with trio.move_on_after(limit):
            return await poller.run(task)
    except (Overloaded, HttpRefused, LinkLost) as error:
        # These errors concern a poll, not the call.
        text = f"{poller.name}: {what} became a task whose outcome is unknown; it may have run"
        raise LinkLost(f"{text}, so it is not retried ({error.message})", server=poller.name) from error
    finally:
        if not poller.is_finished:
            poller.cancel(task.id)
    raise CallTimeout(
        f"{upstream.link.name}: {what} has run as a task for {limit:g} s, the limit for one call; mcpd "
        "asked the server to cancel it (`maxTimeout` in its definition sets the limit)",
        server=upstream.link.name,
        after=limit,
    )


class _TaskPoller(msgspec.Struct, eq=False):
    upstream: Upstream
    answer: InputHandler
    timeout: float
    on_status: Callable[[str], None]
    is_finished: bool = False
    answered: set[str] = msgspec.field(default_factory=set)
    """Keys of answered questions: the server repeats them until it has processed the answers."""

    @property
    def name(self) -> str:
        return self.upstream.link.name

    @property
    def is_legacy(self) -> bool:
        return self.upstream.era == "legacy"

    async def run(self, task: _Task) -> Raw:
        params = {"taskId": task.id}
        misses, text = 0, ""
        while task.status not in _FINAL:
            if task.message not in ("", text):
                text = task.message
                self.on_status(text)
            if task.status == "input_required":
                if self.is_legacy:  # the server asks with requests of its own while we wait for the result
                    return await self._fetch(task, timeout=math.inf)
                await self._answer_questions(task)
            await trio.sleep(task.poll_interval)
            try:
                task = _parse_task(self.upstream, await self._request("tasks/get", params))
                misses = 0
            except (CallTimeout, Overloaded, HttpRefused, LinkLost) as error:
                misses += 1
                ended = self.upstream.link.end_error is not None
                if ended or misses >= MAX_FAILED_POLLS or not _is_temporary(error):
                    raise
        self.is_finished = True
        return await self._result(task)

    async def _result(self, task: _Task) -> Raw:
        if task.status == "cancelled":
            text = task.message or "no reason given"
            raise UpstreamRefused(
                f"{self.name}: the server cancelled its task: {text}", server=self.name, upstream_code=0
            )
        if self.is_legacy:
            return await self._fetch(task, timeout=self.timeout)
        if task.status == "failed":
            raise to_upstream_error(self.name, Message(error=task.members.get("error", Raw(b"null"))))
        result = task.members.get("result")
        if result is None:
            raise ProtocolViolation(f"{self.name}: its task completed without a result", server=self.name)
        return result

    async def _fetch(self, task: _Task, timeout: float) -> Raw:
        result = await self._request("tasks/result", {"taskId": task.id}, timeout=timeout)
        self.is_finished = True
        return result

    async def _answer_questions(self, task: _Task) -> None:
        try:
            questions = wire.members(task.members.get("inputRequests", b"{}"))
        except BadFrame as error:
            message = f"{self.name}: sent an invalid input request: {error}"
            raise ProtocolViolation(message, server=self.name) from None
        new = {key: question for key, question in questions.items() if key not in self.answered}
        if new:
            answers = await _answer_all(self.name, new, self.answer)
            await self._request("tasks/update", {"taskId": task.id, "inputResponses": answers})
            self.answered.update(new)

    async def _request(
        self, method: str, params: Mapping[str, object], *, timeout: float | None = None
    ) -> Raw:
        limit = self.timeout if timeout is None else timeout
        return await self.upstream.request(method, params, timeout=limit, meta=self.upstream.default_meta)

    def cancel(self, task: str) -> None:
        """Ask the server to cancel the task, if it supports that. The answer is ignored."""
        declared = self.upstream.capabilities.get("tasks")
        if self.is_legacy and not (isinstance(declared, Mapping) and "cancel" in declared):
            return
        farewell = _CancelRequest(total_timeout=_CANCEL_TIMEOUT)
        farewell.meta = self.upstream.default_meta
        try:
            self.upstream.submit(farewell, "tasks/cancel", msgspec.json.encode({"taskId": task}))
        except McpdError:
            return  # the server cannot be reached


class _CancelRequest(Exchange):
    """A request whose response is ignored."""

    def answered(self, message: Message) -> None: ...
    def failed(self, error: McpdError) -> None: ...


def _is_temporary(error: McpdError) -> bool:
    return not isinstance(error, HttpRefused) or error.status >= 500 or error.status in (408, 429)


def _parse_task(upstream: Upstream, result: Raw) -> _Task:
    """Parse a task of either variant. Raises ProtocolViolation."""
    try:
        members = wire.members(result)
        if "task" in members and "taskId" not in members:
            members = wire.members(members["task"])
        task, status = (wire.string(members, name) for name in ("taskId", "status"))
        if status not in (*_FINAL, *_RUNNING):
            raise BadFrame(f"unknown task status {shorten(status, 40)}")
    except BadFrame as error:
        raise ProtocolViolation(
            f"{upstream.link.name}: sent an invalid task ({error}): {shorten(bytes(result))}",
            server=upstream.link.name,
        ) from None
    message = shorten(wire.string_or(members, "statusMessage"), 300)
    return _Task(task, status, message, _poll_interval(members), members)


def _poll_interval(members: Mapping[str, Raw]) -> float:
    """Return the interval that the server proposes, in seconds within our bounds."""
    raw = members.get("pollIntervalMs", members.get("pollInterval"))
    if raw is None:
        return DEFAULT_POLL_INTERVAL
    try:
        return min(max(msgspec.json.decode(raw, type=float) / 1000, MIN_POLL_INTERVAL), MAX_POLL_INTERVAL)
    except msgspec.MsgspecError:
        return DEFAULT_POLL_INTERVAL


async def _answer_all(name: str, questions: Mapping[str, Raw], answer: InputHandler) -> dict[str, object]:
    """Answer the questions one after the other, because one person may have to answer them all.

    Raises ProtocolViolation, and what `answer` raises.
    """
    given_answers: dict[str, object] = {}
    for key, question in questions.items():
        try:
            fields = wire.members(question)
            method = wire.string(fields, "method")
        except BadFrame as error:
            raise ProtocolViolation(f"{name}: sent an invalid input request: {error}", server=name) from None
        given_answers[key] = await answer(method, fields.get("params", Raw(b"{}")))
    return given_answers

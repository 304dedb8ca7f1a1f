"""`run_code`: runs Python in a sandbox, in which the tools of the view are functions (extra `code`).

Each call in the code is a call of the client: policies, approvals, limits and the call log see it, and it
gets no result that was shortened. Questions of servers are declined: the client does not know of these calls.
"""

from __future__ import annotations

import itertools
import re
import secrets
from collections.abc import Awaitable, Mapping
from contextlib import suppress
from weakref import WeakKeyDictionary

import msgspec
import trio
from msgspec import Raw

from mcpd.calls.client_context import ClientRequest, Responder
from mcpd.gateway.built_in.names import listed_tool, suggestion
from mcpd.gateway.built_in.tool import Arguments, BuiltInTool
from mcpd.gateway.requests import text_result
from mcpd.gateway.session import ClientSession
from mcpd.gateway.views import View
from mcpd.io.turns import TurnLimit, take_turn
from mcpd.model.errors import McpdError
from mcpd.process.code_sandbox import (
    MAX_CALLS,
    MAX_CODE,
    MAX_SECONDS,
    CodeFailed,
    CodeSandbox,
    FunctionCall,
    function_name,
    value_in_code,
)
from mcpd.wire import message as wire
from mcpd.wire.message import BadFrame

_MAX_RUNS = 4
"""Runs of all clients at once; others wait. Each has a process of up to 150 MB."""
_MAX_RESULT = 4 << 20
"""Bytes of a result that code can use."""
_running = trio.CapacityLimiter(_MAX_RUNS)
_MAX_OWN_RUNS = 2
"""Runs of one client at once, so that others need not wait until its calls have ended."""
_running_of: WeakKeyDictionary[ClientSession, trio.CapacityLimiter] = WeakKeyDictionary()


def _describe(view: View) -> str:
    return (
        "Run Python code in a sandbox that calls tools. Use it instead of many calls, to combine or filter "
        "long results: only what the code prints, and the value of its last expression, are returned. Each "
        "tool is a function with keyword arguments, by the name that find_tools returned, with _ for other "
        "characters. It returns structured content, parsed JSON, or text, and raises RuntimeError if the "
        "tool fails. With `await` and asyncio.gather, calls run at the same time. No files, no network; of "
        f"the standard library only parts. Limits: {MAX_SECONDS:g} s of computing, {MAX_CALLS} calls."
    )


def _start(session: ClientSession, request: ClientRequest, arguments: Arguments) -> Awaitable[bytes]:
    return _Run(session, request).run(wire.string(arguments, "code"))


class _Run:
    """One run for one request of a client."""

    def __init__(self, session: ClientSession, request: ClientRequest) -> None:
        self._session = session
        self._request = request
        self._context = msgspec.structs.replace(
            request.context, capabilities={}, accepts_server_requests=False, prefers_legacy=False
        )
        self._keys = (b'"%b-%d"' % (secrets.token_hex(8).encode(), n) for n in itertools.count())
        self._done = 0

    async def run(self, code: str) -> bytes:
        """Return the result of the tool. A failure of the code is a failed result."""
        own = _running_of.setdefault(self._session, trio.CapacityLimiter(_MAX_OWN_RUNS))
        async with own, _running:
            sandbox = await trio.to_thread.run_sync(CodeSandbox)
            try:
                return text_result(self._request.context, await self._run_in(sandbox, code))
            except CodeFailed as error:
                ended = f"\n{self._done} calls had ended before that." if self._done else ""
                return text_result(self._request.context, f"{error}{ended}", is_error=True)
            finally:
                with trio.CancelScope(shield=True), suppress(CodeFailed):
                    await trio.to_thread.run_sync(sandbox.close)

    async def _run_in(self, sandbox: CodeSandbox, code: str) -> str:
        tools = self._session.view.names("tools")
        names = {function_name(name): name for name in tools} | {name: name for name in tools}
        written = set(re.findall(r"\w+", code[:MAX_CODE]))
        turn, functions = TurnLimit(), dict[str, Mapping[str, object]]()
        for name in names.keys() & written:
            functions[name] = self._schema(names[name])
            await turn.pause()
        step = await trio.to_thread.run_sync(sandbox.start, code, functions)
        while not isinstance(step, str):
            results: dict[int, object] = {}
            async with trio.open_nursery() as nursery:
                for call in step:
                    nursery.start_soon(self._answer, names, call, results)
            step = await trio.to_thread.run_sync(sandbox.resume, results)
        return step

    def _schema(self, tool: str) -> Mapping[str, object]:
        try:
            return wire.mapping(wire.members(listed_tool(self._session, self._context, tool))["inputSchema"])
        except (McpdError, BadFrame, KeyError):
            return {}

    async def _answer(self, names: Mapping[str, str], call: FunctionCall, results: dict[int, object]) -> None:
        """Put the result of a call, or the exception that it raises in the code, into `results`."""
        await take_turn(self._session)
        name = names.get(call.function)
        if name is None:
            known = suggestion(self._session, self._context, call.function)
            results[call.id] = NameError(f"no tool is called {call.function!r}; {known}")
            return
        try:
            results[call.id] = await self._call(name, call.arguments)
        except (McpdError, BadFrame, _ToolFailed) as error:
            results[call.id] = error
        self._done += 1
        if token := self._request.progress_token:
            progress = {"progressToken": Raw(token), "progress": self._done, "message": name}
            frame = wire.notification("notifications/progress", msgspec.json.encode(progress))
            self._request.responder.send(frame)

    async def _call(self, name: str, arguments: Mapping[str, object]) -> object:
        """Raises McpdError, BadFrame, _ToolFailed."""
        reply, key = _CapturedResponse(self._request.responder), next(self._keys)
        params = msgspec.json.encode({"name": name, "arguments": arguments})
        request = ClientRequest(
            key, "tools/call", params, reply, self._context, has_no_meta=True, keeps_whole=True
        )
        self._session.forward(request, self._session.view.route("tools/call", params))
        try:
            await reply.done.wait()
        except trio.Cancelled:
            self._session.cancel(key, "the code that called it was cancelled")
            raise
        return _value(reply.frame)


class _ToolFailed(Exception):
    """A tool reports a failure, or its server an error."""


class _CapturedResponse:
    """The Responder of a call in the code. Log messages go to the client."""

    def __init__(self, outer: Responder) -> None:
        self.send = outer.send
        self.frame = b""
        self.done = trio.Event()

    def finish(self, frame: bytes, code: int = 0) -> None:
        self.frame = frame
        self.done.set()

    def drop(self) -> None:
        self.done.set()


def _value(frame: bytes) -> object:
    """Return what a call returns in the code. Raises _ToolFailed, BadFrame."""
    if not frame:
        raise _ToolFailed("the call was cancelled")
    if len(frame) > _MAX_RESULT:
        raise _ToolFailed(f"the result has {len(frame)} bytes; code can use at most {_MAX_RESULT}")
    message = wire.parse(frame)
    if message.error:
        raise _ToolFailed(wire.string_or(wire.members(message.error), "message") or "the call failed")
    result = wire.members(message.result)
    structured = result.get("structuredContent")
    blocks = [wire.mapping(each) for each in wire.items(result.get("content", b"[]"))]
    text = "\n".join(str(each.get("text")) for each in blocks if each.get("type") == "text")
    if bytes(result.get("isError", b"")) == b"true":
        raise _ToolFailed(text or "the tool failed without an error message")
    if structured is not None:
        return value_in_code(text, wire.value(structured, max_bytes=_MAX_RESULT))
    return value_in_code(text, None) if text else blocks or text


RUN_CODE = BuiltInTool(
    name="run_code",
    describe=_describe,
    arguments={"code": {"type": "string", "description": "Python"}},
    required=("code",),
    handler=_start,
    is_read_only=False,
)

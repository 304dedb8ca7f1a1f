"""Calls of the control API: tools (`mcpd/call`), prompts and resources.

A tool call runs in the caller's step, without a task, if the server is connected and the tool's schemas are
compiled; that is nearly every call. Prompts and resources are rare, and simply wait.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from typing import Annotated

import msgspec
import trio
from msgspec import UNSET, Meta, Raw, UnsetType

from mcpd.daemon_operations import Operations
from mcpd.gateway import turn_queue
from mcpd.gateway.call_tasks import Spawn, to_mcpd_error
from mcpd.gateway.call_timeouts import set_control_call_timeouts
from mcpd.gateway.schema_validation import MAX_CHECKED, ToolSchemas, compile_schemas
from mcpd.model import codec
from mcpd.model.errors import (
    InvalidArguments,
    McpdError,
    Problem,
    UnknownPrompt,
    UnknownResource,
    UnknownTool,
    UpstreamRefused,
)
from mcpd.model.text import shorten
from mcpd.model.tool_result import normalize_result
from mcpd.protocol import mcp_tasks
from mcpd.protocol.input_rounds import no_client, request_with_input, result_type
from mcpd.protocol.upstream_session import Upstream, to_upstream_error
from mcpd.supervision.catalog_cache import Item, did_you_mean, is_tool_allowed
from mcpd.supervision.managed_server import ManagedServer
from mcpd.support.pipe_reader import traffic
from mcpd.transports.outgoing_request import Exchange
from mcpd.wire import message as wire
from mcpd.wire.message import ABSENT, BadFrame, Message
from mcpd.wire.request_meta import RESERVED_PREFIX


class CallRequest(msgspec.Struct, forbid_unknown_fields=True):
    """`model.features.CallParams`, but with the arguments as bytes, which are forwarded unchanged."""

    server: str
    tool: str
    arguments: Raw = Raw(b"{}")
    timeout: Annotated[float, Meta(gt=0)] | None = None
    raw: bool = False
    meta: dict[str, Raw] | UnsetType = msgspec.field(name="_meta", default=UNSET)

    @property
    def progress_token(self) -> bytes:
        """The token for progress notifications, as JSON; empty if none."""
        return b"" if self.meta is UNSET else bytes(self.meta.get("progressToken", b""))

    def forwarded_meta(self) -> dict[str, Raw]:
        """The members of `_meta` that are meant for the server, such as a trace context (SEP-414)."""
        if self.meta is UNSET:
            return {}
        return {
            name: value
            for name, value in self.meta.items()
            if name != "progressToken" and not name.startswith(RESERVED_PREFIX)
        }


_decode = msgspec.json.Decoder(CallRequest).decode


def read_call(params: Raw) -> CallRequest:
    """Parse the params of `mcpd/call`. Raises InvalidArguments."""
    try:
        request = _decode(bytes(params) or b"{}")
    except (msgspec.MsgspecError, RecursionError) as error:
        raise InvalidArguments(f"mcpd/call: {error}", [Problem("$", str(error))]) from None
    if not bytes(request.arguments).lstrip().startswith(b"{"):
        problem = Problem("$.arguments", "must be an object", "an empty one is {}")
        raise InvalidArguments(f"mcpd/call: {problem}", [problem], server=request.server)
    return request


class ControlCall(Exchange, kw_only=True):
    """One tool call. Exactly one of `on_result` and `on_error` is called, unless it is cancelled."""

    request: CallRequest
    on_result: Callable[[bytes | Raw], None]
    on_error: Callable[[McpdError], None]
    on_progress: Callable[[bytes], None]
    spawn: Callable[[Callable[[], Awaitable[None]]], None]
    """Runs a task until the caller leaves; an McpdError it raises fails the call."""
    spawn_detached: Spawn
    """Runs a task that outlives the caller."""
    holds_turn: bool = False
    """Whether it is in its server's turn queue."""
    as_task: bool = False
    status_reports: int = 0
    """Number of status messages received for its task."""
    server: ManagedServer | None = None
    upstream: Upstream | None = None
    schemas: ToolSchemas = ToolSchemas()
    core: Operations | None = None

    def try_send(self, core: Operations) -> bool:
        """Send the call without waiting. Returns False if something must be waited for first.

        Raises UnknownServer, UnknownTool, InvalidArguments, Overloaded, LinkLost; nothing was sent then.
        """
        self.core = core
        server = core.supervisor.get(self.request.server)
        upstream = server.upstream
        if upstream is None:
            return False
        try:
            tool = _find_tool(server, self.request.tool)
        except UnknownTool:
            if server.lists_expired:  # the tool may exist by now
                return False
            raise
        schemas = server.validators.get(self.request.tool)
        if tool is not None and not isinstance(schemas, ToolSchemas):
            return False
        self._send(server, upstream, schemas if isinstance(schemas, ToolSchemas) else ToolSchemas())
        return True

    async def prepare_and_send(self, core: Operations) -> None:
        """Wait for the server, compile the schemas, send. Raises as `try_send`, and NotReady."""
        self.core = core
        server = core.supervisor.get(self.request.server)
        if server.upstream is None:
            await core.wait_ready(server)
        try:
            tool = _find_tool(server, self.request.tool)
        except UnknownTool:
            if not server.lists_expired:
                raise
            await server.refresh_expired_lists()
            tool = _find_tool(server, self.request.tool)
        schemas = ToolSchemas() if tool is None else await _compiled_schemas(server, tool)
        upstream = server.upstream
        if upstream is None:  # the connection ended while we compiled
            raise core.not_ready_error(server)
        await trio.lowlevel.checkpoint_if_cancelled()  # may have come with what we waited for
        self._send(server, upstream, schemas)

    def cancel(self, reason: str) -> None:
        if self.upstream is not None:
            self.upstream.link.cancel(self, reason)
        self._release_turn()

    def _send(self, server: ManagedServer, upstream: Upstream, schemas: ToolSchemas) -> None:
        request = self.request
        if schemas.input is not None:
            _check_arguments(request, schemas)
        self.label = f"tool {request.tool!r}"
        set_control_call_timeouts(self, server.spec.timeouts, request.tool, request.timeout)
        self.server, self.upstream, self.schemas = server, upstream, schemas
        self.meta = upstream.default_meta
        params = b'{"name":%b,"arguments":%b}' % (msgspec.json.encode(request.tool), request.arguments)
        if passed_on := request.forwarded_meta():
            params = b'%b,"_meta":%b}' % (params[:-1], msgspec.json.encode(passed_on))
        if schemas.requires_task and upstream.accepts_task_param:
            self.as_task = True
            params = b'%b,"task":{"ttl":%d}}' % (params[:-1], self.total_timeout * 1000)
        if not turn_queue.is_exclusive(server, "tools/call", request.tool):
            upstream.submit(self, "tools/call", params)
        else:
            self.holds_turn = True
            if turn_queue.wait_for_turn(
                server, self, self, lambda: self._start_turn(params), self.spawn_detached
            ):
                self._submit_exclusive(upstream, params)

    def _start_turn(self, params: bytes) -> None:
        """Submit the call now that its turn has come."""
        assert self.server is not None
        try:
            if self.server.upstream is None:
                raise self.server.not_ready()
            self.upstream = self.server.upstream
            self.meta = self.upstream.default_meta
            self._submit_exclusive(self.upstream, params)
        except Exception as error:
            self._release_turn()
            self.on_error(to_mcpd_error(error, self.server.spec.name))

    def _submit_exclusive(self, upstream: Upstream, params: bytes) -> None:
        try:
            upstream.submit(self, "tools/call", params)
        except Exception:
            self._release_turn()
            raise

    def _release_turn(self) -> None:
        if self.holds_turn and self.server is not None:
            self.holds_turn = False
            turn_queue.turn_queue(self.server).release(self)

    def answered(self, message: Message) -> None:
        assert self.server is not None
        assert self.upstream is not None
        traffic.more_expected = True
        self._release_turn()
        if message.error is not ABSENT:
            self.on_error(to_upstream_error(self.server.spec.name, message))
        elif self.as_task or (self.upstream.era == "modern" and result_type(message.result) != "complete"):
            self.spawn(lambda: self._continue(message.result))
        else:
            self._finish(message.result)

    async def _continue(self, first: Raw) -> None:
        """Finish a call whose first result was a task or a request for input."""
        core, server = self.core, self.server
        assert core is not None
        assert server is not None
        assert self.upstream is not None
        upstream, request, name = self.upstream, self.request, self.upstream.link.name
        remaining = self.hard_deadline - trio.current_time()
        if self.as_task or result_type(first) == "task":
            self._finish(
                await mcp_tasks.await_task(
                    upstream,
                    first,
                    no_client(name, self.label),
                    what=self.label,
                    timeout=self.idle_timeout,
                    limit=remaining,
                    on_status=self._report_task_status,
                    next_connection=lambda: core.wait_reconnected(server),
                )
            )
            return
        params: dict[str, object] = {"name": request.tool, "arguments": request.arguments}
        if passed_on := request.forwarded_meta():
            params["_meta"] = passed_on
        self._finish(
            await request_with_input(
                upstream,
                "tools/call",
                params,
                no_client(name, self.label),
                timeout=min(self.idle_timeout, remaining),
                meta=self.meta,
                first=first,
            )
        )

    def _report_task_status(self, problem_text: str) -> None:
        """Report a task's status message as progress: one more step, with this message."""
        self.status_reports += 1
        report = {"progressToken": Raw(self.key), "progress": self.status_reports, "message": problem_text}
        self.on_progress(msgspec.json.encode(report))

    def _finish(self, result: Raw) -> None:
        if self.request.raw:
            self.on_result(result)
        else:
            notes = [*self.schemas.notes, *self._check_output(result)]
            self.on_result(codec.encode(normalize_result(result, notes)))

    def _check_output(self, raw: Raw) -> list[str]:
        """Return how the result violates the tool's output schema; failed results are not checked."""
        if self.schemas.output is None:
            return []
        if len(raw) > MAX_CHECKED:
            return [f"the result was not checked against the tool's outputSchema: over {MAX_CHECKED} bytes"]
        try:
            result = wire.value(raw)
        except BadFrame as error:
            return [f"the result was not checked against the tool's outputSchema: {error}"]
        if not isinstance(result, dict) or result.get("isError") is True:
            return []
        problems = self.schemas.check_structured_content(result.get("structuredContent"))
        return [f"the result violates the tool's outputSchema: {problem}" for problem in problems]

    def progressed(self, params: Raw) -> None:
        self.on_progress(bytes(params))

    def failed(self, error: McpdError) -> None:
        self._release_turn()
        self.on_error(error)


async def _compiled_schemas(server: ManagedServer, tool: Item) -> ToolSchemas:
    """Return the tool's compiled schemas. Concurrent callers share one compilation."""
    while not isinstance(known := server.validators.get(tool.name), ToolSchemas):
        if isinstance(known, trio.Event):
            await known.wait()
            continue
        finished = server.validators[tool.name] = trio.Event()
        try:
            compiled = await compile_schemas(tool.raw)
        finally:
            # False if the list was fetched again meanwhile.
            is_current = server.validators.get(tool.name) is finished
            if is_current:
                del server.validators[tool.name]
            finished.set()
        if is_current:
            server.validators[tool.name] = compiled
        return compiled
    return known


def _find_tool(server: ManagedServer, name: str) -> Item | None:
    """Return the tool, or None if the list is unavailable. Raises UnknownTool."""
    if not is_tool_allowed(server.spec, name):
        raise UnknownTool(f"{server.spec.name}: the definition excludes {name!r}", server=server.spec.name)
    catalog = server.catalog
    if catalog is None or (not catalog.tools and catalog.warnings):
        return None  # the list could not be fetched: let the server decide
    tool = catalog.tool(name)
    if tool is None:
        hint = did_you_mean(name, catalog.tools) or f"`mcpctl list-tools {server.spec.name}` lists them"
        raise UnknownTool(f"{server.spec.name} has no tool {name!r}; {hint}", server=server.spec.name)
    return tool


def _check_arguments(request: CallRequest, schemas: ToolSchemas) -> None:
    if len(request.arguments) > MAX_CHECKED:
        return  # parsing it would block the event loop
    try:
        arguments = wire.value(request.arguments)
    except BadFrame:
        return  # valid JSON that Python cannot hold (a number like 1E+400): let the server decide
    problems = schemas.check_arguments(arguments)
    if problems:
        raise InvalidArguments(
            f"{request.tool}@{request.server} was not called: its arguments violate the tool's schema: "
            + "; ".join(map(str, problems)),
            problems,
            server=request.server,
        )


_RESOURCE_NOT_FOUND = (-32002, -32602)
"""Error codes for an unknown resource, until 2025-11-25 and since."""


async def get_prompt(core: Operations, name: str, prompt: str, arguments: Mapping[str, str]) -> Raw:
    """Send prompts/get. Raises UnknownPrompt, InvalidArguments, and as `Operations.send_request`."""
    server = core.supervisor.get(name)
    upstream = await core.wait_ready(server)
    known = _find_prompt(server, prompt)
    if known is None and server.lists_expired:  # the prompt may exist by now
        await server.refresh_expired_lists()
        known = _find_prompt(server, prompt)
    catalog = server.catalog
    if known is not None:
        _check_prompt_arguments(server, known, arguments)
    elif upstream.has("prompts") and catalog is not None and (catalog.prompts or not catalog.warnings):
        raise UnknownPrompt(
            f"{name} has no prompt {shorten(prompt, 80)!r}; "
            + (did_you_mean(prompt, catalog.prompts) or f"`mcpctl prompts {name}` lists them"),
            server=name,
        )
    return await core.send_request(name, "prompts", "prompts/get", {"name": prompt, "arguments": arguments})


async def read_resource(core: Operations, name: str, uri: str) -> Raw:
    """Return the result of resources/read. Raises UnknownResource, and as `Operations.send_request`.

    The server is always asked, because resources need not be listed to exist.
    """
    try:
        return await core.send_request(name, "resources", "resources/read", {"uri": uri})
    except UpstreamRefused as error:
        catalog = core.supervisor.get(name).catalog
        listed = () if catalog is None else catalog.resources
        if error.upstream_code not in _RESOURCE_NOT_FOUND or any(item.name == uri for item in listed):
            raise
        advice = did_you_mean(uri, listed) or f"`mcpctl resources {name}` lists its resources"
        raise UnknownResource(f"{error.message}; {advice}", uri, server=name) from None


def _find_prompt(server: ManagedServer, prompt: str) -> Item | None:
    catalog = server.catalog
    return None if catalog is None else next((item for item in catalog.prompts if item.name == prompt), None)


def _check_prompt_arguments(server: ManagedServer, prompt: Item, arguments: Mapping[str, str]) -> None:
    """Raise InvalidArguments if required arguments are missing."""
    missing = [name for name in required_arguments(prompt) if name not in arguments]
    if missing:
        problem_text = "is a required argument"
        problems = [Problem("$.arguments", f'"{shorten(name, 80)}" {problem_text}') for name in missing]
        raise InvalidArguments(
            f"{prompt.name}@{server.spec.name} was not requested: arguments are missing: "
            + "; ".join(map(str, problems)),
            problems,
            server=server.spec.name,
        )


def required_arguments(prompt: Item) -> list[str]:
    """Return the names of the prompt's required arguments, as far as its declaration is readable."""
    try:
        declared = wire.mapping(Raw(prompt.raw)).get("arguments")
    except BadFrame:
        return []
    every = declared if isinstance(declared, list) else []
    return [
        argument["name"]
        for argument in every
        if isinstance(argument, dict)
        and argument.get("required") is True
        and isinstance(argument.get("name"), str)
    ]

"""The stage that checks a tool's arguments and structured results against its schemas."""

from __future__ import annotations

from collections.abc import Awaitable, Sequence

import attrs
import msgspec
import trio
from msgspec import Raw

from mcpd.calls.call import Call, Scope
from mcpd.calls.schema_validation import MAX_CHECKED, ToolSchemas, compile_schemas
from mcpd.config.settings import Settings
from mcpd.model.errors import SchemaViolation
from mcpd.supervision.catalog_cache import Item
from mcpd.supervision.managed_server import ManagedServer
from mcpd.wire import message as wire
from mcpd.wire.message import BadFrame


class ValidationStageFactory:
    """By default, calls through the control API are checked, and those of MCP clients are not: for them the
    server's own check decides. A profile's `validate` takes precedence over a definition's, and that over the
    one in the settings."""

    def is_enabled(self, scope: Scope, server: ManagedServer, settings: Settings) -> bool:
        profile = None if scope.profile is None else scope.profile.validate
        for chosen in (profile, server.spec.validate, settings.validate):
            if chosen is not None:
                return chosen
        return scope.is_control

    def make(self, scope: Scope, server: ManagedServer, method: str, name: str) -> ValidationStage | None:
        item = server.catalog.tool(name) if method == "tools/call" and server.catalog is not None else None
        return None if item is None else ValidationStage(server, item, scope.is_control)


@attrs.define(eq=False)
class ValidationStage:
    """Refuses invalid arguments. An invalid result reaches the client as well, with what is wrong with it."""

    server: ManagedServer
    tool: Item
    is_control: bool

    @property
    def _schemas(self) -> ToolSchemas | None:
        known = self.server.validators.get(self.tool.name)
        return known if isinstance(known, ToolSchemas) else None

    def before(self, call: Call) -> Awaitable[None] | None:
        """Raises SchemaViolation; the server has seen nothing then."""
        schemas = self._schemas
        if schemas is None:
            return self._compile_and_check(call)
        _check_arguments(call, schemas)
        return None

    async def _compile_and_check(self, call: Call) -> None:
        _check_arguments(call, await compiled_schemas(self.server, self.tool))

    def after(self, call: Call, result: Raw | bytes) -> Raw | bytes:
        """For the control API, problems become notes of the call; for an MCP client, a failed result."""
        schemas = self._schemas
        if schemas is None:
            return result
        skipped, violations = _check_result(schemas, result)
        if self.is_control:
            call.notes = (*call.notes, *schemas.notes, *skipped, *violations)
        elif violations:
            return _as_failed(result, violations)
        return result


async def compiled_schemas(server: ManagedServer, tool: Item) -> ToolSchemas:
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


def _check_arguments(call: Call, schemas: ToolSchemas) -> None:
    if schemas.input is None:
        return
    arguments = wire.members(call.params).get("arguments", Raw(b"{}"))
    if len(arguments) > MAX_CHECKED:
        return  # parsing it would block the event loop
    try:
        value = wire.value(arguments)
    except BadFrame:
        return  # valid JSON that Python cannot hold (a number like 1E+400): let the server decide
    problems = schemas.check_arguments(value)
    if problems:
        name = call.server.spec.name
        raise SchemaViolation(
            f"{call.tool}@{name} was not called: its arguments violate the tool's schema: "
            + "; ".join(map(str, problems)),
            problems,
            server=name,
        )


def _check_result(schemas: ToolSchemas, raw: Raw | bytes) -> tuple[list[str], list[str]]:
    """Return why the result was not checked, and how it violates the tool's output schema.

    Failed results need not match.
    """
    if schemas.output is None:
        return [], []
    if len(raw) > MAX_CHECKED:
        return [f"the result was not checked against the tool's outputSchema: over {MAX_CHECKED} bytes"], []
    try:
        result = wire.value(raw)
    except BadFrame as error:
        return [f"the result was not checked against the tool's outputSchema: {error}"], []
    if not isinstance(result, dict) or result.get("isError") is True:
        return [], []
    problems = schemas.check_structured_content(result.get("structuredContent"))
    return [], [f"the result violates the tool's outputSchema: {problem}" for problem in problems]


def _as_failed(result: Raw | bytes, violations: Sequence[str]) -> bytes:
    """Return the result as a failed one: the violations, and the same content.

    The invalid `structuredContent` is left out, because some clients raise if it does not match the schema.
    """
    members = wire.members(result)
    try:
        content = msgspec.json.decode(members.get("content", b"[]"), type=list[Raw])
    except msgspec.MsgspecError:
        return bytes(result)  # the client sees what the server sent
    members.pop("structuredContent", None)
    texts = [{"type": "text", "text": text} for text in violations]
    return msgspec.json.encode({**members, "content": [*texts, *content], "isError": True})

"""The stage that checks a tool's arguments and structured results against its schemas."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from functools import partial

import msgspec
import trio
from msgspec import Raw

from mcpd.calls.call import Call, Scope, StageWork
from mcpd.calls.schema_validation import Findings, ToolSchemas, compile_schemas
from mcpd.config.settings import Settings
from mcpd.model.errors import SchemaViolation
from mcpd.supervision.catalog import Item
from mcpd.supervision.managed_server import ManagedServer
from mcpd.wire import message as wire
from mcpd.wire.message import BadFrame


class ValidationStageFactory:
    """By default, calls through the control API are checked, and those of MCP clients are not: for them the
    server's own check decides. A profile's `validate` takes precedence over a definition's, and that over the
    one in the settings."""

    def is_enabled(self, scope: Scope, server: ManagedServer, method: str, settings: Settings) -> bool:
        profile = None if scope.profile is None else scope.profile.validate
        for chosen in (profile, server.spec.validate, settings.validate):
            if chosen is not None:
                return chosen
        return scope.is_control

    def make(self, scope: Scope, server: ManagedServer, method: str, name: str) -> ValidationStage | None:
        item = server.catalog.tool(name) if method == "tools/call" and server.catalog is not None else None
        return None if item is None else ValidationStage(server, item, scope.is_control)


class ValidationStage(msgspec.Struct, eq=False):
    """Refuses invalid arguments. An invalid result reaches the client as well, with what is wrong with it.

    Nearly all checks are done at once; see `schema_validation`.
    """

    server: ManagedServer
    tool: Item
    is_control: bool

    @property
    def _schemas(self) -> ToolSchemas | None:
        known = self.server.validators.get(self.tool.name)
        return known if isinstance(known, ToolSchemas) else None

    def before(self, call: Call) -> StageWork | None:
        """Raises SchemaViolation; the server has seen nothing then."""
        schemas = self._schemas
        findings = None if schemas is None else schemas.check_arguments_now(_arguments(call))
        if findings is None:
            return partial(self._check_arguments, call)
        _refuse_invalid(call, findings)
        return None

    async def _check_arguments(self, call: Call) -> None:
        schemas = await compiled_schemas(self.server, self.tool)
        _refuse_invalid(call, await schemas.check_arguments(_arguments(call)))

    def after(self, call: Call, result: Raw | bytes) -> Raw | bytes | Callable[[], Awaitable[Raw | bytes]]:
        """For the control API, problems become notes of the call; for an MCP client, a failed result."""
        schemas = self._schemas
        if schemas is None:
            return result
        findings = schemas.check_result_now(result)
        if findings is None:
            return partial(self._check_result, call, schemas, result)
        return self._passed_on(call, schemas, result, findings)

    async def _check_result(self, call: Call, schemas: ToolSchemas, result: Raw | bytes) -> Raw | bytes:
        return self._passed_on(call, schemas, result, await schemas.check_result(result))

    def _passed_on(
        self, call: Call, schemas: ToolSchemas, result: Raw | bytes, findings: Findings
    ) -> Raw | bytes:
        violations = [f"the result violates the tool's outputSchema: {each}" for each in findings.problems]
        if self.is_control:
            notes = (findings.note,) if findings.note else ()
            call.notes = (*schemas.notes, *call.notes, *notes, *violations)
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


def _arguments(call: Call) -> Raw:
    return wire.members(call.params).get("arguments", Raw(b"{}"))


def _refuse_invalid(call: Call, findings: Findings) -> None:
    if findings.problems:
        name = call.server.spec.name
        raise SchemaViolation(
            f"{call.tool}@{name} was not called: its arguments violate the tool's schema: "
            + "; ".join(map(str, findings.problems)),
            [*findings.problems],
            server=name,
        )
    if findings.note:
        call.notes = (*call.notes, findings.note)


def _as_failed(result: Raw | bytes, violations: Sequence[str]) -> bytes:
    """Return the result as a failed one: the violations, and the same content.

    The invalid `structuredContent` is left out, because some clients raise if it does not match the schema.
    """
    members = wire.members(result)
    try:
        content = wire.items(members.get("content", b"[]"))
    except BadFrame:
        return bytes(result)  # the client sees what the server sent
    members.pop("structuredContent", None)
    texts = [{"type": "text", "text": text} for text in violations]
    return msgspec.json.encode({**members, "content": [*texts, *content], "isError": True})

"""The stage that checks a tool's arguments and structured results against its schemas.

The schemas are untrusted: they may be huge, refer to files or URLs, or keep a validator busy for years. So a
process with limits checks (`support.schema_checker`), and nothing is ever fetched. What cannot be checked
passes with a note, and the server's own validation decides.
"""

from __future__ import annotations

import hashlib
from collections.abc import Awaitable, Callable, Sequence
from functools import partial

import attrs
import msgspec
from msgspec import Raw

from mcpd.calls.call import NOTES, Call, Scope, Stage, StageWork
from mcpd.calls.schema_checker import schema_checker
from mcpd.config.settings import Settings
from mcpd.model.errors import Problem, SchemaViolation
from mcpd.model.text import shorten
from mcpd.supervision.catalog import Item
from mcpd.supervision.managed_server import ManagedServer
from mcpd.wire import message as wire
from mcpd.wire.message import BadFrame

MAX_SCHEMA = 1024 * 1024
MAX_CHECKED = 1024 * 1024
"""Larger arguments and results are not checked."""
_MAX_TOOL = 2 * MAX_SCHEMA
"""A larger definition of a tool is not read at all."""


class Findings(msgspec.Struct, frozen=True):
    """The result of a check."""

    problems: tuple[Problem, ...] = ()
    note: str = ""
    """Why it was not checked; empty if it was."""


class ToolSchema(msgspec.Struct, frozen=True, eq=False):
    """The `inputSchema` or `outputSchema` of a tool."""

    name: str
    subject: str
    """What it describes, as the start of a sentence."""
    root: str
    """The JSON path of what it describes."""
    source: Raw = Raw()
    """A view of the tool's definition, not a copy."""
    digest: bytes = b""
    obstacle: str = ""
    """Why it cannot be used; empty if it can be."""

    async def check(self, server: str, value: Raw | bytes) -> Findings:
        if self.obstacle:
            return self._not_checked(self.obstacle)
        if len(value) > MAX_CHECKED:
            return self._not_checked(f"over {MAX_CHECKED} bytes")
        answer = await schema_checker(server).check(server, self.digest, bytes(self.source), bytes(value))
        if answer.failure:
            return self._not_checked(shorten(answer.failure))
        return Findings(
            tuple(Problem(self.root + path, shorten(text, 300)) for path, text in answer.problems)
        )

    def _not_checked(self, reason: str) -> Findings:
        return Findings(note=f"{self.subject} not checked against the tool's {self.name}: {reason}")


_ARGUMENTS = ToolSchema("inputSchema", "the arguments were", "$.arguments")
_RESULT = ToolSchema("outputSchema", "the result was", "$.structuredContent")


def read_schemas(tool: bytes) -> tuple[ToolSchema | None, ToolSchema | None]:
    """Return the schemas of a tool's arguments and results; None for one that it does not have."""
    obstacle, members = f"the tool's definition is larger than {_MAX_TOOL} bytes", dict[str, Raw]()
    try:
        if len(tool) <= _MAX_TOOL:
            obstacle, members = "", wire.members(tool)
    except BadFrame as error:
        obstacle = str(error)
    return _read(_ARGUMENTS, members, obstacle), _read(_RESULT, members, obstacle)


def _read(kind: ToolSchema, members: dict[str, Raw], obstacle: str) -> ToolSchema | None:
    source = members.get(kind.name)
    if source is None:
        return msgspec.structs.replace(kind, obstacle=obstacle) if obstacle else None
    if len(source) > MAX_SCHEMA:
        return msgspec.structs.replace(kind, obstacle=f"the schema is larger than {MAX_SCHEMA} bytes")
    digest = hashlib.blake2b(bytes(source), digest_size=16).digest()
    return msgspec.structs.replace(kind, source=source, digest=digest)


class ValidationStageFactory:
    """By default, calls through the control API are checked, and those of MCP clients are not: for them the
    server's own check decides. A profile's `validate` takes precedence over a definition's, and that over the
    one in the settings."""

    is_per_tool = True

    def is_enabled(self, scope: Scope, server: ManagedServer, method: str, settings: Settings) -> bool:
        profile = None if scope.profile is None else scope.profile.validate
        for chosen in (profile, server.spec.validate, settings.validate):
            if chosen is not None:
                return chosen
        return scope.is_control

    def make(self, scope: Scope, server: ManagedServer, method: str, name: str) -> ValidationStage | None:
        item = server.catalog.tool(name) if method == "tools/call" and server.catalog is not None else None
        return None if item is None else ValidationStage(item, scope.is_control)


@attrs.define(eq=False)
class ValidationStage(Stage):
    """Refuses invalid arguments. An invalid result reaches the client as well, with what is wrong with it."""

    tool: Item
    is_control: bool
    _known: tuple[ToolSchema | None, ToolSchema | None] | None = attrs.field(default=None, init=False)

    @property
    def _schemas(self) -> tuple[ToolSchema | None, ToolSchema | None]:
        if self._known is None:  # few of a server's tools are ever called
            self._known = read_schemas(self.tool.raw)
        return self._known

    def before(self, call: Call) -> StageWork | None:
        """The work raises SchemaViolation; the server has seen nothing then."""
        schema = self._schemas[0]
        return None if schema is None else partial(self._check_arguments, call, schema)

    async def _check_arguments(self, call: Call, schema: ToolSchema) -> None:
        findings = await schema.check(
            call.server.spec.name, wire.members(call.params).get("arguments", Raw(b"{}"))
        )
        if findings.problems:
            name = call.server.configured_name
            raise SchemaViolation(
                f"{call.tool}@{name} was not called: its arguments violate the tool's schema: "
                + "; ".join(map(str, findings.problems)),
                [*findings.problems],
                server=name,
            )
        if findings.note:
            add_notes(call, findings.note)

    def after(self, call: Call, result: Raw | bytes) -> Raw | bytes | Callable[[], Awaitable[Raw | bytes]]:
        schema = self._schemas[1]
        return result if schema is None else partial(self._check_result, call, schema, result)

    async def _check_result(self, call: Call, schema: ToolSchema, result: Raw | bytes) -> Raw | bytes:
        """For the control API, problems become notes of the call; for an MCP client, a failed result."""
        findings = await _check_structured(call.server.spec.name, schema, result)
        violations = [f"the result violates the tool's outputSchema: {each}" for each in findings.problems]
        if self.is_control:
            add_notes(call, *([findings.note] if findings.note else []), *violations)
        elif violations:
            return _as_failed(result, violations)
        return result


def add_notes(call: Call, *notes: str) -> None:
    call.slots[NOTES] = (*(call.slots.get(NOTES) or ()), *notes)


async def _check_structured(server: str, schema: ToolSchema, result: Raw | bytes) -> Findings:
    if len(result) > MAX_CHECKED:
        return await schema.check(server, result)
    members = wire.members_or_empty(result)
    if bytes(members.get("isError", b"")) == b"true":
        return Findings()  # it need not match the schema
    return await schema.check(server, members.get("structuredContent", b"null"))


def _as_failed(result: Raw | bytes, violations: Sequence[str]) -> bytes:
    """Return the result as a failed one: the violations, and the same content.

    The invalid `structuredContent` is left out, because some clients raise if it does not match the schema.
    """
    try:
        members = wire.members(result)
        content = wire.items(members.get("content", b"[]"))
    except BadFrame:
        return bytes(result)  # the client sees what the server sent
    members.pop("structuredContent", None)
    texts = [{"type": "text", "text": text} for text in violations]
    return msgspec.json.encode({**members, "content": [*texts, *content], "isError": True})

"""Validation of arguments and results against a tool's schemas, which are untrusted.

A server's schema may be huge, refer to files or URLs, or keep a validator busy for years. Nothing is ever
fetched; compilation runs in a thread and is bounded, and so is the cost of checking. What cannot be checked
passes with a note, and the server's own validation decides.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Never

import attrs
import trio
from msgspec import Raw

from mcpd.calls.schema_cost import ValidationCost
from mcpd.model.errors import Problem
from mcpd.model.text import shorten
from mcpd.wire import message as wire
from mcpd.wire.message import BadFrame

if TYPE_CHECKING:
    import jsonschema_rs

MAX_SCHEMA = 1024 * 1024
MAX_CHECKED = 1024 * 1024
"""Larger arguments and results are not checked."""
_MAX_PROBLEMS = 10


_BACKTRACK_LIMIT = 10_000
"""Backtracking steps per pattern, about 1 ms; the default of a million takes 70 ms."""


@attrs.frozen
class CompiledSchema:
    """A validator and the cost of using it."""

    validator: jsonschema_rs.Validator
    cost: ValidationCost


@attrs.frozen
class ToolSchemas:
    """One tool's compiled schemas; None accepts everything."""

    input: CompiledSchema | None = None
    output: CompiledSchema | None = None
    notes: tuple[str, ...] = ()
    """Why a schema is not checked."""
    requires_task: bool = False
    """Whether the tool can only be called as a task (`execution.taskSupport`, 2025-11-25)."""

    def check_arguments(self, arguments: object) -> list[Problem]:
        return _problems(self.input, arguments, "$.arguments")

    def check_structured_content(self, data: object) -> list[Problem]:
        return _problems(self.output, data, "$.structuredContent")


async def compile_schemas(tool: bytes) -> ToolSchemas:
    """Compile a tool's schemas. Never raises, neither for a bad tool nor for a lack of threads."""
    try:
        return await trio.to_thread.run_sync(_compile_both, tool)
    except RuntimeError as error:
        return ToolSchemas(notes=(f"its schemas are not checked here: {error}",))


def _compile_both(tool: bytes) -> ToolSchemas:
    members = wire.members(tool)
    notes: list[str] = []
    compiled = [_compile(members.get(name), name, notes) for name in ("inputSchema", "outputSchema")]
    return ToolSchemas(compiled[0], compiled[1], tuple(notes), _requires_task(members.get("execution")))


def _requires_task(execution: Raw | None) -> bool:
    try:
        declared = {} if execution is None else wire.value(execution)
    except BadFrame:
        return False
    return isinstance(declared, dict) and declared.get("taskSupport") == "required"


def _compile(raw: Raw | None, name: str, notes: list[str]) -> CompiledSchema | None:
    if raw is None:
        return None
    data = bytes(raw)
    if len(data) > MAX_SCHEMA:
        notes.append(f"its {name} is larger than {MAX_SCHEMA} bytes and is not checked here")
        return None
    try:
        import jsonschema_rs  # 4 MB, needed only once a tool is called
    except ImportError as error:  # the installed package was replaced or removed while mcpd runs
        notes.append(f"its {name} is not checked here until mcpd is restarted: {error}")
        return None
    try:
        schema = wire.value(data)
        if not isinstance(schema, dict):
            raise BadFrame("it is not an object")
        effort = ValidationCost(schema)
        validator: jsonschema_rs.Validator = jsonschema_rs.validator_for(
            schema,
            retriever=_fetch_nothing,
            pattern_options=jsonschema_rs.FancyRegexOptions(backtrack_limit=_BACKTRACK_LIMIT),
        )
    except (BadFrame, ValueError, jsonschema_rs.ValidationError) as error:
        notes.append(f"its {name} cannot be used and is not checked here: {shorten(str(error))}")
        return None
    return CompiledSchema(validator, effort)


def _fetch_nothing(uri: str) -> Never:
    raise ValueError(f"refers to {uri}, but mcpd does not fetch schemas")


def _problems(schema: CompiledSchema | None, instance: object, root: str) -> list[Problem]:
    if schema is None or not schema.cost.allows(instance):
        return []
    import jsonschema_rs

    unknown = jsonschema_rs.ValidationErrorKind.BacktrackLimitExceeded  # neither a match nor a mismatch
    found = []
    for error in schema.validator.iter_errors(instance):
        if isinstance(error.kind, unknown):
            continue
        path = "".join(f"[{part}]" if isinstance(part, int) else f".{part}" for part in error.instance_path)
        found.append(Problem(root + path, shorten(error.message, 300)))
        if len(found) == _MAX_PROBLEMS:
            break
    return found

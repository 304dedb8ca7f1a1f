"""Validation of arguments and results against a tool's schemas, which are untrusted.

A server's schema may be huge, refer to files or URLs, or keep a validator busy for years. Nothing is ever
fetched. What is certainly cheap, as nearly all schemas and values are, is checked in place; everything else
by `support.schema_checker`, in a process with limits. What cannot be checked passes with a note, and the
server's own validation decides.
"""

from __future__ import annotations

import sys
from collections import OrderedDict
from collections.abc import Sequence
from hashlib import blake2b
from typing import TYPE_CHECKING, Any

import msgspec
import trio
from msgspec import Raw

from mcpd.calls.schema_cost import CHECK_BUDGET, DESCRIBE_BUDGET, SchemaTooExpensive, ValidationCost
from mcpd.model.errors import Problem
from mcpd.model.text import shorten
from mcpd.support.schema_checker import schema_checker
from mcpd.support.schema_checker_process import compile_validator, find_problems
from mcpd.wire import message as wire
from mcpd.wire.message import BadFrame

if TYPE_CHECKING:
    import jsonschema_rs

MAX_SCHEMA = 1024 * 1024
MAX_CHECKED = 1024 * 1024
"""Larger arguments and results are not checked."""
_MAX_TOOL = 4 * MAX_SCHEMA
"""A larger definition of a tool is not read at all."""
_MAX_SCHEMA_IN_PLACE, _MAX_VALUE_IN_PLACE = 64 * 1024, 32 * 1024
"""Larger ones are left to the process."""
_PATTERN_SIZE, _PATTERN_CACHE = 256 * 1024, 64 * 1024
"""Bytes of a pattern that is compiled in place. Reaching the limit takes 1.5 ms."""
_MEMORY_OF_ALL = 16 * 1024 * 1024
_MEMORY_PER_BYTE, _MEMORY_PER_MICROSECOND = 4, 250
"""What a compiled schema takes, for its size and for the time of compiling it: 20 `\\p{L}` take 1.3 MiB."""


class Findings(msgspec.Struct, frozen=True):
    """The result of a check."""

    problems: tuple[Problem, ...] = ()
    note: str = ""
    """Why it was not checked; empty if it was."""


class ToolSchema(msgspec.Struct, frozen=True, eq=False):
    """One usable schema of a tool. The validator is compiled when it is needed, and kept while it is used."""

    name: str
    """`inputSchema` or `outputSchema`."""
    source: Raw
    """A view of the tool's definition, not a copy."""
    digest: bytes
    cost: ValidationCost | None
    """None if it is always left to the process."""

    def check_now(self, value: Raw | bytes) -> list[tuple[str, str]] | None:
        """Return the problems of a value, or None if it has to be left to the process. Takes 10 ms at most.

        Raises BadFrame.
        """
        if self.cost is None or len(value) > _MAX_VALUE_IN_PLACE:
            return None
        decoded = wire.value(value)
        steps, most_problems = self.cost.of(decoded)
        if steps > CHECK_BUDGET:
            return None
        validator = _validators.get(self)
        if validator.is_valid(decoded):
            return []
        return None if most_problems > DESCRIBE_BUDGET else find_problems(validator, decoded)


class _Validators:
    """The validators used last, of all servers, as far as they fit into _MEMORY_OF_ALL."""

    def __init__(self) -> None:
        self._kept: OrderedDict[bytes, tuple[jsonschema_rs.Validator, int]] = OrderedDict()
        self._memory = 0

    def get(self, schema: ToolSchema) -> jsonschema_rs.Validator:
        """Return the validator of a schema that has been compiled in place before."""
        kept = self._kept.get(schema.digest)
        if kept is not None:
            self._kept.move_to_end(schema.digest)
            return kept[0]
        assert schema.cost is not None
        return self.compile(schema.digest, wire.mapping(schema.source), len(schema.source), schema.cost)

    def compile(
        self, digest: bytes, schema: dict[str, Any], size: int, cost: ValidationCost
    ) -> jsonschema_rs.Validator:
        """Raises as `compile_validator`."""
        validator = compile_validator(schema, pattern_size=_PATTERN_SIZE, pattern_cache=_PATTERN_CACHE)
        memory = _MEMORY_PER_BYTE * size + int(_MEMORY_PER_MICROSECOND * cost.compile_time)
        if digest not in self._kept:
            self._kept[digest] = validator, memory
            self._memory += memory
        while self._memory > _MEMORY_OF_ALL:
            self._memory -= self._kept.popitem(last=False)[1][1]
        return validator


_validators = _Validators()


class ToolSchemas(msgspec.Struct, frozen=True):
    """One tool's usable schemas; None accepts everything.

    Each check exists twice: the first answers at once or, with None, not at all; the second always answers,
    but may have to wait for the process.
    """

    input: ToolSchema | None = None
    output: ToolSchema | None = None
    notes: tuple[str, ...] = ()
    """Why a schema is not checked."""

    def check_arguments_now(self, arguments: Raw | bytes) -> Findings | None:
        return _check_now(self.input, arguments, "$.arguments")

    async def check_arguments(self, arguments: Raw | bytes) -> Findings:
        return await _check(self.input, arguments, "$.arguments")

    def check_result_now(self, result: Raw | bytes) -> Findings | None:
        """Check the result of tools/call. Failed results need not match the schema."""
        if self.output is None:
            return Findings()
        data = _structured_content(result)
        return data if isinstance(data, Findings) else _check_now(self.output, data, "$.structuredContent")

    async def check_result(self, result: Raw | bytes) -> Findings:
        data = _structured_content(result)
        return data if isinstance(data, Findings) else await _check(self.output, data, "$.structuredContent")


def _structured_content(result: Raw | bytes) -> Raw | bytes | Findings:
    """Return the data to check, or the findings if there is nothing to check."""
    if len(result) > MAX_CHECKED:
        return Findings(note=_too_large("result"))
    try:
        members = wire.members(result)
    except BadFrame as error:
        return Findings(note=f"the result was not checked against the tool's outputSchema: {error}")
    if bytes(members.get("isError", b"")) == b"true":
        return Findings()
    return members.get("structuredContent", b"null")


def _check_now(schema: ToolSchema | None, value: Raw | bytes, root: str) -> Findings | None:
    if schema is None:
        return Findings()
    if len(value) > MAX_CHECKED:
        return Findings(note=_too_large(_subject(schema)))
    try:
        problems = schema.check_now(value)
    except (BadFrame, ImportError) as error:  # such as a number that Python cannot hold (1E+400)
        return _not_checked(schema, str(error))
    return None if problems is None else Findings(_located(problems, root))


async def _check(schema: ToolSchema | None, value: Raw | bytes, root: str) -> Findings:
    now = _check_now(schema, value, root)
    if now is not None:
        return now
    assert schema is not None
    answer = await schema_checker().check(schema.digest, bytes(schema.source), bytes(value))
    if answer.failure:
        return _not_checked(schema, answer.failure)
    return Findings(_located(answer.problems, root))


def _located(problems: Sequence[tuple[str, str]], root: str) -> tuple[Problem, ...]:
    return tuple(Problem(root + path, shorten(message, 300)) for path, message in problems)


def _subject(schema: ToolSchema) -> str:
    return "result" if schema.name == "outputSchema" else "arguments"


def _too_large(subject: str) -> str:
    schema = "outputSchema" if subject == "result" else "inputSchema"
    verb = "was" if subject == "result" else "were"
    return f"the {subject} {verb} not checked against the tool's {schema}: over {MAX_CHECKED} bytes"


def _not_checked(schema: ToolSchema, reason: str) -> Findings:
    subject = _subject(schema)
    verb = "was" if subject == "result" else "were"
    return Findings(
        note=f"the {subject} {verb} not checked against the tool's {schema.name}: {shorten(reason)}"
    )


async def compile_schemas(tool: bytes) -> ToolSchemas:
    """Compile a tool's schemas. Never raises, not even for a bad tool; never blocks for more than 10 ms."""
    if len(tool) > _MAX_TOOL:
        return ToolSchemas(notes=(f"its definition is larger than {_MAX_TOOL} bytes and is not read here",))
    notes: list[str] = []
    try:
        members = wire.members(tool)
    except BadFrame as error:
        return ToolSchemas(notes=(str(error),))
    compiled = [await _compile(members.get(name), name, notes) for name in ("inputSchema", "outputSchema")]
    return ToolSchemas(compiled[0], compiled[1], tuple(notes))


async def _compile(raw: Raw | None, name: str, notes: list[str]) -> ToolSchema | None:
    """Return the usable schema; or None, with a note unless there is none."""
    if raw is None:
        return None
    if len(raw) > MAX_SCHEMA:
        notes.append(f"its {name} is larger than {MAX_SCHEMA} bytes and is not checked here")
        return None
    digest = blake2b(bytes(raw), digest_size=16).digest()
    try:
        if sys.modules.get("jsonschema_rs") is None:
            await trio.to_thread.run_sync(_load_library)
        cost = _compile_in_place(raw, digest) if len(raw) <= _MAX_SCHEMA_IN_PLACE else None
    except (ImportError, RuntimeError) as error:  # the library was replaced or removed; no thread
        notes.append(f"its {name} is not checked here until mcpd is restarted: {error}")
        return None
    except _Unusable as error:
        notes.append(f"its {name} cannot be used and is not checked here: {shorten(str(error))}")
        return None
    if cost is None:
        answer = await schema_checker().check(digest, bytes(raw), b"")
        if answer.is_final:
            notes.append(f"its {name} cannot be used and is not checked here: {shorten(answer.failure)}")
            return None
    return ToolSchema(name, raw, digest, cost)


class _Unusable(Exception):
    """The schema is invalid."""


def _compile_in_place(source: Raw, digest: bytes) -> ValidationCost | None:
    """Compile a schema if that is cheap. Returns None if it is not; raises _Unusable and ImportError."""
    import jsonschema_rs

    try:
        schema = wire.value(source)
        if not isinstance(schema, dict):
            raise BadFrame("it is not an object")
        cost = ValidationCost(schema)
        _validators.compile(digest, schema, len(source), cost)
    except SchemaTooExpensive:
        return None
    except (BadFrame, ValueError, jsonschema_rs.ValidationError) as error:
        if '"regex"' in str(error):  # perhaps only because of _PATTERN_SIZE
            return None
        raise _Unusable(str(error).partition("\n")[0]) from None
    return cost


def _load_library() -> None:
    """Import the library, which takes 40 ms the first time."""
    import jsonschema_rs  # noqa: F401

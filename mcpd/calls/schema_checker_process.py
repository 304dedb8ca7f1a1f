"""The process that compiles JSON Schemas and checks values against them.

It may use CPU_SECONDS for each step and MEMORY in all, and the kernel kills it if it exceeds either, because
a validator cannot be interrupted. `schema_checker.py` starts it, and writes requests to its standard input:
a header (HEADER), then the schema and the value as JSON. An empty schema is the last one with this digest.
The process answers with lines of JSON: `{"compiled": true}` once it has compiled a schema, and at the end
`{"problems": [[path, message], …]}`, `{"error": message}`, or `{"unknown": true}` if it does not have the
schema any more.
"""

from __future__ import annotations

import fcntl
import json
import os
import resource
import signal
import struct
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any, Never

if TYPE_CHECKING:
    import jsonschema_rs

HEADER = struct.Struct(">16sII")
"""The schema's digest, and the lengths of the schema and of the value."""
CPU_SECONDS = 1.0
MEMORY = 100 * 1024 * 1024
"""Bytes of address space on top of what the interpreter needs."""
_MAX_VALIDATORS = 64

_MAX_PROBLEMS = 10
_MAX_TEXT = 1000
"""Characters of a path or message that are kept."""
_MAX_COUNTED = 1000
"""In a value with more parts, only the first problem is sought: listing all of them takes 60 µs for each."""
_BACKTRACK_LIMIT = 10_000
"""Backtracking steps per pattern, about 1 ms; the default of a million takes 70 ms."""


def compile_validator(schema: dict[str, Any]) -> jsonschema_rs.Validator:
    """Compile a schema. Nothing is fetched.

    Raises ValueError or jsonschema_rs.ValidationError for an invalid schema or one with a pattern that takes
    more than MEMORY.
    """
    import jsonschema_rs

    patterns = jsonschema_rs.FancyRegexOptions(backtrack_limit=_BACKTRACK_LIMIT, size_limit=MEMORY)
    validator: jsonschema_rs.Validator = jsonschema_rs.validator_for(
        schema, retriever=_fetch_nothing, pattern_options=patterns
    )
    return validator


def _fetch_nothing(uri: str) -> Never:
    raise ValueError(f"refers to {uri}, but mcpd does not fetch schemas")


def find_problems(validator: jsonschema_rs.Validator, value: object) -> list[tuple[str, str]]:
    """Return the path and the description of up to ten problems, and only of the first in a large value.

    A path continues that of the value, such as `.name[3]`. What a pattern with too many backtracking steps
    would say is unknown, so that is no problem.
    """
    import jsonschema_rs

    if validator.is_valid(value):
        return []
    unknown = jsonschema_rs.ValidationErrorKind.BacktrackLimitExceeded
    found = []
    for error in validator.iter_errors(value) if _is_small(value) else _first_error(validator, value):
        if isinstance(error.kind, unknown):
            continue
        path = "".join(f"[{part}]" if isinstance(part, int) else f".{part}" for part in error.instance_path)
        found.append((path[:_MAX_TEXT], error.message[:_MAX_TEXT]))
        if len(found) == _MAX_PROBLEMS:
            break
    return found


def _first_error(
    validator: jsonschema_rs.Validator, value: object
) -> Iterator[jsonschema_rs.ValidationError]:
    import jsonschema_rs

    try:
        validator.validate(value)
    except jsonschema_rs.ValidationError as error:
        yield error


def _is_small(value: object) -> bool:
    count, open_values = 0, [value]
    while open_values and count <= _MAX_COUNTED:
        each = open_values.pop()
        count += 1
        if isinstance(each, dict):
            open_values += each.values()
        elif isinstance(each, list):
            open_values += each
    return count <= _MAX_COUNTED


def main() -> None:
    """Answer requests until the end of standard input."""
    _end_with_parent()
    _limit_memory()
    validators: dict[bytes, jsonschema_rs.Validator] = {}
    while len(header := _read(HEADER.size)) == HEADER.size:
        digest, schema_size, value_size = HEADER.unpack(header)
        schema, value = _read(schema_size), _read(value_size)
        try:
            answer = _answer(validators, digest, schema, value)
        except MemoryError:
            os.abort()  # as the library does
        except BaseException as error:  # a panic of the library is no Exception
            answer = {"error": str(error).partition("\n")[0][:_MAX_TEXT]}
        signal.setitimer(signal.ITIMER_PROF, 0)
        _write(answer)


def _answer(
    validators: dict[bytes, jsonschema_rs.Validator], digest: bytes, schema: bytes, value: bytes
) -> dict[str, object]:
    import msgspec  # decodes as the daemon does; Python's own decoder accepts more

    if schema:
        validators.pop(digest, None)
        if len(validators) == _MAX_VALIDATORS:
            del validators[next(iter(validators))]
        signal.setitimer(signal.ITIMER_PROF, CPU_SECONDS)
        validators[digest] = compile_validator(msgspec.json.decode(schema, type=dict[str, Any]))
        _write({"compiled": True})
    elif digest not in validators:
        return {"unknown": True}
    signal.setitimer(signal.ITIMER_PROF, CPU_SECONDS)
    return {"problems": find_problems(validators[digest], msgspec.json.decode(value))}


def _end_with_parent() -> None:
    """Have the kernel end this process (SIGIO) when the daemon's end of standard error is closed.

    The end of standard input would be noticed only between two requests.
    """
    fcntl.fcntl(2, fcntl.F_SETOWN, os.getpid())
    fcntl.fcntl(2, fcntl.F_SETFL, fcntl.fcntl(2, fcntl.F_GETFL) | os.O_ASYNC)


def _limit_memory() -> None:
    import jsonschema_rs  # noqa: F401  # what the libraries need themselves is not counted
    import msgspec  # noqa: F401

    with open("/proc/self/statm", encoding="ascii") as file:
        size = int(file.read().split()[0]) * resource.getpagesize()
    resource.setrlimit(resource.RLIMIT_AS, (size + MEMORY, size + MEMORY))
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))


def _read(size: int) -> bytes:
    """Return that many bytes, fewer at the end of the input."""
    data = bytearray()
    while len(data) < size and (portion := os.read(0, min(size - len(data), 1 << 20))):
        data += portion
    return bytes(data)


def _write(answer: dict[str, object]) -> None:
    data = json.dumps(answer).encode() + b"\n"
    while data:
        data = data[os.write(1, data) :]

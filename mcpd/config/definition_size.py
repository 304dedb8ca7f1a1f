"""Limits on the size of one definition, so that it can be read within milliseconds."""

from __future__ import annotations

from collections.abc import Mapping

MAX_CHARACTERS = 256 * 1024
"""Characters of all names and strings. Linux passes at most 128 KiB to a program in one argument."""
MAX_REFERENCES = 1000
MAX_INSERTED = 1024 * 1024
"""Characters of all values that replace references; Linux passes at most 2 MiB to a program."""
_MAX_VALUES = 10_000
_MAX_DEPTH = 64


def size_problem(definition: Mapping[str, object]) -> tuple[str, str]:
    """Return what is too large about a definition, as the end of a sentence, and how to fix it; empty if
    nothing is. Stops at the first limit. YAML allows that a value contains itself.
    """
    waiting: list[tuple[object, int]] = [(definition, 0)]
    values = characters = references = 0
    while waiting:
        value, depth = waiting.pop()
        values += 1
        if depth > _MAX_DEPTH:
            return f"is nested too deeply: over {_MAX_DEPTH} levels", "flatten it"
        if values > _MAX_VALUES:
            return f"has more than {_MAX_VALUES} values", "remove some"
        if isinstance(value, Mapping):
            waiting += [(inner, depth + 1) for inner in value.values()]
            characters += sum(len(key) for key in value if isinstance(key, str))
        elif isinstance(value, list):
            waiting += [(inner, depth + 1) for inner in value]
        elif isinstance(value, str):
            characters += len(value)
            references += value.count("${") if characters <= MAX_CHARACTERS else 0
        if characters > MAX_CHARACTERS:
            return f"has more than {MAX_CHARACTERS} characters", "put long values into a file"
        if references > MAX_REFERENCES:
            return f"has more than {MAX_REFERENCES} references", "remove some"
    return "", ""

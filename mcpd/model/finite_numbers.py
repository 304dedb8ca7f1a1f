"""Finds numbers that JSON does not have: NaN and the infinities (RFC 8259, section 6).

Encoders write `null` instead, so that a server would get another value than the caller passed.
"""

from __future__ import annotations

import math
from collections.abc import Mapping


def describe_non_finite(value: object) -> str:
    """Return which part of a JSON value is not finite, such as `limits[0].max is NaN`; empty if none is.

    `value` is an object, whose members are the arguments of a call. Raises RecursionError like an encoder.
    """
    found = _find(value)
    if found is None:
        return ""
    path, number = found
    name = "NaN" if math.isnan(number) else "Infinity" if number > 0 else "-Infinity"
    return f"the argument {path.removeprefix('.')} is {name}, which JSON does not have"


def _find(value: object) -> tuple[str, float] | None:
    if isinstance(value, float):
        return None if math.isfinite(value) else ("", value)
    if isinstance(value, Mapping):
        items = ((f".{key}", each) for key, each in value.items())
    elif isinstance(value, list | tuple):
        items = ((f"[{index}]", each) for index, each in enumerate(value))
    else:
        return None
    for step, each in items:
        if found := _find(each):
            return step + found[0], found[1]
    return None

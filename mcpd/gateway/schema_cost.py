"""How much work a schema can make of an instance: an upper bound, so that no validator holds up the daemon.

A validator cannot be interrupted, and a server can write a small schema that takes years: definitions
that refer twice to the next one, or to themselves twice for each level of the instance. So the
references are followed here first, counting; what counts too high is not validated by us.

Counted is what happens at one place of an instance, `depth` levels below the place the schema is
applied to. Properties of different names meet different places, and no place is both an array and
an object: only what can come together is added up.
"""

from __future__ import annotations

import re
from collections.abc import Mapping

BUDGET = 2_000_000
"""Steps that one validation may take: about 50 ms."""
MAX_DEPTH = 64
"""Instances deeper than this are not checked against a schema that refers to itself."""
_MAX_VISITS = 500_000
"""Schemas times levels that are looked at before giving up: a second's work."""
_REGEX_STEPS, _BACKTRACKING_STEPS = 20, 1000
"""Steps of matching one pattern; one of those that can go back."""
_BACKTRACKS = re.compile(r"\\[1-9]|\\k<|\(\?[=!<>]")

_IN_PLACE = ("$ref", "$dynamicRef", "$recursiveRef", "allOf", "anyOf", "oneOf", "not", "if", "then", "else")
_FOR_EVERY_CHILD: Mapping[type, tuple[str, ...]] = {
    list: ("items", "additionalItems", "contains", "unevaluatedItems"),
    dict: ("additionalProperties", "propertyNames", "unevaluatedProperties"),
}
"""What is applied to each element; to each member."""
_FOR_ONE_CHILD: Mapping[type, str] = {list: "prefixItems", dict: "properties"}
"""What is applied to one element; to one member."""


class SchemaTooComplex(ValueError):
    """The schema asks for more than BUDGET of any instance."""


class ValidationCost:
    """What one schema costs. Making it raises TooMuch for one that costs too much by itself.

    Making it may take a fraction of a second: do it in a thread.
    """

    def __init__(self, schema: Mapping[str, object]) -> None:
        self._root = schema
        self._counted: dict[tuple[int, int, type], int] = {}
        self._sizes: dict[int, int] = {}
        self._steps: list[int] = []
        """The most that can happen at one place so many levels down."""
        self._is_finite = False
        try:
            while len(self._steps) < MAX_DEPTH and not self._is_finite:
                steps = max(self._count(schema, len(self._steps), kind) for kind in (list, dict))
                self._steps.append(steps)
                self._is_finite = not steps
        except SchemaTooComplex:
            if not self._steps:
                raise
        self._counted.clear()
        self._sizes.clear()

    def allows(self, instance: object) -> bool:
        """Whether checking this instance stays within BUDGET."""
        widths = _widths(instance)
        if len(widths) > len(self._steps) and not self._is_finite:
            return False
        return sum(map(int.__mul__, self._steps, widths)) <= BUDGET

    def _count(self, schema: object, depth: int, kind: type) -> int:
        """Steps at one place, `depth` levels below; `kind` is what the instance is at this level."""
        if isinstance(schema, str):
            schema = self._target(schema)
        if isinstance(schema, list):
            return sum(self._count(each, depth, kind) for each in schema)
        if not isinstance(schema, Mapping):
            return 0 if depth else 1
        key = (id(schema), depth, kind)
        known = self._counted.get(key)
        if known is None:
            # Around in a circle without going down counts nothing: validators notice.
            self._counted[key] = 0 if depth else 1
            known = sum(self._count(schema[name], depth, kind) for name in _IN_PLACE if name in schema)
            known += sum(self._count(each, depth, kind) for each in _values(schema.get("dependentSchemas")))
            known += self._count_children(schema, depth - 1, kind) if depth else self._own_steps(schema)
            if known > BUDGET or len(self._counted) > _MAX_VISITS:
                raise SchemaTooComplex(f"checking it may take more than {BUDGET} steps")
            self._counted[key] = known
        return known

    def _count_children(self, schema: Mapping[str, object], depth: int, kind: type) -> int:
        both = (list, dict)
        every = [schema[name] for name in _FOR_EVERY_CHILD[kind] if name in schema]
        if kind is dict:
            every += _values(schema.get("patternProperties"))
        steps = sum(max(self._count(each, depth, inner) for inner in both) for each in every)
        one_each = _values(schema.get(_FOR_ONE_CHILD[kind]))
        return steps + max((self._count(one, depth, k) for one in one_each for k in both), default=0)

    def _own_steps(self, schema: Mapping[str, object]) -> int:
        """Steps of the schema's own words, applied to one value."""
        size = self._sizes.get(id(schema))
        if size is None:
            size = 1 + sum(sum(_widths(schema.get(name))) for name in ("enum", "const", "required"))
            size += len(_values(schema.get("properties")))
            patterns: list[object] = [schema.get("pattern")]
            if isinstance(by_pattern := schema.get("patternProperties"), Mapping):
                patterns += by_pattern
            for pattern in patterns:
                if isinstance(pattern, str):
                    size += _BACKTRACKING_STEPS if _BACKTRACKS.search(pattern) else _REGEX_STEPS
            self._sizes[id(schema)] = size
        return size

    def _target(self, reference: str) -> object:
        """What a reference points to; the whole schema where that is not plain to see."""
        found: object = self._root
        for part in reference[1:].split("/")[1:] if reference.startswith("#") else []:
            part = part.replace("~1", "/").replace("~0", "~")
            if isinstance(found, Mapping) and part in found:
                found = found[part]
            elif isinstance(found, list) and part.isdigit() and int(part) < len(found):
                found = found[int(part)]
            else:
                return self._root
        return found if isinstance(found, Mapping) else self._root


def _values(found: object) -> list[object]:
    if isinstance(found, Mapping):
        return list(found.values())
    return found if isinstance(found, list) else []


def _widths(value: object) -> list[int]:
    """How many values a decoded document has at each level of nesting."""
    widths, level = [], [value]
    while level:
        widths.append(len(level))
        below: list[object] = []
        for each in level:
            below += _values(each)
        level = below
    return widths

"""Upper bound on the work that validating against a schema can take, so that no validator blocks the daemon.

A validator cannot be interrupted, and a small schema can take years: definitions that refer to the next one
twice, or to themselves twice per level of the instance. So the references are followed and counted first,
and a schema that counts too high is not used.

What is counted is the work at one place of an instance, `depth` levels below the place where the schema
applies. Properties of different names apply to different places, and no place is both an array and an
object, so only what can coincide is added up.
"""

from __future__ import annotations

import re
from collections.abc import Mapping

BUDGET = 2_000_000
"""Steps allowed for one validation: about 50 ms."""
MAX_DEPTH = 64
"""Deeper instances are not checked against a schema that refers to itself."""
_MAX_VISITS = 500_000
"""Schemas times levels visited before giving up: about a second of work."""
_REGEX_STEPS, _BACKTRACKING_STEPS = 20, 1000
"""Steps for matching one pattern: without and with backtracking."""
_BACKTRACKS = re.compile(r"\\[1-9]|\\k<|\(\?[=!<>]")

_IN_PLACE = ("$ref", "$dynamicRef", "$recursiveRef", "allOf", "anyOf", "oneOf", "not", "if", "then", "else")
_FOR_EVERY_CHILD: Mapping[type, tuple[str, ...]] = {
    list: ("items", "additionalItems", "contains", "unevaluatedItems"),
    dict: ("additionalProperties", "propertyNames", "unevaluatedProperties"),
}
"""Applied to every element; to every member."""
_FOR_ONE_CHILD: Mapping[type, str] = {list: "prefixItems", dict: "properties"}
"""Applied to one element; to one member."""


class SchemaTooComplex(ValueError):
    """Validating any instance would take more than BUDGET."""


class ValidationCost:
    """The cost of one schema. Raises SchemaTooComplex if even the smallest instance costs too much.

    Construct it in a thread: that may take a fraction of a second.
    """

    def __init__(self, schema: Mapping[str, object]) -> None:
        self._root = schema
        self._counted: dict[tuple[int, int, type], int] = {}
        self._sizes: dict[int, int] = {}
        self._steps: list[int] = []
        """Maximum steps at one place, by depth."""
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
        """Return whether checking this instance stays within BUDGET."""
        widths = _widths(instance)
        if len(widths) > len(self._steps) and not self._is_finite:
            return False
        return sum(map(int.__mul__, self._steps, widths)) <= BUDGET

    def _count(self, schema: object, depth: int, kind: type) -> int:
        """Return the steps at one place, `depth` levels below; `kind` is the instance's type here."""
        if isinstance(schema, str):
            schema = self._target(schema)
        if isinstance(schema, list):
            return sum(self._count(each, depth, kind) for each in schema)
        if not isinstance(schema, Mapping):
            return 0 if depth else 1
        key = (id(schema), depth, kind)
        known = self._counted.get(key)
        if known is None:
            # A cycle that does not descend costs nothing: validators detect it.
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
        """Return the steps of the schema's own keywords for one value."""
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
        """Return the schema that a reference points to; the whole schema if it cannot be resolved."""
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
    """Return the number of values at each nesting level."""
    widths, level = [], [value]
    while level:
        widths.append(len(level))
        below: list[object] = []
        for each in level:
            below += _values(each)
        level = below
    return widths

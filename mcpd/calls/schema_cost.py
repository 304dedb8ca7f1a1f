"""Bounds the time of compiling a JSON Schema and of checking a value, to keep the event loop responsive.

Neither can be interrupted, and a small schema can take years: definitions that refer to the next one twice,
or to themselves; classes of thousands of characters, repeated. So the work is estimated first. The estimate
is an upper bound for the keywords that nearly all schemas use; with others, a schema counts as expensive.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from itertools import zip_longest
from math import inf

MAX_VALUES = 1000
"""JSON values in a schema, and the subschemas that apply if its references are followed."""
COMPILE_BUDGET = 8000.0
"""Microseconds allowed for compiling."""
CHECK_BUDGET = 200_000
"""Steps allowed for checking one value: about 5 ms."""
DESCRIBE_BUDGET = 1000
"""Problems that may be described for one value: about 15 ms."""
_MAX_NESTING = 32

_LIST_SIZES = ("enum", "const", "required")
_IN_PLACE = ("allOf", "anyOf", "oneOf", "not", "if", "then", "else")
_FOR_EVERY_CHILD = ("items", "additionalItems", "contains", "additionalProperties", "propertyNames")
_FOR_ONE_CHILD = ("properties", "prefixItems")
_EXPENSIVE = (
    *("$dynamicRef", "$recursiveRef", "$vocabulary", "unevaluatedItems", "unevaluatedProperties"),
    *("dependencies", "dependentRequired", "dependentSchemas"),
    *("contentEncoding", "contentMediaType", "contentSchema"),
)
"""Keywords that are rare and whose cost is not estimated."""
_BASE_NAMES = ("$id", "id")
"""With a text, they change what references below refer to."""

_STEP, _COMPILE_STEP = 1, 8.0
"""Checking and compiling a subschema, in steps of 25 ns and in microseconds."""
_BACKTRACKING_STEPS = 40_000
"""Steps for a pattern with backtracking in a text of up to _TEXT_PORTION characters."""
_TEXT_PORTION = 64
"""A longer text counts as several values, because patterns take longer for it."""

_TOKEN = re.compile(
    r"(?P<one>\\[pP](?:\{[^}]*\}|.)|\\.|\[\^?(?:\\.|[^\]\\])+\])"
    r"|(?P<repetition>\{(?P<least>\d{0,9}),?(?P<most>\d{0,9})\})|(?P<again>[*+?])"
    r"|(?P<open>\()|(?P<close>\))|(?P<other>.)",
    re.DOTALL,
)
_MEDIUM_SETS, _LARGE_SETS = re.compile(r"\\[wWsSdD]"), re.compile(r"\\[pP]")
_SET_OF_SETS = re.compile(r"^\[.*?(?<!\\)\[|&&|--|~~")
_PATTERN, _SMALL, _MEDIUM, _LARGE = 30.0, 3.0, 150.0, 400.0
"""Microseconds for compiling a pattern, and for each set of characters: `\\p{…}` is large, `\\w` medium."""
_MATCHING_STEPS = 40
"""Steps for each state of a pattern while a text of _TEXT_PORTION characters is matched."""
_MAX_PATTERN = 2000
_BACKTRACKS = re.compile(r"\\[1-9]|\\k<|\(\?(?!:)|[*+?]\+|\{[\d,]+\}\+")
_IGNORES_CASE = re.compile(r"\(\?[a-zA-Z-]*[ix]")


class SchemaTooExpensive(ValueError):
    """Compiling the schema, or checking even the smallest value, would take too long."""


class ValidationCost:
    """The cost of one schema. Raises SchemaTooExpensive. Takes a few milliseconds at most."""

    def __init__(self, schema: Mapping[str, object]) -> None:
        walk = _Walk(schema)
        self._steps = walk.steps(schema, 0)
        """Maximum steps for one value, by its depth. Deeper values are not checked at all."""
        self._subschemas = walk.visits
        self.compile_time = walk.compile_time
        """Microseconds, at most."""
        if self._steps[0] > CHECK_BUDGET:
            raise SchemaTooExpensive("checking it takes long")

    def of(self, value: object) -> tuple[int, int]:
        """Return the steps for checking this value, and the number of problems it may have, at most."""
        widths, count = _widths(value)
        return sum(map(int.__mul__, self._steps, widths)), count * self._subschemas


class _Walk:
    """Adds up the cost of the subschemas that apply, and follows references."""

    def __init__(self, root: Mapping[str, object]) -> None:
        if _widths(root)[1] > MAX_VALUES:
            raise SchemaTooExpensive("it is large")
        if any(_is_base(each) for each in _mappings(root) if each is not root):
            raise SchemaTooExpensive("it consists of several documents")
        self._root = root
        self.visits = 0
        self.compile_time = 0.0

    def steps(self, schema: object, nesting: int) -> list[int]:
        """Return the steps for one value, then for one each of the levels below it."""
        self.visits += 1
        self.compile_time += _COMPILE_STEP
        if self.visits > MAX_VALUES or nesting > _MAX_NESTING or self.compile_time > COMPILE_BUDGET:
            raise SchemaTooExpensive("it refers to itself, or many subschemas apply")
        if not isinstance(schema, Mapping):
            return [_STEP]
        if any(name in schema for name in _EXPENSIVE) or schema.get("format") == "regex":
            raise SchemaTooExpensive("it uses rare keywords")
        return _sum([self._own_steps(schema), *self._applied(schema, nesting + 1)])

    def _own_steps(self, schema: Mapping[str, object]) -> list[int]:
        """Return the steps of the schema's own keywords, and those for each child."""
        sizes = sum(sum(_widths(schema[name])[0]) for name in _LIST_SIZES if name in schema)
        own = _STEP + sizes + len(_values(schema.get("properties")))
        self.compile_time += sizes / 2
        by_pattern = schema.get("patternProperties")
        for_names = sum(map(self._pattern_steps, by_pattern)) if isinstance(by_pattern, Mapping) else 0
        if schema.get("uniqueItems") is True:
            for_names += 4
        return [own + self._pattern_steps(schema.get("pattern")), for_names]

    def _pattern_steps(self, pattern: object) -> int:
        if not isinstance(pattern, str):
            return 0
        compile_time, states = pattern_cost(pattern)
        self.compile_time += compile_time
        if compile_time > COMPILE_BUDGET:
            raise SchemaTooExpensive("it has an expensive pattern")
        return _BACKTRACKING_STEPS if _BACKTRACKS.search(pattern) else _MATCHING_STEPS * (1 + states)

    def _applied(self, schema: Mapping[str, object], nesting: int) -> Iterable[list[int]]:
        """Yield the steps of all subschemas, relative to the value that `schema` applies to."""
        if (reference := schema.get("$ref")) is not None:
            yield self.steps(self._target(reference), nesting)
        for name in _IN_PLACE:
            for each in _subschemas(schema.get(name)):
                yield self.steps(each, nesting)
        for name in (*_FOR_EVERY_CHILD, "patternProperties"):
            found = schema.get(name)
            for each in _values(found) if name == "patternProperties" else _subschemas(found):
                yield [0, *self.steps(each, nesting)]
        for name in _FOR_ONE_CHILD:  # of which only one applies to each child
            yield [0, *_highest([self.steps(each, nesting) for each in _values(schema.get(name))])]

    def _target(self, reference: object) -> object:
        """Return the subschema that a reference points to."""
        found: object = self._root
        if not isinstance(reference, str) or not reference.startswith("#") or "%" in reference:
            raise SchemaTooExpensive("it refers to another document")
        for part in reference[1:].split("/")[1:]:
            part = part.replace("~1", "/").replace("~0", "~")
            if isinstance(found, Mapping) and part in found:
                found = found[part]
            elif isinstance(found, list) and part.isdecimal() and int(part) < len(found):
                found = found[int(part)]
            else:
                raise SchemaTooExpensive(f"it refers to {reference}, which it does not contain")
        if found is self._root and reference not in ("#", "#/"):
            raise SchemaTooExpensive("it refers to an anchor")
        return found


def pattern_cost(pattern: str) -> tuple[float, int]:
    """Return the microseconds for compiling a pattern, at most, and the states it then has, roughly.

    Both are those of its parts after all repetitions have been written out. They are infinite and 0 for rare
    syntax.
    """
    unknown = inf, 0
    if len(pattern) > _MAX_PATTERN or _IGNORES_CASE.search(pattern):
        return unknown
    groups: list[tuple[float, int]] = [(0.0, 0)]
    last = 0.0, 0
    for token in _TOKEN.finditer(pattern):
        kind = token.lastgroup
        if kind == "open":
            groups.append((0.0, 0))
            continue
        added = last
        if kind == "close":
            last = added = groups.pop()
            if not groups:
                return unknown
        elif kind == "repetition":
            times = max(int(token["least"] or 0), int(token["most"] or 0), 1)
            added = last[0] * (times - 1), last[1] * (times - 1)
            last = last[0] * times, last[1] * times
        elif kind == "again":
            added = _SMALL, 1
        else:
            last = added = _set_cost(token[0]), 1
        groups[-1] = groups[-1][0] + added[0], groups[-1][1] + added[1]
    return (_PATTERN + groups[0][0], groups[0][1]) if len(groups) == 1 else unknown


def _set_cost(text: str) -> float:
    """Return the microseconds for compiling one character, or set of characters."""
    if _SET_OF_SETS.search(text):
        return inf
    medium, large = len(_MEDIUM_SETS.findall(text)), len(_LARGE_SETS.findall(text))
    return _SMALL + len(text) / 4 + _MEDIUM * medium + _LARGE * large


def _is_base(schema: Mapping[str, object]) -> bool:
    return any(isinstance(schema.get(name), str) for name in _BASE_NAMES)


def _subschemas(found: object) -> list[object]:
    """Return the schema or the list of schemas that is the value of a keyword."""
    if found is None:
        return []
    return found if isinstance(found, list) else [found]


def _values(found: object) -> list[object]:
    if isinstance(found, Mapping):
        return list(found.values())
    return found if isinstance(found, list) else []


def _sum(rows: Iterable[list[int]]) -> list[int]:
    return [sum(column) for column in zip_longest(*rows, fillvalue=0)]


def _highest(rows: list[list[int]]) -> list[int]:
    return [max(column) for column in zip_longest(*rows, fillvalue=0)]


def _mappings(root: object) -> Iterable[Mapping[str, object]]:
    open_values = [root]
    while open_values:
        each = open_values.pop()
        if isinstance(each, Mapping):
            yield each
        open_values += _values(each)


def _widths(value: object) -> tuple[list[int], int]:
    """Return the number of values at each nesting level, where a long text or name counts as several, and the
    number of all values, where it counts as one.
    """
    widths, level, more, count = [], [value], 0, 0
    while level:
        below: list[object] = []
        width, more = len(level) + more, 0
        count += len(level)
        for each in level:
            if isinstance(each, str):
                width += len(each) // _TEXT_PORTION
            elif isinstance(each, dict):
                below += each.values()
                more += sum(map(len, each)) // _TEXT_PORTION
            elif isinstance(each, list):
                below += each
        widths.append(width)
        level = below
    return widths, count

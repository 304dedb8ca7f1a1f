"""Converts the JSON Schemas of tools into the types of a programming language.

Schemas come from servers, so nothing about them is certain. What has no counterpart becomes the type of any
value. Only a `$ref` to the same schema is followed: one to a file or a URL would let a server read them.
"""

from __future__ import annotations

import json
import re
from abc import ABC, abstractmethod
from collections.abc import Iterable, Mapping, Sequence
from typing import ClassVar, NamedTuple
from urllib.parse import unquote

from ctl.cli.json_text import mapping, strings

_MAX_DEPTH = 20
_MAX_NODES = 5_000
"""Subschemas of a schema that are converted; the others become any value."""
_MAX_EXPRESSION = 10_000
"""Characters of one expression."""
_MAX_ENUM = 200
"""Values of an enumeration that are listed."""
_MAX_TEXT = 4_000
"""Characters of a description."""


class Member(NamedTuple):
    name: str
    type: str
    is_required: bool
    text: str


class TypedTool(NamedTuple):
    """A tool, its function and the types of that."""

    server: str
    name: str
    public_name: str
    """The name for MCP clients."""
    function: str
    text: str
    arguments: str
    may_omit_arguments: bool
    result: str | None
    """None: the tool declares no `outputSchema`, or one without members."""


class Language(ABC):
    """Collects the declarations of one file, and writes expressions for types."""

    unknown: str
    scalars: ClassVar[Mapping[str, str]]
    """The types of JSON Schema: null, boolean, integer, number and string."""
    reserved: frozenset[str]
    """The names that the file imports or declares itself, in addition to those of the types and functions."""

    def __init__(self) -> None:
        self.declarations: list[str] = []
        self._taken = set(self.reserved)

    @abstractmethod
    def enumeration(self, values: Sequence[object]) -> str:
        """`values`: text, integers, booleans and null."""

    @abstractmethod
    def array(self, item: str) -> str: ...

    @abstractmethod
    def map(self, value: str) -> str: ...

    @abstractmethod
    def declare_object(self, name: str, members: Sequence[Member], text: str) -> None: ...

    @abstractmethod
    def declare_function(self, tool: TypedTool) -> None: ...

    @abstractmethod
    def file(self) -> str:
        """Return the text of the whole file."""

    def free_name(self, wanted: str) -> str:
        """Return an ASCII identifier that nothing else in the file has."""
        name = base = re.sub(r"^(?=[0-9])", "_", re.sub(r"[^A-Za-z0-9_]", "_", wanted))
        number = 1
        while name in self._taken:
            number += 1
            name = f"{base}_{number}"
        self._taken.add(name)
        return name

    def add_tool(self, tool: Mapping[str, object], public_name: str) -> None:
        """Add an entry of `mcpd/tools`."""
        server, name = str(tool["server"]), str(tool["name"])
        words = _camel(f"{server} {name}")
        schema = mapping(tool.get("inputSchema"))
        self.declare_function(
            TypedTool(
                server,
                name,
                public_name,
                self.free_name(public_name),
                plain_text(tool),
                self._object(schema, f"{words}Arguments") or self.map(self.unknown),
                may_omit_arguments=not _required(schema),
                result=self._object(tool.get("outputSchema"), f"{words}Result"),
            )
        )

    def _object(self, schema: object, name: str) -> str | None:
        """Return the name of a declared type; None unless the schema is that of an object with members."""
        found = _Schema(self, schema).convert(schema, name, ref="#")
        return found if found in self._taken - self.reserved else None


def plain_text(described: Mapping[str, object]) -> str:
    """Return the description without characters that an editor does not show as they are."""
    text = str(described.get("description") or described.get("title") or "")[:_MAX_TEXT]
    lines = ("".join(c if c.isprintable() else " " for c in line).rstrip() for line in text.split("\n"))
    return "\n".join(lines).strip()


def _camel(words: str) -> str:
    return "".join(word[0].upper() + word[1:] for word in re.findall(r"[A-Za-z0-9]+", words))


def _required(schema: Mapping[str, object]) -> list[str]:
    properties = mapping(schema.get("properties"))
    return [name for name in strings(schema.get("required")) if name in properties]


class _Schema:
    """One schema that is being converted."""

    def __init__(self, language: Language, root: object) -> None:
        self._language, self._root = language, root
        self._left = _MAX_NODES
        self._known: dict[str, str] = {}
        """`$ref` → its type. While one that needs no name is being converted: any value."""

    def convert(self, schema: object, name: str, depth: int = 0, ref: str = "") -> str:
        """Return the expression for `schema`. Objects get a name that begins with `name`."""
        self._left -= 1
        if not isinstance(schema, Mapping) or depth > _MAX_DEPTH or self._left < 0:
            return self._language.unknown
        found = self._type(schema, name, depth + 1, ref)
        return found if len(found) <= _MAX_EXPRESSION else self._language.unknown

    def _type(self, schema: Mapping[str, object], name: str, depth: int, ref: str) -> str:
        if isinstance(target := schema.get("$ref"), str):
            return self._referenced(target, name, depth)
        if "const" in schema:
            return self._enumeration([schema["const"]])
        if isinstance(values := schema.get("enum"), list):
            return self._enumeration(values)
        properties, parts = mapping(schema.get("properties")), schema.get("allOf")
        if isinstance(parts, list) and parts:
            if len(parts) == 1 and not properties:
                return self.convert(parts[0], name, depth, ref)
            merged = self._merged(schema, parts)
            return self._object(merged, name, depth, ref) if merged["properties"] else self._language.unknown
        alternatives = schema.get("anyOf") or schema.get("oneOf")
        if isinstance(alternatives, list) and alternatives and not properties:
            return self._union(self.convert(each, name, depth) for each in alternatives)
        given = schema.get("type", "object" if properties else None)
        kinds = strings(given) or [str(given)]
        return self._union(self._kind(kind, schema, name, depth, ref) for kind in kinds)

    def _kind(
        self, kind: str, schema: Mapping[str, object], name: str = "", depth: int = 0, ref: str = ""
    ) -> str:
        if kind == "array":
            return self._language.array(self.convert(schema.get("items"), f"{name}Item", depth))
        if kind == "object" and mapping(schema.get("properties")):
            return self._object(schema, name, depth, ref)
        if kind == "object":
            return self._language.map(self.convert(schema.get("additionalProperties"), f"{name}Value", depth))
        return self._language.scalars.get(kind, self._language.unknown)

    def _object(self, schema: Mapping[str, object], name: str, depth: int, ref: str) -> str:
        own = self._language.free_name(name)
        if ref:
            self._known[ref] = own
        required = _required(schema)
        members = [
            Member(
                member,
                self.convert(each, f"{name}{_camel(member)}", depth),
                member in required,
                plain_text(mapping(each)),
            )
            for member, each in mapping(schema.get("properties")).items()
        ]
        self._language.declare_object(own, members, plain_text(schema))
        return own

    def _merged(self, schema: Mapping[str, object], parts: Sequence[object]) -> Mapping[str, object]:
        """Return the object that has the properties of all parts."""
        properties: dict[str, object] = {}
        required: list[str] = []
        for each in (schema, *parts):
            part = mapping(each)
            if isinstance(target := part.get("$ref"), str):
                part = mapping(self._target(target))
            properties |= mapping(part.get("properties"))
            required += strings(part.get("required"))
        return {**schema, "properties": properties, "required": required}

    def _referenced(self, ref: str, name: str, depth: int) -> str:
        if ref not in self._known:
            self._known[ref] = self._language.unknown
            self._known[ref] = self.convert(self._target(ref), name, depth, ref)
        return self._known[ref]

    def _target(self, ref: str) -> object:
        """Return what a JSON pointer in this schema points to; None if there is no such thing."""
        found: object = self._root if ref.startswith("#") else None
        for step in unquote(ref).split("/")[1:]:
            key = step.replace("~1", "/").replace("~0", "~")
            if isinstance(found, Mapping):
                found = found.get(key)
            elif isinstance(found, list) and key.isdecimal() and int(key) < len(found):
                found = found[int(key)]
            else:
                return None
        return found

    def _enumeration(self, values: Sequence[object]) -> str:
        if 0 < len(values) <= _MAX_ENUM and all(map(_is_literal, values)):
            return self._language.enumeration(values)
        return self._union(self._kind(_kind_of(value), {}) for value in values)

    def _union(self, types: Iterable[str]) -> str:
        several = list(dict.fromkeys(types))
        return (
            self._language.unknown
            if self._language.unknown in several or not several
            else " | ".join(several)
        )


def _is_literal(value: object) -> bool:
    """Whether each language and its checkers have a type for only this value."""
    return isinstance(value, str | None) or (isinstance(value, int) and abs(value) < 2**53)


def _kind_of(value: object) -> str:
    if isinstance(value, bool | None):
        return "null" if value is None else "boolean"
    kinds = {str: "string", int: "integer", float: "number", list: "array"}
    return kinds.get(type(value), "object")


def quoted(value: object) -> str:
    """Return a literal of JSON in ASCII."""
    return json.dumps(value)

"""Writes typed Python functions that call tools with `mcpd.client`."""

from __future__ import annotations

import keyword
import re
from collections.abc import Sequence
from textwrap import indent
from typing import ClassVar

from ctl.emit.types import Language, Member, TypedTool

_HEADER = '''\
# ruff: noqa
"""Typed functions for tools. Written by `{command}`: write it again instead of changing it.

{example}

A function whose tool declares the members of its structured content returns that, another one a ToolResult.
"""

from __future__ import annotations

from typing import Any, Literal, NotRequired, TypedDict, Unpack, cast

from mcpd.client import {connection}
'''


_EXAMPLE = {
    False: "    async with connect() as mcp:\n        await time__get_current_time(mcp, {...})",
    True: "    with connect() as mcp:\n        time__get_current_time(mcp, {...})",
}


class Python(Language):
    """With `is_sync`, for mcpd.client.sync."""

    unknown = "Any"
    scalars: ClassVar = {
        "null": "None",
        "boolean": "bool",
        "integer": "int",
        "number": "float",
        "string": "str",
    }
    _BUILTINS = frozenset({"bool", "int", "float", "str", "list", "dict"})
    reserved = _BUILTINS | {
        *("Any", "Literal", "NotRequired", "TypedDict", "Unpack", "cast", "annotations"),
        *("CallOptions", "Mcp", "SyncMcp", "ToolResult"),
    }

    def __init__(self, *, is_sync: bool) -> None:
        super().__init__()
        self._is_sync = is_sync

    def enumeration(self, values: Sequence[object]) -> str:
        return f"Literal[{', '.join(map(repr, values))}]"

    def array(self, item: str) -> str:
        return f"list[{item}]"

    def map(self, value: str) -> str:
        return f"dict[str, {value}]"

    def declare_object(self, name: str, members: Sequence[Member], text: str) -> None:
        rows = [(each, each.type if each.is_required else f"NotRequired[{each.type}]") for each in members]
        if all(self._is_plain(each.name) for each in members):
            body = _docstring(text) + "".join(
                f"    {each.name}: {type_}\n{_docstring(each.text)}" for each, type_ in rows
            )
            self.declarations.append(f"class {name}(TypedDict):\n{body}")
            return
        # A quoted type is not evaluated, so that it may name what is declared further down.
        entries = "".join(f"    {each.name!r}: {type_!r},\n" for each, type_ in rows)
        self.declarations.append(f"{name} = TypedDict({name!r}, {{\n{entries}}})\n")

    def _is_plain(self, name: str) -> bool:
        """Whether the name can be an attribute of a class, without hiding a type."""
        is_identifier = re.fullmatch("[a-z][A-Za-z0-9_]*", name) is not None
        return is_identifier and not keyword.iskeyword(name) and name not in self._BUILTINS

    def declare_function(self, tool: TypedTool) -> None:
        given = f"{tool.arguments} | None = None" if tool.may_omit_arguments else tool.arguments
        begin, wait, connection = ("", "", "SyncMcp") if self._is_sync else ("async ", "await ", "Mcp")
        call = f"{wait}mcp.call({tool.server!r}, {tool.name!r}, arguments, **options)"
        if tool.result is not None:
            # The daemon compares it with the schema, so that only a missing one is an error here.
            call = f"cast({tool.result!r}, ({call}).as_(dict))"
        self.declarations.append(
            f"{begin}def {tool.function}(\n"
            f"    mcp: {connection}, arguments: {given}, **options: Unpack[CallOptions]\n"
            f") -> {tool.result or 'ToolResult'}:\n{_docstring(tool.text)}    return {call}\n"
        )

    def file(self) -> str:
        sync = "CallOptions, ToolResult\nfrom mcpd.client.sync import SyncMcp"
        header = _HEADER.format(
            command=f"mcpctl emit-types --python{' --sync' if self._is_sync else ''}",
            example=_EXAMPLE[self._is_sync],
            connection=sync if self._is_sync else "CallOptions, Mcp, ToolResult",
        )
        return "\n\n".join([header, *self.declarations])


def _docstring(text: str) -> str:
    if not text:
        return ""
    safe = text.replace("\\", "\\\\").replace('"""', r"\"\"\"")
    end = "\n" if "\n" in safe or safe.endswith('"') else ""
    return indent(f'"""{safe}{end}"""\n', "    ")

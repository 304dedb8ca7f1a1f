"""Generate the methods and types of docs/reference/control-api.md: `make docs`. Its prose is left alone."""

from __future__ import annotations

import ast
import enum
import inspect
import sys
import textwrap
import types
from collections.abc import Mapping
from pathlib import Path
from typing import Union, get_args, get_origin, get_type_hints

import attrs
import msgspec

from mcpd.api.control.methods import METHODS

PAGE = Path(__file__).parent / "reference" / "control-api.md"
MARK = (
    "<!-- Generated from here on by docs/make_control_api.py from the types. "
    "Change those, then run `make docs`. -->\n"
)

_UNANSWERED = dict.fromkeys(("mcpd/events", "mcpd/tap"), "Sends notifications with {}, and no response.\n")

_OPAQUE = "object, as the server sent it"
_SIMPLE = {str: "string", bool: "boolean", int: "integer", float: "number", object: "any JSON"}


def page(current: str) -> str:
    """Return the page with its generated half replaced. Raises ValueError if the marker line is missing."""
    prose, mark, _ = current.partition(MARK)
    if not mark:
        raise ValueError(f"{PAGE.name} does not contain the line {MARK.strip()!r}")
    return prose + mark + "\n" + reference()


def reference() -> str:
    """Return the reference of all methods and of all types that they use."""
    wanted: list[type] = []
    parts = ["## Methods\n"]
    for name, method in METHODS.items():
        parts += [f"### `{name}`\n", f"{_paragraph(method.summary)}\n"]
        parts += _members(method.params, wanted, asked=True)
        answer = method.result if isinstance(method.result, str) else _link(method.result, wanted)
        parts.append(_UNANSWERED.get(name, "Returns {}.\n").format(answer))
    parts.append("## Types\n")
    for kind in wanted:  # grows during the loop, because types refer to other types
        parts += [f"### `{kind.__name__}`\n"]
        if kind.__doc__:
            parts.append(f"{_paragraph(kind.__doc__)}\n")
        parts += _values(kind) if issubclass(kind, enum.Enum) else _members(kind, wanted)
    return "\n".join(parts)


def _members(kind: type, wanted: list[type], *, asked: bool = False) -> list[str]:
    """Return a table of the members. Only parameters (`asked`) have a column of defaults."""
    fields = attrs.fields(kind)
    if not fields:
        return []
    hints, meanings = get_type_hints(kind), _meanings(kind)
    rows = ["| member | type | default | meaning |", "|---|---|---|---|"]
    rows += [
        f"| `{field.name}` | {_link(hints[field.name], wanted)} | {_default(field)} "
        f"| {meanings.get(field.name, '')} |"
        for field in fields
    ]
    if not asked:
        rows = ["|".join(cells[:3] + cells[4:]) for cells in (row.split("|") for row in rows)]
    return [*rows, ""]


def _values(kind: type[enum.Enum]) -> list[str]:
    meanings = _meanings(kind)
    rows = [f"| `{member.value}` | {meanings.get(member.name, '')} |" for member in kind]
    return ["| value | meaning |", "|---|---|", *rows, ""]


def _link(kind: object, wanted: list[type]) -> str:
    """Describe a type in words. Types of the API are linked and appended to `wanted`."""
    if isinstance(kind, type):
        if attrs.has(kind) or issubclass(kind, enum.Enum):
            if kind not in wanted:
                wanted.append(kind)
            return f"[`{kind.__name__}`](#{kind.__name__.lower()})"
        return _OPAQUE if kind is msgspec.Raw else _SIMPLE[kind]
    origin, args = get_origin(kind), get_args(kind)
    if origin is tuple:
        inner = _link(args[0], wanted)
        return f"list of {inner}" if inner.startswith("[") else f"list of {_plural(inner)}"
    if origin is Mapping:
        inner = _link(args[1], wanted)
        return "object" if inner == _SIMPLE[object] else f"object of {inner}s"
    if origin in (Union, types.UnionType):
        return " or ".join("null" if arg is type(None) else _link(arg, wanted) for arg in args)
    return _SIMPLE[object] if kind is object else str(kind)


def _plural(name: str) -> str:
    """Return the plural of the name of a JSON type."""
    if name == _OPAQUE:
        return "objects, as the server sent them"
    return name if name == _SIMPLE[object] else f"{name}s"


def _default(field: attrs.Attribute[object]) -> str:
    if field.default is attrs.NOTHING:
        return "required"
    value = field.default
    if isinstance(value, attrs.Factory):  # type: ignore[arg-type]  # attrs types it as a function
        value = {}
    return f"`{msgspec.json.encode(value).decode().removesuffix('.0')}`"


def _meanings(kind: type) -> dict[str, str]:
    """Return the docstring below each member in the source code."""
    (tree,) = ast.parse(textwrap.dedent(inspect.getsource(kind))).body
    assert isinstance(tree, ast.ClassDef)
    found = {}
    for statement, below in zip(tree.body, tree.body[1:], strict=False):
        target = getattr(statement, "target", None) or getattr(statement, "targets", [None])[0]
        if (
            isinstance(target, ast.Name)
            and isinstance(below, ast.Expr)
            and isinstance(below.value, ast.Constant)
        ):
            found[target.id] = _paragraph(str(below.value.value)).replace("|", "\\|")
    return found


def _paragraph(text: str) -> str:
    """Return the text on one line, with JSON's word for None."""
    return " ".join(text.split()).replace("None: ", "null: ")


if __name__ == "__main__":
    made = page(PAGE.read_text(encoding="utf-8"))
    sys.exit(PAGE.write_text(made, encoding="utf-8") == 0)

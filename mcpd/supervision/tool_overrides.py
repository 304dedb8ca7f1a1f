"""Changes tools as their server's definition says (`tools`): another name or text, and hidden arguments.

Everything in mcpd and every client knows a changed tool by its new form. Only the server gets calls in its
own.
"""

from __future__ import annotations

from collections.abc import Mapping

import msgspec
from msgspec import Raw

from mcpd.model.server_spec import ServerSpec, ToolOverride
from mcpd.model.steps import Steps
from mcpd.model.text import shorten
from mcpd.supervision.catalog import Item, Listing
from mcpd.wire import message as wire
from mcpd.wire.message import BadFrame

_ALWAYS_LOAD = "anthropic/alwaysLoad"
_TYPES: Mapping[str, tuple[type, ...]] = {
    "string": (str,),
    "integer": (int,),
    "number": (int, float),
    "boolean": (bool,),
    "array": (list,),
    "object": (dict,),
}


_PORTION = 200
"""Tools in one step."""


def change_tools(spec: ServerSpec, tools: Listing, warnings: list[str]) -> Steps[Listing]:
    """Return the tools as the definition changes them. Adds what is wrong with its `tools` to `warnings`."""
    if not spec.changes_tools:
        return tools
    own = {tool.name for tool in tools}
    missing = (shorten(name, 60) for name in spec.tool_overrides if name not in own)
    warnings += [f"`tools` changes {name!r}, which the server does not provide" for name in missing]
    changed: dict[str, Item] = {}
    for number, tool in enumerate(tools):
        override = spec.tool_overrides.get(tool.name, _UNCHANGED)
        item = _change(tool, override, override.always_load or spec.always_load, warnings)
        if item.name in changed or (item.name != tool.name and item.name in own):
            warnings.append(f"`tools` gives {tool.name!r} the name of another tool; it was left out")
        else:
            changed[item.name] = item
        if not number % _PORTION:
            yield
    return tuple(changed.values())


_UNCHANGED = ToolOverride()


def original_name(spec: ServerSpec, name: str) -> str:
    """Return the server's own name of a tool that clients call `name`; empty if they must not call that."""
    for own, override in spec.tool_overrides.items():
        if override.name == name:
            return own
    override = spec.tool_overrides.get(name, _UNCHANGED)
    return name if override.name in ("", name) else ""


def _change(tool: Item, override: ToolOverride, always_load: bool, warnings: list[str]) -> Item:
    try:
        members = wire.members(tool.raw)
        name = override.name or tool.name
        if override.name:
            members["name"] = _json(name)
        if override.description is not None:
            members["description"] = _json(override.description)
        if override.arguments:
            problems: list[str] = []
            members["inputSchema"] = _json(_schema(members, override, problems))
            warnings += [f"`tools` changes {tool.name!r}: {problem}" for problem in problems]
        if always_load:
            meta = wire.members_or_empty(members.get("_meta", Raw(b"{}")))
            members["_meta"] = _json({**meta, _ALWAYS_LOAD: True})
    except BadFrame as error:
        warnings.append(f"`tools` cannot change {tool.name!r}: {error}")
        return tool
    raw = wire.join_members(members)
    return tool if raw == tool.raw else Item(name, raw, tool)


def _schema(members: Mapping[str, Raw], override: ToolOverride, problems: list[str]) -> dict[str, object]:
    """Return the schema of the arguments that clients still see."""
    schema = wire.mapping(members.get("inputSchema"))
    shapes, required = schema.get("properties"), schema.get("required")
    shapes = dict(shapes) if isinstance(shapes, dict) else {}
    required = list(required) if isinstance(required, list) else []
    for name, argument in override.arguments.items():
        shown = shorten(name, 60)
        if name not in shapes:
            problems.append(f"it has no argument {shown!r}")
        elif argument.value is None and name in required:
            problems.append(f"{shown!r} is required, so it needs a `value` to be hidden")
        elif argument.value is not None and (wrong := _mismatch(shapes[name], argument.value)):
            problems.append(f"the `value` of {shown!r} {wrong}")
        shapes.pop(name, None)
        required = [each for each in required if each != name]
    return {**schema, "properties": shapes, "required": required}


def _mismatch(shape: object, value: object) -> str:
    """Return why a value does not match the type or enumeration in a schema; empty if it does."""
    if not isinstance(shape, dict):
        return ""
    values = shape.get("enum")
    if isinstance(values, list) and value not in values:
        return f"is none of {shorten(', '.join(map(str, values)))}"
    kinds = _TYPES.get(str(shape.get("type")), (object,))
    is_bool = isinstance(value, bool) and bool not in kinds and object not in kinds
    return "" if isinstance(value, kinds) and not is_bool else f"is no {shape.get('type')}"


def _json(value: object) -> Raw:
    return Raw(msgspec.json.encode(value))

"""The tools, resources, template, prompt and completion of the test server."""

from __future__ import annotations

import base64
import json
import time
from collections.abc import Callable
from typing import cast

from mcpd.testserver.request import (
    INVALID_PARAMS,
    LEGACY_NO_RESOURCE,
    Json,
    RequestError,
    TestServerRequest,
    mapping,
)

NAMES = ("Ada", "Alan", "Barbara", "Edsger", "Grace")
PIXEL = base64.b64encode(
    bytes.fromhex(
        "89504e470d0a1a0a0000000d49484452000000010000000108060000001f15c489"
        "0000000d49444154789c6360606060000000050001a5f645400000000049454e44ae426082"
    )
).decode()
MAX_SLEEP = 3600.0


def _object(properties: Json | None = None, required: tuple[str, ...] = ()) -> Json:
    return {"type": "object", "properties": properties or {}, "required": list(required)}


TOOLS: list[Json] = [
    {
        "name": "echo",
        "description": "Returns its text.",
        "inputSchema": _object({"text": {"type": "string"}}, ("text",)),
        "annotations": {"readOnlyHint": True},
    },
    {
        "name": "add",
        "description": "Adds two whole numbers.",
        "inputSchema": _object({"a": {"type": "integer"}, "b": {"type": "integer"}}, ("a", "b")),
        "annotations": {"readOnlyHint": True},
    },
    {
        "name": "fail",
        "description": "Always fails, as a tool does: with a result marked isError.",
        "inputSchema": _object({"message": {"type": "string"}}),
    },
    {
        "name": "slow",
        "description": "Takes its time (5 s), and reports its progress if asked to.",
        "inputSchema": _object(
            {
                "seconds": {"type": "number", "minimum": 0, "default": 5},
                "steps": {"type": "integer", "minimum": 1, "default": 5},
            }
        ),
        "annotations": {"readOnlyHint": True},
    },
    {
        "name": "json_response",
        "description": "Returns structured data.",
        "inputSchema": _object(),
        "outputSchema": _object(
            {
                "status": {"type": "string"},
                "numbers": {"type": "array", "items": {"type": "integer"}},
                "nested": _object({"ok": {"type": "boolean"}}, ("ok",)),
            },
            ("status", "numbers", "nested"),
        ),
        "annotations": {"readOnlyHint": True},
    },
]
RESOURCES: list[Json] = [
    {"uri": "test://greeting", "name": "greeting", "description": "A text.", "mimeType": "text/plain"},
    {"uri": "test://pixel.png", "name": "pixel", "description": "A picture.", "mimeType": "image/png"},
]
TEMPLATES: list[Json] = [
    {
        "uriTemplate": "test://echo/{text}",
        "name": "echo",
        "description": "Any text.",
        "mimeType": "text/plain",
    }
]
PROMPTS: list[Json] = [
    {
        "name": "greet",
        "description": "Asks for a greeting.",
        "arguments": [{"name": "name", "description": "Whom to greet.", "required": True}],
    }
]


def _call_tool(request: TestServerRequest) -> Json:
    name = request.params.get("name")
    tool = next((tool for tool in TOOLS if tool["name"] == name), None)
    if tool is None:
        raise RequestError(INVALID_PARAMS, f"Unknown tool: {name}")
    arguments = mapping(request.params.get("arguments", {}), "arguments")
    if complaint := _argument_error(cast("Json", tool["inputSchema"]), arguments):
        return _text(complaint, is_error=True)
    request.log("info", f"{name} was called")
    if name == "echo":
        return _text(cast("str", arguments["text"]))
    if name == "add":
        return _text(str(cast("int", arguments["a"]) + cast("int", arguments["b"])))
    if name == "fail":
        return _text(cast("str", arguments.get("message", "This tool always fails.")), is_error=True)
    if name == "slow":
        return _slow(
            request, cast("float", arguments.get("seconds", 5)), cast("int", arguments.get("steps", 5))
        )
    data: Json = {"status": "ok", "numbers": [1, 2, 3], "nested": {"ok": True}}
    structured: Json = {"structuredContent": data} if request.version >= "2025-06-18" else {}
    return _text(json.dumps(data)) | structured


def _slow(request: TestServerRequest, seconds: float, steps: int) -> Json:
    start = time.monotonic()
    for step in range(1, steps + 1):
        request.sleep(start + min(seconds, MAX_SLEEP) * step / steps)
        request.progress(step, steps)
    return _text(f"took {seconds:g} s")


def _text(text: str, *, is_error: bool = False) -> Json:
    return {"content": [{"type": "text", "text": text}], "isError": is_error}


def _argument_error(schema: Json, arguments: Json) -> str:
    """Return the first error in the arguments, or an empty text. Supports only the schemas above."""
    properties = cast("dict[str, Json]", schema["properties"])
    for name in cast("list[str]", schema["required"]):
        if name not in arguments:
            return f"Missing argument: {name}"
    kinds: dict[str, type | tuple[type, ...]] = {"string": str, "integer": int, "number": (int, float)}
    for name, value in arguments.items():
        if name not in properties:
            continue
        kind = cast("str", properties[name]["type"])
        if isinstance(value, bool) or not isinstance(value, kinds[kind]):
            return f"Argument {name} must be of type {kind}"
        if isinstance(value, (int, float)) and not value >= cast(
            "float", properties[name].get("minimum", value)
        ):
            return f"Argument {name} must be at least {properties[name]['minimum']}"
    return ""


def _list_tools(request: TestServerRequest) -> Json:
    hidden = {"annotations"} if request.version < "2025-03-26" else set()
    hidden |= {"outputSchema"} if request.version < "2025-06-18" else set()
    return {"tools": [{key: tool[key] for key in tool if key not in hidden} for tool in TOOLS]}


def _read(request: TestServerRequest) -> Json:
    uri = request.params.get("uri")
    if uri == "test://greeting":
        return {"contents": [{"uri": uri, "mimeType": "text/plain", "text": "Hello from the test server."}]}
    if uri == "test://pixel.png":
        return {"contents": [{"uri": uri, "mimeType": "image/png", "blob": PIXEL}]}
    if isinstance(uri, str) and uri.startswith("test://echo/"):
        from urllib.parse import unquote  # imported here because it is slow to import

        text = unquote(uri.removeprefix("test://echo/"))
        return {"contents": [{"uri": uri, "mimeType": "text/plain", "text": text}]}
    raise RequestError(
        INVALID_PARAMS if request.modern else LEGACY_NO_RESOURCE, "Resource not found", {"uri": uri}
    )


def _get_prompt(request: TestServerRequest) -> Json:
    if request.params.get("name") != "greet":
        raise RequestError(INVALID_PARAMS, f"Unknown prompt: {request.params.get('name')}")
    name = mapping(request.params.get("arguments", {}), "arguments").get("name")
    if not isinstance(name, str):
        raise RequestError(INVALID_PARAMS, "Missing argument: name")
    content = {"type": "text", "text": f"Please greet {name} warmly."}
    return {"description": "A greeting.", "messages": [{"role": "user", "content": content}]}


def _complete(request: TestServerRequest) -> Json:
    ref = mapping(request.params.get("ref"), "ref")
    argument = mapping(request.params.get("argument"), "argument")
    typed = argument.get("value")
    target = (ref.get("type"), ref.get("name", ref.get("uri")), argument.get("name"))
    known = {
        ("ref/prompt", "greet", "name"): NAMES,
        ("ref/resource", "test://echo/{text}", "text"): (),
    }
    if target not in known or not isinstance(typed, str):
        raise RequestError(INVALID_PARAMS, "Nothing here completes that")
    values = [name for name in known[target] if name.lower().startswith(typed.lower())]
    return {"completion": {"values": values, "total": len(values), "hasMore": False}}


def _one_page(key: str, items: list[Json]) -> Callable[[TestServerRequest], Json]:
    return lambda request: {key: items}


METHODS: dict[str, Callable[[TestServerRequest], Json]] = {
    "tools/list": _list_tools,
    "tools/call": _call_tool,
    "resources/list": _one_page("resources", RESOURCES),
    "resources/templates/list": _one_page("resourceTemplates", TEMPLATES),
    "resources/read": _read,
    "prompts/list": _one_page("prompts", PROMPTS),
    "prompts/get": _get_prompt,
    "completion/complete": _complete,
}

"""The test server without its transports: sessions, requests, tools, resources, prompt and completion."""

from __future__ import annotations

import base64
import json
import threading
import time
from collections.abc import Callable
from typing import cast

Json = dict[str, object]
Send = Callable[[object], None]

LEGACY = ("2025-11-25", "2025-06-18", "2025-03-26", "2024-11-05")
MODERN = ("2026-07-28",)
LEVELS = ("debug", "info", "notice", "warning", "error", "critical", "alert", "emergency")

PARSE_ERROR, INVALID_REQUEST, NO_METHOD, INVALID_PARAMS = -32700, -32600, -32601, -32602
LEGACY_NO_RESOURCE, HEADER_MISMATCH, UNSUPPORTED_VERSION = -32002, -32020, -32022


class RequestError(Exception):
    """Ends a request with a JSON-RPC error."""

    def __init__(self, code: int, message: str, data: object = None) -> None:
        super().__init__(message)
        self.error: Json = {"code": code, "message": message} | ({} if data is None else {"data": data})


class RequestCancelled(Exception):
    """Ends a request without a response because it was cancelled."""


class TestServerRequest:
    """A request that is being executed, with the means to send notifications to its client."""

    def __init__(self, message: Json, version: str, log_level: str | None, send: Send) -> None:
        self.id = message["id"]
        self.method = cast("str", message["method"])
        self.params = mapping(message.get("params", {}), "params")
        self.meta = mapping(self.params.get("_meta", {}), "params._meta")
        self.version = version
        self.modern = version in MODERN
        self.log_level = log_level
        self._send = send
        self.cancelled = threading.Event()
        self.hung_up: Callable[[], bool] | None = None
        """Returns whether the client has disconnected; None if only a notification cancels."""

    def progress(self, done: int, total: int) -> None:
        if (token := self.meta.get("progressToken")) is not None:
            params: Json = {"progressToken": token, "progress": done, "total": total}
            if self.version != "2024-11-05":
                params["message"] = f"step {done} of {total}"
            self._notify("notifications/progress", params)

    def log(self, level: str, text: str) -> None:
        """Send a log message if the client asked for logs of this level."""
        if self.log_level is not None and LEVELS.index(level) >= LEVELS.index(self.log_level):
            params: Json = {"level": level, "logger": "testserver", "data": text}
            self._notify("notifications/message", params)

    def sleep(self, until: float) -> None:
        """Sleep until a monotonic time. Raises RequestCancelled as soon as the request is cancelled."""
        while (left := until - time.monotonic()) > 0:
            if self.cancelled.wait(left if self.hung_up is None else min(left, 0.1)):
                raise RequestCancelled
            if self.hung_up is not None and self.hung_up():
                raise RequestCancelled

    def _notify(self, method: str, params: Json) -> None:
        self._send({"jsonrpc": "2.0", "method": method, "params": params})


def mapping(value: object, what: str) -> Json:
    """Return `value` if it is an object. Raises RequestError otherwise."""
    if not isinstance(value, dict):
        raise RequestError(INVALID_PARAMS, f"{what} must be an object")
    return value


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


INFO: Json = {"name": "mcpd-testserver", "version": "1"}
RESERVED = "io.modelcontextprotocol/"
CACHEABLE = {
    "server/discover",
    "tools/list",
    "resources/list",
    "resources/templates/list",
    "resources/read",
    "prompts/list",
}


class TestServerSession:
    """State of one client: in the legacy era the version and log level, in the modern era nothing."""

    def __init__(self) -> None:
        self.version: str | None = None
        self.log_level: str | None = None
        self.requests: dict[str, TestServerRequest] = {}

    def accept(self, message: Json, send: Send) -> TestServerRequest | None:
        """Parse one message. Replies to an invalid one; returns a request for the caller to `answer`."""
        if "method" not in message:
            return None  # a response, but this server sends no requests
        if "id" not in message:
            if message["method"] == "notifications/cancelled":
                params = message.get("params")
                request_key = json.dumps(params.get("requestId") if isinstance(params, dict) else None)
                if request_key in self.requests:
                    self.requests[request_key].cancelled.set()
            return None
        try:
            if not isinstance(message["method"], str) or type(message["id"]) not in (str, int):
                raise RequestError(INVALID_REQUEST, "Not a JSON-RPC request")
            request = self._parse_request(message, send)
        except RequestError as refused:
            usable = type(message["id"]) in (str, int)
            send({"jsonrpc": "2.0", **({"id": message["id"]} if usable else {}), "error": refused.error})
            return None
        self.requests[json.dumps(request.id)] = request
        return request

    def answer(self, request: TestServerRequest) -> Json | None:
        """Execute a request and return the response, or None if it was cancelled."""
        try:
            answer: Json = {"result": self._result(request)}
        except RequestError as refused:
            answer = {"error": refused.error}
        except RequestCancelled:
            return None
        finally:
            self.requests.pop(json.dumps(request.id), None)
        return {"jsonrpc": "2.0", "id": request.id, **answer}

    def _parse_request(self, message: Json, send: Send) -> TestServerRequest:
        """Parse a request. Modern requests name their version in `_meta`."""
        meta = mapping(mapping(message.get("params", {}), "params").get("_meta", {}), "params._meta")
        version = meta.get(f"{RESERVED}protocolVersion")
        if version is None and message["method"] != "server/discover":
            return TestServerRequest(message, self.version or LEGACY[0], self.log_level, send)
        if not isinstance(version, str) or not isinstance(meta.get(f"{RESERVED}clientCapabilities"), dict):
            raise RequestError(
                INVALID_PARAMS, "params._meta must have protocolVersion and clientCapabilities"
            )
        if version not in MODERN:
            data = {"supported": list(MODERN), "requested": version}
            raise RequestError(UNSUPPORTED_VERSION, "Unsupported protocol version", data)
        level = meta.get(f"{RESERVED}logLevel")
        if level is not None and level not in LEVELS:
            raise RequestError(INVALID_PARAMS, f"Unknown log level: {level}")
        return TestServerRequest(message, version, level, send)

    def _result(self, request: TestServerRequest) -> Json:
        if "cursor" in request.params and request.method.endswith("/list"):
            raise RequestError(INVALID_PARAMS, "Unknown cursor: every list here is one page")
        if request.modern:
            method = _discover if request.method == "server/discover" else METHODS.get(request.method)
            if method is None:
                raise RequestError(NO_METHOD, f"Method not found: {request.method}")
            hints: Json = {"ttlMs": 60000, "cacheScope": "public"} if request.method in CACHEABLE else {}
            identity: Json = {"_meta": {f"{RESERVED}serverInfo": INFO}}
            return method(request) | {"resultType": "complete"} | hints | identity
        if request.method == "initialize":
            return self._initialize(request)
        if request.method == "ping":
            return {}
        if self.version is None:
            raise RequestError(
                INVALID_REQUEST, "Send initialize first, or the modern _meta with each request"
            )
        if request.method == "logging/setLevel":
            if (level := request.params.get("level")) not in LEVELS:
                raise RequestError(INVALID_PARAMS, f"Unknown log level: {level}")
            self.log_level = level
            return {}
        if request.method not in METHODS:
            raise RequestError(NO_METHOD, f"Method not found: {request.method}")
        return METHODS[request.method](request)

    def _initialize(self, request: TestServerRequest) -> Json:
        wanted = request.params.get("protocolVersion")
        self.version = wanted if isinstance(wanted, str) and wanted in LEGACY else LEGACY[0]
        return {
            "protocolVersion": self.version,
            "capabilities": _capabilities(self.version),
            "serverInfo": INFO,
            "instructions": "A server for demos and tests.",
        }


def _capabilities(version: str) -> Json:
    completions: Json = {"completions": {}} if version != "2024-11-05" else {}
    return {"tools": {}, "resources": {}, "prompts": {}, "logging": {}} | completions


def _discover(_: TestServerRequest) -> Json:
    return {"supportedVersions": [*MODERN, *LEGACY], "capabilities": _capabilities(MODERN[0])}

"""The session of one client of the test server, in both protocol eras."""

from __future__ import annotations

import json

from mcpd.testserver.features import METHODS
from mcpd.testserver.request import (
    INVALID_PARAMS,
    INVALID_REQUEST,
    LEGACY,
    LEVELS,
    MODERN,
    NO_METHOD,
    UNSUPPORTED_VERSION,
    Json,
    RequestCancelled,
    RequestError,
    Send,
    TestServerRequest,
    mapping,
)

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

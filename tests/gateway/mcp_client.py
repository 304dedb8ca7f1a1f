"""An MCP client of any revision on the daemon's socket. Everything it receives must be valid in its
revision."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from typing import Any

from tests.e2e.harness import Client, Daemon, Json, Refused
from tests.gateway.valid import complaints

MODERN = "2026-07-28"
LEGACY = ("2025-11-25", "2025-06-18", "2025-03-26", "2024-11-05")
VERSIONS = (MODERN, *LEGACY)
P = "io.modelcontextprotocol/"
CAPABLE: Json = {"elicitation": {"form": {}, "url": {}}, "sampling": {}, "roots": {"listChanged": True}}
Answer = Callable[[str, Json], Json]
"""Given a question's method and params, returns the bare result, or {"code", "message"} to refuse."""


def meta(capabilities: Json | None = None, **more: Any) -> Json:
    """Return `_meta` of a modern request."""
    return {
        f"{P}protocolVersion": MODERN,
        f"{P}clientCapabilities": {} if capabilities is None else capabilities,
        f"{P}clientInfo": {"name": "test", "version": "1"},
        **more,
    }


class McpClient:
    """Speaks one revision. `asked` and `heard` hold the requests and notifications it received, in order."""

    def __init__(
        self,
        daemon: Daemon,
        version: str,
        *,
        server: str | None = None,
        capabilities: Json | None = None,
        answer: Answer | None = None,
        **attach: Any,
    ) -> None:
        self.version = version
        self.modern = version == MODERN
        self.capabilities = CAPABLE if capabilities is None else capabilities
        self.asked: list[tuple[str, Json]] = []
        self._methods: dict[int, str] = {}
        self.check = True
        self._answer = answer
        self.line: Client = daemon.client()
        if server is not None or attach:
            self.line.request("mcpd/attach", server=server, **attach)
        self.hello: Json = {}
        if not self.modern:
            me = {"name": "test", "version": "1"}
            self.hello = self.wait(
                self.send(
                    "initialize", protocolVersion=version, capabilities=self.capabilities, clientInfo=me
                )
            )
            self.line.notify("notifications/initialized")

    @property
    def heard(self) -> list[Json]:
        return self.line.notifications

    def request(self, method: str, **params: Any) -> Json:
        """Return the final result, after answering the server's questions. Raises Refused."""
        return self.request_all(method, [params])[0]

    def request_all(self, method: str, wanted: Sequence[Json]) -> list[Json]:
        """Send several requests at the same time, and return their results."""
        results: list[Json] = [{}] * len(wanted)
        waiting = {self.send(method, **params): (place, params) for place, params in enumerate(wanted)}
        while waiting:
            while not (come := waiting.keys() & self.line._answers.keys()):
                self._read()
            key = min(come)
            place, params = waiting.pop(key)
            result = self.wait(key)
            if result.get("resultType") != "input_required":
                results[place] = result
                continue
            answers = {
                name: self._answered(asked["method"], asked.get("params", {}))
                for name, asked in result.get("inputRequests", {}).items()
            }
            params = {**params, "inputResponses": answers}
            params.pop("requestState", None)
            if "requestState" in result:
                params["requestState"] = result["requestState"]
            waiting[self.send(method, **params)] = (place, params)
        return results

    def send(self, method: str, **params: Any) -> int:
        if self.modern:
            own = params.pop("_meta", {})
            params["_meta"] = {**meta(self.capabilities), **own}
        key = self.line.send(method, **params)
        self._methods[key] = method
        return key

    def wait(self, key: int) -> Json:
        """Return the result of a request, answering questions meanwhile. Raises Refused."""
        answers = self.line._answers
        while key not in answers:
            self._read()
        message = answers.pop(key)
        if "error" in message:
            raise Refused(message["error"])
        return dict(message["result"])

    def call(self, tool: str, arguments: Json | None = None) -> str:
        """Call a tool and return its text."""
        return str(self.request("tools/call", name=tool, arguments=arguments or {})["content"][0]["text"])

    def wait_heard(self, method: str) -> Json:
        """Return the next notification of that method, skipping others."""
        while True:
            for index, message in enumerate(self.heard):
                if message["method"] == method:
                    return self.heard.pop(index)
            self._read()

    def _read(self) -> None:
        """Read the next message, and check it against the schema of the client's revision."""
        message = json.loads(self.line.read_line())
        method = self._methods.get(message.get("id"), "") if "method" not in message else ""
        assert not self.check or complaints(self.version, message, method) == [], message
        if "method" in message and "id" in message:
            self._be_asked(message)
        else:
            self.line._take(json.dumps(message).encode())

    def _be_asked(self, message: Json) -> None:
        answer = self._answered(message["method"], message.get("params", {}))
        member = "error" if "code" in answer else "result"
        self.line.send_raw(json.dumps({"jsonrpc": "2.0", "id": message["id"], member: answer}).encode())

    def _answered(self, method: str, params: Json) -> Json:
        self.asked.append((method, params))
        if method == "roots/list" and self._answer is None:
            return {"roots": []}
        assert self._answer is not None, f"asked {method}, and has no answer"
        return self._answer(method, params)

"""An editor, the session of its bridge, and one daemon after another, all in memory."""

from __future__ import annotations

import json
from collections import Counter, deque
from typing import Any

from ctl.bridge.editor_session import EditorSession

Json = dict[str, Any]
META = {
    "io.modelcontextprotocol/protocolVersion": "2026-07-28",
    "io.modelcontextprotocol/clientCapabilities": {},
}
SUBSCRIPTION = "io.modelcontextprotocol/subscriptionId"
HELLO = {"protocolVersion": "2025-11-25", "capabilities": {}, "clientInfo": {"name": "ed", "version": "1"}}
PROMISED = {
    "tools": {"listChanged": True},
    "prompts": {"listChanged": False},
    "resources": {"listChanged": True},
}
CHANGED = ["notifications/tools/list_changed", "notifications/resources/list_changed"]


class OneDaemon:
    """One run of a daemon: its state and its responses."""

    def __init__(self, ran: Counter[object]) -> None:
        self.ran = ran
        """Calls by their argument, over all lives."""
        self.hello: Json | None = None
        self.initialized = False
        self.level: str | None = None
        self.subscribed: set[str] = set()
        self.listens: set[object] = set()
        self.seen: list[Json] = []
        self.refuse: dict[str, Json] = {}
        self.unknown: set[str] = set()
        """URIs of servers that are not there yet."""
        self.version = "2025-11-25"

    def take(self, line: bytes) -> list[Json]:
        message = json.loads(line)
        self.seen.append(message)
        method, key = message.get("method"), message.get("id")
        params = message.get("params", {})
        if method in self.refuse:
            return [{"jsonrpc": "2.0", "id": key, "error": self.refuse[method]}]
        if method == "resources/subscribe" and params["uri"] in self.unknown:
            return [{"jsonrpc": "2.0", "id": key, "error": {"code": -32002, "message": "no such resource"}}]
        result: Json = {}
        match method:
            case "initialize":
                self.hello = params
                result = {"protocolVersion": self.version, "capabilities": PROMISED, "serverInfo": {}}
            case "notifications/initialized":
                self.initialized = True
            case "logging/setLevel":
                self.level = params["level"]
            case "resources/subscribe":
                self.subscribed.add(params["uri"])
            case "resources/unsubscribe":
                self.subscribed.discard(params["uri"])
            case "notifications/cancelled":
                self.listens.discard(params["requestId"])
            case "tools/call":
                self.ran[params["arguments"]["n"]] += 1
                result = {"content": []}
            case "subscriptions/listen":
                assert key not in self.listens
                self.listens.add(key)
                asked = params["notifications"]
                uris = [uri for uri in asked.get("resourceSubscriptions", []) if uri not in self.unknown]
                received = {
                    "notifications": {**asked, "resourceSubscriptions": uris},
                    "_meta": {SUBSCRIPTION: key},
                }
                method = "notifications/subscriptions/acknowledged"
                return [{"jsonrpc": "2.0", "method": method, "params": received}]
        return [{"jsonrpc": "2.0", "id": key, "result": result}] if method and "id" in message else []


class World:
    """An editor, its session in the bridge, and one daemon after another."""

    def __init__(self) -> None:
        self.got: list[Json] = []
        """What the editor was sent."""
        self.wire: deque[bytes] = deque()
        """On the way to the daemon."""
        self.back: deque[Json] = deque()
        self.ran: Counter[object] = Counter()
        self.daemon = OneDaemon(self.ran)
        self.logged: list[str] = []
        self.now = 0.0
        self.books = EditorSession(
            lambda line: self.got.append(json.loads(line)), self.wire.append, self.logged.append
        )

    def say(self, method: str, params: Json | None = None, key: object = None) -> None:
        message: Json = {"jsonrpc": "2.0", "method": method}
        if key is not None:
            message["id"] = key
        if params is not None:
            message["params"] = params
        self.send(json.dumps(message))

    def send(self, line: str | bytes) -> None:
        self.books.from_editor((line if isinstance(line, bytes) else line.encode()) + b"\n", self.now)

    def deliver(self, count: int = 1000) -> None:
        """Let the daemon take `count` lines."""
        for _ in range(min(count, len(self.wire))):
            self.back += self.daemon.take(self.wire.popleft())

    def answer(self, count: int = 1000) -> None:
        """Let `count` lines of the daemon arrive."""
        for _ in range(min(count, len(self.back))):
            self.hear(self.back.popleft())

    def hear(self, message: Json) -> None:
        self.books.from_daemon(json.dumps(message).encode() + b"\n", self.now)

    def settle(self) -> None:
        while self.wire or self.back:
            self.deliver()
            self.answer()

    def kill(self, unwritten: int = 0) -> None:
        """End the daemon. The last `unwritten` lines were not sent; it may have read the others."""
        left = [self.wire[index] for index in range(len(self.wire))][-unwritten:] if unwritten else []
        for _ in left:
            self.wire.pop()
        self.deliver()  # it may well have run them, at the last moment
        self.wire.clear()
        self.back.clear()
        self.books.on_disconnected("mcpd closed the connection", left, self.now)

    def come(self) -> None:
        """Start and attach to another daemon."""
        self.daemon = OneDaemon(self.ran)
        self.books.on_connected()

    def restart(self) -> None:
        self.kill()
        self.come()
        self.settle()

    def begin(self) -> None:
        """Complete a legacy handshake."""
        if not self.books.connected:
            self.come()
        self.say("initialize", HELLO, "hello")
        self.settle()
        self.say("notifications/initialized")
        self.settle()

    def answers(self, key: object) -> list[Json]:
        return [m for m in self.got if m.get("id") == key and "method" not in m]

    def methods(self) -> list[str]:
        return [m["method"] for m in self.got if "method" in m]

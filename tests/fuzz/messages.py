"""Plausible messages of clients and servers, before they are written with mistakes."""

from __future__ import annotations

import json
from contextlib import suppress

from tests.fuzz.generate import (
    CANARIES,
    DIE,
    NAMES,
    Json,
    Spelled,
    Writer,
    garble,
    huge_value,
    odd_value,
    split,
)

P = "io.modelcontextprotocol/"
REVISIONS = ("2026-07-28", "2025-11-25", "2025-06-18", "2025-03-26", "2024-11-05", "2099-01-01", "")
CALM = "calm"
"""The bystander's server. No case may stop or remove it."""
SERVERS = ("odd", "hostile", "web", CALM, "nobody", "*", "")
TOOLS = (
    *CANARIES.values(),
    *split("""
    echo case echo echo notify junk odd raw ask wants job progress typed fail
    error late deep big stderr change meta counts exact drop nobody hostile__case odd__echo
    """),
)
METHODS = split(
    """
    initialize ping tools/list tools/call tools/call tools/call resources/list
    resources/templates/list resources/read resources/subscribe resources/unsubscribe prompts/list
    prompts/get completion/complete logging/setLevel server/discover subscriptions/listen tasks/get
    tasks/result roots/list sampling/createMessage elicitation/create rpc.discover nobody/knows
    """
)
NOTIFICATIONS = split(
    """
    notifications/initialized notifications/cancelled notifications/progress notifications/message
    notifications/roots/list_changed notifications/tools/list_changed notifications/resources/updated
    notifications/resources/list_changed notifications/prompts/list_changed
    notifications/elicitation/complete notifications/subscriptions/acknowledged
    notifications/tasks/status
    """
)
CONTROL = split(
    """
    status status server tools resources prompts prompt read complete call call call connect
    disconnect reconnect enable disable add remove reload config history clients stats metrics page
    ping version events logs tap attach servers/set nobody
    """
)
FORBIDDEN = {"mcpd/shutdown", "mcpd/servers/set"}
_HARMLESS = {
    "mcpd/server",
    "mcpd/tools",
    "mcpd/stats",
    "mcpd/logs",
    "mcpd/tap",
    "mcpd/events",
    "mcpd/history",
}
"""The control methods that may name the bystander's server: the fake server crashes at odd requests."""


def is_allowed(line: bytes) -> bool:
    """Return whether a line leaves the daemon and the bystander's server running."""
    text = line.decode("utf-8", "replace")
    if "shutdown" not in text and CALM not in text and "servers/set" not in text and "\\u00" not in text:
        return True
    found: Json = None
    with suppress(ValueError, RecursionError):
        found = json.loads(text.replace("\0", ""))
    for each in found if isinstance(found, list) else [found]:
        if not isinstance(each, dict):
            if found is None and ("mcpd/" in text or "\\u00" in text):
                return False  # it cannot be read here, but perhaps there
            continue
        method, params = each.get("method"), each.get("params")
        server = params.get("server") if isinstance(params, dict) else None
        if isinstance(params, dict) and str(params.get("name")).startswith(CALM):
            return False
        if str(method) in FORBIDDEN or (server == CALM and str(method) not in _HARMLESS):
            return False
    return True


def arguments(dice: DIE) -> Json:
    given: Json = {"case": dice.randrange(1 << 30)}
    for _ in range(dice.randrange(4)):
        given[
            dice.choice(("n", "seconds", "count", "lines", "kind", "text", "depth", "method", "params", "mb"))
        ] = dice.choice(
            (1, 0, -1, 0.01, 3, "junk", "batch", "utf8", "crlf", {}, [], "notifications/message", "ping")
        )
    given.pop("mb", None)
    if dice.random() < 0.003:
        given["x"] = huge_value(dice)
    return given


def identity(dice: DIE) -> Json:
    if dice.random() < 0.9:
        return dice.randrange(1, 40)
    return dice.choice(("a", "1", 1.5, -1, 0, "", "x" * 2000, Spelled(b"null"), odd_value(dice), 2**70))


def capabilities(dice: DIE) -> Json:
    return {
        name: dice.choice(({}, {"form": {}, "url": {}}, {"listChanged": True}, {"subscribe": True}, [], None))
        for name in ("elicitation", "sampling", "roots", "tools", "resources", "prompts", "logging", "tasks")
        if dice.random() < 0.4
    }


def meta(dice: DIE) -> Json:
    found: Json = {}
    if dice.random() < 0.6:
        found[f"{P}protocolVersion"] = "2026-07-28" if dice.random() < 0.9 else dice.choice(REVISIONS)
        found[f"{P}clientCapabilities"] = capabilities(dice)
        found[f"{P}clientInfo"] = {"name": "fuzz", "version": "1"}
    if dice.random() < 0.3:
        found["progressToken"] = dice.choice((1, "t", 1.5, None, {}, []))
    if dice.random() < 0.2:
        found[f"{P}logLevel"] = dice.choice(("debug", "info", "loud", 5))
    return found


def params(dice: DIE, method: str) -> Json:
    """Return params that such a method may have."""
    found: Json = {}
    secret = dice.choice(tuple(CANARIES.values()))
    uri = dice.choice(
        ("fake://one", "file:///a/b", "mcpd://odd/fake://one", f"db://a:{secret}@h/?k={secret}", "a:/x/x", "")
    )
    match method:
        case "initialize":
            found = {
                "protocolVersion": dice.choice(REVISIONS),
                "capabilities": capabilities(dice),
                "clientInfo": {"name": dice.choice(("fuzz", "fuzz", secret)), "version": "1"},
            }
        case "tools/call":
            found = {"name": dice.choice(TOOLS), "arguments": arguments(dice)}
        case "prompts/get":
            found = {"name": "hello", "arguments": {"a": "b"}}
        case "completion/complete":
            found = {"ref": {"type": "ref/prompt", "name": "hello"}, "argument": {"name": "a", "value": "b"}}
        case "logging/setLevel":
            found = {"level": dice.choice(("debug", "error", "loud"))}
        case "subscriptions/listen":
            wanted = {f"{name}ListChanged": True for name in ("tools", "resources", "prompts")}
            found = {"notifications": {**wanted, "resourceSubscriptions": [uri] * dice.randrange(4)}}
        case "notifications/cancelled":
            found = {"requestId": identity(dice), "reason": "why"}
        case "notifications/progress":
            found = {"progressToken": identity(dice), "progress": dice.random(), "total": 1, "message": "m"}
        case "notifications/message":
            found = {"level": dice.choice(("info", "debug", "loud")), "logger": "l", "data": odd_value(dice)}
        case "elicitation/create":
            found = {
                "message": "really?",
                "mode": dice.choice(("form", "url")),
                "url": "http://localhost/",
                "elicitationId": "e1",
                "requestedSchema": {"type": "object", "properties": {"a": {"type": "string"}}},
            }
        case "sampling/createMessage":
            found = {"messages": [{"role": "user", "content": {"type": "text", "text": "x"}}], "maxTokens": 5}
        case "tasks/get" | "tasks/result":
            found = {"taskId": dice.choice(("t1", "", 5))}
        case _ if "resources" in method or method in ("roots/list",):
            found = {"uri": uri, "cursor": dice.choice(("", "1", None))}
        case _ if dice.random() < 0.3:
            found = {"cursor": dice.choice(("", "page-1", 5))}
    if dice.random() < 0.4:
        found["_meta"] = meta(dice)
    if dice.random() < 0.05:
        found["inputResponses"] = {"q": {"action": "accept", "content": {"a": "b"}}}
        found["requestState"] = dice.choice(("p.1", "s.x", "", odd_value(dice)))
    if dice.random() < 0.003:
        found[dice.choice(NAMES)] = huge_value(dice)
    return found


def control_params(dice: DIE, method: str) -> Json:
    server = dice.choice(SERVERS)
    wait = dice.choice((0, 0.01, 0.05, -1))
    match method:
        case "call":
            found: Json = {"server": server, "tool": dice.choice(TOOLS), "arguments": arguments(dice)}
            if dice.random() < 0.5:
                found["timeout"] = dice.choice((0.2, 1, 0.01, 0, -1))
            found["raw"] = dice.random() < 0.5
            if dice.random() < 0.2:
                found["_meta"] = meta(dice)
        case "connect" | "disconnect" | "reconnect" | "enable" | "disable" | "ping":
            found = {"server": server, "wait": wait}
        case "add" | "remove":
            name = dice.choice(("extra-1", "extra-2", "a b", "", "x" * 65, "odd"))
            found = {"server": name if method == "add" and name != "odd" else "extra-1", "save": False}
            if method == "add":
                found["definition"] = definition(dice)
        case "tools" | "resources" | "prompts" | "server" | "stats":
            found = {"server": server} if dice.random() < 0.7 or method == "server" else {}
        case "prompt":
            found = {"server": server, "prompt": "hello", "arguments": {"a": "b"}}
        case "read":
            found = {"server": server, "uri": "fake://one"}
        case "complete":
            found = {
                "server": server,
                "ref": {"type": "ref/prompt", "name": "hello"},
                "argument": {"name": "a"},
            }
        case "logs":
            found = {"server": server, "lines": dice.choice((0, 1, 10**9, -1)), "follow": dice.random() < 0.5}
        case "tap":
            found = {"server": server, "methods": ["*"], "limit": dice.choice((0, 100, 262144, 10**9))}
        case "events":
            found = {"servers": [server]}
        case "attach":
            found = {
                "server": dice.choice((server, None)),
                "wait": wait,
                "client": {"name": "fuzz", "cwd": "/"},
            }
        case "history":
            found = {"server": server, "limit": dice.choice((1, 0, 10**12))}
        case _:
            found = {}
    if dice.random() < 0.05:
        found[dice.choice(NAMES)] = odd_value(dice)
    return found


def definition(dice: DIE) -> Json:
    """Return a server's definition; most of them cannot start."""
    found: Json = dice.choice(
        (
            {"command": "/nonexistent/program"},
            {"command": "true", "args": ["a", "\u202e"]},
            {"command": "cat", "env": {"A": "${B}", "C": "x"}},
            {"url": "http://127.0.0.1:9/mcp", "headers": {"A": "b"}},
            {"url": "ws://127.0.0.1:9/"},
            {"command": "sh", "args": ["-c", "echo no; exit 3"], "cwd": "/nonexistent"},
        )
    )
    extra = {
        "lazy": True,
        "timeout": dice.choice((1, "5s", -1)),
        "restart": {"base": 60},
        "includeTools": ["a*", "[", "*" * 30],
        "share": dice.choice(("all", "client", "root")),
        "maxQueued": dice.choice((0, 3, -1)),
        "protocol": dice.choice(("legacy", "modern", "x")),
    }
    soon = {"connectTimeout": 2000, "timeout": 1500}  # requests may wait for it
    return {**found, **soon, **{name: extra[name] for name in extra if dice.random() < 0.2}}


def client_message(dice: DIE) -> Json:
    """Return a message of an MCP client."""
    kind = dice.random()
    if kind < 0.75:
        method = dice.choice(METHODS)
        return {"jsonrpc": "2.0", "id": identity(dice), "method": method, "params": params(dice, method)}
    if kind < 0.9:
        method = dice.choice(NOTIFICATIONS)
        return {"jsonrpc": "2.0", "method": method, "params": params(dice, method)}
    return {"jsonrpc": "2.0", "id": identity(dice), **response(dice)}


def control_message(dice: DIE) -> Json:
    name = dice.choice(CONTROL)
    return {
        "jsonrpc": "2.0",
        "id": identity(dice),
        "method": f"mcpd/{name}",
        "params": control_params(dice, name),
    }


def block(dice: DIE) -> Json:
    return dice.choice(
        (
            {"type": "text", "text": "hello"},
            {"type": "image", "data": "AAAA", "mimeType": "image/png"},
            {"type": "audio", "data": "AAAA", "mimeType": "audio/wav"},
            {"type": "resource_link", "uri": "file:///x", "name": "x"},
            {"type": "resource", "resource": {"uri": "file:///x", "text": "t", "_meta": {}}},
            {"type": "nobody", "annotations": {"lastModified": "x"}},
        )
    )


def response(dice: DIE) -> Json:
    """Return the result or error of any request."""
    if dice.random() < 0.15:
        data: Json = {"elicitations": [{"url": "http://x/", "message": "m", "elicitationId": "e"}]}
        text = dice.choice(("no", "no", f"cannot log in with {dice.choice(tuple(CANARIES.values()))}"))
        return {"error": {"code": dice.choice((-32601, -32042, -32602, 1)), "message": text, "data": data}}
    kind = dice.randrange(8)
    tool: Json = {
        "name": dice.choice(("case", "other", "a" * 70, "case", CANARIES["env"])),
        "inputSchema": schema(dice),
        "outputSchema": schema(dice),
        "annotations": {"readOnlyHint": True, "title": "t"},
        "execution": {"taskSupport": "required"},
    }
    results: tuple[Json, ...] = (
        {"content": [block(dice) for _ in range(dice.randrange(4))], "isError": dice.random() < 0.2},
        {"content": [], "structuredContent": dice.choice(({"n": 1}, [1], "x", {"n": "x"}))},
        {"tools": [tool] * dice.randrange(4), "nextCursor": dice.choice(("1", "", None, 5))},
        {
            "resources": [{"uri": "fake://one", "name": "n"}],
            "resourceTemplates": [],
            "prompts": [{"name": "p"}],
        },
        {"resultType": "input_required", "inputRequests": {"q": client_question(dice)}, "requestState": "s"},
        {"resultType": "task", "task": {"taskId": "t1", "status": "working", "pollIntervalMs": 10}},
        {"roots": [{"uri": "file:///x", "name": "x"}], "action": "accept", "content": {"a": "b"}},
        {"contents": [{"uri": "fake://one", "text": "t"}], "messages": [], "completion": {"values": ["v"]}},
    )
    found: Json = dict(results[kind])
    if dice.random() < 0.5:
        found["resultType"] = found.get("resultType", "complete")
        found |= {
            "ttlMs": dice.choice((0, 5000, -1, 1e308)),
            "cacheScope": dice.choice(("private", "public")),
        }
    if dice.random() < 0.2:
        found["_meta"] = meta(dice)
    if dice.random() < 0.01:
        found[dice.choice(tuple(found))] = huge_value(dice)
    return {"result": found}


def schema(dice: DIE) -> Json:
    return dice.choice(
        (
            {"type": "object"},
            {
                "type": "object",
                "properties": {"n": {"type": "integer", "x-mcp-header": "X-N"}},
                "required": ["n"],
            },
            {
                "type": "object",
                "properties": {"s": {"pattern": "[\\p{L}\\p{N}]{18}x" * dice.randrange(1, 9)}},
            },
            {"$ref": "#"},
            {"$ref": "http://127.0.0.1:9/schema"},
            {"type": "object", "anyOf": [{"required": ["a"]}, {"not": {}}], "pattern": "(a+)+$"},
            {"type": 5},
            True,
            "object",
        )
    )


def client_question(dice: DIE) -> Json:
    method = dice.choice(("elicitation/create", "sampling/createMessage", "roots/list", "ping", "nobody"))
    return {"method": method, "params": params(dice, method)}


def line(message: Json, dice: DIE) -> bytes:
    """Write a message on one line, perhaps with mistakes, perhaps as a batch."""
    writer = Writer(dice)
    data = writer.write(message)
    if dice.random() < 0.02 and len(data) < 10_000:
        data = b"[" + b",".join([data] * dice.choice((1, 2, 30, 200))) + b"]"
    return garble(data, dice)

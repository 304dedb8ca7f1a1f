"""An MCP server over stdio that records each call that it executes in a file, before it answers.

    python -I -S ledger_server.py NAME FILE [--era legacy|modern]

Standard library only. Both tools take a `token` and answer "NAME TOKEN": `run` declares nothing, so mcpd
assumes that it may change something, and `look` declares that it only reads. Calls that are read together
are answered in random order.
"""

from __future__ import annotations

import json
import os
import random
import sys
from typing import Any

Json = dict[str, Any]
LEGACY, MODERN = "2025-11-25", "2026-07-28"
TOOLS = [
    {"name": "run", "inputSchema": {"type": "object"}},
    {"name": "look", "inputSchema": {"type": "object"}, "annotations": {"readOnlyHint": True}},
]
CAPABILITIES: Json = {"tools": {}}
IDENTITY = {"name": "ledger", "version": "1"}


def result(name: str, ledger: int, era: str, method: str, params: Json) -> Json | None:
    """Return the result of a request; None if the method does not exist."""
    if method == "tools/call":
        token = params["arguments"]["token"]
        os.write(ledger, f"{token}\n".encode())
        return {"content": [{"type": "text", "text": f"{name} {token}"}]}
    if method == "tools/list":
        return {"tools": TOOLS, **({"ttlMs": 0, "cacheScope": "private"} if era == "modern" else {})}
    if era == "modern":
        if method == "server/discover":
            return {
                "supportedVersions": [MODERN],
                "capabilities": CAPABILITIES,
                "ttlMs": 0,
                "cacheScope": "private",
                "_meta": {"io.modelcontextprotocol/serverInfo": IDENTITY},
            }
    elif method == "initialize":
        return {"protocolVersion": LEGACY, "capabilities": CAPABILITIES, "serverInfo": IDENTITY}
    return {} if method == "ping" else None


def main() -> None:
    name, file, *flags = sys.argv[1:]
    era = "modern" if "modern" in flags else "legacy"
    ledger = os.open(file, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600)
    pending = b""
    while portion := os.read(0, 1 << 16):
        *lines, pending = (pending + portion).split(b"\n")
        answers = []
        for line in lines:
            request = json.loads(line)
            if "id" not in request or "method" not in request:
                continue
            answer: Json = {"jsonrpc": "2.0", "id": request["id"]}
            found = result(name, ledger, era, request["method"], request.get("params", {}))
            if found is None:
                answer["error"] = {"code": -32601, "message": f"no method {request['method']}"}
            else:
                answer["result"] = {"resultType": "complete", **found} if era == "modern" else found
            answers.append(json.dumps(answer).encode() + b"\n")
        random.shuffle(answers)
        data = memoryview(b"".join(answers))
        while data:
            data = data[os.write(1, data) :]


if __name__ == "__main__":
    main()

"""An MCP server over stdio that lists the tools of a real one, and gives each call the same short result.

python listed_server.py FILE NAME
"""

from __future__ import annotations

import gzip
import json
import sys

TEXT = "ok: " + "the result of this step, which has about sixty tokens as usual short results do. " * 3


def serve(path: str, name: str) -> None:
    with gzip.open(path) as file:
        tools = next(server["tools"] for server in json.load(file)["servers"] if server["name"] == name)
    hello = {
        "protocolVersion": "2025-11-25",
        "capabilities": {"tools": {}},
        "serverInfo": {"name": name, "version": "1"},
    }
    results: dict[str, object] = {
        "initialize": hello,
        "ping": {},
        "tools/list": {"tools": tools},
        "tools/call": {"content": [{"type": "text", "text": TEXT}]},
    }
    for line in sys.stdin:
        message = json.loads(line)
        if "id" in message and "method" in message:
            answer: dict[str, object] = {"jsonrpc": "2.0", "id": message["id"]}
            if message["method"] in results:
                answer["result"] = results[message["method"]]
            else:
                answer["error"] = {"code": -32601, "message": "no such method"}
            print(json.dumps(answer), flush=True)


if __name__ == "__main__":
    serve(sys.argv[1], sys.argv[2])

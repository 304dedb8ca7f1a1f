"""A server that repeats its secrets wherever a server can write: names, addresses, errors and notifications.

    python -I -S telltale.py [--refuse]    with the secrets in SECRETS

What it does not know is refused with an error, `initialize` as well with --refuse.
"""

from __future__ import annotations

import json
import os
import sys
from typing import Any

SECRETS = os.environ["SECRETS"]
NAME = os.environ["NAME"]


def write(**message: Any) -> None:
    print(json.dumps({"jsonrpc": "2.0", **message}), flush=True)


def error() -> dict[str, Any]:
    return {"error": {"code": -32000, "message": f"I know {SECRETS}", "data": {"tail": SECRETS}}}


def answer(method: str, params: Any) -> dict[str, Any]:
    match method:
        case "initialize" if "--refuse" not in sys.argv:
            return {
                "result": {
                    "protocolVersion": "2025-11-25",
                    "capabilities": {
                        "tools": {"listChanged": True},
                        "resources": {},
                        "prompts": {},
                        "logging": {},
                    },
                    "serverInfo": {"name": NAME, "title": SECRETS, "version": NAME, "websiteUrl": SECRETS},
                    "instructions": SECRETS,
                }
            }
        case "tools/list":
            tool = {"name": NAME, "description": SECRETS, "inputSchema": {"type": "object"}}
            return {"result": {"tools": [tool]}}
        case "resources/list":
            return {
                "result": {"resources": [{"uri": f"db://ann:{NAME}@host/table?key={NAME}", "name": NAME}]}
            }
        case "tools/call":
            message = {"level": "error", "logger": NAME, "data": SECRETS}
            write(method="notifications/message", params=message)
            token = params.get("_meta", {}).get("progressToken")
            if token is not None:
                progress = {"progressToken": token, "progress": 1, "message": SECRETS}
                write(method="notifications/progress", params=progress)
            write(method=f"notifications/{NAME}", params={})
            write(id=NAME, method=f"{NAME}/ask", params={})
            write(id=NAME, result={})
            print(SECRETS, flush=True)
    return error()


for line in sys.stdin:
    request = json.loads(line)
    if "id" in request and "method" in request:
        write(id=request["id"], **answer(request["method"], request.get("params")))

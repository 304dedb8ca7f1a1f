# mypy: ignore-errors
# Written for the SDK in .venv-mcp1; the one that mypy sees has other types of the same names.
"""The official Python SDK 1.x as a client that stays: it is told each call, and tells each change.

Its arguments are a server with a `url`, as in an `mcpServers` file, and a resource to subscribe to. On stdin,
each line is a tool and its arguments. On stdout, each line has one member: `ready`, `text` of a result,
`updated`, or `failed`.
"""

from __future__ import annotations

import asyncio
import json
import sys
from typing import Any

from mcp import ClientSession, types
from mcp.client.streamable_http import streamablehttp_client


def tell(**what: Any) -> None:
    print(json.dumps(what), flush=True)


async def on_message(message: Any) -> None:
    note = getattr(message, "root", None)
    if isinstance(note, types.ResourceUpdatedNotification):
        tell(updated=str(note.params.uri))


async def main(server: dict[str, Any], uri: str) -> None:
    lines = asyncio.StreamReader()
    await asyncio.get_running_loop().connect_read_pipe(lambda: asyncio.StreamReaderProtocol(lines), sys.stdin)
    async with (
        streamablehttp_client(server["url"], headers=server.get("headers")) as (reading, writing, _),
        ClientSession(reading, writing, message_handler=on_message) as session,
    ):
        await session.initialize()
        await session.subscribe_resource(uri)
        tell(ready=True)
        while line := await lines.readline():
            tool, arguments = json.loads(line)
            try:
                result = await session.call_tool(tool, arguments)
                tell(text=result.content[0].text)
            except Exception as error:
                tell(failed=repr(error))


if __name__ == "__main__":
    asyncio.run(main(json.loads(sys.argv[1]), sys.argv[2]))

"""A server over WebSocket: detection, calls, refusal, loss and reconnection."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from functools import partial
from pathlib import Path
from typing import Any

import attrs
import pytest
import trio
from trio_websocket import ConnectionClosed, WebSocketConnection, WebSocketRequest, serve_websocket

from mcpd.model.errors import LinkLost
from mcpd.model.status import ServerState
from tests.supervision.test_remote_servers import BOUND, living

Json = dict[str, Any]
TOOL = {"name": "echo", "inputSchema": {"type": "object"}}


@attrs.define(eq=False)
class Server:
    """Speak one era; the script handles `tools/call`."""

    era: str = "legacy"
    call: Callable[[WebSocketConnection, Json], Awaitable[Json | None]] | None = None
    refuses: int = 0
    connections: int = 0

    async def handle(self, request: WebSocketRequest) -> None:
        if self.refuses:
            await request.reject(self.refuses)
            return
        connection = await request.accept(subprotocol="mcp")
        self.connections += 1
        try:
            while True:
                message = json.loads(await connection.get_message())
                if "id" in message:
                    answer = await self.answer(connection, message)
                    if answer is not None:
                        envelope = {"jsonrpc": "2.0", "id": message["id"], **answer}
                        await connection.send_message(json.dumps(envelope))
        except ConnectionClosed:
            pass

    async def answer(self, connection: WebSocketConnection, message: Json) -> Json | None:
        capabilities: Json = {"tools": {}}
        match message["method"]:
            case "server/discover" if self.era == "modern":
                return {"result": {"supportedVersions": ["2026-07-28"], "capabilities": capabilities}}
            case "initialize" if self.era == "legacy":
                version = message["params"]["protocolVersion"]
                return {"result": {"protocolVersion": version, "capabilities": capabilities}}
            case "tools/list":
                return {"result": {"tools": [TOOL]}}
            case "tools/call" if self.call is not None:
                return await self.call(connection, message)
            case "tools/call":
                return {"result": {"content": []}}
            case _:
                return {"error": {"code": -32601, "message": "no such method"}}


@asynccontextmanager
async def serving(server: Server) -> AsyncIterator[str]:
    async with trio.open_nursery() as nursery:
        listening = await nursery.start(partial(serve_websocket, server.handle, "127.0.0.1", 0, None))
        yield f"ws://127.0.0.1:{listening.port}/mcp"
        nursery.cancel_scope.cancel()


@pytest.mark.parametrize(("era", "version"), [("modern", "2026-07-28"), ("legacy", "2025-11-25")])
async def test_server_of_either_era_is_detected_and_called(tmp_path: Path, era: str, version: str) -> None:
    """The probe is the same as over a pipe; the status shows the transport."""
    async with serving(Server(era)) as url, living(tmp_path, url, kind="ws") as world:
        status = await world.wait(ServerState.CONNECTED)
        assert (status.transport, status.era, status.protocol_version) == ("ws", era, version)
        assert status.tools == 1
        with trio.fail_after(BOUND):
            assert json.loads(bytes((await world.call().wait_response()).result)) == {"content": []}


async def test_a_closed_connection_fails_the_call_and_is_opened_again(tmp_path: Path) -> None:
    """The error has the server's close reason. The call is not repeated because it may have run."""

    async def go_away(connection: WebSocketConnection, message: Json) -> None:
        await connection.aclose(1012, "restarting")

    server = Server(call=go_away)
    async with serving(server) as url, living(tmp_path, url, kind="ws") as world:
        await world.wait(ServerState.CONNECTED)
        with pytest.raises(LinkLost, match="code 1012: restarting") as caught, trio.fail_after(BOUND):
            await world.call().wait_response()
        assert caught.value.may_have_run
        with trio.fail_after(BOUND):
            while server.connections < 2:  # noqa: ASYNC110 - a test's wait
                await trio.sleep(0.005)
        status = await world.wait(ServerState.CONNECTED)
        assert status.restarts == 1
        assert status.last_error is not None
        assert "restarting" in status.last_error.message


@pytest.mark.parametrize(
    ("status", "state"), [(401, ServerState.NEEDS_AUTH), (403, ServerState.NEEDS_AUTH), (503, None)]
)
async def test_a_refused_handshake_is_judged_by_its_status(
    tmp_path: Path, status: int, state: ServerState | None
) -> None:
    """401 and 403 wait for a login; a temporary error is retried until the server accepts."""
    server = Server(refuses=status)
    async with serving(server) as url, living(tmp_path, url, kind="ws") as world:
        if state is not None:
            refused = await world.wait(state)
            assert refused.last_error is not None
            assert f"HTTP {status}" in refused.last_error.message
        else:
            await trio.sleep(0.05)
            server.refuses = 0
            await world.wait(ServerState.CONNECTED)

"""WebSocket transport: exchanges, liveness, closing, and descriptors."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager, suppress
from functools import partial
from typing import Any

import pytest
import trio
import trio.testing
from trio_websocket import ConnectionClosed, WebSocketConnection, WebSocketRequest, serve_websocket
from wsproto.events import TextMessage

from mcpd.model.errors import HttpRefused, LinkLost, McpdError, NeedsAuth, ProtocolViolation
from mcpd.model.server_spec import MEBIBYTE, RemoteSpec, Timeouts
from mcpd.transports import guarded_websocket as support
from mcpd.transports.outgoing_request import AwaitedExchange
from mcpd.transports.websocket import WebSocketChannel, open_websocket

Handler = Callable[[WebSocketRequest], Awaitable[None]]
Json = dict[str, Any]


def a_spec(port: int, **more: Any) -> RemoteSpec:
    return RemoteSpec(name="ws", kind="ws", url=f"ws://127.0.0.1:{port}/mcp?x=1", **more)


async def answer(connection: WebSocketConnection, request: Json) -> None:
    """Answer like a small server: `echo` returns its params, `mute` does not answer."""
    if request.get("method") == "echo":
        reply = {"jsonrpc": "2.0", "id": request["id"], "result": request.get("params", {})}
        await connection.send_message(json.dumps(reply))


async def echoing(request: WebSocketRequest) -> None:
    connection = await request.accept(subprotocol="mcp")
    while True:
        await answer(connection, json.loads(await connection.get_message()))


async def deaf(max_bytes: int | None = None) -> bytes:
    """Replace `receive_some` by a peer that does not read."""
    await trio.sleep_forever()
    return b""


@asynccontextmanager
async def serving(handler: Handler, **options: Any) -> AsyncIterator[int]:
    """Run a WebSocket server on a free port that tolerates clients that disconnect."""

    async def patient(request: WebSocketRequest) -> None:
        with suppress(ConnectionClosed, trio.BrokenResourceError):
            await handler(request)

    async with trio.open_nursery() as nursery:
        server = await nursery.start(partial(serve_websocket, patient, "127.0.0.1", 0, None, **options))
        yield server.port
        nursery.cancel_scope.cancel()


@asynccontextmanager
async def connected(spec: RemoteSpec) -> AsyncIterator[WebSocketChannel]:
    """Yield a running channel; the reason for its end is ignored."""
    async with trio.open_nursery() as nursery:
        async with open_websocket(spec) as channel:

            async def run() -> None:
                with pytest.raises(McpdError):
                    await channel.run()

            nursery.start_soon(run)
            yield channel
        nursery.cancel_scope.cancel()


async def asked(channel: WebSocketChannel, method: str, params: Json | None = None, **how: Any) -> Json:
    exchange = AwaitedExchange(**how)
    channel.submit(exchange, method, json.dumps(params or {}).encode())
    with trio.fail_after(120):
        message = await exchange.wait_response()
    result: Json = json.loads(bytes(message.result))
    return result


async def test_a_request_is_answered() -> None:
    """The handshake has the subprotocol, the full path and the definition's headers."""
    seen: list[WebSocketRequest] = []

    async def handler(request: WebSocketRequest) -> None:
        seen.append(request)
        await echoing(request)

    text = {"text": "größer \N{ROCKET}"}
    headers = {"Authorization": "Bearer s"}
    async with serving(handler) as port, connected(a_spec(port, headers=headers)) as channel:
        assert await asked(channel, "echo", text) == text
    assert seen[0].proposed_subprotocols == ("mcp",)
    assert seen[0].path == "/mcp?x=1"
    assert (b"authorization", b"Bearer s") in [(key.lower(), value) for key, value in seen[0].headers]


async def test_message_over_the_limit_ends_the_connection() -> None:
    async def handler(request: WebSocketRequest) -> None:
        connection = await request.accept(subprotocol="mcp")
        asking = json.loads(await connection.get_message())
        result = {"text": "x" * 100_000}
        await connection.send_message(json.dumps({"jsonrpc": "2.0", "id": asking["id"], "result": result}))
        await connection.get_message()

    async with serving(handler) as port, connected(a_spec(port, max_frame=1 << 16)) as channel:
        with pytest.raises(LinkLost, match=r"a message was too long: .*65536 bytes \(see `maxFrame`\)") as e:
            await asked(channel, "tools/call")
    assert e.value.may_have_run


async def test_fragmented_message_has_a_time_limit() -> None:
    """32 MiB in a thousand fragments are accepted. Endless empty fragments, which no size limit covers, end
    the link."""

    async def in_pieces(request: WebSocketRequest) -> None:
        connection = await request.accept(subprotocol="mcp")
        asking = json.loads(await connection.get_message())
        whole = json.dumps(
            {"jsonrpc": "2.0", "id": asking["id"], "result": {"text": "x" * (32 * MEBIBYTE - 99)}}
        )
        for start in range(0, len(whole), 1 << 15):
            piece = whole[start : start + (1 << 15)]
            last = start + len(piece) == len(whole)
            await connection._send(TextMessage(data=piece, message_finished=last))
        await connection.get_message()

    async def endless(request: WebSocketRequest) -> None:
        connection = await request.accept(subprotocol="mcp")
        await connection._stream.send_all(b"\x01\x00")  # text, to be continued
        while True:
            await connection._stream.send_all(b"\x00\x00" * 5000)

    async with serving(in_pieces) as port, connected(a_spec(port)) as channel:
        assert len((await asked(channel, "echo"))["text"]) == 32 * MEBIBYTE - 99
    async with serving(endless) as port, connected(a_spec(port, max_frame=100_000)) as channel:
        with pytest.raises(LinkLost, match="without a complete message"):
            await asked(channel, "echo")


async def test_peer_that_does_not_answer_pings_is_lost(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A half-open connection has neither data nor an error."""
    monkeypatch.setattr(support, "PING_INTERVAL", 0.05)
    monkeypatch.setattr(support, "PONG_TIMEOUT", 0.1)

    async def handler(request: WebSocketRequest) -> None:
        connection = await request.accept(subprotocol="mcp")
        connection._stream.receive_some = deaf  # type: ignore[method-assign]
        await trio.sleep_forever()

    async def lively(request: WebSocketRequest) -> None:
        await request.accept(subprotocol="mcp")
        await trio.sleep_forever()  # pings are still answered

    async with serving(handler) as port, connected(a_spec(port)) as channel:
        with pytest.raises(LinkLost, match=r"did not respond to a ping within 0\.1 s"):
            await asked(channel, "mute")
    ended: list[McpdError | None] = []
    for patience in (0.1, 1, 10):  # on a busy machine a pong may come too late
        monkeypatch.setattr(support, "PONG_TIMEOUT", patience)
        async with serving(lively) as port, connected(a_spec(port)) as channel:
            await trio.sleep(3 * patience)
            ended.append(channel.end_error)
        if ended[-1] is None:
            break
    assert None in ended


async def test_peer_that_does_not_read_is_lost() -> None:
    """The write timeout restarts with every portion that is sent."""

    async def handler(request: WebSocketRequest) -> None:
        connection = await request.accept(subprotocol="mcp")
        connection._stream.receive_some = deaf  # type: ignore[method-assign]
        await trio.sleep_forever()

    async with serving(handler) as port, connected(a_spec(port, timeouts=Timeouts(write=0.2))) as channel:
        first = AwaitedExchange()
        channel.submit(first, "echo", json.dumps({"text": "x" * (24 * MEBIBYTE)}).encode())
        with pytest.raises(LinkLost, match=r"did not read for 0\.2 s") as caught:
            await asked(channel, "tools/call")
        assert not caught.value.may_have_run


@pytest.mark.parametrize(
    ("status", "kind", "words"),
    [
        (401, NeedsAuth, "HTTP 401 instead of a WebSocket: add an `Authorization` header"),
        (404, HttpRefused, "HTTP 404 instead of a WebSocket: nothing here"),
        (503, HttpRefused, "HTTP 503"),
    ],
)
async def test_a_server_that_refuses_the_handshake_is_classified(
    status: int, kind: type[McpdError], words: str
) -> None:
    """The status determines whether a login helps; the error quotes the body."""

    async def handler(request: WebSocketRequest) -> None:
        await request.reject(status, extra_headers=[(b"WWW-Authenticate", b"Bearer x")], body=b"nothing here")

    async with serving(handler) as port:
        with pytest.raises(kind, match=words) as caught:
            async with open_websocket(a_spec(port)):
                pass
        assert caught.value.server == "ws"


UPGRADED = b"HTTP/1.1 101 Yes\r\nUpgrade: websocket\r\nConnection: Upgrade\r\n"


@pytest.mark.parametrize(
    ("greeting", "kind", "words"),
    [
        (b"", LinkLost, "does not answer as a WebSocket server"),
        (b"SSH-2.0-OpenSSH\r\n", LinkLost, "does not answer as a WebSocket server"),
        (b"HTTP/1.1 200 OK\r\nContent-Length: 6\r\n\r\n<html>", HttpRefused, "HTTP 200 instead"),
        (UPGRADED + b"X: a\0b\r\n\r\n", ProtocolViolation, "response to the WebSocket upgrade is invalid"),
        (UPGRADED + b"Sec-WebSocket-Accept: no\r\n\r\n", ProtocolViolation, "is invalid"),
    ],
    ids=["nothing", "ssh", "page", "NUL", "key"],
)
async def test_other_servers_than_websocket_are_reported(
    greeting: bytes, kind: type[McpdError], words: str
) -> None:
    """The error quotes a bounded part of the greeting, without waiting for more."""

    async def handler(stream: trio.SocketStream) -> None:
        await stream.receive_some()
        with suppress(trio.BrokenResourceError):
            await stream.send_all(greeting)

    async with trio.open_nursery() as nursery:
        listeners = await nursery.start(partial(trio.serve_tcp, handler, 0, host="127.0.0.1"))
        port = listeners[0].socket.getsockname()[1]
        with trio.fail_after(30):
            with pytest.raises(kind, match=words) as refused:
                async with open_websocket(a_spec(port)):
                    pass
            assert not refused.value.may_have_run
        nursery.cancel_scope.cancel()

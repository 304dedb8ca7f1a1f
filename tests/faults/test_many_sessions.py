"""Many concurrent MCP clients, and servers with many notifications: the load is shared fairly."""

from __future__ import annotations

import json
import socket
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import attrs
import pytest
import trio

from tests.e2e.conftest import start
from tests.e2e.harness import BOUND, Client, Daemon, Json, fake, wait_until
from tests.faults.bystander import resident, undisturbed
from tests.faults.measure import peak_memory
from tests.gateway.mcp_client import MODERN, McpClient, meta

__all__ = ["start"]

Start = Any
MIB = 1 << 20
SERVERS = tuple(f"s{n}" for n in range(10))
CLIENTS, CALLS = 64, 100


def message(key: int, method: str, **params: Any) -> Json:
    return {"jsonrpc": "2.0", "id": key, "method": method, "params": params}


class OnLines:
    """A client on the socket; `attach` and `hello` start its session."""

    def __init__(self, stream: trio.SocketStream) -> None:
        self._stream = stream
        self._rest = b""

    async def ask(self, request: Json) -> Json:
        await self._stream.send_all(json.dumps(request).encode() + b"\n")
        while b"\n" not in self._rest:
            self._rest += await self._stream.receive_some()
        line, _, self._rest = self._rest.partition(b"\n")
        return dict(json.loads(line))


class OverHttp(OnLines):
    """A client of HTTP on the socket. A modern client names the method and the tool in headers."""

    async def ask(self, request: Json) -> Json:
        body = json.dumps(request).encode()
        head = (
            f"POST /mcp HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n"
            f"Accept: application/json, text/event-stream\r\nMCP-Protocol-Version: {MODERN}\r\n"
            f"Mcp-Method: tools/call\r\nMcp-Name: {request['params']['name']}\r\n"
            f"Content-Length: {len(body)}\r\n\r\n"
        )
        await self._stream.send_all(head.encode() + body)
        while b"\r\n\r\n" not in self._rest:
            self._rest += await self._stream.receive_some()
        answer, _, self._rest = self._rest.partition(b"\r\n\r\n")
        (length,) = [line for line in answer.lower().split(b"\r\n") if line.startswith(b"content-length:")]
        size = int(length.partition(b":")[2])
        while len(self._rest) < size:
            self._rest += await self._stream.receive_some()
        body, self._rest = self._rest[:size], self._rest[size:]
        return dict(json.loads(body))


async def one_server(client: OnLines, me: int) -> None:
    await client.ask(message(-1, "mcpd/attach", server=SERVERS[me % 10]))


async def all_of_them(client: OnLines, me: int) -> None:
    hello = {"protocolVersion": "2025-11-25", "capabilities": {}, "clientInfo": {"name": "t", "version": "1"}}
    await client.ask(message(-1, "initialize", **hello))


async def nothing(client: OnLines, me: int) -> None:
    await trio.lowlevel.checkpoint()


@pytest.mark.slow
@pytest.mark.parametrize(
    ("kind", "begin", "prefix"),
    [(OnLines, one_server, ""), (OnLines, all_of_them, "{}__"), (OverHttp, nothing, "{}__")],
    ids=["one server", "aggregate", "http"],
)
async def test_sixty_four_sessions_of_ten_servers_are_served_fairly(
    start: Start, kind: Callable[[trio.SocketStream], OnLines], begin: Any, prefix: str
) -> None:
    """A hundred calls each: no error, and no session gets less than half of the mean."""
    daemon: Daemon = start({name: fake() for name in SERVERS})
    daemon.wait_connected(*SERVERS)
    done = [0] * CLIENTS
    share: list[int] = []

    async def client(me: int) -> None:
        async with await trio.open_unix_socket(daemon.socket) as stream:
            asking = kind(stream)
            await begin(asking, me)
            for n in range(CALLS):
                name = prefix.format(SERVERS[(me + n) % 10]) + "echo"
                arguments = {"text": f"{me}/{n}"}
                more = {"_meta": meta()} if kind is OverHttp else {}
                answer = await asking.ask(message(n, "tools/call", name=name, arguments=arguments, **more))
                assert answer["id"] == n
                assert json.loads(answer["result"]["content"][0]["text"]) == arguments
                done[me] += 1
        share[:] = share or done

    with trio.fail_after(400):
        async with trio.open_nursery() as nursery:
            for me in range(CLIENTS):
                nursery.start_soon(client, me)
    assert done == [CALLS] * CLIENTS
    assert min(share) > 0.5 * sum(share) / CLIENTS  # as the first one has ended


@attrs.define
class Listener:
    """A client that reads and counts all messages."""

    client: Client
    heard: Counter[str] = attrs.field(factory=Counter)
    last: Json = attrs.field(factory=dict)
    closed: bool = False

    def read(self) -> None:
        while True:
            try:
                said = json.loads(self.client.read_line())
            except (EOFError, OSError):
                self.closed = True
                return
            self.heard[said.get("method", "")] += 1
            self.last = said


@contextmanager
def listening(clients: list[Client]) -> Iterator[list[Listener]]:
    listeners = [Listener(client) for client in clients]
    threads = [threading.Thread(target=each.read, name="listener", daemon=True) for each in listeners]
    for thread in threads:
        thread.start()
    try:
        yield listeners
    finally:
        for each in listeners:
            each.client.socket.shutdown(socket.SHUT_RDWR)
        for thread in threads:
            thread.join(BOUND)


FOLLOWED = "test://one"
UPDATED = "notifications/resources/updated"


@pytest.mark.parametrize(
    ("note", "most"),
    [
        ({}, 2.0),
        ({"method": UPDATED, "params": {"uri": FOLLOWED}}, 10.0),
        ({"method": "notifications/message", "params": {"level": "info", "data": "x" * 50}}, 0.0),
    ],
    ids=["list_changed", "updated", "log"],
)
def test_hundred_thousand_notifications_reach_clients_as_a_few(start: Start, note: Json, most: float) -> None:
    """Sixteen sessions subscribe, and one of them calls. Repeated notifications are limited to `most` a
    second, other calls continue, memory stays bounded, and no client loses its connection.
    """
    flags = ("--era", "legacy", "--capabilities", "tools,resources,logging", "--subscribable")
    daemon: Daemon = start({"odd": fake(*flags), "calm": fake()})
    daemon.wait_connected("odd", "calm")
    daemon.client().call("calm", "echo")
    followers = []
    for n in range(16):
        client = McpClient(daemon, "2025-11-25", server="odd" if n % 2 else None, capabilities={})
        client.request("resources/subscribe", uri=FOLLOWED)
        followers.append(client)
    caller = McpClient(daemon, "2025-11-25", server="calm", capabilities={})
    control = daemon.client()
    control.call("odd", "notify", {**note, "count": 100})
    base = resident(daemon.pid)
    with listening([each.line for each in followers]) as listeners:
        began = time.monotonic()
        with peak_memory(daemon.pid) as peak, undisturbed(daemon, "calm"):
            for _ in range(4):
                control.call("odd", "notify", {**note, "count": 25_000})
                caller.call("echo")
            control.call("odd", "echo")
        if note.get("method") == UPDATED:
            wait_until(lambda: all(each.heard for each in listeners), lambda: "somebody was told nothing")
        assert not any(each.closed for each in listeners)
        received = [each.heard.total() for each in listeners]
        took = time.monotonic() - began
    assert max(received) <= took * most + 4 * bool(most), received
    assert peak.bytes - base < 20 * MIB, f"{(peak.bytes - base) / MIB:.1f} MiB"

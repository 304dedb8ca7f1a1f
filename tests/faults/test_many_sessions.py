"""Many concurrent MCP clients, and servers with many notifications: the load is shared fairly."""

from __future__ import annotations

import json
import socket
import threading
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import attrs
import pytest

from tests.e2e.conftest import start
from tests.e2e.harness import BOUND, Client, Daemon, Json, fake, wait_until
from tests.faults.bystander import resident, undisturbed
from tests.faults.measure import peak_memory
from tests.gateway.mcp_client import McpClient

__all__ = ["start"]

Start = Any
MIB = 1 << 20


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

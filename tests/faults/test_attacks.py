"""Single attacks by servers and clients: a client of another server notices none of them, and memory returns.

A client's wait is measured in processor time of the daemon, at the sizes that the limits still allow.
"""

from __future__ import annotations

import json
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from typing import Any

import pytest

from tests.e2e import web
from tests.e2e.conftest import Start
from tests.e2e.harness import BOUND, Client, Daemon, Json, Refused, fake, wait_until
from tests.faults.bystander import resident
from tests.faults.measure import peak_memory
from tests.fuzz.world import ROOT
from tests.gateway.mcp_client import McpClient
from tests.stopwatch import within

MIB = 1 << 20
STALL = 0.1
"""Seconds of processor time of the daemon that a client of another server may wait."""
PEAK, GROWTH = 250 * MIB, 42 * MIB
"""Bytes of resident memory, at most; and more than before, after the attacker has gone: 10 MiB, and one of
the longest messages, whose memory the allocator may keep for the next one."""
TRIES = 4
"""What else the machine does can only lengthen the waits, so the shortest of several tries counts."""

Attack = Callable[[Daemon], None]


def attacker(*arguments: object) -> Json:
    script = str(Path(__file__).with_name("attacker.py"))
    return {"command": sys.executable, "args": ["-I", "-S", script, *map(str, arguments)]}


@contextmanager
def bystander(daemon: Daemon) -> Iterator[Json]:
    """Call another server every 10 ms; the block gets the result of tests/fuzz/bystander.py at its end."""
    seen: Json = {}
    process = subprocess.Popen(
        [sys.executable, "-m", "tests.fuzz.bystander", daemon.socket, str(daemon.pid)],
        cwd=ROOT,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
    )
    assert process.stdout is not None
    assert process.stdout.readline() == b"ready\n"
    try:
        yield seen
    finally:
        out, _ = process.communicate(timeout=3 * BOUND)
        seen.update(json.loads(out))


def call(kind: str, size: int, **more: Any) -> Attack:
    def attack(daemon: Daemon) -> None:
        with Client(daemon.socket) as client:
            arguments = {"kind": kind, "size": size}
            client.send("mcpd/call", server="bad", tool="attack", arguments=arguments, timeout=50, **more)
            while not client.socket.recv(MIB).endswith(b"}\n"):  # without parsing, which would take longer
                pass

    return attack


def line(data: bytes) -> Attack:
    def attack(daemon: Daemon) -> None:
        with Client(daemon.socket) as client, suppress(OSError, EOFError):
            client.socket.sendall(data + b"\n")
            client.read_line()

    return attack


def connect(kind: str, size: int) -> Attack:
    def attack(daemon: Daemon) -> None:
        with Client(daemon.socket) as client:
            client.request("mcpd/add", server="bad", definition=attacker(kind, size), save=False)
        daemon.wait_status("bad", lambda status: status["status"] in ("connected", "failed"))
        with Client(daemon.socket) as client:
            if kind == "schema":
                with suppress(Refused):
                    client.call("bad", "schema", {"p1": "x"})
            client.request("mcpd/remove", server="bad", save=False)

    return attack


def batch(daemon: Daemon) -> None:
    door, body = web.door(daemon), b"[" + b"{}," * (10 * MIB) + b"{}]"
    head = (
        f"POST /mcp HTTP/1.1\r\nHost: 127.0.0.1:{door.port}\r\nAuthorization: Bearer {door.token}\r\n"
        f"Content-Type: application/json\r\nAccept: {web.BOTH}\r\nContent-Length: {len(body)}\r\n\r\n"
    )
    with door.connection as connection, suppress(OSError):
        connection.sendall(head.encode() + body)
        connection.recv(1000)


def tap(daemon: Daemon) -> None:
    with Client(daemon.socket) as client:
        client.send("mcpd/tap", server="bad", methods=["tools/call"])
        asking = Client(daemon.socket)
        with asking:
            asking.request("mcpd/version")
        call("questions", 600_000)(daemon)
        for _ in range(2):
            client.read_line()


def unread_updates(daemon: Daemon) -> None:
    """Updates of a resource that nobody follows, while 2,000 others are followed."""
    clients = [McpClient(daemon, "2025-11-25", server="bad", capabilities={}) for _ in range(2)]
    for number, client in enumerate(clients):
        keys = [client.send("resources/subscribe", uri=f"test://{number}/{n}") for n in range(1000)]
        for key in keys:
            client.wait(key)
    call("updates", 20_000)(daemon)
    for client in clients:
        client.line.close()


def waiting_calls(daemon: Daemon) -> None:
    """Calls with large arguments to a server that never connects."""
    arguments = {"x": "x" * 10 * MIB}
    params = {"server": "never", "tool": "x", "arguments": arguments}
    with Client(daemon.socket) as client:
        for key in range(12):
            request = {"jsonrpc": "2.0", "id": key, "method": "mcpd/call", "params": params}
            client.send_raw(json.dumps(request).encode())
        with pytest.raises(Refused, match="the limit of 37748736"):
            client.answer(11)


def events(daemon: Daemon) -> None:
    request = b'{"jsonrpc":"2.0","id":%d,"method":"mcpd/events"}\n'
    with Client(daemon.socket) as client, ExitStack() as stack:
        client.socket.settimeout(BOUND)
        over = threading.Event()
        reader = threading.Thread(target=_drain, args=(client, over), daemon=True)
        reader.start()
        stack.callback(reader.join, BOUND)
        client.socket.sendall(b"".join(request % number for number in range(20_000)))
        client.socket.sendall(b'{"jsonrpc":"2.0","id":"last","method":"mcpd/version"}\n')
        assert over.wait(BOUND)


def _drain(client: Client, over: threading.Event) -> None:
    with suppress(OSError, EOFError):
        while b'"id":"last"' not in client.read_line():
            pass
    over.set()


def client_floods(daemon: Daemon) -> None:
    with Client(daemon.socket) as client:
        for _ in range(200):
            client.socket.sendall(b"\n" * 65536)
        client.request("mcpd/version")


PARAMS = b'{"jsonrpc":"2.0","id":1,"method":"mcpd/status","params":{"x":[' + b"[]," * (10 * MIB) + b"1]}}"
NAME = b'{"jsonrpc":"2.0","id":1,"method":"mcpd/server","params":{"server":"' + b"x" * 30 * MIB + b'"}}'
HALF = b'{"jsonrpc":"2.0","id":1,"method":"\\ud800' + b"\\n" * 15 * MIB + b'"}'
ATTACKS: dict[str, Attack] = {
    "tap of many question marks": tap,
    "half a surrogate pair, from a client": line(HALF),
    "half a surrogate pair, from a server": call("surrogates", 31 * MIB),
    "result of many blocks": call("blocks", 31 * MIB),
    "list of many tools": connect("tools", 31 * MIB),
    "error with much data": call("error_data", 31 * MIB),
    "many capabilities": connect("initialize", 25 * MIB),
    "batch of many messages": batch,
    "long name of a server": line(NAME),
    "progress with many members": call("progress", 25 * MIB, _meta={"progressToken": 1}),
    "log message with much data": call("params", 31 * MIB),
    "many parameters": line(PARAMS),
    "blank lines": call("blank_lines", 1),
    "junk": call("junk_lines", 1),
    "blank lines on stderr": call("blank_stderr", 1),
    "blank lines of a client": client_floods,
    "updates that nobody wants": unread_updates,
    "large calls that wait": waiting_calls,
    "many streams of events": events,
    "long names of methods": call("names", 5),
    "expensive schema": connect("schema", 1000),
}


CONNECTING = ("list of many tools", "many capabilities", "expensive schema")
"""Attacks that add their server themselves."""


@pytest.mark.slow
@pytest.mark.parametrize("kind", ATTACKS)
def test_attack_holds_up_nobody_and_its_memory_returns(start: Start, kind: str) -> None:
    never = fake("--never-init", connectTimeout=600_000)
    bad = {"bad": attacker()} if kind not in CONNECTING else {}
    daemon: Daemon = start({"calm": fake(), "never": never, **bad}, *web.PORT)
    daemon.wait_connected("calm", *bad)
    daemon.client().call("calm", "echo")
    for name in bad:
        daemon.client().call(name, "attack", {"kind": "questions", "size": 10})
    ATTACKS[kind](daemon)  # imports modules, and fills caches
    base = resident(daemon.pid)
    shortest = float("inf")
    for _ in range(TRIES):
        with peak_memory(daemon.pid) as peak, bystander(daemon) as seen:
            ATTACKS[kind](daemon)
        assert seen["wrong"] == []
        assert seen["calls"]
        assert peak.bytes <= PEAK, f"{peak.bytes / MIB:.0f} MiB"
        shortest = min(shortest, seen["max"] / 1000)
        if shortest <= STALL:
            break
    assert within(shortest, STALL), f"a call waited for {shortest * 1000:.0f} ms"
    for name in bad:
        daemon.client().request("mcpd/disconnect", server=name)
    wait_until(
        lambda: resident(daemon.pid) - base <= GROWTH,
        lambda: f"{(resident(daemon.pid) - base) / MIB:.1f} MiB more than before",
    )
    assert "Traceback" not in daemon.log

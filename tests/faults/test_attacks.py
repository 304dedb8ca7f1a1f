"""Single attacks by servers and clients: a client of another server notices none of them, and memory returns.

A client's wait is measured in processor time of the daemon, at the sizes that the limits still allow.
"""

from __future__ import annotations

import json
import re
import sys
import threading
from contextlib import ExitStack, suppress
from pathlib import Path
from typing import Any

import pytest

from tests.e2e import web
from tests.e2e.conftest import Start
from tests.e2e.harness import BOUND, Client, Daemon, Json, Refused, fake
from tests.faults.withstand import MIB, Attack, withstand
from tests.gateway.mcp_client import LEGACY, MODERN, McpClient, meta


def attacker(*arguments: object) -> Json:
    script = str(Path(__file__).with_name("attacker.py"))
    return {"command": sys.executable, "args": ["-I", "-S", script, *map(str, arguments)]}


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
        if kind == "relisted":
            relist(daemon)
        with Client(daemon.socket) as client:
            client.request("mcpd/remove", server="bad", save=False)

    return attack


def relist(daemon: Daemon) -> None:
    """Let the list change, and be fetched, several times."""
    with Client(daemon.socket) as client:
        client.call("bad", "attack", {"kind": "relist", "size": 6})


def batch(daemon: Daemon) -> None:
    endpoint, body = web.http_endpoint(daemon), b"[" + b"{}," * (10 * MIB) + b"{}]"
    head = (
        f"POST /mcp HTTP/1.1\r\nHost: 127.0.0.1:{endpoint.port}\r\nAuthorization: Bearer {endpoint.token}\r\n"
        f"Content-Type: application/json\r\nAccept: {web.BOTH}\r\nContent-Length: {len(body)}\r\n\r\n"
    )
    with endpoint.connection as connection, suppress(OSError):
        connection.sendall(head.encode() + body)
        connection.recv(1000)


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


def streams(method: str, attack: Attack, each: int, **params: Any) -> Attack:
    """Many streams, `each` of ten clients that read, during an attack."""

    def beside(daemon: Daemon) -> None:
        request = {"jsonrpc": "2.0", "method": method, "params": params}
        lines = b"".join(json.dumps({**request, "id": number}).encode() + b"\n" for number in range(each))
        with ExitStack() as stack:
            for _ in range(10):
                client = stack.enter_context(Client(daemon.socket, 3 * BOUND))
                client.socket.sendall(lines)
                threading.Thread(target=_drain, args=(client, threading.Event()), daemon=True).start()
            attack(daemon)

    return beside


def incomplete_lines(daemon: Daemon) -> None:
    """Clients send nearly all of a long message. The longest are dropped, and their clients learn it."""
    start = b'{"jsonrpc":"2.0","id":7,"method":"mcpd/call","params":{"x":"'
    with ExitStack() as stack:
        clients = [stack.enter_context(Client(daemon.socket)) for _ in range(12)]
        for client in clients:
            client.socket.sendall(start + b"x" * 20 * MIB)
        clients[0].socket.sendall(b"\n")
        with pytest.raises(Refused, match="incomplete messages"):
            clients[0].answer(7)


def large_call(daemon: Daemon) -> None:
    """A call with the longest arguments that are accepted."""
    values, text = b"[]," * (7 * MIB // 3), b"\\n" * (12 * MIB)
    line = (
        b'{"jsonrpc":"2.0","id":1,"method":"mcpd/call","params":{"server":"bad","tool":"x","arguments":'
        b'{"values":[' + values + b'1],"text":"' + text + b'"}}}\n'
    )
    with Client(daemon.socket) as client:
        client.socket.sendall(line)
        client.read_line()


def mcp_call(version: str, piece: bytes) -> Attack:
    """A call of an MCP client with 31 MiB of arguments, most of which are repetitions of `piece`."""

    def attack(daemon: Daemon) -> None:
        client = McpClient(daemon, version, server="bad", capabilities={})
        line = (
            b'{"jsonrpc":"2.0","id":77,"method":"tools/call","params":{"name":"x","_meta":%b,"arguments":{"x":["'
        ) % json.dumps(meta() if client.modern else {"progressToken": 1}).encode()
        client.line.send_raw(line + piece * (31 * MIB // len(piece)) + b'"]}}}')
        client.line.read_line()
        client.line.close()

    return attack


def pipelining(method: str, clients: int = 50, count: int = 100, **params: Any) -> Attack:
    """Requests of many clients, each of which sends all of its requests at once."""

    def attack(daemon: Daemon) -> None:
        lines = [
            json.dumps({"jsonrpc": "2.0", "id": number, "method": method, "params": params}).encode() + b"\n"
            for number in range(count)
        ]

        def ask() -> None:
            with Client(daemon.socket, 3 * BOUND) as client, suppress(OSError, EOFError):
                client.socket.sendall(b"".join(lines))
                for _ in range(count):
                    client.read_line()

        threads = [threading.Thread(target=ask) for _ in range(clients)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()

    return attack


def long_result(kind: str, size: int, *queries: str) -> Attack:
    """The result is read twenty times at once with each query."""

    def attack(daemon: Daemon) -> None:
        client = McpClient(daemon, LEGACY[0], server="bad", capabilities={})
        client.check = False
        result = client.request("tools/call", name="attack", arguments={"kind": kind, "size": size})
        for query in queries:
            uri = re.search(r"mcpd://results/\w+", json.dumps(result))
            assert uri is not None
            keys = [
                client.send("resources/read", uri=uri[0] + query)
                for _ in range(1 if len(query) > MIB else 20)
            ]
            for key in keys:
                with suppress(Refused):
                    client.wait(key)
        client.line.close()

    return attack


PARAMS = b'{"jsonrpc":"2.0","id":1,"method":"mcpd/status","params":{"x":[' + b"[]," * (10 * MIB) + b"1]}}"
ATTACKS: dict[str, Attack] = {
    "half a surrogate pair, from a server": call("surrogates", 31 * MIB),
    "result of many blocks": call("blocks", 31 * MIB),
    "list of many tools": connect("tools", 31 * MIB),
    "error with much data": call("error_data", 31 * MIB),
    "error with a long text": call("error_text", 31 * MIB),
    "long result in many lists": long_result("nested", 30 * MIB),
    "searches of a long result": long_result("questions", 8 * MIB, f"?search={'%3F' * 199}x", "?from=1&to=9"),
    "long URI of a result": long_result("questions", 20_000, "?" + "a&" * (8 * MIB)),
    "followers of a log": streams("mcpd/logs", call("complain", 1), 20, server="bad", follow=True),
    "followers of messages": streams("mcpd/tap", call("log_text", 8 * MIB), 5, server="bad"),
    "incomplete lines": incomplete_lines,
    "batch of many messages": batch,
    "log message with much data": call("params", 31 * MIB),
    "many parameters": line(PARAMS),
    "junk": call("junk_lines", 1),
    "blank lines of a client": client_floods,
    "large calls that wait": waiting_calls,
    "many streams of events": events,
    "result of escapes": call("escapes", 31 * MIB),
    "long log message": call("log_text", 31 * MIB),
    "large arguments": large_call,
    "MCP call with escapes": mcp_call(MODERN, b"\\n"),
    "MCP call with short texts": mcp_call(MODERN, b'aaaaaaa","'),
    "requests of a server": call("requests", 1),
    "changed lists": call("changes", 1),
    "list that changes again and again": connect("relisted", 10_000),
    "fifty clients that ask for the status": pipelining("mcpd/status"),
    "fifty clients that call": pipelining("mcpd/call", server="bad", tool="x"),
}
FLOODS = (
    "junk",
    "blank lines of a client",
    "requests of a server",
    "changed lists",
    "list that changes again and again",
)
"""Attacks during which the 99th percentile of the waits is checked, too."""


CONNECTING = (
    "list of many tools",
    "list that changes again and again",
)
"""Attacks that add their server themselves."""


@pytest.mark.slow
@pytest.mark.parametrize("kind", ATTACKS)
def test_attack_holds_up_nobody_and_its_memory_returns(start: Start, kind: str) -> None:
    never = fake("--never-init", connectTimeout=600_000)
    bad = {"bad": {**attacker(), "resultLimit": 10_000}} if kind not in CONNECTING else {}
    daemon: Daemon = start({"calm": fake(), "never": never, **bad}, *web.PORT)
    daemon.wait_connected("calm", *bad)
    daemon.client().call("calm", "echo")
    for name in bad:
        daemon.client().call(name, "attack", {"kind": "questions", "size": 10})

    def leave(daemon: Daemon) -> None:
        for name in bad:
            daemon.client().request("mcpd/disconnect", server=name)

    withstand(daemon, ATTACKS[kind], leave, is_flood=kind in FLOODS)


def test_answer_of_small_values_is_an_error_that_names_the_limit(start: Start) -> None:
    """Only its call fails: the connection stays."""
    daemon = start({"bad": attacker()})
    daemon.wait_connected("bad")
    pid = daemon.status("bad")["pid"]
    with daemon.client() as client:
        with pytest.raises(
            Refused, match=r"more than 8388608 bytes outside of strings.*raise `maxFrame`"
        ) as no:
            client.call("bad", "attack", {"kind": "blocks", "size": 12 * MIB})
        assert no.value.code == "protocol"
        assert client.call("bad", "attack", {"kind": "questions", "size": 10})["success"]
    assert daemon.status("bad")["pid"] == pid

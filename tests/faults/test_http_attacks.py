"""Attacks by remote servers and by clients over HTTP: nobody else notices them, and memory returns."""

from __future__ import annotations

import itertools
import json
import socket
import threading
import time
from collections.abc import Iterator
from contextlib import ExitStack, suppress

import pytest

from tests.e2e import web
from tests.e2e.conftest import Start
from tests.e2e.harness import Client, Daemon, Refused, fake
from tests.faults.hostile_http import ATTACKS, FLOODS, SECONDS, HostileHttp
from tests.faults.measure import more_descriptors
from tests.faults.withstand import MIB, Attack, withstand


@pytest.fixture
def hostile() -> Iterator[HostileHttp]:
    server = HostileHttp()
    yield server
    server.close()


@pytest.mark.slow
@pytest.mark.parametrize("kind", ATTACKS)
def test_remote_server_holds_up_nobody(start: Start, hostile: HostileHttp, kind: str) -> None:
    daemon = start({"calm": fake(), "bad": {"url": hostile.url}})
    daemon.wait_connected("calm", "bad")
    with daemon.client() as client:
        client.call("calm", "echo")

    def call(daemon: Daemon) -> None:
        with Client(daemon.socket) as client, suppress(Refused):
            client.call("bad", "attack", {"kind": kind}, timeout=3)

    def leave(daemon: Daemon) -> None:
        daemon.client().request("mcpd/disconnect", server="bad")

    withstand(daemon, call, leave, is_flood=kind.partition(" ")[2] in FLOODS)


@pytest.mark.slow
def test_requests_of_a_remote_server_hold_up_nobody(start: Start, hostile: HostileHttp) -> None:
    """It asks as fast as it can on its own stream. Each answer is a request."""
    daemon = start({"calm": fake(), "bad": {"url": hostile.url.replace("/mcp", "/asking")}})
    daemon.wait_connected("calm", "bad")
    daemon.client().call("calm", "echo")

    def attack(daemon: Daemon) -> None:
        daemon.client().request("mcpd/reconnect", server="bad")
        time.sleep(SECONDS)

    withstand(daemon, attack, lambda daemon: daemon.client().request("mcpd/disconnect", server="bad"))


def post(endpoint: web.HttpEndpoint, *, token: bool = True, path: str = "/mcp") -> bytes:
    authorization = f"Authorization: Bearer {endpoint.token}\r\n" if token else ""
    return (
        f"POST {path} HTTP/1.1\r\nHost: 127.0.0.1:{endpoint.port}\r\n{authorization}"
        f"Content-Type: application/json\r\nAccept: {web.BOTH}\r\n"
    ).encode()


def sending(body: bytes) -> Attack:
    def attack(daemon: Daemon) -> None:
        endpoint = web.http_endpoint(daemon)
        head = post(endpoint) + b"Content-Length: %d\r\n\r\n" % len(body)
        with endpoint.connection as connection, suppress(OSError):
            connection.sendall(head + body)
            connection.recv(MIB)

    return attack


def tiny_chunks(daemon: Daemon) -> None:
    endpoint = web.http_endpoint(daemon)
    with endpoint.connection as connection, suppress(OSError):
        connection.sendall(post(endpoint) + b"Transfer-Encoding: chunked\r\n\r\n")
        for _ in range(200):
            connection.sendall(b"2\r\nhi\r\n" * 10_000)
        connection.recv(MIB)


def trickling(daemon: Daemon) -> None:
    """Three hundred connections without the token keep sending parts of a request."""
    endpoint = web.http_endpoint(daemon)
    paths = itertools.cycle(("/health", "/mcp", "/.well-known/oauth-protected-resource", "/page/login"))
    with more_descriptors(), ExitStack() as stack:
        held = [stack.enter_context(endpoint.connection) for _ in range(300)]
        for connection in held:
            with suppress(OSError):
                head = post(endpoint, token=False, path=next(paths)) + b"Transfer-Encoding: chunked\r\n"
                connection.sendall(head)
                connection.setblocking(False)
        until = time.monotonic() + 2
        while time.monotonic() < until:
            for connection in held:
                with suppress(OSError):
                    connection.send(b"X: y\r\n")
        assert web.get(f"{endpoint.base}/health").status_code == 200


def upgrades(daemon: Daemon) -> None:
    endpoint = web.http_endpoint(daemon)
    host = f"Host: 127.0.0.1:{endpoint.port}"
    one = f"GET /health HTTP/1.1\r\n{host}\r\nUpgrade: x\r\nConnection: upgrade\r\n\r\n"
    for _ in range(20):
        with endpoint.connection as connection, suppress(OSError):
            connection.sendall(one.encode() * 500)
            connection.shutdown(socket.SHUT_WR)
            while connection.recv(MIB):
                pass


def pipelined(daemon: Daemon) -> None:
    """Fifty connections, each with many requests at once."""
    endpoint = web.http_endpoint(daemon)
    body = json.dumps(web.request("tools/list", _meta=web.meta())).encode()
    head = post(endpoint) + b"MCP-Protocol-Version: %b\r\nMcp-Method: tools/list\r\n" % web.MODERN.encode()
    one = head + b"Content-Length: %d\r\n\r\n" % len(body) + body

    def ask() -> None:
        with endpoint.connection as connection, suppress(OSError):
            connection.sendall(one * 90)
            connection.shutdown(socket.SHUT_WR)
            while connection.recv(MIB):
                pass

    threads = [threading.Thread(target=ask) for _ in range(50)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()


def texts(start: bytes, piece: bytes, end: bytes) -> bytes:
    return start + piece * (31 * MIB // len(piece)) + end


CALL = b'{"jsonrpc":"2.0","id":1,"method":"tools/call","params":{"name":"calm__echo","arguments":{"x":'
CLIENTS: dict[str, Attack] = {
    "small values": sending(texts(CALL + b"[", b"1,", b"1]}}}")),
    "lines of small values": sending(texts(CALL + b"[", b"1,\n", b"1]}}}")),
    "escapes": sending(texts(CALL + b'"', b"\\n", b'"}}}')),
    "long name of a method": sending(texts(b'{"jsonrpc":"2.0","id":1,"method":"', b"x", b'"}')),
    "spaces": sending(texts(b"", b" ", b"{}")),
    "batch": sending(texts(b"[", b"{},", b"{}]")),
    "tiny chunks": tiny_chunks,
    "trickling": trickling,
    "upgrades": upgrades,
    "pipelined": pipelined,
}


@pytest.mark.slow
@pytest.mark.parametrize("kind", CLIENTS)
def test_client_over_http_holds_up_nobody(start: Start, kind: str) -> None:
    daemon = start({"calm": fake()}, *web.PORT)
    daemon.wait_connected("calm")
    daemon.client().call("calm", "echo")
    assert web.get(f"{web.http_endpoint(daemon).base}/health").status_code == 200
    withstand(daemon, CLIENTS[kind])

"""Clients that can be asked something share a server of an older revision, with the real daemon and real
processes: none of them waits long for another."""

from __future__ import annotations

import socket
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from typing import Any

import pytest

from tests.e2e.harness import Daemon, Json, fake, running, wait_until
from tests.e2e.web import PORT, Session, http_endpoint, modern, send
from tests.gateway.mcp_client import CAPABLE, MODERN, McpClient

FORM: Json = {"message": "Your name?", "requestedSchema": {"type": "object", "properties": {}}}
ASK: Json = {"name": "ask", "arguments": {"method": "elicitation/create", "params": FORM}}
LEGACY = "2025-11-25"
Leave = Callable[[], object]
"""Ends the client's connections, and says nothing."""


def over_socket(daemon: Daemon, server: str, version: str, stack: ExitStack) -> Leave:
    client = McpClient(daemon, version, server=server)
    client.send("tools/call", **ASK)
    return client.line.close


def over_http_legacy(daemon: Daemon, server: str, stack: ExitStack) -> Leave:
    """The question comes on the stream of the call."""
    web = http_endpoint(daemon)
    http = stack.enter_context(web.client())
    session = Session(http, f"/servers/{server}/mcp", capabilities=CAPABLE)
    connection = stack.enter_context(web.connection)
    headers = {**web.bearer, "Host": f"127.0.0.1:{web.port}", "Accept": "application/json, text/event-stream"}
    send(connection, session.path, session.calling("ask", **ASK["arguments"]), headers | session.headers)

    def leave() -> None:
        connection.close()
        http.close()

    return leave


def over_http_modern(daemon: Daemon, server: str, stack: ExitStack) -> Leave:
    web = http_endpoint(daemon)
    connection: socket.socket = stack.enter_context(web.connection)
    body, headers = modern("tools/call", capabilities={"elicitation": {}}, **ASK)
    headers |= {
        **web.bearer,
        "Host": f"127.0.0.1:{web.port}",
        "Accept": "application/json, text/event-stream",
    }
    send(connection, f"/servers/{server}/mcp", body, headers)
    return connection.close


ASKED: dict[str, Callable[[Daemon, str, ExitStack], Leave]] = {
    "socket-legacy": lambda daemon, server, stack: over_socket(daemon, server, LEGACY, stack),
    "socket-modern": lambda daemon, server, stack: over_socket(daemon, server, MODERN, stack),
    "http-legacy": over_http_legacy,
    "http-modern": over_http_modern,
}


@pytest.fixture(scope="module")
def daemon(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Daemon]:
    servers = {name: {**fake("--era", "legacy"), "share": "all"} for name in ASKED}
    with running(tmp_path_factory.mktemp("daemon"), servers, *PORT) as daemon:
        daemon.wait_connected(*servers)
        yield daemon


def has_question(daemon: Daemon, server: str) -> Any:
    return lambda: daemon.status(server)["questions"]


def test_questions_of_clients_that_are_gone_are_dropped(daemon: Daemon) -> None:
    """Status shows until then who was asked what, and who waits. The clients need not say that they leave."""

    def check(kind: str) -> None:
        with ExitStack() as stack:
            leave = ASKED[kind](daemon, kind, stack)
            wait_until(has_question(daemon, kind), lambda: f"{kind} did not ask")
            client = McpClient(daemon, LEGACY, server=kind, client={"name": "waiter"})
            key = client.send("tools/call", name="pid", arguments={})
            wait_until(lambda: daemon.status(kind)["waiting_calls"] == 1, lambda: "it does not wait")
            status = daemon.status(kind)
            (question,), (waiting,) = status["questions"], status["waiting"]
            assert (question["call"], question["text"]) == ("tool 'ask'", "Your name?")
            assert waiting["client"].startswith("waiter")
            assert waiting["call"] == "tool 'pid'"
            assert waiting["waits_for"].startswith("tool 'ask' of ")
            leave()
            assert client.wait(key)["content"][0]["text"] == str(status["pid"])
            assert not daemon.status(kind)["questions"]
            client.line.close()

    with ThreadPoolExecutor(len(ASKED)) as pool:
        for case in [pool.submit(check, kind) for kind in ASKED]:
            case.result()

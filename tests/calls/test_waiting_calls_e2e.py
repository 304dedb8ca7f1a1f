"""One unanswered question does not block the other clients: every kind of client, present or gone, with the
real daemon and real processes."""

from __future__ import annotations

import socket
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from typing import Any

import pytest

from tests.e2e.harness import Daemon, Json, Refused, fake, running, wait_until
from tests.e2e.web import PORT, Session, http_endpoint, modern, send
from tests.gateway.mcp_client import CAPABLE, MODERN, McpClient
from tests.stopwatch import stopwatch, within

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
CASES = [(kind, waits) for kind in ASKED for waits in (LEGACY, MODERN)]


@contextmanager
def taking_at_most(seconds: float) -> Iterator[None]:
    with stopwatch() as watch:
        yield
        taken = watch.seconds
    assert within(taken, seconds)


def server_of(kind: str, waits: str) -> str:
    return f"{kind}-{waits[:4]}"


@pytest.fixture(scope="module")
def daemon(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Daemon]:
    definitions: dict[str, Json] = {
        "one": {"share": "all", "timeout": 6000},
        "gone": {"share": "all"},
    }
    servers = {
        f"{name}-{server_of(*case)}": fake("--era", "legacy", **definition)
        for case in CASES
        for name, definition in definitions.items()
    }
    with running(tmp_path_factory.mktemp("daemon"), servers, *PORT) as daemon:
        daemon.wait_connected(*servers)
        yield daemon


def in_parallel(check: Callable[[str, str], None]) -> None:
    with ThreadPoolExecutor(len(CASES)) as pool:
        for case in [pool.submit(check, *case) for case in CASES]:
            case.result()


def has_question(daemon: Daemon, server: str) -> Any:
    return lambda: daemon.status(server)["questions"]


def test_questions_of_clients_that_are_gone_are_dropped(daemon: Daemon) -> None:
    """Within seconds, in the one process that the definition allows."""

    def check(kind: str, waits: str) -> None:
        server = f"gone-{server_of(kind, waits)}"
        with ExitStack() as stack:
            leave = ASKED[kind](daemon, server, stack)
            wait_until(has_question(daemon, server), lambda: f"{server} did not ask")
            leave()
            client = McpClient(daemon, waits, server=server)
            with taking_at_most(20):
                assert client.call("pid") == str(daemon.status(server)["pid"])
            assert not daemon.status(server)["questions"]
            client.line.close()

    in_parallel(check)


def test_waiting_call_fails_with_who_was_asked_and_status_shows_it(daemon: Daemon) -> None:
    """The definition demands one process for all, and the client is there."""

    def check(kind: str, waits: str) -> None:
        server = f"one-{server_of(kind, waits)}"
        with ExitStack() as stack:
            leave = ASKED[kind](daemon, server, stack)
            wait_until(has_question(daemon, server), lambda: f"{server} did not ask")
            client = McpClient(daemon, waits, server=server, client={"name": "waiter"})
            key = client.send("tools/call", name="echo", arguments={})
            wait_until(lambda: daemon.status(server)["waiting_calls"] == 1, lambda: "it does not wait")
            status = daemon.status(server)
            (question,), (waiting,) = status["questions"], status["waiting"]
            assert question["call"] == "tool 'ask'"
            assert question["text"] == "Your name?"
            assert question["client_is_connected"]
            assert waiting["client"].startswith("waiter")
            assert waiting["call"] == "tool 'echo'"
            with pytest.raises(Refused) as refused:
                client.wait(key)
            message = refused.value.body["message"]
            assert f"waited 6 s for an answer of {question['client']}, which tool 'ask' asked" in message
            assert "(Your name?) at 20" in message
            assert not daemon.status(server)["waiting_calls"]
            leave()
            client.line.close()

    in_parallel(check)

"""Two replicas behind a balancer that sends each request to any of them."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest

from tests.e2e.harness import BOUND, Daemon, Json, fake, in_flight, running
from tests.e2e.web import HttpEndpoint, Session, ask, events, http_endpoint, messages, request
from tests.interop.peers import free_port

KEY = "k" * 32
TOKEN = "t" * 43


def start(home: Path, key: str = KEY) -> Iterator[Daemon]:
    home.mkdir()
    state = home / "state" / "mcpd"
    state.mkdir(parents=True, mode=0o700)
    (state / "http-token").touch(0o600)
    (state / "http-token").write_text(TOKEN)
    address = f"127.0.0.1:{free_port()}"
    http = {"listen": address, "cluster": {"key": key, "address": f"http://{address}"}}
    servers = {"one": fake(), "two": fake("--era", "legacy")}
    with running(home, servers, settings={"http": http}) as daemon:
        daemon.wait_connected("one", "two")
        yield daemon


@pytest.fixture(scope="module")
def first(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Daemon]:
    yield from start(tmp_path_factory.mktemp("first") / "home")


@pytest.fixture(scope="module")
def second(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Daemon]:
    yield from start(tmp_path_factory.mktemp("second") / "home")


@pytest.fixture
def mortal(tmp_path: Path) -> Iterator[Daemon]:
    """A replica that a test ends."""
    yield from start(tmp_path / "home")


def client(daemon: Daemon) -> httpx.Client:
    endpoint: HttpEndpoint = http_endpoint(daemon)
    return endpoint.client()


def call(http: httpx.Client, session: Session, tool: str, **arguments: object) -> httpx.Response:
    body = request("tools/call", name=f"one__{tool}", arguments=arguments)
    return http.post("/mcp", json=body, headers=session.headers)


def test_session_is_used_at_another_replica(first: Daemon, second: Daemon) -> None:
    with client(first) as one, client(second) as two:
        session = Session(one)
        pids = {call(http, session, "pid").json()["result"]["content"][0]["text"] for http in (one, two)}
        assert len(pids) == 1
        progress = request(
            "tools/call",
            name="one__progress",
            arguments={"total": 2, "every": 1},
            _meta={"progressToken": "p"},
        )
        answer = two.post("/mcp", json=progress, headers=session.headers)
        assert [each.get("method", "result") for each in messages(answer)] == [
            "notifications/progress",
            "notifications/progress",
            "result",
        ]
        assert two.delete("/mcp", headers=session.headers).status_code == 204
        assert call(one, session, "pid").status_code == 404


def test_stream_of_a_session_is_opened_at_another_replica(first: Daemon, second: Daemon) -> None:
    with client(first) as one, client(second) as two:
        session = Session(one)
        with two.stream("GET", "/mcp", headers=session.headers) as stream:
            call(two, session, "notify")
            portion = b""
            for more in stream.iter_raw():
                portion += more
                if b"list_changed" in portion:
                    break


@pytest.mark.parametrize("server", ["one", "two"])
def test_suspended_call_is_answered_at_another_replica(first: Daemon, second: Daemon, server: str) -> None:
    """Of a server of either era: with a state of its own, and with one of mcpd."""
    question = {"message": "?", "requestedSchema": {"type": "object", "properties": {}}}
    arguments = {"method": "elicitation/create", "params": question}
    call: Json = {"name": f"{server}__ask", "arguments": arguments, "capabilities": {"elicitation": {}}}
    with client(first) as one, client(second) as two:
        asked = ask(one, "/mcp", "tools/call", **call).json()["result"]
        assert asked["resultType"] == "input_required"
        answer = {"action": "accept", "content": {"said": server}}
        call["inputResponses"] = dict.fromkeys(asked["inputRequests"], answer)
        done = ask(two, "/mcp", "tools/call", requestState=asked["requestState"], **call).json()
        assert server in json.dumps(done["result"]["content"]), done


def test_session_of_a_replica_that_is_gone_has_ended(second: Daemon, mortal: Daemon) -> None:
    with client(mortal) as one, client(second) as two:
        session = Session(one)
        assert call(two, session, "pid").status_code == 200
        answers: list[httpx.Response] = []
        waiting = threading.Thread(target=lambda: answers.append(call(two, session, "late", seconds=300)))
        waiting.start()
        in_flight(mortal, "one", 1)
        streamed = request(
            "tools/call", "s", name="one__progress", arguments={"total": 300}, _meta={"progressToken": "p"}
        )
        with one.stream("POST", "/mcp", json=streamed, headers=session.headers) as stream:
            first = next(events(stream.iter_raw()))
            mortal.process.kill()
            mortal.process.wait(BOUND)
        waiting.join(BOUND)
        assert answers[0].status_code == 200
        assert answers[0].json()["error"]["data"]["may_have_run"] is True
        assert call(two, session, "pid").status_code == 404
        assert two.get("/mcp", headers=session.headers).status_code == 404
        headers = {**session.headers, "Last-Event-ID": str(first.id)}
        [resumed] = messages(two.get("/mcp", headers=headers))
        assert resumed["id"] == "s"
        assert resumed["error"]["data"]["may_have_run"] is True


@pytest.mark.parametrize("owner", ["", "x", "gAAAAAB", "g" * 300, "g" * 1000, "é"])
def test_forged_owner_is_that_of_no_session(second: Daemon, owner: str) -> None:
    with client(second) as http:
        headers = httpx.Headers({b"Mcp-Session-Id": f"{owner}~abc".encode()})
        answer = http.post("/mcp", json=request("ping"), headers=headers)
    assert answer.status_code == 404


def test_replica_with_another_key_does_not_know_the_owner(first: Daemon, tmp_path: Path) -> None:
    for other in start(tmp_path / "home", "o" * 32):
        with client(first) as one, client(other) as two:
            session = Session(one)
            assert call(two, session, "pid").status_code == 404
            assert call(one, session, "pid").status_code == 200


def test_request_is_forwarded_once(second: Daemon, first: Daemon) -> None:
    with client(first) as one, client(second) as two:
        session = Session(one)
        headers = {**session.headers, "Mcpd-Forwarded": "1"}
        assert two.post("/mcp", json=request("ping"), headers=headers).status_code == 404

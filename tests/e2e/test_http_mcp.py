"""MCP over HTTP with the real daemon: both eras at one address, and the guarantees of each."""

from __future__ import annotations

import json
import socket
import time
from collections.abc import Iterator

import httpx
import pytest

from tests.e2e.conftest import Start
from tests.e2e.harness import Daemon, Json, fake, in_flight, running, wait_until
from tests.e2e.web import (
    MODERN,
    PORT,
    HttpEndpoint,
    Session,
    ask,
    events,
    http_endpoint,
    messages,
    modern,
    over_unix,
    request,
    send,
)
from tests.stopwatch import stopwatch, within

SERVERS = {"one": fake(), "two": fake("--era", "legacy")}


@pytest.fixture(scope="module")
def daemon(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Daemon]:
    """Run one daemon for all tests that do not change it."""
    with running(tmp_path_factory.mktemp("daemon"), SERVERS, *PORT) as daemon:
        daemon.wait_connected("one", "two")
        yield daemon


@pytest.fixture
def web(daemon: Daemon) -> HttpEndpoint:
    return http_endpoint(daemon)


@pytest.fixture
def http(web: HttpEndpoint) -> Iterator[httpx.Client]:
    with web.client() as client:
        yield client


def counts(daemon: Daemon, server: str) -> Json:
    with daemon.client() as client:
        return dict(json.loads(client.call(server, "counts")["output"]))


def named(web: HttpEndpoint) -> dict[str, str]:
    """Return the headers that every request needs."""
    return {**web.bearer, "Host": f"127.0.0.1:{web.port}"}


# ── modern clients ──────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize("server", ["one", "two"])
def test_a_modern_client_needs_no_session(http: httpx.Client, server: str) -> None:
    """With servers of either era: one POST, one JSON response, and no session ID."""
    found = ask(http, "/mcp", "server/discover")
    assert MODERN in found.json()["result"]["supportedVersions"]
    called = ask(http, "/mcp", "tools/call", name=f"{server}__echo", arguments={"n": 1})
    assert called.headers["content-type"] == "application/json"
    assert "mcp-session-id" not in called.headers
    assert called.json()["result"]["content"][0]["text"] == '{"n": 1}'
    alone = ask(http, f"/servers/{server}/mcp", "tools/call", name="echo", arguments={"n": 2})
    assert alone.json()["result"]["content"][0]["text"] == '{"n": 2}'


def test_earlier_messages_turn_the_response_into_a_stream(http: httpx.Client) -> None:
    """Events have no id: a stream of this revision cannot be resumed."""
    call = ask(http, "/servers/one/mcp", "tools/call", name="progress", arguments={"total": 0.3}, token="t")
    assert call.headers["content-type"] == "text/event-stream"
    assert call.headers["x-accel-buffering"] == "no"
    received = messages(call)
    assert [message.get("method") for message in received[:-1]] == ["notifications/progress"] * (
        len(received) - 1
    )
    assert len(received) > 1
    assert received[-1]["id"] == 1
    assert b"\nid:" not in b"\n" + call.content


@pytest.mark.parametrize("accept", ["application/json", "application/*", ""])
def test_client_that_accepts_only_json_gets_json(http: httpx.Client, accept: str) -> None:
    """In both eras, without earlier messages. Many programs also add a slash to the path."""
    http.headers["Accept"] = accept
    modern_call = ask(
        http, "/servers/one/mcp/", "tools/call", name="progress", arguments={"total": 0.3}, token="t"
    )
    legacy_call = Session(http, "/mcp/").call("one__progress", token="t", total=0.3)
    for answer in (modern_call, legacy_call):
        expected = "application/json" if accept else "text/event-stream"
        assert answer.headers["content-type"] == expected
        assert "result" in messages(answer)[-1]


LADDER: list[tuple[str, Json, dict[str, str | None], int, int]] = [
    ("no _meta", {"_meta": None}, {}, 400, -32602),
    ("no capabilities", {"_meta": {"io.modelcontextprotocol/protocolVersion": MODERN}}, {}, 400, -32602),
    ("no version header", {}, {"MCP-Protocol-Version": None}, 400, -32020),
    ("no method header", {}, {"Mcp-Method": None}, 400, -32020),
    ("another method", {}, {"Mcp-Method": "tools/list"}, 400, -32020),
    ("no name header", {}, {"Mcp-Name": None}, 400, -32020),
    ("another name", {}, {"Mcp-Name": "one__fail"}, 400, -32020),
    ("a name that is no base64", {}, {"Mcp-Name": "=?base64?!!?="}, 400, -32020),
    ("an unknown tool", {"name": "nope"}, {"Mcp-Name": "nope"}, 400, -32602),
]


@pytest.mark.parametrize(
    ("params", "headers", "status", "code"), [row[1:] for row in LADDER], ids=[row[0] for row in LADDER]
)
def test_each_modern_error_has_its_status_and_code(
    http: httpx.Client, params: Json, headers: dict[str, str | None], status: int, code: int
) -> None:
    """2026-07-28, Streamable HTTP: the error has the id of the request."""
    body, right = modern("tools/call", "k", name="one__echo", arguments={})
    body["params"] = {name: each for name, each in {**body["params"], **params}.items() if each is not None}
    sent = {name: text for name, text in {**right, **headers}.items() if text is not None}
    answer = http.post("/mcp", json=body, headers=sent)
    assert (answer.status_code, answer.json()["error"]["code"]) == (status, code)
    assert answer.json()["id"] == "k"


def test_repeated_header_is_rejected(http: httpx.Client) -> None:
    body, headers = modern("tools/list")
    answer = http.post("/mcp", json=body, headers=[*headers.items(), ("Mcp-Method", "tools/list")])
    assert answer.json()["error"]["code"] == -32020


def test_an_encoded_name_is_the_name(http: httpx.Client) -> None:
    """Clients may always use `=?base64?…?=`."""
    body, headers = modern("tools/call", name="one__echo", arguments={})
    answer = http.post("/mcp", json=body, headers={**headers, "Mcp-Name": "=?base64?b25lX19lY2hv?="})
    assert answer.status_code == 200


@pytest.mark.parametrize("version", ["2027-01-01", "2025-11-25"])
def test_unknown_revision_gets_the_known_revisions(http: httpx.Client, version: str) -> None:
    body, headers = modern("tools/list", "k")
    body["params"]["_meta"]["io.modelcontextprotocol/protocolVersion"] = version
    answer = http.post("/mcp", json=body, headers={**headers, "MCP-Protocol-Version": version})
    error = answer.json()["error"]
    assert (answer.status_code, error["code"]) == (400, -32022)
    assert MODERN in error["data"]["supported"]
    assert error["data"]["requested"] == version


@pytest.mark.parametrize("method", ["initialize", "ping", "logging/setLevel", "tasks/list", "nope"])
@pytest.mark.parametrize("path", ["/mcp", "/servers/two/mcp"])
def test_method_outside_the_revision_is_not_found(http: httpx.Client, method: str, path: str) -> None:
    answer = ask(http, path, method)
    assert (answer.status_code, answer.json()["error"]["code"]) == (404, -32601)


def test_disconnect_cancels_the_call(daemon: Daemon, web: HttpEndpoint) -> None:
    """2026-07-28: for every form of response, the server gets the cancellation within about half a second."""
    before = len(counts(daemon, "one")["cancelled"])
    body, headers = modern("tools/call", name="progress", arguments={"total": 30}, token=1)
    with web.client() as http, http.stream("POST", "/servers/one/mcp", json=body, headers=headers) as stream:
        next(events(stream.iter_raw()))
    wait_until(
        lambda: len(counts(daemon, "one")["cancelled"]) == before + 1, lambda: "not cancelled (stream)"
    )
    body, headers = modern("tools/call", name="drop", arguments={})
    with web.connection as connection:
        send(connection, "/servers/one/mcp", body, {**headers, **named(web)})
        in_flight(daemon, "one", 1)
    wait_until(
        lambda: len(counts(daemon, "one")["cancelled"]) == before + 2, lambda: "not cancelled (silent)"
    )


def test_modern_notification_is_accepted_and_ignored(http: httpx.Client) -> None:
    """In particular it must not cancel a request of another connection."""
    note = {"jsonrpc": "2.0", "method": "notifications/cancelled", "params": {"requestId": 1}}
    answer = http.post("/mcp", json=note, headers={"MCP-Protocol-Version": MODERN})
    assert (answer.status_code, answer.content) == (202, b"")


def test_a_subscription_is_a_stream_until_the_client_leaves(daemon: Daemon, http: httpx.Client) -> None:
    body, headers = modern("subscriptions/listen", "L", notifications={"toolsListChanged": True})
    with http.stream("POST", "/mcp", json=body, headers=headers) as stream:
        received = (json.loads(event.data) for event in events(stream.iter_raw()))
        assert next(received)["method"] == "notifications/subscriptions/acknowledged"
        with daemon.client() as client:
            client.call("one", "change")
        changed = next(received)
    assert changed["method"] == "notifications/tools/list_changed"
    assert changed["params"]["_meta"] == {"io.modelcontextprotocol/subscriptionId": "L"}


# ── legacy clients ──────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize("version", ["2025-11-25", "2025-06-18", "2025-03-26"])
def test_a_session_begins_with_the_handshake_and_ends_with_delete(http: httpx.Client, version: str) -> None:
    """Requests get 404 afterwards, and the client starts a new session (2025-11-25, Session Management)."""
    session = Session(http, version=version)
    assert session.answer.json()["result"]["protocolVersion"] == version
    assert session.answer.headers["content-type"] == "application/json"
    assert session.call("one__echo", n=1).json()["result"]["content"][0]["text"] == '{"n": 1}'
    assert session.post(request("ping")).json()["result"] == {}
    assert http.delete("/mcp", headers=session.headers).status_code == 204
    assert session.post(request("ping")).status_code == 404
    assert http.delete("/mcp", headers=session.headers).status_code == 404


def test_without_its_session_a_request_is_refused(http: httpx.Client, daemon: Daemon) -> None:
    """400 without a session, 404 for an unknown one. Sessions are valid for their path and listener only."""
    assert http.post("/mcp", json=request("ping")).status_code == 400
    assert http.post("/mcp", json=request("ping"), headers={"Mcp-Session-Id": "x"}).status_code == 404
    assert http.get("/mcp").status_code == 405
    assert http.delete("/mcp").status_code == 405
    assert http.get("/mcp", headers={"Mcp-Session-Id": "x"}).status_code == 404
    session = Session(http)
    assert http.post("/servers/one/mcp", json=request("ping"), headers=session.headers).status_code == 404
    with over_unix(daemon) as unix:
        assert unix.post("/mcp", json=request("ping"), headers=session.headers).status_code == 404
    wrong = session.post(request("ping"), **{"MCP-Protocol-Version": "1999-01-01"})
    assert wrong.status_code == 400
    assert session.post(request("ping")).status_code == 200


@pytest.mark.parametrize(
    ("content", "headers", "status"),
    [
        (b"{}", {"Content-Type": "text/plain"}, 415),
        (b"{}", {"Content-Type": "application/json", "Accept": "text/html"}, 406),
        (b"{", {"Content-Type": "application/json"}, 400),
        (b"[]", {"Content-Type": "application/json"}, 400),
    ],
)
def test_invalid_message_is_rejected(
    http: httpx.Client, content: bytes, headers: dict[str, str], status: int
) -> None:
    assert http.post("/mcp", content=content, headers=headers).status_code == status


def test_unknown_server_or_profile_is_not_found(http: httpx.Client) -> None:
    for path in ("/servers/nope/mcp", "/mcp/nope"):
        answer = http.post(path, json=request("tools/list"))
        assert answer.status_code == 404
        assert "nope" in answer.json()["error"]["message"]


def test_only_the_revision_that_had_batches_takes_them(http: httpx.Client) -> None:
    batch = [request("ping", 1), {"jsonrpc": "2.0", "method": "notifications/x"}, request("ping", "2")]
    old = Session(http, version="2025-03-26")
    assert sorted(str(answer["id"]) for answer in old.post(batch).json()) == ["1", "2"]
    assert old.post(batch[1:2]).status_code == 202
    assert old.post([]).status_code == 400
    new = Session(http, version="2025-06-18")
    assert new.post(batch).status_code == 400


def test_stream_can_be_resumed_without_duplicates(daemon: Daemon, web: HttpEndpoint) -> None:
    """2025-11-25, Resumability: a lost connection does not cancel the call, and its response is kept."""
    cancelled = counts(daemon, "one")["cancelled"]
    with web.client() as http:
        session = Session(http, "/servers/one/mcp")
        body = session.calling("progress", 5, "t", total=1.5)
        seen: list[tuple[str | None, Json]] = []
        primed: str | None = None
        with http.stream("POST", session.path, json=body, headers=session.headers) as stream:
            for event in events(stream.iter_raw()):
                if not seen and not event.data:
                    primed = event.id
                    assert event.retry is not None
                else:
                    seen.append((event.id, json.loads(event.data)))
                if len(seen) == 3:
                    break
        assert primed
        time.sleep(0.3)  # messages in the meantime have no receiver
        with session.listening(**{"Last-Event-ID": str(seen[-1][0])}) as again:
            rest = [(event.id, json.loads(event.data)) for event in events(again.iter_raw()) if event.data]
        seen += rest
        assert len({name for name, _ in seen}) == len(seen)
        received = [message["params"]["progress"] for _, message in seen if "method" in message]
        assert received == sorted(set(received))
        assert seen[-1][1]["id"] == 5
        with session.listening(**{"Last-Event-ID": str(seen[-2][0])}) as once_more:
            assert [json.loads(event.data)["id"] for event in events(once_more.iter_raw()) if event.data] == [
                5
            ]
        with session.listening(**{"Last-Event-ID": "999-1"}) as unknown:
            assert unknown.status_code == 400
    assert counts(daemon, "one")["cancelled"] == cancelled


@pytest.mark.parametrize("version", ["2025-06-18", "2025-03-26"])
def test_older_clients_get_no_event_without_data(http: httpx.Client, version: str) -> None:
    """Their parsers would take it for a message."""
    call = Session(http, "/servers/one/mcp", version).call("progress", 1, "t", total=0.3)
    assert all(event.data for event in events(iter([call.content])))


def test_unrelated_messages_arrive_on_the_get_stream(daemon: Daemon, http: httpx.Client) -> None:
    """The client gets one notification of each kind."""
    session = Session(http)
    before = daemon.status("one")["tools"]
    with daemon.client() as client:
        client.call("one", "change")
        daemon.wait_status("one", lambda status: status["tools"] == before + 1)
    with session.listening() as stream:
        assert stream.headers["content-type"] == "text/event-stream"
        received = (json.loads(event.data) for event in events(stream.iter_raw()) if event.data)
        assert next(received) == {"jsonrpc": "2.0", "method": "notifications/tools/list_changed"}
        with daemon.client() as client:
            client.call("two", "change")
        assert next(received)["method"] == "notifications/tools/list_changed"


def test_server_request_uses_the_stream_of_its_call_and_is_answered_by_post(web: HttpEndpoint) -> None:
    """No other stream and no other client gets the request."""
    with web.client() as http, web.client() as beside:
        session = Session(http, "/servers/two/mcp", capabilities={"elicitation": {"form": {}}})
        question = {"message": "Which?", "requestedSchema": {"type": "object", "properties": {}}}
        body = session.calling("ask", 9, None, method="elicitation/create", params=question)
        with http.stream("POST", session.path, json=body, headers=session.headers) as stream:
            received = (json.loads(event.data) for event in events(stream.iter_raw()) if event.data)
            asked = next(received)
            assert asked["method"] == "elicitation/create"
            answer = {"jsonrpc": "2.0", "id": asked["id"], "result": {"action": "decline"}}
            posted = beside.post(session.path, json=answer, headers=session.headers)
            assert (posted.status_code, posted.content) == (202, b"")
            final = next(received)
        assert final["id"] == 9
        assert "decline" in final["result"]["content"][0]["text"]


def test_session_survives_a_changed_server_and_ends_with_a_removed_one(start: Start) -> None:
    """404 is only for servers that no longer exist."""
    daemon = start(SERVERS, *PORT)
    daemon.wait_connected("one")
    with http_endpoint(daemon).client() as http, daemon.client() as client:
        session = Session(http, "/servers/one/mcp")
        client.request("mcpd/servers/set", servers={"one": fake("--tools", "1")})
        daemon.wait_connected("one")
        assert session.call("tool-00001").json()["result"]["content"][0]["text"] == "tool-00001"
        called = ask(http, session.path, "tools/call", name="tool-00001", arguments={})
        assert called.json()["result"]["content"][0]["text"] == "tool-00001"
        client.request("mcpd/servers/set", servers={})
        assert session.call("echo").status_code == 404
        assert http.delete(session.path, headers=session.headers).status_code == 404
        assert ask(http, session.path, "tools/call", name="echo", arguments={}).status_code == 404


# ── many, slow and misbehaving clients ──────────────────────────────────────────────────────────────


def test_stopping_daemon_ends_its_streams_cleanly(start: Start) -> None:
    """Clients that listen or do not read do not delay the shutdown."""
    daemon = start(SERVERS, *PORT)
    daemon.wait_connected(*SERVERS)  # a late connection would change a list in the meantime
    web = http_endpoint(daemon)
    with web.client() as http, web.connection as deaf:
        deaf.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        body, headers = modern("tools/call", name="one__big", arguments={"mb": 8})
        send(deaf, "/mcp", body, {**headers, **named(web)})
        session = Session(http)
        with session.listening() as stream:
            received = events(stream.iter_raw())
            assert next(received).id is not None
            with stopwatch() as watch:
                assert daemon.stop() == 0
                assert list(received) == []  # no error: the stream ended cleanly
                took = watch.seconds
    assert within(took, 8)

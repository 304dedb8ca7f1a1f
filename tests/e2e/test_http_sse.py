"""HTTP+SSE with the real daemon, by a client that controls every byte."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import httpx
import pytest

from tests.e2e.harness import Daemon, Json, fake, in_flight, running, wait_until
from tests.e2e.web import PORT, HttpEndpoint, events, http_endpoint, request

REVISION = "2024-11-05"
PROFILES = {"profiles": {"small": {"servers": ["one"]}}}


@pytest.fixture(scope="module")
def daemon(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Daemon]:
    """Run one daemon for all tests that do not change it."""
    servers = {"one": fake("--era", "legacy"), "two": fake()}
    with running(tmp_path_factory.mktemp("daemon"), servers, *PORT, settings=PROFILES) as daemon:
        daemon.wait_connected("one", "two")
        yield daemon


@pytest.fixture
def web(daemon: Daemon) -> HttpEndpoint:
    return http_endpoint(daemon)


class Sse:
    """A client of revision 2024-11-05."""

    def __init__(self, http: httpx.Client, response: httpx.Response, capabilities: Json) -> None:
        assert response.headers["content-type"] == "text/event-stream"
        self._http = http
        self._events = events(response.iter_raw())
        first = next(self._events)
        assert first.event == "endpoint"
        self.endpoint = first.data.decode()
        info = {"name": "test", "version": "1"}
        hello = self.ask("initialize", protocolVersion=REVISION, capabilities=capabilities, clientInfo=info)
        assert hello["result"]["protocolVersion"] == REVISION
        self.post({"jsonrpc": "2.0", "method": "notifications/initialized"})

    def post(self, body: object) -> None:
        response = self._http.post(self.endpoint, json=body)
        assert (response.status_code, response.content) == (202, b"")

    def next(self) -> Json:
        event = next(self._events)
        assert event.event == "message"
        message: Json = json.loads(event.data)
        return message

    def ask(self, method: str, **params: Any) -> Json:
        self.post(request(method, method, **params))
        return self.next()


@contextmanager
def connected(http: httpx.Client, path: str = "/sse", **capabilities: Json) -> Iterator[Sse]:
    with http, http.stream("GET", path, headers={"Accept": "text/event-stream"}) as response:
        assert response.status_code == 200, response.read()
        yield Sse(http, response, capabilities)


@pytest.mark.parametrize(
    ("path", "tool"),
    [("/sse", "two__echo"), ("/sse/small", "one__echo"), ("/servers/two/sse", "echo")],
)
def test_each_scope_has_an_endpoint(web: HttpEndpoint, path: str, tool: str) -> None:
    """For all servers, a profile, and one server."""
    with connected(web.client(), path) as client:
        names = {entry["name"] for entry in client.ask("tools/list")["result"]["tools"]}
        assert tool in names
        assert ("two__echo" in names) is (path == "/sse")
        result = client.ask("tools/call", name=tool, arguments={"a": 1})["result"]
        assert json.loads(result["content"][0]["text"]) == {"a": 1}


def test_everything_of_a_call_comes_on_the_stream(web: HttpEndpoint) -> None:
    """Progress, and a question whose answer is posted."""
    with connected(web.client(), "/servers/one/sse", sampling={}) as client:
        calling = {"name": "progress", "arguments": {"total": 0.3}, "_meta": {"progressToken": "t"}}
        client.post(request("tools/call", 5, **calling))
        while (message := client.next()).get("method") == "notifications/progress":
            assert message["params"]["progressToken"] == "t"
        assert (message["id"], "result" in message) == (5, True)
        prompt = {"messages": [], "maxTokens": 5}
        asking = {"method": "sampling/createMessage", "params": prompt}
        client.post(request("tools/call", 6, name="ask", arguments=asking))
        question = client.next()
        assert question["method"] == "sampling/createMessage"
        answer = {"role": "assistant", "content": {"type": "text", "text": "forty-two"}, "model": "m"}
        client.post({"jsonrpc": "2.0", "id": question["id"], "result": answer})
        assert "forty-two" in json.dumps(client.next()["result"])


def test_closing_the_stream_cancels_the_calls(daemon: Daemon, web: HttpEndpoint) -> None:
    """The stream is the session."""
    with connected(web.client(), "/servers/one/sse") as client:
        client.post(request("tools/call", 5, name="drop", arguments={}))
        in_flight(daemon, "one", 1)
        endpoint = client.endpoint
    in_flight(daemon, "one", 0)
    with daemon.client() as control:

        def cancelled() -> bool:
            return bool(json.loads(control.call("one", "counts")["output"])["cancelled"])

        wait_until(cancelled, lambda: "the server was not told")
    with web.client() as http:
        assert http.post(endpoint, json=request("ping")).status_code == 404


@pytest.mark.parametrize(
    ("headers", "status"),
    [
        ({"Authorization": "Bearer wrong"}, 401),
        ({"Origin": "https://example.com"}, 403),
        ({"Host": "example.com"}, 403),
        ({"Sec-Fetch-Site": "cross-site"}, 403),
    ],
)
def test_access_is_as_for_the_other_endpoints(
    web: HttpEndpoint, headers: dict[str, str], status: int
) -> None:
    """For the stream and for the message endpoint."""
    with connected(web.client()) as client, web.client() as http:
        assert http.get("/sse", headers=headers).status_code == status
        refused = http.post(client.endpoint, json=request("ping"), headers=headers)
        assert refused.status_code == status
        assert client.ask("ping")["result"] == {}


def test_wrong_requests_are_refused(web: HttpEndpoint) -> None:
    """Clients that try Streamable HTTP first see from the status that it is not served here."""
    with web.client() as http:
        assert http.post("/sse", json=request("ping")).status_code == 404
        assert http.delete("/sse").status_code == 405
        assert http.delete("/sse").headers["allow"] == "GET, POST"
        assert http.get("/servers/nobody/sse").status_code == 404
        assert http.get("/sse/nothing").status_code == 404
        assert http.get("/sse/small/x").status_code == 404

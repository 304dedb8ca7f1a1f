"""HTTP clients survive a restart and a crash of the daemon: the port stays open, and sessions continue."""

from __future__ import annotations

import json
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import httpx
import pytest

from mcpd.wire.event_stream import SseEvent
from tests.e2e.harness import BOUND, Json, fake, wait_until
from tests.e2e.kept_port import Manager, managing
from tests.e2e.web import HttpEndpoint, Session, events, http_endpoint

SERVERS = {"one": fake("--capabilities", "tools,resources", "--subscribable", "--era", "legacy")}
PATH = "/servers/one/mcp"
URI = "test://watched"
UPDATED: Json = {"method": "notifications/resources/updated", "params": {"uri": URI}}


@pytest.fixture
def manager(tmp_path: Path) -> Iterator[Manager]:
    with managing(tmp_path, SERVERS, 0) as manager:
        yield manager


@contextmanager
def began(manager: Manager) -> Iterator[tuple[HttpEndpoint, Session]]:
    """Start the daemon, and a session that is subscribed to a resource."""
    daemon = manager.start()
    daemon.wait_connected("one")
    web = http_endpoint(daemon)
    with web.client() as http:
        session = Session(http, PATH, capabilities={"roots": {}})
        assert "result" in session.post(request("resources/subscribe", uri=URI)).json()
        manager.wait_kept(URI)
        yield web, session


@contextmanager
def resumed(web: HttpEndpoint, session: Session, last: str | None) -> Iterator[Iterator[SseEvent]]:
    """Open a stream again that broke after the event `last`."""
    headers = session.headers | {"Last-Event-ID": str(last)}
    with web.client() as http, http.stream("GET", PATH, headers=headers) as response:
        assert response.status_code == 200
        yield events(response.iter_raw())


def request(method: str, key: object = 5, **params: Any) -> Json:
    return {"jsonrpc": "2.0", "id": key, "method": method, "params": params}


def first(stream: Iterator[SseEvent]) -> Json:
    return dict(json.loads(next(event.data for event in stream if event.data)))


def is_update(stream: Iterator[SseEvent]) -> bool:
    return bool(first(stream)["method"] == UPDATED["method"])


def test_a_session_continues_after_a_crash(manager: Manager) -> None:
    """A request that is sent while no daemon runs waits for the next one. The client hears of what may have
    changed, and of what changes then, also in a stream that it resumes."""
    with began(manager) as (web, session):
        with session.listening() as stream:
            last = next(events(stream.iter_raw())).id
        manager.kill()
        with ThreadPoolExecutor() as pool:
            waiting = pool.submit(session.call, "echo", n=1)
            daemon = manager.start()
            answer = waiting.result(BOUND).json()["result"]
        assert json.loads(answer["content"][0]["text"]) == {"n": 1}
        assert http_endpoint(daemon) == web
        with resumed(web, session, last) as stream:
            assert str(next(stream).id).partition("-")[0] != str(last).partition("-")[0], "ids are used once"
            seen: list[str] = []
            while not seen or seen[-1] != UPDATED["method"]:
                seen.append(first(stream)["method"])
            assert {"roots/list", "notifications/tools/list_changed"} < set(seen)
            session.call("notify", **UPDATED)
            while not is_update(stream):
                pass
        manager.wait_kept(URI)


def test_a_session_belongs_to_its_path_and_client_after_a_crash(manager: Manager) -> None:
    with began(manager) as (_, session):
        manager.kill()
        daemon = manager.start()
        ping = request("ping")
        assert session.http.post("/mcp", json=ping, headers=session.headers).status_code == 404
        transport = httpx.HTTPTransport(uds=daemon.socket)
        with httpx.Client(transport=transport, base_url="http://localhost", timeout=BOUND) as other:
            headers = session.headers | {"Accept": "application/json, text/event-stream"}
            assert other.post(PATH, json=ping, headers=headers).status_code == 404
        assert session.post(ping).json()["result"] == {}
        assert session.http.delete(PATH, headers=session.headers).status_code == 204
        manager.wait_kept(sessions=0)
        assert session.post(ping).status_code == 404


def test_a_call_that_a_crash_interrupted_is_answered(manager: Manager) -> None:
    """The client resumes the stream of the call. No answer will come, so it must not wait for one."""
    with began(manager) as (web, session):
        call = session.calling("progress", 7, "token", total=1000, every=0.05)
        with session.http.stream("POST", PATH, json=call, headers=session.headers) as stream:
            last = next(each for each in events(stream.iter_raw()) if each.data).id
            manager.kill()
        manager.start()
        with resumed(web, session, last) as stream:
            answer = first(stream)
        assert answer["id"] == 7
        assert answer["error"]["data"]["may_have_run"] is True


def test_requests_of_connected_clients_go_to_the_next_daemon(manager: Manager) -> None:
    """Even while the old one waits for a call in progress."""
    with began(manager) as (web, session), ThreadPoolExecutor() as pool:
        daemon = manager.daemon
        assert daemon is not None
        late = pool.submit(session.call, "drop")
        wait_until(lambda: daemon.status("one")["in_flight"] == 1, lambda: daemon.log)
        with web.client() as http:
            connected = http.get("/health")
            daemon.process.terminate()
            wait_until(lambda: "stopping: SIGTERM" in daemon.log, lambda: daemon.log)
            sent_on = http.post(PATH, json=request("ping"), headers=session.headers)
            assert (connected.status_code, sent_on.status_code) == (200, 307)
            assert (sent_on.headers["location"], sent_on.headers["connection"]) == (PATH, "close")
        assert late.result(BOUND).json()["error"]["data"]["may_have_run"] is True
        assert daemon.process.wait(BOUND) == 0
        manager.start()
        assert session.post(request("ping")).json()["result"] == {}

"""What replicas share through a real Redis server besides logins."""

from __future__ import annotations

import shutil
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from functools import partial
from pathlib import Path

import httpx
import pytest
import redis
import trio

from mcpd.calls.shared_calls import SharedCalls
from mcpd.model.events import CallOutcome, CallRecord
from mcpd.model.status import parse_timestamp, rfc3339
from mcpd.state.shared import SharedState
from tests.e2e.harness import BOUND, Client, Daemon, Json, Refused, fake, wait_until
from tests.e2e.issuer import AUDIENCE, running_issuer
from tests.e2e.redis_replicas import RedisServer, redis_server, replicas
from tests.e2e.web import ask, http_endpoint

pytestmark = pytest.mark.skipif(shutil.which("redis-server") is None, reason="redis-server is not installed")


@pytest.fixture
def database(tmp_path: Path) -> Iterator[RedisServer]:
    with redis_server(tmp_path) as server:
        yield server


def is_state(daemon: Daemon, state: str) -> Callable[[], bool]:
    return lambda: bool(daemon.status("one")["status"] == state)


def reaches(daemon: Daemon, state: str) -> None:
    wait_until(is_state(daemon, state), lambda: f"{daemon.status('one')}\n{daemon.log[-3000:]}")


def set_toggle(daemon: Daemon, method: str, server: str, **more: object) -> None:
    with daemon.client() as client:
        client.request(f"mcpd/{method}", server=server, **more)


def is_sharing(daemon: Daemon) -> bool:
    with daemon.client() as client:
        return not any("Redis" in each for each in client.request("mcpd/status")["daemon"]["warnings"])


def test_toggle_is_known_to_all_and_survives_a_stopped_redis(tmp_path: Path, database: RedisServer) -> None:
    """What is changed while Redis is down is changed here at once, and everywhere when it is back."""
    with replicas(tmp_path, database.url, {"one": fake()}) as (one, two):
        for daemon in (one, two):
            daemon.wait_connected("one")
        set_toggle(one, "disable", "one")
        reaches(two, "disabled")
        set_toggle(two, "enable", "one")
        reaches(one, "connected")
        until = rfc3339(time.time() + 3600)
        set_toggle(one, "disable", "one", until=until)
        wait_until(lambda: bool(two.status("one")["off_until"]), lambda: str(two.status("one")))
        set_toggle(one, "enable", "one")
        reaches(two, "connected")
        with database.stopped():
            wait_until(lambda: not is_sharing(two), lambda: two.log)
            set_toggle(one, "disable", "one")
            with two.client() as client:
                assert client.call("one", "echo", {"text": "a"})["success"]
        reaches(two, "disabled")
        wait_until(partial(is_sharing, two), lambda: two.log)
        assert two.log.count("Redis cannot be used") == 1


def test_nonsense_and_forged_toggles_change_nothing(tmp_path: Path, database: RedisServer) -> None:
    store = redis.Redis.from_url(database.url)
    store.hset("mcpd:toggles", mapping={"one": "false", "two": b"\xff" * 100_000})
    with replicas(tmp_path, database.url, {"one": fake(), "two": fake()}) as (one, two):
        for daemon in (one, two):
            daemon.wait_connected("one", "two")
        set_toggle(one, "disable", "two")
        wait_until(lambda: bool(two.status("two")["status"] == "disabled"), lambda: two.log)
        store.hset("mcpd:toggles", "one", store.hget("mcpd:toggles", "two") or b"")  # of another server
        store.rename("mcpd:toggles", "kept")
        store.set("mcpd:toggles", "x" * 10_000_000)
        wait_until(lambda: not is_sharing(one), lambda: one.log)
        store.rename("kept", "mcpd:toggles")
        wait_until(partial(is_sharing, one), lambda: one.log)
        assert one.status("one")["status"] == two.status("one")["status"] == "connected"


def test_second_daemon_with_the_same_address_is_not_ready(tmp_path: Path, database: RedisServer) -> None:
    """It says why, once, and takes over when the first one has ended."""
    address = "http://replica:1"
    with replicas(tmp_path, database.url, {"one": fake()}, address=address) as daemons, ExitStack() as stack:
        https = [stack.enter_context(http_endpoint(daemon).client()) for daemon in daemons]

        def codes() -> list[int]:
            return sorted(http.get("/readyz").status_code for http in https)

        wait_until(lambda: codes() == [200, 503], lambda: str(codes()))
        refused = next(index for index, http in enumerate(https) if http.get("/readyz").status_code == 503)
        assert "cluster.address" in https[refused].get("/readyz").text
        assert daemons[1 - refused].stop() == 0
        wait_until(lambda: _code(https[refused]) == 200, lambda: daemons[refused].log)
        assert daemons[refused].log.count("another daemon is the replica") == 1


def _code(http: httpx.Client) -> int:
    return http.get("/readyz").status_code


def test_limit_is_kept_by_all_replicas_together(tmp_path: Path, database: RedisServer) -> None:
    """A replica that does not know the client yet may let its share of 30 pass, as when Redis is down."""
    rule = {"decision": "limit", "tools": ["echo", "pid"], "rate": "60/h"}
    with replicas(tmp_path, database.url, {"one": fake()}, policies=[rule]) as daemons:
        for daemon in daemons:
            daemon.wait_connected("one")
            wait_until(partial(is_sharing, daemon), lambda: database.url)
        clients = [daemon.client() for daemon in daemons]
        passed = sum(passes(clients[number % 2], "echo") for number in range(200))
        assert 30 <= passed <= 90

        def passes_again() -> bool:
            nonlocal passed
            passed += passes(clients[0], "echo")
            return passed >= 58  # what another replica may use is given back after a second

        wait_until(passes_again, lambda: f"only {passed} calls passed")
        assert passed <= 90
        with database.stopped():
            wait_until(lambda: not any(map(is_sharing, daemons)), lambda: "Redis answers")
            assert [sum(passes(client, "pid") for _ in range(50)) for client in clients] == [30, 30]


def passes(client: Client, tool: str) -> bool:
    try:
        return bool(client.call("one", tool)["success"])
    except Refused as error:
        return error.code != "limit_reached"


def test_every_replica_shows_the_calls_of_all(tmp_path: Path, database: RedisServer) -> None:
    """Also those that were made while Redis was down, and with the time by its own clock."""
    with replicas(tmp_path, database.url, {"one": fake()}) as daemons:
        for daemon in daemons:
            daemon.wait_connected("one")
            wait_until(partial(is_sharing, daemon), lambda: database.url)
        clients = [daemon.client() for daemon in daemons]
        for client in clients:
            client.call("one", "echo")
        with database.stopped():
            wait_until(lambda: not any(map(is_sharing, daemons)), lambda: "Redis answers")
            for client in clients:
                client.call("one", "pid")
            assert len(client.request("mcpd/calls")["calls"]) == 2
            assert "Redis" in client.request("mcpd/calls")["problem"]

        def logged() -> list[list[Json]]:
            return [client.request("mcpd/calls")["calls"] for client in clients]

        wait_until(lambda: [len(each) for each in logged()] == [4, 4], lambda: str(logged()))
        redis.Redis.from_url(database.url).xadd("mcpd:calls", {"batch": "nonsense"})
        for found in logged():
            assert [each["name"] for each in found] == ["echo", "echo", "pid", "pid"]
            assert len({each["replica"] for each in found}) == 2
        assert "REPLICA" in daemons[0].mcpctl("calls").stdout


def test_calls_of_a_replica_whose_clock_is_an_hour_ahead(database: RedisServer) -> None:
    """Their times are corrected, and the stream keeps the size of the settings."""
    size = 200_000
    one, two = (SharedState(database.url, b"k", f"http://{name}", name) for name in "ab")
    two.link.clock = 3600.0  # as if this machine were an hour late
    parts = [SharedCalls(state, lambda: size) for state in (one, two)]
    for number in range(1500):
        exchange(parts[0], CallRecord(at=rfc3339(time.time()), outcome=CallOutcome.OK, name=str(number)), one)
    assert (redis.Redis.from_url(database.url).memory_usage("mcpd:calls") or 0) < 2 * size
    began = time.time()
    exchange(parts[1], CallRecord(at=rfc3339(began - 3600), outcome=CallOutcome.OK, name="late"), two)
    one.is_down = False
    found = trio.run(parts[0].with_others, (), lambda _: True, 10)
    assert [each.name for each in found][-2:] == ["1499", "late"]
    assert abs(parse_timestamp(found[-1].at) - began) < 1


def exchange(part: SharedCalls, record: CallRecord, state: SharedState) -> None:
    part.add([record])
    part.prepare()(state.link)()


def test_call_is_approved_at_another_replica(tmp_path: Path, database: RedisServer) -> None:
    """For an hour, the same person is not asked again on any replica. Others are."""
    rule = {"decision": "ask", "tools": ["echo"], "answer": "outside"}
    with (
        running_issuer() as issuer,
        ThreadPoolExecutor() as pool,
        replicas(
            tmp_path,
            database.url,
            {"one": fake()},
            http={"jwt": {"issuer": issuer.url, "audience": AUDIENCE}},
            policies=[rule],
        ) as daemons,
        ExitStack() as stack,
    ):
        for daemon in daemons:
            daemon.wait_connected("one")
            wait_until(partial(is_sharing, daemon), lambda: database.url)
        https = [stack.enter_context(http_endpoint(daemon).client()) for daemon in daemons]
        controls = [daemon.client() for daemon in daemons]

        def echo(http: httpx.Client, person: str) -> httpx.Response:
            http.headers["Authorization"] = f"Bearer {issuer.token(person)}"
            return ask(http, "/mcp", "tools/call", name="one__echo", arguments={"text": "a"})

        def answer(control: Client, person: str, decision: str) -> str:
            found: list[Json] = []

            def waits() -> bool:
                found[:] = control.request("mcpd/approvals")["approvals"]
                return any(person in each["client"] for each in found)

            wait_until(waits, lambda: f"no call of {person} waits: {found}")
            (id,) = (str(each["id"]) for each in found if person in each["client"])
            control.request("mcpd/approve", id=id, decision=decision)
            return id

        call = pool.submit(echo, https[0], "ada")
        id = answer(controls[1], "ada", "session")
        assert not call.result(BOUND).json()["result"]["isError"]
        assert not echo(https[1], "ada").json()["result"]["isError"]  # nobody is asked
        call = pool.submit(echo, https[1], "bob")
        answer(controls[0], "bob", "no")
        assert "refused" in call.result(BOUND).text
        with pytest.raises(Refused, match="no call"):
            controls[0].request("mcpd/approve", id=id.replace("1@", "9@"), decision="once")
        stored = redis.Redis.from_url(database.url).dump("mcpd:approvals:granted")
        assert b"ada" not in (stored or b"")

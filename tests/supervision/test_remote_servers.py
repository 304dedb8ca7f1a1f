"""The lifecycle of a remote server over real connections: detection, loss, refusal and reconnection."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from datetime import datetime
from itertools import pairwise
from pathlib import Path
from types import SimpleNamespace
from typing import Any, NoReturn

import attrs
import msgspec
import pytest
import trio
from trio.testing import MockClock

from mcpd.model.errors import LinkLost, McpdError, NeedsAuth, NotReady, UpstreamRefused
from mcpd.model.events import Event
from mcpd.model.server_spec import RemoteSpec, RestartPolicy, Timeouts
from mcpd.model.status import FailureKind, ServerState, ServerStatus
from mcpd.supervision.health import ProbeTimer, _is_answer
from mcpd.supervision.managed_server import ManagedServer, ServerClients
from mcpd.transports.credentials import Credentials
from mcpd.transports.outgoing_request import AwaitedExchange
from tests.fakes.http import LegacyScript, ModernScript, Request, Script, fake_http
from tests.stopwatch import stopwatch, within
from tests.supervision.peer import surroundings
from tests.transports.remote import asked
from tests.transports.test_legacy_http_sse import SseScript

BOUND = 60
QUICK = RestartPolicy(base=0.01)


@attrs.define(eq=False)
class World:
    """A managed server that is reached by URL."""

    server: ManagedServer
    events: list[Event]

    async def wait(self, state: ServerState, bound: float = BOUND) -> ServerStatus:
        with trio.fail_after(bound):
            while self.server.state is not state:  # noqa: ASYNC110 - a test's wait
                await trio.sleep(0.005)
        return self.server.status()

    def steps(self) -> list[tuple[str, str]]:
        return [(step.step, step.outcome) for step in self.server.trace.steps]

    def call(self) -> AwaitedExchange:
        return self._call(b"{}", BOUND)

    def _call(self, arguments: bytes, limit: float) -> AwaitedExchange:
        if self.server.upstream is None:
            raise LinkLost("it: not connected")
        exchange = AwaitedExchange(label="tool 'echo'", idle_timeout=limit, total_timeout=limit)
        self.server.upstream.submit(exchange, "tools/call", b'{"name":"echo","arguments":%b}' % arguments)
        return exchange


@asynccontextmanager
async def living(
    home: Path,
    url: str,
    credentials: Credentials | None = None,
    clients: ServerClients | None = None,
    **definition: Any,
) -> AsyncIterator[World]:
    async def credentials_for(spec: RemoteSpec) -> Credentials | None:
        return credentials

    events: list[Event] = []
    around = msgspec.structs.replace(surroundings(home, events.append), credentials_for=credentials_for)
    spec = RemoteSpec(**{"name": "it", "kind": "http", "url": url, "restart": QUICK, **definition})
    world = World(ManagedServer(spec, around, clients=clients), events)
    async with trio.open_nursery() as nursery:
        nursery.start_soon(world.server.run)
        try:
            yield world
        finally:
            nursery.cancel_scope.cancel()


def on_one_url(streamable: Script | None, sse: SseScript | None = None) -> Script:
    """Serve Streamable HTTP, HTTP+SSE, both or neither at one URL."""

    async def script(request: Request) -> None:
        if sse is not None and (request.method == "GET" or request.path.startswith("/inbox")):
            await sse(request)
        elif streamable is not None:
            await streamable(request)
        else:
            await request.reply(404 if request.method == "POST" else 405, b"<html>no</html>", "text/html")

    return script


# ── transport detection ─────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize("refusal", [400, 404, 405, 406, 415, 500, "-32601", "-32602", "202", "html"])
async def test_any_other_response_leads_to_the_legacy_handshake(tmp_path: Path, refusal: int | str) -> None:
    """Legacy servers answer the modern request in many ways."""

    async def refuse(request: Request) -> None:
        match refusal:
            case int():
                await request.reply(refusal, b"no", "text/plain")
            case "202":
                await request.reply(202)
            case "html":
                await request.reply(200, b"<html></html>", "text/html")
            case _:
                await request.error(int(refusal), 404 if refusal == "-32601" else 200)

    script = LegacyScript()
    script.on["server/discover"] = refuse

    async def both(request: Request) -> None:
        await (refuse if request.rpc == "server/discover" else script)(request)

    async with fake_http(both) as server, living(tmp_path, server.url) as world:
        status = await world.wait(ServerState.CONNECTED)
        assert (status.era, status.protocol_version) == ("legacy", "2025-11-25")
        assert [step for step, _ in world.steps()] == ["server/discover", "initialize"]
        assert world.steps()[1][1] == "HTTP 200, agreed on 2025-11-25"


async def test_http_sse_server_is_detected_and_remembered(tmp_path: Path) -> None:
    """HTTP+SSE is tried last; steps record their statuses, and the next start remembers."""
    async with fake_http(on_one_url(None, SseScript())) as server, living(tmp_path, server.url) as world:
        status = await world.wait(ServerState.CONNECTED)
        assert (status.era, status.transport) == ("legacy", "sse")
        first, second, third = world.steps()
        assert first[0] == "server/discover"
        assert "HTTP 404" in first[1]
        assert second[0] == "initialize"
        assert "HTTP 404" in second[1]
        assert third == ("initialize", "HTTP+SSE, agreed on 2024-11-05")
        asked = len(server.requests)
        world.server.reconnect()
        await world.wait(ServerState.CONNECTED)
        assert server.requests[asked].method == "GET"


async def test_status_shows_that_there_is_a_session_but_not_its_id(tmp_path: Path) -> None:
    """A session id grants access to the session."""
    async with fake_http(LegacyScript()) as server, living(tmp_path, server.url) as world:
        status = await world.wait(ServerState.CONNECTED)
        assert status.session is True
        assert "s-1" in str(server.requests[-1].headers)
        assert "s-1" not in repr(status)
    async with fake_http(ModernScript()) as server, living(tmp_path / "2", server.url) as world:
        assert (await world.wait(ServerState.CONNECTED)).session is False
    async with fake_http(SseScript()) as server, living(tmp_path / "3", server.url, kind="sse") as world:
        assert (await world.wait(ServerState.CONNECTED)).session is None


async def test_url_without_mcp_server_is_reported_with_all_statuses_and_not_retried(
    tmp_path: Path,
) -> None:
    """It is not retried until a user acts."""
    async with fake_http(on_one_url(None)) as server, living(tmp_path, server.url) as world:
        status = await world.wait(ServerState.FAILED)
        assert status.last_error is not None
        message = status.last_error.message
        assert "initialize: HTTP 404 No, GET for HTTP+SSE: HTTP 405 No)" in message
        assert message.count("no MCP server") == 1
        assert status.retry_at is None
        asked = len(server.requests)
        await trio.sleep(0.3)
        assert len(server.requests) == asked


@pytest.mark.parametrize("kind_is_explicit", [True, False])
async def test_temporarily_broken_server_is_found_after_it_recovers(
    tmp_path: Path, kind_is_explicit: bool
) -> None:
    """A 500 response to every POST may be temporary, so the attempts continue automatically."""
    well = ModernScript()
    is_well = False

    async def script(request: Request) -> None:
        if is_well:
            await well(request)
        else:
            await request.reply(500 if request.method == "POST" else 405, b"boom", "text/plain")

    async with (
        fake_http(script) as server,
        living(tmp_path, server.url, kind_is_explicit=kind_is_explicit) as world,
    ):
        status = await world.wait(ServerState.FAILED)
        assert status.last_error is not None
        assert status.last_error.http_status == 500
        assert status.retry_at is not None
        is_well = True
        assert (await world.wait(ServerState.CONNECTED)).era == "modern"


async def test_remembered_era_is_dropped_when_it_stops_working(tmp_path: Path) -> None:
    """An updated server is detected automatically."""
    script: list[Script] = [on_one_url(None, SseScript())]

    async def current(request: Request) -> None:
        await script[0](request)

    async with fake_http(current) as server, living(tmp_path, server.url) as world:
        assert (await world.wait(ServerState.CONNECTED)).transport == "sse"
        for now, era in ((ModernScript(), "modern"), (LegacyScript(), "legacy"), (ModernScript(), "modern")):
            script[0] = on_one_url(now)
            world.server.reconnect()
            status = await world.wait(ServerState.CONNECTED)
            assert (status.transport, status.era) == ("http", era)


# ── login, waiting, reconnection ────────────────────────────────────────────────────────────────


@pytest.mark.parametrize("status", [401, 403])
async def test_server_that_requires_a_login_waits_for_one(tmp_path: Path, status: int) -> None:
    """The state has a hint, there are no automatic attempts, and a user's reconnect tries again."""
    open_door = False

    async def guarded(request: Request) -> None:
        if open_door:
            await ModernScript()(request)
        else:
            await request.reply(status, b"{}", WWW_Authenticate="Bearer")

    async with fake_http(guarded) as server, living(tmp_path, server.url) as world:
        refused = await world.wait(ServerState.NEEDS_AUTH)
        assert refused.last_error is not None
        assert refused.last_error.kind is FailureKind.AUTH
        assert "Authorization" in refused.last_error.message
        assert refused.retry_at is None
        await trio.sleep(0.3)
        assert len(server.requests) == 1
        with pytest.raises(NotReady, match="Authorization"):
            await world.server.wait_ready()
        open_door = True
        world.server.reconnect()
        await world.wait(ServerState.CONNECTED)


async def test_expired_login_ends_the_connection_once_everything_is_refused(tmp_path: Path) -> None:
    """A 401 response to a call leads to a health check. If the server refuses that too, it needs a login; a
    call that it has accepted before is still answered."""
    release = trio.Event()

    async def slow(request: Request) -> None:
        await release.wait()
        await request.result({"content": []})

    async def refuse(request: Request) -> None:
        await request.reply(401)

    script = ModernScript(on={"tools/call": slow})
    async with (
        fake_http(script) as server,
        living(tmp_path, server.url, timeouts=Timeouts(ping=0.3)) as world,
    ):
        await world.wait(ServerState.CONNECTED)
        accepted = world.call()
        await asked(server, "tools/call")
        script.on |= {"tools/call": refuse, "server/discover": refuse}
        before = len(server.of("server/discover"))
        with pytest.raises(NeedsAuth), trio.fail_after(BOUND):
            await world.call().wait_response()
        await asked(server, "server/discover", before + 2)
        assert world.server.state is ServerState.CONNECTED
        release.set()
        with trio.fail_after(BOUND):
            await accepted.wait_response()
        refused = await world.wait(ServerState.NEEDS_AUTH)
        assert refused.last_error is not None
        assert refused.last_error.http_status == 401


async def test_no_call_is_lost_with_the_connection_that_a_missing_login_ends(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A call that comes after the refused health check is not sent, and its error names the login, also while
    the connection is being closed."""

    async def refuse(request: Request) -> None:
        await request.reply(401)

    script = ModernScript()
    late: list[AwaitedExchange | McpdError] = []

    async with fake_http(script) as server, living(tmp_path, server.url) as world:
        await world.wait(ServerState.CONNECTED)
        assert world.server.upstream is not None
        link = world.server.upstream.link
        stop, close = link.stop_accepting, link.close

        def call_late() -> None:
            try:
                late.append(world.call())
            except McpdError as refused:
                late.append(refused)

        def stop_accepting(error: McpdError) -> None:
            stop(error)
            call_late()

        def close_and_call(reason: str) -> None:
            close(reason)
            if not late[1:]:
                call_late()

        monkeypatch.setattr(link, "stop_accepting", stop_accepting)
        monkeypatch.setattr(link, "close", close_and_call)
        script.on |= {"tools/call": refuse, "server/discover": refuse}
        with pytest.raises(NeedsAuth), trio.fail_after(BOUND):
            await world.call().wait_response()
        await world.wait(ServerState.NEEDS_AUTH)
        assert [type(each) for each in late] == [NeedsAuth, NeedsAuth]


async def test_server_of_which_one_tool_wants_a_login_stays_connected(tmp_path: Path) -> None:
    """Each refused call fails alone; they do not cause a health check each."""

    async def refuse(request: Request) -> None:
        await request.reply(401)

    script = ModernScript(on={"tools/call": refuse})
    async with fake_http(script) as server, living(tmp_path, server.url) as world:
        await world.wait(ServerState.CONNECTED)
        before = len(server.of("server/discover"))
        for _ in range(20):
            with pytest.raises(NeedsAuth, match="Authorization"), trio.fail_after(BOUND):
                await world.call().wait_response()
        await asked(server, "server/discover", before + 1)
        assert world.server.state is ServerState.CONNECTED
        assert len(server.of("server/discover")) == before + 1


async def test_refused_requests_cause_a_health_check_in_ten_seconds_at_most(
    autojump_clock: MockClock,
) -> None:
    """The first one causes a check immediately."""
    timer = ProbeTimer()
    checks: list[float] = []
    began = trio.current_time()

    async def check() -> None:
        while True:
            await timer.wait()
            checks.append(trio.current_time() - began)
            timer.check_access()  # the health check is refused, too

    async with trio.open_nursery() as nursery:
        nursery.start_soon(check)
        for _ in range(290):
            timer.check_access()
            await trio.sleep(0.1)
        nursery.cancel_scope.cancel()
    assert checks == pytest.approx([0, 10, 20], abs=0.01)


@pytest.mark.parametrize(
    ("error", "http_status", "session", "expected"),
    [
        (UpstreamRefused("it: no", server="it", upstream_code=-32600), "", None, True),
        (UpstreamRefused("it: no", server="it", upstream_code=-32601), "HTTP 404", "s", True),
        (UpstreamRefused("it: no", server="it", upstream_code=-32600), "HTTP 500", "", False),
        (UpstreamRefused("it: no", server="it", upstream_code=-32600), "HTTP 200", "", True),
        (UpstreamRefused("it: no", server="it", upstream_code=-32600), "HTTP 200", "s", False),
        (UpstreamRefused("it: usual", server="it", upstream_code=-1), "HTTP 200", "s", True),
        (LinkLost("it: gone", server="it", may_have_run=False), "", "", False),
    ],
)
def test_health_check_may_be_answered_with_an_error(
    error: McpdError, http_status: str, session: str | None, expected: bool
) -> None:
    link: Any = SimpleNamespace(last_http_status=http_status, session=session)
    assert _is_answer(link, error, (-1, "it: usual")) is expected


async def test_health_check_may_come_early(autojump_clock: MockClock) -> None:
    timer = ProbeTimer()
    assert not await timer.comes_within(3)
    assert trio.current_time() == pytest.approx(3)
    timer.schedule(1)
    assert await timer.comes_within(3)
    assert trio.current_time() == pytest.approx(4)


async def test_call_retries_an_unreachable_server_early(
    autojump_clock: MockClock, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A call ends a long backoff, at most every five seconds. Without calls, the backoff continues."""
    attempts: list[float] = []

    def nobody_listens(*_: object) -> NoReturn:
        attempts.append(trio.current_time())
        raise LinkLost("it: it cannot be reached: Connection refused", server="it", may_have_run=False)

    monkeypatch.setattr("mcpd.supervision.managed_server.open_transport", nobody_listens)
    async with living(tmp_path, "http://127.0.0.1:1/mcp", restart=RestartPolicy(base=1000)) as world:
        with trio.fail_after(1000):
            while world.server.status().retry_at is None:  # noqa: ASYNC110 - a test's wait
                await trio.sleep(1)
        began = len(attempts)
        await trio.sleep(10)
        assert len(attempts) == began
        with pytest.raises(NotReady, match="Connection refused"):
            await world.server.wait_ready()
        assert len(attempts) == began + 1
        for _ in range(40):
            with pytest.raises(NotReady, match="next attempt in"):
                await world.server.wait_ready()
            await trio.sleep(0.5)
        assert len(attempts) - began == 1 + 3
        assert min(later - one for one, later in pairwise(attempts[began:])) >= 5


async def test_retry_after_delays_the_next_attempt(tmp_path: Path) -> None:
    """`Retry-After` overrides a shorter backoff."""

    async def busy(request: Request) -> None:
        await request.reply(503, Retry_After="40")

    async with fake_http(busy) as server, living(tmp_path, server.url) as world:
        await world.wait(ServerState.FAILED)
        (failure,) = [event for event in world.events if event.status and event.status.retry_at]
        assert failure.status is not None
        assert failure.status.retry_at is not None
        since, due = (datetime.fromisoformat(at) for at in (failure.status.since, failure.status.retry_at))
        assert 39 < (due - since).total_seconds() < 41
        await trio.sleep(0.2)
        assert len(server.requests) == 1


async def test_restarted_server_gets_exactly_one_new_handshake(tmp_path: Path) -> None:
    """64 concurrent 404s cause exactly one `initialize`; it is ready again within a second."""
    script = LegacyScript()
    with stopwatch() as watch:
        async with fake_http(script) as server, living(tmp_path, server.url) as world:
            await world.wait(ServerState.CONNECTED)
            script.sessions.clear()
            exchanges = [world.call() for _ in range(64)]
            watch.restart()
            with trio.fail_after(BOUND):
                for exchange in exchanges:
                    await exchange.done.wait()
                while len(server.of("initialize")) < 2:  # noqa: ASYNC110 - a test's wait
                    await trio.sleep(0.005)
            await world.wait(ServerState.CONNECTED)
            assert within(watch.seconds, 1)
            assert all(isinstance(exchange.error, LinkLost) for exchange in exchanges)
            with trio.fail_after(BOUND):
                await world.call().wait_response()
            assert len(server.of("initialize")) == 2
            assert world.server.status().restarts == 1


@pytest.mark.parametrize(
    ("status", "body", "provably_not_run"),
    [
        (400, b'{"error":{"code":-32000,"message":"Bad Request: Server not initialized"},"id":null}', True),
        (400, b"Bad Request: no valid session ID provided", True),
        (410, b"gone", True),
        (401, b'{"error":{"code":-32000,"message":"Session expired"},"id":null}', True),
        (400, b"oops", True),
        (422, b'{"error":{"code":-32602,"message":"who?"},"id":null}', True),
        (503, b'{"error":{"code":-32000,"message":"Session unavailable"},"id":null}', True),
        (503, b"no such session", True),
        (200, b'{"error":{"code":-32000,"message":"Invalid session ID"},"id":null}', True),
        (200, b'{"error":{"code":-32001,"message":"who?"},"id":null}', True),
        (200, b"<html>Please log in.</html>", False),
        (500, b"oops", False),
        (502, b"Bad Gateway", False),
    ],
)
async def test_refused_session_is_replaced(
    tmp_path: Path, status: int, body: bytes, provably_not_run: bool
) -> None:
    """Servers say in many ways that they do not know a session. What they answer to a ping proves it."""
    script = LegacyScript(refusal=(status, body))
    async with fake_http(script) as server, living(tmp_path, server.url) as world:
        await world.wait(ServerState.CONNECTED)
        script.sessions.clear()
        refused = world.call()
        with trio.fail_after(BOUND):
            await refused.done.wait()
            if provably_not_run:
                assert isinstance(refused.error, LinkLost)
                assert refused.error.is_session_refused
                assert not refused.error.may_have_run
            while len(server.of("initialize")) < 2:  # noqa: ASYNC110 - a test's wait
                await trio.sleep(0.005)
        await world.wait(ServerState.CONNECTED)
        with trio.fail_after(BOUND):
            await world.call().wait_response()
        failure = world.server.status().last_error
        assert failure is not None
        assert "before" not in failure.message


@pytest.mark.parametrize("status", [200, 400, 503])
async def test_error_of_a_tool_about_sessions_does_not_end_the_session(tmp_path: Path, status: int) -> None:
    """The ping that it causes succeeds. Concurrent errors share one."""

    async def refuse(request: Request) -> None:
        error = {"code": -32000, "message": "no such browser session"}
        await request.reply(status, json.dumps({"id": request.message["id"], "error": error}).encode())

    script = LegacyScript({"tools/call": refuse})
    async with fake_http(script) as server, living(tmp_path, server.url) as world:
        await world.wait(ServerState.CONNECTED)
        refused = [world.call() for _ in range(10)]
        with trio.fail_after(BOUND):
            for each in refused:
                assert b"no such browser session" in bytes((await each.wait_response()).error)
        await world.wait(ServerState.CONNECTED)
        assert len(server.of("initialize")) == 1
        assert 1 <= len(server.of("ping")) < 10


async def test_server_whose_calls_all_fail_is_not_healthy(tmp_path: Path) -> None:
    """Although it answers health checks: a proxy may have lost the program behind it."""
    is_broken = True

    async def call(request: Request) -> None:
        if is_broken:
            await request.reply(502, b"<html>bad gateway</html>", "text/html")
        else:
            await request.result({"content": []})

    async with fake_http(LegacyScript({"tools/call": call})) as server, living(tmp_path, server.url) as world:
        await world.wait(ServerState.CONNECTED)
        with trio.fail_after(BOUND):
            for count in range(3):
                assert bool(world.server.status().degraded) is (count > 1)
                await world.call().done.wait()
            degraded = world.server.status().degraded
            assert degraded.startswith("its last 3 calls failed: HTTP 502")
            is_broken = False
            await world.call().wait_response()
        assert world.server.status().degraded == ""
        assert len(server.of("initialize")) == 1


async def test_unreachable_server_is_retried_until_it_is_up(tmp_path: Path) -> None:
    """The status has the reason, and the server is found at the same address."""
    reserved = (
        trio.socket.socket()
    )  # bound but not listening: connections are refused, and no other process gets the port
    await reserved.bind(("127.0.0.1", 0))
    port = reserved.getsockname()[1]
    async with living(tmp_path, f"http://127.0.0.1:{port}/mcp") as world:
        status = await world.wait(ServerState.FAILED)
        assert status.last_error is not None
        assert status.last_error.kind is FailureKind.UNREACHABLE
        assert "refused" in status.last_error.message
        with trio.fail_after(BOUND):
            while world.server.status().attempts < 8:  # noqa: ASYNC110 - a test's wait
                await trio.sleep(0.01)
        assert not world.server.status().reason.startswith("crash")
        async with fake_http(LegacyScript(), reserved):
            await world.wait(ServerState.CONNECTED)


# ── clock changes and suspend ───────────────────────────────────────────────────────────────────


async def test_remote_server_is_checked_after_a_suspend(tmp_path: Path) -> None:
    """It is checked immediately; a server that dropped the session is reconnected once."""
    async with fake_http(LegacyScript()) as server, living(tmp_path, server.url) as world:
        await world.wait(ServerState.CONNECTED)
        assert not server.of("ping")
        world.server.probe_soon(0.05)
        with trio.fail_after(BOUND):
            while not server.of("ping"):  # noqa: ASYNC110 - a test's wait
                await trio.sleep(0.005)
        assert world.server.status().restarts == 0
        script = server.script
        assert isinstance(script, LegacyScript)
        script.sessions.clear()  # a server that was restarted meanwhile
        world.server.probe_soon(0)
        with trio.fail_after(BOUND):
            while world.server.status().restarts < 1:  # noqa: ASYNC110 - a test's wait
                await trio.sleep(0.005)
        await world.wait(ServerState.CONNECTED)
        assert len(server.of("initialize")) == 2

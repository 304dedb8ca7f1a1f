"""Lists are fetched again after a change notification, or on the next use after they expire."""

from __future__ import annotations

import json
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import trio
from trio.testing import MockClock

from mcpd.model.events import EventKind
from mcpd.model.status import ServerState
from mcpd.supervision.catalog import Catalog
from mcpd.supervision.catalog_fetch import fetch_catalog
from mcpd.supervision.catalog_sync import dump_catalog, load_catalog
from mcpd.transports.outgoing_request import AwaitedExchange
from tests.fakes.http import ModernScript, Request, fake_http
from tests.supervision.peer import Life, World, living
from tests.supervision.test_catalog_cache import SPEC, FakeUpstream, fetched
from tests.supervision.test_remote_servers import living as living_remotely

MINUTE = {"ttlMs": 60_000, "cacheScope": "public"}
TELLS = {"tools": {"listChanged": True}}
TOOL = {"name": "echo", "inputSchema": {}}


def fetches(world: World) -> int:
    return world.script.asked.count("tools/list")


async def test_expired_list_is_fetched_again_when_used(autojump_clock: MockClock, tmp_path: Path) -> None:
    """A list is not fetched before its TTL expires, nor while it is unused."""
    names = ["echo"]
    async with living(tmp_path, Life(modern=True, lists=lambda: names, hints=MINUTE)) as world:
        await world.wait_connected()
        server = world.server
        await trio.sleep(50)
        assert not server.lists_expired
        await server.refresh_expired_lists()
        assert fetches(world) == 1
        names = ["echo", "more"]
        await trio.sleep(3600)
        assert fetches(world) == 1
        assert server.lists_expired
        async with trio.open_nursery() as nursery:
            for _ in range(20):
                nursery.start_soon(server.refresh_expired_lists)
        assert fetches(world) == 2
        assert server.catalog is not None
        assert [tool.name for tool in server.catalog.tools] == ["echo", "more"]
        assert not server.lists_expired


@pytest.mark.parametrize(
    ("life", "expires"),
    [
        (Life(modern=True, hints={"ttlMs": 0, "cacheScope": "private"}), True),
        (Life(modern=True), True),  # no TTL hint: expires immediately
        (Life(modern=True, hints={"ttlMs": 10**308, "cacheScope": "private"}), False),
        (Life(modern=True, hints={"ttlMs": 10**320, "cacheScope": "private"}), True),  # exceeds a float
        (Life(modern=True, hints={"ttlMs": 0}, capabilities=TELLS), False),  # sends notifications
        (Life(hints={"ttlMs": 0}), False),  # older revisions have no cache hints
    ],
)
async def test_list_expiry_depends_on_hints_and_notifications(
    autojump_clock: MockClock, tmp_path: Path, life: Life, expires: bool
) -> None:
    """Lists without change notifications expire."""
    async with living(tmp_path, life) as world:
        await world.wait_connected()
        for _ in range(3):
            await trio.sleep(1)
            assert world.server.lists_expired is expires
            await world.server.refresh_expired_lists()
        assert fetches(world) == (4 if expires else 1)


async def test_old_list_without_ttl_and_notifications_is_fetched_when_used(
    autojump_clock: MockClock, tmp_path: Path
) -> None:
    """A slow server does not delay its clients. At once if an entry turns out to be missing."""
    names = ["echo"]
    async with living(tmp_path, Life(lists=lambda: names, list_takes=2)) as world:
        await world.wait_connected()
        server = world.server
        await trio.sleep(30)
        assert not server.lists_expired
        server.doubt_list("tools")
        await trio.sleep(3)
        assert fetches(world) == 2
        await trio.sleep(61)
        names = ["echo", "more"]
        assert server.lists_expired
        began = trio.current_time()
        await server.refresh_expired_lists()
        assert trio.current_time() - began <= 0.5
        await trio.sleep(3)
        assert fetches(world) == 3
        assert tools_of(world) == names


async def test_list_that_fails_is_kept_shown_and_fetched_again(
    autojump_clock: MockClock, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """Also if it fails at a restart. The pauses grow to a minute."""
    is_broken = False
    life = Life(list_fails=lambda: is_broken)
    async with living(tmp_path, life) as world:
        await world.wait_connected()
        is_broken = True
        world.server.reconnect()
        status = await world.wait(lambda status: bool(status.degraded))
        assert status.status is ServerState.CONNECTED
        assert status.degraded == "tools/list failed: no database"
        assert tools_of(world) == ["echo"]
        await trio.sleep(200)
        assert 7 <= fetches(world) <= 11
        assert sum("tools/list failed" in record.getMessage() for record in caplog.records) == 1
        assert not [event for _, event in world.events if event.kind is EventKind.TOOLS][1:]
        is_broken = False
        await trio.sleep(61)
        assert not world.server.status().degraded
        count = fetches(world)
        await trio.sleep(3600)
        assert fetches(world) == count


def tools_of(world: World) -> list[str]:
    return [] if world.server.catalog is None else [tool.name for tool in world.server.catalog.tools]


async def test_list_that_cannot_be_refreshed_is_kept(autojump_clock: MockClock, tmp_path: Path) -> None:
    """The old list is used, and callers wait at most for the list timeout."""
    life = Life(modern=True, hints=MINUTE, deaf_after=60, deaf_until=1000)
    async with living(tmp_path, life, timeouts=lists_within(4)) as world:
        await world.wait_connected()
        await trio.sleep(62)
        assert world.server.upstream is not None
        call = AwaitedExchange()  # the server is busy, not dead
        call.idle_timeout = call.total_timeout = 5000
        world.server.upstream.submit(call, "tools/call", b'{"name":"echo"}')
        began = trio.current_time()
        await world.server.refresh_expired_lists()
        assert trio.current_time() - began <= 4.1
        assert world.server.catalog is not None
        assert [tool.name for tool in world.server.catalog.tools] == ["echo"]


def lists_within(seconds: float) -> Any:
    from mcpd.model.server_spec import Timeouts

    return Timeouts(list=seconds)


async def test_cache_hints_of_all_pages_and_lists_are_combined(
    autojump_clock: MockClock,
) -> None:
    """The shortest TTL applies, and one private part makes the whole private. Other features keep their
    hints."""
    pages: dict[str | None, Any] = {
        None: {"tools": [TOOL], "nextCursor": "2", **MINUTE},
        "2": {"tools": [], "ttlMs": 20_000, "cacheScope": "public"},
    }
    upstream = FakeUpstream(
        tools_list=lambda cursor: pages[cursor],
        resources_list=lambda cursor: {"resources": [], **MINUTE},
        resources_templates_list=lambda cursor: {
            "resourceTemplates": [],
            "ttlMs": 9e6,
            "cacheScope": "private",
        },
        prompts_list=lambda cursor: {"prompts": [], "ttlMs": -5, "cacheScope": "public"},
    )
    catalog = await fetched(upstream)
    hints = {name: (hint.ttl, hint.private) for name, hint in catalog.hints.items()}
    assert hints == {"tools": (20, False), "resources": (60, True), "prompts": (0, False)}
    pages[None] = {"tools": [TOOL], "ttlMs": "soon", "cacheScope": 7}
    await trio.sleep(1)
    later = await fetch_catalog(upstream, SPEC, ["tools"], catalog)  # type: ignore[arg-type]
    assert (later.hints["tools"].ttl, later.hints["tools"].private) == (0, True)
    assert later.hints["resources"] == catalog.hints["resources"]
    assert load_catalog(dump_catalog(catalog), SPEC) == Catalog(
        tools=catalog.tools, fetched_at=catalog.fetched_at
    )  # monotonic clocks of two processes are not comparable


# ── headers required by a tool ──────────────────────────────────────────────────────────────────

MIRRORED = {"type": "object", "properties": {"region": {"type": "string", "x-mcp-header": "Region"}}}
CALL = b'{"name":"echo","arguments":{"region":"eu","_meta":1},"_meta":{"vendor":"x"}}'


async def mirroring(request: Request) -> None:
    """Refuse calls that do not repeat a newly annotated argument in a header."""
    if request.headers.get("mcp-param-region") != "eu":
        await request.error(-32020, 400)
    else:
        await request.result({"content": []})


def call(world: Any) -> AwaitedExchange:
    exchange = AwaitedExchange(label="tool 'echo'", idle_timeout=30, total_timeout=30)
    world.server.upstream.submit(exchange, "tools/call", CALL)
    return exchange


async def test_call_refused_for_its_headers_is_retried_with_the_right_ones(tmp_path: Path) -> None:
    """A refused call did not run. The list is fetched again and the same call is sent as a new request."""
    script = ModernScript(on={"tools/call": mirroring})
    async with fake_http(script) as server, living_remotely(tmp_path, server.url) as world:
        await world.wait(ServerState.CONNECTED)
        script.tools = [{"name": "echo", "inputSchema": MIRRORED}]
        with trio.fail_after(30):
            calls = [call(world) for _ in range(3)]
            for each in calls:
                answer = await each.wait_response()
                assert json.loads(bytes(answer.result)) == {"content": []}
        requests = server.of("tools/call")
        assert len(requests) == 6
        assert len({request.message["id"] for request in requests}) == 6
        assert len(server.of("tools/list")) <= 4  # at most one per call, and the initial fetch
        for request in requests:
            params = request.message["params"]
            meta = params.pop("_meta")
            assert params == {"name": "echo", "arguments": {"region": "eu", "_meta": 1}}
            assert meta["vendor"] == "x"
            assert meta["progressToken"] == request.message["id"]
        assert world.server.upstream is not None
        assert world.server.upstream.link.requests.in_flight == 0


@pytest.mark.parametrize("status", [200, 400])
async def test_call_is_retried_once_at_most(tmp_path: Path, status: int) -> None:
    """A second refusal is returned to the caller; other errors are returned immediately."""

    async def refuse(code: int, request: Request) -> None:
        await request.error(code, status)

    for code, times in ((-32020, 2), (-32021, 1), (-32602, 1)):
        script = ModernScript(on={"tools/call": partial(refuse, code)})
        async with fake_http(script) as server, living_remotely(tmp_path, server.url) as world:
            await world.wait(ServerState.CONNECTED)
            with trio.fail_after(30):
                answer = await call(world).wait_response()
            assert json.loads(bytes(answer.error))["code"] == code
            assert len(server.of("tools/call")) == times

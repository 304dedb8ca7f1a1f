"""The notification stream opens before a server's lists are fetched."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import trio

from mcpd.model.status import ServerState
from tests.fakes.http import LegacyScript, ModernScript, Request, fake_http
from tests.stopwatch import stopwatch, within
from tests.supervision.test_remote_servers import living
from tests.transports.remote import asked
from tests.transports.test_credentials import Guard, Tokens

CHANGES = {"tools": {"listChanged": True}}


@pytest.fixture
def patient(monkeypatch: pytest.MonkeyPatch) -> None:
    """Allow a busy machine more time to open the stream."""
    monkeypatch.setattr("mcpd.protocol.upstream_session._NOTIFICATIONS_TIMEOUT", 60.0)


async def test_legacy_notification_stream_opens_before_lists_are_fetched(
    tmp_path: Path, patient: None
) -> None:
    """Some servers notify only open streams; a change between the two would be lost."""

    async def stay(request: Request) -> None:
        await trio.sleep(0.05)
        asked_before.extend(server.asked())
        await request.events()
        await trio.sleep_forever()

    asked_before: list[str] = []
    script = LegacyScript(on={"GET": stay}, capabilities=CHANGES)
    async with fake_http(script) as server, living(tmp_path, server.url) as world:
        await world.wait(ServerState.CONNECTED)
    assert asked_before == ["server/discover", "initialize", "notifications/initialized", "GET"]


async def test_modern_subscription_is_acknowledged_before_lists_are_fetched(
    tmp_path: Path, patient: None
) -> None:
    """The same rule applies to modern servers."""

    async def listen(request: Request) -> None:
        await request.events()
        await trio.sleep(0.05)
        meta = {"io.modelcontextprotocol/subscriptionId": request.message["id"]}
        params = {"notifications": {"toolsListChanged": True}, "_meta": meta}
        asked_before.extend(server.asked())
        message = {"jsonrpc": "2.0", "method": "notifications/subscriptions/acknowledged", "params": params}
        await request.event(json.dumps(message).encode())
        await trio.sleep_forever()

    asked_before: list[str] = []
    script = ModernScript(on={"subscriptions/listen": listen}, capabilities=CHANGES)
    async with fake_http(script) as server, living(tmp_path, server.url) as world:
        await world.wait(ServerState.CONNECTED)
    assert asked_before == ["server/discover", "subscriptions/listen"]


async def test_server_without_a_notification_stream_connects_anyway(tmp_path: Path) -> None:
    """Some proxies hold a response back until its body has data."""

    async def silent(request: Request) -> None:
        await trio.sleep_forever()

    script = LegacyScript(on={"GET": silent}, capabilities=CHANGES)
    async with fake_http(script) as server, living(tmp_path, server.url) as world:
        status = await world.wait(ServerState.CONNECTED)
    assert status.tools == 1


async def test_t21_a_subscription_is_open_again_within_a_second_of_the_end_of_its_token(
    tmp_path: Path, patient: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each end costs one refused request and one fetch of the list."""
    monkeypatch.setattr("mcpd.protocol.listen_stream.STABLE_AFTER", 0.0)
    ends = [trio.Event() for _ in range(4)]

    async def listen(request: Request) -> None:
        number = len(opened)
        opened.append(request)
        await request.events()
        meta = {"io.modelcontextprotocol/subscriptionId": request.message["id"]}
        params = {"notifications": {"toolsListChanged": True}, "_meta": meta}
        message = {"jsonrpc": "2.0", "method": "notifications/subscriptions/acknowledged", "params": params}
        await request.event(json.dumps(message).encode())
        await ends[number].wait()
        await request.end()

    opened: list[Request] = []
    guard = Guard(ModernScript(on={"subscriptions/listen": listen}, capabilities=CHANGES))
    async with fake_http(guard) as server, living(tmp_path, server.url, Tokens()) as world:
        await world.wait(ServerState.CONNECTED)
        for number in range(3):
            lists, requests = len(server.of("tools/list")), len(server.of("subscriptions/listen"))
            guard.valid = {f"Bearer t{number + 3}"}
            with stopwatch() as watch:
                ends[number].set()
                await asked(server, "subscriptions/listen", requests + 2)
                assert within(watch.seconds, 1.0)
            await asked(server, "tools/list", lists + 1)
            await world.call().wait_response()
        assert len(opened) == 4
        assert len(server.of("tools/list")) == 1 + 3
        assert world.server.state is ServerState.CONNECTED

"""Server notifications reach the listeners of `ManagedServer`; subscriptions survive reconnects."""

from __future__ import annotations

import json
from pathlib import Path

import trio
from trio.testing import MockClock

from mcpd.model.status import ServerState
from mcpd.protocol.upstream_session import ServerNotification
from mcpd.supervision.managed_server import ManagedServer, NoClients
from mcpd.transports.base import Channel
from mcpd.transports.outgoing_request import Exchange
from mcpd.wire.message import Message
from tests.fakes.http import LegacyScript, ModernScript, Request, fake_http
from tests.supervision import test_remote_servers
from tests.supervision.peer import Life, World, living

TELLING = {"tools": {"listChanged": True}, "resources": {"subscribe": True}, "logging": {}}
CHANGED = {"method": "notifications/tools/list_changed"}
URI = "file:///a"


def of(world: World, method: str) -> int:
    return world.script.asked.count(method)


async def test_listener_of_a_list_change_sees_the_new_list(autojump_clock: MockClock, tmp_path: Path) -> None:
    """Listeners are called after the catalog is updated, also if it is unchanged: something may have come
    and gone. Only real changes are events."""
    names = ["echo"]
    found: list[tuple[str, list[str]]] = []
    async with living(tmp_path, Life(lists=lambda: names, capabilities=TELLING), era="legacy") as world:
        await world.wait_connected()

        def listen(notification: ServerNotification) -> None:
            catalog = world.server.catalog
            assert catalog is not None
            found.append((notification.method, [tool.name for tool in catalog.tools]))

        end = world.server.notifications.add(listen)
        names = ["echo", "more"]
        world.script.talk(CHANGED)
        await trio.sleep(5)
        world.script.talk(CHANGED)  # the list is unchanged
        await trio.sleep(5)
        assert found == [(CHANGED["method"], ["echo", "more"])] * 2
        assert of(world, "tools/list") == 3
        assert [event.message for _, event in world.events if event.kind.value == "tools"][1:] == [
            "+1 -0 ~0: +more"
        ]
        end()
        end()
        names = ["echo"]
        world.script.talk(CHANGED)
        await trio.sleep(5)
        assert len(found) == 2


async def test_flood_of_announcements_is_bounded(autojump_clock: MockClock, tmp_path: Path) -> None:
    """Listeners are notified, and the list is fetched, at most twice a second."""
    found: list[str] = []
    async with living(tmp_path, Life(capabilities=TELLING), era="legacy") as world:
        await world.wait_connected()
        world.server.notifications.add(lambda notification: found.append(notification.method))
        for _ in range(100):
            world.script.talk(CHANGED)
            await trio.sleep(0.1)
        await trio.sleep(5)
        assert 10 <= len(found) <= 25
        assert of(world, "tools/list") == len(found) + 1


async def test_subscriptions_survive_a_reconnect(autojump_clock: MockClock, tmp_path: Path) -> None:
    """The next process gets the subscriptions, and the listener is notified that it may have missed a
    change."""
    updated: list[str] = []
    lives = (Life(capabilities=TELLING, lasts=50), Life(capabilities=TELLING))
    async with living(tmp_path, *lives, era="legacy") as world:
        world.server.notifications.add(
            lambda notification: updated.append(notification.uri) if notification.uri else None
        )
        world.server.interests.follow_resources("client", [URI])  # before the first connection
        world.server.interests.set_log_level("client", "debug")
        await world.wait_connected()
        assert await world.server.interests.wait_subscribed(URI) == ""
        assert updated == []
        await world.wait(lambda status: status.restarts == 1)
        assert await world.server.interests.wait_subscribed(URI) == ""
        assert (of(world, "resources/subscribe"), of(world, "logging/setLevel")) == (2, 2)
        assert updated == [URI]
        world.server.disconnect()
        await world.server.wait_settled()
        assert world.server.interests.subscribe_result(URI) is None


# ── association with a request ──────────────────────────────────────────────────────────────────


async def test_server_request_on_the_stream_of_a_call_names_the_call(tmp_path: Path) -> None:
    """Only the calling client is asked. A request outside any call's stream belongs to no client."""
    asked: list[tuple[str, str, Exchange | None]] = []

    class Clients(NoClients):
        def capabilities(self, server: ManagedServer) -> dict[str, object]:
            return {"elicitation": {}}

        def on_request(
            self, server: ManagedServer, link: Channel, message: Message, exchange: Exchange | None
        ) -> bool:
            asked.append((server.spec.name, message.method, exchange))
            link.respond(message, b'{"action":"decline"}')
            return True

    def question(number: str) -> bytes:
        message = {"jsonrpc": "2.0", "id": number, "method": "elicitation/create", "params": {"message": "?"}}
        return json.dumps(message).encode()

    note = {"jsonrpc": "2.0", "method": "notifications/message", "params": {"level": "info", "data": "x"}}

    async def ask(request: Request) -> None:
        await request.events()
        await request.event(json.dumps(note).encode())
        await request.event(question("a"))
        await request.event(request.answer({"content": []}))
        await request.end()

    async def stay(request: Request) -> None:
        await request.events()
        await request.event(question("b"))
        await trio.sleep_forever()

    received: list[ServerNotification] = []
    script = LegacyScript(on={"tools/call": ask, "GET": stay}, capabilities=TELLING)
    async with (
        fake_http(script) as server,
        test_remote_servers.living(tmp_path, server.url, clients=Clients()) as world,
    ):
        world.server.notifications.add(received.append)
        await world.wait(ServerState.CONNECTED)
        received.clear()
        call = world.call()
        with trio.fail_after(30):
            await call.wait_response()
            while len(server.of("POST")) < 2:  # noqa: ASYNC110 - a test's wait
                await trio.sleep(0.005)
        assert sorted(asked, key=lambda entry: entry[2] is None) == [
            ("it", "elicitation/create", call),
            ("it", "elicitation/create", None),
        ]
        assert [(notification.method, notification.exchange) for notification in received] == [
            ("notifications/message", call)
        ]
        opening = server.of("initialize")[0].message["params"]
        assert opening["capabilities"] == {"elicitation": {}}


async def test_log_message_of_a_modern_server_names_its_request(tmp_path: Path) -> None:
    """It arrives on the request's own stream, which identifies the client."""

    async def chatter(request: Request) -> None:
        note = {"jsonrpc": "2.0", "method": "notifications/message", "params": {"level": "info", "data": "x"}}
        await request.events()
        await request.event(json.dumps(note).encode())
        await request.event(request.answer({"content": []}))
        await request.end()

    received: list[ServerNotification] = []
    async with (
        fake_http(ModernScript(on={"tools/call": chatter})) as server,
        test_remote_servers.living(tmp_path, server.url) as world,
    ):
        await world.wait(ServerState.CONNECTED)
        world.server.notifications.add(received.append)
        calls = [world.call(), world.call()]
        with trio.fail_after(30):
            for call in calls:
                await call.wait_response()
        assert {id(notification.exchange) for notification in received} == set(map(id, calls))

"""Sessions of 2024-11-05 to 2025-11-25: their dialect, and what a server's capabilities mean."""

from __future__ import annotations

from typing import Any

import pytest
import trio

from mcpd.protocol import legacy
from mcpd.protocol.upstream_session import Hooks
from mcpd.transports.stdio import PipeChannel
from tests.transports.peer import PATIENCE, Json, connected


def initialized(capabilities: Json, version: str = "2025-11-25") -> Json:
    return {"initialize": {"result": {"protocolVersion": version, "capabilities": capabilities}}}


def hooks(**options: Any) -> Hooks:
    return Hooks(lambda _: None, lambda _: None, **options)


@pytest.mark.parametrize(
    ("capabilities", "ours", "listens"),
    [
        ({}, {}, False),
        ({"tools": {}, "resources": {}}, {}, False),
        ({"tools": {"listChanged": True}}, {}, True),
        ({"logging": {}}, {}, True),
        ({"resources": {"subscribe": True}}, {}, True),
        ({}, {"roots": {}}, True),
    ],
)
async def test_stream_is_opened_only_for_a_server_that_may_send_something(
    capabilities: Json, ours: Json, listens: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    opened: list[object] = []

    async def listen(self: object, on_gap: object, on_open: object) -> None:
        opened.append(self)
        await trio.lowlevel.checkpoint()

    monkeypatch.setattr(PipeChannel, "listen", listen)
    async with connected(initialized(capabilities)) as peer, trio.open_nursery() as nursery:
        with trio.fail_after(PATIENCE):
            upstream = await legacy.initialize(peer.link, hooks(capabilities=ours))
            assert upstream.run_subscriptions is not None
            nursery.start_soon(upstream.run_subscriptions)
            await upstream.notifications_ready.wait()
        nursery.cancel_scope.cancel()
    assert bool(opened) is listens


@pytest.mark.parametrize(
    ("accepts", "code"), [(None, legacy._METHOD_NOT_FOUND), (False, legacy._METHOD_NOT_FOUND), (True, None)]
)
async def test_request_of_the_server_is_refused_unless_it_is_accepted(
    accepts: bool | None, code: int | None
) -> None:
    async with connected(initialized({})) as peer:
        handler = None if accepts is None else lambda *_: accepts
        with trio.fail_after(PATIENCE):
            await legacy.initialize(peer.link, hooks(on_request=handler))
            await peer.say({"jsonrpc": "2.0", "id": "q", "method": "sampling/createMessage"})
            await peer.say({"jsonrpc": "2.0", "id": "p", "method": "ping"})
            await peer.hear("", 1 if accepts else 2)
    answers = {message["id"]: message for message in peer.heard if "method" not in message}
    assert answers["p"]["result"] == {}
    assert answers.get("q", {}).get("error", {}).get("code") == code


@pytest.mark.parametrize("level", [None, "error"])
async def test_log_level_is_sent_only_if_somebody_wants_one(level: str | None) -> None:
    script = initialized({"logging": {}, "resources": {"subscribe": True}})
    script["resources/subscribe"] = {"result": {}}
    async with connected(script) as peer, trio.open_nursery() as nursery:
        with trio.fail_after(PATIENCE):
            options = hooks()
            upstream = await legacy.initialize(peer.link, options)
            assert upstream.run_subscriptions is not None
            options.interests.set_log_level("x", level)
            options.interests.follow_resources("x", ["file:///a"])
            nursery.start_soon(upstream.run_subscriptions)
            await options.interests.wait_subscribed("file:///a")
            upstream.link.notify("notifications/last")
            await peer.hear("notifications/last")
        nursery.cancel_scope.cancel()
    sent = [message["params"] for message in peer.heard if message["method"] == "logging/setLevel"]
    assert sent == ([] if level is None else [{"level": level}])

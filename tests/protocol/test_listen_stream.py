"""List changes of a modern server, and those that were missed while no stream was open."""

from __future__ import annotations

from typing import Any

import pytest
import trio

from mcpd.protocol import listen_stream
from mcpd.protocol.negotiate import negotiate
from mcpd.protocol.upstream_session import Hooks
from tests.transports.peer import Json, Peer, connected

DISCOVERED = {"supportedVersions": ["2026-07-28"], "capabilities": {"tools": {"listChanged": True}}}


async def acknowledge(peer: Peer, listening: Json) -> None:
    meta = {"io.modelcontextprotocol/subscriptionId": listening["id"]}
    params = {"notifications": {"toolsListChanged": True}, "_meta": meta}
    message = {"jsonrpc": "2.0", "method": "notifications/subscriptions/acknowledged", "params": params}
    await peer.say(message)


async def test_lists_are_fetched_again_after_a_listen_stream_was_reopened(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Changes between the old stream and the new one are reported to nobody."""
    monkeypatch.setattr(listen_stream, "FIRST_RETRY_DELAY", 0.01)
    changed: list[str] = []
    script: dict[str, Any] = {"server/discover": {"result": DISCOVERED}}
    async with connected(script) as peer, trio.open_nursery() as nursery:
        with trio.fail_after(30):
            upstream = await negotiate(
                peer.link, Hooks(changed.append, lambda _: None), "auto", 5, lambda *_: None
            )
            assert upstream.run_subscriptions is not None
            nursery.start_soon(upstream.run_subscriptions)
            first = await peer.hear("subscriptions/listen")
            assert not upstream.notifications_ready.is_set()
            await acknowledge(peer, first)
            await upstream.notifications_ready.wait()
            assert changed == []  # its lists have not been fetched yet

            await peer.say({"jsonrpc": "2.0", "id": first["id"], "result": {"resultType": "complete"}})
            second = await peer.hear("subscriptions/listen", 2)
            before = len(changed)
            assert before
            await acknowledge(peer, second)
            while len(changed) == before:  # noqa: ASYNC110 - a test's wait
                await trio.sleep(0.005)
        assert set(changed) == {"tools"}
        nursery.cancel_scope.cancel()

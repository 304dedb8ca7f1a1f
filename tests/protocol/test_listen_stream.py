"""List changes of a modern server, and those that were missed while no stream was open."""

from __future__ import annotations

from typing import Any

import pytest
import trio
from trio.testing import MockClock

from mcpd.model.errors import HttpRefused, LinkLost, McpdError, UpstreamRefused
from mcpd.protocol import listen_stream
from mcpd.protocol.negotiate import negotiate
from mcpd.protocol.upstream_session import Hooks
from tests.transports.peer import PATIENCE, Json, Peer, connected

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
        with trio.fail_after(PATIENCE):
            upstream = await negotiate(
                peer.link, Hooks(changed.append, lambda _: None), "auto", 5, lambda *_: None
            )
            assert upstream.run_subscriptions is not None
            nursery.start_soon(upstream.run_subscriptions)
            first = await peer.hear("subscriptions/listen")
            assert not upstream.notifications_ready.is_set()
            await acknowledge(peer, first)
            await upstream.notifications_ready.wait()
            assert (
                peer.link.requests.in_flight == 0
            )  # the stream is no call, so it does not keep the server busy
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


@pytest.mark.parametrize(
    ("error", "is_refused"),
    [
        (None, False),
        (LinkLost("x"), False),
        (UpstreamRefused("x", server="s", upstream_code=1), True),
        (HttpRefused("x", server="s", status=400), True),
        (HttpRefused("x", server="s", status=408), False),
        (HttpRefused("x", server="s", status=429), False),
        (HttpRefused("x", server="s", status=499), True),
        (HttpRefused("x", server="s", status=500), False),
    ],
)
async def test_only_a_permanent_error_is_a_refusal(error: McpdError | None, is_refused: bool) -> None:
    request = listen_stream._ListenRequest(
        server="s", features=frozenset(), resources=frozenset(), after_gap=True
    )
    request.error = error
    assert request.is_refused is is_refused
    await trio.lowlevel.checkpoint()


async def test_stream_that_is_not_acknowledged_in_time_is_taken_for_accepted(
    autojump_clock: MockClock,
) -> None:
    discovered = {"supportedVersions": ["2026-07-28"], "capabilities": {"resources": {"subscribe": True}}}
    hooks = Hooks(lambda _: None, lambda _: None)
    hooks.interests.follow_resources("x", ["file:///a"])
    async with connected({"server/discover": {"result": discovered}}) as peer, trio.open_nursery() as nursery:
        upstream = await negotiate(peer.link, hooks, "auto", 5, lambda *_: None)
        assert upstream.run_subscriptions is not None
        nursery.start_soon(upstream.run_subscriptions)
        started = trio.current_time()
        with trio.fail_after(60):
            assert await hooks.interests.wait_subscribed("file:///a") == ""
        assert trio.current_time() - started == pytest.approx(10, abs=0.1)
        nursery.cancel_scope.cancel()

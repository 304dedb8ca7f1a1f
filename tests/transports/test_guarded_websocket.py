"""The stream below a WebSocket: complete frames, and detection of dead peers."""

from __future__ import annotations

import pytest
import trio
import trio.testing

from mcpd.transports.guarded_websocket import PING_INTERVAL, PONG_TIMEOUT, GuardedStream

MIB = 1 << 20


async def test_nothing_is_sent_after_a_partial_frame() -> None:
    """The peer would read it as the rest of the frame."""
    near, far = trio.testing.lockstep_stream_pair()
    wire = GuardedStream(near, 30, MIB)
    async with trio.open_nursery() as nursery:
        nursery.start_soon(wire.send_all, b"a whole frame")
        assert await far.receive_some() == b"a whole frame"
    with trio.move_on_after(0):
        await wire.send_all(b"a frame that nobody takes")
    with pytest.raises(trio.BrokenResourceError):
        await wire.send_all(b"the next")


async def test_slow_reader_of_a_long_message_is_alive(autojump_clock: trio.testing.MockClock) -> None:
    """It cannot answer a ping that is queued behind the message."""
    near, far = trio.testing.lockstep_stream_pair()
    wire = GuardedStream(near, 30, MIB)
    silence = 0.0
    async with trio.open_nursery() as nursery:
        nursery.start_soon(wire.send_all, bytes(MIB))
        taken = 0
        while taken < MIB:
            await trio.sleep(5)
            taken += len(await far.receive_some(1 << 16))
            silence = max(silence, trio.current_time() - wire.last_received_at)
    assert silence < PING_INTERVAL + PONG_TIMEOUT

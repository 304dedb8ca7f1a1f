"""What a WebSocket needs besides the library that speaks it: a stream that gives up, questions after silence.

The library bounds what is in a message, not the frames around it; it waits for ever for a peer that takes
nothing; and after some errors it leaves sockets to the garbage collector. So the stream beneath is ours.
"""

from __future__ import annotations

from contextlib import suppress

import trio
from trio_websocket import ConnectionClosed, WebSocketConnection
from wsproto.utilities import LocalProtocolError

CONNECTION_ENDED = (ConnectionClosed, LocalProtocolError)
"""What comes out of the nursery that the library reads in, though nothing is wrong: the second when a peer
pings to whom we have said goodbye."""
PING_INTERVAL = 15.0
"""Seconds of silence after which the peer is asked whether it is still there …"""
PONG_TIMEOUT = 10.0
"""… and seconds in which anything has to be heard from it."""
READ_SIZE = 1 << 16
"""Bytes read at once."""
MAX_UNCOUNTED = 1 << 16
"""Bytes that may come around a message; or of a server, before it has agreed to speak WebSocket."""
_SEND_PORTION = 1 << 16
"""Bytes sent at once: what a peer has to take within `write_timeout`, however long the message is."""
_CONTROL_BYTES_PER_SECOND = 4096
"""Bytes a second that may come besides messages."""


class GuardedStream(trio.abc.Stream):
    """The stream beneath, which stays the caller's to close: knows when something came, and gives up on who
    takes nothing, or sends without end and never a whole message."""

    def __init__(
        self, stream: trio.abc.Stream, write_timeout: float, max_frame: int, initial_data: bytes = b""
    ) -> None:
        """`max_frame`: bytes of the longest message. `came`: what was read from the stream before."""
        self.last_received_at = trio.current_time()
        self.close_reason = ""
        self._stream = stream
        self._write_timeout = write_timeout
        self._max_frame = max_frame
        self._initial_data = initial_data
        self._received = 0
        """Bytes since the last message."""
        self._message_at = self.last_received_at
        self._is_cut = False
        """A part of a frame has been sent, and the rest never will: nothing can follow it."""

    def message_received(self) -> None:
        """To be called after each whole message."""
        self._received = 0
        self._message_at = self.last_received_at

    async def send_all(self, data: bytes | bytearray | memoryview) -> None:
        if self._is_cut:
            raise trio.BrokenResourceError("half a frame was sent")
        self._is_cut = True
        view = memoryview(data)
        for start in range(0, len(view), _SEND_PORTION):
            with trio.move_on_after(self._write_timeout) as waiting:
                await self._stream.send_all(view[start : start + _SEND_PORTION])
            if waiting.cancelled_caught:
                await self.abort(f"it has not read what it was sent for {self._write_timeout:g} s")
                raise trio.BrokenResourceError("the peer does not read")
            if start:  # it takes one portion after the other: it is there, though it may have nothing to say
                self.last_received_at = trio.current_time()
        self._is_cut = False

    async def wait_send_all_might_not_block(self) -> None:
        await self._stream.wait_send_all_might_not_block()

    async def receive_some(self, max_bytes: int | None = None) -> bytes | bytearray:
        if self._initial_data:
            await trio.lowlevel.checkpoint()
            came, self._initial_data = self._initial_data, b""
            return came
        data = await self._stream.receive_some(max_bytes)
        self.last_received_at = trio.current_time()
        self._received += len(data)
        if self._received > self._allowance():
            await self.abort(f"it sent {self._received} bytes without a whole message among them")
            raise trio.BrokenResourceError("a message without end")
        return data

    def _allowance(self) -> float:
        """A message, the frames around its fragments, and the pings of a long silence. The library counts
        what is in the fragments only, and keeps each of them, the empty ones too."""
        return (
            self._max_frame * 9 / 8
            + MAX_UNCOUNTED
            + _CONTROL_BYTES_PER_SECOND * (self.last_received_at - self._message_at)
        )

    async def abort(self, reason: str) -> None:
        self.close_reason = self.close_reason or reason
        await trio.aclose_forcefully(self._stream)

    async def aclose(self) -> None:
        """The library is done with it. Whoever made the stream closes it: they may have a word to add."""
        await trio.lowlevel.checkpoint()


async def keep_alive(connection: WebSocketConnection, wire: GuardedStream) -> None:
    """A link that drops packets says nothing; so does a peer that has nothing to say. Ask."""
    async with trio.open_nursery() as nursery:
        while True:
            quiet_since = wire.last_received_at
            await trio.sleep_until(quiet_since + PING_INTERVAL)
            if wire.last_received_at > quiet_since:
                continue
            if not nursery.child_tasks:  # who still owes an answer is not asked once more
                nursery.start_soon(_ping, connection)
            await trio.sleep(PONG_TIMEOUT)
            if wire.last_received_at <= quiet_since:
                await wire.abort(f"it has not answered a ping within {PONG_TIMEOUT:g} s")
                return


async def _ping(connection: WebSocketConnection) -> None:
    with suppress(ConnectionClosed):  # whoever reads knows why
        await connection.ping()

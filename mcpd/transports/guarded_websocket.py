"""Limits for WebSocket connections that trio-websocket lacks: write timeout, total size, and keepalive.

The library limits the size of messages, but not of the frames around them; it waits forever for a peer that
does not read; and after some errors it leaves sockets to the garbage collector.
"""

from __future__ import annotations

from contextlib import suppress

import trio
from trio_websocket import ConnectionClosed, WebSocketConnection
from wsproto.utilities import LocalProtocolError

CONNECTION_ENDED = (ConnectionClosed, LocalProtocolError)
"""Normal exceptions of the library's reader task; the second if a peer sends a ping after we closed."""
PING_INTERVAL = 15.0
"""Seconds without data before a ping is sent."""
PONG_TIMEOUT = 10.0
"""Seconds in which the peer must send something after a ping."""
READ_SIZE = 1 << 12
"""Bytes per read. A peer may send thousands of tiny frames in them."""
_MAX_UNCOUNTED = 1 << 16
"""Bytes allowed around a message."""
_SEND_PORTION = 1 << 16
"""Bytes that a peer must read within `write_timeout`. Long messages are sent in such portions."""
_CONTROL_BYTES_PER_SECOND = 4096
"""Bytes per second allowed between messages, such as pings."""


class GuardedStream(trio.abc.Stream):
    """Wraps the transport stream of a WebSocket. The caller closes that stream.

    Aborts the connection if the peer does not read, or sends too much without completing a message. The
    library handles all frames of one read in one turn, so reads are short.
    """

    def __init__(
        self, stream: trio.abc.Stream, write_timeout: float, max_frame: int, initial_data: bytes = b""
    ) -> None:
        """`max_frame`: bytes of the longest message. `initial_data`: data already read from the stream."""
        self.last_received_at = trio.current_time()
        self.close_reason = ""
        self._stream = stream
        self._write_timeout = write_timeout
        self._longest_message = max_frame
        self._initial_data = initial_data
        self._received = 0
        """Bytes received since the last complete message."""
        self._message_at = self.last_received_at
        self._is_cut = False
        """A frame was sent only in part, so nothing can follow it."""

    def message_received(self) -> None:
        """Call this after each complete message."""
        self._received = 0
        self._message_at = self.last_received_at

    async def send_all(self, data: bytes | bytearray | memoryview) -> None:
        if self._is_cut:
            raise trio.BrokenResourceError("an earlier frame was sent only in part")
        self._is_cut = True
        view = memoryview(data)
        for start in range(0, len(view), _SEND_PORTION):
            with trio.move_on_after(self._write_timeout) as waiting:
                await self._stream.send_all(view[start : start + _SEND_PORTION])
            if waiting.cancelled_caught:
                await self.abort(f"it did not read for {self._write_timeout:g} s")
                raise trio.BrokenResourceError("the peer does not read")
            if start:  # it reads, so it is alive even if it sends nothing
                self.last_received_at = trio.current_time()
        self._is_cut = False

    async def wait_send_all_might_not_block(self) -> None:
        await self._stream.wait_send_all_might_not_block()

    async def receive_some(self, max_bytes: int | None = None) -> bytes | bytearray:
        if self._initial_data:
            await trio.lowlevel.checkpoint()
            came, self._initial_data = self._initial_data[:READ_SIZE], self._initial_data[READ_SIZE:]
            return came
        data = await self._stream.receive_some(READ_SIZE if max_bytes is None else min(READ_SIZE, max_bytes))
        self.last_received_at = trio.current_time()
        self._received += len(data)
        if self._received > self._allowance():
            await self.abort(f"it sent {self._received} bytes without a complete message")
            raise trio.BrokenResourceError("the peer sent an endless message")
        return data

    def _allowance(self) -> float:
        """The bytes of a message, the headers of its fragments, and pings. The library counts the payload of
        fragments only, and keeps every fragment, even empty ones."""
        return (
            self._longest_message * 65 / 64
            + _MAX_UNCOUNTED
            + _CONTROL_BYTES_PER_SECOND * (self.last_received_at - self._message_at)
        )

    async def abort(self, reason: str) -> None:
        self.close_reason = self.close_reason or reason
        await trio.aclose_forcefully(self._stream)

    async def aclose(self) -> None:
        """Do nothing: the creator of the transport stream closes it."""
        await trio.lowlevel.checkpoint()


async def keep_alive(connection: WebSocketConnection, wire: GuardedStream) -> None:
    """Send pings after silence, and abort the connection if the peer does not respond."""
    async with trio.open_nursery() as nursery:
        while True:
            quiet_since = wire.last_received_at
            await trio.sleep_until(quiet_since + PING_INTERVAL)
            if wire.last_received_at > quiet_since:
                continue
            if not nursery.child_tasks:  # do not send a second ping while one is unanswered
                nursery.start_soon(_ping, connection)
            await trio.sleep(PONG_TIMEOUT)
            if wire.last_received_at <= quiet_since:
                await wire.abort(f"it did not respond to a ping within {PONG_TIMEOUT:g} s")
                return


async def _ping(connection: WebSocketConnection) -> None:
    with suppress(ConnectionClosed):  # the reader task reports the reason
        await connection.ping()

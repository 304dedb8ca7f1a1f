"""The stdio transport: a child process, and JSON-RPC lines on its pipes."""

from __future__ import annotations

import fcntl
import termios
from array import array
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable
from contextlib import asynccontextmanager
from typing import NoReturn

import msgspec
import trio

from mcpd.io.outbox import Outbox, batch
from mcpd.io.reader import Reader, traffic
from mcpd.model.server_spec import ServerSpec, StdioSpec
from mcpd.process.memory import trim_heap_soon
from mcpd.transports.child_process import (
    Child,
    Launch,
    ProcessGroupGuard,
    RunningChild,
    describe_exit,
    spawn,
)
from mcpd.transports.multiplexer import RequestMultiplexer
from mcpd.transports.outgoing_request import Exchange, connection_lost
from mcpd.wire.framing import LineSplitter, LineTooLong
from mcpd.wire.limits import longest_dropped

_batch = batch()
_EOF_GRACE = 0.5
"""Seconds to wait for the end of stdout after stdin was closed, which gives a better message."""
_MAX_REPLY_BACKLOG = 1 << 20
"""Bytes queued for a server before its own requests are no longer answered."""
_LARGE = 1 << 20
"""Bytes of a message whose memory is returned to the system afterwards."""


class OpenPipes(msgspec.Struct, frozen=True, kw_only=True):
    """A channel on pipes, for the next version of the daemon."""

    child: RunningChild
    received: bytes
    """The line that the server has not finished."""
    unsent: bytes


class PipeChannel(RequestMultiplexer):
    """A channel of JSON-RPC lines. The opener closes the descriptors."""

    def __init__(
        self, spec: ServerSpec, reads: int, writes: int, why_ended: Callable[[], Awaitable[str]]
    ) -> None:
        super().__init__(spec)
        self._reads = reads
        self._outbox = Outbox(writes)
        self._max_frame = spec.max_frame
        self._splitter = LineSplitter(
            spec.max_frame, longest=longest_dropped(spec.max_frame), limit_structure=True
        )
        self._write_timeout = spec.timeouts.write
        self._why_ended = why_ended

    def open_pipes(self, child: Child, launch: Launch) -> OpenPipes | None:
        """Return what the next version of the daemon needs to go on; None if that is impossible now."""
        if self.end_error is not None or child.returncode is not None or self._splitter.is_dropping:
            return None
        return OpenPipes(
            child=child.running(launch),
            received=self._splitter.rest(),
            unsent=self._outbox.rest(),
        )

    def adopt(self, pipes: OpenPipes) -> None:
        """Go on where the version before this one has stopped."""
        if pipes.received:
            self._splitter.feed(pipes.received)
        if pipes.unsent:
            self._outbox.put(pipes.unsent)

    async def run(self) -> NoReturn:
        try:
            await super().run()
        finally:
            self._outbox.close()
            self._splitter.clear()  # the traceback of `end_error` may keep this object alive
        raise AssertionError("a channel ends with an exception")

    async def _transfer(self, nursery: trio.Nursery) -> str:
        nursery.start_soon(self._outbox.run)
        nursery.start_soon(self._watch_writes, nursery.cancel_scope)
        return await self._read()

    # ── frames out ──────────────────────────────────────────────────────────────────────────────

    def _send_request(self, exchange: Exchange, frame: bytes) -> None:
        self._outbox.put(frame, exchange)
        traffic.more_expected = True  # not for remote servers, whose responses arrive elsewhere

    def _withdraw_request(self, exchange: Exchange, reason: str) -> bool:
        return self._outbox.withdraw(exchange)

    def _unsent_requests(self) -> set[Exchange]:
        return {tag for tag in self._outbox.unsent() if isinstance(tag, Exchange)}

    def has_unread_input(self) -> bool:
        if self._outbox.backlog:
            return True
        unread = array("i", [0])
        try:
            fcntl.ioctl(self._outbox.fd, termios.FIONREAD, unread)
        except OSError:
            return False  # it is closed, or not a pipe
        return unread[0] > 0

    def unended_line(self) -> bytes:
        return self._splitter.rest()

    def _send_frame(self, frame: bytes) -> None:
        self._outbox.put(frame)

    def _send_reply(self, frame: bytes) -> None:
        if self._outbox.backlog < _MAX_REPLY_BACKLOG:
            super()._send_reply(frame)

    # ── lines in ────────────────────────────────────────────────────────────────────────────────

    async def _read(self) -> str:
        """Read to the end; return why it ended."""
        try:
            await Reader(self._reads, self._take).run()
        except OSError as error:
            return f"reading its output failed: {error}"
        except LineTooLong as error:
            trim_heap_soon()
            return f"it sent a line of more than {error.limit} bytes (`maxFrame` allows {self._max_frame})"
        self.report_lost()
        return await self._why_ended()

    def _take(self, portion: bytes) -> Iterable[object] | None:
        lines = self._splitter.feed(portion)
        if self._splitter.dropped:
            self._receive_dropped()
        if lines and len(lines[0]) > _LARGE:  # the others are parts of this portion
            trim_heap_soon()
        if len(lines) > 1:
            return map(self.receiver.receive, lines)
        with _batch:
            for line in lines:
                self.receiver.receive(line)
        return None

    def _receive_dropped(self) -> None:
        trim_heap_soon()
        with _batch:
            for message in self._splitter.dropped:
                self.receiver.receive_dropped(message)
        self._splitter.dropped.clear()

    async def _watch_writes(self, running: trio.CancelScope) -> None:
        """Fail requests that cannot be sent because the server does not read its input.

        If the server closed its stdin, the connection is lost, although its stdout may still be open.
        """
        while self._outbox.broken is None:
            await self._outbox.wait_blocked()
            if self._outbox.broken is not None:
                break
            stalled_for = trio.current_time() - self._outbox.last_progress_at
            if stalled_for < self._write_timeout:
                with trio.move_on_after(self._write_timeout - stalled_for):
                    await self._outbox.wait_drained()
                continue
            with _batch:
                for tag in self._outbox.unsent():
                    if isinstance(tag, Exchange) and self._pending.pop(tag.key, None) is tag:
                        self._outbox.withdraw(tag)
                        reason = f"it has not read its input for {stalled_for:.0f} s"
                        self._fail_lost(tag, connection_lost(self.name, tag, reason, may_have_run=False))
            self._send_queued()
            with trio.move_on_after(self._write_timeout):  # before failing those queued since
                await self._outbox.wait_drained()
        await trio.sleep(_EOF_GRACE)
        self.report_lost()
        self.close("it closed its stdin while still running")
        running.cancel(reason="its stdin is closed")


_EXIT_STATUS_GRACE = 0.25
"""Seconds to wait for the exit status after the end of stdout, which gives a better message."""
_OUTPUT_GRACE = 0.1
"""Seconds to wait for remaining output after the exit; a descendant may hold the pipe open."""


class StdioTransport(msgspec.Struct, eq=False):
    """A child process and its channel, valid inside `open_stdio`."""

    child: Child
    channel: PipeChannel

    async def run(self) -> NoReturn:
        """Run the channel until it ends or the process exits. Raises LinkLost."""
        async with trio.open_nursery() as nursery:
            nursery.start_soon(self._watch_exit)
            await self.channel.run()
        raise AssertionError("the link ends by an exception only")

    async def _watch_exit(self) -> NoReturn:
        returncode = await self.child.wait_exited()
        self.channel.report_lost()
        with trio.move_on_after(_OUTPUT_GRACE):
            await trio.sleep_forever()  # the channel's own end of file cancels this first
        self.channel.close(describe_exit(returncode))
        assert self.channel.end_error is not None
        raise self.channel.end_error


@asynccontextmanager
async def open_stdio(
    spec: StdioSpec,
    launch: Launch,
    *,
    guard: ProcessGroupGuard,
    stderr: Callable[[bytes], None],
    adopted: OpenPipes | None = None,
) -> AsyncIterator[StdioTransport]:
    """Start the server, or go on with `adopted`; leaving the block fails pending requests and stops the
    process.

    Raises CannotStart and OSError as `spawn`. The caller runs `transport.run`.
    """
    times = spec.timeouts
    async with spawn(
        launch,
        guard=guard,
        stderr=stderr,
        stop_close=times.stop_close,
        stop_term=times.stop_term,
        adopted=None if adopted is None else adopted.child,
    ) as child:

        async def why_ended() -> str:
            with trio.move_on_after(_EXIT_STATUS_GRACE):
                return describe_exit(await child.wait_exited())
            return "closed its stdout while still running"

        link = PipeChannel(spec, child.stdout, child.stdin, why_ended)
        if adopted is not None:
            link.adopt(adopted)
        try:
            yield StdioTransport(child, link)
        finally:
            link.close("it is being stopped")

"""The stdio transport: a child process and the line channel on its pipes."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import NoReturn

import attrs
import trio

from mcpd.model.server_spec import StdioSpec
from mcpd.transports.child_environment import Launch
from mcpd.transports.child_process import Child, ProcessGroupGuard, describe_exit, spawn
from mcpd.transports.pipe_connection import PipeChannel

_EXIT_STATUS_GRACE = 0.25
"""How long the exit status may come after the end of stdout: it makes the better message."""
_OUTPUT_GRACE = 0.1
"""How long the last answers may come after the exit; a grandchild may hold the pipe for ever."""


@attrs.define(eq=False)
class StdioTransport:
    """A child and its link, valid inside `open_stdio`."""

    child: Child
    channel: PipeChannel

    async def run(self) -> NoReturn:
        """Carry traffic until the child or the channel ends, whichever is first. Raises LinkLost."""
        async with trio.open_nursery() as nursery:
            nursery.start_soon(self._watch_exit)
            await self.channel.run()
        raise AssertionError("the link ends by an exception only")

    async def _watch_exit(self) -> NoReturn:
        returncode = await self.child.wait_exited()
        with trio.move_on_after(_OUTPUT_GRACE):
            await trio.sleep_forever()  # the link's own end of file cancels us first
        self.channel.close(describe_exit(returncode))
        assert self.channel.end_error is not None
        raise self.channel.end_error


@asynccontextmanager
async def open_stdio(
    spec: StdioSpec, launch: Launch, *, guard: ProcessGroupGuard, stderr: Callable[[bytes], None]
) -> AsyncIterator[StdioTransport]:
    """Start the server; leaving the block fails what is under way and ends the process.

    Raises CannotStart and OSError as `spawn` does. The caller runs `transport.run`.
    """
    times = spec.timeouts
    async with spawn(
        launch, guard=guard, stderr=stderr, stop_close=times.stop_close, stop_term=times.stop_term
    ) as child:

        async def why_ended() -> str:
            with trio.move_on_after(_EXIT_STATUS_GRACE):
                return describe_exit(await child.wait_exited())
            return "closed its stdout while still running"

        link = PipeChannel(spec, child.stdout, child.stdin, why_ended)
        try:
            yield StdioTransport(child, link)
        finally:
            link.close("it is being stopped")

"""A scripted server in this process, at the other end of two pipes, to test links and negotiation."""

from __future__ import annotations

import json
import os
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import asynccontextmanager
from typing import Any

import attrs
import trio

from mcpd.model.errors import LinkLost
from mcpd.model.server_spec import ServerSpec, Timeouts
from mcpd.transports.stdio import PipeChannel

Json = dict[str, Any]
PATIENCE = 20
"""Seconds after which an event that normally takes milliseconds counts as missing."""
Answer = Callable[[Json], Json | bytes | None]
"""What a request gets: `{"result": …}` or `{"error": …}` (the id is added), bytes as they are, or silence."""


@attrs.define(eq=False)
class Peer:
    """Answer by `script` (method → answer), and record every received message."""

    link: PipeChannel
    _reads: trio.lowlevel.FdStream
    _writes: trio.lowlevel.FdStream
    script: dict[str, Answer | Json] = attrs.field(factory=dict)
    heard: list[Json] = attrs.field(factory=list)
    ended: LinkLost | None = None
    _moved: trio.Event = attrs.field(factory=trio.Event)
    _speaking: trio.Lock = attrs.field(factory=trio.Lock)

    @property
    def methods(self) -> list[str]:
        return [message.get("method", "") for message in self.heard]

    async def say(self, message: Json | bytes) -> None:
        """Send a message, or bytes unchanged."""
        data = message if isinstance(message, bytes) else json.dumps(message).encode() + b"\n"
        async with self._speaking:  # a scripted answer and a message of the test may be concurrent
            await self._writes.send_all(data)

    async def hear(self, method: str, count: int = 1) -> Json:
        """Wait until `method` has arrived `count` times, and return the last message."""
        with trio.fail_after(30):
            while self.methods.count(method) < count:
                await self._moved.wait()
        return [message for message in self.heard if message.get("method", "") == method][count - 1]

    async def close(self) -> None:
        """Close this side, like a process that exits."""
        await self._reads.aclose()
        await self._writes.aclose()

    async def run(self) -> None:
        pending = b""
        try:
            async for portion in self._reads:
                *lines, pending = (pending + portion).split(b"\n")
                for line in lines:
                    await self._take(json.loads(line))
        except (trio.ClosedResourceError, trio.BrokenResourceError):
            return

    async def _take(self, message: Json) -> None:
        self.heard.append(message)
        moved, self._moved = self._moved, trio.Event()
        moved.set()
        if "id" not in message or "method" not in message:
            return
        scripted = self.script.get(message["method"])
        answer = scripted(message) if callable(scripted) else scripted
        if isinstance(answer, dict):
            await self.say({"jsonrpc": "2.0", "id": message["id"], **answer})
        elif answer is not None:
            await self.say(answer)


@asynccontextmanager
async def connected(script: Mapping[str, Answer | Json] | None = None, **limits: Any) -> AsyncIterator[Peer]:
    """Yield a running link and the peer at its other end."""
    to_us, from_peer = os.pipe()
    to_peer, from_us = os.pipe()
    for fd in (to_us, from_us):
        os.set_blocking(fd, False)

    async def why_ended() -> str:
        return "it has ended"

    settings = {"max_frame": 1 << 20, "max_in_flight": 8, "max_queued": 16, **limits}
    spec = ServerSpec(name="peer", timeouts=Timeouts(write=8), **settings)
    link = PipeChannel(spec, to_us, from_us, why_ended)
    async with trio.lowlevel.FdStream(to_peer) as reads, trio.lowlevel.FdStream(from_peer) as writes:
        peer = Peer(link, reads, writes, dict(script or {}))

        async def run_link() -> None:
            try:
                await link.run()
            except LinkLost as error:
                peer.ended = error

        try:
            async with trio.open_nursery() as nursery:
                nursery.start_soon(peer.run)
                nursery.start_soon(run_link)
                yield peer
                nursery.cancel_scope.cancel(reason="the test is over")
        finally:
            os.close(to_us)
            os.close(from_us)

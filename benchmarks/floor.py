"""The simplest relay on mcpd's stack, as a measure for mcpd: one server on pipes, clients one at a time.

    python -m benchmarks.floor SOCKET COMMAND...

The relay does what no relay can avoid: it reads the envelope of each message, replaces the ID of a request,
restores it in the response, and passes the other bytes. Like mcpd, it uses trio, decodes envelopes with
msgspec, and answers each read with one write. It has no sessions, errors, deadlines, cancellation or
statistics, so the difference from mcpd is what these cost. It prints an empty line when it listens, and ends
when its stdin is closed.
"""

from __future__ import annotations

import os
import socket
import subprocess
import sys
from collections.abc import AsyncIterator
from itertools import count

import msgspec
import trio
from msgspec import Raw

READ = 1 << 16
START = b'{"jsonrpc":"2.0","id":'


class Envelope(msgspec.Struct, gc=False):
    """A request or its result. A missing member is empty."""

    id: Raw
    method: Raw = Raw(b"")
    params: Raw = Raw(b"{}")
    result: Raw = Raw(b"")


decode = msgspec.json.Decoder(Envelope).decode


async def reads(fd: int) -> AsyncIterator[list[bytes]]:
    """Yield the lines that each read has completed, until the stream ends."""
    pending = bytearray()
    while True:
        await trio.lowlevel.wait_readable(fd)
        if not (portion := os.read(fd, READ)):
            return
        *lines, rest = portion.split(b"\n")
        if lines:
            lines[0] = bytes(pending + lines[0])
            pending = bytearray()
            yield lines
        pending += rest


async def write(fd: int, frames: list[bytes]) -> None:
    """Write all frames."""
    view = memoryview(b"".join(frames))
    while view:
        try:
            view = view[os.write(fd, view) :]
        except BlockingIOError:
            await trio.lowlevel.wait_writable(fd)


async def relay(client: int, server_in: int, server_out: int) -> None:
    """Relay requests and results until the client or the server closes its stream."""
    ids = count(1)
    waiting: dict[bytes, Raw] = {}

    def request(line: bytes) -> bytes:
        message = decode(line)
        key = b"%d" % next(ids)
        waiting[key] = message.id
        return b"".join((START, key, b',"method":', message.method, b',"params":', message.params, b"}\n"))

    def result(line: bytes) -> bytes:
        message = decode(line)
        key = waiting.pop(bytes(message.id))
        return b"".join((START, key, b',"result":', message.result, b"}\n"))

    async def upward() -> None:
        async for lines in reads(client):
            await write(server_in, [request(line) for line in lines])
        nursery.cancel_scope.cancel()

    async def downward() -> None:
        async for lines in reads(server_out):
            await write(client, [result(line) for line in lines])
        nursery.cancel_scope.cancel()

    async with trio.open_nursery() as nursery:
        nursery.start_soon(upward)
        nursery.start_soon(downward)


async def serve(path: str, server_in: int, server_out: int) -> None:
    """Serve one client after the other on the socket `path` until stdin is closed."""

    async def accept() -> None:
        while True:
            client, _ = await listener.accept()
            with client:
                await relay(client.fileno(), server_in, server_out)

    with trio.socket.socket(socket.AF_UNIX) as listener:
        await listener.bind(path)
        listener.listen()
        print(flush=True)
        async with trio.open_nursery() as nursery:
            nursery.start_soon(accept)
            await trio.lowlevel.wait_readable(0)
            nursery.cancel_scope.cancel()


def main() -> None:
    """Start the server, and relay to it."""
    command = sys.argv[2:]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, bufsize=0) as server:
        assert server.stdin is not None
        assert server.stdout is not None
        for pipe in server.stdin, server.stdout:
            os.set_blocking(pipe.fileno(), False)
        trio.run(serve, sys.argv[1], server.stdin.fileno(), server.stdout.fileno())


if __name__ == "__main__":
    main()

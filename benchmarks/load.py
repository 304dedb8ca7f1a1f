"""Measure the latency and the throughput of one connection, and check every response.

The same code measures pipes and Unix sockets, so that the cost of the client is on both sides of a ratio.
"""

from __future__ import annotations

import json
import os
import re
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path
from typing import Protocol

from benchmarks.stub import PIPE, TEXTS, result

STUB = (sys.executable, "-I", "-S", str(Path(__file__).with_name("stub.py")))
RESULTS = {tool: result(tool) for tool in TEXTS}
LIMIT = 30.0
VERSION = "2025-11-25"
"""The revision of the clients."""


class Wrong(Exception):
    """A response is not the expected one, so the measurement is invalid."""


class Line:
    """A blocking stream of lines over two file descriptors."""

    def __init__(self, reads: int, writes: int) -> None:
        self.reads = reads
        self.writes = writes
        self._pending: list[bytes] = []

    def write(self, data: bytes) -> None:
        view = memoryview(data)
        while view:
            view = view[os.write(self.writes, view) :]

    def lines(self) -> list[bytes]:
        """Return all lines that have arrived, at least one. Raises Wrong at the end of the stream."""
        while chunk := os.read(self.reads, PIPE):
            if b"\n" in chunk:
                *whole, rest = (b"".join(self._pending) + chunk).split(b"\n")
                self._pending = [rest] if rest else []
                return whole
            self._pending.append(chunk)
        raise Wrong("the other side closed the connection")

    def shake_hands(self) -> None:
        """Complete the handshake of an MCP client."""
        client = {"name": "load", "version": "1"}
        hello = {"protocolVersion": VERSION, "capabilities": {}, "clientInfo": client}
        self.ask({"jsonrpc": "2.0", "id": 1, "method": "initialize", "params": hello})
        self.write(b'{"jsonrpc":"2.0","method":"notifications/initialized"}\n')

    def ask(self, request: dict[str, object]) -> object:
        """Send a request that is not measured, and return its result."""
        self.write(json.dumps(request).encode() + b"\n")
        [line] = self.lines()
        answer = json.loads(line)
        if answer.get("id") != request["id"] or "result" not in answer:
            raise Wrong(f"{request['method']} was answered with {line[:200]!r}")
        return answer["result"]


Request = Callable[[str], Mapping[str, object]]
"""Makes the members of a request that calls a tool, without its ID."""


def tools_call(
    tool: str, *, prefix: str = "", meta: Mapping[str, object] | None = None
) -> Mapping[str, object]:
    """Return `tools/call` with this `_meta`.

    `prefix` precedes the tool's name on a connection for several servers.
    """
    said = {} if meta is None else {"_meta": dict(meta)}
    return {"method": "tools/call", "params": {**said, "name": prefix + tool, "arguments": {}}}


class Calls:
    """Creates requests for one tool with ascending IDs, and checks the responses."""

    def __init__(self, tool: str, request: Request = tools_call) -> None:
        self.next_id = 1000
        self.waiting: set[int] = set()
        self.tool = tool
        self.result = RESULTS[tool]
        self._tail = json.dumps(request(tool), separators=(",", ":")).encode()[1:] + b"\n"
        self._shape: tuple[bytes, bytes] | None = None

    def requests(self, count: int) -> bytes:
        """Return the next `count` requests as one byte string."""
        ids = range(self.next_id, self.next_id + count)
        self.next_id += count
        self.waiting.update(ids)
        tail = self._tail
        return b"".join([b'{"jsonrpc":"2.0","id":%d,%s' % (key, tail) for key in ids])

    def check(self, answer: bytes) -> None:
        """Check a response. Raises Wrong unless it has the ID of a call in flight and the exact result.

        Responses differ only in their ID, so the bytes of the first response are compared with all others.
        """
        before, after = self._shape or self._learn(answer)
        if not (answer.startswith(before) and answer.endswith(after)):
            raise Wrong(f"not the answer expected: {answer[:200]!r}")
        try:
            self.waiting.remove(int(answer[len(before) : len(answer) - len(after)]))
        except (ValueError, KeyError):
            raise Wrong(f"an answer to a call not in flight: {answer[:200]!r}") from None

    def _learn(self, answer: bytes) -> tuple[bytes, bytes]:
        found = re.search(rb'"id":\s*(\d+)', answer)
        if (
            found is None or answer.count(self.result[1:-1]) != 1
        ):  # members of the envelope may stand around it
            raise Wrong(f"not the bytes of the result: {answer[:200]!r}")
        self._shape = answer[: found.start(1)], answer[found.end(1) :]
        return self._shape


class Route(Protocol):
    """A route to the stub."""

    def latencies(self, tool: str, count: int) -> list[float]:
        """Make `count` calls one after the other, and return the seconds of each."""

    def rate(self, count: int, in_flight: int) -> float:
        """Make `count` calls with at most `in_flight` at the same time, and return the calls per second."""


class OnLine:
    """Calls over a stream of lines."""

    def __init__(self, line: Line, request: Request = tools_call) -> None:
        self.line = line
        self.request = request

    def latencies(self, tool: str, count: int) -> list[float]:
        calls = Calls(tool, self.request)
        taken = []
        for _ in range(count):
            request = calls.requests(1)
            start = time.perf_counter()
            self.line.write(request)
            answers = self.line.lines()
            taken.append(time.perf_counter() - start)
            for answer in answers:
                calls.check(answer)
            if calls.waiting:
                raise Wrong("an answer is missing")
        return taken

    def rate(self, count: int, in_flight: int) -> float:
        calls = Calls("echo", self.request)
        start = time.perf_counter()
        self.line.write(calls.requests(in_flight))
        sent, answered = in_flight, 0
        while answered < count:
            answers = self.line.lines()
            for answer in answers:
                calls.check(answer)
            answered += len(answers)
            if more := min(len(answers), count - sent):
                self.line.write(calls.requests(more))
                sent += more
        if calls.waiting:
            raise Wrong(f"{len(calls.waiting)} answers are missing")
        return count / (time.perf_counter() - start)

    @contextmanager
    def batch(self, count: int) -> Iterator[None]:
        """Send `count` calls at once, and read their answers after the block."""
        calls = Calls("echo", self.request)
        self.line.write(calls.requests(count))
        yield
        while calls.waiting:
            for answer in self.line.lines():
                calls.check(answer)


def direct() -> AbstractContextManager[tuple[Line, int]]:
    """Start the stub as a child process and complete its handshake."""
    return child(STUB, None)


def bridged(environ: Mapping[str, str], server: str) -> AbstractContextManager[tuple[Line, int]]:
    """Start `mcpctl bridge` for one server as a child process, as an editor does."""
    mcpctl = str(Path(sys.executable).with_name("mcpctl"))
    return child((mcpctl, "bridge", "--no-start", "--server", server), environ)


@contextmanager
def child(command: Sequence[str], environ: Mapping[str, str] | None) -> Iterator[tuple[Line, int]]:
    """Start an MCP server as a child process and complete its handshake. Return its process ID too."""
    with subprocess.Popen(
        command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, bufsize=0, env=environ
    ) as process:
        assert process.stdin is not None
        assert process.stdout is not None
        line = Line(process.stdout.fileno(), process.stdin.fileno())
        line.shake_hands()
        try:
            yield line, process.pid
        finally:
            process.stdin.close()
            process.wait(LIMIT)


@contextmanager
def control(path: str) -> Iterator[Line]:
    """Connect to the socket of the daemon. The connection is blocking, so it costs as much as a pipe."""
    with socket.socket(socket.AF_UNIX) as connection:
        connection.connect(path)
        yield Line(connection.fileno(), connection.fileno())


@contextmanager
def attached(path: str, server: str) -> Iterator[Line]:
    """Connect to one server of the daemon as an MCP client."""
    with control(path) as line:
        line.ask({"jsonrpc": "2.0", "id": 1, "method": "mcpd/attach", "params": {"server": server}})
        line.shake_hands()
        yield line


@contextmanager
def aggregated(path: str) -> Iterator[Line]:
    """Connect to all servers of the daemon as an MCP client."""
    with control(path) as line:
        line.shake_hands()
        yield line


@contextmanager
def floor(*arguments: str) -> Iterator[tuple[Line, int]]:
    """Run the relay of benchmarks/floor.py with the stub and these arguments of it. Return a connection to
    it, and its process ID."""
    with tempfile.TemporaryDirectory(prefix="mcpd-bench-") as home:
        path = f"{home}/floor.sock"
        argv = [sys.executable, str(Path(__file__).with_name("floor.py")), path, *STUB, *arguments]
        with subprocess.Popen(argv, stdin=subprocess.PIPE, stdout=subprocess.PIPE, bufsize=0) as relay:
            assert relay.stdin is not None
            assert relay.stdout is not None
            try:
                relay.stdout.readline()
                with control(path) as line:
                    yield line, relay.pid
            finally:
                relay.stdin.close()
                relay.wait(LIMIT)

"""One connection: answers in order and whole, deadlines for what does not come, an end for the deaf."""

from __future__ import annotations

import socket
import time
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from functools import partial

import attrs
import pytest
import trio
import trio.testing

from mcpd.api.http import connection as http_connection
from mcpd.api.http.connection import BodyBudget, HttpServerConnection, SpawnTask
from mcpd.api.http.exchange import HttpExchange, ServeRequest
from mcpd.api.http.parser import Admission, BadRequest, Head
from mcpd.api.listeners import ConnectionLimit, Slot

MIB = 1 << 20
BOUND = 60.0


@attrs.define(eq=False)
class Peer:
    """A handler that keeps what it is given, and the client's end of its connection."""

    near: socket.socket
    far: socket.socket
    asked: list[tuple[str, bytes, HttpExchange]] = attrs.field(factory=list)
    answers: Callable[[str, bytes, HttpExchange], None] | None = None
    over: str = ""
    left_because: str = ""
    ended: trio.Event = attrs.field(factory=trio.Event)
    connection: HttpServerConnection | None = None
    spawn: SpawnTask | None = None

    def admit(self, head: Head) -> Admission:
        if head.path == "/forbidden":
            raise BadRequest(403, "not here")
        return Admission(0, False) if head.path == "/open" else Admission(MIB, True)

    def route(self, head: Head) -> ServeRequest:
        return partial(self.serve, head.path)

    def serve(self, path: str, body: bytes, exchange: HttpExchange) -> None:
        self.asked.append((path, body, exchange))
        exchange.on_hang_up = self._hung_up
        if self.answers is not None:
            self.answers(path, body, exchange)

    def _hung_up(self, reason: str) -> None:
        self.over = reason

    def closed(self, reason: str) -> None:
        assert self.spawn is not None
        self.spawn(trio.lowlevel.checkpoint)
        self.left_because = reason

    async def send(self, data: bytes) -> None:
        self.far.sendall(data)
        await self.settled()

    async def settled(self) -> None:
        """Until the daemon's side has taken what was sent."""
        await trio.testing.wait_all_tasks_blocked(0.02)

    async def read(self, until: bytes = b"") -> bytes:
        """What comes, up to and with `until`; without it up to the end."""
        got = b""
        deadline = time.monotonic() + BOUND  # trio's clock may be one that stands still
        while not (until and got.endswith(until)):
            try:
                portion = self.far.recv(MIB)
            except BlockingIOError:
                assert time.monotonic() < deadline, got
                await self.settled()
                continue
            except ConnectionError:
                break
            if not portion:
                break
            got += portion
        return got

    async def wait_ended(self) -> None:
        """Until the daemon's side is over."""
        deadline = time.monotonic() + BOUND
        while not self.ended.is_set():
            assert time.monotonic() < deadline
            await self.settled()


def echo(path: str, body: bytes, exchange: HttpExchange) -> None:
    exchange.respond(200, path.encode() + b" " + body)


@asynccontextmanager
async def connected(
    answers: Callable[[str, bytes, HttpExchange], None] | None = None,
    *,
    unix: bool = False,
) -> AsyncIterator[Peer]:
    near, far = socket.socketpair() if unix else tcp_pair()
    near.setblocking(False)
    far.setblocking(False)
    peer = Peer(near, far, answers=answers)

    def handler(spawn: SpawnTask) -> Peer:
        peer.spawn = spawn
        return peer

    async def run() -> None:
        peer.connection = HttpServerConnection(
            near,
            handler,
            "a test",
            Slot(ConnectionLimit("unix"), 0),
            BodyBudget(),
            set(),
        )
        await peer.connection.run()
        near.close()
        peer.ended.set()

    try:
        async with trio.open_nursery() as nursery:
            nursery.start_soon(run)
            await peer.settled()
            yield peer
            far.close()
            nursery.cancel_scope.cancel(reason="the test is over")
    finally:
        near.close()
        far.close()


def tcp_pair() -> tuple[socket.socket, socket.socket]:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        far = socket.create_connection(listener.getsockname())
        near, _ = listener.accept()
    return near, far


def request(path: str = "/", body: bytes = b"", more: str = "", version: str = "1.1") -> bytes:
    return (
        f"POST {path} HTTP/{version}\r\nHost: h\r\nContent-Length: {len(body)}\r\n{more}\r\n".encode() + body
    )


async def test_request_before_the_response_is_refused_after_it() -> None:
    async with connected() as peer:
        await peer.send(request("/1") + request("/2", b"x"))
        assert [path for path, _, _ in peer.asked] == ["/1"]
        peer.asked[0][2].respond(200, b"first")
        answers = await peer.read()
        assert answers.index(b"200 OK") < answers.index(b"first") < answers.index(b"503 ")
        assert len(peer.asked) == 1


async def test_error_response_keeps_its_order_and_ends_the_connection() -> None:
    """And the client can read it although it is still sending."""
    async with connected() as peer:
        await peer.send(request("/1") + b"garbage\r\n\r\n")
        await peer.send(b"x" * 100_000)
        peer.asked[0][2].respond(200, b"first")
        answers = await peer.read()
        assert answers.index(b"first") < answers.index(b"HTTP/1.1 400 Bad Request")
        assert b"Connection: close\r\n" in answers


@pytest.mark.parametrize(
    "last", [request("/", more="Connection: close\r\n"), request("/", version="1.0")], ids=["close", "1.0"]
)
async def test_the_last_response_says_so_and_the_connection_ends(last: bytes) -> None:
    async with connected(echo) as peer:
        await peer.send(last + request("/ignored"))
        answer = await peer.read()
        assert b"Connection: close\r\n" in answer
        assert answer.count(b"HTTP/1.1 ") == 1
        await peer.wait_ended()


async def test_a_stream_is_chunked_and_the_connection_stays() -> None:
    async with connected() as peer:
        await peer.send(request("/1"))
        exchange = peer.asked[0][2]
        exchange.stream(b"text/event-stream", b"X-A: b\r\n")
        exchange.write(b"data: 1\n\n")
        exchange.write(b"data: 23456789\n\n")
        exchange.end()
        exchange.write(b"too late")
        exchange.end()
        answer = await peer.read(b"0\r\n\r\n")
        head, _, body = answer.partition(b"\r\n\r\n")
        assert b"Transfer-Encoding: chunked" in head
        assert b"X-A: b" in head
        assert body == b"9\r\ndata: 1\n\n\r\n10\r\ndata: 23456789\n\n\r\n0\r\n\r\n"
        peer.answers = echo
        await peer.send(request("/2"))
        assert (await peer.read(b"/2 ")).startswith(b"HTTP/1.1 200 OK")


@pytest.mark.parametrize("unix", [False, True], ids=["tcp", "unix"])
@pytest.mark.parametrize("streams", [False, True])
async def test_disconnect_is_noticed_while_a_response_is_pending(unix: bool, streams: bool) -> None:
    """A disconnect is noticed immediately, even if there is nothing to write."""
    async with connected(unix=unix) as peer:
        await peer.send(request())
        if streams:
            peer.asked[0][2].stream(b"text/event-stream")
        peer.far.close()
        with trio.fail_after(30):
            await peer.wait_ended()
        assert peer.over == peer.left_because == "the client left"
        peer.asked[0][2].respond(200, b"for nobody")


# ── time ────────────────────────────────────────────────────────────────────────────────────────


async def later(clock: trio.testing.MockClock, peer: Peer, seconds: float) -> None:
    clock.jump(seconds)
    await peer.settled()


async def test_a_head_that_does_not_end_is_given_up(mock_clock: trio.testing.MockClock) -> None:
    """The deadline is five seconds from the first byte, no matter how slowly the rest arrives."""
    async with connected(echo) as peer:
        await later(mock_clock, peer, 60)
        await peer.send(b"GET / HTTP/1.1\r\n")
        for _ in range(4):
            await later(mock_clock, peer, 1)
            await peer.send(b"A: b\r\n")
        assert not peer.ended.is_set()
        await later(mock_clock, peer, 1.5)
        assert (await peer.read()).startswith(b"HTTP/1.1 408 ")


async def test_a_body_that_does_not_end_is_given_up(mock_clock: trio.testing.MockClock) -> None:
    """Although something arrives all the time."""
    async with connected(echo) as peer:
        await peer.send(b"POST / HTTP/1.1\r\nHost: h\r\nContent-Length: 1000\r\n\r\n")
        for _ in range(10):
            await later(mock_clock, peer, http_connection.REQUEST_TIMEOUT / 11)
            await peer.send(b"x")
        assert not peer.ended.is_set()
        await later(mock_clock, peer, http_connection.REQUEST_TIMEOUT / 5)
        assert (await peer.read()).startswith(b"HTTP/1.1 408 ")


async def test_an_idle_connection_is_closed(mock_clock: trio.testing.MockClock) -> None:
    """But not while a response is under way."""
    async with connected() as peer:
        await peer.send(request("/1"))
        for _ in range(10):
            await later(mock_clock, peer, http_connection.KEEP_ALIVE_TIMEOUT)
        assert not peer.ended.is_set()
        peer.asked[0][2].respond(200, b"at last")
        assert (await peer.read(b"at last")).startswith(b"HTTP/1.1 200 OK")
        for _ in range(10):
            await later(mock_clock, peer, http_connection.QUIET_INTERVAL)
        assert await peer.read() == b""


async def test_on_quiet_is_called_after_silence(mock_clock: trio.testing.MockClock) -> None:
    async with connected() as peer:
        await peer.send(request("/1"))
        silences = 0

        def quiet() -> None:
            nonlocal silences
            silences += 1

        peer.asked[0][2].on_quiet = quiet
        await later(mock_clock, peer, http_connection.QUIET_INTERVAL - 1)
        assert silences == 0
        for expected in (1, 2, 3):
            await later(mock_clock, peer, http_connection.QUIET_INTERVAL)
            assert silences == expected


async def test_client_that_does_not_read_is_disconnected(
    mock_clock: trio.testing.MockClock, caplog: pytest.LogCaptureFixture
) -> None:
    """A client that does not read loses its own connection only."""
    async with connected() as peer:
        await peer.send(request("/1"))
        exchange = peer.asked[0][2]
        exchange.stream(b"text/event-stream")
        exchange.write(b"x" * 20 * MIB)
        await peer.settled()
        for _ in range(5):
            await later(mock_clock, peer, 10)
        await peer.wait_ended()
        assert peer.over == "the client does not read"
        assert "does not read" in caplog.text


async def test_idle_connection_can_be_evicted_and_a_busy_one_cannot() -> None:
    async with connected() as peer:
        assert peer.connection is not None
        assert peer.connection.idle_since is not None
        await peer.send(b"GET /")
        assert peer.connection.idle_since is None
        await peer.send(b" HTTP/1.1\r\nHost: h\r\n\r\n")
        assert peer.connection.idle_since is None
        peer.asked[0][2].respond(204)
        assert peer.connection.idle_since is not None
        peer.connection.evict("its seat was needed")
        await peer.wait_ended()


async def test_internal_error_ends_only_its_connection(
    caplog: pytest.LogCaptureFixture,
) -> None:
    """The firewall."""

    def fail(path: str, body: bytes, exchange: HttpExchange) -> None:
        raise RuntimeError("a bug")

    async with connected(fail) as peer:
        await peer.send(request("/1"))
        await peer.wait_ended()
        assert peer.over
    assert "a bug" in caplog.text


async def test_handler_is_closed_while_its_calls_can_still_start_tasks() -> None:
    """A server's response may arrive in the last round of the scheduler, and its call may need a task."""
    async with connected(echo) as peer:
        await peer.send(request())
        assert await peer.read(b"/ ")
        peer.far.close()
        await peer.wait_ended()
        assert peer.left_because == "the client left"


async def test_upgraded_connection_ends_with_its_handler(
    mock_clock: trio.testing.MockClock,
) -> None:
    """After the answers to what was asked before; and the client learns the end, not a reset."""
    heard = b""

    async def serve(stream: trio.abc.Stream) -> None:
        nonlocal heard
        await stream.send_all(b"hello in another protocol")
        while not heard.endswith(b"bye"):
            heard += await stream.receive_some(1)
        await stream.send_all(b"bye")

    async with connected() as peer:
        await peer.send(request("/1"))
        peer.asked[0][2].respond(200, b"x" * 20 * MIB)
        await peer.send(request("/2"))
        peer.asked[1][2].upgrade(serve)
        before, _, after = (await peer.read(b"protocol")).rpartition(b"x")
        assert before.count(b"x") >= 20 * MIB - 1
        assert after == b"hello in another protocol"
        await peer.send(b"GET / HTTP/1.1\r\nHost: h\r\n\r\nbye, and what nobody reads")
        assert await peer.read(b"bye") == b"bye"
        assert peer.far.recv(1) == b""
        peer.far.close()
        await peer.wait_ended()
        assert heard == b"GET / HTTP/1.1\r\nHost: h\r\n\r\nbye"
        assert len(peer.asked) == 2
        assert peer.over

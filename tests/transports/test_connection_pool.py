"""The connection pools: few connections, one request at a time on each, and no unusable ones kept."""

from __future__ import annotations

import tracemalloc
from collections.abc import AsyncIterator
from contextlib import suppress

import httpx
import pytest
import trio

from mcpd.transports.http_client.bodies import complete_body, read
from mcpd.transports.http_client.client_factory import MAX_COOKIES, HttpClient, make_cookie_jar, open_client
from mcpd.transports.http_client.connection import describe_error
from mcpd.transports.http_client.connection_pool import ConnectionPool
from tests.fakes.http import FakeHttp, Request, fake_http
from tests.stopwatch import assert_cheap

BOUND = 30


async def ok(request: Request) -> None:
    """Return the request body."""
    await request.reply(200, request.body)


async def get(client: HttpClient, server: FakeHttp, body: bytes = b"x", **headers: str) -> bytes:
    """Send a request and read the whole response."""
    with trio.fail_after(BOUND):
        response = await client.send("POST", server.url, headers, body)
        assert isinstance(response.stream, httpx.AsyncByteStream)
        got = b"".join([part async for part in response.stream])
        await response.stream.aclose()
    return got


@pytest.mark.usefixtures("engine")
async def test_a_connection_that_the_server_has_closed_is_not_used_again() -> None:
    """Servers close idle connections, often after five seconds; the next request must not fail."""

    closed = trio.Event()

    async def last(request: Request) -> None:
        await request.reply(200, b"bye")
        await request.stream.send_eof()
        closed.set()
        await request.stream.receive_some(1)

    async with fake_http(last) as server, open_client(server.url, {}, {}) as client:
        for number in range(5):
            assert await get(client, server) == b"bye"
            with trio.fail_after(BOUND):
                await closed.wait()
            closed = trio.Event()
            assert server.connections == number + 1


@pytest.mark.usefixtures("engine")
@pytest.mark.parametrize(
    "answer",
    [
        b"HTTP/1.1 200 OK\r\nContent-Length: 1\r\n\r\nx and more",
        b"HTTP/1.1 200 OK\r\nContent-Length: 1\r\nConnection: close\r\n\r\nx",
        b"HTTP/1.0 200 OK\r\nContent-Length: 1\r\n\r\nx",
    ],
)
async def test_connection_with_unexpected_data_is_not_reused(answer: bytes) -> None:
    """Data after a response would be read as the next response."""

    async def odd(request: Request) -> None:
        await request.raw(answer)

    async with fake_http(odd) as server, open_client(server.url, {}, {}) as client:
        assert await get(client, server) == b"x"
        assert await get(client, server) == b"x"
        assert server.connections == 2


@pytest.mark.usefixtures("engine")
async def test_cancelled_request_closes_its_connection() -> None:
    """The cancellation may come before or within the response."""
    hung_up = 0
    begun = trio.Event()

    async def slow(request: Request) -> None:
        nonlocal hung_up
        await request.events()
        await request.send(b"x")
        begun.set()
        await request.wait_hung_up()
        hung_up += 1

    async with fake_http(slow) as server, open_client(server.url, {}, {}) as client:
        async with trio.open_nursery() as nursery:
            nursery.start_soon(get, client, server)
            with trio.fail_after(BOUND):
                await begun.wait()
            nursery.cancel_scope.cancel()
        response = await client.send("GET", server.url, {})
        assert isinstance(response.stream, httpx.AsyncByteStream)
        await response.stream.aclose()
        with trio.fail_after(BOUND):
            while hung_up < 2:  # noqa: ASYNC110 - a test's wait
                await trio.sleep(0.01)
        assert server.connections == 2


@pytest.mark.usefixtures("engine")
@pytest.mark.parametrize("value", ["a\r\nHost: evil", "a\nb", "a\x00b"])
async def test_header_injection_is_refused(value: str) -> None:
    """Nothing is sent."""
    async with fake_http(ok) as server, open_client(server.url, {}, {}) as client:
        with pytest.raises(httpx.LocalProtocolError):
            await get(client, server, Mcp_Name=value)
        with pytest.raises(httpx.LocalProtocolError):
            await client.send("POST", server.url, {"a b": "c"})
        assert server.requests == []


@pytest.mark.usefixtures("engine")
async def test_requests_stay_within_their_origin() -> None:
    """A request to another origin is a bug, and no header is sent."""
    async with fake_http(ok) as other, fake_http(ok) as server, open_client(server.url, {}, {}) as client:
        with pytest.raises(httpx.UnsupportedProtocol):
            await get(client, other)
        assert other.connections == 0


@pytest.mark.usefixtures("engine")
async def test_cookies_are_kept() -> None:
    """A load balancer's cookie is sent with every request; a cookie of the definition is kept."""

    async def sticky(request: Request) -> None:
        await request.reply(200, request.headers.get("cookie", "").encode(), Set_Cookie="node=7; Path=/")

    async with fake_http(sticky) as server:
        async with open_client(server.url, {}, {}) as client:
            assert [await get(client, server) for _ in range(3)] == [b"", b"node=7", b"node=7"]
        async with open_client(server.url, {"Cookie": "mine=1"}, {}) as client:
            assert [await get(client, server) for _ in range(2)] == [b"mine=1", b"mine=1"]


@pytest.mark.usefixtures("engine")
async def test_number_of_cookies_is_limited() -> None:
    """A server that invents one in each response is sent the first ones; these may still change."""
    count = 0

    async def inventive(request: Request) -> None:
        nonlocal count
        count += 1
        cookie = f"first={count}" if count % 2 else f"c{count}=1"
        await request.reply(200, request.headers.get("cookie", "").encode(), Set_Cookie=f"{cookie}; Path=/")

    async with fake_http(inventive) as server, open_client(server.url, {}, {}) as client:
        for _ in range(4 * MAX_COOKIES):
            await get(client, server)
        sent = await get(client, server)
        assert sent.count(b"=") == MAX_COOKIES
        assert b"first=%d" % (count - 2) in sent


def test_cookies_of_one_response_are_limited() -> None:
    """900 cookies took 0.3 s of each response."""
    jar = make_cookie_jar()
    fields = [("set-cookie", f"c{n}=1; Path=/a/{n}") for n in range(900)]
    response = httpx.Response(200, headers=fields, request=httpx.Request("GET", "http://127.0.0.1/"))
    cookies = httpx.Client(cookies=jar).cookies
    assert_cheap(lambda: cookies.extract_cookies(response), 0.03)
    assert len(cookies.jar) == MAX_COOKIES


@pytest.mark.usefixtures("engine")
async def test_body_in_tiny_chunks_takes_little_memory() -> None:
    """8 MB in chunks of two bytes took 573 MB."""

    class Chunks(httpx.AsyncByteStream):
        async def __aiter__(self) -> AsyncIterator[bytes]:
            for _ in range(100_000):
                yield bytes([65, 66])

    tracemalloc.start()
    try:
        body = await read(httpx.Response(200, stream=Chunks()), 1 << 20)
        assert tracemalloc.get_traced_memory()[1] < 2 * (1 << 20)
    finally:
        tracemalloc.stop()
    assert body == b"AB" * 100_000


@pytest.mark.usefixtures("engine")
async def test_credentials_in_the_url_become_a_header() -> None:
    """An `Authorization` header in the definition takes precedence."""
    async with fake_http(ok) as server:
        url = server.url.replace("://", "://me:s%40cret@")
        async with open_client(url, {}, {}) as client:
            await get(client, server)
        async with open_client(url, {"Authorization": "Bearer t"}, {}) as client:
            await get(client, server)
        sent = [request.headers["authorization"] for request in server.requests]
        assert sent == ["Basic bWU6c0BjcmV0", "Bearer t"]


# ── requests without a task ─────────────────────────────────────────────────────────────────────


class ImmediateRequest:
    """A request that was sent without a task, and its outcome."""

    def __init__(self, client: HttpClient, server: FakeHttp, body: bytes = b"x") -> None:
        self.outcome: httpx.Response | httpx.TransportError | None = None
        self.over = trio.Event()
        self.hang_up = client.send_with_callback("POST", server.url, {}, body, self._then)

    def _then(self, outcome: httpx.Response | httpx.TransportError) -> None:
        assert not self.over.is_set()
        self.outcome = outcome
        self.over.set()

    async def response(self) -> httpx.Response:
        with trio.fail_after(BOUND):
            await self.over.wait()
        assert isinstance(self.outcome, httpx.Response)
        return self.outcome


async def test_request_is_sent_immediately_on_an_idle_connection() -> None:
    """It is not sent without an idle connection, nor if it exceeds the socket buffer."""
    async with fake_http(ok) as server, open_client(server.url, {}, {}) as client:
        assert ImmediateRequest(client, server).hang_up is None
        await get(client, server)
        begun = ImmediateRequest(client, server, b"first")
        assert begun.hang_up is not None
        assert complete_body(await begun.response()) == b"first"
        begun.hang_up()  # no effect: the next request owns the connection
        assert await get(client, server) == b"x"
        assert ImmediateRequest(client, server, bytes(1 << 20)).hang_up is None
        assert server.connections == 1


async def test_request_sent_without_a_task_can_be_aborted_or_fail() -> None:
    """An aborted request reports nothing; a failed one reports its error once."""
    hung_up = trio.Event()

    async def never(request: Request) -> None:
        match len(server.requests):
            case 1 | 3:
                await ok(request)
            case 2:
                await request.wait_hung_up()
                hung_up.set()
            case _:
                request.reset()

    async with fake_http(never) as server, open_client(server.url, {}, {}) as client:
        await get(client, server)
        begun = ImmediateRequest(client, server)
        assert begun.hang_up is not None
        begun.hang_up()
        with trio.fail_after(BOUND):
            await hung_up.wait()
        assert not begun.over.is_set()
        await get(client, server)
        begun = ImmediateRequest(client, server)
        with trio.fail_after(BOUND):
            await begun.over.wait()
        assert isinstance(begun.outcome, httpx.ReadError | httpx.RemoteProtocolError)


async def test_end_of_a_server_is_noticed_while_nothing_is_sent() -> None:
    """A server that only closes idle connections gets another one, which the next request uses."""
    accepted: list[trio.SocketStream] = []
    opened = trio.Event()

    async def serve(stream: trio.SocketStream) -> None:
        accepted.append(stream)
        opened.set()
        with suppress(trio.ClosedResourceError):
            async for _ in stream:
                await stream.send_all(b"HTTP/1.1 200 OK\r\nContent-Length: 1\r\n\r\nx")

    async def wait_watched() -> None:
        while not pool._idle or not pool._idle[0].is_watched:  # noqa: ASYNC110 - a test's wait
            await trio.sleep(0.01)

    ended: list[httpx.TransportError] = []
    [listener] = await trio.open_tcp_listeners(0, host="127.0.0.1")
    host, port = listener.socket.getsockname()
    pool = ConnectionPool(httpx.URL(f"http://{host}:{port}"))
    head = b"POST / HTTP/1.1\r\n"

    async def use() -> None:
        response = await pool.send("POST", head, b"x")
        assert complete_body(response) == b"x" or [part async for part in response.aiter_raw()] == [b"x"]

    listening = trio.CancelScope()

    async def listen() -> None:
        with listening:
            await trio.serve_listeners(serve, [listener], handler_nursery=nursery)

    async def watch() -> None:
        ended.append(await pool.watch_idle(lambda: False))
        nursery.cancel_scope.cancel()

    with trio.fail_after(BOUND):
        async with trio.open_nursery() as nursery:
            nursery.start_soon(watch)
            nursery.start_soon(listen)
            await use()
            await wait_watched()
            opened = trio.Event()
            await accepted[0].aclose()
            await opened.wait()  # without a request
            await wait_watched()
            await use()
            assert len(accepted) == 2
            await wait_watched()
            listening.cancel()
            await listener.aclose()
            await accepted[1].aclose()
            await trio.sleep_forever()
    pool.close()
    assert "refused" in describe_error(ended[0])

"""HTTP requests of web pages and of misbehaving or killed clients do not affect others."""

from __future__ import annotations

import itertools
import json
import socket
import threading
import time
from collections import Counter
from contextlib import ExitStack, suppress

import pytest

from mcpd.api.listeners import MAX_ESTABLISHED
from tests.e2e.conftest import Start
from tests.e2e.harness import BOUND, Daemon, Json, fake, wait_until
from tests.e2e.web import MODERN, PORT, HttpEndpoint, http_endpoint, meta, request
from tests.faults.bystander import nothing_left, resident, undisturbed
from tests.faults.measure import more_descriptors, peak_memory
from tests.stopwatch import stopwatch, within

MIB = 1 << 20
CALL = json.dumps(request("tools/call", name="echo", arguments={}, _meta=meta())).encode()
PATHS = ("/mcp", "/servers/busy/mcp", "/rpc")


def started(start: Start) -> tuple[Daemon, HttpEndpoint]:
    daemon = start({"busy": fake(), "calm": fake()}, *PORT)
    daemon.wait_connected("busy", "calm")
    with daemon.client() as client:
        client.call("busy", "echo")
        client.call("calm", "echo")
    return daemon, http_endpoint(daemon)


def counts(daemon: Daemon) -> Json:
    with daemon.client() as client:
        return dict(json.loads(client.call("busy", "counts")["output"]))


def connected(web: HttpEndpoint) -> socket.socket:
    return socket.create_connection(("127.0.0.1", web.port), timeout=BOUND)


def head(method: str, path: str, headers: dict[str, str], length: int) -> bytes:
    lines = "".join(f"{name}: {text}\r\n" for name, text in headers.items())
    return f"{method} {path} HTTP/1.1\r\n{lines}Content-Length: {length}\r\n\r\n".encode()


def right(web: HttpEndpoint, **more: str) -> dict[str, str]:
    return {
        "Host": f"127.0.0.1:{web.port}",
        "Content-Type": "application/json",
        "MCP-Protocol-Version": MODERN,
        "Mcp-Method": "tools/call",
        "Mcp-Name": "echo",
        **web.bearer,
        **{name.replace("_", "-"): text for name, text in more.items()},
    }


def answer(web: HttpEndpoint, sent: bytes) -> bytes:
    """Return everything until the daemon closes the connection or stops sending."""
    got = b""
    with connected(web) as connection:
        connection.sendall(sent)
        connection.shutdown(socket.SHUT_WR)
        while portion := connection.recv(MIB):
            got += portion
    return got


# ── pages ───────────────────────────────────────────────────────────────────────────────────────


def test_requests_of_a_page_reach_no_server(start: Start) -> None:
    """Web pages are refused even with the token: Host and Origin are checked first."""
    daemon, web = started(start)
    here = f"127.0.0.1:{web.port}"
    pages = [
        {"Origin": "http://evil.example", "Sec-Fetch-Site": "cross-site"},
        {"Origin": "http://evil.example"},
        {"Origin": "null"},
        {"Sec-Fetch-Site": "cross-site"},
        {"Sec-Fetch-Site": "same-site", "Origin": f"http://localhost:{web.port + 1}"},
        {"Host": f"evil.example:{web.port}"},
        {"Host": f"evil.example:{web.port}", "Origin": f"http://evil.example:{web.port}"},
        {"Host": f"localhost.evil.example:{web.port}", "Sec-Fetch-Site": "same-origin"},
        {"Host": f"0.0.0.0:{web.port}", "Origin": f"http://0.0.0.0:{web.port}"},
        {"Host": f"[::ffff:127.0.0.1]:{web.port}"},
    ]
    kinds = [("POST", "application/json"), ("POST", "text/plain")]
    attacks = [
        head(method, path, {**right(web), "Host": here, "Content-Type": kind, **page}, len(CALL)) + CALL
        for page, (method, kind), path in itertools.product(pages, kinds, PATHS)
    ]
    assert len(attacks) == 60
    before = counts(daemon)["seen"]
    answers = [answer(web, attack) for attack in attacks]
    statuses = Counter(each.split(b" ", 2)[1] for each in answers)
    after = counts(daemon)["seen"]
    assert statuses == {b"403": 60}
    assert not any(b"access-control" in each.lower() for each in answers)
    assert after["tools/call"] == before["tools/call"] + 1  # the request for the count itself
    # The reason for the refusal is that the request comes from a page:
    good = head("POST", "/servers/busy/mcp", {**right(web), "Connection": "close"}, len(CALL)) + CALL
    with connected(web) as connection:
        connection.sendall(good)
        assert connection.recv(MIB).startswith(b"HTTP/1.1 200 OK")


def test_preflight_gets_no_cors_headers(start: Start) -> None:
    """No page of any origin gets CORS headers."""
    _, web = started(start)
    for origin in ("http://evil.example", "null", f"http://127.0.0.1:{web.port}"):
        asked = right(web, Origin=origin, Access_Control_Request_Method="POST")
        received = answer(web, head("OPTIONS", "/mcp", asked, 0))
        assert received.split(b" ", 2)[1] in (b"403", b"405")
        assert b"access-control" not in received.lower()


# ── misbehaving clients ─────────────────────────────────────────────────────────────────────────


def test_a_body_beyond_the_limit_is_refused_before_it_is_read(start: Start) -> None:
    """413 by the declared length, or by the received bytes without one. The memory is released."""
    daemon, web = started(start)
    base = resident(daemon.pid)
    with undisturbed(daemon, "calm"):
        received = answer(web, head("POST", "/mcp", right(web), 33 * MIB))
        assert received.startswith(b"HTTP/1.1 413 ")
        with connected(web) as connection:
            lines = "".join(f"{name}: {text}\r\n" for name, text in right(web).items())
            connection.sendall(f"POST /mcp HTTP/1.1\r\n{lines}Transfer-Encoding: chunked\r\n\r\n".encode())
            with suppress(ConnectionError):
                for _ in range(40):
                    connection.sendall(b"100000\r\n" + b"x" * MIB + b"\r\n")
            assert connection.recv(MIB).startswith(b"HTTP/1.1 413 ")
    wait_until(
        lambda: resident(daemon.pid) - base < 12 * MIB,
        lambda: f"{(resident(daemon.pid) - base) / MIB:.1f} MiB are not given back",
    )


@pytest.mark.slow
def test_bodies_of_many_connections_share_one_limit(start: Start) -> None:
    """30 clients with the token send 30 MiB each. What is kept is limited, and released afterwards."""
    daemon, web = started(start)
    base = resident(daemon.pid)
    opening = head("POST", "/mcp", right(web), 31 * MIB)
    portion = bytes(MIB)

    def send(connection: socket.socket) -> None:
        with suppress(OSError):  # refused, not read while others are, or shut down
            connection.sendall(opening)
            for _ in range(30):
                connection.sendall(portion)

    with peak_memory(daemon.pid) as peak, ExitStack() as held:
        connections = [held.enter_context(connected(web)) for _ in range(30)]
        senders = [threading.Thread(target=send, args=(each,), daemon=True) for each in connections]
        for sender in senders:
            sender.start()
        end = time.monotonic() + 2 * BOUND  # a busy machine reads less in that time, and keeps as much
        for sender in senders:
            sender.join(max(0.0, end - time.monotonic()))
        for connection in connections:  # closing would not wake a sender that waits, and end no connection
            with suppress(OSError):
                connection.shutdown(socket.SHUT_RDWR)
        for sender in senders:
            sender.join(BOUND)
            assert not sender.is_alive()
    assert peak.bytes - base < 200 * MIB
    wait_until(
        lambda: resident(daemon.pid) - base < 12 * MIB,
        lambda: f"{(resident(daemon.pid) - base) / MIB:.1f} MiB are not given back",
        3 * BOUND,
    )


@pytest.mark.parametrize("framing", [f"Content-Length: {31 * MIB}", "Transfer-Encoding: chunked"])
def test_client_without_the_token_cannot_send_a_body(framing: str, start: Start) -> None:
    """It is refused at the head, on every path, so that nothing is kept for anybody."""
    daemon, web = started(start)
    with undisturbed(daemon, "calm"), ExitStack() as held:
        for path in ("/", "/health", "/page/socket", "/.well-known/x", "/page/session", "/mcp") * 10:
            connection = held.enter_context(connected(web))
            head = f"POST {path} HTTP/1.1\r\nHost: 127.0.0.1:{web.port}\r\n{framing}\r\n\r\n"
            connection.sendall(head.encode())
            if path == "/page/session" and "chunked" in framing:
                connection.sendall(b"401\r\n" + b"x" * 1025 + b"\r\n")
            status = b"401" if path == "/mcp" else b"413"
            assert connection.recv(MIB).startswith(b"HTTP/1.1 " + status)


def test_client_without_the_token_cannot_fill_the_log(start: Start) -> None:
    """Ten thousand pipelined requests that offer an upgrade, on each of ten connections."""
    daemon, web = started(start)
    offer = f"GET /health HTTP/1.1\r\nHost: 127.0.0.1:{web.port}\r\nConnection: Upgrade\r\nUpgrade: x\r\n\r\n"
    before = len(daemon.log)
    with nothing_left(daemon), undisturbed(daemon, "calm"):
        for _ in range(10):
            with connected(web) as connection, suppress(ConnectionError):
                connection.sendall(offer.encode() * 10_000)
                assert connection.recv(MIB).startswith(b"HTTP/1.1 200 OK")
    assert len(daemon.log) - before < 2000


@pytest.mark.slow
def test_connections_without_the_token_do_not_keep_others_out(start: Start) -> None:
    """Ten times as many as there are places; each tries to stay in the middle of a request."""
    daemon, web = started(start)
    starts = (("/health", ""), ("/health", "\r\n"), ("/page/session", "\r\n1\r\nx\r\n"), ("/mcp", ""))
    fields = f"Host: 127.0.0.1:{web.port}\r\nTransfer-Encoding: chunked\r\n"
    sent = [f"POST {path} HTTP/1.1\r\n{fields}{rest}".encode() for path, rest in starts]
    good = head("POST", "/servers/calm/mcp", right(web), len(CALL)) + CALL
    with nothing_left(daemon), undisturbed(daemon, "calm"), connected(web) as working:
        working.sendall(good)
        assert working.recv(MIB).startswith(b"HTTP/1.1 200 OK")
        with more_descriptors(), ExitStack() as held:
            for number in range(10 * MAX_ESTABLISHED):
                held.enter_context(connected(web)).sendall(sent[number % len(sent)])
                if number % 200 == 0:
                    with connected(web) as late:
                        late.sendall(good)
                        assert late.recv(MIB).startswith(b"HTTP/1.1 200 OK")
            working.sendall(good)
            assert working.recv(MIB).startswith(b"HTTP/1.1 200 OK")


@pytest.mark.slow
def test_slow_headers_time_out_without_delaying_others(start: Start) -> None:
    """Slowloris: each of 300 connections would hold a place for five seconds."""
    daemon, web = started(start)
    with nothing_left(daemon), undisturbed(daemon, "calm"), ExitStack() as held:
        slow = []
        for _ in range(300):
            slow.append(held.enter_context(connected(web)))
            slow[-1].sendall(b"POST /mcp HTTP/1.1\r\nHost: ")
        with connected(web) as late, stopwatch() as watch:
            late.sendall(f"GET /health HTTP/1.1\r\nHost: 127.0.0.1:{web.port}\r\n\r\n".encode())
            assert late.recv(MIB).startswith(b"HTTP/1.1 200 OK")
            assert within(watch.seconds, 5)
        assert slow[-1].recv(MIB).startswith(b"HTTP/1.1 408 ")


def test_client_that_does_not_read_a_flood_is_disconnected(start: Start) -> None:
    """A client that does not read 100 MB of notifications loses its own connection only."""
    daemon, web = started(start)
    base = resident(daemon.pid)
    flood = {
        "method": "notifications/message",
        "count": 20000,
        "params": {"level": "error", "data": "x" * 5000},
    }
    body = request("tools/call", name="notify", arguments=flood, _meta=meta())
    body["params"]["_meta"]["io.modelcontextprotocol/logLevel"] = "debug"
    content = json.dumps(body).encode()
    with undisturbed(daemon, "calm", slowest=1.0), socket.socket() as deaf:
        deaf.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        deaf.connect(("127.0.0.1", web.port))
        deaf.sendall(head("POST", "/servers/busy/mcp", right(web, Mcp_Name="notify"), len(content)) + content)
        time.sleep(2)  # the duration of the flood: no event reports its end to a disconnected client
        wait_until(lambda: resident(daemon.pid) - base < 24 * MIB, lambda: "the memory is not given back")
    assert daemon.process.poll() is None

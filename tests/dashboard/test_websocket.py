"""The page's WebSocket alone: the test is the other side in memory, and the clock jumps over idle time."""

from __future__ import annotations

import logging
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from types import SimpleNamespace
from typing import Any

import attrs
import pytest
import trio
import trio.testing

from mcpd.api import websocket
from mcpd.api.control.access import PAGE
from mcpd.api.http.parser import Head
from mcpd.api.websocket import ControlSocket
from mcpd.transports.guarded_websocket import PING_INTERVAL, PONG_TIMEOUT

ASKED = Head(
    method="GET",
    path="/page/socket",
    query="",
    headers={b"sec-websocket-key": b"dGhlIHNhbXBsZSBub25jZQ=="},
    repeated=frozenset(),
    is_11=True,
    keep_alive=True,
    upgrade=b"websocket",
)
PING = b"\x89\x80\0\0\0\0"
"""As a browser sends it: masked, with nothing in it."""


@attrs.define(eq=False)
class Browser:
    """The browser's end of the socket, without a WebSocket library."""

    page: ControlSocket
    stream: trio.abc.Stream
    scope: trio.CancelScope = attrs.field(factory=trio.CancelScope)
    """All of the daemon's side."""
    ended: trio.Event = attrs.field(factory=trio.Event)
    got: bytes = b""

    async def read(self, size: int) -> bytes:
        """Return the next bytes; fewer only at the end."""
        while len(self.got) < size:
            data = await self.stream.receive_some()
            if not data:
                break
            self.got += data
        taken, self.got = self.got[:size], self.got[size:]
        return taken

    async def pinged(self) -> bytes:
        """Return the content of the next ping."""
        assert await self.read(2) == b"\x89\x04"
        return await self.read(4)


@asynccontextmanager
async def conversing() -> AsyncIterator[Browser]:
    near, far = trio.testing.memory_stream_pair()
    calls = SimpleNamespace(cancel_all=lambda calls, reason: None)
    nothing: Any = SimpleNamespace(core=None, calls=calls)  # no method is called, so there is no handler
    browser = Browser(ControlSocket(nothing, nothing, PAGE), far)

    async def run() -> None:
        with browser.scope:
            await browser.page.run(ASKED, near)
        await near.aclose()
        browser.ended.set()

    async with trio.open_nursery() as nursery:
        nursery.start_soon(run)
        while not browser.got.endswith(b"\r\n\r\n"):
            browser.got += bytes(await far.receive_some())
        assert browser.got.startswith(b"HTTP/1.1 101 ")
        assert b"s3pPLMBiTxaQ9kYGzzhZRbK+xOo=" in browser.got  # RFC 6455, 1.3
        browser.got = b""
        yield browser
        nursery.cancel_scope.cancel()


async def test_silent_page_is_pinged_and_disconnected_without_a_pong(
    autojump_clock: trio.testing.MockClock, caplog: pytest.LogCaptureFixture
) -> None:
    """A laptop that was closed sends no goodbye. Its calls are then cancelled, and its seat becomes free."""
    caplog.set_level(logging.INFO)
    async with conversing() as browser:
        began = trio.current_time()
        with trio.fail_after(3600):
            for _ in range(100):
                await browser.stream.send_all(b"\x8a\x84\0\0\0\0" + await browser.pinged())
            assert not browser.ended.is_set()
            assert trio.current_time() - began == pytest.approx(100 * PING_INTERVAL)
            await browser.pinged()
            await browser.ended.wait()
        assert trio.current_time() - began < 102 * PING_INTERVAL + PONG_TIMEOUT
    assert "did not respond to a ping within 10 s" in caplog.text


@pytest.mark.parametrize(
    ("first", "more"), [(b"\x01\x80\0\0\0\0", b"\0\x80\0\0\0\0"), (b"", PING)], ids=["fragments", "pings"]
)
async def test_endless_frames_without_a_message_end_the_connection(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, first: bytes, more: bytes
) -> None:
    """The limit of a message's length does not count empty fragments, which were all kept."""
    monkeypatch.setattr(websocket, "MAX_MESSAGE", 1000)
    caplog.set_level(logging.INFO)
    async with conversing() as browser:
        await browser.stream.send_all(first)
        with trio.fail_after(120):
            while not browser.ended.is_set():
                with suppress(trio.BrokenResourceError):
                    await browser.stream.send_all(more * 1000)
                await trio.testing.wait_all_tasks_blocked()
    assert "without a complete message" in caplog.text


async def test_close_reason_is_sent_even_if_the_daemon_stops() -> None:
    async with conversing() as browser:
        browser.page.close("mcpd is stopping")
        browser.scope.cancel()
        with trio.fail_after(120):
            assert (await browser.read(20))[2:] == (1001).to_bytes(2) + b"mcpd is stopping"
            await browser.ended.wait()


@pytest.mark.parametrize(
    "frame",
    [b"\x83\x80\0\0\0\0", b"\x81\x81\0\0\0\0\xff", b"\x82\x81\0\0\0\0x"],
    ids=["opcode", "utf-8", "binary"],
)
async def test_invalid_text_ends_the_connection(frame: bytes) -> None:
    async with conversing() as browser:
        await browser.stream.send_all(frame)
        with trio.fail_after(120):
            await browser.ended.wait()

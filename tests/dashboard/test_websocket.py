"""The page's WebSocket by itself: its other side is bytes, and an hour of silence takes no time."""

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

from mcpd.api.dashboard import websocket
from mcpd.api.dashboard.websocket import DashboardSocket
from mcpd.api.http_server.parser import Head
from mcpd.support.websocket import PING_INTERVAL, PONG_TIMEOUT

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
    """The browser's end; all of a conversation that it has to make itself."""

    page: DashboardSocket
    stream: trio.abc.Stream
    scope: trio.CancelScope = attrs.field(factory=trio.CancelScope)
    """All of the daemon's side."""
    ended: trio.Event = attrs.field(factory=trio.Event)
    got: bytes = b""

    async def read(self, size: int) -> bytes:
        """The next bytes; fewer when that was all."""
        while len(self.got) < size:
            data = await self.stream.receive_some()
            if not data:
                break
            self.got += data
        taken, self.got = self.got[:size], self.got[size:]
        return taken

    async def pinged(self) -> bytes:
        """What is in the ping that comes next."""
        assert await self.read(2) == b"\x89\x04"
        return await self.read(4)


@asynccontextmanager
async def conversing() -> AsyncIterator[Browser]:
    near, far = trio.testing.memory_stream_pair()
    nothing: Any = SimpleNamespace(core=None)  # no method is called: nobody is there to answer
    browser = Browser(DashboardSocket(nothing, nothing), far)

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


async def test_a_silent_page_is_asked_and_left_when_it_does_not_answer(
    autojump_clock: trio.testing.MockClock, caplog: pytest.LogCaptureFixture
) -> None:
    """A laptop that was shut tells nobody. What it had under way is cancelled then, and its seat is free."""
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
async def test_what_never_becomes_a_message_is_not_listened_to_for_ever(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, first: bytes, more: bytes
) -> None:
    """No limit of a message's length counts what has none: fragments with nothing in them were all kept."""
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


async def test_any_number_of_messages_is_listened_to(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(websocket, "MAX_MESSAGE", 1000)
    text = b'{"jsonrpc":"2.0","method":"unknown"}'
    question = b'{"jsonrpc":"2.0","method":"unknown","id":1}'
    async with conversing() as browser:
        for _ in range(100):
            await browser.stream.send_all((b"\x81%c\0\0\0\0%b" % (0x80 + len(text), text)) * 100)
            await trio.testing.wait_all_tasks_blocked()
        await browser.stream.send_all(b"\x81%c\0\0\0\0%b" % (0x80 + len(question), question))
        with trio.fail_after(120):
            assert await browser.read(1) == b"\x81"
        assert not browser.ended.is_set()


async def test_who_is_sent_away_is_told_even_if_the_daemon_ends_with_it() -> None:
    async with conversing() as browser:
        browser.page.close("mcpd is stopping")
        browser.scope.cancel()
        with trio.fail_after(120):
            assert (await browser.read(20))[2:] == (1001).to_bytes(2) + b"mcpd is stopping"
            await browser.ended.wait()


async def test_a_ping_in_the_middle_of_the_goodbye_is_no_error() -> None:
    """The library's reader breaks on it: nothing may be answered any more."""
    async with conversing() as browser:
        browser.page.close("enough")
        assert await browser.read(10) == b"\x88\x08" + (1001).to_bytes(2) + b"enough"
        await browser.stream.send_all(PING)
        with trio.fail_after(120):
            await browser.ended.wait()
        assert await browser.read(1) == b""


@pytest.mark.parametrize(
    ("frame", "code"),
    [(b"\x83\x80\0\0\0\0", 1002), (b"\x81\x81\0\0\0\0\xff", 1007), (b"\x82\x81\0\0\0\0x", 1003)],
    ids=["opcode", "utf-8", "binary"],
)
async def test_what_is_no_text_ends_with_the_code_for_it(frame: bytes, code: int) -> None:
    async with conversing() as browser:
        await browser.stream.send_all(frame)
        goodbye = await browser.read(4)
        assert (goodbye[0], int.from_bytes(goodbye[2:])) == (0x88, code)
        with trio.fail_after(120):
            await browser.ended.wait()

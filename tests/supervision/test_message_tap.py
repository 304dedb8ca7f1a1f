"""The message tap: which messages it shows, what it masks, and its limits."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import httpx
import msgspec
import pytest
import trio
import trio.testing

from mcpd.model.events import MessageDirection, TapFrame
from mcpd.privacy.logs import TRAFFIC_LOGGER
from mcpd.privacy.redact import Redactor
from mcpd.supervision.message_tap import (
    MAX_FRAMES,
    ConnectionTrace,
    ServerTaps,
    Tap,
)
from tests.supervision.peer import Life, living


class Link:
    """The part of a channel that a tap uses."""

    tap: Any = None


def tapping(*secrets: str) -> tuple[ServerTaps, Link]:
    redactor = Redactor()
    redactor.add(secrets)
    taps, link = ServerTaps("it", redactor.mask), Link()
    taps.on_connecting(link)  # type: ignore[arg-type]  # see Link
    return taps, link


async def following(tap: Tap) -> TapFrame:
    with trio.fail_after(30):
        return await tap.next()


def request(number: int, method: str, **params: object) -> bytes:
    return json.dumps({"jsonrpc": "2.0", "id": number, "method": method, "params": params}).encode()


async def test_tap_shows_messages_unchanged_with_their_method() -> None:
    """A response is shown with the method of its request."""
    taps, link = tapping()
    with taps.open_tap((), 1000) as frames:
        link.tap("→", request(1, "tools/call", name="echo"))
        link.tap("←", b'{"jsonrpc":"2.0","id":1,"result":{"big":1180591620717411303424}}')
        asked, answered = await following(frames), await following(frames)
    assert (asked.direction, asked.method, asked.id) == (MessageDirection.TO_SERVER, "tools/call", "1")
    assert (answered.direction, answered.method) == (MessageDirection.FROM_SERVER, "tools/call")
    assert answered.message == msgspec.Raw(
        b'{"jsonrpc":"2.0","id":1,"result":{"big":1180591620717411303424}}'
    )


async def test_filter_by_method_includes_the_responses() -> None:
    """The filter is a pattern such as `tools/*`."""
    taps, link = tapping()
    with taps.open_tap(("tools/*",), 1000) as frames:
        link.tap("→", request(1, "ping"))
        link.tap("←", b'{"id":1,"result":{}}')
        link.tap("→", request(2, "tools/list"))
        link.tap("←", b'{"id":2,"result":{}}')
        methods = [(await following(frames)).id for _ in range(2)]
    assert methods == ["2", "2"]


@pytest.mark.parametrize(
    "frame",
    [
        request(1, "tools/call", arguments={"note": "it is hunter2!!"}),
        request(1, "tools/call", arguments={"password": "never-told"}),
        request(1, "tools/call", arguments={"url": "https://ann:never-told@host/?token=never-told"}),
        b'{"id":1,"result":{"text":"Authorization: Bearer never-told"}}',
        b'{"id":1,"result":{"quoted":"sl\\"ash\\\\ed"}}',
        b'{"id":1,"result":{"umlaut":"gr\\u00fcnspecht"}}',
        b'{"id":1,"result":{"text":"{\\"password\\": \\"never-told\\"}"}}',
        b"junk with hunter2!! in it",
    ],
)
async def test_secrets_are_masked_by_value_name_and_pattern(frame: bytes) -> None:
    """Secrets are masked in every JSON spelling."""
    taps, link = tapping("hunter2!!", 'sl"ash\\ed', "grünspecht")
    with taps.open_tap((), 1000) as frames:
        link.tap("←", frame)
        shown = await following(frames)
    text = bytes(shown.message).decode() if shown.message is not None else shown.text
    assert "***" in text
    for secret in ("hunter2!!", "never-told", "ash", "specht"):
        assert secret not in text


async def test_secret_at_the_cut_is_masked() -> None:
    """Masking precedes truncation."""
    taps, link = tapping("hunter2!!")
    for before in range(85, 105):
        with taps.open_tap((), 100) as frames:
            link.tap("←", b"x" * before + b"hunter2!!" + b"y" * 10_000)
            shown = await following(frames)
        assert shown.cut
        assert shown.bytes == before + 9 + 10_000
        assert "hunt" not in shown.text
        assert len(shown.text) <= 100


async def test_frames_beyond_the_queue_limit_are_dropped_and_counted() -> None:
    """The queue is limited in frames and in bytes."""
    taps, link = tapping()
    with taps.open_tap((), 100) as frames:
        for number in range(MAX_FRAMES + 7):
            link.tap("→", request(number, "ping"))
        first = await following(frames)
        link.tap("→", request(9999, "ping"))
        rest = [await following(frames) for _ in range(MAX_FRAMES)]
    assert first.dropped == 7
    assert sum(frame.dropped for frame in rest) == 0
    assert rest[-1].id == "9999"


async def test_frame_above_the_size_limit_is_shown_alone() -> None:
    """An empty queue accepts one frame of any size; the next frame has to wait."""
    taps, link = tapping()
    big = b'{"id":1,"result":"' + b"x" * 9_000_000 + b'"}'
    with taps.open_tap((), 100) as frames:
        link.tap("←", big)
        link.tap("←", b'{"id":2,"result":{}}')
        shown = await following(frames)
    assert (shown.bytes, shown.cut, shown.dropped) == (len(big), True, 1)


async def test_tap_survives_a_reconnect(tmp_path: Path, autojump_clock: trio.testing.MockClock) -> None:
    """The tap reports the end of one connection and the start of the next, and shows the second handshake."""
    async with living(tmp_path, Life(lasts=1), Life(), era="legacy") as world:
        await world.wait_connected()
        seen = []
        with world.server.taps.open_tap((), 1000) as tap:
            while True:
                frame = await tap.next()
                seen.append(frame.text if frame.direction is MessageDirection.NOTE else frame.method)
                if frame.method == "tools/list" and frame.direction is MessageDirection.FROM_SERVER:
                    break
    assert "connection closed" in seen
    assert seen.index("connection closed") < seen.index("opening a connection")
    assert "initialize" in seen


def test_session_id_is_shown_in_part(caplog: pytest.LogCaptureFixture) -> None:
    """HTTP+SSE has the session id in the URL. A part of it tells sessions apart but does not grant access."""
    trace = ConnectionTrace("it", str)
    trace.debug = True
    request = httpx.Request("POST", "http://h/message?x=1&sessionId=d2de7cd6-3c39-4eac&y=2")
    with caplog.at_level("DEBUG", TRAFFIC_LOGGER):
        trace.log_http_request(request, httpx.Response(202), 0.002)
    assert "POST http://h/message?x=1&sessionId=d2de7cd6…&y=2: HTTP 202 (2.0 ms)" in caplog.text


def test_secret_at_the_cut_of_a_debug_message_is_not_logged(
    caplog: pytest.LogCaptureFixture,
) -> None:
    """Truncation must not leave the beginning of a secret unmasked."""
    redactor = Redactor()
    redactor.add(["hunter2-hunter2"])
    trace = ConnectionTrace("it", redactor.mask)
    with caplog.at_level("DEBUG", TRAFFIC_LOGGER):
        for before in range(1970, 2000):
            trace.log_frame("→", b'{"' + b"x" * before + b"hunter2-hunter2" + b"y" * 9000)
    assert len(caplog.messages) == 30
    assert not [line for line in caplog.messages if "hunt" in line]

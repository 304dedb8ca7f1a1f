"""A client that comes back misses nothing and is told nothing twice, within what is kept."""

from __future__ import annotations

import json

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from mcpd.api.mcp import streams as streams_module
from mcpd.api.mcp.frames import sse_event
from mcpd.api.mcp.streams import MAX_KEPT_BYTES, KeptBytes, SessionStreams
from tests.api.mcp_endpoint.line import Line
from tests.sampling import scaled


def test_event_has_one_data_line_for_any_frame() -> None:
    """Servers pretty-print; a line break outside of a string is only a blank."""
    assert sse_event(b'{"a":\r\n 1}\n') == b'event: message\ndata: {"a":   1}\n\n'


@settings(derandomize=True, max_examples=scaled(200), deadline=None)
@given(st.lists(st.tuples(st.integers(0, 5), st.integers(0, 9)), max_size=12))
def test_every_event_arrives_once_and_in_order_despite_disconnects(spells: list[tuple[int, int]]) -> None:
    """In each spell some events are sent, and the client has read only so many when the line breaks."""
    streams = SessionStreams(send_priming_event=True, of_all=KeptBytes())
    stream = streams.new()
    line = Line()
    stream.attach(line.exchange)
    received: list[object] = []
    last, sent = "", 0
    for count, read in [*spells, (1, 99)]:
        for _ in range(count):
            sent += 1
            stream.send(b"%d" % sent)
        line.exchange.hang_up("the line broke")
        for each in line.events[: read + (not last)]:  # the first event only brings an id
            last = each.id or last
            received += [json.loads(each.data)] if each.data else []
        sent += 1
        stream.send(b"%d" % sent)  # to nobody
        found = streams.find(last)
        assert found is not None
        line = Line()
        found[0].attach(line.exchange, found[1])
    assert [*received, *line.received] == [*range(1, sent + 1)]


def test_resumed_finished_stream_is_replayed_and_ends() -> None:
    streams = SessionStreams(send_priming_event=False, of_all=KeptBytes())
    stream, line, late = streams.new(), Line(), Line()
    stream.attach(line.exchange)
    assert line.events == []  # older clients would take an event without data for a message
    stream.send(b"1")
    line.exchange.hang_up("gone")
    stream.send(b"2")
    stream.end()
    stream.attach(late.exchange, 1)
    assert late.received == [2]
    assert late.over


@pytest.mark.parametrize(
    ("key", "named"),
    [(b"1", b"1"), (b'"a:1"', b'"a:1"'), (b'"\xc3\xa9"', b""), (b"", b""), (b'"%b"' % (b"x" * 100), b"")],
)
def test_event_id_names_the_request(key: bytes, named: bytes) -> None:
    streams = SessionStreams(send_priming_event=True, of_all=KeptBytes())
    line = Line()
    stream = streams.new(key)
    stream.attach(line.exchange)
    stream.send(b"1")
    assert [streams_module.request_of(event.id or "") for event in line.events] == [named, named]
    assert streams.find(line.events[-1].id or "") == (stream, 1)


@pytest.mark.parametrize("value", ["{}", "1 2", "null", "1.5", '"', "\xff", "[1]", ""])
def test_forged_event_id_names_no_request(value: str) -> None:
    assert streams_module.request_of(f"00000000-1-0-{value}") == b""


def test_kept_events_are_bounded_and_dropped_ones_are_unknown() -> None:
    """The oldest events are dropped first, and an ended stream without events is forgotten."""
    streams = SessionStreams(send_priming_event=True, of_all=KeptBytes())
    first, second, line, early = streams.new(), streams.new(), Line(), Line()
    first.attach(early.exchange)
    first.send(b"1")
    dropped = str(early.events[-1].id)
    assert streams.find(dropped) is not None
    first.end()
    for _ in range(100):
        second.send(b'"%b"' % (b"x" * (MAX_KEPT_BYTES // 10)))
    assert streams.find(dropped) is None
    second.attach(line.exchange, 0)
    assert 8 <= len(line.received) <= 10
    second.send(b'"%b"' % (b"x" * (2 * MAX_KEPT_BYTES)))
    late = Line()
    second.attach(late.exchange, 100)
    assert len(late.received) == 1  # the last one is kept whatever its size


def test_unrelated_message_is_sent_once_or_waits_for_a_stream() -> None:
    """2025-11-25: never the same message on two streams. Waiting, each message is there once."""
    streams = SessionStreams(send_priming_event=False, of_all=KeptBytes())
    for frame in (b"1", b"2", b"1"):
        streams.send_unrelated(frame)
    lines = [Line(), Line()]
    for line in lines:
        stream = streams.new(standalone=True)
        stream.attach(line.exchange)
        streams.deliver_pending(stream)
    assert lines[0].received == [1, 2]
    streams.send_unrelated(b"3")
    lines[1].exchange.hang_up("gone")
    streams.send_unrelated(b"4")
    assert [line.received for line in lines] == [[1, 2, 4], [3]]
    lines[0].exchange.hang_up("gone")
    for n in range(2000):
        streams.send_unrelated(b"%d" % n)
    late = Line()
    stream = streams.new(standalone=True)
    stream.attach(late.exchange)
    streams.deliver_pending(stream)
    assert late.received == [*range(1000, 2000)]


def test_messages_that_wait_for_a_stream_are_bounded_by_bytes() -> None:
    """Ten times what a server was found to pin."""
    streams = SessionStreams(send_priming_event=False, of_all=KeptBytes())
    for n in range(3000):
        streams.send_unrelated(b'{"n": %d, "x": "%b"}' % (n, b"x" * 1000))
    line = Line()
    stream = streams.new(standalone=True)
    stream.attach(line.exchange)
    streams.deliver_pending(stream)
    assert 400 < len(line.received) <= MAX_KEPT_BYTES // 1000
    assert line.received[-1]["n"] == 2999  # type: ignore[index]


def test_all_sessions_together_keep_a_limited_number_of_bytes(monkeypatch: pytest.MonkeyPatch) -> None:
    """The last event of each session is kept whatever its size, so the sessions need a limit together."""
    monkeypatch.setattr(streams_module, "MAX_KEPT_BY_ALL", 1_000_000)
    kept = KeptBytes()
    sessions = [SessionStreams(send_priming_event=False, of_all=kept) for _ in range(10)]
    for session in sessions:
        session.new().send(b'"%b"' % (b"x" * 400_000))
        assert kept.used <= 1_000_000
    assert kept.used > 800_000
    for session in sessions:
        session.close()
        session.new().send(b"late")
    assert kept.used == 0

"""What is written together, and what is not."""

from __future__ import annotations

from ctl.bridge.write_buffer import WriteBuffer
from mcpd.wire.message import notification, result


def test_response_is_not_written_before_progress_has_been_read() -> None:
    """The TypeScript SDK ignores progress that it reads in one portion with the response."""
    progress, response = notification("notifications/progress", b'{"progress":1}'), result(b"1", b"{}")
    events: list[bytes] = []
    buffer = WriteBuffer()

    def write(data: bytes | memoryview) -> int:
        events.append(bytes(data))
        return len(data)

    for frames in [progress, progress, response, response], [progress], [response]:
        for frame in frames:
            buffer.put(frame)
        buffer.flush(write, lambda: events.append(b"read"))
    together = [progress * 2, b"read", response * 2]
    assert events == [*together, progress, b"read", response]

"""Batches are counted before their messages are parsed."""

from __future__ import annotations

import pytest

from mcpd.api.mcp.frames import MAX_MESSAGES, parse_batch
from mcpd.wire.message import BadFrame
from tests.stopwatch import assert_cheap


def test_batch_of_the_greatest_length_is_parsed() -> None:
    parsed = parse_batch(b"[" + b",".join([b'{"id":1,"method":"ping"}'] * MAX_MESSAGES) + b"]")
    assert [message.method for message in parsed] == ["ping"] * MAX_MESSAGES


@pytest.mark.parametrize(
    "batch", [b"[]", b"[" + b"1," * MAX_MESSAGES + b"1]", b"[" + b"{}," * 10**7 + b"{}]"]
)
def test_longer_batch_is_refused_at_once(batch: bytes) -> None:
    """Ten million messages took 3 s and 1.4 GiB."""

    def parse() -> None:
        with pytest.raises(BadFrame, match="a batch must have 1 to 100 messages"):
            parse_batch(batch)

    assert_cheap(parse, 0.05)

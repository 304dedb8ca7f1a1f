"""What can be read of a message of which only the beginning and the end are known."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from mcpd.wire.limits import DroppedMessage, is_response
from mcpd.wire.message import parse
from tests.sampling import scaled
from tests.stopwatch import assert_cheap

_TEXT = 'a,"id":5}, "method":"x", ]}\\ \n\U0001f389'
JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(_TEXT),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text("adeimoht"), inner, max_size=4),
)
LONG = st.one_of(
    JSON.map(lambda value: {"text": ',"id":5}' * 200, "value": value}), st.text(_TEXT, min_size=1025)
)


def dropped(line: bytes, *cuts: int) -> DroppedMessage:
    message = DroppedMessage("too much")
    for start, end in zip((0, *cuts), (*cuts, len(line)), strict=True):
        message.add(line[start:end])
    return message


@settings(derandomize=True, max_examples=scaled(200), deadline=None)
@given(st.data())
def test_envelope_is_read_wherever_the_long_member_is(data: st.DataObject) -> None:
    """In any order of the members, with any spaces, and in any portions."""
    key = data.draw(st.integers(0, 10**19) | st.text(max_size=20))
    members: dict[str, Any] = data.draw(
        st.sampled_from(
            (
                {"jsonrpc": "2.0", "id": key, "result": ...},
                {"jsonrpc": "2.0", "id": key, "error": ...},
                {"jsonrpc": "2.0", "id": key, "method": "some/method", "params": ...},
                {"jsonrpc": "2.0", "method": "some/method", "params": ...},
                {"id": key, "result": ...},
            )
        )
    )
    order = data.draw(st.permutations(list(members)))
    long = data.draw(LONG)
    spaces = data.draw(st.sampled_from((None, (",", ":"), (" , ", " : "))))
    line = json.dumps(
        {name: long if members[name] is ... else members[name] for name in order},
        separators=spaces,
        ensure_ascii=data.draw(st.booleans()),
    ).encode() + data.draw(st.sampled_from((b"", b"\r", b" ")))
    cuts = sorted(data.draw(st.lists(st.integers(0, len(line)), max_size=4)))

    message, whole = dropped(line, *cuts).envelope(), parse(line)
    assert message is not None
    assert (message.key, message.method, is_response(message)) == (
        whole.key,
        whole.method,
        is_response(whole),
    )


@pytest.mark.parametrize(
    ("line", "key"),
    [
        (b'{"jsonrpc":"2.0","id":7,"result":[[', b"7"),
        (b'{"id": 7 , "jsonrpc" : "2.0", "error":{', b"7"),
        (b'\xef\xbb\xbf{"id":7,"result":[', b"7"),
        (b'{"result":{"id":9},"jsonrpc":"2.0","id":7}', b"7"),
        (b'{"jsonrpc":"2.0","result":[],"id":7}\r', b"7"),
        (b'{"jsonrpc":"2.0","id":"7","result":[', b'"7"'),
        (b'{"result":{"id":9}}', b""),
        (b'{"result":[{"id":9}', b""),
        (b'{"jsonrpc":"2.0","id":7,"method":"x","params":{"result":', None),
        (b'{"method":"x","params":{[,"id":7}', None),
        (b'{"params":{"result":1},"id":7}', None),
        (b'{"level":"info","id":7,"msg":"result"', None),
        (b'[{"jsonrpc":"2.0","id":7,"result":[[', None),
        (b"no json at all", None),
    ],
)
def test_only_a_response_is_taken_for_one(line: bytes, key: bytes | None) -> None:
    """A request of a server must not end a call of mcpd with the same id."""
    message = dropped(line).envelope()
    assert (message.key if message is not None and is_response(message) else None) == key


@pytest.mark.parametrize(
    ("line", "found"),
    [
        (b'{"jsonrpc":"2.0","id":7,"method":"x","params":[', b"7"),
        (b'{"id" : "a b" , "method":"x","params":{', b'"a b"'),
        (b'{"method":"x","params":[[],[]],"id":-3}', b"-3"),
        (b'{"id":null,"method":"x","params":{', b""),
        (b'{"id":[1],"method":"x"}', b""),
        (b"", b""),
        (b'{"params":{"arguments":{"id":5,"x":"{[', b""),
        (b'{"params":{"id":5,"x":"\\"{a","id":5}},"jsonrpc":"2.0","id":8}', b"8"),
        (b'{"id":9,"params":{"id":5,"x":"\\"{a","id":5},"x":"xxxxxx"}}', b"9"),
        (b'{"id":9,"result":{"id":5', b""),
    ],
)
def test_id_of_a_request_is_found(line: bytes, found: bytes) -> None:
    """The id inside of `params` is not the request's. A response gets no response."""
    assert dropped(line).request_id() == found


@pytest.mark.parametrize("end", [b',"a":1', b',"a":"', b',"a":"x\\"', b"}", b", ", b',"a" : "\\', b"\n"])
def test_hostile_end_costs_little(end: bytes) -> None:
    """The servers' messages are handled in the event loop."""
    message = dropped(b'{"jsonrpc":"2.0","result":' + end * 1024)
    assert_cheap(message.envelope, 0.005)

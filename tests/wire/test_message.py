"""Envelopes are read and written; what is inside keeps every byte."""

from __future__ import annotations

import json
from contextlib import suppress
from typing import Any

import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from mcpd.wire import message as wire
from mcpd.wire.message import ABSENT, BadFrame
from mcpd.wire.request_meta import merge_meta
from tests.sampling import scaled

numbers = st.one_of(
    st.integers(-(10**40), 10**40).map(str),
    st.sampled_from(["1.10", "-0.0", "1E+400", "1e-7", "0.1e1", "100000000000000000000.0"]),
)
strings = st.one_of(
    st.text(max_size=10).map(json.dumps),
    st.text(st.characters(exclude_categories=("Cs", "Cc"), exclude_characters='"\\'), max_size=8).map(
        lambda text: f'"{text}"'
    ),
    st.sampled_from(
        [r'"\u0041\/\ud83d\ude00"', r'"\\u0041"', '"\\"_meta\\""', '"progressToken"', '"\u2028"']
    ),
)
spaces = st.sampled_from(["", " ", "  \t"])


def documents(inner: st.SearchStrategy[str]) -> st.SearchStrategy[str]:
    pairs = st.tuples(strings, spaces, inner)
    members = st.lists(pairs, max_size=4).map(lambda found: ",".join(f"{k}:{s}{v}" for k, s, v in found))
    return st.one_of(
        members.map(lambda text: f"{{{text}}}"),
        st.lists(inner, max_size=4).map(lambda found: "[" + " , ".join(found) + "]"),
    )


values = st.recursive(
    st.one_of(numbers, strings, st.sampled_from(["true", "false", "null"])), documents, max_leaves=12
)
objects = st.lists(st.tuples(strings, spaces, values), max_size=5).map(
    lambda found: "{" + ",".join(f"{key}{space}:{value}" for key, space, value in found) + "}"
)


@settings(derandomize=True, max_examples=scaled(300))
@given(values, spaces, st.sampled_from(["result", "params", "error"]))
def test_a_member_keeps_every_byte(value: str, space: str, member: str) -> None:
    """Big integers, float text, key order, duplicate keys, escapes, spacing."""
    line = f'{{"jsonrpc":"2.0",{space}"id":{space}7,"{member}"{space}:{space}{value}{space}}}'.encode()
    message = wire.parse(line)

    assert bytes(getattr(message, member)) == value.encode()
    assert message.key == b"7"
    for frame in (wire.result(b"1", getattr(message, member)), wire.error(b"1", getattr(message, member))):
        assert value.encode() in frame
        assert frame.count(b"\n") == 1


@settings(derandomize=True, max_examples=scaled(300))
@given(
    objects, st.booleans(), st.sampled_from([b"", b'"progressToken":5', b'"a.b/c":{"x":1},"progressToken":9'])
)
def test_stamping_changes_no_byte_but_ours(params: str, with_meta: bool, ours: bytes) -> None:
    """Our `_meta` takes the place of the client's token and of reserved names; the rest stays."""
    theirs = '"_meta":{"progressToken":"theirs","io.modelcontextprotocol/x":1,"own":1.10,"more":1E+400}'
    if with_meta:
        params = f"{{{theirs}" + ("," if params != "{}" else "") + params[1:]
    before = wire.members(params.encode())
    assume(with_meta or "_meta" not in before)  # one that is no object is another test's
    after = wire.members(merge_meta(params.encode(), ours))
    given, meta = before.pop("_meta", b"{}"), after.pop("_meta", b"{}")

    assert {name: bytes(raw) for name, raw in after.items()} == {
        name: bytes(raw) for name, raw in before.items()
    }
    if with_meta and bytes(given).startswith(b'{"progressToken"'):
        kept = {name: bytes(raw) for name, raw in wire.members(meta).items()}
        expected = {name: bytes(raw) for name, raw in wire.members(b"{%b}" % ours).items()}
        assert kept == {**expected, "own": b"1.10", "more": b"1E+400"}


@pytest.mark.parametrize("params", [b"[]", b"5", b'"text"', b"[1]", b"true"])
def test_params_that_are_no_object_cannot_be_stamped(params: bytes) -> None:
    with pytest.raises(BadFrame):
        merge_meta(params, b'"progressToken":1')


@pytest.mark.parametrize(
    ("params", "stamped"),
    [
        (b"", {"_meta": {"t": 1}}),
        (b"{}", {"_meta": {"t": 1}}),
        (b"{ }", {"_meta": {"t": 1}}),
        (b'{"a":1}', {"_meta": {"t": 1}, "a": 1}),
        (b'{ "a":1}', {"_meta": {"t": 1}, "a": 1}),
        (b'{"_meta":null,"a":1}', {"_meta": {"t": 1}, "a": 1}),
        (b'{"_meta":{"progressToken":2}}', {"_meta": {"t": 1}}),
        (rb'{"\u005fmeta":{"progress\u0054oken":2,"x":3}}', {"_meta": {"t": 1, "x": 3}}),
        (b'{"a":{"_meta":{"progressToken":2}}}', {"_meta": {"t": 1}, "a": {"_meta": {"progressToken": 2}}}),
    ],
)
def test_the_client_s_token_never_reaches_the_server(params: bytes, stamped: dict[str, Any]) -> None:
    """However it is spelled; an inner `_meta` is somebody else's."""
    assert json.loads(merge_meta(params, b'"t":1')) == stamped


@pytest.mark.parametrize(
    "line",
    [
        b"",
        b"5",
        b"null",
        b"[]",
        b'"x"',
        b"{",
        b"nul",
        b'{"id":1',
        b'{"method":5}',
        b"\xff\xfe",
        b"\x00",
        b"{}x",
        b"[" * 10**6,
    ],
)
def test_what_is_no_message_is_a_bad_frame_and_nothing_else(line: bytes) -> None:
    """B2, B3: whatever comes, the reader gets one kind of exception."""
    with pytest.raises(BadFrame) as error:
        wire.parse(line)
    assert len(str(error.value)) < 400


@settings(derandomize=True, max_examples=scaled(500))
@given(st.binary(max_size=200))
def test_noise_is_never_more_than_a_bad_frame(noise: bytes) -> None:
    for read in (wire.parse, wire.split_batch, wire.members, wire.value):
        with suppress(BadFrame):
            read(noise)
    wire.guess_response_id(noise)
    wire.depth(noise)


def test_ids_of_different_spelling_are_different_keys() -> None:
    """Digest 7.3: 1, 1.0, "1" and true are four ids; an absent one is none."""
    keys = [
        wire.parse(b'{"id":%b,"method":"m"}' % key).key for key in (b"1", b"1.0", b'"1"', b"true", b"1e0")
    ]
    assert len(set(keys)) == 5
    assert wire.parse(b'{"method":"m"}').id is ABSENT
    assert wire.parse(b'{"id":null,"method":"m"}').id is not ABSENT


@pytest.mark.parametrize(
    ("line", "result"),
    [
        (b'\xef\xbb\xbf{"id":1,"result":{"a":1.10}}', b'{"a":1.10}'),
        (b'{"id":1,"result":{"a":"\xff"}}', '{"a":"\ufffd"}'.encode()),
        (rb'{"id":1,"method":"\ud800","result":{"n":1.10,"n":1.10}}', b'{"n":1.10,"n":1.10}'),
        (
            rb'{"id":1,"method":"\ud800","result":"\\ud800 \ud83d\ude00 \ud83d \ude00"}',
            rb'"\\ud800 \ud83d\ude00 \ufffd \ufffd"',
        ),
    ],
)
def test_only_the_broken_bytes_are_mended(line: bytes, result: bytes) -> None:
    """T6: a BOM, invalid UTF-8, half a surrogate pair; the numbers beside it stay as they are."""
    assert bytes(wire.parse(line).result) == result


def test_half_a_surrogate_pair_is_mended_and_nothing_else() -> None:
    """T6: Node writes them for a cut emoji."""
    message = wire.parse(rb'{"id":1,"result":{"n":1.10,"t":"cut \ud83d"}}')
    assert bytes(message.result) == rb'{"n":1.10,"t":"cut \ufffd"}'
    assert wire.value(rb'{"t":"cut \ud83d"}') == {"t": "cut \ufffd"}


@pytest.mark.parametrize(
    ("line", "key"),
    [
        (b'{"jsonrpc":"2.0","id":7,"result":[[', b"7"),
        (b'{"id": 7 , "jsonrpc" : "2.0", "error":{', b"7"),
        (b'{"result":{"id":9},"jsonrpc":"2.0","id":7}', b"7"),
        (b'{"jsonrpc":"2.0","result":[],"id":7}\r', b"7"),
        (b'{"jsonrpc":"2.0","id":7,"method":"x","params":{"result":', b""),
        (b'{"level":"info","id":7,"msg":"result"', b""),
        (b'{"jsonrpc":"2.0","id":"7","result":[', b""),
        (b"no json at all", b""),
    ],
)
def test_whom_a_broken_frame_answers_is_guessed_only_from_an_answer(line: bytes, key: bytes) -> None:
    """A server's own broken request must not end one of our calls that has the same number."""
    assert wire.guess_response_id(line) == key


def test_depth_is_counted_outside_of_strings_only() -> None:
    """B3, T7: brackets in text are no nesting, escapes and all."""
    many = "[]," * 2000
    assert wire.depth(f'[{many}"{"[" * 5000}", "\\"{"[" * 5000}"]'.encode()) == 2
    assert wire.depth(b"[" * 1500 + b"]" * 1500) == 1500
    with pytest.raises(BadFrame, match="deeper than 1000"):
        wire.value(b"[" * 1500 + b"]" * 1500)


def test_a_batch_is_taken_apart_without_being_read() -> None:
    assert wire.split_batch(b'[{"id":1.0}, 5 ,[]]') == [b'{"id":1.0}', b"5", b"[]"]
    with pytest.raises(BadFrame):
        wire.split_batch(b'{"id":1}')


def test_frames_are_json_with_the_bytes_put_in() -> None:
    """Methods are escaped; params and ids are put in as they are."""
    assert (
        wire.request(b"1", 'a"b', b'{"x":1.10}')
        == b'{"jsonrpc":"2.0","id":1,"method":"a\\"b","params":{"x":1.10}}\n'
    )
    assert wire.request(b'"k"', "m", b"") == b'{"jsonrpc":"2.0","id":"k","method":"m"}\n'
    assert wire.notification("m") == b'{"jsonrpc":"2.0","method":"m"}\n'
    assert json.loads(wire.error(b"", wire.error_body(-1, "no"))) == {
        "jsonrpc": "2.0",
        "id": None,
        "error": {"code": -1, "message": "no"},
    }
    for n in range(300):
        wire.request(b"1", f"fancy/{n}", b"")
    assert len(wire._METHODS) <= 100  # a client's fancy does not grow the daemon

"""Envelopes are read and written; members keep their bytes."""

from __future__ import annotations

import json
from contextlib import suppress
from typing import Any

import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from mcpd.wire import message as wire
from mcpd.wire.message import BadFrame, TooLarge, merge_meta
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
def test_members_keep_their_bytes(value: str, space: str, member: str) -> None:
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
def test_merge_meta_keeps_other_bytes(params: str, with_meta: bool, ours: bytes) -> None:
    """mcpd's members replace the client's token and reserved names; everything else is unchanged."""
    theirs = '"_meta":{"progressToken":"theirs","io.modelcontextprotocol/x":1,"own":1.10,"more":1E+400}'
    before = wire.members(params.encode())
    assume("_meta" not in before)
    if with_meta:
        params = f"{{{theirs}" + ("," if params != "{}" else "") + params[1:]
    after = wire.members(merge_meta(params.encode(), ours))
    meta = after.pop("_meta", b"{}")

    assert {name: bytes(raw) for name, raw in after.items()} == {
        name: bytes(raw) for name, raw in before.items()
    }
    if with_meta:
        kept = {name: bytes(raw) for name, raw in wire.members(meta).items()}
        expected = {name: bytes(raw) for name, raw in wire.members(b"{%b}" % ours).items()}
        assert kept == {**expected, "own": b"1.10", "more": b"1E+400"}


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
def test_client_progress_token_is_dropped(params: bytes, stamped: dict[str, Any]) -> None:
    """However it is spelled; a nested `_meta` is not affected."""
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
def test_invalid_message_raises_bad_frame(line: bytes) -> None:
    """The reader gets no other exception."""
    with pytest.raises(BadFrame) as error:
        wire.parse(line)
    assert len(str(error.value)) < 400


@settings(derandomize=True, max_examples=scaled(500))
@given(st.binary(max_size=200))
def test_random_bytes_raise_bad_frame_only(noise: bytes) -> None:
    for read in (wire.parse, wire.split_batch, wire.members, wire.value):
        with suppress(BadFrame):
            read(noise)


def test_invalid_utf8_inside_a_member_raises_bad_frame() -> None:
    """The envelope is valid JSON, so that the damage is found only when the member itself is decoded."""
    members = wire.members(b'{"a":"\xc3\xe9","b":["\xed\xa0\x80"],"c":{"\xff":1}}')
    with pytest.raises(BadFrame, match="not an object"):
        wire.members(members["c"])
    with pytest.raises(BadFrame, match="`a`"):
        wire.string(members, "a")
    assert wire.value(members["b"]) == ["\ufffd" * 3]  # text that is only invalid is repaired


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
def test_only_invalid_text_is_repaired(line: bytes, result: bytes) -> None:
    """A byte order mark, invalid UTF-8, a lone surrogate; numbers keep their spelling."""
    assert bytes(wire.parse(line).result) == result


def test_frames_contain_params_and_ids_unchanged() -> None:
    """Method names are escaped; params and ids are inserted as they are."""
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
    assert len(wire._METHODS) <= 100  # unknown methods must not use memory permanently


def test_limits_of_what_is_decoded_have_an_error_of_their_own() -> None:
    """The error is a BadFrame, names the limit, and quotes little."""
    level = b"{" + b",".join(b'"%d":1' % number for number in range(10_001)) + b"}"
    for read, data, what in (
        (wire.value, b"[" * 1001 + b"]" * 1001, "nested deeper than 1000 levels"),
        (wire.value, b"[" + b"1," * 100_000 + b"1]", "more than 100000 values"),
        (wire.value, b'"' + b"x" * 8 * 1024 * 1024 + b'"', "which is more than 8388608"),
        (wire.members, level, "an object with more than 10000 members"),
        (wire.items, b"[" + b"1," * 10_000 + b"1]", "an array with more than 10000 items"),
    ):
        with pytest.raises(TooLarge, match=what) as error:
            read(data)
        assert len(str(error.value)) < 400
    assert wire.members_or_empty(level) == {}


@pytest.mark.parametrize("padding", [b"", b"x" * 2_000_000], ids=["small", "large"])
def test_long_id_is_refused_with_its_limit(padding: bytes) -> None:
    line = b'{"jsonrpc":"2.0","id":"%b","method":"m","params":{"x":"' + padding + b'"}}'
    assert len(wire.parse(line % (b"i" * (wire.MAX_ID - 2))).key) == wire.MAX_ID
    with pytest.raises(wire.LongId, match="1025 bytes, and mcpd accepts at most 1024") as refused:
        wire.parse(line % (b"i" * (wire.MAX_ID - 1)))
    assert refused.value.code == wire.INVALID_REQUEST

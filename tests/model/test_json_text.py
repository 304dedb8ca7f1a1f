"""Long strings are converted in steps, with the same result as at once."""

from __future__ import annotations

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec import Raw

from mcpd.model import codec, json_text, tool_result
from mcpd.model.json_text import decode_text, encode_text
from mcpd.model.steps import run_steps
from mcpd.model.tool_result import encode_in_steps, normalize_in_steps, normalize_result
from tests.sampling import scaled

PIECES = [
    *(rb"\n", rb"\\", rb"\"", rb"\u00e9", rb"\ud83d\ude00", rb"\\ud83d", rb"\uD83D\uDE00", b"x", b"abc"),
    *(text.encode() for text in ("\u00e9", "\u20ac", "\U0001f600")),
]


@settings(derandomize=True, max_examples=scaled(50))
@given(st.lists(st.sampled_from(PIECES), max_size=40).map(b"".join))
def test_string_is_converted_in_portions_as_at_once(inside: bytes) -> None:
    """No character, escape or pair of surrogates is cut."""
    data = b'"%b"' % inside
    text = msgspec.json.decode(data, type=str)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(json_text, "_PORTION", 16)
        assert run_steps(decode_text(data)) == text
        assert run_steps(encode_text(text)) == msgspec.json.encode(text)


@pytest.mark.parametrize("is_error", [b"true", b"false"])
def test_tool_result_is_encoded_in_steps_as_at_once(is_error: bytes, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(json_text, "_PORTION", 16)
    monkeypatch.setattr(tool_result, "_LONG", 10)
    text = b'"' + rb"\ud83d\ude00\n" * 50 + b'"'
    raw = Raw(
        b'{"content":[{"type":"text","text":%b},{"type":"image","data":"aGk="},{"type":"resource","resource":'
        b'{"uri":"a:b","text":%b}}],"structuredContent":{"a":1},"isError":%b}' % (text, text, is_error)
    )
    result = normalize_result(raw, ["a note"])
    assert sum(1 for _ in normalize_in_steps(raw)) > 50
    assert sum(1 for _ in encode_in_steps(result)) > 5
    assert run_steps(encode_in_steps(result)) == codec.encode(result)

"""Repairs of JSON text cost time in proportion to its length, and errors beyond the limits stay."""

from __future__ import annotations

import re

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from mcpd.wire import json_repair
from mcpd.wire.json_repair import MAX_ESCAPES, MAX_INVALID, MAX_SURROGATES, repair_json
from tests.sampling import scaled

PIECES = [rb"\ud83d", rb"\ude00", rb"\\", rb"\n", rb"\uD800", rb"\uDFFF", rb"\u0041", b"ud800", b"u", b"x"]
ESCAPE = re.compile(
    rb"\\(?:u[dD][89abAB][0-9a-fA-F]{2}\\u[dD][c-fC-F][0-9a-fA-F]{2}|(u[dD][89a-fA-F][0-9a-fA-F]{2})|.)"
)


@settings(derandomize=True, max_examples=scaled(2000))
@given(st.lists(st.sampled_from(PIECES), max_size=12).map(b"".join))
def test_unpaired_surrogates_are_found_as_a_parser_would(text: bytes) -> None:
    """An escaped backslash before `ud800` does not begin an escape."""
    assert repair_json(text) == ESCAPE.sub(lambda escape: rb"\ufffd" if escape[1] else escape[0], text)


@settings(derandomize=True, max_examples=scaled(500))
@given(st.lists(st.one_of(st.binary(max_size=3), st.text(max_size=3).map(str.encode))).map(b"".join))
def test_invalid_utf_8_is_replaced_as_by_the_decoder(text: bytes) -> None:
    """Also at the end of a portion, which never cuts a character."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(json_repair, "_PORTION", 4)
        repaired = repair_json(b"\xff" + text)
    assert repaired.decode().replace("\ufffd", "") == text.decode("utf-8", "ignore").replace("\ufffd", "")
    assert repaired.startswith("\ufffd".encode())


@pytest.mark.parametrize(
    "broken",
    [
        b"\xff" * (MAX_INVALID + 1),
        rb"\ud800" * (MAX_SURROGATES + 1),
        b"\\n" * (MAX_ESCAPES + 1) + rb"\ud800",
    ],
)
def test_too_many_errors_stay(broken: bytes) -> None:
    assert repair_json(broken) == broken


@pytest.mark.parametrize("part", [b"x", "\u20ac".encode(), b'", "'])
def test_large_text_is_repaired(part: bytes) -> None:
    """Only what surrounds a surrogate or an invalid byte is changed."""
    text = part * ((2 << 20) // len(part))
    for broken, sound in ((rb"\ud83d", rb"\ufffd"), (b"\xff", "\ufffd".encode())):
        assert repair_json(text + broken + text) == text + sound + text

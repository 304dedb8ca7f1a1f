"""`params._meta`: which members are found, dropped and added."""

from __future__ import annotations

import json

import pytest
from msgspec import Raw

from mcpd.wire.message import members, request_with_meta, strip_reserved

OURS = b'"t":1'


@pytest.mark.parametrize("plain", [False, True])
@pytest.mark.parametrize(
    ("params", "ours", "expected"),
    [
        (b"", b"", None),
        (b"", OURS, {"_meta": {"t": 1}}),
        (b"{}", b"", {}),
        (b"{}", OURS, {"_meta": {"t": 1}}),
        (b'{"a":1}', b"", {"a": 1}),
        (b'{"a":1}', OURS, {"_meta": {"t": 1}, "a": 1}),
        (b'{ "a":1}', OURS, {"_meta": {"t": 1}, "a": 1}),
    ],
)
def test_request_contains_our_meta(plain: bool, params: bytes, ours: bytes, expected: object) -> None:
    line = request_with_meta(b"7", "m", params, ours, plain=plain)
    assert line.endswith(b"}\n")
    request = json.loads(line)
    assert request.pop("params", None) == expected
    assert request == {"jsonrpc": "2.0", "id": 7, "method": "m"}


@pytest.mark.parametrize(
    ("params", "stripped"),
    [
        (b'{"a":1}', {"a": 1}),
        (b'{"a":1,"_meta":{"x":1,"io.modelcontextprotocol/y":2}}', {"a": 1, "_meta": {"x": 1}}),
        (b'{"_meta":{"io.modelcontextprotocol/y":2}}', {}),
        (b'{"_meta":[]}', {}),
    ],
)
def test_reserved_members_are_removed(params: bytes, stripped: object) -> None:
    outer = dict(members(params))
    strip_reserved(outer)
    assert {name: json.loads(bytes(Raw(value))) for name, value in outer.items()} == stripped

"""Errors, self-descriptions and notifications of servers, whatever their protocol version."""

from __future__ import annotations

import json

import msgspec
import pytest
from msgspec import Raw

from mcpd.model.errors import ProtocolViolation
from mcpd.protocol.upstream_session import (
    Hooks,
    ServerNotification,
    decode_result,
    handle_notification,
    to_upstream_error,
)
from mcpd.wire.message import Message


@pytest.mark.parametrize(
    ("body", "message", "code", "data"),
    [
        (b'{"code":-5,"message":"no","data":[1]}', "s: no", -5, [1]),
        (b'{"code":true,"message":"no"}', "s: no", 0, None),
        (b'{"code":"5","message":"no"}', "s: no", 0, None),
        (b'{"code":5,"message":6}', 's: answered with an error: {"code":5,"message":6}', 5, None),
        (b"[]", "s: answered with an error: []", 0, None),
        (b"{", "s: answered with an error: {", 0, None),
    ],
)
def test_error_of_a_server_is_understood_as_far_as_possible(
    body: bytes, message: str, code: int, data: object
) -> None:
    error = to_upstream_error("s", Message(error=Raw(body)))
    assert (error.message, error.upstream_code, error.upstream_data) == (message, code, data)


def test_large_error_data_is_kept_as_bytes() -> None:
    """Decoding 31 MiB of empty arrays took 5 s and 900 MiB."""
    data = b"[" + b"[]," * 10_000_000 + b"1]"
    error = to_upstream_error("s", Message(error=Raw(b'{"code":-5,"message":"no","data":%b}' % data)))
    assert (error.message, error.upstream_code) == ("s: no", -5)
    assert isinstance(error.upstream_data, Raw)
    assert bytes(error.upstream_data) == data
    assert msgspec.json.encode(error.data()).count(data) == 1


def test_large_description_of_a_server_is_refused() -> None:
    """What a server says about itself is kept, so its size is limited."""
    for body in (
        b'{"capabilities":{"a":[%b1]}}' % (b"1," * 10_000),
        b'{"instructions":"%b"}' % (b"x" * 2**20),
    ):
        with pytest.raises(ProtocolViolation, match=r"its response to m is invalid: .*more than 10+"):
            decode_result("s", "m", Raw(body))
    assert decode_result("s", "m", Raw(b'{"a":[%b1]}' % (b"1," * 9_000)))["a"] == [1] * 9_001


def test_result_must_be_an_object() -> None:
    assert decode_result("s", "m", Raw(b'{"a":1}')) == {"a": 1}
    for data, message in ((b"[]", "is not an object"), (b"{", "is invalid")):
        with pytest.raises(ProtocolViolation, match=message):
            decode_result("s", "m", Raw(data))


@pytest.mark.parametrize(
    ("method", "params", "expected"),
    [
        ("notifications/tools/list_changed", None, ["tools"]),
        ("notifications/prompts/list_changed", None, ["prompts"]),
        ("notifications/resources/updated", {"uri": "file:///a"}, ["notifications/resources/updated file:///a"]),
        ("notifications/resources/updated", {"uri": 5}, []),
        ("notifications/resources/updated", [], []),
        ("notifications/tasks", {}, ["notifications/tasks "]),
        ("notifications/cancelled", {}, ["notifications/cancelled "]),
        ("notifications/message", {"data": "x", "level": "error"}, ["notifications/message ", '[error] "x"']),
        ("notifications/message", {}, ["notifications/message ", "[info] null"]),
        ("notifications/message", [], ["notifications/message "]),
        ("notifications/other", {}, ["notifications/other "]),
    ],
)  # fmt: skip
def test_notification_is_passed_on_if_clients_may_want_it(
    method: str, params: object, expected: list[str]
) -> None:
    passed: list[str] = []

    def on_notification(note: ServerNotification) -> None:
        passed.append(f"{note.method} {note.uri}")

    hooks = Hooks(passed.append, passed.append, on_notification=on_notification)
    handle_notification(hooks, Message(method=method, params=Raw(json.dumps(params).encode())), None)
    assert passed == expected

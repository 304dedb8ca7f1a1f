"""States, differences, results and errors."""

from __future__ import annotations

import json
from typing import Any

import pytest

from mcpd.model.errors import CallTimeout, LinkLost, McpdError, UnknownTool, UpstreamRefused
from mcpd.model.status import rfc3339
from mcpd.model.steps import run_steps
from mcpd.model.tool_result import normalize_result
from tests.stopwatch import assert_cheap

TEXT = {"type": "text", "text": "a"}
PLACEHOLDERS: list[tuple[dict[str, Any], str]] = [
    ({"type": "image", "data": "AAAA", "mimeType": "image/png"}, "[image image/png, 3 bytes]"),
    ({"type": "image", "data": "AAA=", "mimeType": "image/png"}, "[image image/png, 2 bytes]"),
    ({"type": "image", "data": "AA==", "mimeType": "image/png"}, "[image image/png, 1 bytes]"),
    ({"type": "image", "data": ""}, "[image of unknown type, 0 bytes]"),
    ({"type": "audio", "data": 5}, "[audio of unknown type, 0 bytes]"),
    ({"type": "resource_link", "name": "n", "uri": "u:1"}, "[resource n u:1]"),
    ({"type": "resource", "resource": {"uri": "u:1", "text": "inside"}}, "inside"),
    ({"type": "resource", "resource": {"uri": "u:1", "mimeType": "x/y"}}, "[resource u:1 x/y]"),
    ({"type": "new"}, "[content of type new]"),
]


def normalized(result: bytes) -> dict[str, Any]:
    decoded: dict[str, Any] = json.loads(run_steps(normalize_result(result)))
    return decoded


@pytest.mark.parametrize(("block", "shown"), PLACEHOLDERS)
def test_non_text_content_is_kept_with_a_placeholder(block: dict[str, Any], shown: str) -> None:
    """Images, links and embedded resources are replaced in the text, and kept in `content`."""
    result = normalized(json.dumps({"content": [TEXT, block]}).encode())
    assert result["output"] == f"a\n{shown}"
    assert result["content"] == [block]
    assert result["success"]
    assert result["warnings"] == []


TEXTS: list[tuple[bytes, str]] = [
    (rb"\u00e9\n\"\\", 'é\n"\\'),
    ("é".encode(), "é"),
    (rb"\ud83d\ude00", "😀"),
    (rb"\ud800", ""),
    (b"\xff", ""),
]


@pytest.mark.parametrize(("encoded", "output"), TEXTS)
def test_text_is_copied_as_it_is_encoded_if_it_is_valid(encoded: bytes, output: str) -> None:
    result = run_steps(normalize_result(b'{"content":[{"type":"text","text":"%b"}]}' % encoded))
    assert json.loads(result)["output"] == output
    assert not output or encoded in result


def test_data_and_content_keep_every_byte() -> None:
    data, block = b'{"n":1.10,"n":1E+400, "b":1180591620717411303424}', b'{"type" : "x","n":1.10}'
    encoded = run_steps(normalize_result(b'{"content":[%b],"structuredContent":%b}' % (block, data)))
    assert data in encoded
    assert block in encoded


def test_tool_error_is_a_failure_with_its_text() -> None:
    failed = normalized(json.dumps({"content": [TEXT], "isError": True}).encode())
    assert (failed["success"], failed["error"], failed["output"]) == (False, "a", "a")
    assert normalized(b'{"isError":true}')["error"]
    assert normalized(b'{"isError":"true","content":[]}')["success"]


@pytest.mark.parametrize(
    "broken",
    [
        b"5",
        b"null",
        b"[]",
        b'"x"',
        b'{"content":5}',
        b'{"content":[5,null]}',
        b'{"content":[{"type":5,"text":[]}]}',
        b'{"content":[{"type":"resource","resource":[]}]}',
        b'{"content":' + b"[" * 3000 + b"]" * 3000 + b"}",
        b'{"content":[{"type":"text","text":"\\ud800"}]}',
    ],
)
def test_invalid_result_becomes_a_tool_result_with_warnings(broken: bytes) -> None:
    """Never an exception: it would end the connection."""
    assert run_steps(normalize_result(broken))


@pytest.mark.parametrize("block", [b"{}", b'{"type":"image"}'])
def test_blocks_of_a_result_are_bounded(block: bytes) -> None:
    """31 MiB of empty blocks took 6 s and 2.1 GiB, and the result grew to 237 MiB."""
    many = b'{"content":[%b]}' % b",".join([block] * (8 * 1024 * 1024 // (len(block) + 1)))
    assert_cheap(lambda: run_steps(normalize_result(many)), 0.3)
    encoded = run_steps(normalize_result(many))
    assert len(encoded) < 500_000
    warnings = json.loads(encoded)["warnings"]
    assert len(warnings) <= 2
    assert "the result has more than 5000 content blocks" in warnings[-1]
    assert normalized(b'{"content":[%b]}' % b",".join([b'{"type":"text","text":"x"}'] * 5000))["output"]


def subclasses() -> list[type[McpdError]]:
    return McpdError.__subclasses__()


def test_every_error_has_its_own_code_and_an_exit_status() -> None:
    """Scripts rely on them."""
    codes = [kind.code for kind in subclasses()]
    assert len(codes) == len(set(codes)) > 12
    assert all(1 <= kind.exit <= 9 and 400 <= kind.http < 600 and kind.rpc <= -32000 for kind in subclasses())


def test_an_error_says_which_server_and_whether_it_may_have_run() -> None:
    assert UnknownTool("no", server="s").data() == {"code": "unknown_tool", "exit": 5, "server": "s"}
    assert LinkLost("gone", server="s").data()["may_have_run"] is True
    assert CallTimeout("late", server="s", after=1.5).data()["after"] == 1.5
    refused = UpstreamRefused("no", server="s", upstream_code=-7, upstream_data=[1])
    assert refused.data()["upstream_code"] == -7


def test_times_are_rfc_3339_in_utc() -> None:
    assert rfc3339(0) == "1970-01-01T00:00:00.000Z"
    assert rfc3339(1790000000.1239) == "2026-09-21T14:13:20.123Z"

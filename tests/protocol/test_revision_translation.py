"""Translation between revisions: tables of what goes in and what comes out."""

from __future__ import annotations

import itertools
import json
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from msgspec import Raw

from mcpd.protocol.revision_translation import (
    R1,
    R2,
    R3,
    R4,
    R5,
    entry_translation,
    translate_request,
    translation,
)
from tests.gateway.valid import complaints

ALL = (R1, R2, R3, R4, R5)
Json = dict[str, Any]


def raw(value: object) -> Raw:
    return Raw(json.dumps(value).encode())


def result(client: str, server: str, method: str, value: Json) -> Json:
    found: Json = json.loads(bytes(translation(client, server).result(method, raw(value))))
    return found


def text(words: str) -> Json:
    return {"type": "text", "text": words}


@pytest.mark.parametrize(
    ("sent", "seen"),
    [
        (b'{"content":[]}', b'{"resultType":"complete","content":[]}'),
        (b" { }", b'{"resultType":"complete"}'),
        (b'{"x":{"resultType":"a"}}', b'{"resultType":"complete","x":{"resultType":"a"}}'),
        (b'{"x":"\\u0041"}', b'{"resultType":"complete","x":"\\u0041"}'),
        (b'{"resultType":"complete","content":[]}', None),
        (b'{ "resultType" : "complete"}', None),
        (b'{"content":[], "resultType":"complete"}', None),
        (b'{"result\\u0054ype":"input_required"}', None),
        (b'{"resultType":"task","taskId":"1"}', None),
        (b"[]", None),
        (b'["resultType"]', None),
    ],
)
def test_missing_result_type_of_a_modern_server_is_added(sent: bytes, seen: bytes | None) -> None:
    """The schema of 2026-07-28 requires it, and clients may insist. Other results keep their bytes."""
    found = translation(R5, R5).result("tools/call", Raw(sent))
    assert bytes(found) == (seen or sent)


@pytest.mark.parametrize("client", ALL[:4])
def test_modern_envelope_is_hidden_from_legacy_clients(client: str) -> None:
    modern = {
        "resultType": "complete",
        "ttlMs": 5,
        "cacheScope": "public",
        "contents": [{"uri": "a:b", "text": "t"}],
        "_meta": {"io.modelcontextprotocol/serverInfo": {"name": "s"}, "vendor/key": 1},
    }
    seen = result(client, R5, "resources/read", modern)
    assert seen == {"contents": [{"uri": "a:b", "text": "t"}], "_meta": {"vendor/key": 1}}


@pytest.mark.parametrize("server", ALL[:4])
def test_legacy_result_is_marked_complete_for_modern_clients(server: str) -> None:
    """And what is read must not be cached."""
    assert result(R5, server, "tools/call", {"content": []}) == {"resultType": "complete", "content": []}
    assert result(R5, server, "tools/call", {}) == {"resultType": "complete"}
    read = result(R5, server, "resources/read", {"contents": []})
    assert (read["ttlMs"], read["cacheScope"]) == (0, "private")
    related = {"content": [], "_meta": {"io.modelcontextprotocol/related-task": {"taskId": "1"}, "v": 1}}
    assert result(R5, server, "tools/call", related)["_meta"] == {"v": 1}


CONTENT = [
    text("one"),
    {
        "type": "image",
        "data": "aGk=",
        "mimeType": "image/png",
        "annotations": {"lastModified": "2026", "priority": 1},
    },
    {"type": "audio", "data": "aGk=", "mimeType": "audio/wav"},
    {
        "type": "resource_link",
        "uri": "a:b",
        "name": "n",
        "mimeType": "text/plain",
        "icons": [{"src": "https://x/y"}],
    },
    {"type": "resource", "resource": {"uri": "a:b", "text": "t", "_meta": {"v": 1}}, "_meta": {"v": 1}},
]


@pytest.mark.parametrize(("client", "server"), [p for p in itertools.product(ALL[:4], ALL) if p[0] < p[1]])
def test_content_is_translated_to_the_clients_revision(client: str, server: str) -> None:
    """Every kind of content becomes valid in the client's revision."""
    said: Json = {"content": CONTENT, "isError": False, "structuredContent": {"a": 1}}
    if server == R5:
        said["resultType"] = "complete"
    seen = result(client, server, "tools/call", said)
    assert complaints(client, {"result": seen}, "tools/call") == []
    assert seen["content"][0] == text("one")
    kinds = [item["type"] for item in seen["content"]]
    assert (
        kinds
        == {
            R1: ["text", "image", "resource", "text", "resource"],
            R2: ["text", "image", "audio", "text", "resource"],
            R3: ["text", "image", "audio", "resource_link", "resource"],
            R4: ["text", "image", "audio", "resource_link", "resource"],
        }[client]
    )
    assert ("structuredContent" in seen) == (client >= R3)


@pytest.mark.parametrize("client", ALL[:4])
def test_structured_content_that_is_no_object_becomes_text(client: str) -> None:
    """Before 2026-07-28 it had to be an object."""
    seen = result(
        client, R5, "tools/call", {"resultType": "complete", "content": [], "structuredContent": [1]}
    )
    assert seen == {"content": [text("[1]")]}


def test_prompt_messages_are_translated() -> None:
    link = {"messages": [{"role": "user", "content": CONTENT[3]}]}
    seen = result(R2, R3, "prompts/get", link)
    assert seen["messages"][0]["content"] == text("n: a:b (text/plain)")
    assert complaints(R2, {"result": seen}, "prompts/get") == []


@pytest.mark.parametrize(
    ("client", "server", "method", "code", "seen"),
    [
        (R4, R5, "resources/read", -32602, -32002),
        (R4, R5, "tools/call", -32602, -32602),
        (R5, R4, "resources/read", -32002, -32602),
        (R5, R4, "tools/call", -32000, -32603),
        (R5, R4, "tools/call", -32019, -32603),
        (R4, R5, "tools/call", -32020, -32603),
        (R5, R5, "tools/call", -32022, -32603),
        (R4, R5, "tools/call", -32021, -32021),
        (R4, R4, "tools/call", -32000, -32000),
        (R5, R5, "tools/call", -32602, -32602),
        (R5, R5, "tools/call", -32000, -32000),
        (R4, R5, "tools/call", 7, 7),
    ],
)
def test_error_codes_are_translated(client: str, server: str, method: str, code: int, seen: int) -> None:
    """A server's complaint about the daemon's own headers does not reach the client."""
    error = {"code": code, "message": "m", "data": {"x": 1}}
    found = json.loads(bytes(translation(client, server).error(method, raw(error))))
    assert found["code"] == seen
    if seen == -32603:
        assert found["data"] == {"code": code, "data": {"x": 1}}
    else:
        assert found == {**error, "code": seen}


def test_params_unknown_to_the_server_are_dropped() -> None:
    """The context of a completion, and a task if the server has none."""
    completion = {
        "ref": {"type": "ref/prompt", "name": "p"},
        "argument": {"name": "a", "value": ""},
        "context": {},
    }
    for server, kept in ((R1, False), (R2, False), (R3, True), (R5, True)):
        params = translation(R4, server).params("completion/complete", bytes(raw(completion)))
        assert ("context" in json.loads(params)) == kept
    task = bytes(raw({"name": "t", "task": {"ttl": 1}}))
    assert "task" not in json.loads(translation(R4, R3).params("tools/call", task))
    assert "task" in json.loads(translation(R4, R4).params("tools/call", task))


TOOL: Json = {
    "name": "t",
    "title": "T",
    "description": "d",
    "icons": [{"src": "https://x/y"}],
    "inputSchema": {"type": "object", "properties": {"region": {"type": "string", "x-mcp-header": "Region"}}},
    "outputSchema": {"type": "object"},
    "annotations": {"readOnlyHint": True},
    "execution": {"taskSupport": "optional"},
    "_meta": {"v": 1},
}


@pytest.mark.parametrize("client", ALL)
def test_tool_entries_are_translated_to_the_clients_revision(client: str) -> None:
    """Valid, and with everything that the revision knows."""
    translate = entry_translation("tools", client)
    assert translate is not None
    seen = json.loads(translate(json.dumps(TOOL).encode()))
    listed = {"tools": [seen]} | (
        {"resultType": "complete", "ttlMs": 0, "cacheScope": "private"} if client == R5 else {}
    )
    assert complaints(client, {"result": listed}, "tools/list") == []
    headers = "x-mcp-header" in json.dumps(seen)
    assert headers == (client == R5)
    assert (
        seen.keys()
        == {
            R1: {"name", "description", "inputSchema"},
            R2: {"name", "description", "inputSchema", "annotations"},
            R3: {"name", "title", "description", "inputSchema", "outputSchema", "annotations", "_meta"},
            R4: TOOL.keys(),
            R5: TOOL.keys() - {"execution"},
        }[client]
    )
    if client == R2:
        assert seen["annotations"] == {"title": "T", "readOnlyHint": True}


def test_unchanged_entry_keeps_its_bytes() -> None:
    plain = b'{"name" : "t",  "inputSchema":{"type":"object"}}'
    for client in (R4, R5):
        translate = entry_translation("tools", client)
        assert translate is not None
        assert translate(plain) == plain
    assert entry_translation("resources", R4) is None


FORM: Json = {
    "message": "?",
    "mode": "form",
    "requestedSchema": {
        "type": "object",
        "properties": {
            "name": {"type": "string", "default": "Ada"},
            "sure": {"type": "boolean", "default": True},
            "colour": {
                "type": "string",
                "oneOf": [{"const": "r", "title": "Red"}, {"const": "g", "title": "Green"}],
            },
        },
    },
    "_meta": {"io.modelcontextprotocol/related-task": {"taskId": "1"}},
}


def test_elicitation_form_is_translated_to_the_clients_revision() -> None:
    """2025-06-18 knows single choices, and defaults for booleans only."""
    asked = translate_request("elicitation/create", raw(FORM), R3, "[git] ")
    assert asked is not None
    seen = json.loads(asked)
    assert seen["message"] == "[git] ?"
    assert seen.keys() == {"message", "requestedSchema"}
    assert seen["requestedSchema"]["properties"] == {
        "name": {"type": "string"},
        "sure": {"type": "boolean", "default": True},
        "colour": {"type": "string", "enum": ["r", "g"], "enumNames": ["Red", "Green"]},
    }
    assert complaints(R3, {"jsonrpc": "2.0", "id": 1, "method": "elicitation/create", "params": seen}) == []
    for client in (R4, R5):
        full = translate_request("elicitation/create", raw(FORM), client, "")
        assert full is not None
        assert json.loads(full)["requestedSchema"] == FORM["requestedSchema"]


def test_request_unknown_to_the_clients_revision_is_not_sent() -> None:
    several: Json = {"type": "array", "items": {"enum": ["a", "b"]}}
    form = {"message": "?", "requestedSchema": {"type": "object", "properties": {"x": several}}}
    url = {"message": "?", "mode": "url", "url": "https://x/y"}
    for params, least in ((form, R4), (url, R4), ({"message": "?", "requestedSchema": {}}, R3)):
        for client in ALL:
            assert (translate_request("elicitation/create", raw(params), client, "") is not None) == (
                client >= least
            )
    with_id = translate_request("elicitation/create", raw(url), R4, "")
    assert with_id is not None
    assert "elicitationId" in json.loads(with_id)


SOME_JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=12), inner, max_size=3),
    max_leaves=12,
)
SOME_RESULT = st.dictionaries(
    st.sampled_from(["content", "structuredContent", "resultType", "_meta", "messages", "contents", "x"]),
    SOME_JSON,
)


@settings(deadline=None, suppress_health_check=[HealthCheck.too_slow])  # a busy machine
@given(
    st.sampled_from(ALL),
    st.sampled_from(ALL),
    st.sampled_from(["tools/call", "prompts/get", "resources/read", "completion/complete"]),
    SOME_RESULT,
)
def test_translation_never_fails(client: str, server: str, method: str, value: Json) -> None:
    """Servers are untrusted; unknown members stay."""
    seen = json.loads(bytes(translation(client, server).result(method, raw(value))))
    assert isinstance(seen, dict)
    if "x" in value:
        assert seen["x"] == value["x"]
    if server != R5 and client == R5:
        assert seen["resultType"] == "complete"
    if server == R5 and client != R5:
        assert "resultType" not in seen


@pytest.mark.parametrize("depth", [100, 240, 300, 450, 490, 2000])
def test_deeply_nested_schema_does_not_break_the_list(depth: int) -> None:
    """The server decides how deep, up to what can be parsed."""
    schema = b'{"x-mcp-header":"A","properties":{"a":' * depth + b"{}" + b"}}" * depth
    entry = b'{"name":"t","inputSchema":%b}' % schema
    translate = entry_translation("tools", R3)
    assert translate is not None
    assert translate(entry).startswith(b'{"name":"t"')


@pytest.mark.parametrize("client", ALL[:4])
def test_content_of_any_size_reaches_old_clients(client: str) -> None:
    """Its items are neither decoded nor encoded, so there is no limit but that of a message."""
    long = "\n" * (5 << 20)
    sent = {
        "resultType": "complete",
        "content": [{**text(long), "icons": [], "_meta": {}}],
        "_meta": {"v": 1},
    }
    seen = json.loads(bytes(translation(client, R5).result("tools/call", raw(sent))))
    kept: Json = {} if client < R3 else {"_meta": {}}
    assert seen["content"] == [{**text(long), **kept, **({"icons": []} if client == R4 else {})}]


@pytest.mark.parametrize(("client", "kept"), [(R2, False), (R3, True), (R4, True)])
def test_meta_of_resource_contents_is_kept_since_2025_06_18(client: str, kept: bool) -> None:
    sent = {"resultType": "complete", "contents": [{"uri": "a:b", "_meta": {"v": 1}}], "x": 1}
    (seen,) = result(client, R5, "resources/read", sent)["contents"]
    assert ("_meta" in seen) is kept


def test_prompt_without_a_list_of_messages_is_tolerated() -> None:
    assert result(R1, R4, "prompts/get", {"messages": {"a": 1}}) == {"messages": {"a": 1}}
    assert result(R1, R4, "prompts/get", {"messages": {"icons": 1}}) == {"messages": []}
    assert result(R1, R4, "prompts/get", {"messages": [5, {"content": 5}]}) == {
        "messages": [5, {"content": 5}]
    }


@pytest.mark.parametrize(
    ("client", "entry", "seen"),
    [
        (R3, {"name": "t"}, {"name": "t"}),
        (R3, {"name": "t", "title": "T"}, {"name": "t", "title": "T"}),
        (R2, {"name": "t", "annotations": {"title": "A"}}, {"name": "t", "annotations": {"title": "A"}}),
        (R2, {"name": "t", "title": "T"}, {"name": "t", "annotations": {"title": "T"}}),
        (R3, {"name": "t", "outputSchema": {"type": "array"}}, {"name": "t"}),
        (R4, {"name": "t", "outputSchema": {"type": "array"}}, {"name": "t"}),
        (
            R4,
            {"name": "t", "outputSchema": {"type": "object"}},
            {"name": "t", "outputSchema": {"type": "object"}},
        ),
        (
            R5,
            {"name": "t", "outputSchema": {"type": "array"}},
            {"name": "t", "outputSchema": {"type": "array"}},
        ),
        (
            R3,
            {"name": "t", "inputSchema": {"default": [{"x-mcp-header": 1}]}},
            {"name": "t", "inputSchema": {"default": [{}]}},
        ),
    ],
)
def test_tool_entry_members(client: str, entry: Json, seen: Json) -> None:
    translate = entry_translation("tools", client)
    assert translate is not None
    assert json.loads(translate(json.dumps(entry).encode())) == seen

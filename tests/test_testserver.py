"""The bundled test server follows the schemas of all five revisions, over stdio and over HTTP."""

from __future__ import annotations

import functools
import http.client
import json
import queue
import re
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import jsonschema  # type: ignore[import-untyped]  # it has no types of its own
import pytest

from tests.example_server import TEST_SERVER

LEGACY = ("2024-11-05", "2025-03-26", "2025-06-18", "2025-11-25")
MODERN = "2026-07-28"
LIMIT = 60.0
META = {
    "io.modelcontextprotocol/protocolVersion": MODERN,
    "io.modelcontextprotocol/clientCapabilities": {},
}
RESULTS: list[tuple[str, dict[str, Any], str]] = [
    ("tools/list", {}, "ListToolsResult"),
    ("tools/call", {"name": "echo", "arguments": {"text": "hi"}}, "CallToolResult"),
    ("tools/call", {"name": "fail"}, "CallToolResult"),
    ("tools/call", {"name": "json_response"}, "CallToolResult"),
    ("tools/call", {"name": "add", "arguments": {"a": "x"}}, "CallToolResult"),
    ("resources/list", {}, "ListResourcesResult"),
    ("resources/templates/list", {}, "ListResourceTemplatesResult"),
    ("resources/read", {"uri": "test://greeting"}, "ReadResourceResult"),
    ("resources/read", {"uri": "test://pixel.png"}, "ReadResourceResult"),
    ("resources/read", {"uri": "test://echo/a%20b"}, "ReadResourceResult"),
    ("prompts/list", {}, "ListPromptsResult"),
    ("prompts/get", {"name": "greet", "arguments": {"name": "Ada"}}, "GetPromptResult"),
    (
        "completion/complete",
        {"ref": {"type": "ref/prompt", "name": "greet"}, "argument": {"name": "name", "value": "a"}},
        "CompleteResult",
    ),
]


class Peer:
    """The server as a child process, used in one era. A reader thread gives every wait a time limit."""

    def __init__(self, version: str | None = None) -> None:
        self.version = version
        self.process = subprocess.Popen(
            [sys.executable, TEST_SERVER], stdin=subprocess.PIPE, stdout=subprocess.PIPE
        )
        self.lines: queue.Queue[bytes] = queue.Queue()
        self.reader = threading.Thread(target=self._read, daemon=True)
        self.reader.start()
        self.next_id = 0
        if version in LEGACY:
            hello = self.ask("initialize", _hello(version))["result"]
            check(version, "InitializeResult", hello)
            assert hello["protocolVersion"] == version
            self.say({"jsonrpc": "2.0", "method": "notifications/initialized"})

    def _read(self) -> None:
        assert self.process.stdout is not None
        for line in self.process.stdout:
            self.lines.put(line)

    def say(self, message: object) -> None:
        assert self.process.stdin is not None
        self.process.stdin.write(json.dumps(message).encode() + b"\n")
        self.process.stdin.flush()

    def send(self, method: str, params: Mapping[str, Any]) -> int:
        self.next_id += 1
        body = dict(params) | ({"_meta": META} if self.version == MODERN else {})
        self.say({"jsonrpc": "2.0", "id": self.next_id, "method": method, "params": body})
        return self.next_id

    def hear(self) -> Any:
        return json.loads(self.lines.get(timeout=LIMIT))

    def ask(self, method: str, params: Mapping[str, Any]) -> Any:
        wanted = self.send(method, params)
        answer = self.hear()
        assert answer["id"] == wanted
        return answer

    def close(self) -> int:
        assert self.process.stdin is not None
        assert self.process.stdout is not None
        self.process.stdin.close()
        try:
            return self.process.wait(LIMIT)
        finally:
            self.process.kill()
            self.process.wait()
            self.reader.join(LIMIT)
            self.process.stdout.close()


@contextmanager
def peer(version: str | None = None) -> Iterator[Peer]:
    one = Peer(version)
    try:
        yield one
    finally:
        status = one.close()
    assert status == 0


def _hello(version: str | None) -> dict[str, Any]:
    return {"protocolVersion": version, "capabilities": {}, "clientInfo": {"name": "test", "version": "1"}}


@functools.cache
def _validator(version: str, name: str) -> Any:
    schema = json.loads((Path(__file__).parent / "schema" / f"schema-{version}.json").read_text())
    where = "$defs" if "$defs" in schema else "definitions"
    return jsonschema.validators.validator_for(schema)(
        {"$schema": schema["$schema"], where: schema[where], "allOf": [{"$ref": f"#/{where}/{name}"}]}
    )


def check(version: str, name: str, value: object) -> None:
    """Fail unless the schema of the revision allows `value` as a `name`."""
    _validator(version, name).validate(value)


@pytest.mark.parametrize("version", [*LEGACY, MODERN])
def test_every_response_matches_the_schema_of_the_revision(version: str) -> None:
    """Each method's result and the envelope around it validate against the revision's schema."""
    with peer(version) as one:
        for method, params, name in RESULTS:
            answer = one.ask(method, params)
            check(version, "JSONRPCMessage", answer)
            check(version, name, answer["result"])
            assert ("resultType" in answer["result"]) == (version == MODERN)
        if version == MODERN:
            check(version, "DiscoverResult", one.ask("server/discover", {})["result"])
        else:
            assert one.ask("ping", {})["result"] == {}
            assert one.ask("logging/setLevel", {"level": "info"})["result"] == {}


@pytest.fixture
def port() -> Iterator[int]:
    """Run the server over HTTP on a port that it chooses."""
    command = [sys.executable, TEST_SERVER, "--http", "127.0.0.1:0"]
    with subprocess.Popen(command, stderr=subprocess.PIPE, text=True) as process:
        try:
            assert process.stderr
            found = re.fullmatch(r"listening on http://127\.0\.0\.1:(\d+)/mcp\n", process.stderr.readline())
            assert found
            yield int(found[1])
            process.send_signal(signal.SIGTERM)
            assert process.wait(LIMIT) == 0
            assert process.stderr.read() == ""
        finally:
            process.kill()


Reply = tuple[int, http.client.HTTPMessage, Any]


def post(port: int, message: object, *, method: str = "POST", path: str = "/mcp", **headers: str) -> Reply:
    """Return the status, the headers and the body: parsed JSON, or the list of the events' data."""
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=LIMIT)
    try:
        given = {"Accept": "application/json, text/event-stream", "Content-Type": "application/json"}
        given |= {name.replace("_", "-"): value for name, value in headers.items()}
        body = message if isinstance(message, bytes) else json.dumps(message).encode()
        connection.request(method, path, body, given)
        response = connection.getresponse()
        text = response.read().decode()
    finally:
        connection.close()
    if response.headers.get_content_type() == "text/event-stream":
        events = [part.partition("data: ")[2] for part in text.split("\n\n") if part]
        return response.status, response.headers, [json.loads(event) for event in events]
    return response.status, response.headers, json.loads(text) if text else None


def _modern(method: str, params: Mapping[str, Any] | None = None, **meta: object) -> dict[str, Any]:
    return {"jsonrpc": "2.0", "id": 1, "method": method, "params": {**(params or {}), "_meta": META | meta}}


def test_http_serves_modern_requests_without_a_session(port: int) -> None:
    """Responses are JSON, or an event stream if there is progress; errors have the specified statuses."""
    version = {"MCP_Protocol_Version": MODERN}
    status, headers, body = post(port, _modern("server/discover"), **version, Mcp_Method="server/discover")
    assert (status, headers["Mcp-Session-Id"]) == (200, None)
    check(MODERN, "DiscoverResult", body["result"])
    call = _modern("tools/call", {"name": "slow", "arguments": {"seconds": 0.2, "steps": 2}}, progressToken=5)
    status, headers, events = post(
        port, call, **version, Mcp_Method="tools/call", Mcp_Name="=?base64?c2xvdw==?="
    )
    assert [event.get("method", event.get("id")) for event in events] == ["notifications/progress"] * 2 + [1]
    wrong: list[tuple[dict[str, Any], dict[str, str], int, int]] = [
        (call, {"Mcp_Method": "tools/call"}, 400, -32020),
        (call, {"Mcp_Method": "tools/call", "Mcp_Name": "echo"}, 400, -32020),
        (_modern("ping"), {"Mcp_Method": "ping"}, 404, -32601),
        ({"jsonrpc": "2.0", "id": 1, "method": "tools/list"}, {"Mcp_Method": "tools/list"}, 400, -32602),
    ]
    for message, given, status, code in wrong:
        answer = post(port, message, **version, **given)
        assert (answer[0], answer[2]["error"]["code"], answer[2]["id"]) == (status, code, 1)


def test_http_keeps_a_session_for_legacy_peers(port: int) -> None:
    """`initialize` creates it, later requests need it, DELETE ends it; notifications get status 202."""
    version = "2025-06-18"
    hello = {"jsonrpc": "2.0", "id": 1, "method": "initialize", "params": _hello(version)}
    _, headers, body = post(port, hello)
    check(version, "InitializeResult", body["result"])
    session = {"Mcp_Session_Id": headers["Mcp-Session-Id"], "MCP_Protocol_Version": version}
    note = {"jsonrpc": "2.0", "method": "notifications/initialized"}
    assert post(port, note, **session)[::2] == (202, None)
    tools = {"jsonrpc": "2.0", "id": 2, "method": "tools/list"}
    check(version, "ListToolsResult", post(port, tools, **session)[2]["result"])
    assert post(port, tools)[0] == 400
    assert post(port, tools, **session | {"Mcp_Session_Id": "other"})[0] == 404
    assert post(port, tools, **session | {"MCP_Protocol_Version": "2023-01-01"})[0] == 400
    assert post(port, b"", method="DELETE", **session)[0] == 204
    assert post(port, tools, **session)[0] == 404


def test_make_test_mcp_server_needs_nothing_but_python(tmp_path: Path) -> None:
    """The server imports no installed package, and the target installs none."""
    root = Path(__file__).parents[1]
    ping = b'{"jsonrpc": "2.0", "id": 1, "method": "ping"}\n'
    done = subprocess.run(
        [sys.executable, "-S", TEST_SERVER],
        input=ping,
        cwd=root,
        capture_output=True,
        timeout=LIMIT,
        check=True,
    )
    assert json.loads(done.stdout)["id"] == 1
    for name in ("Makefile", "pyproject.toml"):
        (tmp_path / name).write_bytes((root / name).read_bytes())
    made = subprocess.run(
        ["make", "--dry-run", "test-mcp-server"], cwd=tmp_path, capture_output=True, text=True, timeout=LIMIT
    )
    assert made.returncode == 0, made.stderr
    assert "examples/testserver --http 127.0.0.1:8888" in made.stdout
    assert "pip" not in made.stdout

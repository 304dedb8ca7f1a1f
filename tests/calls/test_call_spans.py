"""The attributes of a call's span, by the semantic conventions for MCP."""

from __future__ import annotations

import threading
from contextlib import suppress
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

import pytest
import requests

from mcpd.calls.stages.spans import MAX_ANSWER, BoundedResponseAdapter, SpanFacts, span_attributes
from mcpd.model.events import CallOutcome, CallRecord

FACTS = SpanFacts(1000.0, 0.5, "", "", '"a-1"', "2025-11-25")
COMMON = {
    "mcp.protocol.version": "2025-11-25",
    "jsonrpc.request.id": "a-1",
    "mcpd.server.name": "docs",
}


@pytest.mark.parametrize(
    ("record", "attributes"),
    [
        pytest.param(
            {
                "method": "tools/call",
                "name": "find",
                "via": "http",
                "outcome": CallOutcome.FAILED,
                "code": "timeout",
            },
            {
                "mcp.method.name": "tools/call",
                "gen_ai.operation.name": "execute_tool",
                "gen_ai.tool.name": "find",
                "error.type": "timeout",
                "network.transport": "tcp",
                "network.protocol.name": "http",
                "mcpd.outcome": "failed",
            },
            id="tool-that-timed-out-over-http",
        ),
        pytest.param(
            {"method": "resources/read", "name": "file:///x", "via": "bridge", "client": "zed", "pid": 7},
            {
                "mcp.method.name": "resources/read",
                "mcp.resource.uri": "file:///x",
                "network.transport": "unix",
                "mcpd.client.name": "zed",
                "mcpd.client.pid": 7,
                "mcpd.outcome": "ok",
            },
            id="resource",
        ),
        pytest.param(
            {"method": "completion/complete", "outcome": CallOutcome.ERROR, "code": "-32602"},
            {
                "mcp.method.name": "completion/complete",
                "error.type": "-32602",
                "rpc.response.status_code": "-32602",
                "mcpd.outcome": "error",
            },
            id="error-of-the-server",
        ),
    ],
)
def test_attributes(record: dict[str, Any], attributes: dict[str, object]) -> None:
    given: dict[str, Any] = {"at": "", "server": "docs", "outcome": CallOutcome.OK} | record
    assert span_attributes(CallRecord(**given), FACTS) == COMMON | attributes


def test_long_answer_of_the_collector_is_not_read() -> None:
    """An answer of many megabytes took 842 MB."""

    class Endless(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            self.rfile.read(int(self.headers["Content-Length"]))
            self.send_response(200)
            self.send_header("Content-Length", str(1 << 30))
            self.end_headers()
            with suppress(OSError):
                while True:
                    self.wfile.write(bytes(1 << 20))

        def log_message(self, format: str, *args: object) -> None: ...

    with ThreadingHTTPServer(("127.0.0.1", 0), Endless) as server:
        threading.Thread(target=server.serve_forever).start()
        try:
            with requests.Session() as session:
                session.mount("http://", BoundedResponseAdapter())
                answer = session.post(f"http://127.0.0.1:{server.server_port}", b"x", timeout=60)
                assert answer.ok
                assert len(answer.content) == MAX_ANSWER
        finally:
            server.shutdown()

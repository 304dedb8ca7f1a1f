"""Calls as OpenTelemetry spans, received by a collector that is not ours (`oteltest`)."""

from __future__ import annotations

import logging
import queue
import socket
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import attrs
import pytest
from oteltest.sink import HttpSink
from oteltest.sink.handler import RequestHandler

from tests.e2e.harness import BOUND, Json, Refused, fake, running, wait_until

TRACE, PARENT = "4bf92f3577b34da6a3ce929d0e0e4736", "00f067aa0ba902b7"
HELLO = {
    "protocolVersion": "2025-11-25",
    "capabilities": {},
    "clientInfo": {"name": "editor", "version": "1"},
}
FAST = {"OTEL_BSP_SCHEDULE_DELAY": "50"}
"""Milliseconds between two exports, instead of 5000."""


@attrs.frozen(eq=False)
class Collector:
    url: str
    received: queue.Queue[Any]

    def spans(self, count: int) -> dict[str, Json]:
        """Wait for that many spans, and return them by name."""
        found: dict[str, Json] = {}
        ends = time.monotonic() + BOUND
        while len(found) < count:
            request = self.received.get(timeout=max(0.01, ends - time.monotonic()))
            for resource in request.resource_spans:
                service = {each.key: each.value.string_value for each in resource.resource.attributes}
                for scope in resource.scope_spans:
                    for span in scope.spans:
                        found[span.name] = {
                            "service": service["service.name"],
                            "trace": span.trace_id.hex(),
                            "parent": span.parent_span_id.hex(),
                            "kind": span.kind,
                            "is_error": span.status.code == 2,
                            "message": span.status.message,
                            "seconds": (span.end_time_unix_nano - span.start_time_unix_nano) / 1e9,
                            **{each.key: each.value.string_value for each in span.attributes},
                        }
        return found


@contextmanager
def collector() -> Iterator[Collector]:
    """Run the collector of `oteltest` on a free port."""
    received: queue.Queue[Any] = queue.Queue()

    class Handler(RequestHandler):  # type: ignore[misc]
        def handle_trace(self, request: Any, headers: Any) -> None:
            received.put(request)

        def handle_metrics(self, request: Any, headers: Any) -> None: ...
        def handle_logs(self, request: Any, headers: Any) -> None: ...

    server = HttpSink(Handler(), logging.getLogger("sink"), port=0)
    server.start()
    wait_until(lambda: server.httpd is not None, lambda: "the collector does not start")
    try:
        yield Collector(f"http://127.0.0.1:{server.httpd.server_address[1]}", received)
    finally:
        server.httpd.shutdown()
        server.httpd.server_close()
        server.svr_thread.join(BOUND)


def test_each_call_becomes_a_span_of_its_clients_trace(tmp_path: Path) -> None:
    with (
        collector() as there,
        running(tmp_path, {"demo": fake()}, settings={"openTelemetry": there.url}, environ=FAST) as daemon,
    ):
        daemon.wait_connected("demo")
        editor = daemon.client()
        editor.request("mcpd/attach", server="demo")
        editor.request("initialize", **HELLO)
        meta = {"traceparent": f"00-{TRACE}-{PARENT}-01", "tracestate": "editor=1"}
        editor.request("tools/call", name="echo", arguments={"text": "hello"}, _meta=meta)
        editor.request("tools/call", name="fail", arguments={})
        editor.request("prompts/get", name="greet")
        with pytest.raises(Refused):
            editor.request("tools/call", name="nothing", arguments={})
        spans = there.spans(4)
    echo, fail, refused = (spans[f"tools/call {name}"] for name in ("echo", "fail", "nothing"))
    assert (echo["trace"], echo["parent"], echo["kind"], echo["service"]) == (TRACE, PARENT, 2, "mcpd")
    assert echo["gen_ai.operation.name"] == "execute_tool"
    assert (echo["gen_ai.tool.name"], echo["mcp.method.name"]) == ("echo", "tools/call")
    assert (echo["mcpd.server.name"], echo["mcpd.outcome"], echo["network.transport"]) == (
        "demo",
        "ok",
        "unix",
    )
    assert (echo["mcp.protocol.version"], 0 <= echo["seconds"] < BOUND) == ("2025-11-25", True)
    assert (echo["is_error"], "error.type" in echo) == (False, False)
    assert "gen_ai.tool.call.arguments" not in echo, "contents are exported only with `callLog: contents`"
    assert (fail["is_error"], fail["error.type"], fail["parent"]) == (True, "tool_error", "")
    assert fail["trace"] not in ("", TRACE)
    assert (refused["is_error"], refused["error.type"]) == (True, refused["rpc.response.status_code"])
    assert int(refused["error.type"]) < 0
    assert "nothing" in refused["message"]
    assert spans["prompts/get greet"]["gen_ai.prompt.name"] == "greet"


def test_calls_are_exported_without_a_call_log_and_with_contents_masked(tmp_path: Path) -> None:
    secret = "sk-proj-0123456789abcdef"
    server = fake(env={"API_KEY": secret})
    with collector() as there:
        settings = {"openTelemetry": there.url, "callLog": "off"}
        with running(tmp_path, {"demo": server}, settings=settings, environ=FAST) as daemon:
            daemon.wait_connected("demo")
            with daemon.client() as client:
                client.request("mcpd/call", server="demo", tool="echo", arguments={"text": secret})
            assert "tools/call echo" in there.spans(1)
            assert not list(tmp_path.rglob("calls.jsonl"))
        settings["callLog"] = "contents"
        with running(tmp_path, {"demo": server}, settings=settings, environ=FAST) as daemon:
            daemon.wait_connected("demo")
            with daemon.client() as client:
                client.request("mcpd/call", server="demo", tool="echo", arguments={"text": f"<{secret}>"})
            (echo,) = there.spans(1).values()
    assert "<" in echo["gen_ai.tool.call.arguments"]
    assert "<" in echo["gen_ai.tool.call.result"]
    assert secret not in str(echo)


def test_collector_that_is_down_delays_nothing_and_is_reported_once(tmp_path: Path) -> None:
    with socket.socket() as closed:
        closed.bind(("127.0.0.1", 0))
        url = f"http://127.0.0.1:{closed.getsockname()[1]}"
        with running(tmp_path, {"demo": fake()}, settings={"openTelemetry": url}, environ=FAST) as daemon:
            daemon.wait_connected("demo")
            with daemon.client() as client:
                client.request("mcpd/call", server="demo", tool="echo", arguments={"text": "1"})
                wait_until(lambda: "opentelemetry" in daemon.log, lambda: "nothing was reported")
                for n in range(20):
                    client.request("mcpd/call", server="demo", tool="echo", arguments={"text": str(n)})
            assert daemon.stop() == 0
        assert daemon.log.count('"opentelemetry') == 1, daemon.log

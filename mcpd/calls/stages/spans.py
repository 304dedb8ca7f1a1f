"""Exports finished calls as OpenTelemetry spans, over OTLP and HTTP.

Requires the extra `otel`, and is imported only if `openTelemetry` is set. Names and attributes follow the
semantic conventions for MCP (status: development):
https://github.com/open-telemetry/semantic-conventions-genai/blob/main/docs/gen-ai/mcp.md
"""

from __future__ import annotations

import io
import logging
import os
import threading
import time
from typing import NamedTuple

import requests
from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
from opentelemetry.sdk.resources import SERVICE_NAME, SERVICE_VERSION, Resource
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import BatchSpanProcessor
from opentelemetry.trace import SpanKind, Status, StatusCode
from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator
from requests.adapters import HTTPAdapter

from mcpd import __version__
from mcpd.model.events import FAILURES, CallOutcome, CallRecord

_TIMEOUT = 5.0
"""Seconds for one export; the exporter retries within this time, and then drops the batch."""
LOG_INTERVAL = 600.0
"""Seconds between two log messages of the exporter."""
MAX_ANSWER = 64 * 1024
_FLUSH_TIMEOUT = 1.0
"""Seconds for the last export when the exporter is closed."""
_NETWORK = {"http": "tcp", "socket": "unix", "bridge": "unix", "control": "unix"}


class SpanFacts(NamedTuple):
    """What a span contains in addition to the record of its call."""

    ended_at: float
    """Unix time."""
    seconds: float
    traceparent: str
    """The trace context in the request's `_meta` (W3C Trace Context); empty if there is none."""
    tracestate: str
    request_id: str
    """The JSON-RPC ID of the request, as the client wrote it."""
    protocol_version: str


class ExportErrorFilter(logging.Filter):
    """Admits one warning or error per LOG_INTERVAL: the SDK logs each failed export twice, every few seconds.
    Less severe records pass, and are not counted.
    """

    def __init__(self) -> None:
        super().__init__()
        self._next = 0.0

    def filter(self, record: logging.LogRecord) -> bool:
        if record.levelno < logging.WARNING:
            return True
        now = time.monotonic()
        if now < self._next:
            return False
        self._next = now + LOG_INTERVAL
        return True


logging.getLogger("opentelemetry.exporter.otlp.proto.http.trace_exporter").addFilter(ExportErrorFilter())


class BoundedResponseAdapter(HTTPAdapter):
    """Reads at most MAX_ANSWER bytes of what the collector answers."""

    def send(
        self,
        request: requests.PreparedRequest,
        stream: bool = False,
        timeout: float | tuple[float | None, float | None] | None = None,
        verify: bool | str = True,
        cert: str | tuple[str, str] | None = None,
        proxies: dict[str, str] | None = None,
    ) -> requests.Response:
        response = super().send(request, True, timeout, verify, cert, proxies)
        with response.raw as answer:
            response.raw = io.BytesIO(answer.read(MAX_ANSWER))
        return response


class CallSpanExporter:
    """Queues spans; a thread of the SDK sends them. If the endpoint is slow or down, spans are dropped.

    The `OTEL_…` environment variables of the SDK apply, except for the endpoint.
    """

    def __init__(self, endpoint: str) -> None:
        """`endpoint`: a base URL, to which `/v1/traces` is appended."""
        named = "service.name=" in os.environ.get("OTEL_RESOURCE_ATTRIBUTES", "")
        attributes = {SERVICE_VERSION: __version__}
        if not named and not os.environ.get("OTEL_SERVICE_NAME"):
            attributes[SERVICE_NAME] = "mcpd"
        session = requests.Session()
        for scheme in ("http://", "https://"):
            session.mount(scheme, BoundedResponseAdapter())
        url = endpoint.rstrip("/") + "/v1/traces"
        self._exporter = OTLPSpanExporter(url, timeout=_TIMEOUT, session=session)
        self._provider = TracerProvider(resource=Resource.create(attributes), shutdown_on_exit=False)
        self._provider.add_span_processor(BatchSpanProcessor(self._exporter))
        self._tracer = self._provider.get_tracer("mcpd", __version__)
        self._propagator = TraceContextTextMapPropagator()

    def add(self, record: CallRecord, facts: SpanFacts) -> None:
        """Queue the span of a call. Never waits."""
        carrier = {"traceparent": facts.traceparent, "tracestate": facts.tracestate}
        target = record.name if record.method in ("tools/call", "prompts/get") else ""
        span = self._tracer.start_span(
            f"{record.method} {target}" if target else record.method,
            context=self._propagator.extract(carrier) if facts.traceparent else None,
            kind=SpanKind.SERVER,
            attributes=span_attributes(record, facts),
            start_time=int((facts.ended_at - facts.seconds) * 1e9),
        )
        if record.outcome in FAILURES:
            span.set_status(Status(StatusCode.ERROR, record.message or None))
        span.end(int(facts.ended_at * 1e9))

    def close(self) -> None:
        """Send what is queued, for at most a second, and drop the rest. Blocks."""
        ending = threading.Thread(target=self._provider.shutdown, name="export spans", daemon=True)
        ending.start()  # a thread, because the SDK waits for up to 30 s
        ending.join(_FLUSH_TIMEOUT)
        if ending.is_alive():
            self._exporter.shutdown()  # type: ignore[no-untyped-call]


def span_attributes(record: CallRecord, facts: SpanFacts) -> dict[str, str | int]:
    """Return the attributes of a call's span. Those that are unknown are missing."""
    attributes: dict[str, str | int | None] = {
        "mcp.method.name": record.method,
        "mcp.protocol.version": facts.protocol_version,
        "jsonrpc.request.id": facts.request_id.strip('"'),
        "network.transport": _NETWORK.get(record.via, ""),
        "network.protocol.name": "http" if record.via == "http" else "",
        "mcpd.server.name": record.server,
        "mcpd.client.name": record.client,
        "mcpd.client.pid": record.pid,
        "mcpd.outcome": record.outcome.value,
        "mcpd.cached": record.cached,
    }
    if record.method == "tools/call":
        attributes["gen_ai.operation.name"] = "execute_tool"
        attributes["gen_ai.tool.name"] = record.name
        attributes["gen_ai.tool.call.arguments"] = record.arguments
        attributes["gen_ai.tool.call.result"] = record.result
    elif record.method == "prompts/get":
        attributes["gen_ai.prompt.name"] = record.name
    elif record.method == "resources/read":
        attributes["mcp.resource.uri"] = record.name
    if record.outcome is CallOutcome.TOOL_ERROR:
        attributes["error.type"] = "tool_error"
    elif record.outcome in FAILURES:
        attributes["error.type"] = record.code or "error"
        if record.outcome is CallOutcome.ERROR:
            attributes["rpc.response.status_code"] = record.code
    return {name: value for name, value in attributes.items() if value}

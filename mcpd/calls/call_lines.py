"""What the call log keeps of a call when it ends, and the line that is made of it later."""

from __future__ import annotations

import re
import shlex
from collections.abc import Callable
from hashlib import sha256

import msgspec

from mcpd.calls.call import Caller
from mcpd.calls.client_context import ClientContext
from mcpd.config.masking import mask_definition
from mcpd.model.advice import is_temporary, without_name
from mcpd.model.call_record import CallOutcome, CallRecord
from mcpd.model.server_spec import RemoteSpec, ServerSpec, StdioSpec
from mcpd.model.status import rfc3339
from mcpd.model.text import shorten
from mcpd.wire import message as wire

DIGESTED = 16 * 1024
"""Bytes of the parameters that the digest is made of, and bytes of contents that are kept for masking."""
_CONTENT = 4096
_NAME_LENGTH, _MESSAGE_LENGTH = 200, 300
_CODE_LENGTH = 40
_TRACE_ID = re.compile(r"[0-9a-f]{2}-([0-9a-f]{32})-")
_NAMED_BY = {"prompts/get": "name", "resources/read": "uri"}


class CallEntry(msgspec.Struct, frozen=True, gc=False):
    """What is known when a call ends. It takes less than a microsecond to make, and keeps its caller alive
    for the fraction of a second until its line is made."""

    at: float
    """Unix time."""
    seconds: float
    caller: Caller
    context: ClientContext
    spec: ServerSpec
    method: str
    tool: str
    outcome: CallOutcome
    params: bytes
    """The first DIGESTED bytes."""
    request_size: int
    response_size: int
    is_cached: bool
    code: str
    message: str
    result: bytes
    request_id: bytes


class CallLine(msgspec.Struct, omit_defaults=True, gc=False):
    """The members of a `CallRecord`, in a type that is made and encoded fast."""

    at: str
    outcome: CallOutcome
    client: str = ""
    pid: int | None = None
    via: str = ""
    server: str = ""
    method: str = ""
    name: str = ""
    duration_ms: float = 0.0
    request_bytes: int = 0
    response_bytes: int = 0
    cached: bool = False
    digest: str = ""
    code: str = ""
    message: str = ""
    trace: str = ""
    arguments: str = ""
    result: str = ""
    count: int = 1

    def to_record(self) -> CallRecord:
        return CallRecord(**msgspec.structs.asdict(self))


class LineMaker:
    """Makes the lines of entries, in their order. Computes what consecutive entries share only once."""

    def __init__(self, mask: Callable[[str], str], *, shows_contents: bool) -> None:
        self._mask = mask
        self._shows_contents = shows_contents
        self._second = 0
        self._second_text = ""
        self._caller: Caller | None = None
        self._context: ClientContext | None = None
        self._spec: ServerSpec | None = None
        self._server = ""
        self._client = ""
        self._pid: int | None = None
        self._via = ""

    def line(self, entry: CallEntry) -> CallLine:
        if entry.caller is not self._caller or entry.context is not self._context:
            self._identify(entry.caller, entry.context)
        if entry.spec is not self._spec:
            self._spec, self._server = entry.spec, self._mask(server_label(entry.spec))
        second = int(entry.at)
        if second != self._second:
            self._second, self._second_text = second, rfc3339(second)[:19]
        params = entry.params
        line = CallLine(
            f"{self._second_text}.{int((entry.at - second) * 1000):03}Z",
            entry.outcome,
            self._client,
            self._pid,
            self._via,
            self._server,
            entry.method,
            entry.tool[:_NAME_LENGTH] or _name_in(entry.method, params),
            round(entry.seconds * 1000, 3),
            entry.request_size,
            entry.response_size,
            entry.is_cached,
            sha256(params).hexdigest()[:16],
        )
        if entry.code:
            line.code = entry.code[:_CODE_LENGTH]
        if entry.message:
            message, name = entry.message, entry.spec.name
            if is_temporary(name):
                message = without_name(message, name)
            line.message = shorten(self._mask(message), _MESSAGE_LENGTH)
        if b'"traceparent"' in params and (trace := _TRACE_ID.match(trace_context(params)[0])):
            line.trace = trace[1]
        if self._shows_contents:
            line.arguments, line.result = self._content(params), self._content(entry.result)
        return line

    def _identify(self, caller: Caller, context: ClientContext) -> None:
        identity = caller.identify(context)
        self._caller, self._context = caller, context
        self._client = "".join(c for c in identity.client[:_NAME_LENGTH] if c.isprintable())
        self._pid, self._via = identity.pid or None, identity.via

    def _content(self, content: bytes) -> str:
        # Masks first: a truncated secret would not be recognized.
        return self._mask(content.decode(errors="replace"))[:_CONTENT]


def server_label(spec: ServerSpec) -> str:
    """Return a server's name, or the URL or command of the server of `mcpctl try`, without secrets: nobody
    knows its name."""
    if not is_temporary(spec.name):
        return spec.name
    if isinstance(spec, RemoteSpec):
        shown = str(mask_definition({"url": spec.url})["url"])
    else:
        assert isinstance(spec, StdioSpec)
        masked = mask_definition({"args": [spec.command, *spec.args]})["args"]
        assert isinstance(masked, list)
        shown = shlex.join(map(str, masked))
    return "".join(c for c in shown[:_NAME_LENGTH] if c.isprintable())


def trace_context(params: bytes) -> tuple[str, str]:
    """Return the `traceparent` and `tracestate` of a request; empty if it has none, or was not kept whole."""
    if b'"traceparent"' not in params:
        return "", ""
    meta = wire.members_or_empty(wire.members_or_empty(params).get("_meta", b""))
    return wire.string_or(meta, "traceparent"), wire.string_or(meta, "tracestate")


def _name_in(method: str, params: bytes) -> str:
    """Return the prompt or resource that a request names."""
    member = _NAMED_BY.get(method)
    if member is None:
        return ""
    return wire.string_or(wire.members_or_empty(params), member)[:_NAME_LENGTH]

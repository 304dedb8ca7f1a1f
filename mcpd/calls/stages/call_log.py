"""The call log: which client called what, when, for how long, and how it ended. Bounded, kept over restarts.

The call path only appends a struct to a list. A few times per second, records are made of them, and a thread
writes these as JSON lines to two rotated files that only the user can read. A disk that stalls delays nobody:
records that do not fit into a bounded queue are counted and dropped. The same records can be exported as
OpenTelemetry spans (`spans`).
"""

from __future__ import annotations

import logging
import math
import re
import shlex
import time
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from hashlib import sha256
from pathlib import Path
from typing import TYPE_CHECKING

import msgspec
import trio
from msgspec import Raw

from mcpd.calls.call import Call, Caller, Scope, Stage
from mcpd.calls.client_context import ClientContext
from mcpd.config.masking import mask_definition
from mcpd.config.settings import Settings
from mcpd.files.own_thread import OwnThread
from mcpd.files.rotated import append_lines, last_lines, older
from mcpd.io.broadcast import Broadcast
from mcpd.io.outbox import batch
from mcpd.model.advice import is_temporary, without_name
from mcpd.model.errors import InvalidArguments, Problem
from mcpd.model.events import FAILURES, CallLogLevel, CallOutcome, CallRecord, CallsParams
from mcpd.model.server_spec import RemoteSpec, ServerSpec, StdioSpec
from mcpd.model.status import parse_timestamp, rfc3339
from mcpd.model.text import shorten
from mcpd.privacy.redact import Redactor
from mcpd.supervision.managed_server import ManagedServer
from mcpd.wire import message as wire

if TYPE_CHECKING:
    from mcpd.calls.shared_calls import SharedCalls
    from mcpd.calls.stages.spans import CallSpanExporter


DIGESTED = 16 * 1024
"""Bytes of the parameters that the digest is made of, and bytes of contents that are kept for masking."""
_CONTENT = 4096
_NAME_LENGTH, _MESSAGE_LENGTH = 200, 300
_CODE_LENGTH = 40
_TRACE_ID = re.compile(r"[0-9a-f]{2}-([0-9a-f]{32})-")
_UNSUCCESSFUL = FAILURES | {CallOutcome.DENIED}
_NAMED_BY = {"prompts/get": "name", "resources/read": "uri"}


class CallEntry(msgspec.Struct, frozen=True, gc=False):
    """What is known when a call ends. It takes less than a microsecond to make, and keeps its caller alive
    for the fraction of a second until its record is made."""

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


class RecordMaker:
    """Makes the records of entries, in their order. Computes what consecutive entries share only once."""

    def __init__(self, redactor: Redactor, *, shows_contents: bool) -> None:
        self._redactor = redactor
        self._named: dict[str, str] = {}
        """The masked names of tools and methods."""
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
        self._person = ""

    def record(self, entry: CallEntry) -> CallRecord:
        if entry.caller is not self._caller or entry.context is not self._context:
            self._identify(entry.caller, entry.context)
        if entry.spec is not self._spec:
            self._spec, self._server = entry.spec, self._redactor.mask(server_label(entry.spec))
        second = int(entry.at)
        if second != self._second:
            self._second, self._second_text = second, rfc3339(second)[:19]
        params = entry.params
        record = CallRecord(
            at=f"{self._second_text}.{int((entry.at - second) * 1000):03}Z",
            outcome=entry.outcome,
            client=self._client,
            pid=self._pid,
            via=self._via,
            person=self._person,
            server=self._server,
            method=self._name(entry.method),
            name=self._name(entry.tool or _name_in(entry.method, params)),
            duration_ms=round(entry.seconds * 1000, 3),
            request_bytes=entry.request_size,
            response_bytes=entry.response_size,
            cached=entry.is_cached,
            digest=sha256(params).hexdigest()[:16],
        )
        if entry.code or entry.message:
            message, name = entry.message, entry.spec.name
            if is_temporary(name):
                message = without_name(message, name)
            record.code = entry.code[:_CODE_LENGTH]
            record.message = shorten(self._redactor.mask(message), _MESSAGE_LENGTH)
        if b'"traceparent"' in params and (trace := _TRACE_ID.match(trace_context(params)[0])):
            record.trace = trace[1]
        if self._shows_contents:
            is_cut = entry.request_size > len(params)
            result = self._content(entry.result, len(entry.result) == DIGESTED)
            record.arguments, record.result = self._content(params, is_cut), result
        return record

    def _identify(self, caller: Caller, context: ClientContext) -> None:
        identity = caller.identify(context)
        self._caller, self._context = caller, context
        shown = "".join(c for c in identity.client[:DIGESTED] if c.isprintable())
        self._client = self._redactor.mask_start(shown, _NAME_LENGTH)
        self._pid, self._via = identity.pid or None, identity.via
        self._person = self._redactor.mask(identity.person)

    def _name(self, name: str) -> str:
        masked = self._named.get(name)
        if masked is None:
            masked = self._named[name] = self._redactor.mask_start(name, _NAME_LENGTH)
        return masked

    def _content(self, content: bytes, is_cut: bool) -> str:
        # Masks first: a truncated secret would not be recognized.
        text = content.decode(errors="ignore" if is_cut else "replace")
        return self._redactor.mask_start(text, _CONTENT, is_cut=is_cut)


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
    return wire.string_or(wire.members_or_empty(params), member)


log = logging.getLogger("mcpd.call_log")

MAX_FILE_SIZE = 4 * 1024 * 1024
"""Bytes after which a file is rotated."""
MAX_PER_SECOND = 1000
"""Records kept per second; further calls are counted. A client in a loop must not push out all others."""
MAX_WAITING_BYTES = 8 * 1024 * 1024
"""Bytes of parameters and results that may wait for the disk."""
MAX_RECORDS = 10_000
"""Records in one response of `mcpd/calls`."""
_INTERVAL = 0.25
"""Seconds between writes."""
_AT_ONCE = 64
"""Records made in one turn of the event loop, in less than a millisecond."""
_ENTRY_SIZE = 500
"""Bytes of memory that an entry takes, approximately, in addition to what it contains."""
_decode = msgspec.json.Decoder(CallRecord).decode
_encoder = msgspec.json.Encoder()
_batch = batch()


class CallLogStageFactory:
    is_per_tool = False

    def __init__(self, log: CallLog) -> None:
        self._log = log

    def is_enabled(self, scope: Scope, server: ManagedServer, method: str, settings: Settings) -> bool:
        self._log.level, self._log.otlp_endpoint = settings.call_log, settings.otlp_endpoint
        self._log.older_files = -(-settings.call_log_size * 1024 * 1024 // MAX_FILE_SIZE) - 1
        return settings.call_log is not CallLogLevel.OFF or bool(settings.otlp_endpoint)

    def make(self, scope: Scope, server: ManagedServer, method: str, name: str) -> CallLog:
        return self._log


class CallLog(Stage):
    """The stage of all calls while it is on. `ended` never blocks or raises; `run` writes."""

    def __init__(self, path: Path, redactor: Redactor) -> None:
        self.path = path
        self.level = CallLogLevel.OFF
        self.older_files = 1
        """How many full files are kept."""
        self.otlp_endpoint = ""
        """Where calls are exported as spans; empty for nowhere."""
        self.dropped = 0
        """Calls that could not be written."""
        self.room: float = MAX_PER_SECOND
        """Records that fit now. If there is no room, the call is only counted."""
        self.omitted = 0
        """Calls that are counted, and will be written as one record. Only increased by others."""
        self.shared: SharedCalls | None = None
        """The calls of all replicas; None if there are no others."""
        self._redactor = redactor
        self._entries: list[CallEntry] = []
        self._waiting_bytes = 0
        self._made_room_at = -math.inf
        self._is_pending = False
        self._has_entries = trio.Event()
        self._writing = trio.Lock()
        self._thread = OwnThread()
        self._written: Broadcast[CallRecord] = Broadcast()
        self._exporter: CallSpanExporter | None = None
        self._exporting_to = ""

    def ended(
        self, call: Call, outcome: CallOutcome, result: Raw | bytes, code: str = "", message: str = ""
    ) -> None:
        """Record a call."""
        if self.room < 1 or self._waiting_bytes > MAX_WAITING_BYTES:
            self.omitted += 1
            return
        self.room -= 1
        params, route, arrived, request = call.params, call.route, call.arrived_at, call.request
        request_size = len(params)
        if request_size > DIGESTED:
            params = params[:DIGESTED]
        content = b""
        if self.level is CallLogLevel.CONTENTS:
            content = bytes(memoryview(result)[:DIGESTED])
        self._waiting_bytes += _ENTRY_SIZE + len(params) + len(content)
        self._entries.append(
            CallEntry(
                time.time(),
                (_batch.now if _batch.depth else trio.current_time()) - arrived if arrived else 0.0,
                call.caller,
                call.context,
                route.spec,
                route.method,
                route.tool,
                outcome,
                params,
                request_size,
                call.response_size,
                call.is_cached,
                code,
                message,
                content,
                b"" if request is None else request.key,
            )
        )
        if not self._is_pending:
            self._is_pending = True
            self._has_entries.set()

    async def run(self) -> None:
        """Write new records a few times per second, and the remaining ones when cancelled."""
        try:
            while True:
                await self._has_entries.wait()
                await trio.sleep(_INTERVAL)
                await self.flush()
        finally:
            with trio.move_on_after(2, shield=True):
                await self.flush()
                await self._thread.wait_idle()
                await self._thread.run(self._close_exporter)

    async def read(self, params: CallsParams) -> tuple[CallRecord, ...]:
        """Return the newest matching records, oldest first. Raises InvalidArguments."""
        matches = record_filter(params)
        limit = min(params.limit, MAX_RECORDS)
        await self.flush()
        own = await self._thread.run(self._read_files, matches, limit)
        return own if self.shared is None else await self.shared.with_others(own, matches, limit)

    def watch(self) -> AbstractContextManager[trio.MemoryReceiveChannel[CallRecord]]:
        """Receive every record that is written from now on; the channel ends if it is read too slowly."""
        return self._written.listen()

    async def flush(self) -> None:
        """Write what is not written yet."""
        async with self._writing:
            entries, self._entries = self._entries, []
            omitted, self.omitted = self.omitted, 0
            self._waiting_bytes = 0
            self._make_room()
            if self._is_pending and self.room >= MAX_PER_SECOND:  # until then, `run` continues to make room
                self._is_pending = False
                self._has_entries = trio.Event()
            if not entries and not omitted:
                return
            with trio.CancelScope(shield=True):  # or these records would be lost; it takes milliseconds
                records = await self._make_records(entries, omitted)
            try:
                await self._write_records(entries, records)
            except RuntimeError:  # no thread can be started
                self.dropped += len(entries) + omitted

    async def _make_records(self, entries: Sequence[CallEntry], omitted: int) -> list[CallRecord]:
        """Return all records. Not in the thread: it would compete with the calls for the interpreter, and
        each switch costs more than a record."""
        maker = RecordMaker(self._redactor, shows_contents=self.level is CallLogLevel.CONTENTS)
        records: list[CallRecord] = []
        for start in range(0, len(entries), _AT_ONCE):
            if start:
                await trio.lowlevel.checkpoint()
            records += map(maker.record, entries[start : start + _AT_ONCE])
        if omitted:
            records.append(CallRecord(at=rfc3339(time.time()), outcome=CallOutcome.OMITTED, count=omitted))
        return records

    async def _write_records(self, entries: Sequence[CallEntry], records: Sequence[CallRecord]) -> None:
        if self.otlp_endpoint or self._exporting_to:
            await self._thread.run(self._export, entries, records)
        if self.level is CallLogLevel.OFF:
            return
        count = sum(record.count for record in records)
        if self.shared is not None:
            self.shared.add(records)
        await self._thread.run(self._append, _encoder.encode_lines(records), count)
        if self._written.has_listeners:
            for record in records:
                self._written.send(record)

    def _make_room(self) -> None:
        now = trio.current_time()
        self.room = min(MAX_PER_SECOND, self.room + (now - self._made_room_at) * MAX_PER_SECOND)
        self._made_room_at = now

    def _append(self, data: bytes, count: int) -> None:
        """Write records. Runs in the thread."""
        try:
            append_lines(self.path, data, MAX_FILE_SIZE, self.older_files)
        except OSError as error:
            if not self.dropped:
                log.error("cannot write the call log %s: %s", self.path, error.strerror or error)
            self.dropped += count

    def _export(self, entries: Sequence[CallEntry], records: Sequence[CallRecord]) -> None:
        """Queue the spans of calls, if they are exported. Runs in the thread."""
        if self._exporting_to != self.otlp_endpoint:
            self._close_exporter()
            self._open_exporter()
        if self._exporter is None:
            return
        from mcpd.calls.stages.spans import SpanFacts

        for entry, record in zip(entries, records, strict=False):  # without the record of omitted calls
            parent, state = trace_context(entry.params)
            facts = SpanFacts(
                entry.at,
                entry.seconds,
                parent,
                self._redactor.mask(state),
                self._redactor.mask_start(entry.request_id.decode(errors="replace"), _NAME_LENGTH),
                entry.context.version,
            )
            self._exporter.add(record, facts)

    def _open_exporter(self) -> None:
        self._exporting_to = self.otlp_endpoint
        if not self.otlp_endpoint:
            return
        try:
            from mcpd.calls.stages.spans import CallSpanExporter
        except ImportError as error:
            log.error("`openTelemetry` needs mcpd with the extra `otel`; no spans are exported (%s)", error)
        else:
            self._exporter = CallSpanExporter(self.otlp_endpoint)

    def _close_exporter(self) -> None:
        exporter, self._exporter = self._exporter, None
        if exporter is not None:
            exporter.close()

    def _read_files(self, matches: Callable[[CallRecord], bool], limit: int) -> tuple[CallRecord, ...]:
        """Return the newest matching records, oldest first. Runs in the thread."""
        found: list[CallRecord] = []
        for path in (self.path, *(older(self.path, number + 1) for number in range(self.older_files))):
            if len(found) >= limit:
                break
            try:
                lines = last_lines(path, 2 * MAX_FILE_SIZE)
            except FileNotFoundError:
                continue
            except OSError as error:
                log.warning("cannot read the call log %s: %s", path, error.strerror or error)
                continue
            for line in reversed(lines):
                if len(found) >= limit:
                    break
                try:
                    record = _decode(line)
                except (ValueError, RecursionError):
                    continue  # damaged
                if matches(record):
                    found.append(record)
        return tuple(reversed(found))


def record_filter(params: CallsParams) -> Callable[[CallRecord], bool]:
    """Return a function that selects the records `params` asks for. Raises InvalidArguments."""
    since = ""
    if params.since:
        try:
            since = rfc3339(parse_timestamp(params.since))
        except (ValueError, OverflowError) as error:
            raise InvalidArguments(f"mcpd/calls: since: {error}", [Problem("$.since", str(error))]) from None
    client = params.client.casefold()

    def matches(record: CallRecord) -> bool:
        return (
            record.at >= since
            and (not client or client in record.client.casefold())
            and params.server in ("", record.server)
            and params.name in ("", record.name)
            and (not params.failed or record.outcome in _UNSUCCESSFUL)
        )

    return matches

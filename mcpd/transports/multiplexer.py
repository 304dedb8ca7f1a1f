"""Matches responses with requests: ids, the in-flight limit and queue, deadlines. Transfers no bytes itself.

A request costs one table entry and no task: the reader finds the exchange by its id and calls it. One task
watches all deadlines. Subclasses transfer the frames.
"""

from __future__ import annotations

import logging
import math
from collections.abc import Callable
from typing import NoReturn

import msgspec
import trio
from msgspec import Raw

from mcpd.io.outbox import batch
from mcpd.model.errors import LinkLost, McpdError, Overloaded, ProtocolViolation
from mcpd.model.json_text import MAX_BYTES
from mcpd.model.server_spec import ServerSpec
from mcpd.model.text import shorten
from mcpd.process.memory import trim_heap_soon
from mcpd.transports.base import Deviations, Dialect, Inbound, LostCalls, NullInbound
from mcpd.transports.outgoing_request import (
    Exchange,
    PendingRequests,
    answer_dropped,
    cancelled_by_server,
    connection_lost,
    protocol_violation,
    timed_out,
)
from mcpd.wire import message as wire
from mcpd.wire.limits import DroppedMessage, is_response
from mcpd.wire.message import ABSENT, DECODE_ERRORS, MAX_ID, BadFrame, Message, request_with_meta
from mcpd.wire.stray_text import MESSAGE_START, IndentedMessage, find_messages

log = logging.getLogger("mcpd.link")
_batch = batch()
_MAX_BATCH = 1000
"""Messages in one batch from a server; all of them are handled in one turn."""


class FrameTransport:
    """How a transport carries frames: what a subclass of `RequestMultiplexer` implements."""

    async def _transfer(self, nursery: trio.Nursery) -> str:
        """Read and write until the connection ends; return why. More tasks may run in `nursery`."""
        raise NotImplementedError

    def _send_request(self, exchange: Exchange, frame: bytes) -> None:
        """Send the frame of a request that is in the table; the frame ends with a newline."""
        raise NotImplementedError

    def _withdraw_request(self, exchange: Exchange, reason: str) -> bool:
        """Drop a request that nobody waits for. Return False if the server must be notified."""
        raise NotImplementedError

    def _unsent_requests(self) -> set[Exchange]:
        """Return the requests in the table that were not completely sent."""
        raise NotImplementedError

    def _send_frame(self, frame: bytes) -> None:
        """Send any other frame. Not called after the end."""
        raise NotImplementedError

    def has_unread_input(self) -> bool:
        return False

    def unended_line(self) -> bytes:
        return b""

    async def wait_flushed(self) -> None:
        """Frames are sent in order, so there is nothing to wait for."""

    async def listen(self, on_gap: Callable[[], None], on_open: Callable[[], None]) -> None:
        """No separate stream is needed."""


class RequestMultiplexer(FrameTransport):
    """The part of a `Channel` that all transports share; see there for the public members.

    A subclass implements `FrameTransport`, and passes each received frame to the `receiver`.
    """

    has_headers = False
    correlates_server_requests = False

    def __init__(self, spec: ServerSpec) -> None:
        self.name = spec.name
        self.inbound: Inbound = NullInbound()
        self.dialect = Dialect()
        self.allows_batches = False
        self.deviations = Deviations()
        self.last_received_at = trio.current_time()
        self.last_success_at = -math.inf
        self.lost_calls = LostCalls()
        self.end_error: McpdError | None = None
        self.session: str | None = None
        self.last_http_status = ""
        self.tap: Callable[[str, bytes], None] | None = None
        self.on_lost: Callable[[], None] | None = None
        self.on_refused: Callable[[], None] | None = None
        self._meta = b""
        self._call_meta = b'"progressToken":'
        self._refusal: McpdError | None = None
        """See `stop_accepting`."""
        self._max_in_flight = spec.max_in_flight
        self._max_queued = spec.max_queued
        self.requests = PendingRequests()
        self._pending = self.requests.pending
        self._queue = self.requests.queue
        self.last_id = 0
        """The id of the last request."""
        self.receiver = Receiver(self)

    def __repr__(self) -> str:
        state = "open" if self.end_error is None else f"ended: {self.end_error.message}"
        counts = f"pending={len(self._pending)} queued={self.requests.waiting}"
        return f"<{type(self).__name__} {self.name} {counts} {state}>"

    async def run(self) -> NoReturn:
        """See `Channel.run`. Watches the deadlines while `_transfer` reads and writes."""
        reason = "the connection was closed"
        try:
            async with trio.open_nursery() as nursery:
                nursery.start_soon(self.requests.watch_deadlines, self._expire)
                reason = await self._transfer(nursery)
                self.report_lost()
                nursery.cancel_scope.cancel(reason=reason)
        finally:
            self.close(reason)
            trim_heap_soon()  # a partial message and the lists are garbage now
        assert self.end_error is not None
        raise self.end_error

    # ── requests ────────────────────────────────────────────────────────────────────────────────

    def submit(
        self, exchange: Exchange, method: str, params: Raw | bytes = b"", *, plain: bool = False
    ) -> None:
        full = len(self._pending) >= self._max_in_flight and not exchange.long_lived
        if full or self.end_error is not None:
            self._raise_unless_accepting()
        self.last_id = number = self.last_id + 1
        exchange.key = key = b"%d" % number
        exchange.method = method
        exchange.sent_at = now = _batch.now if _batch.depth else trio.current_time()
        deadline, hard_deadline = now + exchange.idle_timeout, now + exchange.total_timeout
        exchange.hard_deadline = hard_deadline
        exchange.deadline = deadline = deadline if deadline < hard_deadline else hard_deadline
        if deadline < self.requests.next_deadline:
            self.requests.watch_earlier(deadline)
        # Every call asks for progress, because it also shows that the server is working.
        if method == "tools/call" or exchange.wants_progress:
            meta = exchange.meta + b',"progressToken":' if exchange.meta else self._call_meta
            frame = request_with_meta(key, method, params, meta, key, plain=plain)
        else:
            frame = request_with_meta(key, method, params, exchange.meta or self._meta, plain=plain)
        if full:
            self.requests.wait_for_turn(exchange, frame)
        elif self.tap is not None or exchange.long_lived:
            self._send(exchange, frame)
        else:
            self._pending[key] = exchange
            self._send_request(exchange, frame)

    def await_answer(self, exchange: Exchange, key: bytes, method: str) -> None:
        exchange.key, exchange.method = key, method
        self._pending[key] = exchange
        self.requests.watch_earlier(exchange.deadline)

    def stop_accepting(self, error: McpdError) -> None:
        self._refusal, self._max_in_flight = error, 0  # so that `submit` needs no further check

    def _raise_unless_accepting(self) -> None:
        if isinstance(self.end_error, LinkLost):
            raise LinkLost(self.end_error.message, server=self.name, may_have_run=False)
        if self.end_error is not None:
            raise self.end_error
        if self._refusal is not None:
            raise self._refusal
        if (waiting := self.requests.waiting) >= self._max_queued:
            raise Overloaded(
                f"{self.name}: {len(self._pending)} requests in flight, {waiting} queued; "
                "nothing was sent, try again later",
                server=self.name,
            )

    def set_dialect(self, dialect: Dialect) -> None:
        self.dialect = dialect
        self._meta = meta = dialect.meta
        self._call_meta = meta + b',"progressToken":' if meta else b'"progressToken":'

    def cancel(self, exchange: Exchange, reason: str) -> None:
        if self._remove(exchange, reason) and exchange.stats is not None:
            exchange.stats.cancelled += 1

    def _remove(self, exchange: Exchange, reason: str) -> bool:
        if self.requests.discard(exchange):
            if not self._withdraw_request(exchange, reason) and exchange.cancellable:
                params = msgspec.json.encode({"requestId": Raw(exchange.key), "reason": reason})
                self.notify("notifications/cancelled", params)
            self._send_queued()
            return True
        return self.requests.withdraw_queued(exchange)

    def fail_cancelled(self, params: Raw | bytes) -> None:
        members = wire.members_or_empty(params)
        exchange = self.requests.pop(wire.normalize_id(bytes(members.get("requestId", b""))))
        if exchange is not None:
            reason = shorten(wire.string_or(members, "reason") or "it gave no reason", 300)
            self._send_queued()
            self._fail_lost(exchange, cancelled_by_server(self.name, exchange, reason))

    def notify(self, method: str, params: bytes = b"") -> None:
        self._tap_and_send(wire.notification(method, params))

    def respond(self, request: Message, result: bytes) -> None:
        self._send_reply(wire.result(request.key, result))

    def refuse(self, request: Message, code: int, message: str) -> None:
        self._send_reply(wire.error(request.key, wire.error_body(code, message)))

    # ── sending ─────────────────────────────────────────────────────────────────────────────────

    def _send(self, exchange: Exchange, frame: bytes) -> None:
        self.requests.add(exchange)
        if self.tap is not None:
            self.tap("→", frame.rstrip())
        self._send_request(exchange, frame)

    def _tap_and_send(self, frame: bytes) -> None:
        if self.end_error is not None:
            return
        if self.tap is not None:
            self.tap("→", frame.rstrip())
        self._send_frame(frame)

    def _send_reply(self, frame: bytes) -> None:
        self._tap_and_send(frame)

    def _send_queued(self) -> None:
        while self._queue and len(self._pending) < self._max_in_flight:
            self._send(*self.requests.take_next())

    # ── results ───────────────────────────────────────────────────────────────────────────────

    def _deliver_response(self, exchange: Exchange, message: Message, line: bytes) -> None:
        """Pass a response to an exchange that was removed from the table."""
        self.last_received_at = _batch.now
        if self._queue:
            self._send_queued()
        if message.error is not ABSENT:
            if message.result is not ABSENT and bytes(message.error) in _NO_ERROR:
                message.error = ABSENT
        elif message.result is ABSENT:
            how = f"without result or error: {shorten(line)}"
            self._fail_lost(exchange, protocol_violation(self.name, exchange, how))
            return
        if message.error is ABSENT and exchange.method == "tools/call":
            self.last_success_at = self.last_received_at
        if exchange.stats is not None:
            passed = self.last_received_at - exchange.sent_at
            exchange.reports_error = exchange.stats.add_response(passed, message, line)
        exchange.response_size = len(line)
        try:
            exchange.answered(message)
        except Exception:
            self._log_bug("forwarding a response")
            text = f"{self.name}: its response to {exchange.description} could not be forwarded"
            self._notify_failed(exchange, ProtocolViolation(text, server=self.name))

    def _fail_lost(self, exchange: Exchange, error: McpdError) -> None:
        """Fail a removed request that will get no response."""
        if exchange.method == "tools/call":
            self.lost_calls.add(error, trio.current_time(), self.last_success_at)
        if exchange.stats is not None:
            exchange.stats.lost += 1
        self._notify_failed(exchange, error)

    def _notify_failed(self, exchange: Exchange, error: McpdError) -> None:
        try:
            exchange.failed(error)
        except Exception:
            self._log_bug(f"failing {exchange.method}")

    def _log_bug(self, doing: str) -> None:
        """A bug in handling one request must not end the connection, which is shared."""
        log.exception("%s: an error in mcpd itself in %s", self.name, doing)

    # ── the end ─────────────────────────────────────────────────────────────────────────────────

    def close(self, reason: str) -> None:
        if self.end_error is not None:
            return
        error = self._refusal or LinkLost(f"{self.name}: {reason}", server=self.name)
        self._fail_all(error, error.message.removeprefix(f"{self.name}: "))

    def report_lost(self) -> None:
        """Report that the connection is lost. To be called before its requests fail."""
        if self.end_error is None and self.on_lost is not None:
            self.on_lost()

    def report_refused(self) -> None:
        """Report that the server has refused a request, or may have ended. See `Channel.on_refused`."""
        if self.on_refused is not None:
            self.on_refused()

    def _fail_all(self, error: McpdError, reason: str) -> None:
        self.end_error = error
        unsent = {*self._unsent_requests(), *self.requests.queued()}
        requests = self.requests.take_all()
        with _batch:
            for exchange in requests:
                may_have_run = exchange not in unsent  # half a request does not run
                if may_have_run or isinstance(error, LinkLost):
                    lost = connection_lost(self.name, exchange, reason, may_have_run=may_have_run)
                    self._fail_lost(exchange, lost)
                else:  # why nothing could be sent at all, such as a refused login, says more
                    self._fail_lost(exchange, error)

    def _expire(self) -> None:
        now = trio.current_time()
        with _batch:
            for exchange in self.requests.expired(now):
                self._remove(exchange, "timed out")
                self._fail_lost(exchange, timed_out(self.name, exchange, now))


_NO_ERROR = (b"null", b"{}", b"false", b'""', b"0")
"""What stands for no error beside a result: some programs write every member that they know."""
_OTHER_FRAMING = (
    "it frames its messages with `Content-Length` headers, as in LSP; in MCP, each message is one line "
    "(the server has a fault, or `command` starts a language server)"
)


class Receiver:
    """Takes the frames of one channel: passes on what they are, and counts what they should not be."""

    def __init__(self, channel: RequestMultiplexer) -> None:
        self._channel = channel
        self._pending = channel.requests.pending
        self._long_lived = channel.requests.long_lived
        self._indented = IndentedMessage()

    def receive(
        self,
        line: bytes,
        exchange: Exchange | None = None,
        *,
        may_be_batch: bool = True,
        message: Message | None = None,
    ) -> None:
        """Handle one frame, within a `batch()`.

        `exchange`: the request on whose own stream it came. `may_be_batch`: False for a part of a batch.
        `message`: the frame if it is parsed already.
        """
        if message is None:
            try:
                is_plain = line.isascii() and len(line) <= MAX_ID
                message = wire.decode_envelope(line) if is_plain else wire.parse(line)
            except DECODE_ERRORS:
                self._receive_unusual(line, exchange, may_be_batch=may_be_batch)
                return
        channel = self._channel
        if channel.tap is not None:
            channel.tap("←", line)
        if message.method:
            self._receive_server_message(message, exchange)
            return
        key = bytes(message.id)
        answered = self._pending.pop(key, None) or self._long_lived.pop(key, None)
        if answered is None:
            self._receive_unmatched(message, line)
        else:
            channel._deliver_response(answered, message, line)

    def _receive_unusual(self, line: bytes, exchange: Exchange | None, *, may_be_batch: bool) -> None:
        """Receive what is not one message, or needs a repair."""
        try:
            message = wire.parse(line)
        except BadFrame:
            self._receive_unparsable(line, exchange, may_be_batch=may_be_batch)
        else:
            self.receive(line, exchange, message=message)

    def _receive_server_message(self, message: Message, exchange: Exchange | None) -> None:
        channel = self._channel
        channel.last_received_at = _batch.now
        if len(message.params) > MAX_BYTES:
            self._refuse_large(message)
        elif message.id is not ABSENT:
            channel.inbound.on_request(message, exchange)
        elif message.method == "notifications/progress":
            self._receive_progress(message)
        else:
            channel.inbound.on_notification(message, exchange)

    def _refuse_large(self, message: Message) -> None:
        """Refuse a request of the server, or ignore a notification, that is too large to be decoded."""
        if message.id is ABSENT:
            self._channel.deviations.count(f"notifications longer than {MAX_BYTES} bytes were ignored")
        else:
            size, method = len(message.params), shorten(message.method, 60)
            text = f"the params of {method} have {size} bytes, and mcpd accepts at most {MAX_BYTES}"
            self._channel.refuse(message, wire.INVALID_PARAMS, text)

    def _receive_unparsable(self, line: bytes, exchange: Exchange | None, *, may_be_batch: bool) -> None:
        channel, stripped = self._channel, line.strip()
        if not stripped:
            return  # blank lines between messages are common
        if channel.allows_batches and may_be_batch and stripped.startswith(b"["):
            try:
                parts = wire.split_batch(stripped, _MAX_BATCH)
            except BadFrame:
                pass  # not a batch
            else:
                for part in parts:
                    self.receive(part, exchange, may_be_batch=False)
                return
        if whole := self._indented.add(line):
            channel.deviations.count("messages were spread over several lines")
            self.receive(whole, exchange)
            return
        if self._indented.has_begun:
            return
        if b"Content-Length:" in line:
            channel.close(_OTHER_FRAMING)
            return
        if found := list(find_messages(stripped)):
            channel.deviations.count("lines had other text besides a message")
            for text in found:
                self.receive(text, exchange)
            return
        if channel.tap is not None:
            channel.tap("←", line)
        channel.deviations.count_unparsable(line)
        unreadable = DroppedMessage("an unparsable message (invalid or nested too deeply)")
        start = MESSAGE_START.search(line)
        unreadable.add(line if start is None else line[start.start() :])
        message = unreadable.envelope()
        if message is None or not is_response(message):
            return
        answered = channel.requests.pop(wire.normalize_id(message.key))
        if answered is not None:
            channel._send_queued()
            how = f"with {unreadable.reason}: {shorten(line)}"
            channel._fail_lost(answered, protocol_violation(channel.name, answered, how))

    def receive_dropped(self, dropped: DroppedMessage) -> None:
        """Fail the request that a message answers which exceeds a limit, or refuse that of the server.

        Call this within a `batch()`.
        """
        channel = self._channel
        channel.last_received_at = _batch.now
        channel.deviations.count(
            f"messages with {dropped.reason} were dropped (raise `maxFrame` to allow them)"
        )
        message = dropped.envelope()
        what = "a message of unknown kind, which may be the response to a call in progress"
        if message is not None and message.method:
            what = shorten(message.method, 60)
            if message.id is not ABSENT:
                channel.refuse(message, wire.INVALID_PARAMS, f"{what} was dropped: it has {dropped.reason}")
        elif message is not None and is_response(message):
            what = "a response to no request in progress"
            answered = channel.requests.pop(self._key_answered(message))
            if answered is not None:
                what = f"the response to {answered.description}"
                channel._send_queued()
                channel._fail_lost(answered, answer_dropped(channel.name, answered, dropped.reason))
        log.warning("%s: %s was dropped: it has %s", channel.name, what, dropped.reason)

    def _key_answered(self, message: Message) -> bytes:
        """Return the id of the request that a dropped response answers; empty if that is unknown.

        If no id could be read, this is the only request in progress.
        """
        if message.id is not ABSENT:
            return wire.normalize_id(message.key)
        keys = [*self._pending, *self._long_lived]
        return keys[0] if len(keys) == 1 else b""

    def _receive_unmatched(self, message: Message, line: bytes) -> None:
        key = message.key
        number = wire.normalize_id(key)
        channel = self._channel
        exchange = channel.requests.pop(number) if number != key else None
        if exchange is not None:
            self._channel.deviations.count("responses had an id of another type than the request")
            message.id = Raw(number)
            channel._deliver_response(exchange, message, line)
        elif key == b"null" and message.error is not ABSENT and (alone := self._key_answered(Message())):
            answered = channel.requests.pop(alone)  # the server could not read the id
            if answered is not None:
                channel._deliver_response(answered, message, line)
        elif key.isdigit() and int(key[:20]) <= channel.last_id:
            channel.deviations.late_replies += 1
        elif self._indented.has_begun:
            self._indented.add(line)  # such as `{}` in an array
        else:
            channel.deviations.count_unparsable(line)

    def _receive_progress(self, message: Message) -> None:
        try:
            token = bytes(wire.members(message.params).get("progressToken", b""))
        except BadFrame:
            return
        exchange = self._pending.get(token) or self._pending.get(wire.normalize_id(token))
        if exchange is None:
            return
        patience = max(trio.current_time() + exchange.idle_timeout, exchange.deadline)  # keep an extension
        exchange.deadline = min(patience, exchange.hard_deadline)
        try:
            exchange.progressed(message.params)
        except Exception:
            self._channel._log_bug("forwarding progress")

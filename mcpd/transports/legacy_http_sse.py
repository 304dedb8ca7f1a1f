"""The HTTP+SSE transport of revision 2024-11-05: the server sends on one event stream, the client by POST.

The stream is the connection: when it breaks, the channel ends.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager, suppress

import httpx
import trio

from mcpd.model.errors import LinkLost, McpdError, ProtocolViolation
from mcpd.model.server_spec import RemoteSpec
from mcpd.model.text import shorten
from mcpd.transports.credentials import Credentials
from mcpd.transports.http_client import bodies
from mcpd.transports.http_client.client_factory import HttpClient, OnResponse, RenewSecrets, open_client
from mcpd.transports.http_client.connection import describe_error
from mcpd.transports.http_client.redirects_and_refusals import HttpEndpoint
from mcpd.transports.mcp_http_responses import EVENT_STREAM, StreamState, read_events
from mcpd.transports.multiplexer import RequestMultiplexer
from mcpd.transports.outgoing_request import Exchange, OutgoingNotifications
from mcpd.wire import message as wire
from mcpd.wire.event_stream import EventTooLong, SseEvent
from mcpd.wire.url import redact_url, resolve_same_origin

_POST_TIMEOUT = 30.0
"""Seconds for a message to be accepted; the response comes on the stream and has its own deadline."""


class SseChannel(RequestMultiplexer):
    """One server, its event stream, and the endpoint that the stream names."""

    has_headers = True

    def __init__(self, spec: RemoteSpec, client: HttpClient) -> None:
        super().__init__(spec)
        self.last_http_status = "HTTP+SSE"
        self._client = client
        self._stream = HttpEndpoint(spec.name, client, spec.url)
        self._max_frame = spec.max_frame
        self._post_endpoint: HttpEndpoint | None = None
        """Where messages are sent; None until the stream has named it."""
        self._early: list[tuple[bytes, Exchange | None]] = []
        self._unposted: set[Exchange] = set()
        self._nursery: trio.Nursery | None = None
        self._notifications = OutgoingNotifications()

    async def _transfer(self, nursery: trio.Nursery) -> str:
        self._nursery = nursery
        try:
            error = await self._run_stream()
        finally:
            self._nursery = None
        self.report_lost()
        self._fail_all(error, error.message.removeprefix(f"{self.name}: "))
        return error.message

    # ── the stream ──────────────────────────────────────────────────────────────────────────────

    async def _run_stream(self) -> McpdError:
        """Read the stream to its end; return why it ended."""
        try:
            response = await self._stream.send("GET", self._headers("", b"", EVENT_STREAM))
        except httpx.TransportError as error:
            return LinkLost(f"{self.name}: {describe_error(error)}", server=self.name, may_have_run=False)
        except McpdError as error:
            return error
        try:
            if not response.is_success:
                return self._stream.refusal_error(response, await bodies.read_short(response))
            if bodies.content_type(response) != EVENT_STREAM:
                kind = shorten(bodies.content_type(response) or "nothing", 60)
                return ProtocolViolation(
                    f"{self.name}: returned {kind} instead of an event stream", server=self.name
                )
            reason = await self._read_stream(response)
        except ProtocolViolation as error:
            return error
        finally:
            await bodies.close(response)
        return LinkLost(f"{self.name}: {reason}", server=self.name)

    async def _read_stream(self, response: httpx.Response) -> str:
        try:
            return await read_events(
                response,
                StreamState(),
                self._max_frame,
                self._take_event,
            )
        except EventTooLong as error:
            return f"it sent an event with {error} (raise `maxFrame` in its definition to allow this)"

    def _take_event(self, event: SseEvent) -> None:
        if event.event == "endpoint":
            self._set_endpoint(event.data.decode("utf-8", "replace").strip())
        elif event.event == "message" and event.data:
            self.receiver.receive(bodies.to_one_line(event.data))

    def _set_endpoint(self, named: str) -> None:
        """Send to this endpoint from now on. Raises ProtocolViolation for one of another origin."""
        if self._post_endpoint is not None:
            return
        url = resolve_same_origin(self._stream.url, named)
        if url is None:
            where = shorten(redact_url(named, self._stream.url))
            raise ProtocolViolation(
                f"{self.name}: names an endpoint of another origin ({where}); nothing was sent there",
                server=self.name,
            )
        self._post_endpoint = HttpEndpoint(self.name, self._client, url)
        early, self._early = self._early, []
        for frame, exchange in early:
            self._start(frame, exchange)

    # ── frames out ──────────────────────────────────────────────────────────────────────────────

    def _send_request(self, exchange: Exchange, frame: bytes) -> None:
        self._unposted.add(exchange)
        self._start(frame, exchange)

    def _send_frame(self, frame: bytes) -> None:
        if self._notifications.reserve():
            self._start(frame, None)

    def _start(self, frame: bytes, exchange: Exchange | None) -> None:
        if self._post_endpoint is None or self._nursery is None:
            self._early.append((frame, exchange))
        elif exchange is None:
            self._nursery.start_soon(self._send_notification, self._post_endpoint, frame)
        else:
            self._nursery.start_soon(self._send_exchange, self._post_endpoint, exchange, frame)

    def _withdraw_request(self, exchange: Exchange, reason: str) -> bool:
        if exchange not in self._unposted:
            return False
        self._unposted.discard(exchange)
        self._early = [entry for entry in self._early if entry[1] is not exchange]
        return True

    def _unsent_requests(self) -> set[Exchange]:
        return self._unposted

    async def wait_flushed(self) -> None:
        await self._notifications.wait_drained()

    def _headers(self, method: str, frame: bytes, accept: str = "*/*") -> dict[str, str]:
        headers = {"Accept": accept, **self.dialect.headers(method, frame)}
        if frame:
            headers["Content-Type"] = "application/json"
        return headers

    async def _send_exchange(self, inbox: HttpEndpoint, exchange: Exchange, frame: bytes) -> None:
        if exchange not in self._unposted:
            return
        self._unposted.discard(exchange)
        try:
            refused = await self._post_frame(inbox, exchange.method, frame)
        except httpx.TransportError as error:
            refused = inbox.connection_lost(error, exchange.description)
        except McpdError as error:
            refused = error
        if refused is not None and self.requests.discard(exchange):
            self._send_queued()
            self._fail_lost(exchange, refused)

    async def _send_notification(self, inbox: HttpEndpoint, frame: bytes) -> None:
        # Failures are ignored: if the server is gone, the stream ends too.
        with self._notifications.sending(), suppress(httpx.TransportError, McpdError):
            await self._post_frame(inbox, wire.method_of(frame), frame)

    async def _post_frame(self, inbox: HttpEndpoint, method: str, frame: bytes) -> McpdError | None:
        """Return why the server refuses the message; None also if it does not answer in time."""
        with trio.move_on_after(_POST_TIMEOUT):
            response = await inbox.send("POST", self._headers(method, frame), frame.rstrip())
            body = await bodies.read_short(response)
            if not response.is_success:
                self.report_refused()
                return inbox.refusal_error(response, body)
        return None


@asynccontextmanager
async def open_http_sse(
    spec: RemoteSpec,
    environ: Mapping[str, str],
    watch: OnResponse | None = None,
    credentials: Credentials | None = None,
    renew_secrets: RenewSecrets | None = None,
) -> AsyncIterator[SseChannel]:
    """Open a channel to the server whose event stream is at `spec.url`. The caller runs it.

    Leaving the block fails pending requests and closes the connections. Raises CannotStart for an unusable
    URL, proxy or CA file.
    """
    async with open_client(
        spec.url, spec.headers, environ, spec.ca_file, watch, credentials, renew_secrets=renew_secrets
    ) as client:
        channel = SseChannel(spec, client)
        try:
            yield channel
        finally:
            channel.close("the connection was closed")

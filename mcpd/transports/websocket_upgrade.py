"""A stream of our own, and a WebSocket on it: connecting, TLS, the handshake, and why a server refuses.

The library that speaks the protocol leaves sockets to the garbage collector after some errors, so
the stream beneath is made here, and closed by whoever asked for it.
"""

from __future__ import annotations

import os
import re
from urllib.parse import urlsplit

import trio
from trio_websocket import ConnectionRejected, WebSocketConnection, wrap_client_stream

from mcpd.model.errors import HttpRefused, LinkLost, McpdError, NeedsAuth
from mcpd.model.server_spec import RemoteSpec
from mcpd.model.text import shorten
from mcpd.support.websocket import MAX_UNCOUNTED, READ_SIZE, GuardedStream
from mcpd.transports.http_client.client_factory import ssl_context
from mcpd.transports.http_client.connection_errors import describe_error
from mcpd.transports.http_client.dial import CONNECT_TIMEOUT, start_tls

SUBPROTOCOL = "mcp"
_STATUS = re.compile(rb"HTTP/1\.\d (\d{3})")


class UpgradedStream(GuardedStream):
    """The stream to a server, which may greet us with something else than WebSocket, or not at all."""

    def __init__(self, stream: trio.abc.Stream, write_timeout: float, max_frame: int) -> None:
        super().__init__(stream, write_timeout, max_frame)
        self.handshake: trio.CancelScope | None = trio.CancelScope()
        """Cancelled when the stream ends; None once the handshake is done."""
        self.status = 0
        """The HTTP status the server began with."""
        self._handshake_bytes = 0

    async def receive_some(self, max_bytes: int | None = None) -> bytes | bytearray:
        data: bytes | bytearray = b""
        try:
            data = await super().receive_some(max_bytes)
        finally:
            if not data:
                self._cancel_handshake()
        if self.handshake is not None:
            found = None if self._handshake_bytes else _STATUS.match(data)
            self.status = self.status if found is None else int(found[1])
            self._handshake_bytes += len(data)
            if self._handshake_bytes > MAX_UNCOUNTED:
                self._cancel_handshake()
                raise trio.BrokenResourceError("a greeting without end")
        return data

    async def aclose(self) -> None:
        self._cancel_handshake()
        await super().aclose()

    def _cancel_handshake(self) -> None:
        if self.handshake is not None:
            self.handshake.cancel(reason="the stream has ended")


async def connect(spec: RemoteSpec) -> trio.abc.Stream:
    """A stream to the server's host, guarded by TLS for `wss`; the caller's to close.

    Raises LinkLost, and OSError for a bad CA file.
    """
    parts = urlsplit(spec.url)
    host, secure = parts.hostname or "", parts.scheme in ("wss", "https")
    context = ssl_context(spec.ca_file) if secure else None
    try:
        with trio.fail_after(CONNECT_TIMEOUT):
            stream = await trio.open_tcp_stream(host, parts.port or (443 if secure else 80))
            return stream if context is None else await start_tls(stream, host, context)
    except trio.TooSlowError:
        reason = f"it cannot be reached: no connection within {CONNECT_TIMEOUT:g} s"
    except trio.BrokenResourceError as error:
        reason = describe_error(error)
    except OSError as error:
        reason = f"it cannot be reached: {_describe_os_error(error)}"
    raise LinkLost(f"{spec.name}: {reason}", server=spec.name, may_have_run=False)


def _describe_os_error(error: OSError) -> str:
    """trio says which addresses failed; why is in the causes."""
    cause = error.__cause__
    for one in cause.exceptions if isinstance(cause, BaseExceptionGroup) else (cause, error):
        if isinstance(one, OSError) and one.errno is not None:
            return os.strerror(one.errno) if one.errno > 0 else str(one.strerror)  # below 0: of a name
    return str(error)


async def upgrade(spec: RemoteSpec, nursery: trio.Nursery, wire: UpgradedStream) -> WebSocketConnection:
    """Agree on WebSocket. What reads the connection runs in `nursery`, and may raise there too:
    see `only_reason`. Raises LinkLost, NeedsAuth, HttpRefused."""
    parts = urlsplit(spec.url)
    connection: WebSocketConnection | None = None
    assert wire.handshake is not None
    with trio.move_on_after(CONNECT_TIMEOUT) as waiting, wire.handshake:
        connection = await wrap_client_stream(
            nursery,
            wire,  # type: ignore[arg-type]  # any stream will do
            parts.netloc.rpartition("@")[2],
            (parts.path or "/") + (f"?{parts.query}" if parts.query else ""),
            subprotocols=[SUBPROTOCOL],
            extra_headers=[(name.encode(), value.encode()) for name, value in spec.headers.items()],
            max_message_size=spec.max_frame,
            receive_buffer_size=READ_SIZE,
        )
    wire.handshake = None
    if connection is not None:
        return connection
    if wire.status:
        raise _refusal(spec.name, ConnectionRejected(wire.status, (), None))
    how = "is silent" if waiting.cancelled_caught else "does not answer as a WebSocket server does"
    raise LinkLost(f"{spec.name}: it {how}", server=spec.name, may_have_run=False)


def unwrap_failure(group: BaseExceptionGroup[BaseException], name: str) -> BaseException:
    """Why there is no connection, freed from the nursery's wrapping."""
    reasons = list(group.exceptions)
    rejected = next((reason for reason in reasons if isinstance(reason, ConnectionRejected)), None)
    if rejected is not None:
        return _refusal(name, rejected)
    return reasons[0] if len(reasons) == 1 else group


def _refusal(name: str, rejected: ConnectionRejected) -> McpdError:
    status = rejected.status_code
    headers = {key.lower(): value.decode("latin-1") for key, value in rejected.headers}
    said = f"{name}: HTTP {status} instead of a WebSocket"
    if status in (401, 403):
        return NeedsAuth(
            f"{said}: put an `Authorization` header into `headers` of its definition",
            server=name,
            status=status,
        )
    words = headers.get(b"location", "") or (rejected.body or b"").strip()[:200].decode("utf-8", "replace")
    return HttpRefused(f"{said}" + (f": {shorten(words)}" if words else ""), server=name, status=status)

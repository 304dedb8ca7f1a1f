"""TLS in front of an HTTP connection, which itself reads and writes a plain socket."""

from __future__ import annotations

import errno
import logging
import os
import socket as sockets
import ssl
from collections.abc import Awaitable, Callable
from contextlib import suppress

import trio

from mcpd.api.listeners import PendingConnection, Slot
from mcpd.config.http import TlsFiles

log = logging.getLogger("mcpd.http")

HANDSHAKE_TIMEOUT = 10.0
_PIECE = 1 << 16
_CLOSE_TIMEOUT = 2.0


class TlsServer:
    """The certificate of a port. Renewed files are used from the next connection on, if they are usable.

    Raises OSError if the files cannot be used; its `strerror` names them.
    """

    def __init__(self, files: TlsFiles) -> None:
        self._files = files
        self._context: ssl.SSLContext
        self._loaded: object = None
        self._problem = ""
        if problem := self.renew():
            raise OSError(errno.EINVAL, f"{problem}; correct the files")

    def renew(self) -> str:
        """Use the files, if they have changed. Returns why that is impossible: the old certificate stays."""
        files, problem = self._files, ""
        try:
            self._load()
        except OSError as error:
            why = error.strerror or str(error)
            if isinstance(error, ssl.SSLError):  # "PEM lib"
                why = "they are not a certificate and its private key, as PEM and without a passphrase"
            problem = f"cannot use {files.certificate} with {files.key}: {why}"
        if problem and problem != self._problem:
            log.warning("%s", problem)
        self._problem = problem
        return problem

    def _load(self) -> None:
        """Raises OSError."""
        files = self._files
        modified = [os.stat(path).st_mtime_ns for path in (files.certificate, files.key)]
        if modified != self._loaded:
            context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
            context.minimum_version = ssl.TLSVersion.TLSv1_2
            context.load_cert_chain(files.certificate, files.key)
            self._context, self._loaded = context, modified

    async def serve(
        self, connection: sockets.socket, slot: Slot, handle: Callable[[sockets.socket], Awaitable[None]]
    ) -> None:
        """Run `handle` with a socket that carries the decrypted data. Returns when it has ended.

        The caller closes `connection`. A client that does not complete the handshake is dropped.
        """
        self.renew()
        transport = trio.SocketStream(trio.socket.from_stdlib_socket(connection))
        stream = trio.SSLStream(transport, self._context, server_side=True, https_compatible=True)
        pending, is_done = PendingConnection(), False
        with (
            suppress(trio.BrokenResourceError, trio.ClosedResourceError),
            pending.scope,
            slot.held_by(pending),
            trio.move_on_after(HANDSHAKE_TIMEOUT),
        ):
            await stream.do_handshake()
            is_done = True
        if not is_done:
            return
        inner, outer = sockets.socketpair()
        with inner, outer:
            inner.setblocking(False)
            plain = trio.SocketStream(trio.socket.from_stdlib_socket(outer))
            async with trio.open_nursery() as nursery:
                nursery.start_soon(_copy, stream, plain)
                sending = trio.Event()
                nursery.start_soon(_send, plain, stream, sending)
                await handle(inner)
                inner.close()
                with trio.move_on_after(_CLOSE_TIMEOUT):
                    await sending.wait()
                nursery.cancel_scope.cancel(reason="the connection has ended")


async def _copy(source: trio.abc.ReceiveStream, target: trio.SocketStream) -> None:
    """Copy what the client sends, up to its end."""
    try:
        while data := await source.receive_some(_PIECE):
            await target.send_all(data)
        await target.send_eof()
    except (trio.BrokenResourceError, trio.ClosedResourceError):
        target.socket.close()


async def _send(
    source: trio.SocketStream, target: trio.SSLStream[trio.SocketStream], done: trio.Event
) -> None:
    """Copy what the client gets, and then close TLS."""
    try:
        while data := await source.receive_some(_PIECE):
            await target.send_all(data)
        await target.aclose()
    except (trio.BrokenResourceError, trio.ClosedResourceError):
        pass
    finally:
        done.set()

"""A client of Redis whose answers are bounded in time and bytes, whatever the server sends.

Everything here blocks; call it in a thread. `redis` is the extra `[redis]`.
"""

from __future__ import annotations

import socket as sockets
import time
from typing import Any

import redis
from redis.backoff import NoBackoff
from redis.connection import parse_url
from redis.retry import Retry

TIMEOUT = 2.0
"""Seconds for one command, with its answer."""
MAX_ANSWER = 2 << 20
FAILURES = (redis.RedisError, OSError, ValueError, TypeError, LookupError, AttributeError, RecursionError)
"""What the library raises, also for an answer that is nonsense."""
UNREACHABLE = (redis.ConnectionError, redis.TimeoutError, OSError)


def connect(url: str) -> redis.Redis:
    """Return a client. A command is sent once: it may not be known whether it ran."""
    options = parse_url(url)  # type: ignore[no-untyped-call]
    base = options.pop("connection_class", redis.Connection)
    pool = redis.ConnectionPool(
        connection_class=type("BoundedConnection", (_Bounded, base), {}),
        socket_timeout=TIMEOUT,
        socket_connect_timeout=TIMEOUT,
        retry=Retry(NoBackoff(), 0),
        protocol=2,
        **options,
    )
    return redis.Redis(connection_pool=pool)


def reason(error: Exception) -> str:
    """Return why Redis did not answer, without what may contain a password."""
    return type(error).__name__


class _Bounded:
    """A connection of the library with a bounded socket."""

    def _connect(self) -> _BoundedSocket:
        return _BoundedSocket(super()._connect())  # type: ignore[misc]  # of the library's class


class _BoundedSocket:
    """The library limits the time between two bytes, and not how many there are."""

    def __init__(self, socket: sockets.socket) -> None:
        self._socket = socket
        self._until = 0.0
        self._room = 0

    def __getattr__(self, name: str) -> Any:  # noqa: ANN401  # whatever the socket has
        return getattr(self._socket, name)

    def sendall(self, data: bytes) -> None:
        self._until, self._room = time.monotonic() + TIMEOUT, MAX_ANSWER
        self._socket.settimeout(TIMEOUT)
        self._socket.sendall(data)

    def recv(self, size: int) -> bytes:
        if self._socket.gettimeout() == 0:  # whether a connection of the pool is still good
            return self._socket.recv(size)
        left = self._until - time.monotonic()
        if left <= 0:
            raise TimeoutError
        self._socket.settimeout(left)
        data = self._socket.recv(size)
        self._room -= len(data)
        if self._room < 0:
            raise redis.InvalidResponse("the answer is too large")
        return data

"""A Redis that answers with too much, too slowly, or nonsense costs one command, and a bounded time."""

from __future__ import annotations

import itertools
import socket
import threading
import time
from collections.abc import Callable, Iterator

import pytest

from mcpd.auth.shared_token_store import SharedKey, SharedTokenStore
from mcpd.auth.token_store import StoreError
from mcpd.state.redis_client import MAX_ANSWER, TIMEOUT

SLACK = 20.0


def huge(client: socket.socket) -> int:
    """Announce more than the memory, and send it."""
    client.sendall(b"$99999999999\r\n")
    return send_all(client, itertools.repeat(b"x" * 65536), 0)


def nested(client: socket.socket) -> int:
    return send_all(client, itertools.repeat(b"*1\r\n" * 10_000), 0)


def many(client: socket.socket) -> int:
    client.sendall(b"*999999999\r\n")
    return send_all(client, itertools.repeat(b"*0\r\n" * 10_000), 0)


def dripping(client: socket.socket) -> int:
    client.sendall(b"$1000\r\n")
    return send_all(client, itertools.repeat(b"x"), 0.2)


def send_all(client: socket.socket, parts: Iterator[bytes], pause: float) -> int:
    """Send until the client has enough. Return how many bytes it took."""
    sent = 0
    for part in parts:
        try:
            client.sendall(part)
        except OSError:
            break
        sent += len(part)
        time.sleep(pause)
    return sent


@pytest.mark.parametrize("attack", [huge, nested, many, dripping])
def test_answer_is_bounded(attack: Callable[[socket.socket], int]) -> None:
    taken: list[int] = []
    with socket.create_server(("127.0.0.1", 0)) as server:

        def serve() -> None:
            client, _ = server.accept()
            with client:
                while b"GETRANGE" not in (request := client.recv(65536)):
                    if not request:
                        return
                    client.sendall(b"+OK\r\n" * request.count(b"*"))
                taken.append(attack(client))

        thread = threading.Thread(target=serve, daemon=True)
        thread.start()
        store = SharedTokenStore(f"redis://127.0.0.1:{server.getsockname()[1]}", SharedKey(b"a"))
        began = time.monotonic()
        with pytest.raises(StoreError, match="Redis"):
            store.read()
        assert time.monotonic() - began < TIMEOUT + SLACK
        thread.join(SLACK)
        assert taken[0] < MAX_ANSWER + (16 << 20)  # with what the kernel keeps

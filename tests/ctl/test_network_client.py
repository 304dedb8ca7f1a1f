"""The connection of `mcpctl --url`, to a server that behaves as the network may."""

from __future__ import annotations

import json
import socket
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from wsproto import ConnectionType, WSConnection
from wsproto.events import AcceptConnection, CloseConnection, Ping, Request, TextMessage

from ctl.cli.errors import DaemonUnreachable
from ctl.daemon import network
from ctl.daemon.network import NetworkClient, checked_origin
from tests.e2e.harness import BOUND

Serve = Callable[[WSConnection, socket.socket, int], None]
"""Called with the ID of the first request."""


@contextmanager
def connected(serve: Serve, tmp_path: Path) -> Iterator[NetworkClient]:
    (tmp_path / "token").write_text("t" * 43)
    with socket.create_server(("127.0.0.1", 0)) as listener:

        def run() -> None:
            connection = listener.accept()[0]
            with connection:
                protocol = WSConnection(ConnectionType.SERVER)
                while data := connection.recv(1 << 16):
                    protocol.receive_data(data)
                    for event in protocol.events():
                        if isinstance(event, Request):
                            accept = AcceptConnection(subprotocol=network.PROTOCOL)
                            connection.sendall(protocol.send(accept))
                        elif isinstance(event, TextMessage):
                            serve(protocol, connection, json.loads(event.data)["id"])

        thread = threading.Thread(target=run, daemon=True)
        thread.start()
        origin = checked_origin(f"http://127.0.0.1:{listener.getsockname()[1]}")
        client = NetworkClient(origin, str(tmp_path / "token"))
        with client:
            yield client
        thread.join(BOUND)
    assert not thread.is_alive()


def test_answer_may_come_together_with_the_end(tmp_path: Path) -> None:
    def serve(protocol: WSConnection, connection: socket.socket, key: int) -> None:
        answer = json.dumps({"jsonrpc": "2.0", "id": key, "result": {"text": "ä"}}, ensure_ascii=False)
        half = len(answer) // 2
        parts = [
            protocol.send(Ping()),
            protocol.send(TextMessage(answer[:half], message_finished=False)),
            protocol.send(TextMessage(answer[half:])),
            protocol.send(CloseConnection(1001, "mcpd is stopping")),
        ]
        connection.sendall(b"".join(parts))
        connection.shutdown(socket.SHUT_WR)

    with connected(serve, tmp_path) as client:
        assert client.request("mcpd/version").value == {"text": "ä"}
        with pytest.raises(DaemonUnreachable, match="mcpd is stopping") as caught:
            client.request("mcpd/call", {})
    assert "may_have_run" in caught.value.details


def test_connection_without_any_data_is_given_up(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(network, "_SILENCE", 0.3)
    with (
        connected(lambda *_: None, tmp_path) as client,
        pytest.raises(DaemonUnreachable, match="nothing came") as caught,
    ):
        client.request("mcpd/call", {}, timeout=None)
    assert caught.value.details["may_have_run"] is True

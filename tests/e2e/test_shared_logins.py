"""Replicas that share their logins in a real Redis server: one of them renews a token, and all use it."""

from __future__ import annotations

import shutil
import signal
import subprocess
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

import pytest
import redis

from mcpd.auth.shared_token_store import SharedKey, SharedTokenStore
from mcpd.auth.token_store import StoredLogins, StoreError
from tests.e2e.harness import BOUND, Daemon, Json, running, wait_until
from tests.e2e.login_people import logged_in, needs_login, served
from tests.interop.peers import free_port

pytestmark = pytest.mark.skipif(shutil.which("redis-server") is None, reason="redis-server is not installed")
CALLS = 50


@pytest.fixture
def store(tmp_path: Path) -> Iterator[tuple[str, subprocess.Popen[bytes]]]:
    path = tmp_path / "redis.sock"
    command = ["redis-server", "--port", "0", "--unixsocket", str(path), "--save", "", "--dir", str(tmp_path)]
    process = subprocess.Popen(command, stdout=subprocess.DEVNULL)
    try:
        wait_until(path.exists, lambda: "Redis did not start")
        yield f"unix://{path}", process
    finally:
        process.send_signal(signal.SIGCONT)
        process.kill()
        process.wait(BOUND)


@contextmanager
def replicas(home: Path, url: str, server: str, count: int) -> Iterator[list[Daemon]]:
    with ExitStack() as stack:
        found = []
        for number in range(count):
            address = f"127.0.0.1:{free_port()}"
            cluster = {"key": "k" * 32, "address": f"http://{address}", "redis": url}
            settings: Json = {"http": {"listen": address, "cluster": cluster}}
            (home / str(number)).mkdir()
            servers = {"remote": {"url": server}}
            found.append(stack.enter_context(running(home / str(number), servers, settings=settings)))
        yield found


def test_one_replica_renews_and_all_use_the_token(
    tmp_path: Path, store: tuple[str, subprocess.Popen[bytes]]
) -> None:
    """Also while Redis does not answer, calls go on."""
    url, process = store
    with served() as server, replicas(tmp_path, url, server.url, 2) as daemons:
        for daemon in daemons:
            needs_login(daemon)
        logged_in(daemons[0])
        for daemon in daemons[1:]:
            with daemon.client() as client:
                client.request("mcpd/reconnect", server="remote")
            daemon.wait_connected("remote")
        assert b"-secret" not in (redis.Redis.from_url(url).get("mcpd:logins") or b"")

        asked = len(server.token_requests)
        server.access_tokens.clear()  # as if it had expired
        clients = [daemon.client() for daemon in daemons]
        sent = [
            (client, client.send("mcpd/call", server="remote", tool="echo", arguments={}))
            for client in clients
            for _ in range(CALLS // len(clients))
        ]
        assert all(client.answer(key)["success"] for client, key in sent)
        assert len(server.token_requests) == asked + 1

        process.send_signal(signal.SIGSTOP)
        for client in clients:
            assert client.call("remote", "echo")["success"]
        process.send_signal(signal.SIGCONT)
        assert not any("-secret" in daemon.log for daemon in daemons)


@pytest.mark.parametrize(
    "content", [b"\x00", b"{}", b"[" * 100_000, b'{"version": 1, "servers": {}, "logins": {}}']
)
def test_content_that_no_replica_wrote_is_not_used(
    store: tuple[str, subprocess.Popen[bytes]], content: bytes
) -> None:
    """A copy is kept of it. What was encrypted with another key is not replaced."""
    url, _ = store
    database = redis.Redis.from_url(url)
    database.set("mcpd:logins", content)
    logins = SharedTokenStore(url, SharedKey(b"a"))
    assert logins.open() == StoredLogins()
    assert "damaged" in logins.problem
    logins.change(lambda found: found)
    assert database.get("mcpd:logins:damaged") == content
    assert logins.open() == StoredLogins()
    assert logins.problem == ""
    other = SharedTokenStore(url, SharedKey(b"b"))
    other.open()
    assert "another key" in other.problem
    with pytest.raises(StoreError):
        other.change(lambda found: found)


def test_lease_is_of_one_replica(store: tuple[str, subprocess.Popen[bytes]]) -> None:
    """It ends with the change, or when its time is over. A replica that lost it writes nothing."""
    url, _ = store
    database = redis.Redis.from_url(url)
    one, two = (SharedTokenStore(url, SharedKey(b"a")) for _ in range(2))
    one.claim()
    two.claim()
    assert (one.is_keeper, two.is_keeper) == (True, False)
    assert two.other_daemon
    one.change(lambda found: found)
    two.claim()
    assert (one.is_keeper, two.is_keeper) == (False, True)
    database.delete("mcpd:logins:lease")
    one.claim()
    before = database.get("mcpd:logins")
    with pytest.raises(StoreError, match="another replica"):
        two.change(lambda found: found)
    assert database.get("mcpd:logins") == before
    assert not two.is_keeper

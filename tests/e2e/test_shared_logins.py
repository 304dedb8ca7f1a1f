"""Replicas that share their logins in a real Redis server: one of them renews a token, and all use it."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest
import redis

from mcpd.auth.shared_token_store import SharedKey, SharedTokenStore
from mcpd.auth.token_store import StoredLogins, StoreError
from tests.e2e.login_people import logged_in, needs_login, served
from tests.e2e.redis_replicas import RedisServer, redis_server, replicas

pytestmark = pytest.mark.skipif(shutil.which("redis-server") is None, reason="redis-server is not installed")
CALLS = 50


@pytest.fixture
def store(tmp_path: Path) -> Iterator[RedisServer]:
    with redis_server(tmp_path) as server:
        yield server


def test_one_replica_renews_and_all_use_the_token(tmp_path: Path, store: RedisServer) -> None:
    """Also while Redis does not answer, calls go on."""
    url = store.url
    with served() as server, replicas(tmp_path, url, {"remote": {"url": server.url}}) as daemons:
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

        with store.stopped():
            for client in clients:
                assert client.call("remote", "echo")["success"]
        assert not any("-secret" in daemon.log for daemon in daemons)


@pytest.mark.parametrize(
    "content", [b"\x00", b"{}", b"[" * 100_000, b'{"version": 1, "servers": {}, "logins": {}}']
)
def test_content_that_no_replica_wrote_is_not_used(store: RedisServer, content: bytes) -> None:
    """A copy is kept of it. What was encrypted with another key is not replaced."""
    url = store.url
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


def test_lease_is_of_one_replica(store: RedisServer) -> None:
    """It ends with the change, or when its time is over. A replica that lost it writes nothing."""
    url = store.url
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

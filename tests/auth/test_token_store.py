"""The file with all logins: access, durability, the lock, and damage of every kind (T4, T11)."""

from __future__ import annotations

import errno
import json
import logging
import os
import stat
import subprocess
import sys
from pathlib import Path

import attrs
import pytest

from mcpd.auth.oauth.registration import ClientRegistration
from mcpd.auth.oauth.tokens import TokenSet
from mcpd.auth.token_store import (
    StoredLogin,
    StoredLogins,
    StoreError,
    TokenStore,
)

URL = "https://mcp.example/mcp"
CLIENT = ClientRegistration(
    "https://as.example", "client-1", redirect_uris=("http://127.0.0.1:32180/callback",)
)
LOGIN = StoredLogin(
    resource=URL,
    issuer="https://as.example",
    account="default",
    client=CLIENT,
    token_endpoint="https://as.example/token",
    tokens=TokenSet("access-canary-1", "refresh-canary-1", "Bearer", 1000.0, 4600.0, ("read", "write")),
    sent_resource=URL,
    requested_scopes=("read",),
    logged_in_at=1000.0,
)


def opened(home: Path) -> TokenStore:
    store = TokenStore(home)
    store.open()
    return store


def save(store: TokenStore, login: StoredLogin = LOGIN) -> StoredLogins:
    return store.change(lambda logins: logins.with_login(login, URL))


def test_what_was_written_is_read_again(tmp_path: Path) -> None:
    """The file is private, and so is its directory."""
    store = opened(tmp_path)
    full = attrs.evolve(
        LOGIN,
        attempt_at=5.0,
        ended="over",
    )
    save(store, full)
    found = store.read()
    assert found.logins == {full.id: full}
    assert found.login_of(URL, "default") == full
    assert found.login_of(URL, "work") is None
    assert stat.S_IMODE(store.path.stat().st_mode) == 0o600
    assert stat.S_IMODE(store.directory.stat().st_mode) == 0o700
    store.change(lambda logins: logins.without_login(full.id))
    assert store.read() == StoredLogins()
    store.close()


def test_the_lock_is_released_by_the_kernel(tmp_path: Path) -> None:
    """Nothing has to be cleaned up after a daemon was killed."""
    program = (
        "import sys; from pathlib import Path; from mcpd.auth.token_store import TokenStore;"
        "store = TokenStore(Path(sys.argv[1])); store.open();"
        "print(store.is_keeper, flush=True); sys.stdin.read()"
    )
    command = [sys.executable, "-c", program, str(tmp_path)]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as other:
        assert other.stdout is not None
        assert other.stdout.readline() == b"True\n"
        store = opened(tmp_path)
        assert store.other_daemon == f"another mcpd (process {other.pid})"
        other.kill()
        other.wait()
        store.open()
        assert store.is_keeper
        store.close()


@pytest.mark.parametrize("mode", [0o644, 0o640, 0o604, 0o660])
def test_a_file_that_others_can_access_is_not_used_or_changed(
    tmp_path: Path, mode: int, caplog: pytest.LogCaptureFixture
) -> None:
    """The message says how to allow it; then the file is used again."""
    store = opened(tmp_path)
    save(store)
    store.path.chmod(mode)
    before = store.path.read_bytes()
    with caplog.at_level(logging.WARNING):
        assert store.open() == StoredLogins()
        assert store.open() == StoredLogins()
    assert caplog.text.count(f"chmod 600 {store.path}") == 1
    with pytest.raises(StoreError, match="other users can access"):
        save(store)
    assert store.path.read_bytes() == before
    assert store.problem
    store.path.chmod(0o600)
    assert store.read().logins
    assert not store.problem
    store.close()


def test_a_file_of_another_user_is_not_used(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Somebody may have put it there to have mcpd use their tokens."""
    store = opened(tmp_path)
    save(store)
    uid = os.getuid()
    monkeypatch.setattr("mcpd.auth.token_store.os.getuid", lambda: uid + 1)
    with pytest.raises(StoreError, match="belongs to another user"):
        store.read()
    with pytest.raises(StoreError, match="belongs to another user"):
        save(store)
    store.close()


@pytest.mark.parametrize("what", ["directory", "fifo", "symlink loop"])
def test_something_else_in_its_place_is_reported(tmp_path: Path, what: str) -> None:
    """It is left as it is, and nothing waits for it."""
    store = opened(tmp_path)
    if what == "directory":
        store.path.mkdir()
    elif what == "fifo":
        os.mkfifo(store.path)
    else:
        store.path.symlink_to(store.path.name)
    assert store.open() == StoredLogins()
    with pytest.raises(StoreError, match=r"logins\.json"):
        save(store)
    assert os.path.lexists(store.path)
    store.close()


@pytest.mark.parametrize("where", ["write", "fsync", "replace"])
def test_a_full_disk_changes_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, where: str) -> None:
    """The old contents stay, and no temporary file."""
    store = opened(tmp_path)
    save(store)
    before = store.path.read_bytes()

    def full(*_: object) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    with monkeypatch.context() as patch:
        if where == "write":
            patch.setattr("mcpd.files.atomic.tempfile.mkstemp", lambda **_: full())
        else:
            patch.setattr(f"mcpd.files.atomic.os.{where}", full)
        with pytest.raises(StoreError, match="No space left"):
            save(store, attrs.evolve(LOGIN, generation=2))
    assert store.path.read_bytes() == before
    assert sorted(path.name for path in store.directory.iterdir()) == ["lock", "logins.json"]
    save(store, attrs.evolve(LOGIN, generation=2))
    assert not store.problem
    store.close()


@pytest.mark.parametrize(
    "content", [b"", b"{", b"null", b"[]", b"{}", b'{"version":1,"logins":[]}', b"\xff\xfe", b"[" * 100_000]
)
def test_a_damaged_file_is_kept_and_replaced_by_the_next_login(tmp_path: Path, content: bytes) -> None:
    """Reading changes nothing; the next login keeps a copy of the file."""
    store = opened(tmp_path)
    store.path.write_bytes(content)
    store.path.chmod(0o600)
    assert store.open() == StoredLogins()
    assert store.path.read_bytes() == content
    assert "damaged" in store.problem
    save(store)
    assert store.read().logins
    (kept,) = store.directory.glob("logins.json.damaged-*")
    assert kept.read_bytes() == content
    assert not store.problem
    store.close()


@pytest.mark.parametrize("damage", [None, {}, {"tokens": 1}, {"client": {}}, {"generation": -1}])
def test_a_damaged_login_does_not_take_the_others_with_it(tmp_path: Path, damage: object) -> None:
    """The next change keeps a copy of the file."""
    store = opened(tmp_path)
    save(store)
    document = json.loads(store.path.read_bytes())
    entry = document["logins"][LOGIN.id]
    document["logins"]["other"] = {**entry, **damage} if isinstance(damage, dict) and damage else damage
    content = json.dumps(document).encode()
    store.path.write_bytes(content)
    assert store.read().login_of(URL, "default") == LOGIN
    assert "1 of the logins" in store.problem
    save(store, attrs.evolve(LOGIN, generation=2))
    assert store.read().logins.keys() == {LOGIN.id}
    assert store.problem == ""
    (kept,) = store.directory.glob("logins.json.damaged-*")
    assert kept.read_bytes() == content
    store.close()


def test_logins_of_earlier_versions_are_read(tmp_path: Path) -> None:
    """As they wrote them, during a renewal."""
    store = opened(tmp_path)
    save(store)
    document = json.loads(store.path.read_bytes())
    (entry,) = document["logins"].values()
    for name in ("attempt_at", "ended"):
        del entry[name]
    entry |= {"extra_parameters": {}, "subject": None, "machine": "m", "renewed_at": 1000.0, "ended": None}
    entry["attempt"] = {"generation": 1, "at": 5.0, "token_hash": "0" * 32}
    entry["client"] |= {"secret_expires_at": None, "registered_at": 1000.0}
    document["clients"] = {"https://as.example\n127.0.0.1": entry["client"]}
    store.path.write_text(json.dumps(document))
    assert store.read().login_of(URL, "default") == attrs.evolve(LOGIN, attempt_at=5.0)
    entry["ended"] = {"at": 9.0, "message": "over", "error": "invalid_grant", "status": 400, "generation": 1}
    store.path.write_text(json.dumps(document))
    assert store.read().logins[LOGIN.id].ended == "over"
    store.close()


def test_a_file_of_a_later_version_is_not_changed(tmp_path: Path) -> None:
    """An older mcpd must not destroy what it does not understand."""
    store = opened(tmp_path)
    store.path.write_bytes(b'{"version": 3, "logins": {}}')
    store.path.chmod(0o600)
    assert store.open() == StoredLogins()
    with pytest.raises(StoreError, match="another version"):
        save(store)
    assert store.path.read_bytes() == b'{"version": 3, "logins": {}}'
    store.close()

"""The file of logins, encrypted with a key of the keyring or of systemd."""

from __future__ import annotations

import json
import os
import secrets
import shutil
import subprocess
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path

import pytest
import trio
from trio.testing import MockClock

from mcpd.auth.login_encryption import (
    CREDENTIAL,
    CannotUnseal,
    CredentialKey,
    KeyringKey,
    KeyUnavailable,
    _connected,
    login_key,
    read_secret,
    seal,
    store_secret,
    unseal,
)
from mcpd.auth.token_manager import TokenManager
from mcpd.auth.token_store import StoredLogins, StoreError, TokenStore
from mcpd.privacy.redact import Redactor
from mcpd.transports.credentials import UNSIGNED
from tests.auth.authorization_server import START, URL, AuthorizationServer, a_login

KEY = secrets.token_bytes(32)
TOKENS = {"access_token": "access-canary", "refresh_token": "refresh-canary"}


class FakeKey:
    may_appear = True

    def __init__(self, key: bytes = KEY, problem: str = "") -> None:
        self.key = key
        self.problem = problem

    def read(self, *, create: bool = False) -> bytes:
        if self.problem:
            raise KeyUnavailable(self.problem)
        return self.key


def with_login(found: StoredLogins) -> StoredLogins:
    return found.with_login(a_login(TOKENS, START), URL)


def opened(home: Path, key: FakeKey | None) -> TokenStore:
    store = TokenStore(home, key)
    store.open()
    return store


def test_an_encrypted_file_contains_no_token_and_can_be_read_again(tmp_path: Path) -> None:
    store = opened(tmp_path, FakeKey())
    store.change(with_login)
    text = store.path.read_text()
    assert "canary" not in text
    assert "example" not in text
    assert store.path.stat().st_mode & 0o777 == 0o600
    store.close()
    again = opened(tmp_path, FakeKey())
    (login,) = again.read().logins.values()
    assert login.tokens.refresh_token == "refresh-canary"
    again.close()


def test_a_plain_file_is_encrypted_at_once(tmp_path: Path) -> None:
    plain = opened(tmp_path, None)
    plain.change(with_login)
    assert "canary" in plain.path.read_text()
    plain.close()
    store = opened(tmp_path, FakeKey())
    assert "canary" not in store.path.read_text()
    assert len(store.read().logins) == 1
    store.close()


@pytest.mark.parametrize(
    ("key", "text"),
    [
        (None, "is encrypted; set `loginStorage`"),
        (FakeKey(problem="the keyring is locked"), "the keyring is locked"),
        (FakeKey(secrets.token_bytes(32)), "encrypted with another key"),
    ],
)
def test_without_the_key_the_file_is_neither_used_nor_changed(
    tmp_path: Path, key: FakeKey | None, text: str
) -> None:
    """There is no second place, and no silent return to plain text."""
    store = opened(tmp_path, FakeKey())
    store.change(with_login)
    store.close()
    before = store.path.read_bytes()
    other = opened(tmp_path, key)
    assert text in other.problem
    with pytest.raises(StoreError, match=text):
        other.change(with_login)
    assert store.path.read_bytes() == before
    other.close()


@pytest.mark.parametrize("damage", [{"nonce": "x"}, {"data": ""}, {"data": "AAAA"}, {"cipher": "none"}])
def test_a_changed_document_is_refused(damage: Mapping[str, str]) -> None:
    sealed = seal(b"data", KEY)
    assert unseal(sealed, KEY) == b"data"
    with pytest.raises(CannotUnseal):
        unseal({**sealed, **damage}, KEY)


def test_a_systemd_credential_is_a_key(tmp_path: Path) -> None:
    environ = {"CREDENTIALS_DIRECTORY": str(tmp_path)}
    with pytest.raises(KeyUnavailable, match="No such file"):
        CredentialKey(environ).read()
    with pytest.raises(KeyUnavailable, match="has not provided"):
        CredentialKey({}).read()
    path = tmp_path / CREDENTIAL
    path.write_bytes(b"short")
    with pytest.raises(KeyUnavailable, match="fewer than 32 bytes"):
        CredentialKey(environ).read()
    path.write_bytes(secrets.token_bytes(48))
    key = CredentialKey(environ)
    assert key.read() == key.read(create=True)
    assert len(key.read()) == 32
    assert isinstance(login_key("credential", environ), CredentialKey)
    assert isinstance(login_key("keyring", environ), KeyringKey)
    assert login_key("file", environ) is None


# ── a real keyring ──────────────────────────────────────────────────────────────────────────────


_BUS = """<busconfig>
  <type>session</type>
  <listen>unix:dir={}</listen>
  <policy context="default">
    <allow send_destination="*" eavesdrop="true"/> <allow eavesdrop="true"/> <allow own="*"/>
  </policy>
</busconfig>"""
"""A bus that starts no service by itself."""


@pytest.fixture
def session(tmp_path: Path) -> Iterator[Mapping[str, str]]:
    """Run a session bus with GNOME Keyring, whose login collection is unlocked."""
    pytest.importorskip("secretstorage", reason="SecretStorage is not installed")
    for program in ("dbus-daemon", "gnome-keyring-daemon"):
        if shutil.which(program) is None:
            pytest.skip(f"{program} is not installed")
    runtime = tmp_path / "runtime"
    runtime.mkdir(mode=0o700)
    environ = {"HOME": str(tmp_path), "PATH": os.environ["PATH"], "XDG_RUNTIME_DIR": str(runtime)}
    config = tmp_path / "bus.conf"
    config.write_text(_BUS.format(runtime))
    bus = subprocess.Popen(
        ["dbus-daemon", f"--config-file={config}", "--nofork", "--print-address=1"],
        env=environ,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
    )
    keyring: subprocess.Popen[bytes] | None = None
    try:
        assert bus.stdout is not None
        environ["DBUS_SESSION_BUS_ADDRESS"] = bus.stdout.readline().strip()
        with pytest.raises(KeyUnavailable, match="no keyring runs"):
            read_secret({"DBUS_SESSION_BUS_ADDRESS": environ["DBUS_SESSION_BUS_ADDRESS"]})
        keyring = subprocess.Popen(
            ["gnome-keyring-daemon", "--foreground", "--components=secrets", "--unlock"],
            env=environ,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
        )
        assert keyring.stdin is not None
        assert keyring.stdout is not None
        keyring.stdin.write(b"password")
        keyring.stdin.close()
        keyring.stdout.readline()  # it says when it is ready
        yield environ
    finally:
        for process in (keyring, bus):
            if process is not None:
                process.terminate()
                process.wait(60)
                assert process.stdout is not None
                process.stdout.close()


def test_the_key_is_kept_in_a_real_keyring(session: Mapping[str, str], tmp_path: Path) -> None:
    """Created once, found again by another process, and never replaced."""
    assert read_secret(session) is None
    with pytest.raises(KeyUnavailable, match="no longer in the keyring"):
        KeyringKey(session).read()
    first = KeyringKey(session).read(create=True)
    assert KeyringKey(session).read(create=True) == KeyringKey(session).read() == first
    store_secret(session, b"k" * 32)
    assert read_secret(session) == b"k" * 32
    store = TokenStore(tmp_path / "state", KeyringKey(session))
    store.open()
    store.change(with_login)
    store.close()
    again = TokenStore(tmp_path / "state", KeyringKey(session))
    assert len(again.open().logins) == 1
    assert "sealed" in json.loads(again.path.read_text())
    again.close()


def test_a_locked_keyring_is_not_unlocked_with_a_dialog(session: Mapping[str, str]) -> None:
    from secretstorage.collection import get_collection_by_alias

    store_secret(session, b"k" * 32)
    with _connected(session) as connection:
        get_collection_by_alias(connection, "default").lock()
    for create in (False, True):
        with pytest.raises(KeyUnavailable, match="the keyring is locked"):
            KeyringKey(session).read(create=create)


async def test_servers_are_connected_again_when_the_keyring_is_unlocked(
    tmp_path: Path, autojump_clock: MockClock
) -> None:
    """Within ten seconds, or as soon as anybody asks for the logins, and mcpd no longer tries when it has the
    key."""
    store = opened(tmp_path, FakeKey())
    store.change(with_login)
    store.close()
    for ask in (True, False):
        key, unlocked = FakeKey(problem="the keyring is locked"), trio.Event()
        reads: list[float] = []
        manager = TokenManager(
            TokenStore(tmp_path, key),
            AuthorizationServer().send,
            Redactor(),
            on_unlocked=unlocked.set,
        )

        async def run(
            function: Callable[..., object], *arguments: object, reads: list[float] = reads
        ) -> object:
            reads.append(trio.current_time())
            return function(*arguments)

        manager._file._run = run  # type: ignore[method-assign,assignment]  # threads do not know the mock clock
        async with manager.running():
            for number in range(3):
                credentials = await manager.credentials_for(f"it{number}", URL)
                assert credentials.sign("POST", URL) is UNSIGNED
            before = len(reads)
            await trio.sleep(600)
            assert 55 <= len(reads) - before <= 60
            assert not unlocked.is_set()
            assert "the keyring is locked" in manager.problem
            key.problem = ""
            began = trio.current_time()
            if ask:
                assert len(await manager.logins()) == 1
            await unlocked.wait()
            assert trio.current_time() - began <= (0 if ask else 10)
            before = len(reads)
            await trio.sleep(600)
            assert len(reads) == before
            credentials = await manager.credentials_for("it", URL)
            assert credentials.sign("POST", URL) not in (None, UNSIGNED)

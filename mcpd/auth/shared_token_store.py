"""The logins of all replicas of mcpd, in Redis: one replica at a time renews a token, with a lease.

What is stored is encrypted with the key that the replicas share. Nothing waits for Redis but reading a login
for the first time, and renewing one. `redis` is the extra `[redis]`.
"""

from __future__ import annotations

import secrets
import time
from collections.abc import Callable
from hashlib import sha256
from pathlib import Path

from mcpd.auth.token_store import StoredLogins, StoreError, TokenStore
from mcpd.state.redis_client import FAILURES, MAX_ANSWER, TIMEOUT, connect, reason

_CONTENT, _LEASE = "mcpd:logins", "mcpd:logins:lease"
_LEASE_SECONDS = 40
"""For one renewal, with its repetition."""
_MAX_SIZE = MAX_ANSWER - 1024
_SAVE = """
if redis.call("get", KEYS[1]) ~= ARGV[1] then return 0 end
redis.call("pexpire", KEYS[1], ARGV[3])
redis.call("set", KEYS[2], ARGV[2])
return 1
"""
_RELEASE = """if redis.call("get", KEYS[1]) == ARGV[1] then redis.call("del", KEYS[1]) end"""


class SharedKey:
    """The key of the content, derived from the key of the replicas. See `LoginKey`."""

    may_appear = False

    def __init__(self, secret: bytes) -> None:
        self._key = sha256(b"logins" + secret).digest()

    def read(self, *, create: bool = False) -> bytes:
        return self._key


class SharedTokenStore(TokenStore):
    """Redis at a URL. See `TokenStore`; the lock is a lease for one renewal or change."""

    must_be_sealed = True
    timeout = 4 * TIMEOUT
    patience = float(_LEASE_SECONDS)

    def __init__(self, url: str, key: SharedKey) -> None:
        super().__init__(Path("/"), key)
        self._redis = connect(url)
        where = self._redis.connection_pool.connection_kwargs
        self.path = Path(f"redis://{where.get('host', '')}:{where.get('port', '')}/{_CONTENT}")
        self._name = secrets.token_hex(16)
        self._held_until = 0.0

    @property
    def is_keeper(self) -> bool:
        return time.monotonic() < self._held_until

    def exists(self) -> bool:
        return True

    def open(self) -> StoredLogins:
        self.other_daemon = ""
        try:
            return self.read()
        except StoreError:
            return StoredLogins()

    def claim(self) -> None:
        held_until = time.monotonic() + _LEASE_SECONDS
        try:
            if self._redis.set(_LEASE, self._name, nx=True, px=_LEASE_SECONDS * 1000):
                self._held_until, self.other_daemon = held_until, ""
            else:
                self.other_daemon = "another replica"
        except FAILURES as error:
            self.other_daemon = f"Redis cannot be used ({reason(error)}); another replica, perhaps,"

    def change(self, edit: Callable[[StoredLogins], StoredLogins]) -> StoredLogins:
        """See `TokenStore`. The lease ends when no renewal is under way."""
        after = super().change(edit)
        if all(login.attempt_at is None for login in after.logins.values()):
            self.close()
        return after

    def close(self) -> None:
        """Release the lease."""
        if self.is_keeper:
            self._held_until = 0.0
            try:
                self._redis.eval(_RELEASE, 1, _LEASE, self._name)
            except FAILURES:
                return  # it expires

    def _load(self) -> bytes | None:
        try:
            data = self._redis.getrange(_CONTENT, 0, _MAX_SIZE)
        except FAILURES as error:
            self.is_locked = True  # until Redis is back
            raise StoreError(f"cannot read the logins from Redis: {reason(error)}") from None
        return data if isinstance(data, bytes) and data else None

    def _save(self, data: bytes) -> None:
        if len(data) > _MAX_SIZE:
            raise OSError(None, f"they have more than {_MAX_SIZE} bytes")
        held_until = time.monotonic() + _LEASE_SECONDS
        try:
            saved = self._redis.eval(_SAVE, 2, _LEASE, _CONTENT, self._name, data, _LEASE_SECONDS * 1000)
        except FAILURES as error:
            raise OSError(None, reason(error)) from None
        if not saved:
            self._held_until = 0.0
            raise OSError(None, "another replica holds the lease")
        self._held_until = held_until

    def _keep_copy(self) -> None:
        try:
            self._redis.copy(_CONTENT, f"{_CONTENT}:damaged", replace=True)
        except FAILURES as error:
            raise StoreError(f"cannot copy damaged logins in Redis: {reason(error)}") from None

"""The stored logins for tasks: each operation of `TokenStore` runs in a thread."""

from __future__ import annotations

import math
from collections.abc import Awaitable, Callable
from contextlib import suppress
from typing import TypeVar, TypeVarTuple

import trio

from mcpd.auth.token_store import StoredLogin, StoredLogins, StoreError, TokenStore

T = TypeVar("T")
Ts = TypeVarTuple("Ts")


_CLAIM_INTERVAL = 0.2


class LoginFile:
    """`TokenStore` for tasks, one operation at a time. None can be cancelled once started."""

    def __init__(self, store: TokenStore) -> None:
        self.store = store
        self._turn = trio.CapacityLimiter(1)

    async def read(self) -> StoredLogins:
        """Return the contents, empty if they cannot be read, and take the lock if it is free."""
        try:
            return await self._run(self.store.open)
        except StoreError:
            return StoredLogins()

    async def check_key(self) -> str:
        return await self._run(self.store.check_key)

    async def keeps_logins(self) -> bool:
        """Return whether this daemon may renew tokens: no other one does. Waits for `patience`."""
        until = trio.current_time() + self.store.patience
        while True:
            if not self.store.is_keeper:
                try:
                    await self._run(self.store.claim)
                except StoreError:
                    return False
            if self.store.is_keeper or not self.store.other_daemon:
                return True
            if trio.current_time() >= until:
                return False
            await trio.sleep(_CLAIM_INTERVAL)

    async def change(self, edit: Callable[[StoredLogins], StoredLogins]) -> None:
        await self._run(self.store.change, edit)

    async def _run(self, function: Callable[[*Ts], T], *arguments: *Ts) -> T:
        """Raises StoreError if it takes longer than the store's `timeout`."""
        is_bounded = self.store.timeout < math.inf
        with trio.move_on_after(self.store.timeout):
            return await trio.to_thread.run_sync(
                function, *arguments, limiter=self._turn, abandon_on_cancel=is_bounded
            )
        raise StoreError(f"{self.store.path} took longer than {self.store.timeout:g} s")


_WRITE_INTERVAL = 1.0
"""Seconds between attempts to store tokens that could not be written."""


class LoginSaver:
    """Stores a login. What could not be stored is kept in memory, and writing is tried again."""

    def __init__(self, file: LoginFile, start: Callable[[Callable[[], Awaitable[None]]], bool]) -> None:
        """`start`: see `LoginContext`."""
        self._file, self._start = file, start
        self._unsaved: StoredLogin | None = None

    @property
    def is_done(self) -> bool:
        return self._unsaved is None

    async def save(self, stored: StoredLogin) -> None:
        is_first, self._unsaved = self.is_done, stored
        await self.save_unsaved()
        if is_first and not self.is_done:
            self._start(self._save_later)

    async def _save_later(self) -> None:
        while not self.is_done:
            await trio.sleep(_WRITE_INTERVAL)
            await self.save_unsaved()

    async def save_unsaved(self) -> None:
        """Try again to store what could not be stored."""
        unsaved = self._unsaved
        if unsaved is not None:
            with suppress(StoreError):  # logged once
                await self._file.change(lambda found: found.with_login(unsaved))
                self._unsaved = None if self._unsaved is unsaved else self._unsaved

    def discard(self) -> None:
        self._unsaved = None

"""Asynchronous access to the `TokenStore`: one operation at a time, in a thread, and never cut off."""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeVar, TypeVarTuple

import trio

from mcpd.auth.oauth.registration import ClientRegistration
from mcpd.auth.stored_login import StoredLogin, StoredLogins, server_key
from mcpd.auth.token_store import TokenStore

T = TypeVar("T")
Ts = TypeVarTuple("Ts")


class LoginFile:
    """The methods raise StoreError if nothing was written. An operation cannot be cancelled once started."""

    def __init__(self, store: TokenStore) -> None:
        self._store = store
        self._turn = trio.CapacityLimiter(1)

    @property
    def machine(self) -> str:
        return self._store.machine

    @property
    def problem(self) -> str:
        return self._store.problem

    @property
    def is_locked(self) -> bool:
        return self._store.is_locked

    @property
    def other_daemon(self) -> str:
        return self._store.other_daemon

    async def read(self) -> StoredLogins:
        """Return the contents, empty if they cannot be read, and take the lock if it is free."""
        return await self._run(self._store.open)

    async def find(self, id: str) -> StoredLogin | None:
        found = await self._run(self._store.open, {"id": id})
        return found.logins.get(id)

    async def find_for(self, url: str, account: str) -> StoredLogin | None:
        """Return the login of the server at `url`."""
        found = await self._run(self._store.open, {"server": server_key(url, account)})
        return found.login_of(url, account)

    async def check_key(self) -> str:
        """See `TokenStore.check_key`."""
        return await self._run(self._store.check_key)

    async def keeps_logins(self) -> bool:
        """Return whether this daemon may renew tokens: no other one does."""
        if not self._store.is_keeper:
            await self.read()
        return self._store.is_keeper or not self._store.other_daemon

    async def save(self, login: StoredLogin, url: str | None = None) -> None:
        """Store a login, which the server at `url` uses from now on. A newer one in the file is kept."""

        def edit(found: StoredLogins) -> StoredLogins:
            known = found.logins.get(login.id)
            newer = known is not None and known.generation > login.generation
            return found if newer else found.with_login(login, url)

        await self._run(self._store.change, edit)

    async def remove(self, id: str) -> None:
        await self._run(self._store.change, lambda found: found.without_login(id))

    async def set_client(self, key: str, client: ClientRegistration | None) -> None:
        """Store a client registration, or remove it."""
        await self._run(self._store.change, lambda found: found.with_client(key, client))

    def close(self) -> None:
        self._store.close()

    async def _run(self, function: Callable[[*Ts], T], *arguments: *Ts) -> T:
        return await trio.to_thread.run_sync(function, *arguments, limiter=self._turn)

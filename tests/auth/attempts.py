"""Running a login attempt in a test."""

from __future__ import annotations

import time
from collections.abc import AsyncIterator, Collection
from contextlib import asynccontextmanager
from typing import Any

import attrs
import trio

from mcpd.auth.login import LoginAttempt, LoginRequest
from mcpd.auth.token_store import StoredLogin
from mcpd.model.server_spec import OAuthSettings


@attrs.define(eq=False)
class Memory:
    """What logins leave."""

    earlier: list[StoredLogin] = attrs.field(factory=list)
    saved: list[StoredLogin] = attrs.field(factory=list)

    async def known(self) -> Collection[StoredLogin]:
        return [*self.earlier, *self.saved]

    async def save(self, login: StoredLogin, url: str) -> None:
        self.saved.append(login)


@asynccontextmanager
async def attempting(
    url: str, memory: Memory | None = None, now: Any = time.time, **options: Any
) -> AsyncIterator[LoginAttempt]:
    """Run an attempt; keyword arguments are of OAuthSettings, and `how` and others of LoginRequest."""
    of_request = {field.name for field in attrs.fields(LoginRequest)} & options.keys()
    request = {name: options.pop(name) for name in of_request}
    memory = memory or Memory()
    attempt = LoginAttempt(
        LoginRequest(server="fake", url=url, settings=OAuthSettings(**options), **request),
        memory.known,
        memory.save,
        {},
        now,
    )
    with trio.fail_after(60):
        async with trio.open_nursery() as nursery:
            nursery.start_soon(attempt.run)
            yield attempt
            attempt.cancel()

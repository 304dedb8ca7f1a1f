"""Credentials that are loaded when they are needed: most remote servers never ask for a login."""

from __future__ import annotations

from collections.abc import Awaitable, Callable

from mcpd.model import advice
from mcpd.transports.credentials import (
    FORBIDDEN,
    UNAUTHORIZED,
    UNSIGNED,
    Credentials,
    Refusal,
    Signature,
)


class DeferredCredentials:
    """The `Credentials` of a server without a login, as long as it refuses nothing.

    `find` returns what has been loaded for the server meanwhile, such as by a login; `load` loads it.
    """

    def __init__(
        self,
        name: str,
        find: Callable[[], Credentials | None],
        load: Callable[[], Awaitable[Credentials | None]],
    ) -> None:
        self._name = name
        self._find = find
        self._load = load
        self._loaded: Credentials | None = None

    def sign(self, method: str, url: str) -> Signature | None:
        loaded = self._loaded or self._look()
        return UNSIGNED if loaded is None else loaded.sign(method, url)

    async def sign_when_ready(self, method: str, url: str) -> Signature:
        loaded = self._loaded or self._look()
        return UNSIGNED if loaded is None else await loaded.sign_when_ready(method, url)

    async def refused(self, refusal: Refusal) -> bool:
        if self._loaded is None and refusal.status in (UNAUTHORIZED, FORBIDDEN):
            self._loaded = await self._load()
        return False if self._loaded is None else await self._loaded.refused(refusal)

    def advice(self) -> str:
        if self._loaded is None:
            return advice.to_log_in(self._name)
        return self._loaded.advice()

    def _look(self) -> Credentials | None:
        self._loaded = self._find()
        return self._loaded

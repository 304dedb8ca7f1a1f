"""Which servers use which login, and which of them connect again when it has changed."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Protocol

from mcpd.auth.oauth.challenges import Challenge, read_challenge
from mcpd.auth.renewal import ManagedLogin
from mcpd.auth.token_manager import ServerCredentials
from mcpd.auth.token_store import StoredLogin
from mcpd.model.server_spec import ServerSpec
from mcpd.model.status import ServerState


class LoginServer(Protocol):
    """A server that may use a login."""

    @property
    def spec(self) -> ServerSpec: ...

    @property
    def state(self) -> ServerState: ...

    def reconnect(self) -> object: ...


class LoginServers(Protocol):
    """The servers of the daemon."""

    def get(self, name: str) -> LoginServer:
        """Raises UnknownServer."""

    def get_any(self, name: str) -> LoginServer:
        """Also one that serves some clients only. Raises UnknownServer."""

    def servers(self) -> Sequence[LoginServer]:
        """Return the configured servers."""

    def everything(self) -> Sequence[LoginServer]:
        """Return those that serve some clients only."""


class LoginUsers:
    """The servers whose credentials have been loaded, with or without a login."""

    def __init__(self, servers: LoginServers) -> None:
        self._servers = servers
        self.credentials: dict[str, ServerCredentials] = {}
        """By the name of the server."""

    def challenge(self, name: str) -> Challenge | None:
        """Return with what the server last refused a request."""
        used = self.credentials.get(name)
        return None if used is None else read_challenge(used.challenge)

    def names(self, url: str, account: str) -> list[str]:
        """Return the servers with this URL and account."""
        return [name for name, used in self.credentials.items() if (used.url, used.account) == (url, account)]

    def of_login(self, stored: StoredLogin) -> dict[str, ManagedLogin]:
        """Return the login by the name of each server that uses it."""
        found = ((name, used.login) for name, used in self.credentials.items())
        return {name: login for name, login in found if login is not None and login.id == stored.id}

    def ca_file_of(self, stored: StoredLogin) -> str | None:
        """Return the CA file of a server that uses the login."""
        return next((self.credentials[name].ca_file for name in self.of_login(stored)), None)

    def servers(self, names: Iterable[str]) -> list[LoginServer]:
        """Return the servers with these names, and their dedicated instances."""
        wanted = set(names)
        servers = self._servers.everything()
        return [server for server in servers if server.spec.name in wanted]

    def reconnect(self, names: Iterable[str], *, is_other_login: bool = False) -> None:
        """Connect those of the servers that waited for a login; with `is_other_login`, also those whose
        session belongs to an earlier one, which may be that of another account."""
        states = {ServerState.NEEDS_AUTH, ServerState.FAILED}
        if is_other_login:
            states |= {ServerState.CONNECTED, ServerState.PENDING}
        for server in self.servers(names):
            if server.state in states:
                server.reconnect()

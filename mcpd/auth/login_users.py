"""Which servers use which login, and with what they are accessed."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Protocol

from mcpd.auth.managed_login import ManagedLogin
from mcpd.auth.oauth.challenge import Challenge, read_challenge
from mcpd.auth.stored_login import StoredLogin
from mcpd.auth.token_manager import ServerCredentials
from mcpd.model.server_spec import RemoteSpec, ServerSpec
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

    def servers(self) -> Sequence[LoginServer]:
        """Return the configured servers."""

    def instances(self) -> Sequence[LoginServer]:
        """Return those that serve some clients only."""


class LoginUsers:
    """The servers whose credentials have been loaded, with or without a login."""

    def __init__(self, servers: LoginServers) -> None:
        self._servers = servers
        self._credentials: dict[str, ServerCredentials] = {}
        """By the name of the server."""
        self._ca_files: dict[str, str | None] = {}
        """URL of a server → its CA file."""

    def add(self, spec: RemoteSpec, credentials: ServerCredentials, *, replace: bool = False) -> None:
        """Remember what a server is accessed with, unless it is known and not to be replaced."""
        self.add_ca_file(spec)
        if replace or spec.name not in self._credentials:
            self._credentials[spec.name] = credentials

    def add_ca_file(self, spec: RemoteSpec) -> None:
        """Remember the CA file for requests that concern this server's URL."""
        self._ca_files[spec.url] = spec.ca_file

    def credentials(self, name: str) -> ServerCredentials | None:
        return self._credentials.get(name)

    def challenge(self, name: str) -> Challenge | None:
        """Return with what the server last refused a request."""
        used = self._credentials.get(name)
        return None if used is None else read_challenge(used.challenge)

    def names(self, url: str, account: str) -> list[str]:
        """Return the servers with this URL and account."""
        return [
            name for name, used in self._credentials.items() if (used.url, used.account) == (url, account)
        ]

    def servers(self, url: str, account: str) -> list[LoginServer]:
        """Return the servers that `names` returns, and their dedicated instances."""
        return self._named(self.names(url, account))

    def of_login(self, stored: StoredLogin) -> dict[str, ManagedLogin]:
        """Return the login by the name of each server that uses it."""
        found = ((name, used.login) for name, used in self._credentials.items())
        return {name: login for name, login in found if login is not None and login.stored.id == stored.id}

    def servers_of_login(self, stored: StoredLogin) -> list[LoginServer]:
        """Return the servers that `of_login` returns, and their dedicated instances."""
        return self._named(self.of_login(stored))

    def ca_file_of(self, stored: StoredLogin) -> str | None:
        """Return the CA file of a server that uses the login."""
        return next((self._ca_files.get(self._credentials[name].url) for name in self.of_login(stored)), None)

    def reconnect(self, url: str, account: str) -> None:
        """Connect the servers that waited for a login."""
        _reconnect(self.servers(url, account))

    def reconnect_all(self) -> None:
        """Connect all servers that waited for logins."""
        _reconnect(self._named(self._credentials))

    def _named(self, names: Iterable[str]) -> list[LoginServer]:
        wanted = set(names)
        servers = (*self._servers.servers(), *self._servers.instances())
        return [server for server in servers if server.spec.name in wanted]


def _reconnect(servers: Iterable[LoginServer]) -> None:
    for server in servers:
        if server.state in (ServerState.NEEDS_AUTH, ServerState.FAILED):
            server.reconnect()

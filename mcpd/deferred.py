"""The components that are created with their first use, because most daemons have none: logins and HTTP."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from contextlib import asynccontextmanager, contextmanager
from functools import partial
from typing import TYPE_CHECKING

import trio

from mcpd.api import listeners
from mcpd.config.http import Address
from mcpd.model.api import DashboardLink, HttpListener
from mcpd.model.errors import Unsupported
from mcpd.model.login import LoginStatus
from mcpd.model.server_spec import RemoteSpec

if TYPE_CHECKING:
    from mcpd.api.http.routes import HttpApi, HttpPort
    from mcpd.auth.service import LoginService
    from mcpd.transports.credentials import Credentials

_STOPPING = "mcpd is stopping"


class DeferredLoginService:
    """Implements `LoginAccess`. The service is created for the first remote server that may need a login: its
    code takes 2.5 MB and 0.1 s.
    """

    def __init__(self, may_have_logins: Callable[[], bool], create: Callable[[], LoginService]) -> None:
        self._may_have_logins = may_have_logins
        self._create = create
        self._creating = trio.Lock()
        self._nursery: trio.Nursery | None = None
        """Runs the service; None before and after."""
        self._service: LoginService | None = None

    @asynccontextmanager
    async def running_in(self, nursery: trio.Nursery) -> AsyncIterator[None]:
        """Start the service in `nursery` while the block runs. It ends after the servers, which may need a
        token to end their sessions."""
        self._nursery = nursery
        try:
            yield
        finally:
            self._nursery = None

    @property
    def problem(self) -> str:
        return "" if self._service is None else self._service.problem

    async def service(self) -> LoginService:
        async with self._creating:
            if self._service is None:
                if self._nursery is None:
                    raise Unsupported(_STOPPING)
                service = self._create()
                await self._nursery.start(service.run)
                self._service = service
        return self._service

    async def statuses(self) -> Sequence[LoginStatus]:
        return () if self._service is None else (await self._service.status(None)).logins

    async def credentials_for(self, spec: RemoteSpec) -> Credentials | None:
        """Return what signs requests to a server. Nothing is loaded unless there is a login, or the server
        asks for one."""
        load = partial(self._load_credentials, spec)
        if self._service is not None or spec.oauth.grant != "code" or self._may_have_logins():
            return await load()
        from mcpd.transports.credentials import DeferredCredentials

        def find() -> Credentials | None:
            return None if self._service is None else self._service.known_credentials(spec.name)

        return DeferredCredentials(spec.name, find, load)

    async def _load_credentials(self, spec: RemoteSpec) -> Credentials | None:
        return await (await self.service()).credentials_for(spec)


class DeferredHttp:
    """Implements `HttpAccess`. The API is created with the first port or connection."""

    def __init__(self, create: Callable[[], HttpApi]) -> None:
        self._create = create
        self._api: HttpApi | None = None
        self._accept: Callable[[HttpPort], None] | None = None
        """Accepts connections of another port; None while no port may be opened."""

    @property
    def api(self) -> HttpApi:
        if self._api is None:
            self._api = self._create()
        return self._api

    @property
    def loaded(self) -> HttpApi | None:
        """The API, if there has been a reason to create it."""
        return self._api

    @property
    def listener(self) -> HttpListener | None:
        return None if self._api is None else self._api.listener

    @property
    def problem(self) -> str:
        return "" if self._api is None else self._api.problem

    def accept(self, port: HttpPort) -> None:
        """Serve another port. Raises Unsupported."""
        if self._accept is None:
            raise Unsupported(_STOPPING)
        self._accept(port)

    def dashboard_link(self) -> DashboardLink:
        dashboard = None if self._api is None else self._api.dashboard
        if self._accept is None:
            raise Unsupported(_STOPPING)
        if dashboard is None:
            try:
                listener = listeners.bind_tcp(Address("127.0.0.1", 0))
            except OSError as error:
                raise Unsupported(f"the dashboard has no port: {error.strerror}") from None
            port, dashboard = self.api.open_dashboard(listener)
            self._accept(port)
        return dashboard.create_link()

    @contextmanager
    def accepting(self, accept: Callable[[HttpPort], None]) -> Iterator[None]:
        """Let further ports be opened while the block runs. `accept` accepts their connections."""
        self._accept = accept
        try:
            yield
        finally:
            self._accept = None

    @property
    def serves_network(self) -> bool:
        return self._api is not None and self._api.serves_network

    def begin_stopping(self) -> bool:
        """Make `/readyz` fail. Returns whether anybody on another machine may look at it."""
        if self._api is not None:
            self._api.is_stopping = True
        return self.serves_network

    def close(self, reason: str) -> None:
        if self._api is not None:
            self._api.close(reason)

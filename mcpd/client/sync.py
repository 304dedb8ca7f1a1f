"""The client for programs without async functions: scripts, notebooks, threads.

    from mcpd.client.sync import connect

    with connect() as mcp:
        print(mcp.call("time", "get_current_time", {"timezone": "UTC"}).output)

Everything works as in `mcpd.client`, but each method returns when its result is there. Any number of threads
may use one connection.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from functools import partial
from typing import TYPE_CHECKING, Any, NoReturn, TypeVar, overload

import attrs
from anyio.from_thread import start_blocking_portal

from mcpd.client import connecting, connection, mcpd_client
from mcpd.client.blocking import BlockingCaller
from mcpd.client.link import Progress
from mcpd.client.mcpd_client import ItemList, ToolList
from mcpd.client.results import ToolResult

T = TypeVar("T")

__all__ = ["Mcp", "Prompt", "Resource", "Tool", "connect"]


def connect(
    socket: str | None = None,
    *,
    start: bool | None = None,
    client: str | None = None,
    profile: str | None = None,
    command: Sequence[str] | None = None,
    env: Mapping[str, str] | None = None,
    cwd: str | os.PathLike[str] | None = None,
    url: str | None = None,
    headers: Mapping[str, str] | None = None,
    servers: Mapping[str, Mapping[str, object]] | None = None,
) -> Connecting:
    """Connect as `mcpd.client.connect` does, for the length of a `with` block. Needs a thread meanwhile."""
    opened = connecting.connect(
        socket,
        start=start,
        client=client,
        profile=profile,
        command=command,
        env=env,
        cwd=cwd,
        url=url,
        headers=headers,
        servers=servers,
    )
    return Connecting(opened)


class Connecting:
    """The result of `connect`. `with` connects, and closes the connection at its end."""

    def __init__(self, opened: connecting.Connecting) -> None:
        self._opened = opened
        self._stack = ExitStack()

    def __enter__(self) -> Mcp:
        with ExitStack() as stack:
            portal = stack.enter_context(start_blocking_portal())
            mcp = stack.enter_context(portal.wrap_async_context_manager(self._opened))
            caller = BlockingCaller(portal)
            stack.callback(caller.close)
            self._stack = stack.pop_all()
        return Mcp(mcp, caller)

    def __exit__(self, *_: object) -> None:
        # Without the exception of the block: it concerns this thread, and not the event loop of the other.
        self._stack.close()

    if not TYPE_CHECKING:  # so that a type checker reports the attribute

        def __getattr__(self, name: str) -> NoReturn:
            connecting.refuse_attribute(name, "with connect() as mcp")


class Mcp:
    """A connection to the daemon. See `mcpd.client.Mcp`."""

    def __init__(self, mcp: mcpd_client.Mcp, caller: BlockingCaller) -> None:
        self._mcp, self._caller = mcp, caller
        self.connection = Connection(mcp.connection, caller)
        """Gives access to all other methods of the control API: `mcp.connection.request`."""

    def list_tools(self, *, server: str | None = None, prefix: str = "", match: str = "*") -> ToolList[Tool]:
        found = self._caller.call(partial(self._mcp.list_tools, server=server, prefix=prefix, match=match))
        return ToolList((Tool(tool, self._caller) for tool in found), found.missing)

    def list_resources(self, *, server: str | None = None) -> ItemList[Resource]:
        found = self._caller.call(partial(self._mcp.list_resources, server=server))
        return ItemList((Resource(resource, self._caller) for resource in found), found.missing)

    def list_resource_templates(self, *, server: str | None = None) -> ItemList[Resource]:
        found = self._caller.call(partial(self._mcp.list_resource_templates, server=server))
        return ItemList((Resource(resource, self._caller) for resource in found), found.missing)

    def list_prompts(self, *, server: str | None = None) -> ItemList[Prompt]:
        found = self._caller.call(partial(self._mcp.list_prompts, server=server))
        return ItemList((Prompt(prompt, self._caller) for prompt in found), found.missing)

    @overload
    def call(
        self,
        server: str,
        tool: str,
        arguments: Mapping[str, object] | None = None,
        *,
        timeout: float | None = None,
        progress: Progress | None = None,
    ) -> ToolResult: ...

    @overload
    def call(
        self,
        server: str,
        tool: Mapping[str, object] | None = None,
        *,
        arguments: Mapping[str, object] | None = None,
        timeout: float | None = None,
        progress: Progress | None = None,
    ) -> ToolResult: ...

    def call(
        self,
        server: str,
        tool: Any = None,
        arguments: Mapping[str, object] | None = None,
        *,
        timeout: float | None = None,
        progress: Progress | None = None,
    ) -> ToolResult:
        run: Any = partial(self._mcp.call, server, tool, arguments, timeout=timeout, progress=progress)
        result: ToolResult = self._caller.call(run)
        return result

    def read(self, server: str, uri: str) -> list[Mapping[str, Any]]:
        return self._caller.call(partial(self._mcp.read, server, uri))

    def prompt(
        self, server: str, prompt: str, arguments: Mapping[str, str] | None = None
    ) -> list[Mapping[str, Any]]:
        return self._caller.call(partial(self._mcp.prompt, server, prompt, arguments))

    def status(self) -> Mapping[str, Any]:
        return self._caller.call(self._mcp.status)

    def request(self, method: str, params: Mapping[str, object] | None = None) -> Any:  # noqa: ANN401 # JSON
        """Send any control API request and return its result."""
        return self.connection.request(method, params)

    def close(self) -> None:
        self.connection.close()


class Connection:
    """The connection of an `Mcp`. See `mcpd.client.Connection`."""

    def __init__(self, connection: connection.Connection, caller: BlockingCaller) -> None:
        self._connection, self._caller = connection, caller

    def request(
        self,
        method: str,
        params: Mapping[str, object] | None = None,
        progress: Progress | None = None,
        timeout: float | None = None,  # of `mcpd/call`
    ) -> Any:  # noqa: ANN401 # JSON
        return self._caller.call(partial(self._connection.request, method, params, progress, timeout))

    def close(self) -> None:
        if not self._caller.is_closed:
            self._caller.call(self._connection.close)


@attrs.frozen(eq=False, repr=False)
class Tool:
    """A tool of one server. See `mcpd.client.Tool`, whose attributes it has."""

    _tool: mcpd_client.Tool
    _caller: BlockingCaller

    def __getattr__(self, name: str) -> Any:  # noqa: ANN401 # the attributes of the wrapped object
        return getattr(self._tool, name)

    def __repr__(self) -> str:
        return repr(self._tool)

    def execute(
        self,
        arguments: Mapping[str, object] | None = None,
        /,
        *,
        timeout: float | None = None,
        progress: Progress | None = None,
        **named: object,
    ) -> ToolResult:
        run = partial(self._tool.execute, arguments, timeout=timeout, progress=progress, **named)
        return self._caller.call(run)

    def converted(self, convert: Callable[[Mapping[str, Any]], T]) -> T:
        return self._tool.converted(convert)


@attrs.frozen(eq=False, repr=False)
class Resource:
    """A resource or template of one server. See `mcpd.client.Resource`, whose attributes it has."""

    _resource: mcpd_client.Resource
    _caller: BlockingCaller

    def __getattr__(self, name: str) -> Any:  # noqa: ANN401 # the attributes of the wrapped object
        return getattr(self._resource, name)

    def __repr__(self) -> str:
        return repr(self._resource)

    def read(self) -> list[Mapping[str, Any]]:
        return self._caller.call(self._resource.read)


@attrs.frozen(eq=False, repr=False)
class Prompt:
    """A prompt of one server. See `mcpd.client.Prompt`, whose attributes it has."""

    _prompt: mcpd_client.Prompt
    _caller: BlockingCaller

    def __getattr__(self, name: str) -> Any:  # noqa: ANN401 # the attributes of the wrapped object
        return getattr(self._prompt, name)

    def __repr__(self) -> str:
        return repr(self._prompt)

    def get(self, arguments: Mapping[str, str] | None = None) -> list[Mapping[str, Any]]:
        return self._caller.call(partial(self._prompt.get, arguments))

"""The client for programs without async functions: scripts, notebooks, threads.

    from mcpd.client.sync import connect

    with connect() as mcp:
        print(mcp.call("time", "get_current_time", {"timezone": "UTC"}).output)

Everything works as in `mcpd.client`, but each method returns when its result is there. Any number of threads
may use one connection.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import partial
from typing import Any, TypeVar, overload

import attrs
from anyio.from_thread import BlockingPortal, start_blocking_portal

from mcpd.client import connecting, mcpd_client
from mcpd.client.link import Progress
from mcpd.client.mcpd_client import ItemList, ToolList
from mcpd.client.results import ToolResult

T = TypeVar("T")

__all__ = ["Mcp", "Prompt", "Resource", "Tool", "connect"]


@contextmanager
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
) -> Iterator[Mcp]:
    """Connect as `mcpd.client.connect` does, for the length of a `with` block. Needs a thread meanwhile."""
    connecting_ = connecting.connect(
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
    with start_blocking_portal() as portal, portal.wrap_async_context_manager(connecting_) as mcp:
        yield Mcp(mcp, portal)


class Mcp:
    """A connection to the daemon. See `mcpd.client.Mcp`."""

    def __init__(self, mcp: mcpd_client.Mcp, portal: BlockingPortal) -> None:
        self._mcp, self._portal = mcp, portal

    def list_tools(self, *, server: str | None = None, prefix: str = "", match: str = "*") -> ToolList[Tool]:
        found = self._portal.call(partial(self._mcp.list_tools, server=server, prefix=prefix, match=match))
        return ToolList((Tool(tool, self._portal) for tool in found), found.missing)

    def list_resources(self, *, server: str | None = None) -> ItemList[Resource]:
        found = self._portal.call(partial(self._mcp.list_resources, server=server))
        return ItemList((Resource(resource, self._portal) for resource in found), found.missing)

    def list_resource_templates(self, *, server: str | None = None) -> ItemList[Resource]:
        found = self._portal.call(partial(self._mcp.list_resource_templates, server=server))
        return ItemList((Resource(resource, self._portal) for resource in found), found.missing)

    def list_prompts(self, *, server: str | None = None) -> ItemList[Prompt]:
        found = self._portal.call(partial(self._mcp.list_prompts, server=server))
        return ItemList((Prompt(prompt, self._portal) for prompt in found), found.missing)

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
        result: ToolResult = self._portal.call(run)
        return result

    def read(self, server: str, uri: str) -> list[Mapping[str, Any]]:
        return self._portal.call(self._mcp.read, server, uri)

    def prompt(
        self, server: str, prompt: str, arguments: Mapping[str, str] | None = None
    ) -> list[Mapping[str, Any]]:
        return self._portal.call(self._mcp.prompt, server, prompt, arguments)

    def status(self) -> Mapping[str, Any]:
        return self._portal.call(self._mcp.status)

    def request(self, method: str, params: Mapping[str, object] | None = None) -> Any:  # noqa: ANN401 # JSON
        """Send any control API request and return its result."""
        return self._portal.call(self._mcp.connection.request, method, params)

    def close(self) -> None:
        self._portal.call(self._mcp.close)


@attrs.frozen(eq=False, repr=False)
class Tool:
    """A tool of one server. See `mcpd.client.Tool`, whose attributes it has."""

    _tool: mcpd_client.Tool
    _portal: BlockingPortal

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
        return self._portal.call(run)

    def converted(self, convert: Callable[[Mapping[str, Any]], T]) -> T:
        return self._tool.converted(convert)


@attrs.frozen(eq=False, repr=False)
class Resource:
    """A resource or template of one server. See `mcpd.client.Resource`, whose attributes it has."""

    _resource: mcpd_client.Resource
    _portal: BlockingPortal

    def __getattr__(self, name: str) -> Any:  # noqa: ANN401 # the attributes of the wrapped object
        return getattr(self._resource, name)

    def __repr__(self) -> str:
        return repr(self._resource)

    def read(self) -> list[Mapping[str, Any]]:
        return self._portal.call(self._resource.read)


@attrs.frozen(eq=False, repr=False)
class Prompt:
    """A prompt of one server. See `mcpd.client.Prompt`, whose attributes it has."""

    _prompt: mcpd_client.Prompt
    _portal: BlockingPortal

    def __getattr__(self, name: str) -> Any:  # noqa: ANN401 # the attributes of the wrapped object
        return getattr(self._prompt, name)

    def __repr__(self) -> str:
        return repr(self._prompt)

    def get(self, arguments: Mapping[str, str] | None = None) -> list[Mapping[str, Any]]:
        return self._portal.call(self._prompt.get, arguments)

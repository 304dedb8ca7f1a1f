"""The client for programs without async functions: scripts, notebooks, threads.

    from mcpd.client.sync import connect

    with connect() as mcp:
        print(mcp.call("time", "get_current_time", {"timezone": "UTC"}).output)

Everything works as in `mcpd.client`, but each method returns when its result is there. Any number of threads
may use one connection.
"""

from __future__ import annotations

import functools
import os
from collections.abc import Awaitable, Callable
from concurrent.futures import CancelledError
from contextlib import AbstractContextManager, ExitStack
from typing import TYPE_CHECKING, Concatenate, Generic, ParamSpec, TypeVar

import anyio
import attrs
from anyio.from_thread import BlockingPortal, start_blocking_portal

from mcpd.client import connecting, mcpd_client
from mcpd.client.connecting import Connecting, Unopened
from mcpd.client.connection import Connection
from mcpd.client.errors import NOT_SENT, ConnectionClosed
from mcpd.client.handlers import Handlers
from mcpd.client.link import CLOSED_BY_US
from mcpd.client.mcpd_client import ItemList

A = TypeVar("A")
P = ParamSpec("P")
T = TypeVar("T")
W = TypeVar("W")

__all__ = ["SyncMcp", "SyncPrompt", "SyncResource", "SyncTool", "connect"]


class _Caller:
    """Runs async functions in the event loop of `portal`. Any number of threads may use it."""

    def __init__(self, portal: BlockingPortal) -> None:
        self._portal = portal
        self.is_closed = False
        """Whether the `with` block of the connection has ended."""

    def close(self) -> None:
        self.is_closed = True

    def call(self, function: Callable[[], Awaitable[T]]) -> T:
        """Run `function` and return its result, or raise its exception.

        If a signal handler raises an exception here, such as KeyboardInterrupt, this cancels `function` and
        raises the exception. Raises ConnectionClosed after the end of the `with` block.
        """
        try:
            future = self._portal.start_task_soon(_outcome, function)
        except RuntimeError:
            if not self.is_closed:
                raise
            raise ConnectionClosed(CLOSED_BY_US, data=NOT_SENT) from None
        try:
            results, error = future.result()
        except CancelledError:
            raise ConnectionClosed(CLOSED_BY_US) from None
        except BaseException:
            future.cancel()
            raise
        if error is not None:
            raise error
        return results[0]


async def _outcome(function: Callable[[], Awaitable[T]]) -> tuple[list[T], BaseException | None]:
    """Return the result in a list, or the exception of `function`: SystemExit would end the event loop."""
    try:
        return [await function()], None
    except anyio.get_cancelled_exc_class():
        raise
    except BaseException as error:
        return [], error


@attrs.frozen(kw_only=True, eq=False, slots=False)  # it is one of two bases
class _Blocking(Generic[A]):
    """An object of `mcpd.client` with methods that do not need `await`."""

    _wrapped: A = attrs.field(repr=False)
    _caller: _Caller = attrs.field(repr=False)


def _blocking(
    method: Callable[Concatenate[A, P], Awaitable[T]],
) -> Callable[Concatenate[_Blocking[A], P], T]:
    """Return a method that waits for the result of an async one."""

    @functools.wraps(method)
    def wait(self: _Blocking[A], /, *arguments: P.args, **options: P.kwargs) -> T:
        return self._caller.call(functools.partial(method, self._wrapped, *arguments, **options))

    return wait


def _blocking_list(
    method: Callable[Concatenate[A, P], Awaitable[ItemList[T]]], kind: Callable[..., W]
) -> Callable[Concatenate[_Blocking[A], P], ItemList[W]]:
    """Do the same for a method that lists objects. Each becomes one of `kind` with the same facts."""

    @functools.wraps(method)
    def wait(self: _Blocking[A], /, *arguments: P.args, **options: P.kwargs) -> ItemList[W]:
        found = self._caller.call(functools.partial(method, self._wrapped, *arguments, **options))
        facts = ({k: v for k, v in attrs.asdict(e, recurse=False).items() if k != "_mcp"} for e in found)  # type: ignore[arg-type]
        blocking = (kind(**f, wrapped=e, caller=self._caller) for f, e in zip(facts, found, strict=True))
        return ItemList(blocking, found.missing)

    return wait


@attrs.frozen(kw_only=True, eq=False)
class SyncTool(mcpd_client.ToolFacts, _Blocking[mcpd_client.Tool]):
    execute = _blocking(mcpd_client.Tool.execute)


@attrs.frozen(kw_only=True, eq=False)
class SyncResource(mcpd_client.ResourceFacts, _Blocking[mcpd_client.Resource]):
    read = _blocking(mcpd_client.Resource.read)


@attrs.frozen(kw_only=True, eq=False)
class SyncPrompt(mcpd_client.PromptFacts, _Blocking[mcpd_client.Prompt]):
    get = _blocking(mcpd_client.Prompt.get)


class SyncConnection(_Blocking[Connection]):
    request = _blocking(Connection.request)


class SyncMcp(_Blocking[mcpd_client.Mcp]):
    """A connection to the daemon. See `mcpd.client.Mcp`."""

    list_tools = _blocking_list(mcpd_client.Mcp.list_tools, SyncTool)
    find_tools = _blocking_list(mcpd_client.Mcp.find_tools, SyncTool)
    list_resources = _blocking_list(mcpd_client.Mcp.list_resources, SyncResource)
    list_resource_templates = _blocking_list(mcpd_client.Mcp.list_resource_templates, SyncResource)
    list_prompts = _blocking_list(mcpd_client.Mcp.list_prompts, SyncPrompt)
    call = _blocking(mcpd_client.Mcp.call)
    read = _blocking(mcpd_client.Mcp.read)
    prompt = _blocking(mcpd_client.Mcp.prompt)
    subscribe = _blocking(mcpd_client.Mcp.subscribe)
    unsubscribe = _blocking(mcpd_client.Mcp.unsubscribe)
    status = _blocking(mcpd_client.Mcp.status)

    @property
    def connection(self) -> SyncConnection:
        """Gives access to all other methods of the control API: `mcp.connection.request`."""
        return SyncConnection(wrapped=self._wrapped.connection, caller=self._caller)

    def close(self) -> None:
        """Close the connection before the `with` block ends. Pending calls are cancelled."""
        if not self._caller.is_closed:
            self._caller.call(self._wrapped.close)


class SyncConnecting(Unopened, AbstractContextManager[SyncMcp]):
    """A connection that is opened by `with`."""

    _use = "use `with connect() as mcp:` with mcpd.client.sync, and `async with` with connect of mcpd.client"

    def __init__(self, connecting: Connecting) -> None:
        self._connecting = connecting
        self._closing = ExitStack()

    def __enter__(self) -> SyncMcp:
        with ExitStack() as opening:
            portal = opening.enter_context(start_blocking_portal())
            mcp = portal.call(self._connecting.open)
            opening.callback(portal.call, mcp.close)
            caller = _Caller(portal)
            opening.callback(caller.close)
            self._closing = opening.pop_all()
        return SyncMcp(wrapped=mcp, caller=caller)

    def __exit__(self, *raised: object) -> None:
        # Without the exception of the block: it concerns this thread, and not the event loop of the other.
        self._closing.close()

    if not TYPE_CHECKING:
        __aenter__ = __aexit__ = __await__ = Unopened._refuse


def connect(
    socket: str | os.PathLike[str] | None = None,
    *,
    start: bool | None = None,
    client: str | None = None,
    profile: str | None = None,
    handlers: Handlers | None = None,
) -> SyncConnecting:
    """Connect as `mcpd.client.connect` does, for the length of a `with` block. Needs a thread meanwhile, in
    which `handlers` run."""
    return SyncConnecting(
        connecting.connect(socket, start=start, client=client, profile=profile, handlers=handlers)
    )

"""Opening the right transport for a definition: from here on, a server is a channel and what runs it."""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from typing import Literal, NoReturn

import attrs

from mcpd.model.server_spec import RemoteSpec, RestartPolicy, ServerSpec, StdioSpec
from mcpd.supervision.context import Surroundings
from mcpd.supervision.failure import NoTransport
from mcpd.transports.base import Channel
from mcpd.transports.child_environment import Launch
from mcpd.transports.child_process import Child, Guard
from mcpd.transports.http_client.client_factory import Watch
from mcpd.transports.legacy_http_sse import open_http_sse
from mcpd.transports.stdio import open_stdio
from mcpd.transports.streamable_http import open_http
from mcpd.transports.websocket import open_websocket

REMOTE_CAP = 120.0
"""Seconds between attempts at most: connecting costs a remote server more, and nobody sees it try."""
_NO_LIMIT = 1 << 62

Kind = Literal["stdio", "http", "sse", "ws"]


@attrs.frozen(kw_only=True, eq=False)
class Connection:
    """An open transport, valid inside the block that opened it. Somebody must `run` it."""

    kind: Kind
    link: Channel
    run: Callable[[], Awaitable[NoReturn]]
    child: Child | None = None
    url: str = ""

    def is_stopped(self) -> bool:
        """Whether it is a process, and stopped."""
        return self.child is not None and self.child.is_stopped()


def opened(
    spec: ServerSpec,
    launch: Launch | None,
    kind: Kind,
    around: Surroundings,
    stderr: Callable[[bytes], None],
    watch: Watch,
) -> AbstractAsyncContextManager[Connection]:
    """The process of `launch`, or a channel of that kind to the URL; `watch` is told of its HTTP requests."""
    if isinstance(spec, RemoteSpec):
        return open_remote(spec, kind, around.environ, watch)
    assert isinstance(spec, StdioSpec)
    assert launch is not None
    return _open_process(spec, launch, around.guard, stderr)


@asynccontextmanager
async def _open_process(
    spec: StdioSpec, launch: Launch, guard: Guard, stderr: Callable[[bytes], None]
) -> AsyncIterator[Connection]:
    async with open_stdio(spec, launch, guard=guard, stderr=stderr) as transport:
        yield Connection(kind="stdio", link=transport.link, run=transport.run, child=transport.child)


@asynccontextmanager
async def open_remote(
    spec: RemoteSpec, kind: Kind, environ: Mapping[str, str], watch: Watch | None = None
) -> AsyncIterator[Connection]:
    """A channel of that kind to `spec.url`. Raises NoTransport, CannotStart."""
    if kind == "http":
        async with open_http(spec, environ, watch) as http:
            yield Connection(kind=kind, link=http, run=http.run, url=spec.url)
    elif kind == "sse":
        async with open_http_sse(spec, environ, watch) as sse:
            yield Connection(kind=kind, link=sse, run=sse.run, url=spec.url)
    elif kind == "ws":
        async with open_websocket(spec) as socket:
            yield Connection(kind=kind, link=socket, run=socket.run, url=spec.url)
    else:
        raise NoTransport(f"this version of mcpd has no transport for `{kind}` servers")


def patience(spec: ServerSpec) -> RestartPolicy:
    """The restart policy as it applies: a server that is merely not reachable is in no crash loop."""
    policy, usual = spec.restart, RestartPolicy()
    if isinstance(spec, StdioSpec):
        return policy
    return attrs.evolve(
        policy,
        cap=REMOTE_CAP if policy.cap == usual.cap else policy.cap,
        intensity=_NO_LIMIT if policy.intensity == usual.intensity else policy.intensity,
    )

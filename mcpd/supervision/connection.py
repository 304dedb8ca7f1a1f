"""Opening the right transport for a definition: from here on, a server is a channel and what runs it."""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from typing import Literal, NoReturn

import attrs

from mcpd.model.server_spec import RemoteSpec, RestartPolicy, ServerSpec, StdioSpec
from mcpd.supervision.context import SupervisorContext
from mcpd.supervision.failure import UnsupportedTransport
from mcpd.transports.base import Channel
from mcpd.transports.child_environment import Launch
from mcpd.transports.child_process import Child, ProcessGroupGuard
from mcpd.transports.http_client.client_factory import OnResponse
from mcpd.transports.legacy_http_sse import open_http_sse
from mcpd.transports.stdio import open_stdio
from mcpd.transports.streamable_http import open_http
from mcpd.transports.websocket import open_websocket

REMOTE_BACKOFF_CAP = 120.0
"""Seconds between attempts at most: connecting costs a remote server more, and nobody sees it try."""
_NO_LIMIT = 1 << 62

TransportKind = Literal["stdio", "http", "sse", "ws"]


@attrs.frozen(kw_only=True, eq=False)
class OpenTransport:
    """An open transport, valid inside the block that opened it. Somebody must `run` it."""

    kind: TransportKind
    channel: Channel
    run: Callable[[], Awaitable[NoReturn]]
    child: Child | None = None
    url: str = ""

    def is_stopped(self) -> bool:
        """Whether it is a process, and stopped."""
        return self.child is not None and self.child.is_stopped()


def open_transport(
    spec: ServerSpec,
    launch: Launch | None,
    kind: TransportKind,
    context: SupervisorContext,
    stderr: Callable[[bytes], None],
    watch: OnResponse,
) -> AbstractAsyncContextManager[OpenTransport]:
    """The process of `launch`, or a channel of that kind to the URL; `watch` is told of its HTTP requests."""
    if isinstance(spec, RemoteSpec):
        return open_remote(spec, kind, context.environ, watch)
    assert isinstance(spec, StdioSpec)
    assert launch is not None
    return _open_process(spec, launch, context.guard, stderr)


@asynccontextmanager
async def _open_process(
    spec: StdioSpec, launch: Launch, guard: ProcessGroupGuard, stderr: Callable[[bytes], None]
) -> AsyncIterator[OpenTransport]:
    async with open_stdio(spec, launch, guard=guard, stderr=stderr) as transport:
        yield OpenTransport(kind="stdio", channel=transport.channel, run=transport.run, child=transport.child)


@asynccontextmanager
async def open_remote(
    spec: RemoteSpec, kind: TransportKind, environ: Mapping[str, str], watch: OnResponse | None = None
) -> AsyncIterator[OpenTransport]:
    """A channel of that kind to `spec.url`. Raises NoTransport, CannotStart."""
    if kind == "http":
        async with open_http(spec, environ, watch) as http:
            yield OpenTransport(kind=kind, channel=http, run=http.run, url=spec.url)
    elif kind == "sse":
        async with open_http_sse(spec, environ, watch) as sse:
            yield OpenTransport(kind=kind, channel=sse, run=sse.run, url=spec.url)
    elif kind == "ws":
        async with open_websocket(spec) as socket:
            yield OpenTransport(kind=kind, channel=socket, run=socket.run, url=spec.url)
    else:
        raise UnsupportedTransport(f"this version of mcpd has no transport for `{kind}` servers")


def effective_restart_policy(spec: ServerSpec) -> RestartPolicy:
    """The restart policy as it applies: a server that is merely not reachable is in no crash loop."""
    policy, usual = spec.restart, RestartPolicy()
    if isinstance(spec, StdioSpec):
        return policy
    return attrs.evolve(
        policy,
        cap=REMOTE_BACKOFF_CAP if policy.cap == usual.cap else policy.cap,
        intensity=_NO_LIMIT if policy.intensity == usual.intensity else policy.intensity,
    )

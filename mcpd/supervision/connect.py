"""One attempt to connect to a server: how to address it, opening its transport, and what it failed on."""

from __future__ import annotations

import math
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from typing import Literal, NoReturn

import attrs
import trio

from mcpd.model.errors import HttpRefused, NoCommonVersion, UpstreamRefused
from mcpd.model.package_runners import PackageRunner
from mcpd.model.server_spec import RemoteSpec, RestartPolicy, ServerSpec, StdioSpec, Timeouts
from mcpd.model.status import Failure
from mcpd.protocol.negotiate import (
    Hint,
    NotStreamableHttp,
    ServerDiedDuringProbe,
    Trace,
    join_steps,
    negotiate,
)
from mcpd.protocol.upstream_session import Hooks, Upstream
from mcpd.state_file import StateFile
from mcpd.supervision.context import SupervisorContext
from mcpd.supervision.restart import (
    Evidence,
    UnsupportedTransport,
    Verdict,
    classify_failure,
    leaf_exceptions,
)
from mcpd.transports.base import Channel
from mcpd.transports.child_environment import Launch
from mcpd.transports.child_process import Child, ProcessGroupGuard
from mcpd.transports.http_client.client_factory import OnResponse
from mcpd.transports.legacy_http_sse import open_http_sse
from mcpd.transports.stdio import open_stdio
from mcpd.transports.streamable_http import open_http
from mcpd.transports.websocket import open_websocket

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


_LEGACY_OVER_SSE = "legacy+sse"
"""What is remembered of a server that was found to speak HTTP+SSE."""
_UNKNOWN = "auto"


class ConnectStrategy:
    """The next attempt's `kind` and `hint`; it learns from every attempt."""

    def __init__(self, spec: ServerSpec, store: StateFile, fingerprint: str) -> None:
        self.spec = spec
        self._store = store
        self._fingerprint = fingerprint
        self._presumed_legacy = False
        self._answered_probe_late = False
        """Whether the server of this attempt has said that it is modern after it was initialized."""
        self._not_streamable: NotStreamableHttp | None = None
        """Why it is not reached by Streamable HTTP, with the statuses; then HTTP+SSE is tried."""

    @property
    def kind(self) -> TransportKind:
        """The transport: what the definition says, or what was found out where it says none."""
        spec = self.spec
        if not isinstance(spec, RemoteSpec):
            return "stdio"
        if not self._is_transport_guessed:
            return spec.kind
        return "sse" if self._not_streamable or self._remembered_era == _LEGACY_OVER_SSE else "http"

    @property
    def era_hint(self) -> Hint:
        if self.spec.era != "auto":
            return self.spec.era
        legacy = self._presumed_legacy or self.kind == "sse" or self._remembered_era == "legacy"
        return "legacy" if legacy else "auto"

    async def negotiate(self, link: Channel, hooks: Hooks, trace: Trace) -> Upstream:
        """Agree on a revision with a server that has said nothing yet. Raises TooSlowError, and as
        `eras.negotiate`."""
        times = self.spec.timeouts
        self._answered_probe_late = False
        with trio.move_on_after(times.connect):
            return await negotiate(link, hooks, self.era_hint, self._probe_timeout(times), trace)
        raise trio.TooSlowError(
            f"it did not finish the handshake within {times.connect:g} s (see `connectTimeout`)"
        )

    def _probe_timeout(self, times: Timeouts) -> float:
        """Seconds for a stdio server to answer the probe: the slow start of one known to be modern is
        waited for, as long as that leaves time for the other way."""
        return max(times.probe, times.connect * 0.75) if self._remembered_era == "modern" else times.probe

    def learn_modern(self) -> None:
        """It has answered the probe when it had been taken for legacy: the next attempt knows better."""
        self._answered_probe_late = True
        self._store.set_era(self._fingerprint, "modern")

    @property
    def is_fallback(self) -> bool:
        """Whether the next attempt is a further step of the ladder that the last one began."""
        return self._not_streamable is not None

    def reset(self) -> None:
        """A person asked for a new start."""
        self._presumed_legacy = False
        self._not_streamable = None

    def record_success(self, upstream: Upstream) -> None:
        """This is what it speaks."""
        era = "modern" if self._answered_probe_late else upstream.era
        self._store.set_era(self._fingerprint, _LEGACY_OVER_SSE if self.kind == "sse" else era)
        self._not_streamable = None

    def next_fallback(self, error: BaseException, *, was_ready: bool) -> str:
        """Why to try at once in another way; empty when there is none left. Ask once for each failure."""
        found = list(leaf_exceptions(error))
        if (
            any(isinstance(leaf, ServerDiedDuringProbe) for leaf in found)
            and self._remembered_era != "modern"
        ):
            self._presumed_legacy = True
            return "starting it again: it ended when asked server/discover"
        if any(isinstance(leaf, UpstreamRefused) for leaf in found):
            self._presumed_legacy = False  # it lives and does not want to be initialized: ask it again
        if was_ready or not isinstance(self.spec, RemoteSpec):
            return ""
        if self._remembered_era not in (None, _UNKNOWN) and _is_refusal(found):
            self._store.set_era(self._fingerprint, _UNKNOWN)
            return "asking afresh what it speaks: it is not what it was"
        refusal = next((leaf for leaf in found if isinstance(leaf, NotStreamableHttp)), None)
        if refusal is not None and self._is_transport_guessed and self.kind == "http":
            self._not_streamable = refusal
            return "trying HTTP+SSE: it does not speak Streamable HTTP"
        return ""

    def describe_attempts(self, failure: Failure, verdict: Verdict) -> tuple[Failure, Verdict]:
        """The failure with the steps before it that failed as well; after that the ladder begins anew.

        What may pass on an earlier step is tried again, whatever the last one came to.
        """
        before, self._not_streamable = self._not_streamable, None
        if before is None:
            return failure, verdict
        tried = join_steps([*before.steps, f"GET for HTTP+SSE: {failure.message}"])
        words = f"no MCP server answers at its URL ({tried})"
        if before.may_be_temporary and verdict is Verdict.WAIT:
            failure, verdict = attrs.evolve(failure, http_status=before.status), Verdict.RETRY
        return attrs.evolve(failure, message=words), verdict

    @property
    def _is_transport_guessed(self) -> bool:
        spec = self.spec
        return (
            isinstance(spec, RemoteSpec)
            and spec.kind == "http"
            and not spec.kind_is_explicit
            and spec.era != "modern"
        )

    @property
    def _remembered_era(self) -> str | None:
        return self._store.era(self._fingerprint)


def _is_refusal(found: list[BaseException]) -> bool:
    """Whether the server is well and does not want to be addressed like this."""
    statuses = [leaf.status for leaf in found if isinstance(leaf, HttpRefused)]
    if statuses:
        return all(400 <= status < 500 and status not in (408, 429) for status in statuses)
    return any(isinstance(leaf, NotStreamableHttp | NoCommonVersion | UpstreamRefused) for leaf in found)


@attrs.define(eq=False)
class Attempt:
    """Written by the server's task; a wish cancels its `scope`."""

    scope: trio.CancelScope = attrs.field(factory=trio.CancelScope)
    package_runner: PackageRunner | None = None
    """What fetches the server, while that is waited for."""
    ready_at: float | None = None
    """When it was connected (`trio.current_time()`)."""
    last_success_at: float = -math.inf
    """When a call last succeeded, once the connection has ended."""
    has_ended: bool = False
    """Whether its end has been noted."""

    def was_stable(self, policy: RestartPolicy) -> bool:
        """Whether it lasted long enough, or worked late enough, for its failure to count as the first."""
        return self.ready_at is not None and (
            trio.current_time() - self.ready_at >= policy.stable
            or self.last_success_at - self.ready_at >= policy.proof
        )

    def diagnose(
        self, error: BaseException, evidence: Evidence, strategy: ConnectStrategy
    ) -> tuple[Failure, Verdict]:
        """What it failed of, with all the ways that were tried, and what is to be done. Secrets are in it."""
        failure, verdict = strategy.describe_attempts(*classify_failure(error, evidence))
        if self.package_runner is not None and evidence.returncode is not None:
            words = f"{self.package_runner.failure_message} ({failure.message})"
            failure = attrs.evolve(failure, message=words)
        return failure, verdict


class StartSlot:
    """Taken by entering the block; given back by `free`, or at its end."""

    def __init__(self, starts: trio.CapacityLimiter) -> None:
        self._limiter = starts
        self._held = False

    async def __aenter__(self) -> StartSlot:
        await self._limiter.acquire_on_behalf_of(self)
        self._held = True
        return self

    async def __aexit__(self, *_: object) -> None:
        self.release()

    async def release_after(self, seconds: float) -> None:
        await trio.sleep(seconds)
        self.release()

    def release(self) -> None:
        if self._held:
            self._held = False
            self._limiter.release_on_behalf_of(self)

"""Connecting to a server: choosing transport and era, opening the transport, and judging the attempt."""

from __future__ import annotations

import math
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from typing import TYPE_CHECKING, Literal, NoReturn

import attrs
import msgspec
import trio

from mcpd.model.errors import HttpRefused, NoCommonVersion, UpstreamRefused
from mcpd.model.package_runners import PackageRunner
from mcpd.model.server_spec import RemoteSpec, ServerSpec, StdioSpec, Timeouts
from mcpd.model.status import Failure, FailureKind
from mcpd.model.text import shorten
from mcpd.protocol.negotiate import (
    AnsweredProbeLate,
    Hint,
    NotStreamableHttp,
    ServerDiedDuringProbe,
    Trace,
    negotiate,
)
from mcpd.protocol.upstream_session import Hooks, Upstream
from mcpd.state.state_file import StateFile
from mcpd.supervision.restart import (
    Evidence,
    NextTry,
    NotMcpOutput,
    classify_failure,
    leaf_exceptions,
)
from mcpd.supervision.supervisor_context import SupervisorContext
from mcpd.transports.base import Channel
from mcpd.transports.child_process import Child, Launch
from mcpd.transports.stdio import OpenPipes, open_stdio

if TYPE_CHECKING:
    from mcpd.transports.credentials import Credentials
    from mcpd.transports.http_client.client_factory import OnResponse, RenewSecrets
    from mcpd.transports.legacy_http_sse import SseChannel
    from mcpd.transports.streamable_http import HttpChannel
    from mcpd.transports.websocket import WebSocketChannel

TransportKind = Literal["stdio", "http", "sse", "ws"]
_PROBE_SHARE = 0.75
"""The share of `connectTimeout` after which the legacy handshake is tried."""


class OpenTransport(msgspec.Struct, frozen=True, kw_only=True, eq=False):
    """An open transport, valid inside the block that opened it. The caller must run `run`."""

    channel: Channel
    run: Callable[[], Awaitable[NoReturn]]
    child: Child | None = None

    def is_stopped(self) -> bool:
        """Whether the server is a local process that is stopped (SIGSTOP)."""
        return self.child is not None and self.child.is_stopped()


@asynccontextmanager
async def open_transport(
    spec: ServerSpec,
    launch: Launch | None,
    kind: TransportKind,
    context: SupervisorContext,
    stderr: Callable[[bytes], None],
    on_response: OnResponse,
    renew_secrets: RenewSecrets | None = None,
    adopted: OpenPipes | None = None,
) -> AsyncIterator[OpenTransport]:
    """Start the process of `launch`, or open a channel of `kind` to the URL of a remote server, or go on with
    `adopted`.

    `on_response` is called for each HTTP request of the channel. `renew_secrets`: see `open_client`. Raises
    as `open_stdio` and `open_remote` do.
    """
    if isinstance(spec, RemoteSpec):
        find = context.credentials_for
        credentials = await find(spec) if find is not None and spec.may_log_in else None
        async with open_remote(
            spec, kind, context.environ, on_response, credentials, renew_secrets
        ) as remote:
            yield remote
        return
    assert isinstance(spec, StdioSpec)
    assert launch is not None
    async with open_stdio(spec, launch, guard=context.guard, stderr=stderr, adopted=adopted) as transport:
        yield OpenTransport(channel=transport.channel, run=transport.run, child=transport.child)


@asynccontextmanager
async def open_remote(
    spec: RemoteSpec,
    kind: TransportKind,
    environ: Mapping[str, str],
    on_response: OnResponse | None = None,
    credentials: Credentials | None = None,
    renew_secrets: RenewSecrets | None = None,
) -> AsyncIterator[OpenTransport]:
    """Open a channel of `kind` to `spec.url`. Raises CannotStart.

    The transports are imported here, because most daemons have only servers on pipes.
    """
    opening: AbstractAsyncContextManager[HttpChannel | SseChannel | WebSocketChannel]
    if kind == "http":
        from mcpd.transports.streamable_http import open_http

        opening = open_http(spec, environ, on_response, credentials, renew_secrets)
    elif kind == "sse":
        from mcpd.transports.legacy_http_sse import open_http_sse

        opening = open_http_sse(spec, environ, on_response, credentials, renew_secrets)
    else:
        from mcpd.transports.websocket import open_websocket

        opening = open_websocket(spec, credentials)
    async with opening as channel:
        yield OpenTransport(channel=channel, run=channel.run)


_LEGACY_OVER_SSE = "legacy+sse"
"""Stored for a server that was found to speak HTTP+SSE."""
_UNKNOWN = "auto"
_LEGACY_FIRST = "legacy-first"
"""Stored for a local server that speaks both eras if only clients of the legacy one have used it: a single
process serves them all."""
_BOTH = "both"
"""Stored for a server that clients of the modern era have used: it is modern for them."""
_START_SLOT_TIMEOUT = 2.0
"""Seconds after which a starting server gives up its start slot: it is downloading or hanging."""


class ConnectStrategy:
    """Chooses the transport and the era of each attempt: from the definition, the stored result of earlier
    attempts, and the last failure.

    For HTTP these are tried in order: a modern request, a legacy `initialize`, the HTTP+SSE transport of
    2024-11-05. The result is stored, and tried again from the start when it stops working.
    """

    def __init__(self, spec: ServerSpec, store: StateFile, fingerprint: str) -> None:
        self.spec = spec
        self._store = store
        self._fingerprint = fingerprint
        self._legacy_first = self._remembered_era == _LEGACY_FIRST
        """Whether to use the legacy era of a server of both. It stays so until the daemon ends: another
        process for the same clients would know nothing of what they did."""
        self._presumed_legacy = False
        self._answered_probe_late = False
        """Whether the server turned out to be modern after it had been initialized as legacy."""
        self._not_streamable: NotStreamableHttp | None = None
        """Why Streamable HTTP failed, with the HTTP statuses; HTTP+SSE is tried then."""

    @property
    def kind(self) -> TransportKind:
        """The transport: from the definition, or found out if the definition does not state it."""
        spec = self.spec
        if not isinstance(spec, RemoteSpec):
            return "stdio"
        if not self._is_transport_guessed:
            return spec.kind
        return "sse" if self._not_streamable or self._remembered_era == _LEGACY_OVER_SSE else "http"

    @property
    def _era_hint(self) -> Hint:
        if self.spec.era != "auto":
            return self.spec.era
        if self._legacy_first:
            return "legacy-first"
        legacy = self._presumed_legacy or self.kind == "sse" or self._remembered_era == "legacy"
        return "legacy" if legacy else "auto"

    async def negotiate(self, link: Channel, hooks: Hooks, trace: Trace) -> Upstream:
        """Negotiate the protocol revision on a new channel. Raises TooSlowError or NotMcpOutput, and as
        `negotiate` does."""
        times = self.spec.timeouts
        self._answered_probe_late = False
        began_at = link.last_received_at
        with trio.move_on_after(times.connect):
            limit = times.connect * _PROBE_SHARE
            may_restart = self.kind == "stdio" and self._remembered_era != "modern"
            return await negotiate(
                link,
                hooks,
                self._era_hint,
                self._probe_timeout(times),
                trace,
                limit,
                may_restart=may_restart,
            )
        problem = f"it did not finish the handshake within {times.connect:g} s (see `connectTimeout`)"
        if rest := link.unended_line():
            problem += f"; it does not end its messages with a line feed: {shorten(rest)}"
        if self.kind == "stdio" and link.deviations.unparsable_lines and link.last_received_at == began_at:
            raise NotMcpOutput(problem)
        raise trio.TooSlowError(problem)

    def _probe_timeout(self, times: Timeouts) -> float:
        """Seconds for a stdio server to answer the probe. A server known to be modern gets longer, but not so
        long that no time is left for the legacy handshake.
        """
        return (
            max(times.probe, times.connect * _PROBE_SHARE)
            if self._remembered_era in ("modern", _BOTH)
            else times.probe
        )

    def note_legacy_works(self) -> None:
        """Use the legacy era from the next start of the daemon on, unless modern clients use the server."""
        if self._remembered_era == "modern" and isinstance(self.spec, StdioSpec):
            self._store.set_era(self._fingerprint, _LEGACY_FIRST)

    def note_modern_client(self) -> None:
        """A client of the modern era uses the server."""
        if self._remembered_era in ("modern", _LEGACY_FIRST):
            self._store.set_era(self._fingerprint, _BOTH)

    def learn_modern(self) -> None:
        """Store that a server that was taken for legacy has answered the probe after all."""
        self._answered_probe_late = True
        self._store.set_era(self._fingerprint, "modern")

    @property
    def is_fallback(self) -> bool:
        """Whether the next attempt continues the sequence of the last one."""
        return self._not_streamable is not None

    def reset(self) -> None:
        """Forget what failures have taught, because the user asked for a new attempt."""
        self._presumed_legacy = False
        self._not_streamable = None

    def record_success(self, upstream: Upstream) -> None:
        """Store the era and transport of a server that is connected."""
        era = "modern" if self._answered_probe_late else upstream.era
        remembered = self._remembered_era
        if remembered == _BOTH or (remembered == _LEGACY_FIRST and era == "legacy"):
            era = remembered
        self._store.set_era(self._fingerprint, _LEGACY_OVER_SSE if self.kind == "sse" else era)
        self._not_streamable = None

    def next_fallback(self, error: BaseException, *, was_ready: bool) -> str:
        """Return why to try again immediately in another way; empty if there is no other way.

        Call it once for each failure: it selects the other way.
        """
        found = list(leaf_exceptions(error))
        if any(isinstance(leaf, ServerDiedDuringProbe) for leaf in found) and self._remembered_era not in (
            "modern",
            _BOTH,
        ):
            self._presumed_legacy = True
            return "restarting it: it exited at the first message from mcpd"
        if any(isinstance(leaf, AnsweredProbeLate) for leaf in found):
            return "starting it again: it is slow, and has answered late that it speaks the newest revision"
        if any(isinstance(leaf, UpstreamRefused) for leaf in found):
            self._presumed_legacy = False  # it is alive but refused `initialize`: probe again
        if was_ready or not isinstance(self.spec, RemoteSpec):
            return ""
        if self._remembered_era not in (None, _UNKNOWN) and _is_refusal(found):
            self._store.set_era(self._fingerprint, _UNKNOWN)
            return "negotiating again: the server has changed"
        refusal = next((leaf for leaf in found if isinstance(leaf, NotStreamableHttp)), None)
        if refusal is not None and self._is_transport_guessed and self.kind == "http":
            self._not_streamable = refusal
            return "trying HTTP+SSE: the server does not speak Streamable HTTP"
        return ""

    def describe_attempts(self, failure: Failure, verdict: NextTry) -> tuple[Failure, NextTry]:
        """Add the failed steps before this one to the failure; the next attempt starts from the first step.

        If an earlier step may succeed later, the verdict is RETRY whatever the last step says.
        """
        before, self._not_streamable = self._not_streamable, None
        if before is None:
            return failure, verdict
        tried = ", ".join([*before.steps, f"GET for HTTP+SSE: {failure.message}"])
        message = f"no MCP server answers at its URL ({tried})"
        if before.may_be_temporary and verdict is NextTry.WAIT:
            failure, verdict = attrs.evolve(failure, http_status=before.status), NextTry.RETRY
        return attrs.evolve(failure, message=message), verdict

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
    """Return whether the server works but refuses to be addressed like this."""
    statuses = [leaf.status for leaf in found if isinstance(leaf, HttpRefused)]
    if statuses:
        return all(400 <= status < 500 and status not in (408, 429) for status in statuses)
    return any(isinstance(leaf, NotStreamableHttp | NoCommonVersion | UpstreamRefused) for leaf in found)


class Attempt(msgspec.Struct, eq=False):
    """The progress of one connection attempt. A change of the desired state cancels its `scope`."""

    scope: trio.CancelScope = msgspec.field(default_factory=trio.CancelScope)
    package_runner: PackageRunner | None = None
    """The package runner that is downloading the server, while mcpd waits for it."""
    ready_at: float | None = None
    """When the connection was ready (`trio.current_time()`)."""
    last_success_at: float = -math.inf
    """When a call last succeeded, set when the connection has ended."""
    has_ended: bool = False
    """Whether its end has been recorded."""

    def diagnose(
        self, error: BaseException, evidence: Evidence, strategy: ConnectStrategy
    ) -> tuple[Failure, NextTry]:
        """Return the failure, covering all ways that were tried, and the verdict. May contain secrets."""
        failure, verdict = strategy.describe_attempts(*classify_failure(error, evidence))
        if self.package_runner is not None and evidence.returncode is not None:
            message = f"{self.package_runner.failure_message} ({failure.message})"
            failure = attrs.evolve(failure, message=message)
        is_refused = verdict is NextTry.LOGIN and strategy.spec.may_regain_access
        is_http_error = verdict is NextTry.WAIT and failure.kind is FailureKind.HTTP
        if self.ready_at is not None and (is_http_error or is_refused):
            # It has worked: the next attempt finds out whether it can again, perhaps with another secret.
            verdict = NextTry.RETRY
        return failure, verdict


class StartSlot:
    """One of the limited slots for servers that start at the same time. Released on exit or by `release`."""

    def __init__(self, starts: trio.CapacityLimiter) -> None:
        self._limiter = starts
        self._held = False

    async def __aenter__(self) -> StartSlot:
        await self._limiter.acquire_on_behalf_of(self)
        self._held = True
        return self

    async def __aexit__(self, *_: object) -> None:
        self.release()

    async def release_after_timeout(self) -> None:
        await trio.sleep(_START_SLOT_TIMEOUT)
        self.release()

    def release(self) -> None:
        if self._held:
            self._held = False
            self._limiter.release_on_behalf_of(self)

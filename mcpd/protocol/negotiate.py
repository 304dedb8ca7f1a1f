"""Protocol negotiation: ask `server/discover`; anything that is no proof of a modern server means legacy.

This is a denylist on purpose: legacy servers answer an unknown first request with any error code, with
silence, or by exiting, so the fallback to `initialize` does not depend on a single code. See
https://modelcontextprotocol.io/specification/2026-07-28/basic/versioning.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Literal, TypeGuard

import msgspec
import trio

from mcpd.model.errors import (
    HttpRefused,
    LinkLost,
    McpdError,
    NoCommonVersion,
    ProtocolViolation,
    UpstreamRefused,
)
from mcpd.protocol import legacy, modern
from mcpd.protocol.upstream_session import Hooks, Upstream
from mcpd.transports.base import Channel

Hint = Literal["auto", "modern", "legacy", "legacy-first"]
Trace = Callable[[str, str, float], None]
"""Called with a step, its outcome, and the seconds it took."""

PROTOCOL_VERSIONS = (*modern.VERSIONS, *legacy.VERSIONS)


_ECHO = re.compile(r"\bserver/discover\b|validation errors? for Client(?:Request|Notification)\b")
_REST_OF_ECHO = re.compile(r"\s|\w+(?:Request|Notification)\.")


def without_echo(lines: Iterable[str]) -> list[str]:
    """Leave out what a server has written to stderr about the probe, which explains no failure. The Python
    SDK 1.x writes a hundred lines."""
    kept, is_echo = [], False
    for line in lines:
        is_echo = _ECHO.search(line) is not None or (is_echo and _REST_OF_ECHO.match(line) is not None)
        if not is_echo:
            kept.append(line)
    return kept


class ServerDiedDuringProbe(Exception):
    """The server exited when asked `server/discover`, as some do on any first message but `initialize`.

    It is legacy: start it again with that hint.
    """


class AnsweredProbeLate(Exception):
    """The server started slowly, and has answered `server/discover` after `initialize` had been sent.

    It is modern, but `initialize` has fixed the era of this connection: start it again.
    """


class NotStreamableHttp(Exception):
    """Nothing at this URL speaks Streamable HTTP; it may speak HTTP+SSE. The message contains the HTTP
    statuses.

    `status` is the response to `initialize`; None if that was an error in a JSON body.
    """

    def __init__(self, steps: Sequence[str], status: int | None = None) -> None:
        """`steps`: what was tried and its outcome, as in `Trace`: `initialize: HTTP 404 Not Found`."""
        super().__init__(", ".join(steps))
        self.steps = (*steps,)
        self.status = status

    @property
    def may_be_temporary(self) -> bool:
        """Whether it was an internal error of the server, so that the URL may be right."""
        return self.status == 500


_TEMPORARY = (408, 429)
_ACCESS = (401, 403)
_AMBIGUOUS = (500, 501)
"""Statuses that some legacy servers send for an unexpected request."""


def _suggests_other_era(error: McpdError) -> TypeGuard[HttpRefused]:
    """Return whether a healthy server might answer an unknown method like this."""
    if not isinstance(error, HttpRefused) or error.status in (*_TEMPORARY, *_ACCESS):
        return False
    return 400 <= error.status < 500 or error.status in _AMBIGUOUS


class _Negotiation(msgspec.Struct, eq=False):
    link: Channel
    hooks: Hooks
    trace: Trace
    probe_timeout: float
    start_timeout: float
    modern_only: bool
    notes: list[str] = msgspec.field(default_factory=list)
    has_answered_late: bool = False

    async def probe(self, *, last: bool = False) -> Upstream | str | None:
        """Return a modern upstream, the legacy version to initialize with, or None if nothing was learned."""
        started = trio.current_time()

        def note(outcome: str) -> None:
            self._note("server/discover", outcome, started)

        with trio.CancelScope() as waiting:
            # Over HTTP, silence proves nothing: networks are slow for other reasons.
            check = None if self.link.has_headers else self._silence_check(waiting)
            try:
                found = await modern.discover(
                    self.link, on_late_answer=lambda: self._on_late_answer(started), while_waiting=check
                )
            except UpstreamRefused as error:
                note(f"error {error.upstream_code}: {error.message}")
                return await self._after_refusal(error, last)
            except McpdError as error:
                note(error.message)
                if isinstance(error, LinkLost) and not (self.modern_only or self.link.has_headers):
                    raise ServerDiedDuringProbe from error
                if isinstance(error, ProtocolViolation) or _suggests_other_era(error):
                    return None
                raise
            versions = modern.version_list(found.get("supportedVersions"))
            note(f"offers {', '.join(versions) or 'no version'}")
            return self._choose(versions, found)
        if waiting.cancelled_caught:
            note("no answer")
        return None

    def _silence_check(self, waiting: trio.CancelScope) -> Callable[[], None]:
        """Return a function to be called repeatedly. With it, `waiting` ends when the server has been silent
        for `probe_timeout` seconds since it read the probe: a slow start is no evidence.

        A server that reads nothing for `start_timeout` seconds is not waited for: time must be left for the
        legacy handshake.
        """
        started = trio.current_time()
        waiting.deadline = started + min(self.probe_timeout, self.start_timeout)

        def check() -> None:
            if self.link.has_unread_input():
                silent_until = trio.current_time() + self.probe_timeout
                waiting.deadline = min(silent_until, started + self.start_timeout)

        return check

    async def _after_refusal(self, error: UpstreamRefused, last: bool) -> Upstream | str | None:
        if error.upstream_code not in modern.MODERN_ONLY_ERRORS:
            return None
        versions = modern.versions_in_error(error)
        if error.upstream_code != modern.UNSUPPORTED_VERSION or last:
            raise error  # it is modern and says what is wrong, so there is no fallback
        common = _first_common(modern.VERSIONS, versions)
        if common is None:
            return self._choose(versions, {})
        return self._choose((common,), await modern.discover(self.link, common))

    def _choose(self, versions: Sequence[str], found: Mapping[str, object]) -> Upstream | str | None:
        common = _first_common(modern.VERSIONS, versions)
        if common is not None:
            return modern.make_upstream(self.link, self.hooks, common, found)
        if not versions:
            return None
        older = _first_common(legacy.VERSIONS, versions)
        if older is None:
            raise NoCommonVersion(
                f"{self.link.name}: speaks {', '.join(versions)}; "
                f"mcpd supports {', '.join(PROTOCOL_VERSIONS)}",
                server=self.link.name,
            )
        return older

    async def handshake(self, version: str, *, last: bool = False) -> Upstream | None:
        """Return a legacy upstream; None if the server turns out to be modern after all.

        If a server refuses a version and names others, one of those is tried once.
        """
        started = trio.current_time()
        try:
            upstream = await legacy.initialize(self.link, self.hooks, version)
        except UpstreamRefused as error:
            self._note("initialize", f"error {error.upstream_code}: {error.message}", started)
            if error.upstream_code == modern.UNSUPPORTED_VERSION:
                return None
            offered = _first_common(legacy.VERSIONS, modern.versions_in_error(error))
            if last or offered is None or offered == version:
                if self.link.last_http_status.startswith("HTTP 4"):
                    raise NotStreamableHttp(self.notes) from error
                raise
            return await self.handshake(offered, last=True)
        except McpdError as error:
            self._note("initialize", error.message, started)
            if _suggests_other_era(error) and self.link.last_http_status.startswith("HTTP "):
                raise NotStreamableHttp(self.notes, error.status) from error
            raise
        self._note("initialize", f"agreed on {upstream.version}", started)
        return upstream

    def _on_late_answer(self, started: float) -> None:
        """`initialize` has fixed the era of this connection, but not of the next."""
        self.has_answered_late = True
        self._note("server/discover", "answered too late; the next connection will be modern", started)
        self.hooks.on_modern_detected()

    def _note(self, step: str, outcome: str, started: float) -> None:
        footing, outcome = self.link.last_http_status, outcome.replace(f"{self.link.name}: ", "")
        if footing and footing not in outcome:
            outcome = f"{footing}, {outcome}"
        self.notes.append(f"{step}: {outcome}")
        self.trace(step, outcome, trio.current_time() - started)


async def negotiate(
    link: Channel,
    hooks: Hooks,
    hint: Hint,
    probe_timeout: float,
    trace: Trace,
    start_timeout: float = math.inf,
    *,
    may_restart: bool = False,
) -> Upstream:
    """Negotiate with a newly started server. The caller bounds the whole; `probe_timeout` bounds the silence
    of a server that has read the probe, and `start_timeout` that of one that has not.

    Raises AnsweredProbeLate if `may_restart`, ServerDiedDuringProbe, NotStreamableHttp, NoCommonVersion, and
    what a request may raise: UpstreamRefused, ProtocolViolation, HttpRefused, NeedsAuth, LinkLost.
    """
    negotiation = _Negotiation(
        link, hooks, trace, probe_timeout, max(probe_timeout, start_timeout), hint == "modern"
    )
    version = legacy.VERSIONS[0]
    if hint not in ("legacy", "legacy-first"):
        found = await negotiation.probe()
        if isinstance(found, Upstream):
            return found
        if hint == "modern":
            raise NoCommonVersion(
                f"{link.name}: does not answer server/discover, but `era` in its definition is `modern`",
                server=link.name,
            )
        version = found or version
    try:
        upstream = await negotiation.handshake(version)
    except UpstreamRefused:
        if hint != "legacy-first" and not negotiation.has_answered_late:
            raise
        upstream = None
    if upstream is not None and negotiation.has_answered_late and may_restart:
        raise AnsweredProbeLate
    if upstream is None:  # it started slowly and is not legacy: try once more
        found = await negotiation.probe(last=True)
        if not isinstance(found, Upstream):
            raise NoCommonVersion(f"{link.name}: rejects server/discover and initialize", server=link.name)
        return found
    return upstream


class Negotiated(msgspec.Struct, frozen=True, kw_only=True):
    """What a connected server has said of itself, for the next version of the daemon."""

    era: str
    version: str
    described: bytes
    """Its capabilities, `serverInfo` and instructions, as JSON."""


def negotiated(upstream: Upstream) -> Negotiated:
    about = {
        "capabilities": upstream.capabilities,
        "serverInfo": upstream.own_info,
        "instructions": upstream.info.instructions,
    }
    return Negotiated(era=upstream.era, version=upstream.version, described=msgspec.json.encode(about))


def resume(link: Channel, hooks: Hooks, known: Negotiated) -> Upstream:
    """Return a server with which the version before this one has negotiated."""
    about = msgspec.json.decode(known.described, type=dict[str, object])
    if known.era == "legacy":
        return legacy.make_upstream(link, hooks, known.version, about)
    return modern.make_upstream(link, hooks, known.version, modern.discovered(about))


def _first_common(ours: Sequence[str], theirs: Sequence[str]) -> str | None:
    return next((version for version in ours if version in theirs), None)

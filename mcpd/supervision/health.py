"""Health checks: a real request after a silence finds out whether a server still responds."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import NoReturn

import trio

from mcpd.model.errors import CallTimeout, LinkLost, McpdError, NeedsAuth, Overloaded, UpstreamRefused
from mcpd.model.server_spec import Timeouts
from mcpd.protocol.upstream_session import Upstream
from mcpd.supervision.restart import Wedged
from mcpd.transports.base import Channel

_NO_REPLY = (CallTimeout, Overloaded, LinkLost)
"""The server did not answer, or does not read its input."""
_NO_SUCH_METHOD = -32601

ACCESS_CHECK_INTERVAL = 10.0
"""Seconds between health checks of a server that refuses some requests, and answers others."""


class ProbeTimer:
    """Requests an early health check; one requested while none is running is kept."""

    def __init__(self) -> None:
        self._scheduled = trio.Event()
        self._due = 0.0
        self._next_access_check = -math.inf
        self.misses = 0
        """The health checks in a row that the current connection has not answered."""
        self.usual_error = (0, "")
        """An error that this server answers to health checks: code and message."""

    def schedule(self, seconds: float) -> None:
        self._due = trio.current_time() + seconds
        self._scheduled.set()

    def check_access(self) -> None:
        """Find out soon whether the server refuses everything, because it has refused one request."""
        if not self._scheduled.is_set():
            now = trio.current_time()
            self.schedule(max(0.0, self._next_access_check - now))
            self._next_access_check = max(now, self._next_access_check) + ACCESS_CHECK_INTERVAL

    async def wait(self) -> None:
        await self._scheduled.wait()
        self._scheduled = trio.Event()
        await trio.sleep_until(self._due)

    async def comes_within(self, seconds: float) -> bool:
        """Wait until an early check is due, for so long at most; return whether one is."""
        with trio.move_on_after(seconds) as waiting:
            await self.wait()
        return not waiting.cancelled_caught


async def run_health_checks(
    upstream: Upstream, times: Timeouts, is_stopped: Callable[[], bool], probe_timer: ProbeTimer
) -> NoReturn:
    """Check the server until it fails.

    Raises Wedged after `ping_misses` unanswered requests in a row, the channel's `end_error`, or another
    error of a health check, such as an HTTP status. NeedsAuth is raised once no request is waiting for its
    response any more.

    A single-threaded server may not answer while it works on a call. Then only a stopped process counts as
    a miss, and the call's own timeout decides. `probe_timer` triggers a check regardless of the silence.
    """
    misses = 0
    needs_login = False
    while True:
        probe_timer.misses = misses
        link = upstream.link
        quiet = trio.current_time() - link.last_received_at
        is_quiet = misses == 0 and not needs_login and quiet < times.ping_idle
        if is_quiet and not await probe_timer.comes_within(times.ping_idle - quiet):
            continue
        heard = link.last_received_at
        needs_login = False
        try:
            await upstream.request(upstream.ping_method, {}, timeout=times.ping)
        except NeedsAuth as error:
            if not link.requests.is_busy:
                link.stop_accepting(error)  # a call that comes now must not be lost with the connection
                raise  # nothing can be used without a login
            needs_login = True  # what the server accepted before may still be answered
            await trio.sleep(times.ping)
        except McpdError as error:
            if link.end_error is not None:
                raise link.end_error from None
            is_life = _is_answer(link, error, probe_timer.usual_error)
            if is_life or _shows_life(link, error, heard) or (link.requests.is_busy and not is_stopped()):
                misses = 0
                if not is_life:
                    await trio.sleep(times.ping)
            elif isinstance(error, _NO_REPLY):
                misses += 1
            else:
                if isinstance(error, UpstreamRefused):  # if it does so in a new session too, it always does
                    probe_timer.usual_error = (error.upstream_code, error.message)
                raise  # it responds with errors and no call is running: reconnecting costs nothing
        else:
            misses = 0
        if misses >= times.ping_misses:
            checks = f"it did not answer {misses} health checks within {times.ping:g} s each"
            reason = checks + (" (its process is stopped)" if is_stopped() else "")
            link.close(reason)  # its calls fail for the same reason
            raise Wedged(reason)


def _is_answer(link: Channel, error: McpdError, usual: tuple[int, str]) -> bool:
    """Return whether this is an error that a working server may answer, because it need not know the method.

    An HTTP error does not count, because the server would refuse any request in this way. In a session, which
    may be lost, other errors count only if they are the `usual` one.
    """
    if not isinstance(error, UpstreamRefused):
        return False
    if error.upstream_code == _NO_SUCH_METHOD:
        return True
    if link.last_http_status.startswith(("HTTP 4", "HTTP 5")):
        return False
    return not link.session or (error.upstream_code, error.message) == usual or lacks_method(error)


def lacks_method(error: UpstreamRefused) -> bool:
    """Return whether a server answers so because it does not know the method, which may have another code."""
    return error.upstream_code == _NO_SUCH_METHOD or "method" in error.message.lower()


def _shows_life(link: Channel, error: McpdError, heard: float) -> bool:
    """Return whether anything else than the failed check has been received since `heard`."""
    return link.last_received_at > heard and not isinstance(error, UpstreamRefused)

"""Is it still there? Real requests after a silence; busy is not wedged."""

from __future__ import annotations

from collections.abc import Callable
from typing import NoReturn

import trio

from mcpd.model.errors import CallTimeout, LinkLost, McpdError, Overloaded, UpstreamRefused
from mcpd.model.server_spec import Timeouts
from mcpd.protocol.upstream_session import Upstream
from mcpd.supervision.restart import Wedged

_NO_REPLY = (CallTimeout, Overloaded, LinkLost)
"""No answer; or the request could not leave, since it does not read its input."""


class ProbeTimer:
    """A wish that somebody looks, soon; one that nobody was there to hear stays until then."""

    def __init__(self) -> None:
        self._scheduled = trio.Event()
        self._seconds = 0.0

    def schedule(self, seconds: float) -> None:
        self._seconds = seconds
        self._scheduled.set()

    async def wait(self) -> None:
        """Until it is time to look."""
        await self._scheduled.wait()
        self._scheduled = trio.Event()
        await trio.sleep(self._seconds)


async def run_health_checks(
    upstream: Upstream, times: Timeouts, is_stopped: Callable[[], bool], probe_timer: ProbeTimer
) -> NoReturn:
    """Raises Wedged when `ping_misses` requests in a row stay unanswered, why the link ended, and what a
    request met that is no silence (an HTTP status, say).

    A server that is working on a call may be deaf meanwhile (many are single-threaded): then only a
    stopped process counts as a miss, and the call's own timeout decides about the rest. At a
    `prompt` it is asked, however short the silence.
    """
    misses = 0
    while True:
        link = upstream.link
        quiet = trio.current_time() - link.last_received_at
        if misses == 0 and quiet < times.ping_idle:
            with trio.move_on_after(times.ping_idle - quiet) as silence:
                await probe_timer.wait()
            if silence.cancelled_caught:
                continue
        heard = link.last_received_at
        try:
            await upstream.request(upstream.ping_method, {}, timeout=times.ping)
        except UpstreamRefused:
            misses = 0  # an error is an answer
        except McpdError as error:
            if link.end_error is not None:
                raise
            if link.last_received_at > heard or (link.is_busy and not is_stopped()):
                misses = 0
                await trio.sleep(times.ping)
            elif isinstance(error, _NO_REPLY):
                misses += 1
            else:
                raise  # it is there and not well, and a new connection costs nobody a call
        else:
            misses = 0
        if misses >= times.ping_misses:
            raise Wedged(
                f"it left {misses} liveness requests unanswered for {times.ping:g} s each"
                + (" (its process is stopped)" if is_stopped() else "")
            )

"""Is it still there? Real requests after a silence; busy is not wedged."""

from __future__ import annotations

from collections.abc import Callable
from typing import NoReturn

import trio

from mcpd.model.errors import CallTimeout, LinkLost, McpdError, Overloaded, UpstreamRefused
from mcpd.model.server_spec import Timeouts
from mcpd.protocol.upstream_session import Upstream
from mcpd.supervision.failure import Wedged

_SILENCE = (CallTimeout, Overloaded, LinkLost)
"""No answer; or the request could not leave, since it does not read its input."""


class Prompt:
    """A wish that somebody looks, soon; one that nobody was there to hear stays until then."""

    def __init__(self) -> None:
        self._given = trio.Event()
        self._seconds = 0.0

    def look_in(self, seconds: float) -> None:
        self._seconds = seconds
        self._given.set()

    async def wait(self) -> None:
        """Until it is time to look."""
        await self._given.wait()
        self._given = trio.Event()
        await trio.sleep(self._seconds)


async def watch_liveness(
    upstream: Upstream, times: Timeouts, is_stopped: Callable[[], bool], prompt: Prompt
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
        quiet = trio.current_time() - link.heard_at
        if misses == 0 and quiet < times.ping_idle:
            with trio.move_on_after(times.ping_idle - quiet) as silence:
                await prompt.wait()
            if silence.cancelled_caught:
                continue
        heard = link.heard_at
        try:
            await upstream.request(upstream.ping_method, {}, timeout=times.ping)
        except UpstreamRefused:
            misses = 0  # an error is an answer
        except McpdError as error:
            if link.ended is not None:
                raise
            if link.heard_at > heard or (link.busy and not is_stopped()):
                misses = 0
                await trio.sleep(times.ping)
            elif isinstance(error, _SILENCE):
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

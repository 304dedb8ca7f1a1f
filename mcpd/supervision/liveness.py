"""Is it still there? Real requests after a silence; busy is not wedged."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import NoReturn

import trio

from mcpd.eras.base import Upstream
from mcpd.model.errors import CallTimeout, LinkLost, Overloaded, UpstreamRefused
from mcpd.model.spec import Timeouts
from mcpd.supervision.failure import Wedged


async def watch_liveness(
    upstream: Upstream,
    times: Timeouts,
    is_stopped: Callable[[], bool],
    prompted: Callable[[], Awaitable[None]] = trio.sleep_forever,
) -> NoReturn:
    """Raises Wedged when `ping_misses` requests in a row stay unanswered; LinkLost when the link ends.

    A server that is working on a call may be deaf meanwhile (many are single-threaded): then only a
    stopped process counts as a miss, and the call's own timeout decides about the rest. When `prompted`
    returns, it is asked at once, however short the silence.
    """
    misses = 0
    while True:
        link = upstream.link
        quiet = trio.current_time() - link.heard_at
        if misses == 0 and quiet < times.ping_idle:
            with trio.move_on_after(times.ping_idle - quiet) as silence:
                await prompted()
            if silence.cancelled_caught:
                continue
        heard = link.heard_at
        try:
            await upstream.request(upstream.ping_method, {}, timeout=times.ping)
        except UpstreamRefused:
            misses = 0  # an error is an answer
        except (CallTimeout, Overloaded, LinkLost) as error:
            if isinstance(error, LinkLost) and link.ended is not None:
                raise  # it is over; otherwise the request could not leave, for it does not read its input
            if link.heard_at > heard or (link.busy and not is_stopped()):
                misses = 0
                await trio.sleep(times.ping)
            else:
                misses += 1
        else:
            misses = 0
        if misses >= times.ping_misses:
            raise Wedged(
                f"it left {misses} liveness requests unanswered for {times.ping:g} s each"
                + (" (its process is stopped)" if is_stopped() else "")
            )

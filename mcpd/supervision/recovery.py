"""What follows a failure: the state it leaves, when it is tried again, what is said, and how loudly."""

from __future__ import annotations

import logging

import attrs
import trio

from mcpd.model.server_spec import RestartPolicy
from mcpd.model.status import ServerState
from mcpd.supervision.backoff import Backoff
from mcpd.supervision.failure import Verdict


@attrs.frozen(kw_only=True)
class RecoveryPlan:
    state: ServerState
    reason: str
    """For the status: what is waited for."""
    level: int
    log_suffix: str = ""
    """For the log, behind what has failed."""
    pause: float | None = None
    """Seconds until the next attempt; None where something has to change first."""
    crash_loop: bool = False


def plan_recovery(
    name: str, verdict: Verdict, requested_delay: float, backoff: Backoff, policy: RestartPolicy
) -> RecoveryPlan:
    """`asked` are the seconds that the server itself wants to be left alone. Counts as an attempt."""
    pause = backoff.record_end(trio.current_time())
    # A line for each step of the backoff, the last of them for the crash loop; then silence.
    level = logging.DEBUG if backoff.attempts > policy.intensity else logging.WARNING
    if verdict is Verdict.LOGIN:
        reason = f"give it an `Authorization` header, or `mcpctl reconnect {name}`"
        return RecoveryPlan(state=ServerState.NEEDS_AUTH, reason=reason, level=level)
    if verdict is Verdict.WAIT:
        return RecoveryPlan(
            state=ServerState.FAILED,
            reason=f"correct its definition, or `mcpctl reconnect {name}`",
            level=level,
            log_suffix="; not tried again until something changes",
        )
    seconds = max(pause.seconds, requested_delay)
    looping = pause.crash_loop
    return RecoveryPlan(
        state=ServerState.FAILED,
        reason="crash loop: probed slowly" if looping else "will be tried again",
        level=level,
        log_suffix=f"; {'crash loop, next probe' if looping else 'next attempt'} in {seconds:.1f} s",
        pause=seconds,
        crash_loop=looping,
    )

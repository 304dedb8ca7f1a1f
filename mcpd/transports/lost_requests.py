"""Requests that get no usable response: what they fail with, and whether they may have run.

No request is repeated automatically unless it certainly did not run.
"""

from __future__ import annotations

from mcpd.model.errors import CallTimeout, LinkLost, ProtocolViolation
from mcpd.transports.outgoing_request import Exchange


def connection_lost(server: str, exchange: Exchange, reason: str, *, may_have_run: bool) -> LinkLost:
    """Return the error for a request that was open when the connection was lost."""
    message = f"{server}: {reason} before {exchange.description} was answered"
    if exchange.method == "tools/call":  # for other methods it does not matter
        message += "; it may have run, so it is not repeated" if may_have_run else "; it did not run"
    return LinkLost(message, server=server, may_have_run=may_have_run)


def timed_out(server: str, exchange: Exchange, now: float) -> CallTimeout:
    """Return the error for a request that passed one of its two deadlines."""
    hard = now >= exchange.hard_deadline
    after = exchange.total_timeout if hard else exchange.idle_timeout
    how = "in all, the most one call may take" if hard else "without an answer or progress"
    clock = "`maxTimeout` in its definition sets" if hard else exchange.timeout_source
    return CallTimeout(
        f"{server}: {exchange.description} took {after:g} s {how}; "
        f"mcpd asked the server to cancel it ({clock} the limit)",
        server=server,
        after=after,
    )


def answer_dropped(server: str, exchange: Exchange, reason: str) -> ProtocolViolation:
    """Return the error for a response that exceeds a limit, which `reason` names with its value."""
    how = f"with {reason} (raise `maxFrame` in its definition to allow this)"
    if exchange.method == "tools/call":
        how += "; it may have run, so it is not repeated"
    return protocol_violation(server, exchange, how)


def protocol_violation(server: str, exchange: Exchange, how: str) -> ProtocolViolation:
    """Return the error for a response that violates the protocol; `how` describes it."""
    error = ProtocolViolation(f"{server}: answered {exchange.description} {how}", server=server)
    error.may_have_run = True
    return error

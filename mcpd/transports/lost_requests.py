"""Why a request was not answered, as the error for whoever asked."""

from __future__ import annotations

from mcpd.model.errors import CallTimeout, LinkLost, ProtocolViolation
from mcpd.model.text import shorten
from mcpd.transports.outgoing_request import Exchange


def connection_lost(server: str, exchange: Exchange, reason: str, *, may_have_run: bool) -> LinkLost:
    """The way to the server broke."""
    words = f"{server}: {reason} before {exchange.description} was answered"
    if exchange.method == "tools/call":  # only there it matters to a person
        words += "; it may have run, so it is not repeated" if may_have_run else "; it did not run"
    return LinkLost(words, server=server, may_have_run=may_have_run)


def timed_out(server: str, exchange: Exchange, now: float) -> CallTimeout:
    hard = now >= exchange.hard_deadline
    after = exchange.total_timeout if hard else exchange.idle_timeout
    how = "in all, the most one call may take" if hard else "without an answer or progress"
    clock = "`maxTimeout` in its definition sets" if hard else exchange.timeout_source
    return CallTimeout(
        f"{server}: {exchange.description} took {after:g} s {how}; "
        f"the server was told to cancel it ({clock} the limit)",
        server=server,
        after=after,
    )


def protocol_violation(server: str, exchange: Exchange, how: str) -> ProtocolViolation:
    """It was answered, `how`: not as the protocol has it."""
    return ProtocolViolation(f"{server}: answered {exchange.description} {how}", server=server)


def unparsable_response(server: str, exchange: Exchange, line: bytes) -> ProtocolViolation:
    return ProtocolViolation(
        f"{server}: its answer to {exchange.description} cannot be read (broken, or nested too deeply): "
        f"{shorten(line)}",
        server=server,
    )

"""Why a request was not answered, as the error for whoever asked."""

from __future__ import annotations

from mcpd.model.errors import CallTimeout, LinkLost, ProtocolViolation
from mcpd.model.text import shorten
from mcpd.transports.outgoing_request import Exchange


def lost(server: str, exchange: Exchange, reason: str, *, may_have_run: bool) -> LinkLost:
    """The way to the server broke."""
    words = f"{server}: {reason} before {exchange.named} was answered"
    if exchange.method == "tools/call":  # only there it matters to a person
        words += "; it may have run, so it is not repeated" if may_have_run else "; it did not run"
    return LinkLost(words, server=server, may_have_run=may_have_run)


def timed_out(server: str, exchange: Exchange, now: float) -> CallTimeout:
    hard = now >= exchange.hard_deadline
    after = exchange.limit if hard else exchange.idle
    how = "in all, the most one call may take" if hard else "without an answer or progress"
    clock = "`maxTimeout` in its definition sets" if hard else exchange.clock
    return CallTimeout(
        f"{server}: {exchange.named} took {after:g} s {how}; "
        f"the server was told to cancel it ({clock} the limit)",
        server=server,
        after=after,
    )


def violated(server: str, exchange: Exchange, how: str) -> ProtocolViolation:
    """It was answered, `how`: not as the protocol has it."""
    return ProtocolViolation(f"{server}: answered {exchange.named} {how}", server=server)


def unreadable(server: str, exchange: Exchange, line: bytes) -> ProtocolViolation:
    return ProtocolViolation(
        f"{server}: its answer to {exchange.named} cannot be read (broken, or nested too deeply): "
        f"{shorten(line)}",
        server=server,
    )

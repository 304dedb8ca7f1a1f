"""How long one call may take. `transports.multiplexer` enforces what is set here on each `Exchange`."""

from __future__ import annotations

from mcpd.model.server_spec import Timeouts
from mcpd.transports.outgoing_request import Exchange

_FROM_TOOL_TIMEOUTS = "`toolTimeouts` in its definition sets"
_FROM_CALLER = "the caller set"


def set_call_timeouts(call: Exchange, timeouts: Timeouts, tool: str) -> None:
    """Set a client call's idle timeout (`toolTimeouts`, else `timeout`) and total (`maxTimeout`)."""
    call.idle_timeout, call.total_timeout = timeouts.call, timeouts.call_max
    if timeouts.tools and tool in timeouts.tools:
        call.idle_timeout = timeouts.tools[tool]
        call.timeout_source = _FROM_TOOL_TIMEOUTS


def set_control_call_timeouts(call: Exchange, timeouts: Timeouts, tool: str, requested: float | None) -> None:
    """Set the timeouts of an `mcpd/call`, which may bring an idle timeout of its own (`requested`, seconds).

    Unlike a client's call, it is never ended before its idle timeout, even if `maxTimeout` is shorter.
    """
    set_call_timeouts(call, timeouts, tool)
    if requested:
        call.idle_timeout, call.timeout_source = requested, _FROM_CALLER
    call.total_timeout = max(call.total_timeout, call.idle_timeout)

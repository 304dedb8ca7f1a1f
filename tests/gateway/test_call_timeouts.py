"""The timeouts of one call: the definition's, a tool's own, and the caller's."""

from __future__ import annotations

import pytest

from mcpd.gateway.call_timeouts import set_call_timeouts, set_control_call_timeouts
from mcpd.model.server_spec import Timeouts
from mcpd.transports.outgoing_request import Exchange

TIMEOUTS = Timeouts(call=20, call_max=50, tools={"slow": 40, "slower": 90})


@pytest.mark.parametrize(
    ("timeouts", "tool", "idle", "source"),
    [
        (TIMEOUTS, "echo", 20, "`timeout` in"),
        (TIMEOUTS, "slow", 40, "`toolTimeouts`"),
        (TIMEOUTS, "", 20, "`timeout` in"),
        (Timeouts(call=20, call_max=50), "slow", 20, "`timeout` in"),
    ],
)
def test_tool_timeout_replaces_the_servers(timeouts: Timeouts, tool: str, idle: float, source: str) -> None:
    call = Exchange()
    set_call_timeouts(call, timeouts, tool)
    assert (call.idle_timeout, call.total_timeout) == (idle, 50)
    assert call.timeout_source.startswith(source)


@pytest.mark.parametrize(
    ("tool", "requested", "idle", "total", "source"),
    [
        ("echo", None, 20, 50, "`timeout` in"),
        ("slow", None, 40, 50, "`toolTimeouts`"),
        ("slower", None, 90, 90, "`toolTimeouts`"),
        ("slow", 5.0, 5, 50, "the caller"),
        ("echo", 70.0, 70, 70, "the caller"),
    ],
)
def test_control_call_is_not_ended_before_its_idle_timeout(
    tool: str, requested: float | None, idle: float, total: float, source: str
) -> None:
    call = Exchange()
    set_control_call_timeouts(call, TIMEOUTS, tool, requested)
    assert (call.idle_timeout, call.total_timeout) == (idle, total)
    assert call.timeout_source.startswith(source)

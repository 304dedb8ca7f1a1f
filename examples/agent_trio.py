"""Call a tool many times concurrently with trio, and print each answer as it arrives.

    python examples/agent_trio.py Europe/Berlin Asia/Tokyo America/New_York

This prints the time in each zone. It requires `mcp-server-time`; to add it, run:

    mcpctl add time -- uvx mcp-server-time

The daemon is started if it is not running.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Sequence

import trio

from mcpd.client import CallTimedOut, ClientError, Tool, connect

ZONES = ("America/New_York", "Europe/Berlin", "Asia/Kolkata", "Asia/Tokyo")
DEADLINE = 20.0
"""Seconds for all calls together. trio cancels those that are late, and mcpd cancels them at the server."""


async def main(zones: Sequence[str]) -> int:
    """Print the times. Return the exit code."""
    async with connect() as mcp:
        clocks = await mcp.list_tools(match="get_current_time")
        if not clocks:
            print("No server tells the time. To add one, run: mcpctl add time -- uvx mcp-server-time")
            return 1
        with trio.move_on_after(DEADLINE) as deadline:
            async with trio.open_nursery() as nursery:
                for zone in zones:
                    nursery.start_soon(print_time, clocks[0], zone)
        if deadline.cancelled_caught:
            print(f"gave up after {DEADLINE:g} s")
    return 0


async def print_time(clock: Tool, zone: str) -> None:
    """Print the time in `zone`. An agent would give a failure to its model, which can correct the zone."""
    try:
        result = await clock.execute(timezone=zone, timeout=10)
    except CallTimedOut:
        print(f"{zone}: no answer")
    except ClientError as error:
        print(f"{zone}: {error}")
    else:
        print(f"{zone}: {json.loads(result.output)['datetime']}")


if __name__ == "__main__":
    sys.exit(trio.run(main, sys.argv[1:] or ZONES))

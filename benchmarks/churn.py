"""Check that the daemon stays healthy under many HTTP calls, half of which are cancelled at random.

    python -m benchmarks.churn [SECONDS]

It runs for 60 seconds unless you say otherwise. The exit status is 1 if a single call takes more than 50 ms
afterwards, or if 128 calls in flight reach less than 60 % of the rate of 8.
"""

from __future__ import annotations

import json
import random
import select
import statistics
import sys
import time
from contextlib import ExitStack

import attrs

from benchmarks.daemon import running
from benchmarks.http_load import stub
from benchmarks.load import LIMIT, Line, OnLine, Wrong, attached

IN_FLIGHT, FEW = 128, 8
SLOWEST, SHARE = 0.05, 0.6


@attrs.frozen
class Tally:
    """The results of the run, and of the calls after it."""

    calls: int
    cancelled: int
    unanswered: int
    """Calls that were neither cancelled nor answered; must be 0."""
    refused: int
    """Calls that were not cancelled and failed; must be 0."""
    one_call: float
    """Median duration of a call after the run, in seconds."""
    few: float
    many: float
    """Calls per second with 8 (`few`) and 128 (`many`) calls in flight."""

    @property
    def whole(self) -> bool:
        return (
            not self.unanswered
            and not self.refused
            and self.one_call <= SLOWEST
            and self.many >= SHARE * self.few
        )


def churn(era: str, seconds: float, seed: int = 5) -> Tally:
    """Run against a stub of the given era in a private daemon. Raises Wrong for an invalid response."""
    with ExitStack() as held:
        port = held.enter_context(stub(era))
        definition = {"type": "http", "url": f"http://127.0.0.1:{port}/mcp", "maxInFlight": IN_FLIGHT}
        daemon = held.enter_context(running({"stub-1": definition}))
        line = held.enter_context(attached(daemon.socket, "stub-1"))
        calls, cancelled, refused, unanswered = _storm(line, seconds, random.Random(seed))
        with attached(daemon.socket, "stub-1") as fresh:
            route = OnLine(fresh)
            one_call = statistics.median(route.latencies("echo", 20))
            rates = [(route.rate(400, FEW), route.rate(1600, IN_FLIGHT)) for _ in range(3)]
        few, many = max(rates, key=lambda pair: pair[1] / pair[0])
        return Tally(calls, cancelled, unanswered, refused, one_call, few, many)


def _storm(line: Line, seconds: float, chance: random.Random) -> tuple[int, int, int, int]:
    waiting: set[int] = set()
    cancelled: set[int] = set()
    next_id, refused = 1000, 0
    ends = time.monotonic() + seconds
    while time.monotonic() < ends or waiting:
        frames = []
        while len(waiting) < IN_FLIGHT and time.monotonic() < ends:
            next_id += 1
            frames.append(_frame(next_id, "tools/call", {"name": "wait", "arguments": {}}))
            if chance.random() < 0.5:
                cancelled.add(next_id)
            waiting.add(next_id)
        for key in [key for key in waiting if key in cancelled]:
            if chance.random() < 0.3 or time.monotonic() >= ends:
                frames.append(_frame(None, "notifications/cancelled", {"requestId": key}))
                waiting.discard(key)
        line.write(b"".join(frames))
        if not waiting or not select.select([line.reads], [], [], LIMIT)[0]:
            break  # all responses arrived, or one is missing
        for answer in map(json.loads, line.lines()):
            key = answer.get("id")
            if key not in waiting and key not in cancelled:
                raise Wrong(f"an answer to nothing: {str(answer)[:200]}")
            refused += "result" not in answer and key not in cancelled
            waiting.discard(key)
    return next_id - 1000, len(cancelled), refused, len(waiting)


def _frame(key: int | None, method: str, params: object) -> bytes:
    message = {"jsonrpc": "2.0", "method": method, "params": params}
    return json.dumps(message if key is None else {**message, "id": key}).encode() + b"\n"


def main() -> int:
    seconds = float(sys.argv[1]) if len(sys.argv) > 1 else 60.0
    holds = True
    for era in ("modern", "legacy"):
        tally = churn(era, seconds)
        holds = holds and tally.whole
        print(
            f"{era}: {tally.calls:,} calls in {seconds:g} s, {tally.cancelled:,} cancelled, "
            f"{tally.unanswered + tally.refused} lost; afterwards, a call takes "
            f"{tally.one_call * 1e3:.2f} ms, "
            f"and {tally.many:,.0f}/s with {IN_FLIGHT} in flight vs. {tally.few:,.0f}/s with {FEW}: "
            f"{'ok' if tally.whole else 'FAILED'}"
        )
    return 0 if holds else 1


if __name__ == "__main__":
    sys.exit(main())

"""A client of another server, in a process of its own: are its answers right, and what do they cost?

    python -m tests.fuzz.bystander SOCKET PID

It prints a line after its first call, and calls every 10 ms until its stdin ends. For each line on stdin it
prints the milliseconds that a call has cost at most since the line before, and at its end one JSON object.

A call costs the processor time that the thread of the daemon's event loop uses until the answer arrives,
including its work for others: at most the time that the call takes on an idle machine. On a busy machine, the
daemon also works while this process or the server wait for a processor: that is not counted.
"""

from __future__ import annotations

import json
import select
import sys
from contextlib import suppress
from pathlib import Path

from tests.e2e.harness import Client
from tests.fuzz.messages import CALM


def used_and_delayed(*processes: int | str) -> tuple[float, float]:
    """Return the seconds for which they ran, and for which they waited for a processor."""
    used = delayed = 0.0
    for each in processes:
        with suppress(OSError, ValueError):
            ran, waited, *_ = Path(f"/proc/{each}/schedstat").read_text().split()
            used, delayed = used + int(ran) / 1e9, delayed + int(waited) / 1e9
    return used, delayed


def main(path: str, pid: int) -> None:
    costs: list[float] = []
    wrong: list[str] = []
    number, worst = 0, 0.0
    loop = f"{pid}/task/{pid}"
    try:
        with Client(path, 120) as client:
            servers = client.request("mcpd/status")["servers"]
            server = next(each["pid"] for each in servers if each["name"] == CALM)
            while True:
                if select.select([sys.stdin], [], [], 0.01)[0]:
                    if not sys.stdin.readline():
                        break
                    print(round(worst * 1000, 2), flush=True)
                    worst = 0.0
                number += 1
                (began, _), (_, waited) = used_and_delayed(loop), used_and_delayed("self", server)
                result = client.call(CALM, "echo", {"n": number})
                (ended, _), (_, delayed) = used_and_delayed(loop), used_and_delayed("self", server)
                cost = max(0.0, ended - began - (delayed - waited))
                if number == 1:
                    print("ready", flush=True)
                else:  # the first call has compiled the schema of the tool
                    costs.append(cost)
                    worst = max(worst, cost)
                if result["output"] != f'{{"n": {number}}}':
                    wrong.append(f"call {number}: {result}")
    except Exception as error:
        wrong.append(f"call {number}: {error!r}")
    costs = sorted(costs) or [0.0]

    def ms(share: float) -> float:
        return round(costs[int(share * (len(costs) - 1))] * 1000, 2)

    print(json.dumps({"calls": number, "wrong": wrong[:5], "p50": ms(0.5), "p99": ms(0.99), "max": ms(1.0)}))


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]))

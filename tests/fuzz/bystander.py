"""A client of another server, in a process of its own: are its answers right, and what do they cost?

    python -m tests.fuzz.bystander SOCKET PID

It prints a line after its first call, calls every 10 ms until its stdin ends, and then prints one JSON
object. A call costs the processor time that the thread of the daemon's event loop uses until the answer
arrives, including its work for others: at most the time that the call takes on an idle machine.
"""

from __future__ import annotations

import json
import select
import sys
from pathlib import Path

from tests.e2e.harness import Client
from tests.fuzz.messages import CALM


def main(path: str, pid: int) -> None:
    stat = Path(f"/proc/{pid}/task/{pid}/schedstat")

    def cpu() -> float:
        return int(stat.read_text().split()[0]) / 1e9

    costs: list[float] = []
    wrong: list[str] = []
    number = 0
    try:
        with Client(path, 120) as client:
            while not select.select([sys.stdin], [], [], 0.01)[0]:
                number += 1
                began = cpu()
                result = client.call(CALM, "echo", {"n": number})
                costs.append(cpu() - began)
                if number == 1:
                    print("ready", flush=True)
                if result["output"] != f'{{"n": {number}}}':
                    wrong.append(f"call {number}: {result}")
    except Exception as error:
        wrong.append(f"call {number}: {error!r}")
    costs = sorted(costs[1:]) or [0.0]  # the first call has compiled the schema of the tool

    def ms(share: float) -> float:
        return round(costs[int(share * (len(costs) - 1))] * 1000, 2)

    print(json.dumps({"calls": number, "wrong": wrong[:5], "p50": ms(0.5), "p99": ms(0.99), "max": ms(1.0)}))


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]))

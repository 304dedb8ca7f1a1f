"""Measure the overhead of the daemon as ratios and compare them with limits (`make bench`).

    python -m benchmarks.run [--quick] [--write]

Values that are compared are measured alternately in several rounds, and each result is the median of the
rounds. The exit status is 1 if a limit is exceeded. `--write` updates the table in benchmarks/RESULTS.md.
"""

from __future__ import annotations

import argparse
import os
import platform
import signal
import sys
import time
from collections.abc import Callable
from pathlib import Path

from benchmarks import cached, cost, http_endpoint, remote, scale, signing, stages, unix_socket
from benchmarks.figures import PATIENCE, Row, table
from benchmarks.load import Wrong

ROUNDS = 5
RESULTS = Path(__file__).with_name("RESULTS.md")
PARTS: dict[str, Callable[[int], list[Row]]] = {
    "speed": unix_socket.speed,
    "stages": stages.add,
    "cache": cached.share,
    "remote": remote.speed,
    "signing": signing.sign,
    "endpoint": http_endpoint.speed,
    "scale": scale.grow,
    "cost": cost.cost,
}
"""The parts of a run. Each takes the number of rounds."""
HEAD = ("metric", "measured", "result", "limit", "met")


def machine() -> str:
    """Describe the machine and the date. Absolute values differ between machines more than ratios do."""
    model = next(
        (
            line.split(":")[1].strip()
            for line in Path("/proc/cpuinfo").read_text().splitlines()
            if "model name" in line
        ),
        platform.machine(),
    )
    today = time.strftime("%Y-%m-%d")
    system = f"Linux {platform.release()}, Python {platform.python_version()}"
    return f"{today}, {model}, {os.cpu_count()} cores, {system}"


def write(name: str, text: str) -> None:
    """Replace the text between the markers of this name in RESULTS.md."""
    begin, end = f"<!-- {name}: begin -->", f"<!-- {name}: end -->"
    before, _, rest = RESULTS.read_text().partition(begin)
    _, _, after = rest.partition(end)
    RESULTS.write_text(f"{before}{begin}\n{text}\n{end}{after}")


def handle_signals() -> None:
    """Let an alarm end the run as invalid, and let SIGTERM end it through every `finally`."""
    signal.signal(signal.SIGALRM, _overdue)
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))


def _overdue(*_: object) -> None:
    raise Wrong(f"no response for {PATIENCE} s")


def main() -> int:
    flags = argparse.ArgumentParser(prog="make bench", description=(__doc__ or "").partition("\n")[0])
    flags.add_argument("--quick", action="store_true", help="measure a single round")
    flags.add_argument("--write", action="store_true", help=f"update the table in {RESULTS.name}")
    flags.add_argument("--only", choices=PARTS, help="run one part")
    given = flags.parse_args()
    rows: list[Row] = []
    handle_signals()
    try:
        for name, measure in PARTS.items():
            if given.only in (None, name):
                rows += measure(1 if given.quick else ROUNDS)
    except Wrong as error:
        print(f"the benchmark is invalid: {error}", file=sys.stderr)
        return 2
    text = f"{machine()}\n\n{table(HEAD, [row.cells() for row in rows])}"
    print(text)
    if given.write:
        write("figures", text)
    return 0 if all(row.holds for row in rows) else 1


if __name__ == "__main__":
    sys.exit(main())

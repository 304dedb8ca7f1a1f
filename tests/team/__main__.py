"""Run three replicas of mcpd behind HAProxy, let clients of both eras use them, and kill replicas meanwhile.

    make team                                   60 s, a replica is killed every 10 s
    make team SECONDS=20 ARGS='--bench --conformance'

The exit status is 1 if a rule is broken or a figure is missed.
"""

from __future__ import annotations

import argparse
import os
import sys
import tempfile
from pathlib import Path

from tests.interop import everything
from tests.team import replicas, speed, work


def main() -> int:
    read = argparse.ArgumentParser(prog="make team", description=__doc__.partition("\n")[0])
    read.add_argument("--seconds", type=float, default=60.0, help="how long the clients work")
    read.add_argument("--every", type=float, default=10.0, help="seconds from one kill to the next")
    read.add_argument("--bench", action="store_true", help="measure the speed; the machine must be idle")
    read.add_argument("--conformance", action="store_true", help="run the official server scenarios, too")
    given = read.parse_args()
    os.environ.setdefault("CLIENT_LIMIT", "60")
    faults: list[str] = []
    with (
        tempfile.TemporaryDirectory(prefix="mcpd-team-") as directory,
        everything.everything("stdio") as server,
    ):
        home = Path(directory)
        with replicas.running(home / "team", {work.SERVER: server}) as team:
            if given.seconds:
                outcome = work.run(team, home, given.seconds, given.every)
                print(outcome.table(), flush=True)
                faults += outcome.faults()
        if given.conformance:
            faults += speed.conformance(home)
        if given.bench:
            faults += speed.measure(home / "speed")
    for fault in faults:
        print(fault, file=sys.stderr)
    print("ok" if not faults else f"{len(faults)} faults")
    return 1 if faults else 0


if __name__ == "__main__":
    sys.exit(main())
